"""A run folder read for a report: restarts, thinning, and damaged files."""

import json
import time
from collections.abc import Iterable
from dataclasses import asdict
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dragoman.model.shape import count_parameters, load_preset
from dragoman.report import record_reading
from dragoman.report.evidence import StatedFacts, curve, read_evidence
from dragoman.report.run_tables import CorpusFacts, RecordedConfig
from dragoman.run.errors import UserError
from dragoman.run.folder import RunFolder
from dragoman.run.records import Record, TrainRecord

BASE_PARAMETERS = 60_880_896
BASE = asdict(load_preset("transformer-base"))
CONFIG = '[model]\npreset = "transformer-base"\n[training]\nprice_per_hour = 6.0\nmax_steps = 1000\n'


def train(step: int, **more: object) -> dict[str, object]:
    return {"kind": "train", "step": step, "loss": 2.0, "seconds_per_step": 0.5, "time": 1_000.0 + step} | more


def evaluation(step: int, **more: object) -> dict[str, object]:
    return {"kind": "evaluation", "step": step, "loss": 1.9, "time": 1_000.5 + step} | more


def write_run(folder: Path, records: Iterable[object] = (), config: str = CONFIG) -> RunFolder:
    folder.mkdir(exist_ok=True)
    run = RunFolder(folder)
    run.config.write_text(config)
    run.metrics.write_text("".join(json.dumps(record) + "\n" for record in records))
    return run


def write_state(run: RunFolder, step: int, text: str) -> None:
    run.checkpoint(step).mkdir(parents=True)
    (run.checkpoint(step) / "state.json").write_text(text)


def steps_of(records: Iterable[Record]) -> list[int]:
    return [record.step for record in records]


def test_records_are_sorted_by_their_kind(tmp_path):
    others = [{"kind": kind, "step": 20} for kind in ("checkpoint", "prediction", "something new")]
    found = read_evidence(write_run(tmp_path, [train(10), evaluation(10), *others, train(20)]))
    assert steps_of(found.train) == [10, 20]
    assert steps_of(found.evaluations) == [10]
    assert (len(found.checkpoints), len(found.predictions), len(found.records)) == (1, 1, 6)
    assert (found.first_step, found.last_step) == (10, 20)
    assert found.step_seconds.tolist() == [0.5, 0.5]
    assert not found.is_imported
    assert found.trainer == "dragoman"
    assert found.price_per_hour == 6.0


def test_steps_repeated_after_a_restart_count_once(tmp_path):
    before = [train(10), evaluation(20), train(20), train(30), evaluation(40), train(40)]
    restart = {"kind": "restart", "step": 20, "cause": "rank 1 was killed", "time": 1_100.0}
    again = [train(step, loss=1.0, time=1_100.0 + step) for step in (30, 40, 50)]
    found = read_evidence(write_run(tmp_path, [*before, restart, *again]))
    assert steps_of(found.train) == [10, 20, 30, 40, 50]
    assert [record.loss for record in found.train] == [2.0, 2.0, 1.0, 1.0, 1.0]
    assert steps_of(found.evaluations) == [20]
    assert len(found.records) == 10


def resumed(*parts: Iterable[int]) -> list[dict[str, object]]:
    """Records of attempts that log at these steps; each continues where the last one ended."""
    records: list[dict[str, object]] = [{"kind": "checkpoint", "step": 0}]
    for number, steps in enumerate(parts):
        if number:
            records.append({"kind": "restart", "step": records[-1]["step"]})
        records += [train(step) for step in steps]
    return records


def test_all_steps_of_a_run_that_was_stopped_between_two_records_count(tmp_path):
    found = read_evidence(write_run(tmp_path, resumed([43], [50, 78])))
    assert (found.train_steps, found.num_steps, found.unseen_steps) == ([43, 7, 28], 78, 0)


def test_each_repeated_step_counts_once_though_its_records_are_longer(tmp_path):
    records = [train(40), train(47), {"kind": "restart", "step": 44, "cause": "x"}, train(50), train(78)]
    found = read_evidence(write_run(tmp_path, records))
    assert (steps_of(found.train), found.train_steps) == ([40, 50, 78], [40, 6, 28])
    assert found.num_steps == 78


def test_a_run_that_was_killed_before_its_first_record_has_all_its_steps(tmp_path):
    records = [{"kind": "checkpoint", "step": 0}, {"kind": "restart", "step": 30}, train(50)]
    assert read_evidence(write_run(tmp_path, records)).num_steps == 50


def test_a_run_that_moved_to_a_host_without_its_records_says_what_is_missing(tmp_path):
    found = read_evidence(write_run(tmp_path, [{"kind": "restart", "step": 5_000}, train(5_050), train(5_100)]))
    assert (found.train_steps, found.num_steps, found.unseen_steps) == ([50, 50], 100, 5_000)


def test_a_log_of_another_trainer_may_begin_midway(tmp_path):
    run = write_run(tmp_path, [train(step) for step in range(5_100, 9_001, 100)])
    run.imported.write_text(json.dumps({"trainer": "Marian", "facts": {}}))
    found = read_evidence(run)
    assert (found.num_steps, found.unseen_steps, found.last_step) == (4_000, 5_000, 9_000)
    assert found.train_steps[0] == 100


@pytest.mark.parametrize(
    ("steps", "num_steps", "unseen"), [([20_000, 20_500, 135_000], 115_500, 19_500), ([55_000], 0, 55_000)]
)
def test_an_excerpt_that_begins_midway_may_have_gaps(tmp_path, steps, num_steps, unseen):
    run = write_run(tmp_path, [train(step) for step in steps])
    run.imported.write_text(json.dumps({"trainer": "Marian", "facts": {"begins_midway": True}}))
    found = read_evidence(run)
    assert (found.num_steps, found.unseen_steps) == (num_steps, unseen)


def write_sampled(run: RunFolder, node: str, *times: float) -> None:
    run.system(node).write_text("".join(json.dumps({"time": time, "node": node}) + "\n" for time in times))


def test_a_run_that_moved_used_one_machine_at_a_time(tmp_path):
    records = [train(10), {"kind": "restart", "step": 10, "time": 2_000.0}, train(20, time=2_010.0)]
    run = write_run(tmp_path, records)
    write_sampled(run, "a", 1_000.0, 1_010.0)
    write_sampled(run, "b", 2_001.0, 2_010.0)
    found = read_evidence(run)
    assert found.num_nodes == 1
    assert found.machines.describe() == "2 machines, one after the other"


def test_machines_that_were_lost_are_not_machines_of_the_run_any_more(tmp_path):
    records = [train(10, num_machines=3), {"kind": "restart", "step": 10, "time": 2_000.0}, train(20, num_machines=2)]
    run = write_run(tmp_path, records)
    for node in "abc":
        write_sampled(run, node, 1_000.0, 1_010.0 if node == "c" else 2_010.0)
    found = read_evidence(run)
    assert found.num_nodes == 2
    assert found.machines.describe() == "2 machines at the end, and 3 in all"


def test_time_lost_by_a_restart(tmp_path):
    before = [train(step, seconds_per_step=seconds) for step, seconds in ((10, 9.0), (20, 0.5), (30, 1.5))]
    [lost] = read_evidence(
        write_run(tmp_path, [*before, {"kind": "restart", "step": 10, "cause": "no heart beat", "time": 1_090.0}])
    ).restarts
    assert (lost.step, lost.cause, lost.repeated_steps) == (10, "no heart beat", 20)
    assert lost.repeated_seconds == pytest.approx(20 * 1.0)
    assert lost.silent_seconds == pytest.approx(60.0)


def test_each_restart_counts_only_its_own_repeated_steps(tmp_path):
    records = [train(10), train(20), {"kind": "restart", "step": 10}, train(20), {"kind": "restart", "step": 10}]
    restarts = read_evidence(write_run(tmp_path, records)).restarts
    assert [restart.repeated_steps for restart in restarts] == [10, 10]


def test_a_run_with_thousands_of_restarts_is_read_quickly(tmp_path):
    num_crashes = 5_000
    records = [*(train(1) for _ in range(num_crashes)), *({"kind": "restart", "step": 1} for _ in range(num_crashes))]
    run = write_run(tmp_path, records)
    begin = time.process_time()
    assert len(read_evidence(run).restarts) == num_crashes
    # 0.2 s; 7 s if every restart looked at every record.
    assert time.process_time() - begin < 5


def test_a_restart_may_lack_times_and_cause(tmp_path):
    records = [{"kind": "train", "step": 10}, {"kind": "restart", "step": 5}]
    [restart] = read_evidence(write_run(tmp_path, records)).restarts
    assert (restart.cause, restart.repeated_steps) == ("", 5)
    assert (restart.repeated_seconds, restart.silent_seconds) == (0.0, None)


def test_a_clock_that_was_set_back_makes_no_negative_time(tmp_path):
    records = [train(10, time=5_000.0), {"kind": "restart", "step": 10, "time": 1.0}]
    [restart] = read_evidence(write_run(tmp_path, records)).restarts
    assert restart.silent_seconds == 0.0


def test_a_step_evaluated_twice_has_the_later_figures(tmp_path):
    records = [evaluation(20), evaluation(10, loss=3.0), evaluation(20, loss=1.0)]
    found = read_evidence(write_run(tmp_path, records)).evaluations
    assert [(record.step, record.loss) for record in found] == [(10, 3.0), (20, 1.0)]


@pytest.mark.parametrize("num_records", [9, 10, 11, 57, 200, 1_003])
def test_too_many_records_are_thinned_out_evenly_but_never_evaluations(tmp_path, monkeypatch, num_records):
    monkeypatch.setattr(record_reading, "MAX_TRAIN_RECORDS", 10)
    records = [record for step in range(1, num_records + 1) for record in [train(step), evaluation(step)]]
    found = read_evidence(
        write_run(tmp_path, [each for each in records if each["kind"] == "train" or each["step"] < 9])
    )
    steps = steps_of(found.train)
    assert min(num_records, 5) <= len(steps) <= 12
    assert steps == sorted(set(steps))
    assert (found.first_step, found.last_step) == (1, num_records)
    between = {after - before for before, after in pairwise(steps[1:-1])}
    assert len(between) <= 1
    assert steps_of(found.evaluations) == list(range(1, 9))


DAMAGED_LINES = [
    "",
    "{",
    '{"kind": "train", "step": 30, "lo',
    "[]",
    "null",
    '{"kind": "train"}',
    '{"kind": "train", "step": "30"}',
    '{"kind": "train", "step": true}',
    '{"kind": "train", "step": -1}',
    '{"kind": "train", "step": 1e1}',
    '{"kind": "train", "step": NaN}',
    '{"kind": "train", "step": 99999999999999999999}',
    '{"kind": ["train"], "step": 30}',
    '{"step": 30}',
    "[" * 100_000,
    '{"kind": "train", "step": ' + "9" * 5_000 + "}",
    "\x00\x1b[31m",
]


@pytest.mark.parametrize("line", DAMAGED_LINES)
def test_damaged_lines_of_metrics_are_skipped(tmp_path, line):
    run = write_run(tmp_path)
    run.metrics.write_text(f"{json.dumps(train(10))}\n{line}\n{json.dumps(train(20))}\n")
    assert steps_of(read_evidence(run).train) == [10, 20]


def test_a_line_that_is_not_text_is_skipped(tmp_path):
    run = write_run(tmp_path)
    run.metrics.write_bytes(b"\xff\xfe\n" + json.dumps(train(10)).encode() + b"\n")
    assert steps_of(read_evidence(run).train) == [10]


def test_a_run_without_records_is_empty(tmp_path):
    run = write_run(tmp_path)
    run.metrics.unlink()
    found = read_evidence(run)
    assert (found.train, found.records, found.first_step, found.last_step) == ([], [], None, None)
    assert (found.parameters, found.num_ranks, found.num_nodes) == (None, None, None)


def test_unreadable_metrics_are_a_user_error(tmp_path):
    run = write_run(tmp_path)
    run.metrics.unlink()
    run.metrics.mkdir()
    with pytest.raises(UserError, match=r"metrics\.jsonl cannot be read"):
        read_evidence(run)


@pytest.mark.parametrize(
    "config",
    ["", "[training", "training = 5", "training = [1]", "a = " + "[" * 50_000, "\x00", "[data]\nprepared = 5"],
)
def test_a_damaged_config_counts_as_missing(tmp_path, config):
    found = read_evidence(write_run(tmp_path, [train(10)], config))
    assert found.settings == RecordedConfig()
    assert found.shape is None
    assert found.price_per_hour is None
    assert found.corpus == CorpusFacts()


def test_a_config_that_is_not_text_counts_as_missing(tmp_path):
    run = write_run(tmp_path, [train(10)])
    run.config.write_bytes(b"\xff\xfe[training]")
    assert read_evidence(run).config == {}


def test_a_damaged_status_is_an_unknown_state(tmp_path):
    run = write_run(tmp_path, [train(10)])
    assert read_evidence(run).state == "stopped"
    run.status.write_text("{")
    assert read_evidence(run).state == "unknown"


def test_parameters_come_from_the_newest_valid_checkpoint(tmp_path):
    run = write_run(tmp_path)
    write_state(run, 100, json.dumps({"model": asdict(load_preset("tiny"))}))
    write_state(run, 200, json.dumps({"model": BASE}))
    assert read_evidence(run).parameters == BASE_PARAMETERS
    write_state(run, 300, '{"model":')
    assert read_evidence(run).parameters == BASE_PARAMETERS


@pytest.mark.parametrize(
    "model",
    [
        None,
        [],
        {},
        {"width": 512},
        BASE | {"unknown": 1},
        BASE | {"heads": 0},
        BASE | {"heads": 7},
        BASE | {"width": "512"},
        BASE | {"feed_forward": "x"},
        BASE | {"encoder_layers": None},
        BASE | {"decoder_layers": -6},
        BASE | {"width": 512.0},
        BASE | {"width": 8 * 10**400},
        BASE | {"target_vocab_size": [1]},
        BASE | {"dropout": "0.1"},
    ],
)
def test_a_damaged_checkpoint_is_skipped(tmp_path, model):
    run = write_run(tmp_path)
    write_state(run, 100, json.dumps({"model": model}))
    found = read_evidence(run)
    assert (found.shape, found.parameters) == (None, None)


def test_parameters_follow_from_settings_and_vocabulary_before_the_first_checkpoint(tmp_path):
    run = write_run(tmp_path)
    tokenizer = {"num_source_pieces": 32_761, "num_target_pieces": 32_768, "is_joint": True}
    run.corpus_facts.write_text(json.dumps({"tokenizer": tokenizer}))
    # A vocabulary is padded to a multiple of eight.
    assert read_evidence(run).parameters == BASE_PARAMETERS
    assert count_parameters(load_preset("transformer-base")) == BASE_PARAMETERS


@pytest.mark.parametrize("tokenizer", [None, {}, {"num_source_pieces": 8}, {"num_source_pieces": "a"}, 5])
def test_without_a_vocabulary_parameters_are_not_known(tmp_path, tokenizer):
    run = write_run(tmp_path)
    run.corpus_facts.write_text(json.dumps({"tokenizer": tokenizer}))
    assert read_evidence(run).parameters is None


def test_corpus_facts_come_from_the_run_or_else_the_corpus(tmp_path):
    prepared = tmp_path / "prepared"
    prepared.mkdir()
    (prepared / "manifest.json").write_text('{"key": "of the corpus"}')
    run = write_run(tmp_path / "run", config=f'[data]\nprepared = "{prepared}"\n')
    assert read_evidence(run).corpus.key == "of the corpus"
    run.corpus_facts.write_text('{"key": "of the run"}')
    assert read_evidence(run).corpus.key == "of the run"


@pytest.mark.parametrize("text", ["", "[1]", "{", '"\\ud800"', "[" * 100_000])
def test_a_damaged_manifest_counts_as_missing(tmp_path, text):
    prepared = tmp_path / "prepared"
    prepared.mkdir()
    (prepared / "manifest.json").write_text(text)
    run = write_run(tmp_path / "run", config=f'[data]\nprepared = "{prepared}"\n')
    run.corpus_facts.write_text(text)
    assert read_evidence(run).corpus == CorpusFacts()


def test_a_corpus_with_an_impossible_name_counts_as_missing(tmp_path):
    run = write_run(tmp_path, config='[data]\nprepared = "a\\u0000b"\n')
    assert read_evidence(run).corpus == CorpusFacts()


def test_an_imported_run_has_the_facts_of_its_log(tmp_path):
    run = write_run(tmp_path, [train(10)])
    facts = {"parameters": BASE_PARAMETERS, "num_ranks": 4, "hosts": ["a", "b"]}
    run.imported.write_text(json.dumps({"trainer": "openseq2seq", "facts": facts}))
    found = read_evidence(run)
    assert found.is_imported
    assert found.trainer == "openseq2seq"
    assert (found.parameters, found.num_ranks, found.num_nodes) == (BASE_PARAMETERS, 4, 2)


@pytest.mark.parametrize("value", [0, -4, 0.5, "4", None, [], True, float("nan"), 10**400])
def test_wrong_facts_are_ignored(tmp_path, value):
    run = write_run(tmp_path)
    facts = {"parameters": value, "num_ranks": value, "hosts": value}
    run.imported.write_text(json.dumps({"trainer": "marian", "facts": facts}))
    found = read_evidence(run)
    assert (found.parameters, found.num_ranks, found.num_nodes) == (None, None, None)


def test_measurements_override_stated_facts(tmp_path):
    run = write_run(tmp_path, [train(10, work_seconds_by_rank=[0.5, 0.5, 0.5])])
    for node in ("a", "b"):
        run.system(node).write_text("")
    plain, stated = read_evidence(run), read_evidence(run, StatedFacts(nodes=4, gpus_per_node=2, price_per_hour=9.0))
    assert (plain.num_ranks, plain.num_nodes, plain.price_per_hour) == (3, 2, 6.0)
    assert (stated.num_ranks, stated.num_nodes, stated.price_per_hour) == (3, 2, 9.0)


def test_one_wrong_value_of_a_table_leaves_the_others(tmp_path):
    tokenizer = {"num_source_pieces": "many", "num_target_pieces": 8, "is_joint": True}
    config = '[training]\nprice_per_hour = "six"\nmax_steps = 1000\n[data]\nprepared = 5\n'
    run = write_run(tmp_path, config=config)
    run.corpus_facts.write_text(json.dumps({"key": 5, "tokenizer": tokenizer, "splits": [1]}))
    found = read_evidence(run)
    assert (found.settings.training.price_per_hour, found.settings.training.max_steps) == (None, 1000)
    assert found.settings.data.prepared is None
    assert (found.corpus.key, found.corpus.splits.train) == ("", None)
    assert (found.corpus.tokenizer.num_source_pieces, found.corpus.tokenizer.num_target_pieces) == (None, 8)


def test_lines_with_a_wrong_value_are_counted_and_named(tmp_path):
    run = write_run(tmp_path, [train(10), train(20, loss="2"), train(30, loss=float("nan")), train(40)])
    found = read_evidence(run)
    assert steps_of(found.train) == [10, 40]
    assert found.refused.number == 2
    assert [line.split(":")[0] for line in found.refused.first] == ["line 2 was skipped", "line 3 was skipped"]


def test_a_curve_has_only_records_with_that_figure():
    records = [TrainRecord.model_validate(record) for record in (train(10), train(20, loss=None), train(50, loss=1))]
    steps, values = curve(records, "loss")
    assert (steps.tolist(), values.tolist()) == ([10.0, 50.0], [2.0, 1.0])
    assert curve([], "loss")[0].tolist() == []


anything = st.recursive(
    st.none() | st.booleans() | st.floats() | st.integers() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=5,
)
FIELDS = ("time", "cause", "loss", "seconds_per_step", "work_seconds_by_rank", "line")
FACTS = ("parameters", "num_ranks", "hosts", "trainer")
kinds = st.sampled_from(["train", "train", "evaluation", "restart", "checkpoint"]) | anything
damaged_records = st.fixed_dictionaries(
    {"kind": kinds, "step": st.integers(0, 50) | anything}, optional=dict.fromkeys(FIELDS, anything)
)
tables = st.fixed_dictionaries({}, optional=dict.fromkeys(FACTS, anything)) | anything


@settings(max_examples=50)
@given(st.lists(damaged_records, max_size=8), tables, tables, anything)
def test_no_run_folder_raises_an_exception(tmp_path_factory, records, imported, facts, manifest):
    run = write_run(tmp_path_factory.mktemp("run"), records)
    run.imported.write_text(json.dumps(imported | {"facts": facts} if isinstance(imported, dict) else imported))
    run.corpus_facts.write_text(json.dumps({"tokenizer": manifest}))
    write_state(run, 10, json.dumps({"model": dict.fromkeys(BASE, manifest)}))
    found = read_evidence(run)
    assert found.parameters is None or found.parameters > 0
    assert found.num_ranks is None or found.num_ranks > 0
    assert found.num_nodes is None or found.num_nodes > 0
    assert found.price_per_hour == 6.0
    assert all(isinstance(step, int) for step in steps_of(found.records))
    assert all(restart.repeated_steps >= 0 for restart in found.restarts)
    assert len(found.step_seconds) <= len(found.train)
    assert isinstance(found.trainer, str)
