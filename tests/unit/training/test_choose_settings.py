"""Settings chosen for a user's own text: always valid, and each with its reason."""

import re
import tomllib
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dragoman.model.shape import load_preset
from dragoman.run.config import build_settings, load_settings
from dragoman.run.errors import UsageError
from dragoman.training.choose_settings import (
    CorpusSize,
    Machine,
    choose_fine_tuning,
    choose_settings,
    describe_choices,
)

sizes = st.builds(lambda pairs, tokens: CorpusSize(pairs, pairs * tokens), st.integers(1, 10**8), st.integers(1, 60))
machines = st.builds(Machine, num_cores=st.integers(1, 256), num_gpus=st.integers(0, 64))
LAPTOP = Machine(num_cores=2, num_gpus=0)


def choose(num_pairs: int, machine: Machine = LAPTOP):
    return choose_settings(CorpusSize(num_pairs, 25 * num_pairs), machine, Path("prepared"))


@given(sizes, machines)
def test_whatever_the_corpus_the_choices_are_valid_settings(size, machine):
    tables, reasons = choose_settings(size, machine, Path("prepared"))
    chosen = build_settings(tables)
    load_preset(chosen.model.preset)
    assert all(reason.strip() for reason in reasons)
    assert chosen.training.virtual_workers >= max(1, machine.num_gpus)
    assert chosen.training.warmup_steps < chosen.training.max_steps
    assert chosen.training.log_every <= chosen.evaluation.evaluate_every <= chosen.training.max_steps
    assert chosen.checkpoints.save_every <= chosen.training.max_steps


@given(sizes, machines)
def test_no_pair_is_left_out_because_of_the_chosen_budget_on_a_cpu(size, machine):
    if machine.num_gpus > 4:
        return
    chosen = build_settings(choose_settings(size, machine, Path("prepared"))[0])
    first_tokens = chosen.training.batch_growth.first_tokens
    assert first_tokens // chosen.training.virtual_workers >= chosen.data.max_tokens


@pytest.mark.parametrize("asked", [{}, {"max_steps": 100}, {"max_steps": 3_000, "global_batch_tokens": 16_384}])
@pytest.mark.parametrize("num_pairs", [5_000, 29_000, 300_000])
def test_small_batches_at_first_read_the_larger_part_of_the_text(num_pairs, asked):
    size = CorpusSize(num_pairs, 15 * num_pairs)
    tables, reasons = choose_settings(size, LAPTOP, Path("prepared"), {"training": asked})
    training = build_settings(tables).training
    growth, steps = training.batch_growth, training.max_steps
    assert growth.first_tokens == 1_024 < growth.full_tokens
    assert growth.full_steps(0, growth.full_from_step) / growth.full_steps(0, steps) == pytest.approx(0.6, abs=0.03)
    assert any(
        f"double every {growth.doubling_steps:,} steps until step {growth.full_from_step:,}" in r for r in reasons
    )
    if not asked:
        epochs = growth.full_steps(0, steps) * growth.full_tokens / size.num_target_tokens
        assert epochs == pytest.approx({5_000: 40, 29_000: 20, 300_000: 8}[num_pairs], rel=0.05)


@pytest.mark.parametrize(
    ("machine", "asked"),
    [
        (Machine(8, 1), {}),
        (Machine(8, 0, has_other_hosts=True), {}),
        (Machine(16, 0, num_workers=16), {}),  # slices of the batch would be too short for long sentences
        (LAPTOP, {"global_batch_tokens": 1_500}),
        (LAPTOP, {"initial_batch_tokens": 0}),
        (LAPTOP, {"initial_batch_tokens": 9_000}),
    ],
)
def test_batches_do_not_grow_where_small_ones_would_not_pay(machine, asked):
    tables, reasons = choose_settings(CorpusSize(29_000, 15 * 29_000), machine, Path("p"), {"training": asked})
    assert build_settings(tables).training.batch_growth.full_from_step == 0
    assert not any("double" in reason or "grow" in reason for reason in reasons)


def test_a_single_growth_is_described_as_one():
    reason = choose(3_000)[1][2]
    assert re.search(r"; batches grow after step [\d,]+;", reason)


def test_a_growth_that_was_asked_for_is_kept():
    asked = {"training": {"initial_batch_tokens": 512, "batch_doubling_steps": 70, "virtual_workers": 2}}
    tables, _ = choose_settings(CorpusSize(29_000, 15 * 29_000), Machine(8, 1), Path("p"), asked)
    training = build_settings(tables).training
    assert (training.initial_batch_tokens, training.batch_doubling_steps) == (512, 70)
    assert training.batch_growth.full_from_step == 210 < training.max_steps


@pytest.mark.parametrize(
    ("num_pairs", "num_gpus", "preset", "dropout"),
    [
        (1_000, 0, "tiny", 0.3),
        (4_999, 0, "tiny", 0.3),
        (5_000, 0, "small", 0.3),
        (50_000, 0, "small", 0.2),
        (500_000, 0, "small", 0.1),
        (50_000, 4, "small", 0.2),
        (100_000, 1, "transformer-base", 0.2),
        (4_500_000, 4, "transformer-base", 0.1),
    ],
)
def test_the_model_grows_with_the_corpus_and_the_machine(num_pairs, num_gpus, preset, dropout):
    tables, _ = choose(num_pairs, Machine(8, num_gpus))
    assert tables["model"] == {"preset": preset, "dropout": dropout}


@pytest.mark.parametrize(("asked", "expected"), [({}, "auto"), ({"precision": "fp32"}, "fp32")])
def test_workers_decide_about_the_precision_unless_it_was_asked_for(asked, expected):
    size, prepared = CorpusSize(9_000, 90_000), Path("prepared")
    for tables, reasons in (
        choose_settings(size, LAPTOP, prepared, {"training": asked}),
        choose_fine_tuning(size, LAPTOP, prepared, "runs/a", 1e-3, {"training": asked}),
    ):
        assert build_settings(tables).training.precision == expected
        assert reasons[-1].startswith(f"Precision {expected}: ")


def test_reasons_name_the_corpus_and_the_machine():
    _, reasons = choose(12_345)
    assert "12,345 training pairs on 2 CPU cores" in reasons[0]
    assert "1 GPU." in choose(12_345, Machine(8, 1))[1][0]
    assert "2 GPUs." in choose(12_345, Machine(8, 2))[1][0]


def test_the_description_is_a_config_file_with_its_reasons(tmp_path):
    tables, reasons = choose(12_345)
    text = describe_choices(tables, reasons)
    assert tomllib.loads(text) == tables
    assert all(f"# {reason}\n" in text for reason in reasons)
    (tmp_path / "chosen.toml").write_text(text, encoding="utf-8")
    assert load_settings(tmp_path / "chosen.toml") == build_settings(tables)


def test_there_is_a_virtual_worker_for_every_worker():
    tables, _ = choose(12_345, Machine(num_cores=16, num_gpus=0, num_workers=16))
    assert tables["training"]["virtual_workers"] == 16


def test_settings_of_the_command_line_win():
    tables, _ = choose(12_345)
    chosen = build_settings(tables, ["training.max_steps=77", "model.preset=tiny"])
    assert (chosen.training.max_steps, chosen.model.preset) == (77, "tiny")
    with pytest.raises(UsageError, match=r"did you mean 'training.max_steps'"):
        build_settings(tables, ["training.max_step=77"])


def test_reasons_follow_what_the_user_asked_for():
    asked = {"training": {"max_steps": 60}, "model": {"preset": "small"}}
    tables, reasons = choose_settings(CorpusSize(1_000, 15_000), Machine(2, 0), Path("p"), asked)
    assert tables["training"]["max_steps"] == 60
    assert tables["training"]["warmup_steps"] == 20
    assert any(reason.startswith("60 steps") for reason in reasons)
    assert any(reason.startswith("Model small") for reason in reasons)


@given(sizes, machines)
def test_whatever_the_corpus_the_recipe_for_fine_tuning_is_valid(size, machine):
    tables, reasons = choose_fine_tuning(size, machine, Path("prepared"), "runs/old@best", 2e-3)
    chosen = build_settings(tables)
    assert "model" not in tables  # it is that of the run it starts from
    assert chosen.training.start_from == "runs/old@best"
    assert chosen.training.learning_rate == 4e-4
    assert chosen.training.warmup_steps <= chosen.training.max_steps // 10
    assert chosen.evaluation.evaluate_at_start
    assert chosen.evaluation.patience == 4
    assert chosen.training.log_every <= chosen.evaluation.evaluate_every <= chosen.training.max_steps
    assert all(reason.strip() for reason in reasons)


def test_what_was_asked_for_comes_first_in_fine_tuning_too():
    asked = {"training": {"max_steps": 40, "learning_rate": 1e-5}, "evaluation": {"patience": 9}}
    size = CorpusSize(1_000, 25_000)
    tables, reasons = choose_fine_tuning(size, LAPTOP, Path("prepared"), "runs/old", 2e-3, asked)
    chosen = build_settings(tables)
    assert (chosen.training.max_steps, chosen.training.learning_rate, chosen.evaluation.patience) == (40, 1e-5, 9)
    assert any("At most 40 steps" in reason for reason in reasons)
