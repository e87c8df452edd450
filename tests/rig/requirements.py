"""Checks whether this machine can run a rig, and if not, why."""

import os
import subprocess

from rig.tools import find_tool, tool

TOOLS = ("ip", "tc", "sshd", "ssh", "ssh-keygen", "ssh-keyscan", "nsenter", "unshare", "mount", "hostname", "env")

# Each is tried in namespaces of its own, which end with the command: nothing of the machine changes.
TRIALS = {
    "make namespaces": ["true"],
    "make veth links": ["ip", "link", "add", "rig0", "type", "veth", "peer", "name", "rig1"],
    "make bridges": ["ip", "link", "add", "rig0", "type", "bridge"],
    "limit the rate of a link": ["tc", "qdisc", "add", "dev", "lo", "root", "tbf", "rate", "1mbit", "burst", "16kb",
                                 "latency", "50ms"],
    "mount folders": ["mount", "-t", "sysfs", "sysfs", "/sys"],
}  # fmt: skip


def rig_problem() -> str | None:
    """Returns why the rig cannot run here, or None if it can."""
    if os.geteuid() != 0:
        return "The rig makes network namespaces and needs root: start it as root or with sudo."
    missing = [name for name in TOOLS if find_tool(name) is None]
    if missing:
        return (
            f"The rig needs {', '.join(missing)}, not installed here (packages iproute2, openssh-server, util-linux)."
        )
    for ability, command in TRIALS.items():
        if reason := failure_of(command):
            return f"The rig cannot {ability} here ({reason}); a container may need more privileges for that."
    return None


def failure_of(command: list[str]) -> str | None:
    """Returns the error of a command that fails in new namespaces, in one line."""
    argv = [tool("unshare"), "--net", "--uts", "--mount", tool(command[0]), *command[1:]]
    done = subprocess.run(argv, capture_output=True, text=True, check=False)
    if done.returncode == 0:
        return None
    return " ".join(done.stderr.split()) or f"exit code {done.returncode}"
