"""Question 4: were the GPUs, or the processors, fully used?"""

from dragoman.diagnosis.network_estimate import BUSY_GPUS
from dragoman.diagnosis.verdict import BUSY_SHARE
from dragoman.report.evidence import table
from dragoman.report.findings import Findings
from dragoman.report.parts import Answer, Chart, Series, Table
from dragoman.run.status import number_or_none

QUESTION = "Were the GPUs fully used?"
MAX_LINES = 8
"""In a chart: more could not be told apart."""


def answer_devices(findings: Findings) -> Answer:
    """Utilisation over time, and what part of it was waiting."""
    machines, verdict = findings.machines, findings.verdict
    devices = machines.gpus or machines.devices
    means = {name: mean for name, values in devices.items() if (mean := machines.mean(values)) is not None}
    if not means:
        return _unmeasured(findings)
    kind = "GPUs" if machines.gpus else "processors (there was no GPU)"
    overall = sum(means.values()) / len(means)
    waiting = verdict.parts.get("exposed_communication", 0.0) + verdict.parts.get("straggler", 0.0)
    waiting += verdict.parts.get("data", 0.0)
    total = sum(verdict.parts.values())
    useful = f", and {waiting / total:.0%} of each step was waiting" if total else ""
    how = "busy nearly all the time" if overall >= BUSY_SHARE else "not busy all the time"
    answer = f"The {kind} were {how}: {overall:.0%} on average{useful}."
    sentences = [f"{name}: {mean:.0%} on average." for name, mean in list(means.items())[:MAX_LINES]]
    sentences += [*_efficiency(findings), *verdict.misleading]
    if machines.gpus:
        sentences.append("Utilisation counts the time in which any kernel ran, waiting ones included: " + BUSY_GPUS)
    rows = [(name, f"{mean:.1%}") for name, mean in means.items()]
    tables = [Table("Mean utilisation", ("device", "busy"), rows, (1,))] if len(rows) > 1 else []
    return Answer(QUESTION, answer, sentences, 0.9, [_chart(findings, devices)], tables, machines.notes[:3])


def _efficiency(findings: Findings) -> list[str]:
    shares = [number_or_none(record.get("efficiency")) for record in findings.evidence.train]
    known = [share for share in shares if share is not None]
    if not known:
        return []
    return [f"Forward and backward reached {sum(known) / len(known):.0%} of the peak that was measured for products."]


def _chart(findings: Findings, devices: dict[str, list[float | None]]) -> Chart:
    seconds = findings.machines.seconds
    hours = [second / 3600 for second in seconds] if seconds[-1] > 7200 else [second / 60 for second in seconds]
    unit = "hours" if seconds[-1] > 7200 else "minutes"
    series = [
        Series(name, hours, [None if value is None else 100 * value for value in values])
        for name, values in list(devices.items())[:MAX_LINES]
    ]
    return Chart("utilisation", "Utilisation", f"{unit} since the start", "busy, %", series, y_from_zero=True)


def _unmeasured(findings: Findings) -> Answer:
    facts = findings.evidence.facts
    gpus = facts.get("gpus")
    which = f" ({', '.join(map(str, gpus[:4]))})" if isinstance(gpus, list) and gpus else ""
    estimate = findings.network
    sentences = [BUSY_GPUS]
    answer, confidence = f"That was not measured{which}.", 0.0
    if estimate is not None and estimate.compute_seconds is not None and findings.step_times is not None:
        share = min(1.0, estimate.compute_seconds[1] / findings.step_times.median)
        answer = f"Not measured, but by arithmetic computing fills about {share:.0%} of a step{which}."
        confidence = 0.4
        low, high = estimate.compute_seconds[0], estimate.compute_seconds[2]
        sentences.append(f"Computing takes {low:.2g} to {high:.2g} s of a {findings.step_times.median:.3g} s step.")
    utilisation = [table(record.get("utilisation")) for record in findings.evidence.train]
    missing = [] if any(utilisation) else ["Utilisation over time was not recorded; dragoman samples it every second."]
    return Answer(QUESTION, answer, sentences, confidence, missing=missing)
