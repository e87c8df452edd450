"""Filters packets of a host with iptables, in its own network namespace."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from rig.processes import NAMESPACES
from rig.requirements import failure_of
from rig.tools import find_tool, run_tool, tool

# What the rig's firewalls and lossy links use, in the order of their use.
TRIALS = (
    [
        "-p",
        "tcp",
        "--syn",
        "-m",
        "multiport",
        "!",
        "--dports",
        "22,80:81",
        "-j",
        "REJECT",
        "--reject-with",
        "tcp-reset",
    ],
    ["-m", "statistic", "--mode", "random", "--probability", "0.5", "-j", "DROP"],
)


def filter_problem() -> str | None:
    """Returns why a rig cannot have firewalls and lose packets here, or None if it can."""
    if find_tool("iptables") is None:
        return "Firewalls of the rig need iptables, which is not installed here (package iptables)."
    for rule in TRIALS:
        if reason := failure_of(["iptables", "-A", "INPUT", *rule]):
            return f"Firewalls of the rig do not work here: iptables fails ({reason})."
    return None


@contextmanager
def filtered(namespace: str, address: str, chain: str, rule: Sequence[str]) -> Iterator[None]:
    """While active, applies a rule in a network namespace; it precedes earlier ones."""
    program = tool("ip6tables" if ":" in address else "iptables")
    command = [f"--net={NAMESPACES / namespace}", program, "--wait"]
    run_tool("nsenter", *command, "--insert", chain, *rule)
    try:
        yield
    finally:
        run_tool("nsenter", *command, "--delete", chain, *rule)
