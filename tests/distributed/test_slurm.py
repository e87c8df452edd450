"""A real Slurm: tasks know their ranks, a stop signal reaches them, and a requeued job runs again.

Then training, with the commands that `dragoman launch` prints: the tasks of srun train one run together, also on hosts
with networks of their own, and a job that was stopped continues it.
"""

import json
import shlex
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
from host_runs import wait_until_no_processes
from printed_commands import BARE_PATH, printed_command
from program import Run, read_records, train_losses
from rig import Rig
from rig import slurm as slurm_rig
from rig.slurm import Slurm, slurm_problem
from test_resume import wait_for_step

PROBLEM = slurm_problem()
pytestmark = [pytest.mark.slow, pytest.mark.skipif(PROBLEM is not None, reason=str(PROBLEM))]

PRINT_PLACE = """
import json, os, socket
names = ("SLURM_PROCID", "SLURM_NTASKS", "SLURM_LOCALID", "SLURM_NODELIST", "SLURM_JOB_ID")
place = {name: os.environ[name] for name in names}
print(json.dumps(place | {"host": socket.gethostname(), "address_of_n1": socket.gethostbyname("n1")}))
"""

NOTE_SIGTERM = """
import os, signal, sys, time

def note(*_):
    print("task", os.environ["SLURM_PROCID"], "got SIGTERM", flush=True)
    sys.exit(0)

signal.signal(signal.SIGTERM, note)
print("task", os.environ["SLURM_PROCID"], "starts", os.environ.get("SLURM_RESTART_COUNT", "0"), flush=True)
time.sleep(100)
"""


@pytest.fixture(scope="module")
def slurm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Slurm]:
    with Slurm(tmp_path_factory.mktemp("slurm"), num_nodes=2) as slurm:
        yield slurm


def write_script(path: Path, *lines: str) -> Path:
    """Writes a job script that ends with the first command that fails."""
    path.write_text("\n".join(["#!/bin/bash -e", *lines, ""]), encoding="utf-8")
    return path


def wait_for_text(path: Path, texts: list[str], seconds: float = 60) -> None:
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        content = path.read_text(encoding="utf-8") if path.exists() else ""
        if all(text in content for text in texts):
            return
        time.sleep(0.05)
    raise AssertionError(f"{path} does not say {texts} after {seconds} s:\n{content}")


@pytest.mark.parametrize(
    ("node_list", "local_ids", "hosts"), [("n1", ["0", "1"], ["n1", "n1"]), ("n[1-2]", ["0", "0"], ["n1", "n2"])]
)
def test_tasks_know_their_ranks(slurm: Slurm, node_list: str, local_ids: list[str], hosts: list[str]):
    num_nodes = len(set(hosts))
    done = slurm.run(["srun", "--ntasks=2", f"--nodes={num_nodes}", sys.executable, "-c", PRINT_PLACE])
    places = sorted((json.loads(line) for line in done.stdout.splitlines()), key=lambda place: place["SLURM_PROCID"])
    assert [place["SLURM_PROCID"] for place in places] == ["0", "1"]
    assert [place["SLURM_LOCALID"] for place in places] == local_ids
    assert [place["host"] for place in places] == hosts
    assert {place["SLURM_NTASKS"] for place in places} == {"2"}
    assert {place["SLURM_NODELIST"] for place in places} == {node_list}
    assert {place["address_of_n1"] for place in places} == {"127.0.0.1"}
    assert len({place["SLURM_JOB_ID"] for place in places}) == 1


def test_a_job_gets_a_stop_signal_and_runs_again_when_requeued(slurm: Slurm, tmp_path: Path):
    task = shlex.join(["srun", sys.executable, "-c", NOTE_SIGTERM])
    job = slurm.submit(write_script(tmp_path / "job.sh", task), "--nodes=2", "--ntasks=2", "--requeue")
    # Earlier there is no step that the signal could go to.
    wait_for_text(slurm.output(job), ["task 0 starts 0", "task 1 starts 0"])
    slurm.run(["scancel", "--signal=TERM", job])
    slurm.wait_for(job, "COMPLETED")
    wait_for_text(slurm.output(job), ["task 0 got SIGTERM", "task 1 got SIGTERM"])
    slurm.run(["scontrol", "requeue", job])
    wait_for_text(slurm.output(job), ["task 0 starts 1", "task 1 starts 1"])
    slurm.run(["scancel", job])
    slurm.wait_for(job, "CANCELLED")


def test_waiting_for_a_job_that_failed_ends_at_once_and_shows_what_it_printed(slurm: Slurm, tmp_path: Path):
    job = slurm.submit(write_script(tmp_path / "job.sh", "echo no luck today", "exit 3"))
    begin = time.monotonic()
    with pytest.raises(AssertionError, match=r"is FAILED, not COMPLETED(?s:.)*ExitCode=3:0(?s:.)*no luck today"):
        slurm.wait_for(job, "COMPLETED")
    assert time.monotonic() - begin < 20


def test_no_process_outlives_a_cluster_that_is_stopped_with_a_job_running(tmp_path: Path):
    with Slurm(tmp_path / "slurm", num_nodes=1) as slurm:
        # Not even one that ignores SIGTERM.
        task = shlex.join([sys.executable, "-c", NOTE_SIGTERM.replace("sys.exit(0)", "pass")])
        job = slurm.submit(write_script(tmp_path / "job.sh", f"srun {task}"))
        wait_for_text(slurm.output(job), ["task 0 starts"])
        processes = list(slurm.processes())
        names = {process.name() for process in processes}
        begin = time.monotonic()
    assert {"munged", "slurmctld", "slurmd", "slurmstepd", "srun"} <= names
    assert time.monotonic() - begin < 20
    assert not psutil.wait_procs(processes, timeout=1)[1]
    assert (tmp_path / "slurm" / "slurmctld.log").stat().st_size > 0


def test_a_cluster_that_does_not_come_up_shows_why(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(slurm_rig, "slurm_conf", lambda *_: "ClusterName=broken\nNonsense=1\n")
    slurm = Slurm(tmp_path)
    with pytest.raises(RuntimeError, match=r"did not come up: slurmctld(?s:.)*unrecognized key: Nonsense"), slurm:
        pass
    assert not list(slurm.processes())


@pytest.mark.parametrize("num_nodes", [1, 2])
def test_tasks_of_srun_are_the_workers_of_one_run(
    slurm: Slurm, dragoman: Run, config: Path, tmp_path: Path, num_nodes: int
):
    run = tmp_path / "a run"
    run_srun(slurm, config, run, num_nodes, 2 // num_nodes)
    dragoman("status", run, "--expect", "finished")
    assert "2 workers share" in (run / "log.txt").read_text(encoding="utf-8")
    assert sorted(train_losses(run)) == list(range(1, 51))


def run_srun(slurm: Slurm, config: Path, run: Path, num_nodes: int, workers_per_node: int, *options: object) -> None:
    """Runs the printed command from another folder, in a shell without an environment."""
    places = ("--nodes", num_nodes, "--workers-per-node", workers_per_node, "--gpus-per-node", 0)
    command = printed_command("srun", config, run, *places, "--cpus-per-worker", 1, *options)
    slurm.run(command, env=slurm.environment | {"PATH": BARE_PATH}, cwd="/")


def test_tasks_of_srun_on_hosts_are_the_workers_of_one_run(rig: Rig, dragoman: Run, config: Path, tmp_path: Path):
    run = tmp_path / "run"
    with Slurm(tmp_path / "slurm", rig=rig) as slurm:
        sent_before = rig["h1"].bytes_sent()
        run_srun(slurm, config, run, 2, 2, "--set", "training.max_steps=5")
        # Gradients are as large as the weights, and a ring sends them one and a half times.
        num_bytes = (run / "checkpoints" / "latest" / "model.safetensors").stat().st_size
        assert rig["h1"].bytes_sent() > sent_before + 5 * num_bytes
    wait_until_no_processes(rig)
    dragoman("status", run, "--expect", "finished")
    assert "4 workers share" in (run / "log.txt").read_text(encoding="utf-8")


@pytest.mark.timeout(400)
def test_a_stopped_job_saves_queues_itself_again_and_continues_to_the_end(
    slurm: Slurm, dragoman: Run, config: Path, tmp_path: Path
):
    run, script = tmp_path / "run", tmp_path / "job.sbatch"
    dragoman(
        "launch", config, "--for", "slurm", "--nodes", 2, "--gpus-per-node", 0, "--cpus-per-worker", 1,
        "--run-dir", run, "--out", script, "--set", "training.max_steps=200",
    )  # fmt: skip
    run.mkdir()  # as the script says
    environment = slurm.environment | {"PATH": BARE_PATH}  # nothing is activated where the job is submitted
    job = int(slurm.run(["sbatch", "--parsable", script], env=environment).stdout)
    wait_for_step(run, 5)
    slurm.run(["scancel", "--signal=TERM", job])
    slurm.wait_for(job, "PENDING")
    last = read_records(run, "train")[-1]["step"]
    assert 5 <= last < 200
    assert (run / "checkpoints" / "latest").resolve().name == f"step-{last:08d}"
    slurm.wait_for(job, "COMPLETED", seconds=180)
    dragoman("status", run, "--expect", "finished")
    restarts = read_records(run, "restart")
    assert [(restart["step"], restart["workers"]) for restart in restarts] == [(last, 2)]
    assert sorted(train_losses(run)) == list(range(1, 201))
