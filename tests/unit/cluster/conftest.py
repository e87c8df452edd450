"""Hosts for tests without a second machine: an `ssh` that knows only this one, and a worker that plays a script."""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

TESTS = Path(__file__).parents[2]
SSH = """#!/bin/sh
# Host names say what becomes of a connection; any other is this machine.
for last; do host=$before before=$last; done
case "$host" in
  unreachable*) echo "ssh: connect to host $host port 22: No route to host" >&2; exit 255 ;;
  bare*) echo "sh: 1: exec: python: not found" >&2; exit 127 ;;
  talkative*) echo "Welcome to $host!" ;;
esac
exec sh -c "$last"
"""


@pytest.fixture(scope="module")
def fake_ssh(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """`ssh HOST COMMAND` runs the command here, for most hosts."""
    folder = tmp_path_factory.mktemp("bin")
    (folder / "ssh").write_text(SSH, encoding="utf-8")
    (folder / "ssh").chmod(0o755)
    with pytest.MonkeyPatch.context() as environment:
        environment.setenv("PATH", f"{folder}:{os.environ['PATH']}")
        yield


@pytest.fixture(scope="module")
def scripted_worker() -> Iterator[str]:
    """The module to give to an attempt in place of the trainer; see tests/scripted_worker.py."""
    with pytest.MonkeyPatch.context() as environment:
        environment.setenv("PYTHONPATH", str(TESTS), prepend=os.pathsep)
        yield "scripted_worker"
