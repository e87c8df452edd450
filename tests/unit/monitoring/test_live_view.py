"""The live view: its sections as text at a fixed width, and the drawing on a terminal."""

import io
import json
import time
from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rich.console import Console, Group, RenderableType

from dragoman.diagnosis.verdict import Verdict
from dragoman.diagnosis.wording import PART_NAMES
from dragoman.monitoring.live_data import NodeView, RunView
from dragoman.monitoring.live_view import (
    LETTERS,
    LiveView,
    RunScreen,
    Section,
    attribution,
    attribution_shares,
    chart,
    clean,
    flow,
    header,
    log,
    nodes,
    prediction,
    verdict,
)
from dragoman.run.folder import RunFolder
from dragoman.run.records import MachineSample, PredictionRecord, RefusedLineError, TrainRecord, validate
from dragoman.run.status import Observation, RunStatus

NOW = 1_800_000_000.0
FIGURES = {
    "step": 1_234, "max_steps": 10_000, "loss": 3.2141, "dev_loss": 3.5,
    "evaluation_step": 1_000, "bleu": 23.44, "seconds_per_step": 1.95,
    "target_tokens_per_second": 17_000.0, "seconds_left": 3_723.0, "cost": 12.5,
}  # fmt: skip
ATTRIBUTION = {
    "forward": 0.31, "backward": 0.2, "optimizer": 0.05, "data": 0.004, "exposed_communication": 0.4,
    "hidden_communication": 0.03, "straggler": 0.003, "evaluation": 0.0, "checkpoint": 0.0, "other": 0.003,
}  # fmt: skip
GPU = {
    "index": 0, "utilisation": 0.5, "memory_used_bytes": 12e9, "memory_total_bytes": 16e9, "power_watts": 250.4,
    "temperature_celsius": 71, "activity": None,
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
NETWORK_BOUND = Verdict("network", 0.71, 0.9, "The run is network-bound: 71% of its time it waited for the network.")


def machine_sample(**changes: Any) -> MachineSample:
    return MachineSample(**SAMPLE | changes)


def train_record(**figures: Any) -> TrainRecord:
    return TrainRecord(kind="train", step=1, **figures)


def prediction_record(**seconds: float) -> PredictionRecord:
    return PredictionRecord(kind="prediction", step=0, seconds_per_step=seconds)


def complete_view(**changes: Any) -> RunView:
    losses = [(float(step), 3 + 600 / (step + 100)) for step in range(0, 1240, 10)]
    view = RunView(
        name="runs/demo",
        state="running",
        description="running",
        figures=FIGURES,
        num_restarts=2,
        train=train_record(attribution=ATTRIBUTION, wall_seconds_per_step=2.01, seconds_per_step=1.95),
        prediction=prediction_record(predicted=1.9, low=1.7, high=2.1),
        losses=losses,
        dev_losses=[(600.0, 4.2), (1200.0, 3.8)],
        nodes=[
            NodeView("alpha", machine_sample(), 0.5, ["eth0"]),
            NodeView("beta", machine_sample(), 25.0, ["eth0"]),
        ],
        log_lines=["one", "two", "three"],
        verdict=NETWORK_BOUND,
    )
    return replace(view, **changes)


def show(renderable: RenderableType, width: int) -> list[str]:
    """Returns the rows on a terminal of this width."""
    console = Console(width=width, record=True, force_terminal=True, file=io.StringIO(), markup=False)
    console.print(Group(renderable))
    return [line.rstrip() for line in console.export_text().split("\n")[:-1]]


def show_section(
    build: Callable[[RunView, int], Section | None], view: RunView, width: int, num_rows: int
) -> list[str]:
    """Returns the rows of one section that is offered this number of rows."""
    section = build(view, width)
    if section is None or not section.fit(num_rows):
        return []
    rows = show(section.draw(section.fit(num_rows)), width)
    assert len(rows) == section.fit(num_rows) <= num_rows
    return rows


def show_screen(view: RunView, width: int, height: int) -> list[str]:
    return show(RunScreen(view, height), width)


def test_the_header_shows_state_step_quality_and_speed():
    first, second, third = show_section(header, complete_view(), 80, 3)
    assert first == "running  runs/demo  restarts 2  cost 12.50"
    assert second.startswith("step 1,234 of 10,000  12.3 %  1 h 02 min left  ████")
    assert third == "training loss 3.214  BLEU 23.44 at step 1,000  17,000 tokens/s  1.95 s per step"


def test_an_evaluation_without_bleu_shows_its_own_loss_and_step():
    figures = FIGURES | {"bleu": None}
    third = show_section(header, complete_view(figures=figures), 80, 3)[2]
    assert third.startswith("training loss 3.214  dev loss 3.5 at step 1,000")


def test_narrow_rows_leave_out_the_least_important():
    first, second, third = show_section(header, complete_view(), 32, 3)
    assert first == "running  runs/demo  restarts 2"
    assert second == "step 1,234 of 10,000  12.3 %"
    assert third == "training loss 3.214"
    assert show(flow(["a long text"], 8)[0], 8) == ["a long …"]


def test_a_run_that_has_not_started_has_little_to_show():
    view = RunView("runs/new", "unstarted", "unstarted", dict.fromkeys(FIGURES))
    assert show_screen(view, 80, 23) == ["unstarted  runs/new  restarts 0"]


def test_bars_are_readable_without_colour():
    figures = FIGURES | {"step": 50, "max_steps": 100}
    row = show_section(header, complete_view(figures=figures), 75, 3)[1]
    assert row == "step 50 of 100  50.0 %  1 h 02 min left  " + "█" * 17


def test_the_loss_curve_falls_from_left_to_right_and_has_figures():
    rows = show_section(chart, complete_view(dev_losses=[]), 60, 8)
    assert len(rows) == 8
    assert rows[0].startswith("9.00 ┤")
    assert rows[3].startswith("6.23 ┤")
    assert rows[6].startswith("3.45 ┤")
    assert rows[7].split() == ["step", "0", "⠤⠤", "training", "loss", "1,230"]
    starts = [len(row[6:]) - len(row[6:].lstrip()) for row in rows[:7]]
    assert starts == sorted(starts)
    assert len(rows[6]) == len(rows[7]) == 60


def test_dev_losses_are_marked_where_they_belong():
    rows = show_section(chart, complete_view(dev_losses=[(0.0, 9.0), (1230.0, 3.45), (5000.0, 1.0)]), 60, 8)
    assert rows[0][6] == "◆"
    assert rows[6][59] == "◆"
    assert "".join(rows).count("◆") == 2 + 1  # one in the legend; points outside the curve are not drawn
    assert "◆ dev loss" in rows[7]


def test_a_steep_curve_has_no_gaps():
    losses = [(0, 0.0), (1, 9.0), (2, 0.0), (3, 9.0)]
    rows = show_section(chart, complete_view(losses=losses, dev_losses=[]), 40, 9)
    assert all(any("\u2801" <= character <= "\u28ff" for character in row) for row in rows[:8])


def test_one_point_or_little_room_gives_no_curve():
    assert show_section(chart, complete_view(losses=[(1, 2.0)]), 80, 10) == []
    assert show_section(chart, complete_view(), 80, 3) == []
    assert show_section(chart, complete_view(), 20, 10) == []


def test_a_constant_loss_is_a_line():
    rows = show_section(chart, complete_view(losses=[(5, 2.0), (9, 2.0)], dev_losses=[]), 30, 6)
    assert sum(any("\u2801" <= character <= "\u28ff" for character in row) for row in rows[:5]) == 1


def test_the_attribution_is_one_bar_with_a_letter_per_part_sorted_by_share():
    stacked, *legend = show_section(attribution, complete_view(), 114, 5)
    assert stacked == "2.01 s a step " + "N" * 40 + "F" * 31 + "B" * 20 + "O" * 5 + "S" * 3 + "+"
    assert "  ".join(legend) == (
        "N waiting for the network 40 %  F forward 31 %  B backward 20 %  O optimizer 5 %  S backward while sending 3 %"
        "  + rest 1 %"
    )


def test_the_letters_and_colours_of_parts_differ():
    assert len({letter for letter, _ in LETTERS.values()}) == len({colour for _, colour in LETTERS.values()}) == 10


def test_every_part_has_a_name_and_a_letter_that_begins_one_of_its_words():
    assert LETTERS.keys() == PART_NAMES.keys()
    words = {letter: PART_NAMES[name].upper().split() for name, (letter, _) in LETTERS.items() if name != "other"}
    assert all(any(word.startswith(letter) for word in found) for letter, found in words.items())


def test_parts_with_unknown_names_are_in_the_rest():
    assert attribution_shares({"forward": 3.0, "unknown": 1.0}) == [("forward", 0.75), ("rest", 0.25)]


@pytest.mark.parametrize("parts", [None, {}, {"forward": 0.0}])
def test_records_without_an_attribution_have_no_bar(parts: Any):
    assert show_section(attribution, complete_view(train=train_record(attribution=parts)), 80, 5) == []
    assert show_section(attribution, complete_view(train=None), 80, 5) == []


@settings(max_examples=50)
@given(st.dictionaries(st.sampled_from([*LETTERS, "new"]), st.floats(0, 1e12), min_size=1), st.integers(20, 200))
def test_the_stacked_bar_always_fills_its_width(seconds: dict[str, float], width: int):
    rows = show_section(attribution, complete_view(train=train_record(attribution=seconds)), width, 3)
    assert not rows or len(rows[0]) == width


def test_machines_with_a_row_for_each_device():
    machine, gpu, network, silent, *_ = show_section(nodes, complete_view(), 100, 10)
    assert machine == "alpha  CPU     25 %  ████              memory 12.3 of 64.0 GB"
    assert gpu == "       GPU 0   50 %  ████████          12.0 of 16.0 GB  250 W  71 °C"
    assert network == "       eth0    90 %  ██████████████▍   in 11.2 MB/s (90 Mbit/s)  out 5 MB/s (40 Mbit/s)"
    assert silent == "beta   CPU     25 %  ████              silent for 25 s  memory 12.3 of 64.0 GB"


def test_other_programs_that_use_the_cores_are_shown():
    cpu = {"share": 1.0, "num_cores": 2, "other_cores": 1.4}
    view = complete_view(nodes=[NodeView("alpha", machine_sample(cpu=cpu, gpus=[]), 0.5, [])])
    assert "others 1.4 of 2 cores" in show_section(nodes, view, 80, 8)[0]
    little = NodeView("alpha", machine_sample(cpu=cpu | {"other_cores": 0.2}, gpus=[]), 0.5, [])
    assert "others" not in show_section(nodes, complete_view(nodes=[little]), 80, 8)[0]


def test_a_prediction_beside_busy_programs_is_marked():
    record = prediction_record(predicted=1.9, low=0.9, high=2.1).model_copy(update={"other_load": "x"})
    rows = show_section(prediction, complete_view(prediction=record), 80, 2)
    assert "predicted while other programs were busy" in " ".join(rows)


def test_narrow_terminals_leave_out_bars_and_details():
    assert show_section(nodes, complete_view(), 20, 10)[:3] == [
        "alpha  CPU     25 %",
        "       GPU 0   50 %",
        "       eth0    90 %",
    ]


def test_an_interface_of_unknown_speed_has_no_bar():
    for speed in (None, -1, 0):
        interface = SAMPLE["network"]["eth0"] | {"speed_megabits_per_second": speed}
        node = NodeView("a", machine_sample(network={"eth0": interface}), 0, ["eth0"])
        row = show_section(nodes, complete_view(nodes=[node]), 80, 9)[-1]
        assert row.split() == ["eth0", "in", "11.2", "MB/s", "(90", "Mbit/s)", "out", "5", "MB/s", "(40", "Mbit/s)"]


def test_with_little_room_every_machine_has_one_row():
    gpus = [GPU | {"index": index} for index in range(8)]
    many = [NodeView(f"h{number}", machine_sample(gpus=gpus), 0.0, ["eth0"]) for number in range(2)]
    rows = show_section(nodes, complete_view(nodes=many), 150, 6)
    assert len(rows) == 2
    assert rows[0].split("▎")[-1].strip() == (
        "8 GPUs ▅▅▅▅▅▅▅▅ 50 %  eth0 in 11.2 MB/s (90 Mbit/s)  96.0 of 128.0 GB  2,003 W  up to 71 °C"
    )


def test_silent_machines_are_shown_where_not_all_fit():
    many = [NodeView(f"h{number}", machine_sample(), 60.0 * (number == 7)) for number in range(9)]
    rows = show_section(nodes, complete_view(nodes=many), 80, 3)
    assert rows[0].startswith("h7 ")
    assert "silent for 1 min" in rows[0]
    assert rows[1].startswith("h0 ")
    assert rows[2] == "and 7 more machines"
    assert show_section(nodes, complete_view(nodes=many), 80, 1) == ["and 9 more machines"]


@pytest.mark.parametrize(
    ("measured", "end"),
    [
        (1.95, "  measured 1.95 s: 3 % slower"),
        (1.71, "  measured 1.71 s: 10 % faster"),
        (1.901, "  measured 1.9 s: as predicted"),
        (29.6, "  measured 29.6 s: 1,458 % slower"),
        (None, ""),
    ],
)
def test_the_prediction_is_compared(measured: float | None, end: str):
    rows = show_section(prediction, complete_view(train=train_record(seconds_per_step=measured)), 80, 2)
    assert rows == ["predicted 1.9 s per step (1.7 s to 2.1 s)" + end]


def test_a_prediction_without_its_record_comes_from_the_steps():
    train = train_record(seconds_per_step=0.5, predicted_seconds_per_step=0.25)
    rows = show_section(prediction, complete_view(prediction=None, train=train), 80, 1)
    assert rows == ["predicted 0.25 s per step  measured 0.5 s: 100 % slower"]
    assert show_section(prediction, complete_view(prediction=prediction_record(predicted=0)), 80, 1) == []


def test_the_verdict_is_wrapped_or_cut():
    assert show_section(verdict, complete_view(), 50, 3) == [
        "Verdict (confidence 90 %): The run is",
        "network-bound: 71% of its time it waited for the",
        "network.",
    ]
    assert show_section(verdict, complete_view(), 50, 1) == ["Verdict (confidence 90 %): The run is …"]
    unknown = complete_view(verdict=Verdict("unknown", 0, 0, "Too few steps."))
    assert show_section(verdict, unknown, 80, 2) == ["Verdict: Too few steps."]
    assert show_section(verdict, complete_view(verdict=None), 80, 2) == []


def test_text_from_files_cannot_control_the_terminal():
    assert clean(f"a{ESCAPES}b") == "ared��b"
    assert clean("Grüße\t[bold] 日本 \x1b[") == "Grüße   [bold] 日本 �["
    view = complete_view(
        name=ESCAPES,
        description=ESCAPES,
        log_lines=[ESCAPES],
        nodes=[NodeView(ESCAPES, machine_sample(network={ESCAPES: SAMPLE["network"]["eth0"]}), 0, [ESCAPES])],
        verdict=replace(NETWORK_BOUND, why=ESCAPES),
    )
    text = "".join(show_screen(view, 200, 50))
    assert text.isprintable()
    assert "red" in text


@settings(max_examples=50)
@given(st.text())
def test_cleaned_text_is_printable(text: str):
    assert clean(text).isprintable()


def test_the_last_lines_of_the_log_have_one_row_each():
    assert show_section(log, complete_view(log_lines=["x" * 50, "日本" * 50, ""]), 10, 3) == [
        "xxxxxxxxx…",
        "日本日本 …",
        "",
    ]
    assert show_section(log, complete_view(), 10, 2) == ["two", "three"]


def test_everything_fits_an_ordinary_terminal():
    rows = show_screen(complete_view(), 80, 23)
    assert len(rows) == 23
    for text in ("step 1,234", "◆ dev loss", "N waiting for", "alpha  CPU", "Mbit/s", "predicted", "Verdict", "three"):
        assert any(text in row for row in rows), text


def test_a_large_terminal_has_a_larger_curve_and_blank_rows():
    rows = show_screen(complete_view(), 140, 44)
    assert 40 <= len(rows) <= 44
    assert sum("│" in row or "┤" in row for row in rows) == 19
    assert "" in rows


def test_few_rows_show_what_is_important():
    rows = show_screen(complete_view(), 80, 6)
    assert rows[0].startswith("running  runs/demo")
    assert [row[:8] for row in rows[3:]] == ["2.01 s a", "N waitin", "Verdict "]


any_number = st.floats(-(2.0**53), 2.0**53)
any_value = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from([*SAMPLE, *GPU, "eth0"]), inner, max_size=4)
    ),
    max_leaves=8,
)
figure = st.none() | any_number | any_value
rates = st.fixed_dictionaries({}, optional=dict.fromkeys(SAMPLE["network"]["eth0"], st.none() | any_number))


def parsed(record_type: type[Any], values: dict[str, Any]) -> Any:
    """Parses a record as the reader does; None if it is refused."""
    try:
        return validate(record_type, values)
    except RefusedLineError:
        return None


@settings(max_examples=50)
@given(
    sample=st.fixed_dictionaries({}, optional=dict.fromkeys(SAMPLE, any_value)),
    interface=rates,
    gpu=st.fixed_dictionaries({}, optional=dict.fromkeys(GPU, figure)),
    losses=st.lists(any_number, max_size=9),
    train=st.fixed_dictionaries({}, optional={"attribution": any_value, "seconds_per_step": figure}),
    seconds=st.fixed_dictionaries({}, optional=dict.fromkeys(("predicted", "low", "high"), any_number)),
    line=st.text(),
    width=st.integers(1, 150),
    height=st.integers(1, 50),
)
def test_whatever_the_files_hold_the_view_fits(
    sample: dict[str, Any], interface: dict[str, Any], gpu: dict[str, Any], losses: list[float],
    train: dict[str, Any], seconds: dict[str, Any], line: str, width: int, height: int,
):  # fmt: skip
    samples = [SAMPLE | sample, SAMPLE | {"gpus": [GPU | gpu], "network": {line: interface}}]
    view = complete_view(
        nodes=[
            NodeView(line, found, 99, [line, "gone"])
            for values in samples
            if (found := parsed(MachineSample, values)) is not None
        ],
        losses=[(float(step), loss) for step, loss in enumerate(losses)],
        train=parsed(TrainRecord, {"kind": "train", "step": 1} | train),
        prediction=prediction_record(**seconds),
        log_lines=[line],
    )
    console = Console(width=width, force_terminal=True, file=io.StringIO())
    lines = console.render_lines(RunScreen(view, height), pad=False)
    assert len(lines) <= height
    for segments in lines:
        assert sum(segment.cell_length for segment in segments) <= width
        assert "".join(segment.text for segment in segments).isprintable()


@pytest.fixture
def run(tmp_path: Path) -> RunFolder:
    folder = RunFolder(tmp_path)
    folder.config.write_text("[training]\nmax_steps = 100\n")
    return folder


RUNNING = Observation("running", RunStatus("running", NOW, "alpha", 1, NOW - 1000, 5, 100, 1, num_restarts=3))


@pytest.fixture
def console() -> Console:
    return Console(file=io.StringIO(), force_terminal=True, width=80, height=24, legacy_windows=False)


def test_the_first_view_does_not_wait_for_the_verdict(run: RunFolder, console: Console):
    shown_before: list[str] = []

    def judge(_: RunFolder) -> Verdict:
        shown_before.append(console.file.getvalue())
        return NETWORK_BOUND

    with LiveView(run, 3, judge, console) as view:
        view.show(RUNNING)
    assert "step 5 of 100" in shown_before[0]
    assert "network-bound" in console.file.getvalue().removeprefix(shown_before[0])


def test_a_resized_terminal_is_cleared(run: RunFolder, console: Console):
    with LiveView(run, 3, None, console) as view:
        view.show(RUNNING)
        assert "\x1b[2J" not in console.file.getvalue()
        console.size = (50, 20)
        view.show(RUNNING)
        assert "\x1b[2J" in console.file.getvalue()


def test_a_long_run_is_opened_and_drawn_with_little_work(run: RunFolder, console: Console):
    """Measures seconds of processors, not of the clock: the machine may be busy."""
    record = train_record(loss=2.0, time=NOW, attribution=ATTRIBUTION, work_seconds_by_rank=[1.234567] * 32)
    line = json.dumps(record.values())
    with run.metrics.open("w") as metrics:
        metrics.writelines(line.replace('"step": 1,', f'"step": {step},') + "\n" for step in range(50_000))
        metrics.write('{"kind": "evaluation", "step": 49999, "loss": 3.0, "bleu": 7.5}\n')
    gpus = [GPU | {"index": index} for index in range(8)]
    for number in range(40):
        node = SAMPLE | {"node": f"h{number}", "gpus": gpus}
        (run.path / f"system.h{number}.jsonl").write_text((json.dumps(node) + "\n") * 60)
    moments = [time.process_time()]
    with LiveView(run, 3, None, console) as view:
        for _ in range(10):
            view.show(RUNNING)
            moments.append(time.process_time())
    opening, *redrawing = (after - before for before, after in pairwise(moments))
    assert opening < 1.0
    assert min(redrawing) < 0.06  # reading the files again would take ten times as long
