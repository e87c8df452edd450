"""Samples of machines, averaged over spans of time, and damaged samples."""

import json
import math
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dragoman.report import machines as machines_module
from dragoman.report.machines import MAX_SPANS, MachineSeries, read_machines
from dragoman.run.folder import RunFolder


def sample(
    time: object, node: object = "node1", cpu: float | None = 0.25, gpus: list[float] = (), **more: object
) -> dict[str, object]:
    devices = [{"index": index, "utilisation": utilisation} for index, utilisation in enumerate(gpus)]
    return {"time": time, "node": node, "cpu": {"share": cpu}, "gpus": devices} | more


def write_samples(folder: Path, node: str, samples: list[object]) -> RunFolder:
    run = RunFolder(folder)
    run.system(node).write_text("".join(json.dumps(each) + "\n" for each in samples))
    return run


def test_a_run_without_samples_has_no_series(tmp_path):
    assert read_machines(RunFolder(tmp_path)) == MachineSeries()


def test_devices_of_all_machines_are_named_and_averaged(tmp_path):
    write_samples(tmp_path, "node1", [sample(1_000 + index, gpus=[1.0, 0.5]) for index in range(10)])
    run = write_samples(tmp_path, "node2", [sample(1_000 + index, "node2", cpu=0.75) for index in range(10)])
    found = read_machines(run)
    assert list(found.devices) == ["node1 CPU", "node1 GPU 0", "node1 GPU 1", "node2 CPU"]
    assert list(found.gpus) == ["node1 GPU 0", "node1 GPU 1"]
    assert [values[0] for values in found.devices.values()] == pytest.approx([0.25, 1.0, 0.5, 0.75])


def test_time_counts_from_the_first_sample_of_any_machine(tmp_path):
    write_samples(tmp_path, "node1", [sample(1_000 + index) for index in range(3)])
    run = write_samples(tmp_path, "node2", [sample(1_002 + index, "node2") for index in range(3)])
    found = read_machines(run)
    assert found.seconds == pytest.approx([0.5, 1.5, 2.5, 3.5, 4.5])
    assert found.devices["node1 CPU"] == [0.25, 0.25, 0.25, None, None]
    assert found.devices["node2 CPU"] == [None, None, 0.25, 0.25, 0.25]


def test_a_long_run_is_averaged_over_spans(tmp_path):
    run = write_samples(tmp_path, "node1", [sample(index, cpu=index % 2) for index in range(10 * MAX_SPANS)])
    found = read_machines(run)
    assert MAX_SPANS - 1 <= len(found.seconds) <= MAX_SPANS + 1
    assert found.seconds == sorted(found.seconds)
    assert found.seconds[-1] == pytest.approx(10 * MAX_SPANS, rel=0.01)
    assert all(0.4 < share < 0.6 for share in found.devices["node1 CPU"][:-1])


def test_notes_of_samplers_are_kept_once(tmp_path):
    run = write_samples(tmp_path, "node1", [sample(1_000 + index, notes=["no GPU counters"]) for index in range(3)])
    assert read_machines(run).notes == ["no GPU counters"]


@pytest.mark.parametrize(
    "line",
    [
        "",
        "{",
        '{"time": 1001, "node": "node1", "cpu": {"share": 0.9}',
        "[]",
        "null",
        '{"time": 1001, "cpu": {"share": 0.9}}',
        '{"node": "node1", "cpu": {"share": 0.9}}',
        '{"time": "1001", "node": "node1", "cpu": {"share": 0.9}}',
        '{"time": NaN, "node": "node1", "cpu": {"share": 0.9}}',
        '{"time": 1001, "node": 5, "cpu": {"share": 0.9}}',
        '{"time": 1001, "node": "node1", "cpu": {"share": "much"}}',
        '{"time": 1001, "node": "node1", "cpu": [], "gpus": {}, "network": [], "notes": "x"}',
        '{"time": 1001, "node": "node1", "gpus": [null, 5, {"utilisation": null}], "network": {"eth0": 5}}',
        "[" * 100_000,
        "\ufffd\x00",
    ],
)
@pytest.mark.parametrize("place", [0, 1, 2])
def test_damaged_samples_are_skipped(tmp_path, line, place):
    lines = [json.dumps(sample(1_000)), json.dumps(sample(1_002))]
    lines.insert(place, line)
    run = RunFolder(tmp_path)
    run.system("node1").write_text("\n".join(lines))
    found = read_machines(run)
    shares = [share for share in found.devices["node1 CPU"] if share is not None]
    assert shares == [0.25] * 2
    assert found.gpus == {}


def test_a_damaged_file_does_not_hide_another_machine(tmp_path):
    write_samples(tmp_path, "node1", [sample(1_000)])
    run = RunFolder(tmp_path)
    run.system("node2").write_bytes(b"\xff\xfe\x00\n" * 5)
    run.system("node3").write_bytes(b"")
    assert list(read_machines(run).devices) == ["node1 CPU"]


def test_the_number_of_devices_and_notes_is_bounded(tmp_path, monkeypatch):
    monkeypatch.setattr(machines_module, "MAX_DEVICES", 5)
    monkeypatch.setattr(machines_module, "MAX_NOTES", 5)
    notes = [f"note {index}" for index in range(100)]
    found = read_machines(write_samples(tmp_path, "node1", [sample(1_000, gpus=[0.5] * 100, notes=notes)]))
    assert len(found.devices) == 5
    assert len(found.notes) == 5


anything = st.recursive(
    st.none() | st.booleans() | st.floats() | st.integers() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=5,
)
damaged_samples = st.fixed_dictionaries(
    {"time": st.integers(0, 50) | st.floats(-1e9, 1e9) | anything, "node": st.text(max_size=5) | anything},
    optional={
        "cpu": st.fixed_dictionaries({"share": anything}) | anything,
        "gpus": st.lists(st.fixed_dictionaries({"index": anything, "utilisation": anything}) | anything, max_size=2)
        | anything,
        "network": anything,
        "notes": anything,
    },
)


@settings(max_examples=50)
@given(st.lists(damaged_samples | anything, max_size=6))
def test_no_sample_raises_an_exception(tmp_path_factory, samples):
    found = read_machines(write_samples(tmp_path_factory.mktemp("run"), "x", samples))
    for series in found.devices.values():
        assert len(series) == len(found.seconds)
        assert all(value is None or math.isfinite(value) for value in series)
    assert len(found.seconds) <= MAX_SPANS + 1
    json.dumps([found.devices, found.seconds], allow_nan=False)
