"""Problems of a host are reported before the first step, with its name and what to do.

Then hosts that share no folder: missing files are sent, and each host keeps what it needs to continue.
"""

import json
import re
import shutil
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from host_runs import ONE_EACH, link_down, train_on_hosts, write_config
from program import learned_bytes, read_records
from rig import Rig
from rig.ssh import create_key
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

NUM_STEPS = 14

pytestmark = pytest.mark.slow


@pytest.fixture
def private(rig: Rig) -> Iterator[dict[str, Path]]:
    """Returns the folder that every host has of its own, by host and as "here"; empties it afterwards."""
    folders = {"here": rig.private} | {host.name: rig.folder / "hosts" / host.name / "private" for host in rig.hosts}
    yield folders
    for folder in folders.values():
        for entry in folder.iterdir():
            shutil.rmtree(entry)


@pytest.fixture
def private_config(rig: Rig, private: dict[str, Path], prepared: Path, tmp_path: Path) -> Path:
    """A config whose data only this machine has."""
    shutil.copytree(prepared, private["here"] / "prepared")
    return write_config(tmp_path / "config.toml", rig.private / "prepared", f"training.max_steps={NUM_STEPS}")


@pytest.fixture
def shared_config(prepared: Path, tmp_path: Path) -> Path:
    return write_config(tmp_path / "config.toml", prepared, f"training.max_steps={NUM_STEPS}")


def refusal(rig: Rig, config: Path, run: Path, hosts: str = ONE_EACH) -> str:
    """Returns the error of a run that is refused before it starts."""
    begin = time.monotonic()
    done = train_on_hosts(rig, hosts, run, config, code=1)
    assert time.monotonic() - begin < 60
    assert done.stderr.startswith("dragoman: ")
    assert not (run / "checkpoints").exists()
    return done.stderr.removeprefix("dragoman: ").strip()


# Data and runs


def test_missing_data_is_found_and_the_option_to_send_it_named(rig: Rig, private_config: Path, tmp_path: Path):
    said = refusal(rig, private_config, tmp_path / "run")
    for host in ("h1", "h2"):
        assert f"{host} has no complete prepared corpus in {rig.private / 'prepared'} (" in said
    assert "or use --send-data" in said


def test_different_data_is_found_and_both_hashes_named(
    rig: Rig, private: dict[str, Path], private_config: Path, prepared: Path, tmp_path: Path
):
    shutil.copytree(prepared, private["h1"] / "prepared")
    manifest = shutil.copytree(prepared, private["h2"] / "prepared") / "manifest.json"
    content = json.loads(manifest.read_text(encoding="utf-8"))
    first = next(name for name in content["files"] if not name.endswith(".md"))
    content["files"][first]["sha256"] = "0" * 64
    manifest.write_text(json.dumps(content), encoding="utf-8")
    said = refusal(rig, private_config, tmp_path / "run")
    assert "h1" not in said
    hashes = re.search(r" \((\w{12}) there, (\w{12}) here\): ", said)
    assert said.startswith(f"h2 has different data from this machine in {rig.private / 'prepared'} (")
    assert hashes[1] != hashes[2]


def test_another_run_in_the_same_folder_is_not_overwritten(
    rig: Rig, private: dict[str, Path], shared_config: Path, tmp_path: Path
):
    other = private["h2"] / "run" / "config.toml"
    other.parent.mkdir()
    other.write_text("# somebody's\n", encoding="utf-8")
    said = refusal(rig, shared_config, rig.private / "run")
    assert said.startswith(f"h2 has a different run in {rig.private / 'run'} (config ")
    assert other.read_text(encoding="utf-8") == "# somebody's\n"
    assert list(other.parent.iterdir()) == [other]


# Reaching a host


def test_an_unknown_name_is_reported(rig: Rig, shared_config: Path, tmp_path: Path):
    said = refusal(rig, shared_config, tmp_path / "run", hosts="h1:1,nosuchhost:1")
    assert said.startswith("nosuchhost cannot be used: ssh failed: the name nosuchhost has no address.")


def test_a_host_that_does_not_answer_is_reported(rig: Rig, shared_config: Path, tmp_path: Path):
    with link_down(rig["h2"]):
        said = refusal(rig, shared_config, tmp_path / "run")
    assert said.startswith(f"h2 cannot be used: ssh failed: {rig['h2'].address} does not answer on port 22")


def test_a_host_with_a_wrong_key_is_reported(rig: Rig, shared_config: Path, tmp_path: Path):
    known = rig.folder / "known_hosts"
    before = known.read_text()
    keys = [line.partition(" ")[2] for line in before.splitlines()]
    known.write_text(before.replace(keys[1], keys[0]))
    try:
        said = refusal(rig, shared_config, tmp_path / "run")
    finally:
        known.write_text(before)
    assert said.startswith("h2 cannot be used: ssh failed: its host key has changed")
    assert "ssh-keygen -f" in said


def test_a_refused_key_is_reported(rig: Rig, shared_config: Path, tmp_path: Path):
    authorized = rig.folder / "authorized_keys"
    before = authorized.read_text()
    authorized.write_text(create_key(tmp_path / "stranger", "stranger"))
    try:
        said = refusal(rig, shared_config, tmp_path / "run")
    finally:
        authorized.write_text(before)
    assert said.startswith("h1 cannot be used: ssh failed: Permission denied (publickey)")
    assert "ssh-copy-id -F" in said


# Without a shared folder


def test_hosts_that_share_no_folder_get_missing_files_and_can_replace_each_other(
    rig: Rig, private: dict[str, Path], private_config: Path
):
    run = rig.private / "run"
    done = train_on_hosts(rig, ONE_EACH, run, private_config, "--send-data")
    for host in ("h1", "h2"):
        assert f"Copying {rig.private / 'prepared'} to {host}." in done.stderr
    assert f"h1, h2 keep all checkpoints in {run}; the log, the figures and the newest and best" in done.stderr
    kept = {host: learned_bytes(private[host] / "run", NUM_STEPS) for host in ("h1", "h2", "here")}
    assert kept["h1"] == kept["h2"] == kept["here"]

    shutil.rmtree(private["h1"] / "run")
    done = train_on_hosts(rig, ONE_EACH, run, "--resume", "--set", f"training.max_steps={NUM_STEPS + 6}")
    assert f"Continuing from the checkpoint of step {NUM_STEPS}" in done.stdout
    assert [record["step"] for record in read_records(private["h1"] / "run", "train")] == list(range(15, 21))
    kept = {host: learned_bytes(private[host] / "run", NUM_STEPS + 6) for host in ("h1", "h2")}
    assert kept["h1"] == kept["h2"]
    assert_no_secrets(rig, done.stdout + done.stderr, [folder / "run" for folder in private.values()])


def test_new_hosts_continue_from_the_checkpoint_on_this_machine(
    rig: Rig, private: dict[str, Path], private_config: Path
):
    run = rig.private / "run"
    train_on_hosts(rig, ONE_EACH, run, private_config, "--send-data")
    for host in ("h1", "h2"):
        shutil.rmtree(private[host] / "run")
    done = train_on_hosts(rig, ONE_EACH, run, "--resume", "--set", f"training.max_steps={NUM_STEPS + 2}")
    assert f"Copying the checkpoint of step {NUM_STEPS} to h1." in done.stderr
    assert f"Continuing from the checkpoint of step {NUM_STEPS}" in done.stdout
    assert [record["step"] for record in read_records(run, "train")] == list(range(1, NUM_STEPS + 3))


@pytest.mark.slow
def test_hosts_that_share_no_folder_get_the_weights_to_start_from(
    rig: Rig, private: dict[str, Path], private_config: Path, trained_run: Path
):
    run = rig.private / "run"
    options = ("--send-data", "--from", trained_run, "--set", "evaluation.evaluate_at_start=true")
    done = train_on_hosts(rig, ONE_EACH, run, private_config, *options)
    assert "Copying the weights to start from to h1." in done.stderr
    before, after = read_records(trained_run, "evaluation")[-1], read_records(run, "evaluation")[0]
    assert after["step"] == 0
    assert after["loss"] == pytest.approx(before["loss"], rel=1e-6)


def test_a_host_that_is_sent_its_checkpoint_repeats_no_points_in_tensorboard(
    rig: Rig, private: dict[str, Path], private_config: Path
):
    """Its own event files have points after the step that the run continues from."""
    run = rig.private / "run"
    train_on_hosts(rig, ONE_EACH, run, private_config, "--send-data")
    shutil.rmtree(private["here"] / "run" / "checkpoints")
    shutil.rmtree(private["h1"] / "run" / "checkpoints")
    shutil.rmtree(private["h2"] / "run" / "checkpoints" / f"step-{NUM_STEPS:08d}")
    done = train_on_hosts(rig, ONE_EACH, run, "--resume")
    assert "Continuing from the checkpoint of step 7" in done.stdout
    events = EventAccumulator(str(private["h1"] / "run" / "tensorboard"))
    events.Reload()
    assert [event.step for event in events.Scalars("train_loss")] == list(range(1, NUM_STEPS + 1))


def assert_no_secrets(rig: Rig, said: str, runs: list[Path]) -> None:
    """Neither keys nor their paths are in the output or in any file of the runs."""
    key, public = rig.folder / "identity", rig.folder / "identity.pub"
    secrets = [str(key), *key.read_text().splitlines()[1:-1], public.read_text().split()[1]]
    files = [path for run in runs for path in run.rglob("*") if path.is_file()]
    assert len(files) > 10
    for secret in secrets:
        assert secret not in said
        assert not [path for path in files if secret.encode() in path.read_bytes()]
