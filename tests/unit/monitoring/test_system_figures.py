"""Figures of all machines: means since the last record, for TensorBoard and for the record, from any file."""

import json
import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dragoman.monitoring.system_figures import Figure, MachineFigures, SystemFigures
from dragoman.run.errors import UserError
from dragoman.run.folder import RunFolder
from dragoman.run.line_follower import LineFollower


@pytest.fixture
def run(tmp_path):
    return RunFolder(tmp_path)


def sample(node="a", **parts):
    return {"time": 1.0, "node": node, **parts}


def append(run, *samples, node="a"):
    with run.system(node).open("a") as file:
        for record in samples:
            file.write(json.dumps(record) + "\n")


def interface(received, sent):
    return {"received_bytes_per_second": received, "sent_bytes_per_second": sent, "received_bytes": 7, "is_up": True}


def test_every_figure_has_its_name_and_its_unit(run):
    figures = SystemFigures(run)
    gpu = {
        "index": 0,
        "name": "NVIDIA H100",
        "utilisation": 0.97,
        "memory_used_bytes": 60e9,
        "memory_total_bytes": 80e9,
        "power_watts": 312.5,
        "pcie_received_bytes_per_second": 2e6,
        "activity": {"sm_active": 0.5, "tensor_active": None},
    }
    append(
        run,
        sample(
            cpu={"share": 0.25, "cores": [0.5, 0.0]},
            memory={"used_bytes": 3e9, "total_bytes": 8e9},
            disk={"read_bytes_per_second": 4e6, "written_bytes_per_second": 5e6},
            network={"eth0": interface(12.5e6, 1e6)},
            gpus=[gpu],
        ),
    )
    assert figures.read().scalars() == {
        "system/a/cpu": 0.25,
        "system/a/memory_GB": 3.0,
        "system/a/disk/read_MB_per_s": 4.0,
        "system/a/disk/written_MB_per_s": 5.0,
        "system/a/network/eth0/received_MB_per_s": 12.5,
        "system/a/network/eth0/sent_MB_per_s": 1.0,
        "system/a/gpu0/utilisation": 0.97,
        "system/a/gpu0/memory_GB": 60.0,
        "system/a/gpu0/power_watts": 312.5,
        "system/a/gpu0/pcie_received_MB_per_s": 2.0,
        "system/a/gpu0/sm_active": 0.5,
    }


SHARES = st.lists(st.none() | st.floats(0, 1), max_size=8)


@settings(max_examples=30)
@given(st.lists(SHARES, max_size=5))
def test_means_are_those_since_the_last_call_without_unknown_values(tmp_path_factory, looks):
    run = RunFolder(tmp_path_factory.mktemp("run"))
    figures = SystemFigures(run)
    for shares in looks:
        append(run, *(sample(cpu={"share": share}) for share in shares))
        known = [share for share in shares if share is not None]
        expected = {"system/a/cpu": pytest.approx(sum(known) / len(known))} if known else {}
        assert figures.read().scalars() == expected


def test_every_node_has_its_own_figures_and_may_come_later(run):
    figures = SystemFigures(run)
    append(run, sample("a", cpu={"share": 0.5}))
    assert figures.read().scalars() == {"system/a/cpu": 0.5}
    append(run, sample("10.0.0.7:22", cpu={"share": 0.25}), node="10.0.0.7:22")
    assert figures.read().scalars() == {"system/10.0.0.7:22/cpu": 0.25}


def test_samples_from_before_a_restart_are_not_used(run):
    append(run, sample(cpu={"share": 1.0}))
    figures = SystemFigures(run)
    assert figures.read().scalars() == {}
    append(run, sample(cpu={"share": 0.5}))
    assert figures.read().scalars() == {"system/a/cpu": 0.5}


def test_interfaces_are_left_out_until_they_carry_something(run):
    figures = SystemFigures(run)
    append(run, sample(network={"eth0": interface(None, None), "idle": interface(0.0, 0.0)}))
    assert figures.read().scalars() == {}
    append(run, sample(network={"eth0": interface(0.0, 2e6), "idle": interface(0.0, 0.0)}))
    expected = {"system/a/network/eth0/received_MB_per_s": 0.0, "system/a/network/eth0/sent_MB_per_s": 2.0}
    assert figures.read().scalars() == expected
    append(run, sample(network={"eth0": interface(0.0, 0.0)}))
    assert figures.read().scalars() == dict.fromkeys(expected, 0.0)


def test_an_incomplete_line_is_read_when_it_is_complete(run):
    line = json.dumps(sample(cpu={"share": 0.5})) + "\n"
    figures = SystemFigures(run)
    with run.system("a").open("a") as file:
        file.write(line[:20])
        file.flush()
        assert figures.read().scalars() == {}
        file.write(line[20:])
        file.flush()
        assert figures.read().scalars() == {"system/a/cpu": 0.5}


def test_copies_and_unreadable_files_are_skipped(run, tmp_path):
    figures = SystemFigures(run)
    append(run, sample(cpu={"share": 0.5}))
    (tmp_path / "system.a.old.jsonl").write_text(json.dumps(sample(cpu={"share": 1.0})) + "\n")
    (tmp_path / "system.b.jsonl").mkdir()
    (tmp_path / "system.c.jsonl").write_bytes(bytes(range(256)) + b"\n")
    (tmp_path / "system.d.jsonl").symlink_to("nowhere")
    assert figures.read().scalars() == {"system/a/cpu": 0.5}


JSON_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(st.characters(), max_size=5),
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(st.sampled_from(["share", "eth0", "index", "sent_bytes_per_second", "activity"]), inner)
    ),
    max_leaves=8,
)
STRANGE_SAMPLES = st.fixed_dictionaries(
    {"node": st.just("a") | JSON_VALUES},
    optional=dict.fromkeys(("cpu", "memory", "disk", "network", "gpus"), JSON_VALUES),
)
STRANGE_LINES = st.one_of(
    st.binary(max_size=40),
    JSON_VALUES.map(lambda value: json.dumps(value).encode()),
    STRANGE_SAMPLES.map(lambda value: json.dumps(value).encode()),
    st.just(b"[" * 100_000),
    st.just(b'{"node": "a", "cpu": {"share": ' + b"9" * 5_000 + b"}}"),
)


@settings(max_examples=50)
@given(st.lists(STRANGE_LINES, max_size=6))
def test_damaged_lines_are_skipped_and_good_ones_read(tmp_path_factory, lines):
    run = RunFolder(tmp_path_factory.mktemp("run"))
    good = json.dumps(sample(memory={"used_bytes": 2e9})).encode()
    figures = SystemFigures(run)
    run.system("a").write_bytes(b"\n".join([*lines, good, b""]))
    found = figures.read().scalars()
    assert "system/a/memory_GB" in found
    for name, value in found.items():
        assert math.isfinite(value)
        name.encode()  # as TensorBoard will


def test_names_with_lone_surrogates_can_be_written(run):
    figures = SystemFigures(run)
    append(run, sample("n\udce9", network={"e\ud800": interface(1e6, 1e6)}), node="n\udce9")
    assert "system/n?/network/e?/sent_MB_per_s" in figures.read().scalars()


@pytest.mark.parametrize("error", [UserError("it cannot be read"), OSError(116, "Stale file handle")])
def test_an_unreadable_disk_gives_no_figures_and_no_error(run, monkeypatch, error):
    append(run, sample(cpu={"share": 1.0}))

    def refuse(*_):
        raise error

    figures = SystemFigures(run)
    append(run, sample(cpu={"share": 0.5}))
    with monkeypatch.context() as failing:
        failing.setattr(LineFollower, "_open", refuse)
        assert figures.read().scalars() == {}
    with monkeypatch.context() as failing:
        failing.setattr(RunFolder, "system_files", refuse if isinstance(error, OSError) else list)
        assert figures.read().scalars() == {"system/a/cpu": 0.5}


@settings(max_examples=30)
@given(st.lists(st.text(st.characters(), max_size=40), unique=True, max_size=6))
def test_every_node_has_its_own_file_in_the_run_folder(tmp_path_factory, nodes):
    run = RunFolder(tmp_path_factory.mktemp("run"))
    assert len({run.system(node) for node in nodes}) == len(nodes)
    for node in nodes:
        assert run.system(node).parent == run.path
        if len(run.system(node).name) < 256:
            run.system(node).touch()
            assert run.system(node) in run.system_files()


def test_a_run_without_samples_or_folder_has_none(tmp_path):
    assert RunFolder(tmp_path / "nowhere").system_files() == []
    assert SystemFigures(RunFolder(tmp_path / "nowhere")).read().scalars() == {}
    assert RunFolder(tmp_path).system("gpu-07.cluster").name == "system.gpu-07.cluster.jsonl"


def traffic(node: str, interface: str, sent: float, received: float) -> dict[Figure, float]:
    device = f"network/{interface}"
    return {
        Figure(node, device, "sent_bytes_per_second", interface): sent,
        Figure(node, device, "received_bytes_per_second", interface): received,
    }


def record(*figures: dict[Figure, float]) -> dict[str, object]:
    return MachineFigures({name: value for each in figures for name, value in each.items()}).to_record()


def test_without_samples_the_record_has_no_figures():
    assert record() == {}
    assert record({Figure("a", "", "used_bytes"): 3e9}) == {}


def test_the_busiest_interface_between_machines_is_recorded():
    found = record(
        traffic("a", "lo", 900e6, 900e6),
        traffic("a", "eth0", 1e6, 2e6),
        traffic("b/c", "eth1", 12.5e6, 11e6),
        traffic("b/c", "eth2", 0, 20e6),
    )
    assert found["traffic"] == {
        "host": "b/c",
        "interface": "eth1",
        "sent_bytes_per_second": 12.5e6,
        "received_bytes_per_second": 11e6,
    }


def test_on_one_machine_loopback_carries_the_traffic():
    assert record(traffic("a", "lo", 300, 300), traffic("a", "eth0", 1, 1))["traffic"]["interface"] == "lo"


def test_loopback_does_not_count_between_machines():
    assert "traffic" not in record(traffic("a", "lo", 9, 9), traffic("b", "lo", 9, 9))


def test_a_missing_direction_is_zero():
    found = record({Figure("a", "network/eth0", "sent_bytes_per_second", "eth0"): 2e6})
    assert found["traffic"]["sent_bytes_per_second"] == 2e6
    assert found["traffic"]["received_bytes_per_second"] == 0


def busy(other: float, own: float = 1.0) -> dict[str, float]:
    return {
        "share": 1.0, "num_cores": 2, "own_cores": own, "other_cores": other, "stolen_cores": 0.0,
        "waiting_threads": other,
    }  # fmt: skip


def test_the_record_says_who_used_the_cores_of_each_machine(run):
    figures = SystemFigures(run)
    loop = {"name": "python", "pid": 7, "cores": 0.9}
    append(run, sample(cpu=busy(0.5)), sample(cpu=busy(1.5), programs=[loop]))
    append(run, sample("b", cpu=busy(0.0, own=2.0)), node="b")
    first, second = figures.read().to_record()["load"]
    assert first == {"host": "a", "programs": [loop]} | {
        "num_cores": 2.0, "own_cores": 1.0, "other_cores": 1.0, "stolen_cores": 0.0, "waiting_threads": 1.0,
    }  # fmt: skip
    assert (second["host"], second["own_cores"], second["programs"]) == ("b", 2.0, [])


def test_waiting_stays_unknown_in_the_record(run):
    figures = SystemFigures(run)
    append(run, sample(cpu=busy(1.0) | {"waiting_threads": None}))
    (load,) = figures.read().loads()
    assert (load.other_cores, load.waiting_threads) == (1.0, None)


def test_a_look_at_the_load_leaves_the_samples_for_the_record(run):
    figures = SystemFigures(run)
    append(run, sample(cpu=busy(1.0)))
    assert [load.other_cores for load in figures.peek().loads()] == [1.0]
    append(run, sample(cpu=busy(0.0)))
    assert figures.read().to_record()["load"][0]["other_cores"] == 0.5
    assert figures.read().loads() == []


def test_samples_without_the_users_of_the_cores_have_no_load(run):
    figures = SystemFigures(run)
    append(run, sample(cpu={"share": 0.5}))
    assert "load" not in figures.read().to_record()


def test_utilisation_is_the_mean_over_machines_and_gpus(run):
    figures = SystemFigures(run)
    gpus = [{"index": 0, "utilisation": 1.0, "memory_used_bytes": 7e9, "activity": None}]
    append(run, sample(cpu={"share": 0.2}, gpus=[*gpus, {"index": 1, "utilisation": 0.5}]))
    append(run, sample("b", cpu={"share": 0.6}), node="b")
    assert figures.read().to_record() == {"utilisation": {"cpu": pytest.approx(0.4), "gpu": pytest.approx(0.75)}}
    append(run, sample("b", cpu={"share": 0.25}), node="b")
    assert figures.read().to_record() == {"utilisation": {"cpu": 0.25}}
