"""The live view: its parts as text at a fixed width, the reader of the files, and the drawing on a terminal."""

import io
import json
import time
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console, Group
from rich.text import Text

from dragoman.diagnosis.wording import PART_NAMES
from dragoman.monitoring.live_nodes import node_rows
from dragoman.monitoring.live_parts import (
    LETTERS,
    NodeView,
    RunView,
    attribution_rows,
    attribution_shares,
    bar,
    chart_rows,
    clean,
    fit,
    header_rows,
    log_rows,
    prediction_rows,
    verdict_rows,
)
from dragoman.monitoring.live_view import JUDGE_EVERY_SECONDS, LiveView, PatientJudge, ViewData, lay_out
from dragoman.run.folder import RunFolder
from dragoman.run.following import Observation
from dragoman.run.status import RunStatus

NOW = 1_800_000_000.0
FIGURES = {
    "step": 1_234, "max_steps": 10_000, "loss": 3.2141, "bleu": 23.44, "seconds_per_step": 1.95,
    "target_tokens_per_second": 17_000.0, "seconds_left": 3_723.0, "cost": 12.5,
}  # fmt: skip
ATTRIBUTION = {
    "forward": 0.31, "backward": 0.2, "optimizer": 0.05, "data": 0.004, "exposed_communication": 0.4,
    "hidden_communication": 0.03, "straggler": 0.003, "evaluation": 0.0, "checkpoint": 0.0, "other": 0.003,
}  # fmt: skip
GPU = {
    "index": 0, "utilisation": 0.5, "memory_used_bytes": 12e9, "memory_total_bytes": 16e9, "power_watts": 250.4,
    "temperature_celsius": 71,
}  # fmt: skip
SAMPLE = {
    "time": NOW, "node": "alpha", "cpu": {"share": 0.25}, "memory": {"used_bytes": 12.34e9, "total_bytes": 64e9},
    "network": {
        "eth0": {
            "received_bytes_per_second": 11.25e6, "sent_bytes_per_second": 5e6, "speed_megabits_per_second": 100,
        },
        "lo": {"received_bytes_per_second": 9.0, "sent_bytes_per_second": 9.0, "speed_megabits_per_second": None},
    },
    "gpus": [GPU],
}  # fmt: skip
ESCAPES = "\x1b[2J\x1b]0;owned\x07\x9b31mred\x1b[0m\x00\u202e"


@dataclass(frozen=True)
class StubVerdict:
    bottleneck: str = "network"
    confidence: float = 0.9
    why: str = "The run is network-bound: 71% of its time it waited for the network."


def complete_view(**changes: Any) -> RunView:
    losses = [(float(step), 3 + 600 / (step + 100)) for step in range(0, 1240, 10)]
    view = RunView(
        name="runs/demo",
        state="running",
        description="running",
        figures=FIGURES,
        num_restarts=2,
        train={"attribution": ATTRIBUTION, "wall_seconds_per_step": 2.01, "seconds_per_step": 1.95},
        prediction={"seconds_per_step": {"predicted": 1.9, "low": 1.7, "high": 2.1}},
        losses=losses,
        dev_losses=[(600.0, 4.2), (1200.0, 3.8)],
        nodes=[NodeView("alpha", SAMPLE, 0.5, ["eth0"]), NodeView("beta", SAMPLE, 25.0, ["eth0"])],
        log_lines=["one", "two", "three"],
        verdict=StubVerdict(),
    )
    return replace(view, **changes)


def show(rows: list[Text], width: int) -> list[str]:
    """The rows as a terminal of this width has them; one that wraps would be two."""
    console = Console(width=width, record=True, force_terminal=True, file=io.StringIO(), markup=False)
    console.print(Group(*rows))
    lines = console.export_text().split("\n")[:-1]
    assert len(lines) == len(rows)
    return [line.rstrip() for line in lines]


def test_the_header_tells_state_step_quality_and_speed():
    first, second, third = show(header_rows(complete_view(), 80, 3), 80)
    assert first == "runs/demo  running  restarts 2  cost 12.50"
    assert second.startswith("step 1,234 of 10,000  ████")
    assert second.endswith("░  12.3 %  1:02:03 left")
    assert third == "loss 3.214  BLEU 23.44  17,000 target tokens/s  1.95 s per step"


def test_narrow_rows_lose_the_least_important_first():
    first, second, third = show(header_rows(complete_view(), 32, 3), 32)
    assert first == "runs/demo  running  restarts 2"
    assert second == "step 1,234 of 10,000"
    assert third == "loss 3.214  BLEU 23.44"
    assert fit(8, (1, "unimportant"), (2, "a long text")).plain == "a long …"


def test_a_run_that_has_not_begun_has_little_to_show():
    view = RunView("runs/new", "unstarted", "unstarted", dict.fromkeys(FIGURES))
    assert show(lay_out(view, 80, 23), 80) == ["runs/new  unstarted  restarts 0"]


@pytest.mark.parametrize(
    ("share", "text"), [(0, "░░░░"), (0.5, "██░░"), (0.53125, "██▏░"), (1, "████"), (-3, "░░░░"), (1e9, "████")]
)
def test_bars_are_read_without_colour(share: float, text: str):
    assert bar(share, 4).plain == text


def test_the_loss_curve_falls_from_left_to_right_and_has_figures():
    rows = show(chart_rows(complete_view(dev_losses=[]), 60, 8), 60)
    assert len(rows) == 8
    assert rows[0].startswith("9.00 ┤")
    assert rows[3].startswith("6.23 ┤")
    assert rows[6].startswith("3.45 ┤")
    assert rows[7].split() == ["step", "0", "⠤⠤", "loss", "1,230"]
    starts = [len(row[6:]) - len(row[6:].lstrip()) for row in rows[:7]]
    assert starts == sorted(starts)
    assert len(rows[6]) == 60


def test_losses_on_held_out_text_are_marked_where_they_belong():
    rows = show(chart_rows(complete_view(dev_losses=[(0.0, 9.0), (1230.0, 3.45), (5000.0, 1.0)]), 60, 8), 60)
    assert rows[0][6] == "◆"
    assert rows[6][59] == "◆"
    assert "".join(rows).count("◆") == 2 + 1  # one in the legend; what lies outside is not drawn
    assert "◆ dev loss" in rows[7]


def test_every_column_of_a_steep_curve_is_connected():
    rows = show(chart_rows(complete_view(losses=[(0, 0.0), (1, 9.0), (2, 0.0), (3, 9.0)], dev_losses=[]), 40, 9), 40)
    assert all(any("\u2801" <= character <= "\u28ff" for character in row) for row in rows[:8])


def test_one_point_or_no_room_is_no_curve():
    assert chart_rows(complete_view(losses=[(1, 2.0)]), 80, 10) == []
    assert chart_rows(complete_view(), 80, 3) == []
    assert chart_rows(complete_view(), 20, 10) == []


def test_an_even_loss_is_a_line():
    rows = show(chart_rows(complete_view(losses=[(5, 2.0), (9, 2.0)], dev_losses=[]), 30, 6), 30)
    assert sum(any("\u2801" <= character <= "\u28ff" for character in row) for row in rows[:5]) == 1


def test_the_attribution_is_one_bar_with_a_letter_per_part_sorted_by_share():
    stacked, *legend = show(attribution_rows(complete_view(), 114, 5), 114)
    assert stacked == "2.01 s a step " + "N" * 40 + "F" * 31 + "B" * 20 + "O" * 5 + "S" * 3 + "+"
    assert "  ".join(legend) == (
        "N waiting for the network 40 %  F forward 31 %  B backward 20 %  O optimizer 5 %  S backward while sending 3 %"
        "  + rest 1 %"
    )


def test_the_letters_and_colours_of_parts_differ():
    assert len({letter for letter, _ in LETTERS.values()}) == len({colour for _, colour in LETTERS.values()}) == 10


def test_the_legend_has_a_name_for_every_part_and_its_letter_begins_a_word_of_it():
    assert LETTERS.keys() == PART_NAMES.keys()
    words = {letter: PART_NAMES[name].upper().split() for name, (letter, _) in LETTERS.items() if name != "other"}
    assert all(any(word.startswith(letter) for word in found) for letter, found in words.items())


def test_parts_of_unknown_names_are_in_the_rest():
    assert attribution_shares({"forward": 3.0, "sorcery": 1.0}) == [("forward", 0.75), ("rest", 0.25)]


@pytest.mark.parametrize(
    "attribution", [None, [], {}, {"forward": 0.0}, {"forward": None, "data": "x"}, {"forward": float("nan")}]
)
def test_records_without_an_attribution_have_no_bar(attribution: Any):
    assert attribution_rows(complete_view(train={"attribution": attribution}), 80, 5) == []


@given(st.dictionaries(st.sampled_from([*LETTERS, "new"]), st.floats(0, 1e12), min_size=1), st.integers(20, 200))
def test_the_stacked_bar_always_fills_its_width(seconds: dict[str, float], width: int):
    rows = attribution_rows(complete_view(train={"attribution": seconds}), width, 3)
    assert not rows or rows[0].cell_len == width


def test_nodes_in_full():
    head, gpu, network, silent, *_ = show(node_rows(complete_view(), 100, 10), 100)
    assert head == "alpha  CPU █████░░░░░░░░░░░░░░░  25 %  memory 12.3 of 64.0 GB"
    assert gpu == "  GPU 0  ████████░░░░░░░░   50 %  memory ██████░░  12.0 of 16.0 GB  250 W  71 °C"
    assert network.split("░")[0] == "  eth0 in ██████████████▍"
    assert "11.2 MB/s (90 Mbit/s) out" in network
    assert "5 MB/s (40 Mbit/s)" in network
    assert silent.startswith("beta  silent for 0:00:25  CPU")


def test_an_interface_of_unknown_speed_has_no_bar():
    for speed in (None, -1, 0):
        sample = json.loads(json.dumps(SAMPLE))
        sample["network"]["eth0"]["speed_megabits_per_second"] = speed
        row = show(node_rows(complete_view(nodes=[NodeView("a", sample, 0, ["eth0"])]), 80, 9), 80)[-1]
        assert row.split() == ["eth0", "in", "11.2", "MB/s", "(90", "Mbit/s)", "out", "5", "MB/s", "(40", "Mbit/s)"]


def test_nodes_with_little_room_are_brief():
    nodes = [NodeView(f"h{number}", SAMPLE | {"gpus": [GPU] * 8}, 0.0, ["eth0"]) for number in range(2)]
    rows = show(node_rows(complete_view(nodes=nodes), 80, 6), 80)
    assert len(rows) == 6
    assert rows[1] == "  8 GPUs ▅▅▅▅▅▅▅▅ 50 %  96.0 of 128.0 GB  2,003 W  up to 71 °C"
    rows = show(node_rows(complete_view(nodes=nodes), 80, 2), 80)
    assert rows[0] == "h0  CPU  25 %  8 GPUs ▅▅▅▅▅▅▅▅ 50 %  eth0 in 11.2 MB/s (90 Mbit/s)"


def test_of_too_many_nodes_silent_ones_are_shown():
    nodes = [NodeView(f"h{number}", SAMPLE, 60.0 * (number == 7)) for number in range(9)]
    rows = show(node_rows(complete_view(nodes=nodes), 80, 3), 80)
    assert rows[0].startswith("h7  silent for 0:01:00")
    assert rows[1].startswith("h0 ")
    assert rows[2] == "and 7 more nodes"


@pytest.mark.parametrize(
    ("measured", "end"),
    [
        (1.95, ", measured 1.95 s: 3 % slower"),
        (1.71, ", measured 1.71 s: 10 % faster"),
        (1.901, ", measured 1.90 s: as predicted"),
        (29.6, ", measured 29.6 s: 1,458 % slower"),
        (None, ""),
    ],
)
def test_the_prediction_is_compared(measured: float | None, end: str):
    rows = prediction_rows(complete_view(train={"seconds_per_step": measured}), 80, 1)
    assert show(rows, 80) == ["predicted 1.90 s (1.70 to 2.10)" + end]


def test_a_prediction_without_its_record_comes_from_the_steps():
    view = complete_view(prediction={}, train={"seconds_per_step": 0.5, "predicted_seconds_per_step": 0.25})
    assert show(prediction_rows(view, 80, 1), 80) == ["predicted 0.250 s, measured 0.500 s: 100 % slower"]
    assert prediction_rows(complete_view(prediction={"seconds_per_step": {"predicted": 0}}), 80, 1) == []


def test_the_verdict_is_wrapped_or_cut():
    assert show(verdict_rows(complete_view(), 50, 3), 50) == [
        "Verdict (confidence 90 %): The run is",
        "network-bound: 71% of its time it waited for the",
        "network.",
    ]
    assert show(verdict_rows(complete_view(), 50, 1), 50) == ["Verdict (confidence 90 %): The run is …"]
    unknown = complete_view(verdict=StubVerdict("unknown", 0, "Too few steps."))
    assert show(verdict_rows(unknown, 80, 2), 80) == ["Verdict: Too few steps."]
    assert verdict_rows(complete_view(verdict=None), 80, 2) == []


def test_escape_codes_of_strangers_are_neutralised():
    assert clean(f"a{ESCAPES}b") == "ared��b"
    assert clean("Grüße\t[bold] 日本 \x1b[") == "Grüße   [bold] 日本 �["
    verdict = StubVerdict(why=ESCAPES)
    view = complete_view(
        name=ESCAPES, description=ESCAPES, log_lines=[ESCAPES], nodes=[NodeView(ESCAPES, SAMPLE)], verdict=verdict
    )
    text = "".join(row.plain for row in lay_out(view, 200, 50))
    assert text.isprintable()
    assert "red" in text


@given(st.text())
def test_cleaned_text_is_printable(text: str):
    assert clean(text).isprintable()


def test_the_last_lines_of_the_log_are_kept_to_one_row_each():
    assert show(log_rows(complete_view(log_lines=["x" * 50, "日本" * 50, ""]), 10, 3), 10) == [
        "xxxxxxxxx…",
        "日本日本 …",
        "",
    ]
    assert show(log_rows(complete_view(), 10, 2), 10) == ["two", "three"]


def test_everything_fits_an_ordinary_terminal():
    rows = show(lay_out(complete_view(), 80, 23), 80)
    assert len(rows) == 23
    for part in ("step 1,234", "◆ dev loss", "N waiting for", "alpha  CPU", "Mbit/s", "predicted", "Verdict", "three"):
        assert any(part in row for row in rows), part


def test_a_large_terminal_has_a_larger_curve_and_blank_rows():
    rows = show(lay_out(complete_view(), 140, 44), 140)
    assert 40 <= len(rows) <= 44
    assert sum("│" in row or "┤" in row for row in rows) == 19
    assert "" in rows


def test_few_rows_are_for_what_is_important():
    rows = show(lay_out(complete_view(), 80, 6), 80)
    assert rows[0].startswith("runs/demo  running")
    assert [row[:8] for row in rows[3:]] == ["2.01 s a", "N waitin", "Verdict "]


any_value = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from([*SAMPLE, *GPU, "eth0"]), inner, max_size=4)
    ),
    max_leaves=8,
)
any_number = st.floats(-(2.0**53), 2.0**53)


@given(
    sample=st.fixed_dictionaries({}, optional=dict.fromkeys(SAMPLE, any_value)),
    gpu=st.fixed_dictionaries({}, optional=dict.fromkeys(GPU, any_value)),
    losses=st.lists(any_number, max_size=9),
    train=st.fixed_dictionaries(
        {}, optional={"attribution": any_value, "seconds_per_step": any_value, "wall_seconds_per_step": any_value}
    ),
    prediction=st.fixed_dictionaries({}, optional={"seconds_per_step": any_value}),
    line=st.text(),
    width=st.integers(1, 150),
    height=st.integers(1, 50),
)
def test_whatever_the_files_hold_the_view_fits(
    sample: dict[str, Any], gpu: dict[str, Any], losses: list[float], train: dict[str, Any],
    prediction: dict[str, Any], line: str, width: int, height: int,
):  # fmt: skip
    view = complete_view(
        nodes=[NodeView("a", sample, 0, ["eth0"]), NodeView("b", SAMPLE | {"gpus": [gpu, 5]}, 99, [line])],
        losses=[(float(step), loss) for step, loss in enumerate(losses)],
        train=train,
        prediction=prediction,
        log_lines=[line],
    )
    rows = lay_out(view, width, height)
    assert len(rows) <= height
    assert all(row.cell_len <= width and row.plain.isprintable() for row in rows)


@pytest.fixture
def run(tmp_path: Path) -> RunFolder:
    folder = RunFolder(tmp_path)
    folder.config.write_text("[training]\nmax_steps = 100\n")
    return folder


class Clock:
    def __init__(self) -> None:
        self.now = NOW

    def __call__(self) -> float:
        return self.now


def append(path: Path, *records: dict[str, Any] | str) -> None:
    with path.open("a", encoding="utf-8") as file:
        file.writelines((record if isinstance(record, str) else json.dumps(record)) + "\n" for record in records)


def train_record(step: int, loss: float = 2.0, **more: Any) -> dict[str, Any]:
    return {"time": NOW + step, "kind": "train", "step": step, "loss": loss, "seconds_per_step": 1.0} | more


RUNNING = Observation("running", RunStatus("running", NOW, "alpha", 1, NOW - 1000, 5, 100, 1, num_restarts=3))


def test_the_reader_follows_the_files(run: RunFolder):
    append(run.log, *(f"line {number}" for number in range(9)))
    append(run.metrics, train_record(1), {"kind": "evaluation", "step": 1, "loss": 3.0, "bleu": 7.5})
    with ViewData(run, 2, Clock()) as data:
        view = data.look(RUNNING)
        assert (view.log_lines, list(view.losses), list(view.dev_losses)) == (["line 7", "line 8"], [(1, 2)], [(1, 3)])
        assert (view.figures["bleu"], view.num_restarts, view.nodes) == (7.5, 3, [])
        append(run.log, "new")
        append(run.metrics, train_record(2, 1.5), {"kind": "prediction", "seconds_per_step": {"predicted": 1}})
        view = data.look(RUNNING)
        assert (view.log_lines, list(view.losses)) == (["line 8", "new"], [(1, 2), (2, 1.5)])
        assert view.prediction["seconds_per_step"] == {"predicted": 1}
        assert view.train["step"] == 2


def test_steps_taken_again_after_a_restart_replace_the_first_ones(run: RunFolder):
    append(run.metrics, *(train_record(step) for step in (10, 20, 30)))
    with ViewData(run, 3, Clock()) as data:
        data.look(RUNNING)
        append(run.metrics, train_record(20, 5.0))
        assert list(data.look(RUNNING).losses) == [(10, 2.0), (20, 5.0)]


def test_damaged_records_are_passed_over(run: RunFolder):
    append(run.metrics, '{"kind": "train", "st', "[1]", '{"kind": 5}', '{"kind": "train", "step": NaN, "loss": 1e999}')
    append(run.metrics, train_record(4), '{"kind": "train", "step": 5, "loss": null}')
    append(run.path / "system.a.jsonl", "half {", '"text"')
    append(run.path / "system.b.jsonl", '{"network": [], "gpus": {"x": 1}, "time": "now"}')
    with ViewData(run, 3, Clock()) as data:
        view = data.look(RUNNING)
        assert list(view.losses) == [(4, 2.0)]
        assert lay_out(view, 80, 23)


def test_nodes_are_found_as_they_appear_and_marked_when_silent(run: RunFolder):
    clock = Clock()
    with ViewData(run, 3, clock) as data:
        data.look(RUNNING)
        append(run.path / "system.alpha.jsonl", SAMPLE)
        (node,) = data.look(RUNNING).nodes
        assert (node.name, node.is_silent, node.busy_interfaces) == ("alpha", False, ["eth0"])
        clock.now += 11
        assert data.look(RUNNING).nodes[0].is_silent
        # Its clock is far behind ours, but it speaks.
        append(run.path / "system.alpha.jsonl", SAMPLE | {"time": NOW - 500})
        assert not data.look(RUNNING).nodes[0].is_silent
        clock.now += 11
        assert data.look(RUNNING).nodes[0].seconds_silent == 11
        assert not data.look(Observation("finished")).nodes[0].is_silent


def test_a_node_whose_clock_is_ahead_is_marked_too(run: RunFolder):
    clock = Clock()
    append(run.path / "system.alpha.jsonl", SAMPLE | {"time": NOW + 500})
    with ViewData(run, 3, clock) as data:
        assert not data.look(RUNNING).nodes[0].is_silent
        clock.now += 11
        assert data.look(RUNNING).nodes[0].is_silent


def test_nodes_of_an_earlier_launch_are_left_out(run: RunFolder):
    append(run.path / "system.old.jsonl", SAMPLE | {"time": NOW - 5000})
    append(run.system("new/one"), SAMPLE)
    with ViewData(run, 3, Clock()) as data:
        assert [node.name for node in data.look(RUNNING).nodes] == ["new/one"]


def test_an_interface_stays_in_view_between_two_bursts(run: RunFolder):
    idle = SAMPLE | {"network": {"eth0": {"received_bytes_per_second": 0.0}}}
    path = run.path / "system.alpha.jsonl"
    append(path, SAMPLE, idle | {"time": NOW + 29})
    with ViewData(run, 3, Clock()) as data:
        assert data.look(RUNNING).nodes[0].busy_interfaces == ["eth0"]
        append(path, idle | {"time": NOW + 31})
        assert data.look(RUNNING).nodes[0].busy_interfaces == []


def test_an_unreadable_file_of_a_node_is_no_trouble(run: RunFolder):
    path = run.system("alpha")
    append(path, SAMPLE)
    run.system("beta").mkdir()
    with ViewData(run, 3, Clock()) as data:
        assert [node.name for node in data.look(RUNNING).nodes] == ["alpha"]
        path.unlink()
        path.mkdir()
        assert data.look(RUNNING).nodes[0].sample == SAMPLE


def test_verdicts_are_asked_for_now_and_then(run: RunFolder):
    clock = Clock()
    verdicts = iter(range(9))

    def judge(_: RunFolder) -> Any:
        return next(verdicts)

    patient = PatientJudge(run, judge, clock)
    assert patient.ask(is_last=False)
    clock.now += JUDGE_EVERY_SECONDS - 0.1
    assert not patient.ask(is_last=False)
    assert patient.verdict == 0
    assert patient.ask(is_last=True)
    assert patient.verdict == 1
    clock.now += JUDGE_EVERY_SECONDS
    assert patient.ask(is_last=False)


def test_a_slow_judge_is_asked_less_often(run: RunFolder):
    clock = Clock()

    def judge(_: RunFolder) -> StubVerdict:
        clock.now += 3
        return StubVerdict()

    patient = PatientJudge(run, judge, clock)
    patient.ask(is_last=False)
    clock.now += 29
    assert not patient.ask(is_last=False)
    clock.now += 2
    assert patient.ask(is_last=False)


def test_a_judge_that_fails_leaves_the_rest_of_the_view(run: RunFolder):
    def judge(_: RunFolder) -> StubVerdict:
        raise ValueError("damaged")

    patient = PatientJudge(run, judge)
    assert patient.ask(is_last=False)
    assert patient.verdict is None


@pytest.fixture
def console() -> Console:
    return Console(file=io.StringIO(), force_terminal=True, width=80, height=24, legacy_windows=False)


def test_the_first_view_does_not_wait_for_the_verdict(run: RunFolder, console: Console):
    shown_before: list[str] = []

    def judge(_: RunFolder) -> StubVerdict:
        shown_before.append(console.file.getvalue())
        return StubVerdict()

    with LiveView(run, 3, judge, console) as view:
        view.show(RUNNING)
    assert "step 5 of 100" in shown_before[0]
    assert "network-bound" in console.file.getvalue().removeprefix(shown_before[0])


def test_another_size_of_the_terminal_is_drawn_on_a_clean_screen(run: RunFolder, console: Console):
    with LiveView(run, 3, None, console) as view:
        view.show(RUNNING)
        assert "\x1b[2J" not in console.file.getvalue()
        console.size = (50, 20)
        view.show(RUNNING)
        assert "\x1b[2J" in console.file.getvalue()


def test_a_long_run_is_opened_and_drawn_with_little_work(run: RunFolder, console: Console):
    """Seconds of processors, not of the clock: the machine may be busy."""
    line = json.dumps(train_record(1, attribution=ATTRIBUTION, work_seconds_by_rank=[1.234567] * 32))
    append(run.metrics, *(line.replace('"step": 1,', f'"step": {step},') for step in range(50_000)))
    append(run.metrics, {"kind": "evaluation", "step": 49_999, "loss": 3.0, "bleu": 7.5})
    for number in range(40):
        append(run.path / f"system.h{number}.jsonl", *([SAMPLE | {"gpus": [GPU] * 8}] * 60))
    moments = [time.process_time()]
    with LiveView(run, 3, None, console) as view:
        for _ in range(10):
            view.show(RUNNING)
            moments.append(time.process_time())
    opening, *redrawing = (after - before for before, after in pairwise(moments))
    assert opening < 1.0
    assert min(redrawing) < 0.02
