"""`dragoman prepare` as people run it: on any number of processes, interrupted, twice, from pipes and configs."""

import gzip
import json
import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import psutil
import pytest
from corpora import Files, content_of, decode_all, make_pairs, names_in, write_pairs
from program import Run, dragoman_command

from dragoman.corpus.prepared_corpus import PreparedCorpus

# The real command, with blocks and shards so small that little text makes many, and a pool of processes for it. The
# sizes are read by the first process only; the workers run as they always do.
SMALL_PIECES = """
import dragoman.cli
import dragoman.corpus.formats.blocks as blocks
import dragoman.corpus.preparation.engine as engine
import dragoman.corpus.preparation.shuffle_stage as shuffling
blocks.BLOCK_BYTES, shuffling.SHARD_TEXT_BYTES, engine.SMALL_BYTES = 10_000, 30_000, 0
dragoman.cli.main()
"""
NUM_PAIRS = 3_000
STOPPED = "dragoman: Stopped; run the same command again to continue where it stopped."


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Files:
    # Every tenth pair is a copy of one far before it.
    pairs = make_pairs(NUM_PAIRS)
    pairs = [pairs[number // 2] if number % 10 == 9 else pair for number, pair in enumerate(pairs)]
    return write_pairs(tmp_path_factory.mktemp("text"), "train", pairs)


def command(files: Files, out: Path, *more: object) -> list[str]:
    options = ["--source", files[0], "--target", files[1], "--out", out, "--vocab-size", 300, "--json", *more]
    return [sys.executable, "-c", SMALL_PIECES, "prepare", *map(str, options)]


def prepare(files: Files, out: Path, *more: object, code: int = 0) -> subprocess.CompletedProcess[str]:
    done = subprocess.run(command(files, out, *more), capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == code, done.stderr
    assert "Traceback" not in done.stderr
    return done


@pytest.fixture(scope="module")
def expected(files: Files, tmp_path_factory: pytest.TempPathFactory) -> dict[str, object]:
    """What an uninterrupted preparation by one process gives."""
    out = tmp_path_factory.mktemp("expected") / "out"
    prepare(files, out, "--processes", 1)
    content = content_of(out)
    assert len([name for name in content if name.endswith("source.ids")]) > 5
    return content


@pytest.mark.parametrize("num_processes", [2, 3])
def test_the_same_bytes_by_any_number_of_processes(
    files: Files, expected: dict[str, object], tmp_path: Path, num_processes: int
):
    done = prepare(files, tmp_path / "out", "--processes", num_processes)
    assert content_of(tmp_path / "out") == expected
    assert names_in(tmp_path) == {"out"}
    figures = json.loads(done.stdout)
    assert figures["cleaning"]["num_read"] == NUM_PAIRS
    assert figures["fingerprint"] == PreparedCorpus.open(tmp_path / "out").fingerprint


# --- interruptions


@contextmanager
def running(files: Files, out: Path) -> Iterator[subprocess.Popen[str]]:
    """The command at work on two processes, in a session of its own as a terminal would give it."""
    process = subprocess.Popen(
        command(files, out, "--processes", 2),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    try:
        yield process
    finally:
        process.kill()
        process.wait()
        # Not read to their end: a worker that outlived its parent would hold them open.
        for stream in (process.stdout, process.stderr):
            assert stream is not None
            stream.close()


def wait_for_files(process: subprocess.Popen[str], out: Path, pattern: str, number: int) -> Path:
    """Waits until the work folder has so many files like this, and returns it."""
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        assert process.poll() is None, process.communicate()
        for folder in out.parent.glob(f".{out.name}.*.partial"):
            if len(list(folder.glob(pattern))) >= number:
                return folder
        time.sleep(0.001)
    raise AssertionError(f"no {number} files like {pattern}")


def children_of(process: subprocess.Popen[str]) -> list[psutil.Process]:
    return psutil.Process(process.pid).children(recursive=True)


def mtimes(folder: Path, pattern: str) -> dict[str, int]:
    """When each file was written, of those that do not vanish while we look."""
    times = {}
    for path in folder.glob(pattern):
        with suppress(FileNotFoundError):
            times[path.name] = path.stat().st_mtime_ns
    return times


@pytest.mark.parametrize(
    ("pattern", "number"),
    [
        pytest.param("cleaned/*.json", 1, marks=pytest.mark.slow),
        pytest.param("cleaned/*.json", 12, marks=pytest.mark.slow),
        pytest.param("shuffled/*.json", 2, marks=pytest.mark.slow),
        ("encoded/*.json", 2),
    ],
)
def test_killed_it_leaves_no_process_and_continues_to_the_same_bytes(
    files: Files, expected: dict[str, object], tmp_path: Path, pattern: str, number: int
):
    out = tmp_path / "out"
    with running(files, out) as process:
        work = wait_for_files(process, out, pattern, number)
        workers = children_of(process)
        process.kill()
        process.wait()
        _, alive = psutil.wait_procs(workers, timeout=10)
        for worker in alive:
            worker.kill()
    assert not alive
    assert names_in(tmp_path) == {work.name}
    finished = mtimes(work, pattern)
    assert len(finished) >= number

    with running(files, out) as again:
        while again.poll() is None:
            # Files vanish when the work is done; until then, what was finished is not made again.
            now = mtimes(work, pattern)
            assert {
                name: time_written for name, time_written in now.items() if name in finished
            }.items() <= finished.items()
            time.sleep(0.005)
        _, errors = again.communicate()
        assert again.returncode == 0, errors
    assert content_of(out) == expected
    assert names_in(tmp_path) == {"out"}


@pytest.mark.slow
def test_killed_again_and_again_at_random_moments(files: Files, expected: dict[str, object], tmp_path: Path):
    out, randomness = tmp_path / "out", random.Random(1)
    for _ in range(3):
        with running(files, out) as process:
            wait_for_files(process, out, "lock", 1)
            time.sleep(randomness.uniform(0, 0.7))
            process.kill()
    prepare(files, out)
    assert content_of(out) == expected
    assert names_in(tmp_path) == {"out"}


@pytest.mark.parametrize(
    ("pattern", "number"),
    [
        ("lock", 1),
        pytest.param("cleaned/*.json", 2, marks=pytest.mark.slow),
        pytest.param("encoded/*.json", 1, marks=pytest.mark.slow),
    ],
)
def test_control_c_ends_quickly_with_one_sentence_and_keeps_the_work(
    files: Files, expected: dict[str, object], tmp_path: Path, pattern: str, number: int
):
    out = tmp_path / "out"
    with running(files, out) as process:
        work = wait_for_files(process, out, pattern, number)
        workers = children_of(process)
        begin = time.monotonic()
        os.killpg(process.pid, signal.SIGINT)
        _, errors = process.communicate(timeout=30)
    assert time.monotonic() - begin < 5
    assert process.returncode == 1
    assert errors.splitlines()[-1] == STOPPED
    assert all(line.startswith("Held out ") for line in errors.splitlines()[:-1]), errors
    assert not psutil.wait_procs(workers, timeout=10)[1]
    assert names_in(tmp_path) == {work.name}
    prepare(files, out)
    assert content_of(out) == expected


def test_of_two_at_once_the_second_is_refused(files: Files, tmp_path: Path):
    out = tmp_path / "out"
    with running(files, out) as process:
        wait_for_files(process, out, "cleaned/*.json", 1)
        process.send_signal(signal.SIGSTOP)
        done = prepare(files, out, code=1)
        process.send_signal(signal.SIGCONT)
        assert done.stderr == f"dragoman: {out} is being prepared by another process; wait for it, or stop it first.\n"
        _, errors = process.communicate(timeout=60)
        assert process.returncode == 0, errors
    assert names_in(tmp_path) == {"out"}


def test_nothing_is_prepared_twice(files: Files, tmp_path: Path):
    out = tmp_path / "out"
    prepare(files, out)
    before = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*")}
    done = prepare(files, out)
    assert f"{out} is already prepared from the same text with the same settings" in done.stderr
    assert {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*")} == before
    assert "was prepared with other settings" in prepare(files, out, "--seed", 2, code=1).stderr


# --- other ways in


@pytest.fixture
def few(tmp_path: Path) -> Files:
    return write_pairs(tmp_path, "few", make_pairs(60))


def prepare_json(dragoman: Run, *arguments: object, **options: object) -> dict[str, dict[str, object]]:
    return dict(json.loads(dragoman("prepare", *arguments, "--json", **options).stdout))


def test_process_substitution(dragoman: Run, few: Files, tmp_path: Path):
    for file in few:
        Path(f"{file}.gz").write_bytes(gzip.compress(file.read_bytes()))
    line = (
        f"exec {' '.join(dragoman_command('prepare'))} --source <(zcat {few[0]}.gz) --target <(cat {few[1]}.gz) "
        f"--out {tmp_path / 'piped'} --json"
    )
    done = subprocess.run(["bash", "-c", line], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    assert sorted(decode_all(PreparedCorpus.open(tmp_path / "piped"))) == sorted(make_pairs(60))
    assert not list(tmp_path.glob(".*"))


def test_a_named_pipe_that_is_bad_is_told_by_its_name(dragoman: Run, few: Files, tmp_path: Path):
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    threading.Thread(target=pipe.write_bytes, args=[b"one line\n"], daemon=True).start()
    done = dragoman("prepare", "--source", pipe, "--target", few[1], "--out", tmp_path / "out", code=1)
    assert f"{pipe} has 1 lines but {few[1]} has 60" in done.stderr
    assert not list(tmp_path.glob(".*"))


def test_a_config_with_several_corpora_for_training_and_preparing(dragoman: Run, tmp_path: Path):
    there = tmp_path / "there"
    for name, seed in (("news", 1), ("crawl", 2)):
        write_pairs(there, name, [(f"{name} {source}", target) for source, target in make_pairs(60, seed)])
    (there / "run.toml").write_text(
        f"""
[data]
prepared = "{tmp_path / "prepared"}"
[model]
preset = "tiny"
[prepare]
held_out = 3
[[prepare.corpora]]
source = "news.en"
target = "news.de"
weight = 2.0
[[prepare.corpora]]
source = "crawl.en"
target = "crawl.de"
name = "web"
tag = "<web>"
[prepare.tokenizer]
vocab_size = 120
""",
        encoding="utf-8",
    )
    figures = prepare_json(dragoman, there / "run.toml", "--seed", 5)
    corpus = PreparedCorpus.open(tmp_path / "prepared")
    assert [(each["name"], each["weight"]) for each in figures["corpora"]] == [("news", 2.0), ("web", 1.0)]
    assert sum(each["num_pairs"] for each in figures["corpora"]) == corpus.split("train").num_pairs == 114
    assert {source.split()[0] for source, _ in decode_all(corpus)} == {"news", "<web>"}
    assert figures["settings"]["seed"] == 5


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["--source", "few.en", "--target", "few.en", "--out", "out"], "few.en is given twice"),
        (["--source", "few.en", "--source", "x", "--target", "few.de", "--out", "out"], "2 source files and 1 target"),
        (["--source", "few.en", "--target", "few.de"], "Nowhere to write to: give --out"),
        (["--out", "out"], "No training text was given"),
        (["--corpus", "few.en", "--engine", "slurm", "--out", "out"], "--engine is 'slurm'; it can be local or ray"),
        (["--source", "few.en", "--target", "few.de", "--cleaning", "all", "--out", "out"], "prepare.cleaning = 'all'"),
        (["--source", "few.en", "--target", "few.de", "--filter", "langage=off", "--out", "out"], "'language'"),
        (["--source", "few.en", "--target", "few.de", "--filter", "language=9", "--out", "out"], "--languages en-de"),
        (
            ["--source", "few.en", "--target", "few.de", "--vocab-size", "0", "--out", "out"],
            "prepare.tokenizer.vocab_size",
        ),
        (["--source", "few.en", "--target", "few.de", "--seed", "-1", "--out", "out"], "prepare.seed = -1"),
        (["nowhere.toml"], "There is no config file nowhere.toml"),
    ],
)
def test_wrong_usage_ends_with_code_2(dragoman: Run, few: Files, tmp_path: Path, arguments: list[str], expected: str):
    done = dragoman("prepare", *arguments, code=2, cwd=tmp_path)
    assert expected in done.stderr
    assert len(done.stderr.splitlines()) == 1
    assert names_in(tmp_path) == {"few.en", "few.de"}


# --- the cleaning rule of Moses


def passes_moses(source: str, target: str) -> bool:
    """clean-corpus-n.perl with 1 and 80, told again: words between blanks, and its default ratio of 9."""
    num_source, num_target = len(source.split()), len(target.split())
    if not (1 <= num_source <= 80 and 1 <= num_target <= 80):
        return False
    return num_source <= 9 * num_target and num_target <= 9 * num_source


def test_the_seeds_rule_gives_the_survivors_of_moses(dragoman: Run, tmp_path: Path):
    lengths = [0, 1, 2, 8, 9, 10, 18, 19, 79, 80, 81, 200]
    pairs = [
        (" ".join([f"s{number}a{other}"] * number), " ".join([f"t{number}b{other}"] * other))
        for number in lengths
        for other in lengths
    ]
    files = write_pairs(tmp_path, "seeds", [(f" {source}\t ", target.replace(" ", "  ")) for source, target in pairs])
    figures = prepare_json(
        dragoman, "--source", files[0], "--target", files[1], "--cleaning", "seeds", "--out", tmp_path / "out"
    )
    survivors = [pair for pair in pairs if passes_moses(*pair)]
    assert 10 < len(survivors) < len(pairs) / 2
    assert sorted(decode_all(PreparedCorpus.open(tmp_path / "out"))) == sorted(survivors)
    assert figures["cleaning"]["num_kept"] == len(survivors)
