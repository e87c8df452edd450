"""Starts a host inside its network namespace: with its own name, its own view of a few files, and its sshd."""

import subprocess
from pathlib import Path

from dragoman.run.errors import UserError
from rig.processes import NAMESPACES, Argument, inside
from rig.tools import tool


def start_keeper(namespace: str) -> "subprocess.Popen[bytes]":
    """Starts the process that keeps a host's name and mounts; it ends when its input closes, so with its owner."""
    argv = [tool("nsenter"), f"--net={NAMESPACES / namespace}"]
    # Slave: what is mounted here later is seen there too, never the other way round.
    argv += [tool("unshare"), "--uts", "--mount", "--propagation", "slave", tool("cat")]
    # In its own session: Ctrl-C must reach only the owner, which then removes the host.
    keeper = subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, bufsize=0, start_new_session=True)
    assert keeper.stdin is not None
    assert keeper.stdout is not None
    keeper.stdin.write(b"\n")
    if keeper.stdout.readline() != b"\n":  # `cat` answers, so the namespaces exist
        raise UserError(f"The namespaces of the rig's host {namespace} could not be made.")
    return keeper


def give_identity(keeper: "subprocess.Popen[bytes]", name: str, hosts_file: Path) -> None:
    """Gives a host its name and an /etc/hosts that knows its peers."""
    run_inside(keeper, "hostname", name)
    run_inside(keeper, "mount", "--bind", hosts_file, "/etc/hosts")


def give_private_folder(keeper: "subprocess.Popen[bytes]", content: Path, private: Path, size: str | None) -> None:
    """Mounts the host's own folder at the path `private`, which is the same on all hosts.

    With a size ("200m") it is a disk of its own in memory, which can be full; only the host sees it.
    """
    content.mkdir()
    if size is None:
        run_inside(keeper, "mount", "--bind", content, private)
    else:
        run_inside(keeper, "mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", private)


def give_own_sysfs(keeper: "subprocess.Popen[bytes]", aside: Path) -> None:
    """Shows a host its own devices in /sys/class/net, where gloo and MPI look; /sys belongs to who mounts it.

    Made aside and put in place, because a new /sys has no control groups until those of the old one are bound into it.
    """
    aside.mkdir()
    run_inside(keeper, "mount", "-t", "sysfs", "sysfs", aside)
    if Path("/sys/fs/cgroup").is_dir():
        run_inside(keeper, "mount", "--rbind", "/sys/fs/cgroup", aside / "fs" / "cgroup")
    run_inside(keeper, "mount", "--move", aside, "/sys")


def run_inside(keeper: "subprocess.Popen[bytes]", name: str, *arguments: Argument) -> None:
    """Runs a system program on the host; it must succeed."""
    argv = inside(keeper.pid, [tool(name), *arguments], Path("/"))
    done = subprocess.run(argv, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        command = " ".join(map(str, (name, *arguments)))
        raise UserError(f"`{command}` failed on a host of the rig: {done.stderr.strip()}")
