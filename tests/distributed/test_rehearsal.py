"""A rehearsal with real processes on this machine: it predicts, changes nothing, and the run reports the error of the
prediction; every record says how its time was spent.
"""

import json
import multiprocessing
import os
import re
import shutil
import subprocess
from datetime import timedelta
from itertools import pairwise
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from free_ports import free_port
from program import dragoman_command, learned_bytes, read_records, require_end, run_dragoman

from dragoman.cluster.world import World
from dragoman.corpus.prepared_corpus import PreparedCorpus
from dragoman.diagnosis.step_model import BOTTLENECKS, PARTS
from dragoman.run.config import load_settings
from dragoman.training.rehearsal import rehearse

STEPS, MORE_STEPS = 24, 30
WORKERS = 2
TIMEOUT = timedelta(seconds=60)


pytestmark = pytest.mark.slow


@pytest.fixture(scope="module", autouse=True)
def _one_thread():
    """Several threads of one tiny model only wait for each other where the machine is busy."""
    with pytest.MonkeyPatch.context() as environment:
        environment.setenv("OMP_NUM_THREADS", "1")
        yield


@pytest.fixture(scope="module")
def settings(prepared: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny model whose gradient is cut into one bucket; sampled often, because the run is short."""
    path = tmp_path_factory.mktemp("rehearsal") / "config.toml"
    path.write_text(
        f"""
[data]
prepared = "{prepared}"
[model]
preset = "tiny"
width = 32
feed_forward = 64
[training]
max_steps = {STEPS}
global_batch_tokens = 800
virtual_workers = 4
log_every = 3
[evaluation]
evaluate_every = 12
max_sentences = 4
beam_size = 1
[checkpoints]
save_every = 10
[monitoring]
sample_seconds = 0.2
report = false
""",
        encoding="utf-8",
    )
    return path


def train(settings: Path, name: str, *options: object) -> Path:
    run = settings.with_name(name)
    run_dragoman("train", settings, "--workers", WORKERS, "--run-dir", run, *options)
    return run


@pytest.fixture(scope="module")
def rehearsed(settings: Path) -> Path:
    return train(settings, "rehearsed", "--check")


@pytest.fixture(scope="module")
def brief(settings: Path) -> Path:
    return train(settings, "brief")


@pytest.fixture(scope="module")
def plain(settings: Path) -> Path:
    return train(settings, "plain", "--no-check")


def test_a_rehearsal_leaves_a_prediction(rehearsed: Path):
    [prediction] = read_records(rehearsed, "prediction")
    assert (prediction["step"], prediction["basis"], prediction["workers"]) == (0, "rehearsal", WORKERS)
    seconds = prediction["seconds_per_step"]
    assert 0 < seconds["low"] < seconds["predicted"] < seconds["high"]
    assert set(prediction["parts"]) == set(PARTS)
    assert sum(prediction["parts"].values()) == pytest.approx(seconds["predicted"])
    assert prediction["bottleneck"] in BOTTLENECKS
    assert prediction["links"] == []  # one machine


def test_every_record_has_the_error_of_the_prediction(rehearsed: Path):
    [prediction] = read_records(rehearsed, "prediction")
    expected = prediction["seconds_per_step"]["predicted"]
    for record in read_records(rehearsed, "train"):
        assert record["predicted_seconds_per_step"] == expected
        assert record["prediction_error"] == pytest.approx(record["seconds_per_step"] / expected - 1)


@pytest.mark.parametrize("name", ["rehearsed", "brief"])
def test_a_rehearsed_run_ends_bit_identical_to_one_that_was_not(name: str, plain: Path, request: pytest.FixtureRequest):
    run = request.getfixturevalue(name)
    assert learned_bytes(run, STEPS) == learned_bytes(plain, STEPS)
    losses = [[record["loss"] for record in read_records(each, "train")] for each in (run, plain)]
    assert losses[0] == losses[1]


def test_on_one_machine_a_few_steps_tell_the_expected_duration_before_the_first(brief: Path):
    [prediction] = read_records(brief, "prediction")
    assert (prediction["step"], prediction["basis"], prediction["bottleneck"]) == (0, "rehearsal", "unknown")
    lines = (brief / "log.txt").read_text().splitlines()
    [expected] = [
        number for number, line in enumerate(lines) if re.match(rf"Expected: about .* for {STEPS} steps", line)
    ]
    assert expected < lines.index(f"*** Saved checkpoint of step 0 to {brief}/checkpoints/step-00000000")


def test_without_a_rehearsal_a_run_predicts_from_its_first_steps(plain: Path):
    assert re.search(r"^Expected: about .* for \d+ more steps", (plain / "log.txt").read_text(), re.MULTILINE)
    [prediction] = read_records(plain, "prediction")
    assert prediction["step"] > 0
    assert (prediction["basis"], prediction["bottleneck"]) == ("first steps", "unknown")
    compared = [record["step"] for record in read_records(plain, "train") if "prediction_error" in record]
    assert compared
    assert min(compared) >= prediction["step"]


@pytest.mark.parametrize("name", ["rehearsed", "brief", "plain"])
def test_the_parts_of_every_record_add_up_to_wall_time(name: str, request: pytest.FixtureRequest):
    records = read_records(request.getfixturevalue(name), "train")
    assert len(records) == STEPS // 3
    for record in records:
        parts = record["attribution"]
        assert set(parts) == set(PARTS)
        assert all(seconds >= 0 for seconds in parts.values())
        assert sum(parts.values()) == pytest.approx(record["wall_seconds_per_step"])
        assert record["slowest"]["rank"] in range(WORKERS)
        assert len(record["work_seconds_by_rank"]) == WORKERS
    total = sum(
        later["wall_seconds_per_step"] * (later["step"] - before["step"]) for before, later in pairwise(records)
    )
    assert total == pytest.approx(records[-1]["time"] - records[0]["time"], rel=0.03)
    evaluated = [record["step"] for record in records if record["attribution"]["evaluation"] > 0]
    assert evaluated == [15]  # the evaluation of step 12 lies in the next interval; the last one after all


def test_every_machine_was_sampled(rehearsed: Path):
    [path] = rehearsed.glob("system.*.jsonl")
    samples = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    assert len(samples) > 3
    assert path.name == f"system.{samples[0]['node']}.jsonl"
    for sample in samples:
        assert {"time", "cpu", "memory", "disk", "network", "gpus"} <= set(sample)
        assert sample["network"]


def test_a_finished_run_has_its_verdict(plain: Path):
    [verdict] = read_records(plain, "verdict")
    assert verdict["bottleneck"] in BOTTLENECKS
    assert 0 <= verdict["confidence"] <= 1
    assert verdict["why"] in (plain / "log.txt").read_text(encoding="utf-8")


def test_a_resumed_run_keeps_its_prediction(rehearsed: Path, tmp_path: Path):
    run = tmp_path / "resumed"
    shutil.copytree(rehearsed, run, symlinks=True)
    run_dragoman(
        "train", "--resume", "--workers", WORKERS, "--run-dir", run, "--set", f"training.max_steps={MORE_STEPS}"
    )
    [prediction] = read_records(run, "prediction")
    assert re.search(
        rf"^Expected: about .* for {MORE_STEPS - STEPS} more steps", (run / "log.txt").read_text(), re.MULTILINE
    )
    resumed = [record for record in read_records(run, "train") if record["step"] > STEPS]
    assert resumed
    expected = prediction["seconds_per_step"]["predicted"]
    assert all(record["predicted_seconds_per_step"] == expected for record in resumed)


def test_a_check_predicts_the_time_of_a_run(settings: Path):
    command = dragoman_command("check", settings, "--workers", WORKERS, "--seconds", 5, "--steps", 1_000, "--json")
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    require_end(done, 0, 1)
    found = json.loads(done.stdout)
    assert {"seconds_per_step", "parts", "bottleneck", "links", "advice", "problems", "hours", "cost"} <= set(found)
    assert set(found["seconds_per_step"]) == {"predicted", "low", "high"}
    assert sum(found["parts"].values()) == pytest.approx(found["seconds_per_step"]["predicted"])
    assert found["bottleneck"] in BOTTLENECKS
    assert found["hours"]["predicted"] == pytest.approx(found["seconds_per_step"]["predicted"] * 1_000 / 3_600)
    assert done.returncode == bool(found["problems"])
    assert [size["num_bytes"] for size in found["measured"]["all_reduce"]][-1] == found["measured"]["gradient_bytes"]
    assert len(found["measured"]["work_by_rank"]) == WORKERS
    assert found["measured"]["alone_steps"]


def play_rank(rank: int, port: int, config: Path, answers: multiprocessing.Queue) -> None:
    """Runs one of two ranks, as if on two machines; at module level, so that another process can import it."""
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    torch.set_num_threads(1)
    store = dist.TCPStore("127.0.0.1", port, is_master=rank == 0, wait_for_workers=False, timeout=TIMEOUT)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=WORKERS, timeout=TIMEOUT)
    settings = load_settings(config)
    world = World(rank, WORKERS, machines=("a", "b"))
    noted: list[float] = []
    measured = rehearse(
        settings, PreparedCorpus.open(settings.data.prepared), world, 6.0, lambda so_far: noted.append(so_far.seconds)
    )
    answers.put((rank, json.dumps([measured.to_json(), noted])))
    dist.barrier()
    dist.destroy_process_group()


def test_every_rank_has_measured_the_same(settings: Path):
    """Ranks decide from their measurements how many steps follow; if they decided differently, they would hang."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["dragoman.training.rehearsal"])
    answers, port = context.Queue(), free_port()
    ranks = [context.Process(target=play_rank, args=(rank, port, settings, answers)) for rank in range(WORKERS)]
    for process in ranks:
        process.start()
    try:
        measurements = dict(answers.get(timeout=60) for _ in ranks)
    finally:
        for process in ranks:
            process.join(timeout=10)
            process.kill()
    assert measurements[0] == measurements[1]
    measured, noted = json.loads(measurements[0])
    assert len(noted) == 5  # after every stage, so that an interrupted rehearsal leaves its results
    assert noted == sorted(noted)
    assert [(link["sender"], link["receiver"]) for link in measured["links"]] == [("a", "b"), ("b", "a")]
    assert {link["interface"] for link in measured["links"]} == {"lo"}
    assert len(measured["bucket_ready"]) == len(measured["bucket_bytes"])
    assert measured["all_reduce_inside"] == []  # one rank on each machine
