"""Which network port explains the time of a step, and how long its bytes need on others."""

from dragoman.diagnosis.hardware import LinkFacts, load_hardware
from dragoman.diagnosis.wording import format_step
from dragoman.run.units import format_bytes, format_rate

_SHORTEST = 0.001
"""Seconds below which a time of sending is not told exactly."""
_PORTS = ("10mbit", "100mbit", "1gbit", "2.5gbit", "5gbit", "10gbit", "25gbit", "40gbit", "100gbit")
"""Usual speeds of network ports."""
_BETTER_LINKS = ("10gbit", "25gbit", "100gbit")
_TOLERANCE = 0.15
"""A port fits a step if its bytes need the time of the step, within this share."""
_LARGEST_COMPUTING = 0.25
"""With a larger share of computing in a step, many ports would fit it."""


def fitting_port(num_bytes: float, step_seconds: float, computing_seconds: float) -> str | None:
    """Finds the usual port on which the bytes of a step need the time that it took; None if there is none.

    The exchange may overlap with computing or follow it.
    """
    if computing_seconds > _LARGEST_COMPUTING * step_seconds:
        return None
    hardware = load_hardware()
    for name in _PORTS:
        seconds = _seconds(num_bytes, hardware.link(name))
        if (1 - _TOLERANCE) * seconds <= step_seconds <= (1 + _TOLERANCE) * (seconds + computing_seconds):
            return name
    return None


def describe_port(name: str, num_bytes: float) -> str:
    """Says how long the bytes of a step need on a port."""
    port = load_hardware().link(name)
    return (
        f"a port of {format_rate(port.bytes_per_second)} would explain it: there the bytes need "
        f"{format_step(_seconds(num_bytes, port))}"
    )


def describe_links(num_bytes: float, computing_seconds: float | None) -> str:
    """Says how long the bytes of a step need on faster links, and what a step would then take."""
    hardware = load_hardware()
    times = [f"{name} {format_step(_seconds(num_bytes, hardware.link(name)))}" for name in _BETTER_LINKS]
    message = f"On faster links the same bytes would need: {', '.join(times)}."
    if computing_seconds is None:
        return message
    return f"{message} Computing would then set the pace: about {format_step(computing_seconds)}."


def describe_inside(num_bytes: float) -> str:
    """Says how long the bytes that a rank sends need inside a machine."""
    seconds = _seconds(num_bytes, load_hardware().link("pcie3"))
    return (
        f"The {format_bytes(num_bytes)} of a step need {_briefly(seconds)} over PCI Express 3.0, and less over NVLink."
    )


def _briefly(seconds: float) -> str:
    return f"about {format_step(seconds)}" if seconds >= _SHORTEST else f"less than {format_step(_SHORTEST)}"


def _seconds(num_bytes: float, link: LinkFacts) -> float:
    return num_bytes / (link.bytes_per_second * link.goodput.typical)
