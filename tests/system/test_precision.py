"""Half precision through the whole program."""

from pathlib import Path

import pytest
from program import Run, read_records, train_losses


@pytest.mark.slow
def test_half_precision_learns_like_full_precision(dragoman: Run, config: Path, trained_run: Path, tmp_path: Path):
    assert 'precision = "fp32"' in (trained_run / "config.toml").read_text()
    runs = {"fp32": trained_run, "bf16": tmp_path / "bf16", "fp16": tmp_path / "fp16"}
    for precision in ("bf16", "fp16"):
        dragoman(
            "train", config, "--run-dir", runs[precision], "--set", f"training.precision={precision}",
            "--set", "training.max_steps=25",
        )  # fmt: skip
    expected = train_losses(trained_run)
    assert expected[25] < expected[1] - 0.5
    for precision, run in runs.items():
        assert train_losses(run)[25] == pytest.approx(expected[25], rel=0.03)
        last = read_records(run, "train")[-1]
        assert (last["loss_scale"] > 1) == (precision == "fp16")
