"""`dragoman selftest` as a person types it."""

import json
from pathlib import Path

import pytest
from program import run_dragoman


def test_wrong_options_are_refused_and_nothing_is_made(tmp_path: Path):
    for options, words in (
        (("--out", tmp_path), "name a new folder"),
        (("--ssh-config", tmp_path / "none"), "for use with --hosts"),
        (("--device", "tpu", "--out", tmp_path / "new"), "one of cpu, cuda"),
    ):
        done = run_dragoman("selftest", *options, code=2)
        assert words in done.stderr
    assert list(tmp_path.iterdir()) == []


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_the_whole_test_passes_on_this_machine(tmp_path: Path):
    done = run_dragoman("selftest", "--device", "cpu", "--out", tmp_path / "new", "--json", timeout=550)
    result = json.loads(done.stdout)
    assert result == json.loads((tmp_path / "new" / "selftest.json").read_text())
    states = {name: stage["state"] for name, stage in result["stages"].items()}
    assert list(states) == [
        "device",
        "speed",
        "memory",
        "kernels",
        "precision",
        "updates",
        "workers",
        "resume",
        "collectives",
    ]
    # How fast, how large and how well connected a busy machine is does not decide whether it computes rightly.
    assert {states[name] for name in ("device", "kernels", "precision", "updates", "workers", "resume")} == {"passed"}
    assert result["is_passed"]
    assert result["stages"]["workers"]["figures"]["largest_loss_difference"] <= 1e-4
