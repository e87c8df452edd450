"""`--sync auto` on the hosts of a rig: what it takes on a slow link, and that the run keeps it."""

import json
from pathlib import Path

import pytest
from host_runs import ONE_EACH, train_here, train_on_hosts, write_config
from link_measurement import set_rates
from program import train_losses
from rig import Rig

NUM_STEPS = 12


@pytest.fixture
def config(prepared: Path, tmp_path: Path) -> Path:
    """Gradients of about a million parameters: at 20 Mbit/s they take far longer than computing them."""
    return write_config(
        tmp_path / "config.toml",
        prepared,
        "model.width=128",
        "model.feed_forward=512",
        "training.global_batch_tokens=400",
        f"training.max_steps={NUM_STEPS}",
        "synchronisation.strategy=auto",
    )


def synchronisation_of(run: Path, step: int) -> dict[str, object]:
    return json.loads((run / "checkpoints" / f"step-{step:08d}" / "state.json").read_text())["synchronisation"]


@pytest.mark.slow
@pytest.mark.serial
def test_a_slow_link_gets_another_strategy_which_the_run_keeps(rig: Rig, config: Path, tmp_path: Path):
    run = tmp_path / "run"
    set_rates(rig, "20mbit")
    try:
        train_on_hosts(rig, ONE_EACH, run, config)
    finally:
        set_rates(rig, None)
    chosen = synchronisation_of(run, NUM_STEPS)
    assert (chosen["strategy"], chosen["replicas"]) == ("local", 2)
    log = (run / "log.txt").read_text(encoding="utf-8")
    assert "Synchronisation: 2 replicas average their weights" in log
    assert "Exact sums at every step would take" in log
    # Continued on one machine without a slow link, where exact sums would cost nothing.
    train_here(1, run, "--resume", "--set", f"training.max_steps={2 * NUM_STEPS}")
    assert synchronisation_of(run, 2 * NUM_STEPS) == chosen
    assert train_losses(run)[2 * NUM_STEPS] < train_losses(run)[NUM_STEPS]


@pytest.mark.slow
@pytest.mark.serial
def test_exact_sums_are_kept_where_they_wait_little(rig: Rig, prepared: Path, tmp_path: Path):
    settings = ("training.global_batch_tokens=8000", "training.max_steps=2", "synchronisation.strategy=auto")
    config = write_config(tmp_path / "larger.toml", prepared, *settings)
    train_on_hosts(rig, ONE_EACH, tmp_path / "run", config)
    chosen = synchronisation_of(tmp_path / "run", 2)
    assert chosen["strategy"] in ("every_step", "hierarchical")
    assert chosen["reason"]
