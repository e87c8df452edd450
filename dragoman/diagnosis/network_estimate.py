"""Estimates whether the network was the bottleneck of a run without measurements, and states every assumption.

The bytes of a step follow from the number of parameters and ranks, and their time from the link. Computing is estimated
from the device and the batch. A step that takes far longer than computing, and about as long as its bytes need on the
link, waited for the network, even if its GPUs seemed fully busy.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from dragoman.diagnosis.hardware import Device, load_hardware
from dragoman.diagnosis.ports import describe_inside, describe_links, describe_port, fitting_port
from dragoman.diagnosis.slow_network import WaitingStep, describe_local_updates
from dragoman.diagnosis.software import find_speed, load_software, software_of
from dragoman.diagnosis.step_model import SHORTEST_STEP, Step, ring_bytes_per_node
from dragoman.diagnosis.verdict import Verdict
from dragoman.diagnosis.wording import format_step, join_words
from dragoman.model.shape import (
    PRESET_VOCAB_SIZE,
    ModelShape,
    count_operations,
    load_preset,
    training_flops_per_target_token,
)
from dragoman.run.errors import UsageError
from dragoman.run.units import format_bytes, format_rate

_FASTER_THAN_STATED = 1.15
"""If the bytes need more than this many times the step on the stated link, it was faster than stated."""
_NOT_THE_LINK = 2.5
"""If the bytes need more than this many times the step on the stated link, it was not the one that was used."""
_MOST_OF_A_STEP = 0.7
_EXPLAINED_SHARE = 0.6
"""Computing is the bottleneck from this share of a step on."""
_HARDLY_EXPLAINED = 0.5
"""If computing and the stated link together explain less of a step than this, one of the stated facts is wrong."""
TARGET_TOKENS_PER_SENTENCE = 30.5
"""Mean of WMT16 En-De as OpenSeq2Seq prepared it, from a log with tokens per second; for batches given in sentences."""
BYTES_PER_GRADIENT = 4
"""Frameworks sum in fp32, also where they compute in half precision, unless a trainer is known to send less."""
_FLOPS_PER_PARAMETER = 6
"""Forward and backward of one token, where the shape of the model is not known."""
BUSY_GPUS = (
    '"GPU 100 %" says only that some kernel was running: a kernel that waits for the network counts as busy, so it '
    "proves nothing here."
)
LowTypicalHigh = tuple[float, float, float]

ONE_WORKER = "The network was not the bottleneck: there was one worker, which exchanges nothing."


@dataclass(frozen=True)
class RunFacts:
    """Known facts about a run, from its log or from its user."""

    seconds_per_step: float
    parameters: int | None = None
    num_ranks: int | None = None
    num_nodes: int | None = None
    gradient_bytes: int = BYTES_PER_GRADIENT
    gpu: str | None = None
    precision: str = "fp32"
    link: str | None = None
    tokens_per_rank: float | None = None
    """Target tokens of one step on each rank."""
    shape: ModelShape | None = None
    assumptions: list[str] = field(default_factory=list)
    trainer: str | None = None
    """The program that trained, which decides what share of a device's peak it reaches."""


@dataclass(frozen=True)
class NetworkEstimate:
    """A verdict with the figures it follows from."""

    verdict: Verdict
    bytes_per_node: float | None
    """Bytes that a node sends, and receives, in one step."""
    link_seconds: float | None
    """Time that those bytes need on the link, if it is known."""
    compute_seconds: LowTypicalHigh | None
    assumptions: list[str]
    warnings: list[str] = field(default_factory=list)


def estimate_network(facts: RunFacts) -> NetworkEstimate:
    """Estimates from bytes per step, link speed and step time whether the network was the bottleneck."""
    if facts.num_ranks == 1 or facts.num_nodes == 1:
        return _without_network(facts)
    if _missing(facts) or facts.parameters is None or facts.num_ranks is None or facts.num_nodes is None:
        return _unknown(facts)
    num_bytes = ring_bytes(facts.parameters * facts.gradient_bytes, facts.num_ranks, facts.num_nodes)
    assumptions = [
        f"Gradients are sent with {facts.gradient_bytes} bytes per parameter, in one ring over all "
        f"{facts.num_ranks} ranks with the ranks of a machine next to each other.",
        *facts.assumptions,
    ]
    compute = _compute_seconds(facts)
    if facts.link is None:
        return _with_advice(facts, _without_link(facts, num_bytes, compute, assumptions))
    link = load_hardware().link(facts.link)
    assumptions.append(f"Each machine's link carries {format_rate(link.bytes_per_second)} in each direction.")
    link_seconds = num_bytes / (link.bytes_per_second * link.goodput.typical)
    return _with_advice(facts, _with_link(facts, num_bytes, link_seconds, compute, assumptions))


def _with_advice(facts: RunFacts, estimate: NetworkEstimate) -> NetworkEstimate:
    """Adds what local updates would have taken, where the network was the bottleneck and computing is known."""
    compute, num_bytes, seconds = estimate.compute_seconds, estimate.bytes_per_node, facts.seconds_per_step
    if estimate.verdict.bottleneck != "network" or compute is None or not num_bytes or not facts.parameters:
        return estimate
    computing = min(compute[1], seconds)
    gradient_bytes = facts.parameters * BYTES_PER_GRADIENT
    waiting = WaitingStep(seconds, computing, seconds, gradient_bytes, num_bytes, facts.num_nodes or 1)
    return replace(estimate, verdict=replace(estimate.verdict, advice=describe_local_updates(waiting)))


def ring_bytes(num_bytes: float, num_ranks: int, num_nodes: int) -> float:
    """Bytes that a machine sends, and receives, to sum gradients of a size over all ranks in a packed ring."""
    return ring_bytes_per_node(num_bytes, num_ranks, max(1, num_ranks // num_nodes))


def find_device(name: str) -> tuple[str, Device] | None:
    """Finds the device in a name that logs give it, such as "Tesla V100-PCIE-16GB"; None if it is not known."""
    return load_hardware().find_device(name)


def gpu_mismatch(stated: str | None, logged: Sequence[str]) -> str | None:
    """Says what is computed with where the log names other GPUs than the user states; None where they agree."""
    if not stated or not logged:
        return None
    found = find_device(stated)
    named = [find_device(name) for name in logged]
    if found is None or any(each is not None and _chip(each[0]) == _chip(found[0]) for each in named):
        return None
    return f"Computed for {found[0]} as stated; the log names {', '.join(dict.fromkeys(logged))}."


def _chip(device: str) -> str:
    """The chip without memory and socket: A100-40GB and A100-80GB compute alike."""
    return device.partition("-")[0] if not device.startswith("RTX") else device


def _compute_seconds(facts: RunFacts) -> LowTypicalHigh | None:
    found = find_device(facts.gpu) if facts.gpu else None
    if found is None or facts.tokens_per_rank is None or facts.tokens_per_rank <= 0 or not facts.parameters:
        return None
    name, device = found
    precision = "fp16" if facts.precision == "mixed" else facts.precision
    if precision not in device.peak_flops or facts.parameters <= 0:
        return None
    speed = find_speed(software_of(facts.trainer), name, device, precision)
    # A model whose shape is not known is taken to have six layers on each side.
    num_operations = count_operations(facts.shape or load_preset("transformer-base"))
    flops = float(_FLOPS_PER_PARAMETER * facts.parameters)
    if facts.shape is not None:
        flops = training_flops_per_target_token(facts.shape)
    products = facts.tokens_per_rank * flops
    low, typical, high = (
        products / speed.flops(end) + speed.fixed_seconds(num_operations, end) for end in ("high", "typical", "low")
    )
    return low, typical, high


def _waiting_step(facts: RunFacts, link_seconds: float, compute: LowTypicalHigh | None) -> Step:
    """The step split into waiting for the network and the rest: at most what the link needs and computing leaves."""
    computing = 0.0 if compute is None else compute[1]
    step = _split_step(facts, min(link_seconds, facts.seconds_per_step - computing))
    if (
        compute is not None
        and step.bottleneck != "network"
        and link_seconds >= _MOST_OF_A_STEP * facts.seconds_per_step
    ):
        # The bytes are certain and the time of computing is not: it may be at the low end of its range.
        return _split_step(facts, min(link_seconds, facts.seconds_per_step - compute[0]))
    return step


def _split_step(facts: RunFacts, waiting_seconds: float) -> Step:
    waiting = min(max(0.0, waiting_seconds), facts.seconds_per_step)
    return Step({"exposed_communication": waiting, "backward": facts.seconds_per_step - waiting})


def _with_link(
    facts: RunFacts, num_bytes: float, link_seconds: float, compute: LowTypicalHigh | None, assumptions: list[str]
) -> NetworkEstimate:
    needed = link_seconds / facts.seconds_per_step
    warnings = _doubts_about_link(facts, num_bytes, needed)
    if needed > _NOT_THE_LINK:
        # A link that cannot have been used proves nothing; the verdict must not ask for the link again.
        estimate = _without_link(facts, num_bytes, compute, assumptions)
        return replace(estimate, link_seconds=link_seconds, warnings=warnings)
    evidence = [
        _describe_bytes(facts, num_bytes),
        f"At {format_rate(num_bytes / link_seconds)} of payload they need {format_step(link_seconds)}; a step took "
        f"{format_step(facts.seconds_per_step)}.",
        *_describe_computing(facts, compute),
    ]
    step = _waiting_step(facts, link_seconds, compute)
    if step.bottleneck == "network":
        verdict = _network_bound(facts, num_bytes, needed, step, compute, evidence, bool(warnings))
    elif compute is not None and compute[2] >= _EXPLAINED_SHARE * facts.seconds_per_step:
        verdict = _compute_bound(facts, needed, step, compute, evidence)
    else:
        verdict = _partly_explained(facts, num_bytes, link_seconds, compute, evidence)
    return NetworkEstimate(verdict, num_bytes, link_seconds, compute, assumptions, warnings)


def _partly_explained(
    facts: RunFacts, num_bytes: float, link_seconds: float, compute: LowTypicalHigh | None, evidence: list[str]
) -> Verdict:
    """The verdict where neither the stated link nor computing fills a step."""
    seconds = facts.seconds_per_step
    computing = 0.0 if compute is None else compute[1]
    explained = (link_seconds + computing) / seconds
    rest = (
        f"What took the other {1 - explained:.0%} of a step, the log does not show: reading data, evaluations, "
        "checkpoints, a slow rank or a slower link are possible."
    )
    if explained >= _HARDLY_EXPLAINED:
        why = (
            f"The network was probably not the bottleneck: on this link its bytes need {link_seconds / seconds:.0%} of "
            f"a step. {rest}"
        )
        return Verdict("unknown", 1 - explained, 0.4, why, evidence)
    return _slower_than_stated(facts, num_bytes, explained, compute, [*evidence, rest])


def _slower_than_stated(
    facts: RunFacts, num_bytes: float, explained: float, compute: LowTypicalHigh | None, evidence: list[str]
) -> Verdict:
    """The verdict where the stated facts explain little: the port speed that would, and how likely that is."""
    causes = "the bytes explain" if compute is None else "computing and the bytes explain"
    begin = f"at the stated {facts.link}, {causes} only {explained:.0%} of a step"
    computing = 0.0 if compute is None else compute[1]
    port = fitting_port(num_bytes, facts.seconds_per_step, computing)
    if port is None:
        rate = format_rate(num_bytes / (facts.seconds_per_step - computing))
        why = (
            f"Cannot say whether the network was the bottleneck: {begin}. Either the link was slower than stated "
            f"(about {rate} would explain the rest), or something that the log does not show took the time. Measure "
            "the link with iperf3."
        )
        return Verdict("unknown", 1 - explained, 0.0, why, evidence)
    why = (
        f"The run was probably network-bound, and the link slower than stated: {begin}, and "
        f"{describe_port(port, num_bytes)}."
    )
    step = _split_step(facts, facts.seconds_per_step - computing)
    check = "Measure the link with iperf3 between the machines, or with dragoman check."
    confidence = 0.5 if compute is None else 0.55
    return Verdict("network", step.costs.share("network"), confidence, why, [*evidence, check], [BUSY_GPUS])


def _compute_bound(facts: RunFacts, needed: float, step: Step, compute: LowTypicalHigh, evidence: list[str]) -> Verdict:
    if needed >= _MOST_OF_A_STEP:
        why = (
            f"The run was probably compute-bound: its bytes need {needed:.0%} of a step on this link, but computing "
            f"alone takes about {format_step(compute[1])} and can hide most of that."
        )
        confidence = 0.5
    else:
        why = f"The run is compute-bound: its bytes need only {needed:.0%} of a step on this link."
        confidence = 0.7 if compute[1] >= _EXPLAINED_SHARE * facts.seconds_per_step else 0.5
    return Verdict("compute", step.costs.share("compute"), confidence, why, evidence)


def _doubts_about_link(facts: RunFacts, num_bytes: float, needed: float) -> list[str]:
    seconds = facts.seconds_per_step
    if needed <= _FASTER_THAN_STATED:
        return []
    return [
        f"{format_bytes(num_bytes)} per step cannot have been sent over {facts.link} in {format_step(seconds)}: the "
        f"link was faster than stated (at least {format_rate(num_bytes / seconds)}), or fewer bytes were sent than in "
        "a ring of uncompressed gradients. Measure it with dragoman check, or with iperf3 between the machines."
    ]


def _network_bound(
    facts: RunFacts,
    num_bytes: float,
    needed: float,
    step: Step,
    compute: LowTypicalHigh | None,
    evidence: list[str],
    is_doubtful: bool,
) -> Verdict:
    share = step.costs.share("network")
    gain = "" if compute is None else f"; by computing alone a step would take about {format_step(compute[1])}"
    if is_doubtful:
        why = (
            f"The run was most likely network-bound: at the stated {facts.link} its bytes would need more time than "
            f"a whole step took, so the link was busy all the time and still faster than stated{gain}."
        )
        confidence = 0.6
    else:
        why = f"The run is network-bound: its bytes need {min(1.0, needed):.0%} of a step's time on this link{gain}."
        confidence = 0.9 if needed >= _MOST_OF_A_STEP else 0.7
    waiting = f"So about {share:.0%} of each {format_step(step.seconds)} step was waiting for the network."
    return Verdict(
        "network",
        share,
        confidence,
        why,
        [*evidence, waiting, describe_links(num_bytes, compute[1] if compute else None)],
        [BUSY_GPUS],
    )


def _without_link(
    facts: RunFacts, num_bytes: float, compute: LowTypicalHigh | None, assumptions: list[str]
) -> NetworkEstimate:
    """The estimate where the link is not known, or cannot have been the stated one."""
    seconds = facts.seconds_per_step
    evidence = [
        _describe_bytes(facts, num_bytes),
        f"If the network was never idle it carried {format_rate(num_bytes / seconds)}; on any slower link a step would "
        f"have taken longer than the {format_step(seconds)} it did.",
        *_describe_computing(facts, compute),
    ]
    if compute is None or compute[2] > seconds:
        verdict = Verdict(
            "unknown", 0.0, 0.0, f"Cannot say whether the network was the bottleneck: {_ask(facts)}", evidence
        )
        return NetworkEstimate(verdict, num_bytes, None, compute, assumptions)
    step = _split_step(facts, seconds - compute[1])
    share = step.costs.share(step.bottleneck)
    if step.bottleneck == "network":
        why = (
            f"The run was probably network-bound: computing explains about {format_step(compute[1])} of a "
            f"{format_step(seconds)} step, and the network is what all ranks share."
        )
        port = fitting_port(num_bytes, seconds, compute[1])
        evidence += [f"For example, {describe_port(port, num_bytes)}."] if port else []
        evidence.append(describe_links(num_bytes, compute[1] if compute else None))
        verdict = Verdict("network", share, 0.55, why, evidence, [BUSY_GPUS])
    else:
        why = f"The run was probably compute-bound: computing explains {share:.0%} of a step."
        verdict = Verdict("compute", share, 0.5, why, evidence)
    return NetworkEstimate(verdict, num_bytes, None, compute, assumptions)


def _ask(facts: RunFacts) -> str:
    """Says what would have to be known about the link."""
    if facts.link is None:
        return "the speed of the link is not known; give it with --link, for example --link 1000Mbit."
    return f"the link was not the stated {facts.link}, and its real speed is not known; measure it with iperf3."


def _without_network(facts: RunFacts) -> NetworkEstimate:
    """The estimate for ranks that are all on one machine."""
    if facts.num_ranks == 1:
        why = ONE_WORKER
    else:
        why = (
            "The network was not the bottleneck: all ranks were on one machine, so gradients went over its PCI Express "
            f"or NVLink, not over a network.{_inside_a_machine(facts)}"
        )
    compute = _compute_seconds(facts)
    if compute is not None and compute[1] >= _EXPLAINED_SHARE * facts.seconds_per_step > 0:
        share = min(1.0, compute[1] / facts.seconds_per_step)
        verdict = Verdict("compute", share, 0.5, f"{why} Computing explains {share:.0%} of a step.")
    else:
        verdict = Verdict("unknown", 0.0, 0.6, f"{why} The log does not show what took the {_rest(facts, compute)}.")
    return NetworkEstimate(verdict, 0.0, 0.0, compute, facts.assumptions)


def _inside_a_machine(facts: RunFacts) -> str:
    if not facts.parameters or not facts.num_ranks or facts.parameters < 0 or facts.num_ranks < 2:
        return ""
    return f" {describe_inside(ring_bytes_per_node(facts.parameters * facts.gradient_bytes, facts.num_ranks))}"


def _rest(facts: RunFacts, compute: LowTypicalHigh | None) -> str:
    if compute is None or facts.seconds_per_step < SHORTEST_STEP:
        return "time"
    return (
        f"other {1 - compute[1] / facts.seconds_per_step:.0%} of the time: computing explains {format_step(compute[1])}"
    )


def _unknown(facts: RunFacts) -> NetworkEstimate:
    missing = _missing(facts)
    are = "is" if len(missing) == 1 else "are"
    why = f"Cannot say whether the network was the bottleneck: {join_words(missing)} {are} not known."
    return NetworkEstimate(Verdict("unknown", 0.0, 0.0, why), None, None, None, facts.assumptions)


def _missing(facts: RunFacts) -> list[str]:
    """Names what must be known and is not; zero and negative numbers count as unknown."""
    figures = {
        "the time of a step": facts.seconds_per_step if facts.seconds_per_step >= SHORTEST_STEP else None,
        "the number of parameters": facts.parameters,
        "the number of ranks (--gpus-per-node)": facts.num_ranks,
        "the number of machines (--nodes)": facts.num_nodes,
    }
    return [name for name, value in figures.items() if value is None or value <= 0]


def _describe_bytes(facts: RunFacts, num_bytes: float) -> str:
    ranks = facts.num_ranks or 1
    return (
        f"Each machine sends and receives {format_bytes(num_bytes)} per step: 2 × ({ranks} − 1) / {ranks} × "
        f"{facts.parameters:,} parameters × {facts.gradient_bytes} bytes."
    )


def _describe_computing(facts: RunFacts, compute: LowTypicalHigh | None) -> list[str]:
    found = find_device(facts.gpu) if facts.gpu else None
    if compute is None or found is None:
        return []
    low, typical, high = map(format_step, compute)
    about = load_software(software_of(facts.trainer)).about
    return [f"Computing alone takes about {typical} per step on {found[0]} ({low} to {high}), at the speed of {about}."]


def tokens_of_sentences(num_sentences: float) -> float:
    """Estimates the target tokens of a batch of sentences."""
    return num_sentences * TARGET_TOKENS_PER_SENTENCE


def shape_of(
    width: int, feed_forward: int, heads: int, encoder_layers: int, decoder_layers: int, vocab_size: int | None
) -> ModelShape | None:
    """Builds a model shape from the numbers of a log; None if they do not fit together."""
    size = vocab_size or PRESET_VOCAB_SIZE
    try:
        return ModelShape(width, feed_forward, heads, encoder_layers, decoder_layers, 0.0, 0.0, 0.0, size, size)
    except (UsageError, ZeroDivisionError):
        return None
