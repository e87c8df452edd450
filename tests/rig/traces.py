"""Finds and removes what a rig leaves in the system: all of it is named dm<pid of the owner><letter>."""

import fcntl
import os
import re
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from string import ascii_lowercase

from dragoman.run.errors import UserError
from rig.processes import NAMESPACES, end_processes_in
from rig.tools import run_tool

LOCK = Path("/run/dragoman-rig.lock")
TRACE = re.compile(r"(?P<rig>dm(?P<owner>\d+)[a-z])(?:h\d+)?")


@contextmanager
def rigs_locked() -> Iterator[None]:
    """Keeps other rigs from choosing names and subnets during the block."""
    with LOCK.open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def traces() -> list[re.Match[str]]:
    """Returns the network devices and namespaces of all rigs on this machine."""
    devices = [name for _, name in socket.if_nameindex()]
    namespaces = [path.name for path in NAMESPACES.glob("dm*")]
    return [match for name in (*devices, *namespaces) if (match := TRACE.fullmatch(name))]


def free_rig_name() -> str:
    """Returns a name for another rig of this process."""
    taken = {trace["rig"] for trace in traces()}
    names = (f"dm{os.getpid()}{letter}" for letter in ascii_lowercase)
    name = next((name for name in names if name not in taken), None)
    if name is None:
        raise UserError(f"This process already has {len(ascii_lowercase)} rigs; take one down first.")
    return name


def remove_rig(rig_name: str) -> None:
    """Ends the processes of a rig's hosts and removes its namespaces, links and bridge; their mounts go with them."""
    namespaces = [path for path in NAMESPACES.glob(f"{rig_name}*") if TRACE.fullmatch(path.name)]
    for namespace in namespaces:
        end_processes_in(namespace)
    # Links first: they are removed at once, with both ends; the kernel removes a namespace some time later.
    for _, device in socket.if_nameindex():
        if (trace := TRACE.fullmatch(device)) and trace["rig"] == rig_name:
            run_tool("ip", "link", "delete", device)
    for namespace in namespaces:
        run_tool("ip", "netns", "delete", namespace.name)


def remove_leftovers() -> None:
    """Removes the rigs whose owner was killed before it could."""
    for rig_name in {trace["rig"] for trace in traces() if not Path("/proc", trace["owner"]).exists()}:
        remove_rig(rig_name)
