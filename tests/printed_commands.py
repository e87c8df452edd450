"""Runs what `dragoman launch` prints as a person does who copies it into a shell where no environment is active."""

import os
from pathlib import Path

from program import run_dragoman

BARE_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


def bare_environment(**variables: str) -> dict[str, str]:
    """Returns the variables of a shell that finds only the programs of the system."""
    inherited = {name: value for name, value in os.environ.items() if name != "VIRTUAL_ENV"}
    return inherited | {"PATH": BARE_PATH} | variables


def printed_command(kind: str, config: Path, run: Path, *options: object) -> list[str]:
    """Returns the shell with the text that `dragoman launch` prints, unchanged."""
    done = run_dragoman("launch", config, "--for", kind, "--run-dir", run, *options)
    return ["bash", "-c", done.stdout]
