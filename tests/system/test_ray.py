"""Tests of `--engine ray` on a Ray cluster of two workers on this machine: the same output, and clear errors."""

import os
import secrets
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
from corpora import Files, content_of, make_pairs, names_in, write_pairs
from program import call_dragoman

pytest.importorskip("ray", reason="Ray is an optional dependency: pip install 'dragoman[ray]'")

pytestmark = pytest.mark.slow

# As in test_prepare_command.py: little text in many blocks and shards.
PROGRAM = """
import dragoman.cli
import dragoman.corpus.formats.blocks as blocks
import dragoman.corpus.preparation.shuffle_stage as shuffle_stage
import dragoman.translation.files.input_blocks as input_blocks
blocks.BLOCK_BYTES, shuffle_stage.SHARD_TEXT_BYTES, input_blocks.LINES_PER_BLOCK = 10_000, 30_000, 40
dragoman.cli.main()
"""
# A cluster in the hands of one process: it starts the cluster, says where it is, and ends it when its input ends.
CLUSTER = """
import sys, ray
context = ray.init(address="local", num_cpus=2, include_dashboard=False, object_store_memory=80 * 2**20,
                   log_to_driver=False, _temp_dir=sys.argv[1], _node_ip_address="127.0.0.1")
print(context.address_info["gcs_address"], flush=True)
sys.stdin.read()
ray.shutdown()
"""
ENVIRONMENT = {name: value for name, value in os.environ.items() if not name.startswith("RAY_")} | {
    "RAY_USAGE_STATS_ENABLED": "0",
    # Whoever can reach a cluster can run code in it; so ours has a password, made for this test only.
    "RAY_AUTH_MODE": "token",
    "RAY_AUTH_TOKEN": secrets.token_hex(32),
}
START_SECONDS = 120


def prepare(files: Files, out: Path, *more: object, code: int = 0, **variables: str) -> str:
    options = ["--source", files[0], "--target", files[1], "--out", out, "--discard-work", "--json", *more]
    return run("prepare", *options, code=code, **variables)


def run(*words: object, code: int = 0, **variables: str) -> str:
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, *map(str, words)],
        capture_output=True,
        text=True,
        timeout=250,
        check=False,
        env=ENVIRONMENT | variables,
    )
    assert done.returncode == code, done.stderr
    assert "Traceback" not in done.stderr
    return done.stderr


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Files:
    return write_pairs(tmp_path_factory.mktemp("text"), "train", [*make_pairs(1_500), *make_pairs(100)])


# Alone, and before the others of this file: a cluster of another test would be found.
@pytest.mark.serial
@pytest.mark.parametrize("variables", [{}, {"RAY_ADDRESS": "127.0.0.1:1"}])
def test_without_a_cluster_one_message_says_what_to_do(files: Files, tmp_path: Path, variables: dict[str, str]):
    with tempfile.TemporaryDirectory(prefix="ray", dir="/tmp") as folder:
        message = prepare(files, tmp_path / "out", "--engine", "ray", code=1, RAY_TMPDIR=folder, **variables)
    assert "No Ray cluster was found" in message
    assert "ray start --head" in message
    assert names_in(tmp_path) == set()
    assert len(message.strip().splitlines()) == 1, message


@pytest.fixture(scope="module")
def cluster() -> Iterator[str]:
    """The address of a cluster of our own; its paths must be short, because they become names of sockets."""
    with tempfile.TemporaryDirectory(prefix="ray", dir="/tmp") as folder:
        keeper = subprocess.Popen(
            [sys.executable, "-c", CLUSTER, folder],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            env=ENVIRONMENT,
            start_new_session=True,
        )
        assert keeper.stdin is not None
        assert keeper.stdout is not None
        processes = [psutil.Process(keeper.pid)]
        try:
            address = keeper.stdout.readline().strip()
            processes += processes[0].children(recursive=True)
            assert address, "Ray did not start"
            yield address
            processes += processes[0].children(recursive=True)
            keeper.stdin.close()
            keeper.wait(timeout=60)
        finally:
            _, alive = psutil.wait_procs(processes, timeout=10)
            for process in alive:
                process.kill()


@pytest.mark.timeout(START_SECONDS + 300)
def test_a_cluster_gives_the_same_bytes_as_this_machine(cluster: str, files: Files, tmp_path: Path):
    prepare(files, tmp_path / "local", "--vocab-size", 300)
    prepare(files, tmp_path / "ray", "--vocab-size", 300, "--engine", "ray", RAY_ADDRESS=cluster)
    assert content_of(tmp_path / "ray") == content_of(tmp_path / "local")
    assert names_in(tmp_path) == {"ray", "local"}


@pytest.mark.timeout(START_SECONDS + 300)
def test_errors_of_tasks_are_reported_unchanged(cluster: str, files: Files, tmp_path: Path):
    message = prepare(files, tmp_path / "out", "--vocab-size", 30_000, "--engine", "ray", code=1, RAY_ADDRESS=cluster)
    assert "A vocabulary of 30000 subwords was asked for, but this text gives at most" in message.splitlines()[-1]
    assert names_in(tmp_path) == {".dragoman-work"}


@pytest.mark.timeout(START_SECONDS + 300)
def test_a_cluster_translates_like_this_machine(cluster: str, trained_run: Path, tmp_path: Path):
    text, out = tmp_path / "many.en", tmp_path / "out.de"
    text.write_text("".join(f"The dog sees the house {number}.\n" if number % 7 else "\n" for number in range(200)))
    here = call_dragoman("translate", trained_run, text, "--beam-size", 1, "--workers", 1).stdout
    run("translate", trained_run, text, "--engine", "ray", "--out", out, "--beam-size", 1, RAY_ADDRESS=cluster)
    assert out.read_text() == here
    assert sorted(path.name for path in tmp_path.iterdir()) == ["many.en", "out.de"]
