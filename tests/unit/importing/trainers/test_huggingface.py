"""trainer_state.json, result files and printed lines of the HF Trainer; the files under tests/data are real."""

import json
import math
import shutil
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from trainer_logs import is_sound, of_kind, read_lines_with, reading_with

from dragoman.importing.imported_run import ImportedRun
from dragoman.importing.log_text import read_lines
from dragoman.importing.trainers import huggingface
from dragoman.importing.trainers.huggingface import HfReader, is_own_line, read_results, read_trainer_state
from dragoman.run.errors import UserError

DATA = Path(__file__).parents[3] / "data/huggingface"
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
    "  Num examples = 32,000",
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
    second = LOSS.replace("0.5}", "0.6}")
    run = read(
        *START,
        bar(252, 1000, "02:06"),
        LOSS,
        bar(32, 32, "00:10"),
        EVALUATION,
        bar(302, 1000, "02:31") + second,
        SUMMARY,
    )
    first, second = of_kind(run, "train")
    assert (first["step"], first["training_seconds"]) == (252, 126)
    assert (second["step"], second["seconds_per_step"]) == (302, 0.5)
    assert of_kind(run, "evaluation")[0]["step"] == 252
    facts = run.facts
    assert (facts["parameters"], facts["num_training_pairs"], facts["num_ranks"]) == (60880896, 32000, 4)
    assert facts["is_finished"] is True


def test_the_epoch_is_right_where_the_bar_is_late():
    run = read(*START, bar(100, 1000, "00:50"), LOSS, "something else", SUMMARY)
    assert of_kind(run, "train")[0]["step"] == 250


def test_a_run_limited_by_steps_does_not_end_with_an_epoch():
    start = [line.replace("Num Epochs = 2", "Num Epochs = 3") for line in START]
    assert of_kind(read(*start, LOSS), "train")[0]["step"] == 250


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


def test_a_summary_alone_tells_the_number_of_steps():
    run = read(
        "{'train_runtime': '45.86', 'train_steps_per_second': '0.087', 'train_loss': '8.757', 'epoch': '0.1053'}"
    )
    assert (run.facts["steps_done"], run.facts["is_finished"]) == (4, True)


def test_entries_without_a_bar_are_numbered_by_their_epochs_if_the_summary_tells_the_steps():
    run = read(
        "{'loss': 3.0, 'learning_rate': 1e-4, 'epoch': 0.5}",
        "{'loss': 2.0, 'learning_rate': 5e-5, 'epoch': 1.0}",
        "{'train_runtime': 500.0, 'train_steps_per_second': 2.0, 'train_loss': 2.5, 'epoch': 1.0}",
    )
    assert [record["step"] for record in of_kind(run, "train")] == [500, 1000]
    assert run.facts["mean_seconds_per_step"] == 0.5


def read_file(name: str) -> ImportedRun:
    return read_lines_with([HfReader], read_lines(DATA / name))


def test_a_real_log_gives_the_same_steps_as_its_state():
    log, state = read_file("finished.log"), ImportedRun()
    read_trainer_state(DATA / "finished/trainer_state.json", state)
    for kind in ("train", "evaluation"):
        assert [record["step"] for record in of_kind(log, kind)] == [record["step"] for record in of_kind(state, kind)]
    assert [record["step"] for record in of_kind(log, "checkpoint")] == [25, 50, 75, 100, 105]
    assert of_kind(log, "train")[0]["loss"] == pytest.approx(of_kind(state, "train")[0]["loss"], rel=1e-3)
    for run in (log, state):
        facts = run.facts
        assert (facts["steps_done"], facts["steps_planned"], facts["is_finished"]) == (105, 105, True)
        assert (facts["epochs_done"], facts["epochs_planned"]) == (3, 3)
        assert facts["training_seconds"] == pytest.approx(5.036, rel=1e-3)
        assert facts["mean_seconds_per_step"] == pytest.approx(5.036 / 105, rel=1e-3)
        assert [launch.end for launch in run.launches] == ["finished"]
    assert (log.facts["parameters"], log.facts["accumulation"], log.facts["num_ranks"]) == (86528, 2, 1)
    assert any("2 batches make one step" in note for note in log.notes)
    assert state.facts["metric"] == "bleu"


def test_a_bleu_below_1_beside_a_chrf_above_1_is_no_fraction():
    run = ImportedRun()
    read_trainer_state(DATA / "finished/trainer_state.json", run)
    last = of_kind(run, "evaluation")[-1]
    assert last["bleu"] == pytest.approx(0.6249, rel=1e-3)
    assert last["chrf"] == pytest.approx(18, rel=1e-2)
    assert last["other_scores"] == {"gen_len": 4.90625}
    assert last["seconds"] == 0.0814


def test_the_state_of_a_checkpoint_is_not_finished():
    run = ImportedRun()
    read_trainer_state(DATA / "finished/checkpoint-50/trainer_state.json", run)
    assert (run.facts["steps_done"], run.facts["is_finished"]) == (50, False)
    assert "training_seconds" not in run.facts


def test_steps_done_are_more_than_the_last_logged_step(tmp_path):
    history = [*STATE["log_history"][:-1], STATE["log_history"][-1] | {"step": 1137}]
    run = read_state(tmp_path, STATE | {"global_step": 1137, "max_steps": 1137, "log_history": history})
    assert (run.facts["steps_done"], run.facts["is_finished"]) == (1137, True)
    assert run.facts["mean_seconds_per_step"] == pytest.approx(500 / 1137)


def test_a_run_that_a_callback_stopped_early_has_ended(tmp_path):
    run = read_state(tmp_path, STATE | {"max_steps": 5000})
    assert (run.facts["steps_done"], run.facts["is_finished"]) == (1000, True)
    assert any("1,000 of 5,000" in note for note in run.notes)


def test_the_time_of_a_continued_run_is_that_of_its_last_launch():
    log = read_lines_with([HfReader], [*read_lines(DATA / "stopped.log"), *read_lines(DATA / "continued.log")])
    state = ImportedRun()
    read_trainer_state(DATA / "continued/trainer_state.json", state)
    for run in (log, state):
        assert run.facts["mean_seconds_per_step"] == pytest.approx(3.935 / 55, rel=1e-3)
        assert "training_seconds" not in run.facts
        assert any("last launch only" in note for note in run.notes)
    assert [(launch.first_step, launch.last_step) for launch in log.launches] == [(10, 60), (60, 100)]
    assert [record["step"] for record in of_kind(log, "restart")] == [50]
    assert log.facts["num_attempts"] == 2


def test_evaluations_longer_than_the_run_show_that_it_was_continued(tmp_path):
    evaluation = STATE["log_history"][1] | {"eval_runtime": 600.0}
    run = read_state(tmp_path, STATE | {"log_history": [evaluation, *STATE["log_history"][2:]]})
    assert "mean_seconds_per_step" not in run.facts
    assert any("last launch only" in note for note in run.notes)


def continued_state(epochs_begin_again: bool) -> dict:
    """A run of 1,000 steps whose last launch made 300; newer versions divide all steps by the time of that one."""
    history = [
        {
            "step": step,
            "epoch": (step - 700 if epochs_begin_again and step > 700 else step) / 1000,
            "loss": 3 - step / 1000,
        }
        for step in range(100, 1001, 100)
    ]
    last = sum(entry["loss"] * 100 for entry in history[-3:])
    summary = {"step": 1000, "epoch": 1.0, "train_runtime": 600.0, "train_steps_per_second": 1.667}
    return STATE | {"log_history": [*history, summary | {"train_loss": last / 1000}]}


@pytest.mark.parametrize("epochs_begin_again", [False, True])
def test_a_continued_run_is_known_by_its_train_loss_or_by_its_epochs(tmp_path, epochs_begin_again):
    run = read_state(tmp_path, continued_state(epochs_begin_again))
    assert run.facts["mean_seconds_per_step"] == pytest.approx(2.0)
    assert run.facts["timed_steps"] == 300
    assert "training_seconds" not in run.facts
    (place,) = [place for place, record in enumerate(run.records) if record["kind"] == "restart"]
    assert (run.records[place]["step"], run.records[place + 1]["step"]) == (700, 800)
    assert run.facts["num_attempts"] == 2


def test_a_train_loss_of_all_steps_shows_no_restart(tmp_path):
    state = continued_state(False)
    state["log_history"][-1]["train_loss"] = 2.45
    run = read_state(tmp_path, state)
    assert not of_kind(run, "restart")
    assert run.facts["training_seconds"] == 600.0


def read_result_file(folder, name: str, **figures: float) -> ImportedRun:
    run = ImportedRun()
    (folder / name).write_text(json.dumps(figures))
    read_results(folder / name, run)
    return run


@pytest.mark.parametrize(
    ("seconds", "speed", "steps"), [(77_351.0, 0.065, 5_000), (54_713.2, 3.936, 215_400), (60.0, 0.05, 3)]
)
def test_steps_of_a_result_file_have_no_more_digits_than_its_speed(tmp_path, seconds, speed, steps):
    run = read_result_file(tmp_path, "train_results.json", train_runtime=seconds, train_steps_per_second=speed)
    assert run.facts["steps_done"] == steps
    assert any("excerpt" in note for note in run.notes)  # scores may be in another file


def test_scores_without_a_step_are_refused(tmp_path):
    with pytest.raises(UserError, match=r"no step and no time.*give trainer_state.json"):
        read_result_file(tmp_path, "eval_results.json", eval_loss=2.0)


NESTED = {"eval_sacrebleu": {"score": 17.8, "counts": [85, 42], "bp": 1.0}, "eval_chrf": {"score": 34.5, "beta": 2}}


def test_scores_within_a_table_are_read(tmp_path):
    history = [{"step": 500, "epoch": 0.5, "loss": 2.5}, {"step": 500, "epoch": 0.5, **NESTED}]
    state = read_state(tmp_path, STATE | {"log_history": history})
    log = read("{'loss': 2.5, 'learning_rate': 1e-4, 'epoch': 0.5}", str(NESTED | {"epoch": 0.5}))
    for run in (state, log):
        (found,) = of_kind(run, "evaluation")
        assert (found["bleu"], found["chrf"]) == (17.8, 34.5)


def test_the_dev_set_of_the_curves_is_named(tmp_path):
    history = [{"step": 500, "loss": 2.5}, *({"step": 500, f"eval_{name}_loss": 2.0} for name in ("news", "talks"))]
    assert read_state(tmp_path, STATE | {"log_history": history}).facts["dev_set"] == "news"


def test_an_interrupted_log_is_not_finished():
    run = read_file("stopped.log")
    assert "is_finished" not in run.facts
    assert (run.facts["steps_done"], run.facts["steps_planned"]) == (61, 105)


def test_nan_of_a_real_run():
    run = ImportedRun()
    read_trainer_state(DATA / "nan/trainer_state.json", run)
    assert (run.first_nan_step, run.last_finite_step) == (10, None)
    assert sum("dev set is not a number" in note for note in run.notes) == 1


def test_a_loss_of_0_beside_a_gradient_that_is_nan_is_nan():
    run = read(
        "{'loss': 0.3, 'grad_norm': 1.0, 'learning_rate': 1e-05, 'epoch': 0.1}",
        "{'loss': 0.2051, 'grad_norm': nan, 'learning_rate': 1e-05, 'epoch': 0.2}",
        "{'loss': 0.0, 'grad_norm': nan, 'learning_rate': 1e-05, 'epoch': 0.3}",
        "{'loss': 0.0, 'grad_norm': nan, 'learning_rate': 1e-05, 'epoch': 0.4}",
    )
    assert (run.first_nan_step, run.last_finite_step) == (2, 1)


def test_losses_of_0_beside_an_eval_loss_that_is_nan_are_nan(tmp_path):
    history = [
        {"loss": 2.0, "step": 10},
        {"loss": 0.0, "step": 20},
        {"loss": 0.0, "step": 30},
        {"eval_loss": math.nan, "step": 30},
    ]
    assert read_state(tmp_path, STATE | {"log_history": history}).first_nan_step == 20


def test_a_dev_set_that_is_nan_while_training_goes_on_is_a_failure_of_its_own(tmp_path):
    history = [{"eval_loss": math.nan, "step": 10}, {"loss": 2.0, "step": 20}, {"eval_loss": math.nan, "step": 30}]
    run = read_state(tmp_path, STATE | {"log_history": [{"loss": 2.5, "step": 5}, *history, {"loss": 1.9, "step": 40}]})
    assert run.first_nan_step is None
    assert [(failure.step, failure.is_fatal) for failure in run.failures] == [(10, False)]


def test_one_nan_that_recovers_is_a_note(tmp_path):
    history = [{"loss": 2.0, "step": 10}, {"loss": math.nan, "step": 20}, {"loss": 1.9, "step": 30}]
    run = read_state(tmp_path, STATE | {"log_history": history})
    assert run.first_nan_step is None
    assert any("not a number once, last from step 20" in note for note in run.notes)


def test_scores_of_several_dev_sets(tmp_path):
    entries = [
        {"eval_news_loss": 2.0, "eval_news_bleu": 20.0, "eval_news_rouge1": 0.5, "step": 10},
        {"eval_web_loss": 3.0, "eval_web_bleu": 10.0, "eval_web_runtime": 3.0, "step": 10},
    ]
    (evaluation,) = of_kind(read_state(tmp_path, STATE | {"log_history": entries}), "evaluation")
    assert (evaluation["loss"], evaluation["bleu"]) == (2, 20)
    assert evaluation["other_scores"] == {"news_rouge1": 0.5, "web_loss": 3, "web_bleu": 10}


def test_an_evaluation_after_training_does_not_replace_that_of_the_last_step(tmp_path):
    entries = [{"eval_loss": 2.0, "step": 10}, {"train_runtime": 5.0, "step": 10}, {"eval_loss": 1.5, "step": 10}]
    evaluations = of_kind(read_state(tmp_path, STATE | {"log_history": entries}), "evaluation")
    assert evaluations[0]["loss"] == 2.0


@pytest.mark.parametrize("name", ["all_results.json", "train_results.json"])
def test_results_alone_give_steps_that_are_not_exact(name):
    run = ImportedRun()
    read_results(DATA / "finished" / name, run)
    assert (run.facts["steps_done"], run.facts["is_finished"]) == (105, True)
    assert run.facts["training_seconds"] == 5.0363
    assert any("not exact" in note for note in run.notes)


def test_results_add_to_a_state_what_it_lacks(tmp_path):
    shutil.copy(DATA / "finished/checkpoint-50/trainer_state.json", tmp_path)
    run = ImportedRun()
    read_trainer_state(tmp_path / "trainer_state.json", run)
    read_results(DATA / "finished/eval_results.json", run)
    assert len(of_kind(run, "evaluation")) == 2
    (tmp_path / "all_results.json").write_text("{}")
    with pytest.raises(UserError, match="not a result file"):
        read_results(tmp_path / "all_results.json", run)


def test_the_block_of_metrics_has_the_last_evaluation():
    run = read(
        *START,
        LOSS,
        "Loading best model from out/checkpoint-200 (score: 21.5).",
        "***** train metrics *****",
        "  epoch                    =        2.0",
        "  train_runtime            = 1 day, 1:01:05.50",
        "***** eval metrics *****",
        "  eval_bleu               =       21.5",
        "  eval_loss               =       2.25",
        "  eval_runtime            = 0:00:12.50",
    )
    (evaluation,) = of_kind(run, "evaluation")
    assert (evaluation["step"], evaluation["bleu"], evaluation["seconds"]) == (200, 21.5, 12.5)
    assert run.facts["training_seconds"] == 90065.5


def test_other_bars_are_not_the_bar_of_training():
    lines = [bar(3, 3, "00:01"), bar(90, 400, "00:45"), LOSS, bar(100, 400, "00:50"), bar(30, 64, "00:10"), EVALUATION]
    run = read(*lines, bar(100, 400, "00:51"))
    assert [record["step"] for record in run.records] == [100, 100]
    assert (run.facts["steps_done"], run.facts["steps_planned"]) == (100, 400)


def test_scores_printed_by_numpy_and_names_with_signs():
    run = read("{'eval_loss': 2.25, 'eval_bleu': np.float64(21.5), 'eval_chrf++': 45.5, 'epoch': 0.5}")
    (evaluation,) = of_kind(run, "evaluation")
    assert (evaluation["bleu"], evaluation["other_scores"]) == (21.5, {"chrf++": 45.5})


def test_entries_whose_bars_are_missing_are_numbered_by_their_epochs():
    entries = [EVALUATION.replace("0.5}", f"{epoch}.0}}") for epoch in (1, 2, 3)]
    summary = "{'train_runtime': 6217.8, 'train_steps_per_second': 0.053, 'train_loss': 1.0, 'epoch': 3.0}"
    run = read(*entries, summary, bar(327, 327, "1:43:37"), bar(24, 24, "01:58"))
    assert [record["step"] for record in of_kind(run, "evaluation")] == [109, 218, 327]
    assert run.facts["is_finished"] is True
    assert any("computed from epochs" in note for note in run.notes)


def test_lines_without_steps_are_counted_as_lines():
    run = read(
        "{'loss': 9.0557, 'learning_rate': 1.99e-05, 'epoch': 0.05}",
        "{'eval_loss': 8.9256, 'eval_bleu': 0.939, 'eval_runtime': 24.1, 'epoch': 0.09}",
        "{'loss': 7.8879, 'learning_rate': 1.98e-05, 'epoch': 0.14}",
    )
    assert run.facts["step_unit"] == "log lines"
    assert run.facts["epochs_done"] == 0.14
