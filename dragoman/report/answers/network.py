"""Questions 5 and 11: was the network the bottleneck, and how are step time and traffic related?"""

import numpy as np

from dragoman.diagnosis.hardware import load_hardware
from dragoman.diagnosis.network_estimate import BYTES_PER_GRADIENT, gpu_mismatch, ring_bytes
from dragoman.diagnosis.traffic import FEWEST_FOR_CORRELATION, FOREIGN_FACTOR
from dragoman.diagnosis.verdict import Verdict
from dragoman.report.content import Answer, Chart, Mark, Series
from dragoman.report.evidence import Floats
from dragoman.report.findings import Findings
from dragoman.run.units import format_bytes, format_rate

_BOTTLENECK = "Was the network the bottleneck?"
_TRAFFIC = "How does the step time relate to the network traffic between nodes?"
_NOT_KNOWN = "Not known"
_SURE = 0.6
"""Confidence from which an estimate is given without "probably"."""
_FEWEST_PAIRS = 3
_BYTES_PER_MEGABYTE = 1e6
ONE_WORKER = "There was one worker: no gradients crossed a network."
_ONE_MACHINE = "All workers were on one machine: gradients went over its PCI Express or NVLink, not over a network."


def answer_network(findings: Findings) -> Answer:
    """The verdict with its evidence; without measurements, an estimate with its assumptions."""
    verdict, estimate = findings.verdict, findings.network
    is_measured = bool(verdict.parts)
    evidence = [*verdict.evidence, *verdict.misleading]
    if not is_measured and estimate is not None and findings.evidence.is_imported:
        mismatch = gpu_mismatch(findings.evidence.known.gpu, findings.evidence.facts.gpus or [])
        evidence += [*([mismatch] if mismatch else []), *estimate.warnings]
        evidence += [f"Assumed: {assumption}" for assumption in estimate.assumptions]
    missing = [] if is_measured else [_what_to_measure(findings)]
    evidence += verdict.advice
    short = _short_answer(verdict)
    answer = verdict.why if short == _NOT_KNOWN else f"{short}. {verdict.why}"
    return Answer(_BOTTLENECK, answer, evidence, verdict.confidence, missing=missing, short=short)


def _short_answer(verdict: Verdict) -> str:
    """Yes or No, with Probably where it is not certain; the cause may be unknown while the network is ruled out."""
    if not verdict.is_known and not verdict.confidence:
        return _NOT_KNOWN
    is_sure = bool(verdict.parts) or verdict.confidence >= _SURE
    if verdict.bottleneck == "network":
        return "Yes" if is_sure else "Probably"
    return "No" if is_sure else "Probably not"


def _what_to_measure(findings: Findings) -> str:
    evidence = findings.evidence
    stated = {
        "--nodes": evidence.known.nodes or evidence.num_nodes,
        "--gpus-per-node": evidence.known.gpus_per_node or evidence.num_ranks,
        "--gpu": evidence.known.gpu or evidence.facts.gpus,
        "--link": evidence.known.link,
    }
    options = [option for option, value in stated.items() if not value]
    hint = f" Pass what you know with {', '.join(options)}." if options and evidence.is_imported else ""
    return (
        "The time that steps waited for the network was not measured. Next time log the bytes of the interface that "
        f"NCCL uses, every second, or train with dragoman, which measures both.{hint}"
    )


def answer_traffic(findings: Findings) -> Answer:
    """A scatter plot, the correlation, and measured bytes per step against theory."""
    seconds, rates = _pairs(findings)
    theory = _bytes_in_theory(findings)
    if findings.evidence.num_ranks == 1:
        return Answer(_TRAFFIC, ONE_WORKER, confidence=1.0, short="No traffic")
    if len(seconds) < _FEWEST_PAIRS:
        return _traffic_unmeasured(findings, theory)
    bytes_per_step = float(np.median(seconds * rates))
    moved = f"Each step moves {format_bytes(bytes_per_step)} over the busiest interface"
    evidence = [
        f"The busiest interface carried {format_rate(float(np.mean(rates)))} in its busier direction.",
        _describe_correlation(findings.verdict.network_correlation, len(seconds)),
    ]
    if theory:
        ratio = bytes_per_step / theory
        evidence.append(
            f"Measured: {format_bytes(bytes_per_step)} per step. In theory: {format_bytes(theory)}. That is "
            f"{ratio:.0%}, {_explain_ratio(ratio)}."
        )
        answer = f"{moved}, {ratio:.0%} of the theoretical amount."
    elif (findings.evidence.num_nodes or 1) == 1:
        answer = (
            "All workers were on one machine, so gradients did not leave it. Each step moved "
            f"{format_bytes(bytes_per_step)} through the machine's own interface."
        )
    else:
        answer = f"{moved}."
    short, chart = f"{format_bytes(bytes_per_step)} per step", _scatter(seconds, rates, theory)
    return Answer(_TRAFFIC, answer, evidence, 0.9 if theory else 0.7, [chart], short=short)


def _explain_ratio(ratio: float) -> str:
    if ratio >= FOREIGN_FACTOR:
        return f"so other programs used the network too: about {1 - 1 / ratio:.0%} of the traffic is theirs"
    return "headers and other traffic included" if ratio >= 0.9 else "so some bytes went over other interfaces"


def _describe_correlation(correlation: float | None, num_pairs: int) -> str:
    if correlation is not None:
        return f"The correlation of step time and traffic is {correlation:+.2f}: {_explain(correlation)}"
    if num_pairs < FEWEST_FOR_CORRELATION:
        return f"{num_pairs} intervals are too few to relate step time and traffic."
    return "Step time and traffic show no relation beyond chance, or the traffic is not the run's alone."


def _explain(correlation: float) -> str:
    if correlation <= -0.3:
        return "slow steps have a lower rate, because the same number of bytes takes longer."
    if correlation >= 0.3:
        return "slow steps carry more bytes."
    return "they are hardly related."


def _pairs(findings: Findings) -> tuple[Floats, Floats]:
    """Seconds per step and bytes per second of intervals that have both."""
    found = [
        (record.seconds_per_step, rate)
        for record in findings.evidence.train
        if record.seconds_per_step is not None
        and record.traffic is not None
        and (rate := record.traffic.busier_direction) is not None
    ]
    pairs = np.array(found, dtype=np.float64).reshape(-1, 2)
    return pairs[:, 0], pairs[:, 1]


def _bytes_in_theory(findings: Findings) -> float | None:
    evidence = findings.evidence
    if findings.network is not None and evidence.is_imported:
        return findings.network.bytes_per_node or None
    if not (evidence.parameters and evidence.num_ranks and evidence.num_nodes):
        return None
    return ring_bytes(evidence.parameters * BYTES_PER_GRADIENT, evidence.num_ranks, evidence.num_nodes) or None


def _traffic_unmeasured(findings: Findings, theory: float | None) -> Answer:
    if findings.evidence.num_nodes == 1:
        return Answer(_TRAFFIC, _ONE_MACHINE, confidence=0.9, short="No traffic between nodes")
    missing = ["Traffic was not recorded with the steps; dragoman samples every interface once per second."]
    if theory is None or findings.step_times is None:
        return Answer(_TRAFFIC, "Not measured.", missing=missing, short="Not measured")
    step_seconds = findings.step_times.median
    answer = f"Not measured; in theory each step moves {format_bytes(theory)} in and out of each machine."
    evidence = [
        f"At {step_seconds:.3g} s per step that is {format_rate(theory / step_seconds)} in each direction, on average.",
        "The model fixes the bytes of a step: on a slower link they take longer, so the step time grows in proportion "
        "once the link is the limit.",
    ]
    short, chart = f"{format_bytes(theory)} per step in theory", _link_chart(findings, theory, step_seconds)
    return Answer(_TRAFFIC, answer, evidence, 0.5, [chart], missing=missing, short=short)


def _link_chart(findings: Findings, theory: float, step_seconds: float) -> Chart:
    """Time that the bytes of a step need on links of any speed, beside the measured step time."""
    rates = [megabits * 1e6 / 8 for megabits in (100, 1_000, 10_000, 100_000)]
    speeds = [rate / _BYTES_PER_MEGABYTE for rate in rates]
    series = [
        Series("time for the bytes alone", speeds, [theory / rate for rate in rates]),
        Series("step time of this run", speeds, [step_seconds] * len(speeds), "dashed"),
    ]
    marks = []
    link = findings.evidence.known.link
    if link is not None:
        rate = load_hardware().link(link).bytes_per_second
        marks.append(Mark(rate / _BYTES_PER_MEGABYTE, f"stated: {link}"))
    note = (
        "Links to the left of the crossing are too slow for this run; at the crossing, the link alone sets the step "
        "time."
    )
    labels = ("MB/s (× 8 = Mbit/s)", "seconds per step")
    return Chart("traffic", "Step time against link speed", *labels, series, marks, True, True, note=note)


def _scatter(seconds: Floats, rates: Floats, theory: float | None) -> Chart:
    megabytes = rates / _BYTES_PER_MEGABYTE
    series = [Series("logged intervals", megabytes.tolist(), seconds.tolist(), "points")]
    positive = megabytes[megabytes > 0]
    if theory and len(positive):
        along = np.linspace(float(positive.min()), float(positive.max()), 50)
        needed = theory / _BYTES_PER_MEGABYTE / along
        is_shown = needed <= 3 * float(seconds.max())
        series.append(Series("theoretical bytes / rate", along[is_shown].tolist(), needed[is_shown].tolist(), "dashed"))
    return Chart(
        "traffic",
        "Step time against traffic",
        "MB/s in the busier direction (× 8 = Mbit/s)",
        "seconds per step",
        series,
        y_from_zero=True,
        note="Near the dashed line, data was in transit during the whole step." if len(series) > 1 else "",
    )
