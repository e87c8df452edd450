"""Finds and runs system programs (`ip`, `tc`, `sshd`, …)."""

import os
import shutil
import subprocess
from pathlib import Path

from dragoman.run.errors import UserError

# root's PATH may lack these after `su` or in a container.
SYSTEM_FOLDERS = ("/usr/local/sbin", "/usr/sbin", "/sbin")


def find_tool(name: str) -> str | None:
    """Returns the full path of a system program, or None if it is not installed."""
    return shutil.which(name, path=os.pathsep.join((os.environ.get("PATH", os.defpath), *SYSTEM_FOLDERS)))


def tool(name: str) -> str:
    """Returns the full path of a system program that must be installed."""
    path = find_tool(name)
    if path is None:
        raise UserError(f"The rig needs the program `{name}`, which is not installed here.")
    return path


def run_tool(name: str, *arguments: str | Path) -> str:
    """Runs a system program that must succeed, and returns its output."""
    done = subprocess.run([tool(name), *arguments], capture_output=True, text=True, check=False)
    if done.returncode != 0:
        command = " ".join(map(str, (name, *arguments)))
        raise UserError(f"`{command}` failed: {done.stderr.strip() or f'exit code {done.returncode}'}")
    return done.stdout
