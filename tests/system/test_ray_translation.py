"""`translate --engine ray` on a Ray cluster of this machine: the same output as without it."""

import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("ray", reason="Ray is an optional dependency: pip install 'dragoman[ray]'")

from program import call_dragoman
from test_ray import ENVIRONMENT, START_SECONDS, cluster  # noqa: F401 - a fixture

pytestmark = pytest.mark.slow

PROGRAM = """
import dragoman.cli
import dragoman.translation.files.input_blocks as blocks
blocks.LINES_PER_BLOCK = 40
dragoman.cli.main()
"""


@pytest.mark.timeout(START_SECONDS + 300)
def test_a_cluster_translates_like_this_machine(cluster: str, trained_run: Path, tmp_path: Path):  # noqa: F811
    text, out = tmp_path / "many.en", tmp_path / "out.de"
    text.write_text("".join(f"The dog sees the house {number}.\n" if number % 7 else "\n" for number in range(200)))
    here = call_dragoman("translate", trained_run, text, "--beam-size", 1, "--workers", 1).stdout
    options = [trained_run, text, "--engine", "ray", "--out", out, "--beam-size", 1]
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, "translate", *map(str, options)],
        capture_output=True,
        text=True,
        timeout=250,
        check=False,
        env=ENVIRONMENT | {"RAY_ADDRESS": cluster},
    )
    assert done.returncode == 0, done.stderr
    assert out.read_text() == here
    assert sorted(path.name for path in tmp_path.iterdir()) == ["many.en", "out.de"]
