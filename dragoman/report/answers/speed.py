"""Questions 1, 4 and 10: how long the run took, how busy its devices were, and how long a step took."""

from statistics import fmean

from dragoman.diagnosis.intervals import is_disturbed
from dragoman.diagnosis.network_estimate import BUSY_GPUS
from dragoman.diagnosis.verdict import BUSY_SHARE, OTHER_PROGRAMS_NAME
from dragoman.diagnosis.wording import PART_NAMES, format_step
from dragoman.report.content import Answer, Chart, Mark, Series, Table
from dragoman.report.durations import describe_exactly, describe_hours
from dragoman.report.evidence import Evidence, curve, timed_records
from dragoman.report.findings import Findings
from dragoman.report.machines import Values
from dragoman.report.time_use import PHASES
from dragoman.run.units import counted, format_seconds

_DURATION = "How long did it take?"
DEVICES = "Were the GPUs fully used?"
STEPS = "How long is an average step?"
_MAX_CAUSES = 5
MAX_LINES = 8
"""Most lines in the chart of utilisation: more could not be told apart."""
_NOTABLE_DRIFT = 0.05
MAX_MARKS = 40
_MAX_OUTLIERS_SHOWN = 8
_NOTABLE_WAITING = 0.05
"""Share of a step from which waiting contradicts a high utilisation."""
_SMALLEST_PHASE = 0.0005
"""Share of the time below which a phase is not listed."""
WAITING = ("exposed_communication", "straggler", "data")


def answer_duration(findings: Findings) -> Answer:
    """Wall time, phases, restarts, time lost to faults, cost."""
    evidence, seconds = findings.evidence, findings.wall_seconds
    if seconds is None:
        missing = ["The files do not say how long a step or the run took: keep a log with times."]
        return Answer(_DURATION, "Not known.", missing=missing, short="Not known")
    cost = "" if findings.cost is None else f", at a cost of {findings.cost:,.2f}"
    is_estimated = evidence.facts.clock == "reconstructed"
    if timed := findings.steps_of_mean_time:
        took = describe_hours(timed * (evidence.facts.mean_seconds_per_step or 0.0))
        num_steps = counted(evidence.num_steps or 0, evidence.step_noun)
        answer = (
            f"Not known exactly: the last {timed:,} of {num_steps} took {took}. At that speed all took about "
            f"{describe_hours(seconds)}{cost}."
        )
    else:
        whole = describe_exactly(seconds)
        answer = f"{whole} {_describe_num_steps(findings)}{cost}.{_describe_standstill(findings)}"
    return Answer(
        _DURATION,
        answer,
        [*_describe_clock(findings), *_describe_launches(evidence), *_describe_restarts(findings, seconds)],
        confidence=0.5 if timed else 0.8 if is_estimated else 1.0,
        tables=[table for table in (_time_table(findings), _parts_table(findings)) if table is not None],
        missing=["The cost: pass --price-per-hour, or set training.price_per_hour."] if findings.cost is None else [],
        short=describe_hours(seconds),
    )


def _describe_num_steps(findings: Findings) -> str:
    evidence = findings.evidence
    num_steps, last = evidence.num_steps or 0, evidence.last_step or 0
    if (first := findings.timed_from_step) is not None:
        return f"from {evidence.step_noun} {first:,} to {last:,}"
    if not evidence.unseen_steps:
        return f"for {counted(num_steps, evidence.step_noun)}"
    begins = f"the log begins at {evidence.unseen_steps + 1:,}"
    return f"for the last {num_steps:,} of {last:,} {evidence.step_noun}s ({begins})"


def _describe_standstill(findings: Findings) -> str:
    seconds = findings.time_use.seconds["standstill"] if findings.time_use else 0.0
    return f" For {describe_hours(seconds)} of it the run stood still." if seconds else ""


def _describe_clock(findings: Findings) -> list[str]:
    if findings.steps_of_mean_time:
        return []
    if findings.evidence.facts.clock == "reconstructed":
        return ["The log has no clock: this is the sum of its step times, without start-up and interruptions."]
    use = findings.time_use
    if use is None or not use.whole:
        return []
    return [f"Training steps took {describe_hours(use.seconds['training'])} of it ({use.share('training'):.0%})."]


def _describe_launches(evidence: Evidence) -> list[str]:
    if len(evidence.launches) < 2:
        return []
    return [f"The log holds {len(evidence.launches)} launches; they are listed below the answers."]


def _describe_restarts(findings: Findings, seconds: float) -> list[str]:
    restarts, pauses = findings.evidence.restarts, findings.pauses
    if not restarts:
        return ["The records show no restart."]
    num_steps = sum(restart.repeated_steps for restart in restarts)
    lost = sum(each.repeated_seconds + (each.silent_seconds or 0.0) for each in restarts) - findings.pause_seconds
    lost = max(0.0, min(lost, seconds))
    share = f" ({lost / seconds:.1%})" if seconds else ""
    faults = [restart for restart in restarts if restart not in pauses]
    messages = []
    if pauses:
        messages.append(
            f"The run was continued {_times(len(pauses))} by a person; the {describe_hours(findings.pause_seconds)} "
            "without training before that are not counted."
        )
    if (faults or num_steps) and not num_steps and findings.evidence.facts.clock == "reconstructed":
        messages.append(f"The run restarted {_times(len(restarts))}; what that cost is not in these files.")
    elif faults or num_steps:
        messages.append(
            f"The run restarted {_times(len(restarts))}: {counted(num_steps, 'step')} had to be trained again, and "
            f"{describe_hours(lost)} were lost{share}, downtime included."
        )
    causes = sorted({restart.cause for restart in restarts if restart.cause})
    return [*messages, *(f"Cause: {cause}" for cause in causes[:_MAX_CAUSES])]


def _times(number: int) -> str:
    return "once" if number == 1 else f"{number:,} times"


def _time_table(findings: Findings) -> Table | None:
    """The whole time by what it was spent on; the parts add up to it."""
    use = findings.time_use
    if use is None or not use.whole:
        return None
    rows = [
        (PHASES[name], format_seconds(seconds), f"{use.share(name):.1%}")
        for name, seconds in sorted(use.seconds.items(), key=lambda item: -item[1])
        if use.share(name) >= _SMALLEST_PHASE
    ]
    title = "Where the time went"
    return Table(f"{title} (estimated)" if use.is_estimated else title, ("", "time", "share"), rows, (1, 2))


def _parts_table(findings: Findings) -> Table | None:
    """The parts of a typical step, with the shares that the verdict is about."""
    parts = findings.verdict.parts
    whole = sum(parts.values())
    if not whole:
        return None
    rows = [
        (PART_NAMES.get(name, OTHER_PROGRAMS_NAME), format_step(seconds), f"{seconds / whole:.1%}")
        for name, seconds in sorted(parts.items(), key=lambda item: -item[1])
        if seconds / whole >= _SMALLEST_PHASE
    ]
    return Table("A typical step", ("part", "time", "share"), rows, (1, 2))


def answer_devices(findings: Findings) -> Answer:
    """Utilisation over time, and how much of it was waiting."""
    machines, verdict = findings.machines, findings.verdict
    devices = machines.gpus or machines.devices
    known = {name: [value for value in values if value is not None] for name, values in devices.items()}
    means = {name: sum(values) / len(values) for name, values in known.items() if values}
    if not means:
        return _devices_unmeasured(findings)
    overall = sum(means.values()) / len(means)
    total = sum(findings.verdict.parts.values())
    # The cause with its own share, the same as everywhere else on the page; no sum of several causes.
    waiting, cause = max((findings.verdict.parts.get(name, 0.0), name) for name in WAITING)
    waited = (
        f", but {waiting / total:.0%} of each step was spent {PART_NAMES[cause]}"
        if waiting > _NOTABLE_WAITING * total
        else ""
    )
    kind = "GPUs" if machines.gpus else "CPUs (there was no GPU)"
    yes_or_no = "By utilisation, yes" if overall >= BUSY_SHARE else "No"
    evidence = [f"{name}: {mean:.0%} on average." for name, mean in list(means.items())[:MAX_LINES]]
    if verdict.other_load:
        evidence.append(f"Not all of this is the run: {verdict.other_load}.")
    evidence += verdict.misleading
    if machines.gpus:
        evidence.append(f"Utilisation counts the time in which any kernel ran, also one that waited: {BUSY_GPUS}")
    rows = [(name, f"{mean:.1%}") for name, mean in means.items()]
    return Answer(
        DEVICES,
        f"{yes_or_no}: the {kind} were busy {overall:.0%} of the time on average{waited}.",
        evidence,
        confidence=0.9,
        charts=[_utilisation_chart(findings, devices)],
        tables=[Table("Mean utilisation", ("device", "busy"), rows, (1,))] if len(rows) > 1 else [],
        missing=machines.notes[:3],
        short=f"{'By utilisation, yes' if overall >= BUSY_SHARE else 'No'}: {overall:.0%} busy",
    )


def _utilisation_chart(findings: Findings, devices: dict[str, Values]) -> Chart:
    seconds = findings.machines.seconds
    unit, unit_seconds = ("hours", 3600) if seconds[-1] > 7200 else ("minutes", 60)
    times = [second / unit_seconds for second in seconds]
    series = [
        Series(name, times, [None if value is None else 100 * value for value in values])
        for name, values in list(devices.items())[:MAX_LINES]
    ]
    return Chart("utilisation", "Utilisation", f"{unit} since the start", "busy, %", series, y_from_zero=True)


def _devices_unmeasured(findings: Findings) -> Answer:
    evidence, estimate = findings.evidence, findings.network
    which = f" ({', '.join(evidence.facts.gpus[:4])})" if evidence.facts.gpus else ""
    said = [BUSY_GPUS]
    answer, confidence, short = f"Not measured{which}.", 0.0, "Not measured"
    if estimate is not None and estimate.compute_seconds is not None and findings.step_times is not None:
        low, typical, high = estimate.compute_seconds
        share = min(1.0, typical / findings.step_times.median)
        answer = f"Not measured; by an estimate, computing takes about {share:.0%} of a step{which}."
        confidence, short = 0.4, f"Not measured; about {share:.0%} by estimate"
        said.append(f"Computing takes {low:.2g} to {high:.2g} s of a {findings.step_times.median:.3g} s step.")
    is_recorded = any(record.utilisation for record in evidence.train)
    missing = [] if is_recorded else ["Utilisation over time was not recorded; dragoman samples it every second."]
    return Answer(DEVICES, answer, said, confidence, missing=missing, short=short)


def answer_steps(findings: Findings) -> Answer:
    """Mean, median, 95th percentile, drift, and outliers with their likely cause."""
    times = findings.step_times
    if times is None:
        return Answer(STEPS, "Not known.", missing=["No step time was logged."], short="Not known")
    if times.p95 is None:
        mean = f"{format_step(times.mean)} on average, by the trainer's own summary."
        missing = ["Times of single steps were not logged."]
        return Answer(STEPS, mean, confidence=0.9, missing=missing, short=format_step(times.mean))
    full = " with a full batch" if findings.evidence.is_batch_growing else ""
    answer = (
        f"{format_step(times.mean)}{full} on average; the median is {format_step(times.median)}, and 95% of the logged "
        f"intervals are below {format_step(times.p95)}."
    )
    said = [*_describe_step_content(findings), *_describe_drift(times.drift), _describe_outliers(findings)]
    if len(findings.evidence.step_seconds) == 1:
        answer = f"{format_step(times.mean)}{full}, by the only logged interval."
        said = _describe_step_content(findings)
    tokens = curve(findings.evidence.train, "target_tokens_per_second")[1]
    if len(tokens):
        said.append(f"Throughput: {float(tokens.mean()):,.0f} target tokens per second on average.")
    charts, short = [_step_time_chart(findings)], format_step(times.median)
    return Answer(STEPS, answer, said, 1.0, charts, _slowest_intervals(findings), short=short)


def _describe_step_content(findings: Findings) -> list[str]:
    evidence = findings.evidence
    if evidence.facts.step_time_includes_evaluation:
        return [
            "These times include evaluations, which this trainer counts as part of a step; the median hardly changes."
        ]
    if evidence.is_imported:
        return []
    wall = [
        each.wall_seconds_per_step / (each.batch_share or 1) for each in evidence.train if each.wall_seconds_per_step
    ]
    own = "These times do not include evaluation, checkpoints and logging"
    said = [f"{own}; with them a step took {format_step(fmean(wall))}." if wall else f"{own}."]
    growth = evidence.batch_growth
    if evidence.is_batch_growing:
        said.append(
            f"They are times of full batches of {growth.full_tokens:,} tokens; the smaller ones before step "
            f"{growth.full_from_step + 1:,} count in proportion to their tokens."
        )
    return said


def _describe_drift(drift: float | None) -> list[str]:
    if drift is None:
        return []
    how = "no drift" if abs(drift) < _NOTABLE_DRIFT else "a drift worth investigating"
    word = "slower" if drift >= 0 else "faster"
    return [f"The last quarter of the run is {abs(drift):.1%} {word} than the first: {how}."]


def _describe_outliers(findings: Findings) -> str:
    causes = explain_outliers(findings)
    if not causes:
        return "No interval stands out."
    by_cause = ", ".join(f"{count} {cause}" for cause, count in causes.items())
    number, whole = sum(causes.values()), counted(len(findings.evidence.step_seconds), "interval")
    return f"{number} of {whole} {'stands' if number == 1 else 'stand'} out: {by_cause}."


def explain_outliers(findings: Findings) -> dict[str, int]:
    """Counts slow intervals by their likely cause, the most frequent first."""
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
    events = {
        "with a restart": [restart.step for restart in evidence.restarts],
        "with an evaluation": [record.step for record in evidence.evaluations],
        "with a checkpoint": [record.step for record in evidence.checkpoints],
    }
    for cause, steps in events.items():
        # Our own evaluation at the last step of an interval is counted in that interval.
        is_end_included = cause == "with an evaluation" and not evidence.is_imported
        if any(begin <= step < end or (step == end and is_end_included) for step in steps):
            return cause
    if is_disturbed(timed_records(evidence)[index].load or []):
        return "while other programs used the cores"
    return "at the start" if index == 0 else "without a known cause"


def _slowest_intervals(findings: Findings) -> list[Table]:
    steps, seconds = curve(findings.evidence.train, "seconds_per_full_step")
    times = findings.step_times
    if times is None or not times.outliers:
        return []
    worst = sorted(times.outliers, key=lambda index: -seconds[index])[:_MAX_OUTLIERS_SHOWN]
    rows = [
        (
            f"{int(steps[index]):,}",
            format_step(float(seconds[index])),
            f"{seconds[index] / times.median:.2f} ×",
            _cause(findings, float(steps[index - 1]) if index else -1.0, float(steps[index]), index),
        )
        for index in sorted(worst)
    ]
    columns = ("up to step", "time per step", "relative to the median", "cause")
    return [Table("The slowest intervals", columns, rows, (0, 1, 2))]


def _step_time_chart(findings: Findings) -> Chart:
    steps, seconds = curve(findings.evidence.train, "seconds_per_step")
    series = [Series("seconds per step", steps.tolist(), seconds.tolist())]
    predicted = curve(findings.evidence.train, "predicted_seconds_per_step")
    if len(predicted[0]):
        series.append(Series("predicted", predicted[0].tolist(), predicted[1].tolist(), "dashed"))
    marks = [Mark(restart.step, "restart") for restart in findings.evidence.restarts[:MAX_MARKS]]
    return Chart("step-time", "Step time", "step", "seconds per step", series, marks, y_from_zero=True)


def attribution_chart(findings: Findings) -> Chart | None:
    """Parts of the step time, over the run."""
    rows = [(record.step, record.attribution) for record in findings.evidence.train if record.attribution]
    if len(rows) < 2:
        return None
    steps = [float(step) for step, _ in rows]
    series = []
    for name, label in PART_NAMES.items():
        values = [parts.get(name, 0.0) for _, parts in rows]
        if sum(values) > 0:
            series.append(Series(label, steps, values, "stack"))
    return Chart("attribution", "Parts of the step time", "step", "seconds per step", series, y_from_zero=True)
