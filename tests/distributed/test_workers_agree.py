"""Virtual workers: the number of processes that share a run does not change what it learns."""

from pathlib import Path

import pytest
from program import Run, read_records, train_losses

pytestmark = pytest.mark.usefixtures("one_thread")


def test_one_two_and_four_workers_learn_the_same(dragoman: Run, config: Path, trained_run: Path, tmp_path: Path):
    runs = {1: trained_run, 2: tmp_path / "run2", 4: tmp_path / "run4"}
    for workers in (2, 4):
        dragoman("train", config, "--workers", workers, "--run-dir", runs[workers])
    expected = train_losses(runs[1])
    assert len(expected) == 50
    assert expected[50] < 0.9 * expected[1]
    for workers in (2, 4):
        assert train_losses(runs[workers]) == pytest.approx(expected, rel=1e-4)
        norms = [[record["gradient_norm"] for record in read_records(runs[w], "train")] for w in (1, workers)]
        assert norms[1] == pytest.approx(norms[0], rel=1e-3)
    evaluations = [read_records(run, "evaluation")[-1] for run in runs.values()]
    for evaluation in evaluations[1:]:
        assert evaluation["loss"] == pytest.approx(evaluations[0]["loss"], rel=1e-4)


@pytest.mark.slow
def test_three_workers_share_four_virtual_workers_unevenly(
    dragoman: Run, config: Path, trained_run: Path, tmp_path: Path
):
    dragoman("train", config, "--workers", 3, "--run-dir", tmp_path / "run", "--set", "training.max_steps=8")
    losses = train_losses(tmp_path / "run")
    assert len(losses) == 8
    expected = {step: loss for step, loss in train_losses(trained_run).items() if step <= 8}
    assert losses == pytest.approx(expected, rel=1e-4)


@pytest.mark.slow
def test_the_number_of_workers_changes_nothing_while_batches_grow(dragoman: Run, config: Path, tmp_path: Path):
    growing = [
        f"--set=training.{name}" for name in ("initial_batch_tokens=200", "batch_doubling_steps=3", "max_steps=9")
    ]
    for workers in (1, 4):
        dragoman("train", config, "--workers", workers, "--run-dir", tmp_path / str(workers), *growing)
    alone, together = (train_losses(tmp_path / str(workers)) for workers in (1, 4))
    assert together == pytest.approx(alone, rel=1e-4)
    shares = [record["batch_share"] for record in read_records(tmp_path / "4", "train")]
    assert shares == [0.25] * 3 + [0.5] * 3 + [1.0] * 3


@pytest.mark.slow
def test_in_bf16_workers_agree_up_to_its_rounding(dragoman: Run, config: Path, trained_run: Path, tmp_path: Path):
    for workers in (1, 2):
        precision = ["--set", "training.precision=bf16", "--set", "training.max_steps=30"]
        dragoman("train", config, "--workers", workers, "--run-dir", tmp_path / str(workers), *precision)
    alone, together = (train_losses(tmp_path / str(workers)) for workers in (1, 2))
    assert together == pytest.approx(alone, rel=5e-4)
    exact = {step: loss for step, loss in train_losses(trained_run).items() if step <= 30}
    assert alone == pytest.approx(exact, rel=1e-2)
    assert alone != pytest.approx(exact, rel=1e-6)


@pytest.mark.slow
def test_an_untrained_model_scores_near_zero(dragoman: Run, config: Path, tmp_path: Path):
    dragoman(
        "train", config, "--workers", 2, "--run-dir", tmp_path / "run", "--set", "training.max_steps=1",
        "--set", "evaluation.evaluate_at_start=true", "--set", "evaluation.max_sentences=20",
    )  # fmt: skip
    first = read_records(tmp_path / "run", "evaluation")[0]
    assert first["step"] == 0
    assert first["bleu"] < 1
    assert "nrefs:1" in first["signature"]
