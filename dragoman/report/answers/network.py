"""Questions 5 and 11: was the network the bottleneck, and how do step time and traffic go together?"""

import numpy as np

from dragoman.diagnosis.hardware import load_hardware
from dragoman.diagnosis.network_estimate import BYTES_PER_GRADIENT, ring_bytes
from dragoman.diagnosis.verdict import Verdict
from dragoman.report.evidence import Floats, table
from dragoman.report.findings import Findings
from dragoman.report.parts import Answer, Chart, Mark, Series
from dragoman.run.status import number_or_none
from dragoman.run.units import format_bytes, format_rate

BOTTLENECK = "Was the network the bottleneck?"
TRAFFIC = "How does the step time relate to the network traffic between nodes?"
FEWEST_PAIRS = 3
BYTES_PER_MEGABYTE = 1e6


def answer_network(findings: Findings) -> Answer:
    """The verdict with its evidence; without measurements, by arithmetic with its assumptions."""
    verdict = findings.verdict
    is_measured = bool(verdict.parts)
    sentences = [*verdict.evidence, *verdict.misleading]
    estimate = findings.network
    if not is_measured and estimate is not None and findings.evidence.is_foreign:
        sentences += [*estimate.warnings, *(f"Assumed: {sentence}" for sentence in estimate.assumptions)]
    missing = [] if is_measured else [_what_to_measure(findings)]
    return Answer(BOTTLENECK, _short_answer(verdict), sentences, verdict.confidence, missing=missing)


def _short_answer(verdict: Verdict) -> str:
    # What held a run back may be unknown, and yet that it was not the network be known.
    if verdict.bottleneck == "unknown" and not verdict.confidence:
        return verdict.why
    return f"{'Yes' if verdict.bottleneck == 'network' else 'No'}. {verdict.why}"


def _what_to_measure(findings: Findings) -> str:
    known = findings.evidence.known
    asked = [
        name
        for name, value in (
            ("--nodes", known.nodes or findings.evidence.num_nodes),
            ("--gpus-per-node", known.gpus_per_node or findings.evidence.num_ranks),
            ("--gpu", known.gpu or findings.evidence.facts.get("gpus")),
            ("--link", known.link),
        )
        if not value
    ]
    hint = f" Tell what you know with {', '.join(asked)}." if asked and findings.evidence.is_foreign else ""
    return (
        "No step of this run was taken apart: waiting for the network was not measured. Next time log the bytes of the "
        f"interface that NCCL uses, every second, or train with dragoman, which does both.{hint}"
    )


def answer_traffic(findings: Findings) -> Answer:
    """A scatter plot, the correlation, and bytes per step measured against theory."""
    seconds, rates = _pairs(findings)
    theory = _bytes_in_theory(findings)
    if len(seconds) < FEWEST_PAIRS:
        return _unmeasured(findings, theory)
    bytes_per_step = float(np.median(seconds * rates))
    correlation = findings.verdict.network_correlation
    sentences = [f"The busiest interface carried {format_rate(float(np.mean(rates)))} in its busier direction."]
    if correlation is not None:
        sentences.append(f"Step time and traffic have a correlation of {correlation:+.2f}: {_explain(correlation)}")
    if theory:
        ratio = bytes_per_step / theory
        sentences.append(
            f"A step carried {format_bytes(bytes_per_step)}, by theory {format_bytes(theory)}: {ratio:.0%}"
            + (", headers and other traffic included." if ratio >= 0.9 else ", so not every byte went over it.")
        )
        answer = f"Each step moves {format_bytes(bytes_per_step)} over the busiest interface, {ratio:.0%} of theory."
    elif (findings.evidence.num_ranks or 1) == 1:
        answer = "There was one worker: no gradients crossed a network."
    elif (findings.evidence.num_nodes or 1) == 1:
        answer = (
            f"All workers were on one machine: no gradients crossed a network; {format_bytes(bytes_per_step)} a step "
            "went through the machine's own interface."
        )
    else:
        answer = f"Each step moves {format_bytes(bytes_per_step)} over the busiest interface."
    return Answer(TRAFFIC, answer, sentences, 0.9 if theory else 0.7, [_scatter(seconds, rates, theory)])


def _explain(correlation: float) -> str:
    if correlation <= -0.3:
        return "slow steps have a lower rate, as where a fixed number of bytes waits for something else."
    if correlation >= 0.3:
        return "slow steps carry more."
    return "the one hardly tells the other."


def _pairs(findings: Findings) -> tuple[Floats, Floats]:
    """Seconds per step and bytes a second of intervals that have both."""
    found = []
    for record in findings.evidence.train:
        seconds, traffic = number_or_none(record.get("seconds_per_step")), table(record.get("traffic"))
        names = ("sent_bytes_per_second", "received_bytes_per_second")
        rates = [rate for name in names if (rate := number_or_none(traffic.get(name))) is not None]
        if seconds is not None and rates:
            found.append((seconds, max(rates)))
    pairs = np.array(found, dtype=np.float64).reshape(-1, 2)
    return pairs[:, 0], pairs[:, 1]


def _bytes_in_theory(findings: Findings) -> float | None:
    evidence = findings.evidence
    if findings.network is not None and evidence.is_foreign:
        return findings.network.bytes_per_node or None
    if not (evidence.parameters and evidence.num_ranks and evidence.num_nodes):
        return None
    return ring_bytes(evidence.parameters * BYTES_PER_GRADIENT, evidence.num_ranks, evidence.num_nodes) or None


def _unmeasured(findings: Findings, theory: float | None) -> Answer:
    missing = ["Traffic was not recorded beside the steps; dragoman samples every interface once a second."]
    if (findings.evidence.num_ranks or 0) == 1:
        return Answer(TRAFFIC, "There was one worker: no gradients crossed a network.", confidence=1.0)
    if theory is None or findings.step_times is None:
        return Answer(TRAFFIC, "That was not measured.", missing=missing)
    rate = theory / findings.step_times.median
    answer = (
        f"By theory each step moves {format_bytes(theory)} in and out of each machine; the traffic was not measured."
    )
    sentences = [
        f"At {findings.step_times.median:.3g} s a step that is {format_rate(rate)} in each direction, on average.",
        "The bytes of a step are fixed by the model: on a slower link they take longer, so step time goes up in "
        "proportion once the link is the limit.",
    ]
    chart = _link_chart(findings, theory, findings.step_times.median)
    return Answer(TRAFFIC, answer, sentences, 0.5, [chart], missing=missing)


def _link_chart(findings: Findings, theory: float, step_seconds: float) -> Chart:
    """How long the bytes of a step need on links of any speed, beside how long the step took."""
    rates = [megabits * 1e6 / 8 for megabits in (100, 1_000, 10_000, 100_000)]
    speeds = [rate / BYTES_PER_MEGABYTE for rate in rates]
    series = [
        Series("time that the bytes alone need", speeds, [theory / rate for rate in rates]),
        Series("a step of this run", speeds, [step_seconds] * len(speeds), "dashed"),
    ]
    marks = []
    if findings.evidence.known.link is not None:
        rate = load_hardware().link(findings.evidence.known.link).bytes_per_second
        marks.append(Mark(rate / BYTES_PER_MEGABYTE, f"stated: {findings.evidence.known.link}"))
    note = (
        "Left of where the lines cross a link cannot carry this run; at the crossing it is all that the run waits for."
    )
    labels = ("MB/s (× 8 = Mbit/s)", "seconds per step")
    return Chart("traffic", "Step time against link speed", *labels, series, marks, True, True, note=note)


def _scatter(seconds: Floats, rates: Floats, theory: float | None) -> Chart:
    megabytes = rates / BYTES_PER_MEGABYTE
    series = [Series("logged intervals", megabytes.tolist(), seconds.tolist(), "points")]
    positive = megabytes[megabytes > 0]
    if theory and len(positive):
        along = np.linspace(float(positive.min()), float(positive.max()), 50)
        needed = theory / BYTES_PER_MEGABYTE / along
        is_shown = needed <= 3 * float(seconds.max())
        series.append(Series("bytes in theory / rate", along[is_shown].tolist(), needed[is_shown].tolist(), "dashed"))
    return Chart(
        "traffic",
        "Step time against traffic",
        "MB/s in the busier direction (× 8 = Mbit/s)",
        "seconds per step",
        series,
        y_from_zero=True,
        note="Points near the dashed line: all of a step's time its bytes were on their way.",
    )
