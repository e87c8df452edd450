"""Tests of `dragoman prepare` as people run it: with several processes, interrupted, twice, from pipes and configs."""

import gzip
import json
import os
import random
import shutil
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

from dragoman.cli import main
from dragoman.corpus.prepared_corpus import PreparedCorpus

# The real command, with blocks and shards so small that little text makes many, and a pool of processes for it. The
# sizes are read by the first process only; the workers run as they always do. With HOLD_AT, the first process stops
# when the progress of that stage reaches that number of pairs, prints "held", and waits for a line on its input.
PROGRAM = """
import os, sys
import dragoman.cli
import dragoman.corpus.formats.blocks as blocks
import dragoman.corpus.preparation.engine as engine
import dragoman.corpus.preparation.shuffle_stage as shuffle_stage
import dragoman.corpus.preparation.work_folder as stage
blocks.BLOCK_BYTES, shuffle_stage.SHARD_TEXT_BYTES, engine.SMALL_BYTES = 10_000, 30_000, 0

class HeldContext(stage.StageContext):
    def __init__(self, engine, say, progress):
        wanted, at_least = os.environ["HOLD_AT"].split(":")
        def hold(name, num_done, num_total):
            nonlocal wanted
            progress(name, num_done, num_total)
            if name == wanted and num_done >= int(at_least):
                wanted = None
                print("held", flush=True)
                sys.stdin.readline()
        super().__init__(engine, say, hold)

if "HOLD_AT" in os.environ:
    import dragoman.corpus.preparation.prepare as prepare
    prepare.StageContext = HeldContext
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
    return [sys.executable, "-c", PROGRAM, "prepare", *map(str, options)]


def prepare(files: Files, out: Path, *more: object, code: int = 0) -> subprocess.CompletedProcess[str]:
    done = subprocess.run(command(files, out, *more), capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == code, done.stderr
    assert "Traceback" not in done.stderr
    return done


@pytest.fixture(scope="module")
def prepared(files: Files, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The result of an uninterrupted preparation by one process, which keeps its work; tests must not change it."""
    out = tmp_path_factory.mktemp("prepared") / "out"
    done = prepare(files, out, "--processes", 1)
    assert f"The cleaned text is kept in {out.parent / '.dragoman-work'}" in done.stderr
    return out


@pytest.fixture(scope="module")
def expected(prepared: Path) -> dict[str, object]:
    content = content_of(prepared)
    assert len([name for name in content if name.endswith("source.ids")]) > 5
    return content


def test_any_number_of_processes_gives_the_same_bytes(files: Files, expected: dict[str, object], tmp_path: Path):
    done = prepare(files, tmp_path / "out", "--processes", 3, "--discard-work")
    assert content_of(tmp_path / "out") == expected
    assert names_in(tmp_path) == {"out"}
    figures = json.loads(done.stdout)
    assert figures["cleaning"]["num_read"] == NUM_PAIRS
    assert figures["fingerprint"] == PreparedCorpus.open(tmp_path / "out").fingerprint


def test_a_finished_output_is_not_prepared_again(files: Files, prepared: Path):
    folder = prepared.parent
    before = {path: path.stat().st_mtime_ns for path in folder.rglob("*")}
    done = prepare(files, prepared)
    assert f"{prepared} is already prepared from the same text with the same settings" in done.stderr
    assert "was prepared with other settings" in prepare(files, prepared, "--seed", 2, code=1).stderr
    assert {path: path.stat().st_mtime_ns for path in folder.rglob("*")} == before


def test_another_vocabulary_size_does_not_clean_again(files: Files, prepared: Path, tmp_path: Path):
    shutil.copytree(prepared.parent / ".dragoman-work", tmp_path / ".dragoman-work")
    options = ["--vocab-size", 200, "--processes", 1, "--discard-work"]
    done = prepare(files, tmp_path / "again", *options)
    assert "Using the text that an earlier preparation cleaned and shuffled" in done.stderr
    assert names_in(tmp_path) == {"again"}
    done = prepare(files, tmp_path / "fresh", *options)
    assert "Using the text" not in done.stderr
    assert content_of(tmp_path / "again") == content_of(tmp_path / "fresh")


# --- interruptions


@contextmanager
def held(files: Files, out: Path, stage: str, num_pairs: int) -> Iterator[subprocess.Popen[str]]:
    """Holds the command at this point of its progress, while two worker processes run.

    It is in a session of its own, as a terminal would give it.
    """
    process = subprocess.Popen(
        command(files, out, "--processes", 2, "--discard-work"),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
        env=os.environ | {"HOLD_AT": f"{stage}:{num_pairs}"},
    )
    assert process.stdin is not None
    assert process.stdout is not None
    assert process.stderr is not None
    try:
        assert process.stdout.readline() == "held\n"
        yield process
    finally:
        process.kill()
        process.wait()
        # Not read to their end: a worker that outlived its parent would hold them open.
        for stream in (process.stdin, process.stdout, process.stderr):
            stream.close()


def children_of(process: subprocess.Popen[str]) -> list[psutil.Process]:
    return psutil.Process(process.pid).children(recursive=True)


def finished_tasks(folder: Path, stage: str) -> dict[str, int]:
    """When the record of each finished task of a stage was written."""
    return {path.name: path.stat().st_mtime_ns for path in folder.glob(f".out.partial/*/{stage}/*.json")}


def test_killed_in_each_stage_it_leaves_no_process_and_continues_to_the_same_bytes(
    files: Files, expected: dict[str, object], tmp_path: Path
):
    finished: dict[str, int] = {}
    stages = [("cleaned", "reading and cleaning", 600), ("shuffled", "shuffling", 600), ("encoded", "encoding", 600)]
    before = ""
    for records, stage, num_pairs in stages:
        with held(files, tmp_path / "out", stage, num_pairs) as process:
            # Blocks are removed when they are shuffled; until then, no finished task was run again.
            assert finished.items() <= finished_tasks(tmp_path, before).items()
            workers = children_of(process)
            assert workers
            process.kill()
            _, alive = psutil.wait_procs(workers, timeout=30)
            for worker in alive:
                worker.kill()
        assert not alive
        assert names_in(tmp_path) == {".out.partial"}
        before, finished = records, finished_tasks(tmp_path, records)
        assert finished
    prepare(files, tmp_path / "out", "--processes", 1, "--discard-work")
    assert content_of(tmp_path / "out") == expected
    assert names_in(tmp_path) == {"out"}


@pytest.mark.slow
def test_killed_at_random_moments_it_continues_to_the_same_bytes(
    files: Files, expected: dict[str, object], tmp_path: Path
):
    out, randomness = tmp_path / "out", random.Random(1)
    for _ in range(3):
        process = subprocess.Popen(command(files, out), stderr=subprocess.PIPE, text=True)
        # From before its first task to after its end: where it has ended by itself, there is nothing to kill.
        with suppress(subprocess.TimeoutExpired):
            process.communicate(timeout=randomness.uniform(0.5, 2.5))
        process.kill()
        process.communicate()
    prepare(files, out)
    assert content_of(out) == expected


def test_every_signal_ends_with_one_message_and_keeps_the_work(
    files: Files, expected: dict[str, object], tmp_path: Path
):
    for stage, num_pairs, number in (
        ("reading and cleaning", 0, signal.SIGINT),
        ("reading and cleaning", 600, signal.SIGTERM),
        ("encoding", 600, signal.SIGHUP),
    ):
        with held(files, tmp_path / "out", stage, num_pairs) as process:
            workers = children_of(process)
            begin = time.monotonic()
            os.killpg(process.pid, number)
            _, errors = process.communicate(timeout=60)
        assert time.monotonic() - begin < 30
        assert process.returncode == 1
        assert errors.splitlines()[-1] == STOPPED
        assert "Traceback" not in errors
        assert not psutil.wait_procs(workers, timeout=30)[1]
        assert names_in(tmp_path) == {".out.partial"}
    done = prepare(files, tmp_path / "out", "--processes", 1, "--discard-work")
    assert "Using the text that an earlier preparation cleaned and shuffled" in done.stderr
    assert content_of(tmp_path / "out") == expected


def test_of_two_at_once_the_second_is_refused(files: Files, tmp_path: Path):
    out = tmp_path / "out"
    with held(files, out, "reading and cleaning", 600) as process:
        done = prepare(files, out, code=1)
        assert done.stderr == f"dragoman: {out} is being prepared by another process; wait for it, or stop it first.\n"
        _, errors = process.communicate(input="go on\n", timeout=120)
        assert process.returncode == 0, errors
    assert names_in(tmp_path) == {"out"}


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
    assert {path.name for path in tmp_path.glob(".*")} == {".dragoman-work"}


def test_a_bad_named_pipe_is_reported_by_its_name(dragoman: Run, few: Files, tmp_path: Path):
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
    ("arguments", "message"),
    [
        (["--source", "few.en", "--target", "few.en", "--out", "out"], "few.en is given twice"),
        (["--source", "few.en", "--source", "x", "--target", "few.de", "--out", "out"], "2 source files and 1 target"),
        (["--source", "few.en", "--target", "few.de"], "No output folder: give --out"),
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
def test_wrong_usage_ends_with_code_2(
    few: Files, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], arguments: list[str], message: str
):
    monkeypatch.chdir(few[0].parent)
    monkeypatch.setattr(sys, "argv", ["dragoman", "prepare", *arguments])
    with pytest.raises(SystemExit) as end:
        main()
    assert end.value.code == 2
    errors = capsys.readouterr().err
    assert message in errors
    assert len(errors.splitlines()) == 1
    assert names_in(few[0].parent) == {"few.en", "few.de"}


# --- the cleaning rule of Moses


def passes_moses(source: str, target: str) -> bool:
    """The rule of clean-corpus-n.perl with 1 and 80: words between blanks, and its default ratio of 9."""
    num_source, num_target = len(source.split()), len(target.split())
    if not (1 <= num_source <= 80 and 1 <= num_target <= 80):
        return False
    return num_source <= 9 * num_target and num_target <= 9 * num_source


def test_the_moses_rule_keeps_the_same_pairs_as_moses(dragoman: Run, tmp_path: Path):
    lengths = [0, 1, 2, 8, 9, 10, 18, 19, 79, 80, 81, 200]
    pairs = [
        (" ".join([f"s{number}a{other}"] * number), " ".join([f"t{number}b{other}"] * other))
        for number in lengths
        for other in lengths
    ]
    files = write_pairs(tmp_path, "moses", [(f" {source}\t ", target.replace(" ", "  ")) for source, target in pairs])
    figures = prepare_json(
        dragoman, "--source", files[0], "--target", files[1], "--cleaning", "moses", "--out", tmp_path / "out"
    )
    survivors = [pair for pair in pairs if passes_moses(*pair)]
    assert 10 < len(survivors) < len(pairs) / 2
    assert sorted(decode_all(PreparedCorpus.open(tmp_path / "out"))) == sorted(survivors)
    assert figures["cleaning"]["num_kept"] == len(survivors)
