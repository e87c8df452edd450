"""Question 10: how long is an average step, and which stood out?"""

from dragoman.diagnosis.wording import format_step
from dragoman.report.evidence import curve, table
from dragoman.report.findings import Findings
from dragoman.report.parts import Answer, Chart, Mark, Series, Table
from dragoman.run.status import number_or_none

QUESTION = "How long is an average step?"
NOTABLE_DRIFT = 0.05
MAX_MARKS = 40
MAX_NAMED = 8


def answer_steps(findings: Findings) -> Answer:
    """Mean, median, 95th percentile, drift, and outliers with their likely cause."""
    times = findings.step_times
    if times is None:
        return Answer(QUESTION, "That is not known.", missing=["No step time was logged."])
    if times.p95 is None:
        mean = f"{format_step(times.mean)} on average, as its trainer summed it up."
        return Answer(QUESTION, mean, confidence=0.9, missing=["Times of single steps were not logged."])
    answer = (
        f"{format_step(times.mean)} on average; half of the logged intervals are below {format_step(times.median)}, "
        f"95% below {format_step(times.p95)}."
    )
    sentences = _what_is_in_it(findings)
    if times.drift is not None:
        how = "no drift" if abs(times.drift) < NOTABLE_DRIFT else "a drift worth a look"
        word = "slower" if times.drift >= 0 else "faster"
        sentences.append(f"The last quarter of the run is {abs(times.drift):.1%} {word} than the first: {how}.")
    causes = explain_outliers(findings)
    if causes:
        counted = ", ".join(f"{count} {cause}" for cause, count in causes.items())
        sentences.append(
            f"{sum(causes.values())} of {len(findings.evidence.step_seconds)} intervals stand out: {counted}."
        )
    else:
        sentences.append("No interval stands out.")
    tokens = curve(findings.evidence.train, "target_tokens_per_second")[1]
    if len(tokens):
        sentences.append(f"Meanwhile it learned from {float(tokens.mean()):,.0f} target tokens a second.")
    return Answer(QUESTION, answer, sentences, 1.0, [_chart(findings)], _tables(findings))


def explain_outliers(findings: Findings) -> dict[str, int]:
    """How many slow intervals lie at an evaluation, a checkpoint, a restart, the start, or at nothing known."""
    steps, _ = curve(findings.evidence.train, "seconds_per_step")
    times = findings.step_times
    found: dict[str, int] = {}
    for index in times.outliers if times else []:
        begin, end = (float(steps[index - 1]) if index else -1.0), float(steps[index])
        cause = _cause(findings, begin, end, index)
        found[cause] = found.get(cause, 0) + 1
    return dict(sorted(found.items(), key=lambda item: -item[1]))


def _cause(findings: Findings, begin: float, end: float, index: int) -> str:
    evidence = findings.evidence
    happened = {
        "with a restart": [restart.step for restart in evidence.restarts],
        "with an evaluation": [record["step"] for record in evidence.evaluations],
        "with a checkpoint": [record["step"] for record in evidence.checkpoints],
    }
    for cause, events in happened.items():
        for step in events:
            # An evaluation between two logged steps falls into the second's time; one at a step, into the next one's.
            if begin <= step < end or (step == end and cause == "with an evaluation" and not evidence.is_foreign):
                return cause
    return "at the start" if index == 0 else "without a known cause"


def _what_is_in_it(findings: Findings) -> list[str]:
    evidence = findings.evidence
    if evidence.facts.get("step_time_includes_evaluation"):
        return [
            "These times include evaluations, which this trainer counts as part of a step; the median does not suffer."
        ]
    if evidence.is_foreign:
        return []
    wall = curve(evidence.train, "wall_seconds_per_step")[1]
    own = "Evaluation, checkpoints and logging are not in these times"
    return [f"{own}; with them a step took {format_step(float(wall.mean()))}." if len(wall) else f"{own}."]


def _tables(findings: Findings) -> list[Table]:
    steps, seconds = curve(findings.evidence.train, "seconds_per_step")
    times = findings.step_times
    if times is None or not times.outliers:
        return []
    worst = sorted(times.outliers, key=lambda index: -seconds[index])[:MAX_NAMED]
    rows = [
        (
            f"{int(steps[index]):,}",
            format_step(float(seconds[index])),
            f"{seconds[index] / times.median:.2f} ×",
            _cause(findings, float(steps[index - 1]) if index else -1.0, float(steps[index]), index),
        )
        for index in sorted(worst)
    ]
    return [Table("The slowest intervals", ("up to step", "a step took", "of the median", "cause"), rows, (0, 1, 2))]


def _chart(findings: Findings) -> Chart:
    steps, seconds = curve(findings.evidence.train, "seconds_per_step")
    series = [Series("seconds per step", steps.tolist(), seconds.tolist())]
    predicted = curve(findings.evidence.train, "predicted_seconds_per_step")
    if len(predicted[0]):
        series.append(Series("predicted", predicted[0].tolist(), predicted[1].tolist(), "dashed"))
    marks = [Mark(restart.step, "restart") for restart in findings.evidence.restarts[:MAX_MARKS]]
    return Chart("step-time", "Time of a step", "step", "seconds per step", series, marks, y_from_zero=True)


def attribution_chart(findings: Findings) -> Chart | None:
    """What the time of steps went to, over the run."""
    from dragoman.diagnosis.wording import PART_NAMES

    rows = [(record["step"], table(record.get("attribution"))) for record in findings.evidence.train]
    rows = [(step, parts) for step, parts in rows if parts]
    if len(rows) < 2:
        return None
    steps = [float(step) for step, _ in rows]
    series = []
    for name, label in PART_NAMES.items():
        values = [number_or_none(parts.get(name)) or 0.0 for _, parts in rows]
        if sum(values) > 0:
            series.append(Series(label, steps, values, "stack"))
    return Chart("attribution", "Where the time of a step went", "step", "seconds per step", series, y_from_zero=True)
