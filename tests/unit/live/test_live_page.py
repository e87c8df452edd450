"""When a page is built: after a change, not too often, never twice at once, and the last good one stays."""

import threading
import time
from pathlib import Path

import pytest
from run_folders import own_records, write_own_run

import dragoman.live.live_page as live_page
from dragoman.live.live_page import PageBuilder, PageText, Strip
from dragoman.live.run_page import RunPage, _machine_row, file_signature
from dragoman.live.runs_page import MAX_RUNS, draw_curve, find_runs
from dragoman.monitoring.live_data import NodeView
from dragoman.run.errors import UserError
from dragoman.run.folder import RunFolder
from dragoman.run.records import CpuSample, GpuSample, InterfaceSample, MachineSample, MemorySample


class Builds:
    """Counts builds, which end when they are allowed to."""

    def __init__(self) -> None:
        self.number = 0
        self.may_end = threading.Event()
        self.may_end.set()
        self.error: Exception | None = None

    def __call__(self) -> str:
        self.number += 1
        assert self.may_end.wait(20)
        if self.error is not None:
            raise self.error
        return str(self.number)


@pytest.fixture
def builds() -> Builds:
    return Builds()


@pytest.fixture
def builder(builds, monkeypatch) -> PageBuilder:
    monkeypatch.setattr(live_page, "_LEAST_SECONDS_BETWEEN", 0.0)
    monkeypatch.setattr(live_page, "LARGEST_SHARE", 1e9)
    return PageBuilder(builds, threading.BoundedSemaphore(1))


def wait_until_idle(builder: PageBuilder) -> None:
    end = time.monotonic() + 20
    while builder._is_building and time.monotonic() < end:
        time.sleep(0.005)
    assert not builder._is_building


def test_a_page_is_built_again_only_after_a_change(builder, builds):
    for signature in ((1,), (1,), (2,), (2,)):
        builder.renew("running", signature)
        wait_until_idle(builder)
    assert builds.number == 2
    assert builder.wait() == PageText.of("2")
    assert builder.version == builder.wait().version


def test_a_slow_build_answers_with_the_page_before(builder, builds):
    builder.renew("running", (1,))
    first = builder.wait()
    builds.may_end.clear()
    for number in range(5):
        builder.renew("running", (2, number))
        assert builder.wait() is first
    assert builds.number == 2, "no second build begins beside the first"
    builds.may_end.set()
    wait_until_idle(builder)


def test_builds_share_a_limit(builds, builder):
    other = PageBuilder(builds, builder._slots)
    builds.may_end.clear()
    builder.renew("running", (1,))
    other.renew("running", (1,))
    assert builds.number == 1
    builds.may_end.set()
    wait_until_idle(builder)
    other.renew("running", (1,))
    assert other.wait() is not None
    assert builds.number == 2


def test_building_takes_a_small_share_of_the_time_except_at_the_end(builder, builds, monkeypatch):
    monkeypatch.setattr(live_page, "_LEAST_SECONDS_BETWEEN", 1_000.0)
    for state, signature in (("running", (1,)), ("running", (2,)), ("finished", (2,))):
        builder.renew(state, signature)
        wait_until_idle(builder)
    assert builds.number == 2, "the last state is shown at once"


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (UserError("x cannot be read."), "x cannot be read. This page"),
        (ValueError("<secret>"), "(ValueError). This page"),
    ],
)
def test_the_last_good_page_stays_with_a_note(builder, builds, error, words):
    builder.renew("running", (1,))
    good = builder.wait()
    builds.error = error
    builder.renew("running", (2,))
    wait_until_idle(builder)
    assert builder.wait() is good
    assert words in builder.note
    assert "secret" not in builder.note
    builds.error = None
    builder.renew("running", (2,))
    wait_until_idle(builder)
    assert builder.note == ""
    assert builder.wait() is not good


def test_the_version_changes_with_the_page_only():
    one, same, other = (PageText.of(str(live_page.live_part().strip) + text) for text in "aab")
    assert one == same
    assert one.version != other.version
    assert f'data-version="{one.version}"' in one.with_strip(Strip(["x"], version="older"))


def test_a_strip_is_escaped():
    html = Strip(["<b>"], note="<i>", links=[("../", "<u>")]).render()
    assert "&lt;b&gt;" in html
    assert "&lt;i&gt;" in html
    assert "&lt;u&gt;" in html


def test_many_tabs_read_a_run_once(tmp_path, monkeypatch):
    run = write_own_run(tmp_path / "run", own_records(500))
    page = RunPage(run, threading.BoundedSemaphore(1))
    reads = []
    monkeypatch.setattr(page, "_read", lambda: reads.append(1))
    for _ in range(20):
        page.look()
    assert len(reads) == 1


def test_the_signature_changes_with_the_files(tmp_path):
    run = write_own_run(tmp_path / "run", own_records(500))
    before = file_signature(run)
    assert file_signature(run) == before
    with run.metrics.open("a") as file:
        file.write("\n")
    assert file_signature(run) != before


def test_machines_are_described_in_a_row():
    sample = MachineSample(
        time=1.0,
        node="a",
        cpu=CpuSample(share=0.5, other_cores=1.5),
        memory=MemorySample(used_bytes=1e9, total_bytes=4e9),
        network={"eth0": InterfaceSample(sent_bytes_per_second=2e6, received_bytes_per_second=1e6)},
        gpus=[GpuSample(index=0, utilisation=0.25), GpuSample(index=1)],
    )
    row = _machine_row(NodeView("a", sample, 30.0, ["eth0"]))
    assert row.cells == [
        "50%",
        "25%, –",
        "1.0 GB of 4.0 GB",
        "eth0 2.0 MB/s out, 1.0 MB/s in",
        "silent for 30 s, other programs use 1.5 cores",
    ]


def test_a_curve_is_a_line_from_corner_to_corner():
    assert draw_curve([(0, 3.0), (50, float("nan")), (100, 1.0)]) == "0.0,0.0 240.0,60.0"
    assert draw_curve([(0, 1.0), (1, 1.0)]) == "0.0,60.0 240.0,60.0"
    assert draw_curve([]) == draw_curve([(1, 1.0)]) == ""
    assert len(draw_curve([(step, 1 / (1 + step)) for step in range(5_000)]).split()) == 120


def test_only_run_folders_are_found_and_not_too_many(tmp_path):
    for number in range(MAX_RUNS + 3):
        RunFolder(tmp_path / f"run{number}").path.mkdir()
        RunFolder(tmp_path / f"run{number}").config.write_text("", encoding="utf-8")
    (tmp_path / "other").mkdir()
    assert len(find_runs(tmp_path)) == MAX_RUNS
    assert find_runs(Path("/nowhere")) == []
