"""Was the network the bottleneck of a run that nobody measured? By arithmetic, with every assumption said.

What travels in a step is known from the number of parameters and ranks; how long that takes, from the link. Computing
is estimated from the device and the batch. A step that takes far longer than computing, and about as long as its bytes
need on the link, waited for the network, whatever the utilisation of its GPUs said.
"""

from dataclasses import dataclass, field, replace

from dragoman.diagnosis.hardware import Device, load_hardware
from dragoman.diagnosis.step_model import BINDING_SHARE, ring_bytes_per_node
from dragoman.diagnosis.verdict import SHORTEST_STEP, Verdict
from dragoman.diagnosis.wording import format_step
from dragoman.model.shape import PRESET_VOCAB_SIZE, ModelShape, training_flops_per_target_token
from dragoman.run.errors import UsageError
from dragoman.run.units import format_bytes, format_rate

FASTER_THAN_STATED = 1.15
"""Bytes that need so many times the step's time on a link cannot have gone over it."""
NOT_THE_LINK = 2.5
"""Bytes that need so many times the step's time say that the stated link is simply not the one."""
MOST_OF_A_STEP = 0.7
EXPLAINED_SHARE = 0.6
"""Of a step, from which on computing is called its bottleneck."""
TARGET_TOKENS_PER_SENTENCE = 30.5
"""Of the seeds' corpus, by a log that states tokens per second: an assumption for batches counted in sentences."""
BYTES_PER_GRADIENT = 4
"""Unless a trainer is known to send less: frameworks sum in fp32, also where they compute in half precision."""
FLOPS_PER_PARAMETER = 6
"""Of forward and backward, for each token, where the shape of the model is not known."""
BETTER_LINKS = ("10gbit", "25gbit", "100gbit")
BUSY_GPUS = (
    '"GPU 100 %" says only that some kernel was running: a kernel that waits for the network counts as busy, so it '
    "proves nothing here."
)


@dataclass(frozen=True)
class Setting:
    """What is known of a run, from its log or from a person."""

    seconds_per_step: float
    parameters: int | None = None
    num_ranks: int | None = None
    num_nodes: int | None = None
    gradient_bytes: int = BYTES_PER_GRADIENT
    gpu: str | None = None
    precision: str = "fp32"
    link: str | None = None
    tokens_per_rank: float | None = None
    """Target tokens that each rank learns from in a step."""
    shape: ModelShape | None = None
    assumptions: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class NetworkEstimate:
    """What follows."""

    verdict: Verdict
    bytes_per_node: float | None
    """That a node sends, and receives, in one step."""
    link_seconds: float | None
    """That those bytes need on the link, if it is known."""
    compute_seconds: tuple[float, float, float] | None
    """Low, typical and high."""
    assumptions: list[str]
    warnings: list[str] = field(default_factory=list)


def estimate_network(setting: Setting) -> NetworkEstimate:
    """Judges from bytes per step, link speed and step time."""
    if setting.num_ranks == 1 or setting.num_nodes == 1:
        return _without_network(setting)
    if _missing(setting) or setting.parameters is None or setting.num_ranks is None or setting.num_nodes is None:
        return _unknown(setting)
    num_bytes = ring_bytes(setting.parameters * setting.gradient_bytes, setting.num_ranks, setting.num_nodes)
    compute = _compute_seconds(setting)
    assumptions = [
        f"Gradients travel with {setting.gradient_bytes} bytes for each parameter, in one ring over all "
        f"{setting.num_ranks} ranks with the ranks of a machine next to each other.",
        *setting.assumptions,
    ]
    if setting.link is None:
        return _without_link(setting, num_bytes, compute, assumptions)
    facts = load_hardware().link(setting.link)
    seconds = num_bytes / (facts.bytes_per_second * facts.goodput.typical)
    assumptions.append(f"Each machine's link carries {format_rate(facts.bytes_per_second)} in each direction.")
    return _with_link(setting, num_bytes, seconds, compute, assumptions)


def ring_bytes(num_bytes: float, num_ranks: int, num_nodes: int) -> float:
    """What a machine sends, and receives, to sum so many bytes over all ranks, those of a machine being neighbours."""
    return ring_bytes_per_node(num_bytes, num_ranks, max(1, num_ranks // num_nodes))


def find_device(name: str) -> tuple[str, Device] | None:
    """The facts about the device that a name such as "Tesla V100-PCIE-16GB" belongs to."""
    devices = load_hardware().devices
    found = next((known for known in devices if known.lower() in name.lower()), None)
    return None if found is None else (found, devices[found])


def _compute_seconds(setting: Setting) -> tuple[float, float, float] | None:
    found = find_device(setting.gpu) if setting.gpu else None
    if found is None or setting.tokens_per_rank is None or setting.parameters is None:
        return None
    _, device = found
    precision = "fp16" if setting.precision == "mixed" else setting.precision
    shares = device.reached_share.get(precision)  # type: ignore[call-overload]
    if shares is None:
        return None
    flops = float(FLOPS_PER_PARAMETER * setting.parameters)
    if setting.shape is not None:
        flops = training_flops_per_target_token(setting.shape)
    peak = device.peak_flops[precision]  # type: ignore[index]
    seconds = setting.tokens_per_rank * flops / peak
    if seconds <= 0:
        return None
    return seconds / shares.high, seconds / shares.typical, seconds / shares.low


def _with_link(
    setting: Setting, num_bytes: float, link_seconds: float, compute: tuple[float, float, float] | None, said: list[str]
) -> NetworkEstimate:
    step = setting.seconds_per_step
    needed = link_seconds / step
    evidence = [
        *_bytes_sentences(setting, num_bytes),
        f"At {format_rate(num_bytes / link_seconds)} of payload they need {format_step(link_seconds)}; a step took "
        f"{format_step(step)}.",
        *_compute_sentences(compute),
    ]
    warnings = _doubts_about_link(setting, num_bytes, needed)
    if needed > NOT_THE_LINK:
        # Nothing can be concluded from a link that it cannot have been.
        found = _without_link(setting, num_bytes, compute, said)
        return replace(found, link_seconds=link_seconds, warnings=warnings)
    share = min(1.0, needed) if compute is None else max(0.0, min(needed, 1 - compute[1] / step))
    if share >= BINDING_SHARE or needed >= MOST_OF_A_STEP:
        verdict = _network_bound(setting, num_bytes, needed, share, compute, evidence, bool(warnings))
    elif compute is not None and compute[2] >= EXPLAINED_SHARE * step:
        why = f"The run is compute-bound: its bytes need only {needed:.0%} of a step on this link."
        verdict = Verdict("compute", 1 - needed, 0.7 if compute[1] >= EXPLAINED_SHARE * step else 0.5, why, evidence)
    else:
        why = (
            f"The network was not the bottleneck: its bytes need only {needed:.0%} of a step on this link. What else "
            "took the time, this log cannot tell."
        )
        verdict = Verdict("unknown", 1 - needed, 0.5, why, evidence)
    return NetworkEstimate(verdict, num_bytes, link_seconds, compute, said, warnings)


def _doubts_about_link(setting: Setting, num_bytes: float, needed: float) -> list[str]:
    step = setting.seconds_per_step
    if needed <= FASTER_THAN_STATED:
        return []
    return [
        f"{format_bytes(num_bytes)} a step cannot have gone over {setting.link} in {format_step(step)}: the link "
        f"was faster than stated (at least {format_rate(num_bytes / step)}), or fewer bytes travelled than a ring "
        "of uncompressed gradients sends. Measure it: dragoman check, or iperf3 between the machines."
    ]


def _network_bound(
    setting: Setting,
    num_bytes: float,
    needed: float,
    share: float,
    compute: tuple[float, float, float] | None,
    evidence: list[str],
    is_doubtful: bool,
) -> Verdict:
    step = setting.seconds_per_step
    gain = "" if compute is None else f"; by computing alone a step would take about {format_step(compute[1])}"
    if is_doubtful:
        why = (
            f"The run was most likely network-bound: at the stated {setting.link} its bytes would need more time than "
            f"a whole step took, so the link was busy all the time and still faster than stated{gain}."
        )
        confidence = 0.6
    else:
        why = f"The run is network-bound: its bytes need {min(1.0, needed):.0%} of a step's time on this link{gain}."
        confidence = 0.9 if needed >= MOST_OF_A_STEP else 0.7
    waiting = f"So about {share:.0%} of each {format_step(step)} step was waiting for the network."
    evidence = [*evidence, waiting, *_better_links(num_bytes, compute)]
    return Verdict("network", share, confidence, why, evidence, [BUSY_GPUS])


def _without_link(
    setting: Setting, num_bytes: float, compute: tuple[float, float, float] | None, said: list[str]
) -> NetworkEstimate:
    step = setting.seconds_per_step
    evidence = [
        *_bytes_sentences(setting, num_bytes),
        f"If the network was never idle it carried {format_rate(num_bytes / step)}; on any slower link a step would "
        f"have taken longer than the {format_step(step)} it did.",
        *_compute_sentences(compute),
    ]
    if compute is None or 1 - compute[2] / step < 0:
        why = (
            "Whether the network was the bottleneck cannot be said without the speed of the link: "
            "give it with --link, for example --link 1000Mbit."
        )
        return NetworkEstimate(Verdict("unknown", 0.0, 0.0, why, evidence), num_bytes, None, compute, said)
    share = max(0.0, 1 - compute[1] / step)
    if share >= BINDING_SHARE:
        why = (
            f"The run was probably network-bound: computing explains about {format_step(compute[1])} of a "
            f"{format_step(step)} step, and the network is what all ranks share."
        )
        verdict = Verdict("network", share, 0.55, why, evidence + _better_links(num_bytes, compute), [BUSY_GPUS])
    else:
        why = f"The run was probably compute-bound: computing explains {1 - share:.0%} of a step."
        verdict = Verdict("compute", 1 - share, 0.5, why, evidence)
    return NetworkEstimate(verdict, num_bytes, None, compute, said)


def _without_network(setting: Setting) -> NetworkEstimate:
    why = "The network was not the bottleneck: all ranks were on one machine, so no gradient crossed a network."
    compute = _compute_seconds(setting)
    if compute is not None and compute[1] >= EXPLAINED_SHARE * setting.seconds_per_step:
        share = min(1.0, compute[1] / setting.seconds_per_step)
        verdict = Verdict("compute", share, 0.5, f"{why} Computing explains {share:.0%} of a step.")
    else:
        verdict = Verdict("unknown", 0.0, 0.6, f"{why} What else took the time, this log cannot tell.")
    return NetworkEstimate(verdict, 0.0, 0.0, compute, setting.assumptions)


def _unknown(setting: Setting) -> NetworkEstimate:
    missing = _missing(setting)
    are = "is" if len(missing) == 1 else "are"
    why = f"Whether the network was the bottleneck cannot be said: {', '.join(missing)} {are} not known."
    return NetworkEstimate(Verdict("unknown", 0.0, 0.0, why), None, None, None, setting.assumptions)


def _missing(setting: Setting) -> list[str]:
    """What must be known and is not; no number or less is no knowledge either."""
    figures = {
        "the time of a step": setting.seconds_per_step if setting.seconds_per_step >= SHORTEST_STEP else None,
        "the number of parameters": setting.parameters,
        "the number of ranks (--gpus-per-node)": setting.num_ranks,
        "the number of machines (--nodes)": setting.num_nodes,
    }
    return [name for name, value in figures.items() if value is None or value <= 0]


def _bytes_sentences(setting: Setting, num_bytes: float) -> list[str]:
    ranks = setting.num_ranks or 1
    return [
        f"Each machine sends and receives {format_bytes(num_bytes)} a step: 2 × ({ranks} − 1) / {ranks} × "
        f"{setting.parameters:,} parameters × {setting.gradient_bytes} bytes."
    ]


def _compute_sentences(compute: tuple[float, float, float] | None) -> list[str]:
    if compute is None:
        return []
    low, typical, high = map(format_step, compute)
    return [f"Computing alone takes about {typical} a step on this device ({low} to {high}), by arithmetic."]


def _better_links(num_bytes: float, compute: tuple[float, float, float] | None) -> list[str]:
    hardware = load_hardware()
    times = []
    for name in BETTER_LINKS:
        facts = hardware.link(name)
        times.append(f"{name} {format_step(num_bytes / (facts.bytes_per_second * facts.goodput.typical))}")
    sentence = f"On faster links the same bytes would need: {', '.join(times)}."
    return [sentence + (f" Computing then sets the pace: about {format_step(compute[1])}." if compute else "")]


def tokens_of_sentences(num_sentences: float) -> float:
    """Target tokens of so many sentences, by the seeds' corpus."""
    return num_sentences * TARGET_TOKENS_PER_SENTENCE


def shape_of(
    width: int, feed_forward: int, heads: int, encoder_layers: int, decoder_layers: int, vocab_size: int | None
) -> ModelShape | None:
    """A model by the numbers a log gives; None where they make no model."""
    size = vocab_size or PRESET_VOCAB_SIZE
    try:
        return ModelShape(width, feed_forward, heads, encoder_layers, decoder_layers, 0.0, 0.0, 0.0, size, size)
    except (UsageError, ZeroDivisionError):
        return None
