"""Question 1: how long did it take, what on, and what did it cost?"""

from dragoman.diagnosis.wording import PART_NAMES
from dragoman.report.evidence import Restart, table
from dragoman.report.findings import Findings
from dragoman.report.parts import Answer, Table
from dragoman.run.status import number_or_none
from dragoman.run.summary import format_seconds

QUESTION = "How long did it take?"


def answer_duration(findings: Findings) -> Answer:
    """Wall time, phases, restarts, time lost to faults, cost."""
    evidence, seconds = findings.evidence, findings.wall_seconds
    if seconds is None:
        missing = ["Nothing in the files says how long a step or the run took: keep a log with times."]
        return Answer(QUESTION, "That is not known.", missing=missing)
    # The first logged interval has steps before the one it is logged at.
    counted = int(findings.interval_steps.sum())
    num_steps = counted or (evidence.last_step or 0) - (evidence.first_step or 0) + 1
    answer = f"{describe_hours(seconds)} for {num_steps:,} steps{_describe_cost(findings)}."
    lost = sum(_seconds_lost(restart) for restart in evidence.restarts)
    sentences = [*_clock_sentences(findings), *_restart_sentences(evidence.restarts, lost, seconds)]
    tables = [phases] if (phases := _phases(findings)) else []
    missing = [] if findings.cost is not None else ["The cost: give --price-per-hour, or set training.price_per_hour."]
    is_estimated = evidence.facts.get("clock") == "reconstructed"
    return Answer(QUESTION, answer, sentences, 0.8 if is_estimated else 1.0, tables=tables, missing=missing)


def describe_hours(seconds: float) -> str:
    """A duration as people say it, and exactly."""
    if seconds < 120:
        return f"{seconds:.0f} seconds"
    if seconds < 2 * 3600:
        return f"{seconds / 60:.0f} minutes ({format_seconds(seconds)})"
    return f"{seconds / 3600:.1f} hours ({format_seconds(seconds)})"


def _describe_cost(findings: Findings) -> str:
    return "" if findings.cost is None else f", at a cost of {findings.cost:,.2f}"


def _clock_sentences(findings: Findings) -> list[str]:
    if findings.evidence.facts.get("clock") == "reconstructed":
        return [
            "The log has no clock: this is the sum of its steps' times, which leaves out start-up and interruptions."
        ]
    if findings.training_seconds is None or findings.wall_seconds is None:
        return []
    share = findings.training_seconds / findings.wall_seconds if findings.wall_seconds else 1.0
    return [f"{describe_hours(findings.training_seconds)} of it was training ({min(1.0, share):.0%})."]


def _seconds_lost(restart: Restart) -> float:
    return restart.repeated_seconds + (restart.silent_seconds or 0.0)


def _restart_sentences(restarts: list[Restart], lost: float, seconds: float) -> list[str]:
    if not restarts:
        return ["It never had to be started again, as far as its records tell."]
    again = sum(restart.repeated_steps for restart in restarts)
    causes = sorted({restart.cause for restart in restarts if restart.cause})
    share = f" ({lost / seconds:.1%})" if seconds else ""
    return [
        f"It was started again {_times(len(restarts))}; {again:,} steps had to be made again, and "
        f"{describe_hours(lost)} were lost{share}, the time without a sign of life included.",
        *(f"Cause: {cause}" for cause in causes[:5]),
    ]


def _times(number: int) -> str:
    return "once" if number == 1 else f"{number:,} times"


def _phases(findings: Findings) -> Table | None:
    """Seconds by what they were spent on, over the whole run."""
    totals: dict[str, float] = {}
    before = 0
    for record in findings.evidence.train:
        num_steps, before = max(0, record["step"] - before), record["step"]
        for name, value in table(record.get("attribution")).items():
            seconds = number_or_none(value)
            if name in PART_NAMES and seconds is not None:
                totals[name] = totals.get(name, 0.0) + num_steps * seconds
    whole = sum(totals.values())
    if not whole:
        return None
    rows = [
        (PART_NAMES[name], format_seconds(seconds), f"{seconds / whole:.1%}")
        for name, seconds in sorted(totals.items(), key=lambda item: -item[1])
        if seconds / whole >= 0.0005
    ]
    return Table("Where the time went", ("phase", "time", "share"), rows, (1, 2))
