"""Records are parsed once: known figures have their types, unknown ones are kept, wrong ones refuse the line."""

import json
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dragoman.run.records import (
    RECORD_TYPES,
    EvaluationRecord,
    ImportedFacts,
    MachineSample,
    Record,
    RefusedLineError,
    TrainRecord,
    parse_record,
    parse_records,
    parse_sample,
    records_of,
    validate_known,
)

TRAIN = {"time": 1.5, "kind": "train", "step": 50, "loss": 4.25, "attribution": {"forward": 0.5}, "own": [1, "two"]}

json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)


def test_a_record_has_typed_figures_and_keeps_unknown_ones():
    record = parse_record(json.dumps(TRAIN))
    assert isinstance(record, TrainRecord)
    assert (record.step, record.loss, record.attribution) == (50, 4.25, {"forward": 0.5})
    assert record.gradient_norm is None
    assert record.values() == TRAIN


def test_an_unknown_kind_is_a_record_too():
    record = parse_record('{"kind": "verdict", "step": 3, "share": 0.5}')
    assert type(record) is Record
    assert (record.kind, record.number("share"), record.number("missing")) == ("verdict", 0.5, None)


@pytest.mark.parametrize("line", ["", "{", '{"kind": "train", "st', "[1]", "3", "null", "nonsense", "\ufffd"])
def test_a_line_that_is_no_json_object_is_no_record(line):
    assert parse_record(line) is None


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"loss": "4.25"}, "loss is '4.25'"),
        ({"loss": True}, "loss is True"),
        ({"loss": 1e300}, "loss is 1e\\+300"),
        ({"loss": math.nan}, "loss is nan"),
        ({"step": -1}, "step is -1"),
        ({"step": 2.5}, "step is 2.5"),
        ({"step": None}, "step is None"),
        ({"attribution": {"forward": -1}}, "attribution.forward is -1"),
        ({"work_seconds_by_rank": {"0": 1}}, "work_seconds_by_rank is"),
        ({"slowest": {"rank": "a"}}, "slowest.rank is 'a'"),
        ({"kind": 3}, "kind is 3"),
    ],
)
def test_a_wrong_value_refuses_the_line_and_is_named(change, message):
    with pytest.raises(RefusedLineError, match=message):
        parse_record(json.dumps(TRAIN | change))


def test_refused_lines_are_skipped():
    lines = [json.dumps(TRAIN), json.dumps(TRAIN | {"loss": []}), '{"cut', json.dumps({"kind": "train"})]
    assert [record.step for record in parse_records(lines)] == [50]
    with pytest.raises(RefusedLineError, match="step is missing"):
        parse_record(lines[3])


def test_records_are_picked_by_type():
    records = list(parse_records(['{"kind": "evaluation", "step": 1, "bleu": 3}', json.dumps(TRAIN)]))
    assert [record.bleu for record in records_of(records, EvaluationRecord)] == [3.0]


@given(
    st.sampled_from(sorted(RECORD_TYPES)),
    st.dictionaries(st.sampled_from(sorted(TrainRecord.model_fields)), json_values),
)
def test_any_json_is_parsed_or_refused(kind, values):
    line = json.dumps({"step": 1} | values | {"kind": kind})
    problem, record = "", None  # both stay empty where the JSON itself is broken, as by half a surrogate pair
    try:
        record = parse_record(line)
    except RefusedLineError as error:
        problem = str(error)
    assert len(problem) < 300
    assert record is None or isinstance(record, RECORD_TYPES[kind])


def test_a_machine_sample_has_its_parts():
    sample = parse_sample(
        '{"time": 1, "node": "a", "cpu": {"share": 0.5}, "network": {"eth0": {"sent_bytes_per_second": 7}}, '
        '"gpus": [{"index": 0, "utilisation": null, "activity": {"sm_active": 0.25}}]}'
    )
    assert isinstance(sample, MachineSample)
    assert sample.network["eth0"].sent_bytes_per_second == 7
    assert sample.gpus[0].activity == {"sm_active": 0.25}
    assert parse_sample('{"time": 1, "node": 3}') is None
    assert parse_sample('{"time": 1, "no') is None


@given(st.dictionaries(st.sampled_from(sorted(ImportedFacts.model_fields)) | st.text(), json_values))
def test_of_imported_facts_the_wrong_ones_are_dropped(values):
    facts = validate_known(ImportedFacts, values | {"parameters": 60_880_896, "num_ranks": "four"})
    assert (facts.parameters, facts.num_ranks) == (60_880_896, None)
