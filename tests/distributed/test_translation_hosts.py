"""Hosts reached over ssh translate one file together: the same output, whatever happens to one of them."""

import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from host_runs import ONE_THREAD, processes_on, wait_until_no_processes
from program import call_dragoman, wait_until
from rig import Rig

from dragoman.launch.translation_hosts import TRANSLATION_MODULE

pytestmark = pytest.mark.slow

# Little text in many parts, and a host that is given up soon.
PROGRAM = """
import dragoman.cli
import dragoman.launch.translation_hosts as hosts
import dragoman.translation.files.input_blocks as blocks
blocks.LINES_PER_BLOCK, hosts.HOST_TIMEOUT_SECONDS = 40, 6.0
dragoman.cli.main()
"""


def command(rig: Rig, run: Path, text: Path, out: Path, hosts: str) -> list[str]:
    options = ["--hosts", hosts, "--ssh-config", rig.ssh_config, "--out", out, "--beam-size", 1]
    return [sys.executable, "-c", PROGRAM, "translate", *map(str, [run, text, *options])]


def translate_on_hosts(rig: Rig, run: Path, text: Path, out: Path, hosts: str, code: int = 0) -> str:
    done = subprocess.run(
        command(rig, run, text, out, hosts), capture_output=True, text=True, timeout=200, check=False, env=ENVIRONMENT
    )
    assert done.returncode == code, done.stderr
    assert "Traceback" not in done.stderr
    return done.stderr


ENVIRONMENT = os.environ | ONE_THREAD


@pytest.fixture(scope="module")
def text(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("text") / "many.en"
    path.write_text("".join(f"The dog sees the house {number}.\n" if number % 7 else "\n" for number in range(800)))
    return path


@pytest.fixture(scope="module")
def expected(trained_run: Path, text: Path) -> str:
    return call_dragoman("translate", trained_run, text, "--beam-size", 1, "--workers", 1).stdout


def test_hosts_that_share_nothing_get_the_model_and_keep_nothing(
    rig: Rig, trained_run: Path, text: Path, expected: str
):
    out = rig.private / "out.de"
    said = translate_on_hosts(rig, trained_run, text, out, "h1:1,h2:1")
    assert out.read_text() == expected
    assert "left out" not in said
    assert list(rig.private.iterdir()) == [out]
    for host in rig.hosts:
        assert list(host.path(rig.private).iterdir()) == []
    out.unlink()
    wait_until_no_processes(rig)


@pytest.mark.parametrize("harm", [lambda rig: rig["h2"].kill_ssh_sessions(), lambda rig: rig["h2"].link_down()])
def test_the_others_take_over_the_parts_of_a_lost_host(
    rig: Rig, trained_run: Path, text: Path, expected: str, harm: Callable[[Rig], None]
):
    out = rig.private / "out.de"
    with subprocess.Popen(
        command(rig, trained_run, text, out, "h1:1,h2:1"), stderr=subprocess.PIPE, text=True, env=ENVIRONMENT
    ) as process:
        try:
            parts = rig.private / ".out.de.partial"
            wait_until(lambda: len(list(parts.glob("parts-*/*/0*"))) >= 4, "the first parts")
            harm(rig)
            _, said = process.communicate(timeout=120)
        finally:
            process.kill()
            rig["h2"].link_up()
    assert process.returncode == 0, said
    assert "h2 is left out: " in said
    assert out.read_text() == expected
    out.unlink()
    wait_until_no_processes(rig)


def test_without_any_host_the_same_command_continues_later(rig: Rig, trained_run: Path, text: Path, expected: str):
    out = rig.private / "out.de"
    said = translate_on_hosts(rig, trained_run, text, out, "nowhere.invalid", code=1)
    assert "nowhere.invalid is left out" in said
    assert said.splitlines()[-1] == (
        "dragoman: No host is left to translate. The same command continues where it stopped."
    )
    said = translate_on_hosts(rig, trained_run, text, out, "nowhere.invalid,h1:1")
    assert out.read_text() == expected
    out.unlink()


def test_no_process_outlives_a_killed_command(rig: Rig, trained_run: Path, text: Path):
    out = rig.private / "killed.de"
    with subprocess.Popen(
        command(rig, trained_run, text, out, "h1:1"), stderr=subprocess.DEVNULL, env=ENVIRONMENT
    ) as process:
        wait_until(lambda: processes_on(rig["h1"], TRANSLATION_MODULE), "a program on h1")
        process.send_signal(signal.SIGKILL)
    wait_until_no_processes(rig)
