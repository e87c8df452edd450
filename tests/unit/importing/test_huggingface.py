"""trainer_state.json and printed lines of the HF Trainer."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st
from trainer_logs import is_sound, of_kind, reading_with

from dragoman.importing import huggingface
from dragoman.importing.huggingface import HfReader, is_own_line, read_trainer_state
from dragoman.importing.imported_run import ImportedRun
from dragoman.run.errors import UserError

STATE = {
    "global_step": 1000,
    "max_steps": 1000,
    "logging_steps": 500,
    "eval_steps": 500,
    "train_batch_size": 16,
    "log_history": [
        {"epoch": 0.5, "grad_norm": 1.25, "learning_rate": 5e-05, "loss": 2.5, "step": 500},
        {"epoch": 0.5, "eval_bleu": 21.5, "eval_loss": 2.25, "eval_runtime": 12.5, "step": 500},
        {"epoch": 1.0, "grad_norm": 1.0, "learning_rate": 0.0, "loss": 2.0, "step": 1000},
        {"epoch": 1.0, "step": 1000, "train_loss": 2.25, "train_runtime": 500.0, "train_samples_per_second": 32.0},
    ],
}
START = [
    "***** Running training *****",
    "  Num examples = 50,000",
    "  Num Epochs = 2",
    "  Instantaneous batch size per device = 8",
    "  Total train batch size (w. parallel, distributed & accumulation) = 64",
    "  Gradient Accumulation steps = 2",
    "  Total optimization steps = 1,000",
    "  Number of trainable parameters = 60,880,896",
]
LOSS = "{'loss': 2.5, 'grad_norm': 1.25, 'learning_rate': 5e-05, 'epoch': 0.5}"
EVALUATION = "{'eval_loss': 2.25, 'eval_bleu': 21.5, 'eval_runtime': 12.5, 'epoch': 0.5}"
SUMMARY = "{'train_runtime': 500.0, 'train_samples_per_second': 32.0, 'train_loss': 2.25, 'epoch': 2.0}"


def read_state(folder, state) -> ImportedRun:
    run = ImportedRun()
    (folder / "trainer_state.json").write_text(state if isinstance(state, str) else json.dumps(state))
    read_trainer_state(folder / "trainer_state.json", run)
    return run


read = reading_with(HfReader)


def bar(step: int, num_steps: int, elapsed: str) -> str:
    return f" 50%|█████     | {step}/{num_steps} [{elapsed}<01:23,  6.01it/s]"


def test_the_history_of_a_state(tmp_path):
    run = read_state(tmp_path, STATE)
    first, second = of_kind(run, "train")
    assert first == {"kind": "train", "step": 500, "loss": 2.5, "learning_rate": 5e-05, "gradient_norm": 1.25}
    assert second["step"] == 1000
    assert of_kind(run, "evaluation") == [
        {"kind": "evaluation", "step": 500, "loss": 2.25, "bleu": 21.5, "seconds": 12.5}
    ]
    facts = run.facts
    assert (facts["steps_planned"], facts["log_every"], facts["evaluate_every"]) == (1000, 500, 500)
    assert (facts["is_finished"], facts["mean_seconds_per_step"]) == (True, 0.5)
    assert facts["batch_sentences_per_rank"] == 16
    assert run.trainer == "HF Trainer"


def test_a_bleu_up_to_one_is_a_share(tmp_path):
    history = [{"eval_bleu": 0.25, "step": 500}, {"eval_bleu": 0.5, "step": 1000}]
    run = read_state(tmp_path, STATE | {"log_history": history})
    assert [record["bleu"] for record in of_kind(run, "evaluation")] == [25, 50]
    assert any("multiplied by 100" in note for note in run.notes)


def test_figures_as_text_and_nan(tmp_path):
    history = [{"loss": "2.5", "step": 1}, {"loss": float("nan"), "step": 2}, {"loss": 3, "step": "x"}, 7]
    run = read_state(tmp_path, STATE | {"log_history": history})
    assert of_kind(run, "train")[0]["loss"] == 2.5
    assert run.first_nan_step == 2


def test_a_run_that_is_not_at_its_end(tmp_path):
    assert read_state(tmp_path, STATE | {"max_steps": 5000, "log_history": []}).facts["is_finished"] is False


@pytest.mark.parametrize("text", ["", "{", "[]", "7", '{"log_history": 3}', "[" * 100_000, '{"a": ' + "9" * 5000 + "}"])
def test_what_is_no_state_is_refused_by_name(tmp_path, text):
    with pytest.raises(UserError, match=r"trainer_state\.json"):
        read_state(tmp_path, text)


def test_a_missing_or_enormous_state_is_refused(tmp_path, monkeypatch):
    with pytest.raises(UserError, match="missing"):
        read_trainer_state(tmp_path / "missing.json", ImportedRun())
    monkeypatch.setattr(huggingface, "MAX_STATE_BYTES", 10)
    with pytest.raises(UserError, match="larger"):
        read_state(tmp_path, STATE)


values = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5) | st.just(10**400)
names = st.sampled_from(["loss", "step", "eval_loss", "eval_bleu", "train_runtime", "epoch", "learning_rate"])


@given(st.lists(st.dictionaries(names, values)), st.dictionaries(st.sampled_from(list(STATE)), values))
def test_any_history_can_be_read(tmp_path_factory, history, state):
    assert is_sound(read_state(tmp_path_factory.mktemp("state"), state | {"log_history": history}))


def test_printed_lines_get_their_steps_from_the_bar():
    run = read(
        *START, bar(100, 1000, "00:50"), LOSS, bar(32, 32, "00:10"), EVALUATION, bar(200, 1000, "01:40") + LOSS, SUMMARY
    )
    first, second = of_kind(run, "train")
    assert (first["step"], first["training_seconds"]) == (100, 50)
    assert (second["step"], second["seconds_per_step"]) == (200, 0.5)
    assert of_kind(run, "evaluation")[0]["step"] == 100
    facts = run.facts
    assert (facts["parameters"], facts["num_training_pairs"], facts["num_ranks"]) == (60880896, 50000, 4)
    assert facts["is_finished"] is True


def test_without_a_bar_the_epoch_tells_the_step():
    assert [record["step"] for record in read(*START, LOSS).records] == [250]


def test_without_anything_records_are_counted():
    run = read(LOSS, LOSS.replace("2.5", "'2.4'"), EVALUATION)
    assert [record["step"] for record in run.records] == [1, 2, 2]
    assert of_kind(run, "train")[1]["loss"] == 2.4
    assert any("does not number its steps" in note for note in run.notes)


def test_checkpoints_and_restarts():
    run = read("Saving model checkpoint to out/checkpoint-500", "  Continuing training from global step 500")
    assert [(record["kind"], record["step"]) for record in run.records] == [("checkpoint", 500), ("restart", 500)]


def test_own_lines_are_known():
    assert all(is_own_line(line) for line in (LOSS, EVALUATION, SUMMARY, START[0]))
    assert not is_own_line("{'a': 3}")


@given(st.lists(st.text() | st.sampled_from([*START, LOSS, EVALUATION, SUMMARY, bar(1, 2, "00:01")]), max_size=8))
def test_any_lines_can_be_read(lines):
    assert is_sound(read(*lines, *(line[:40] for line in lines), *(line[10:] for line in lines), "".join(lines)))


@given(st.text(alphabet="0123456789naif.,e+-٣:", max_size=40))
def test_any_number_can_be_read(text):
    lines = [
        f"  Total optimization steps = {text}",
        bar(1, 2, text),
        LOSS.replace("2.5", text),
        SUMMARY.replace("500.0", text),
    ]
    assert is_sound(read(*lines, *START[:6], LOSS.replace("0.5", text)))


def test_entries_without_a_bar_are_numbered_by_their_epochs_if_the_summary_tells_the_steps():
    run = read(
        "{'loss': 3.0, 'learning_rate': 1e-4, 'epoch': 0.5}",
        "{'loss': 2.0, 'learning_rate': 5e-5, 'epoch': 1.0}",
        "{'train_runtime': 500.0, 'train_steps_per_second': 2.0, 'train_loss': 2.5, 'epoch': 1.0}",
    )
    assert [record["step"] for record in of_kind(run, "train")] == [500, 1000]
    assert run.facts["mean_seconds_per_step"] == 0.5
