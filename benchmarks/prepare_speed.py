"""Compares preparing a corpus with SentencePiece only encoding it: `python benchmarks/prepare_speed.py`.

Ours is the whole command (read, check, clean with all standard filters, shuffle, encode, describe) with two processes
and an existing vocabulary; theirs calls `encode` with two threads on text in memory. Both alternate. Exit code 1 if
the median ratio of pairs per second, the peak memory, or the cost of opening the result is beyond its limit.
`--pairs 4500000 --rounds 1` is the size of WMT16.
"""

import argparse
import json
import subprocess
import sys
import tempfile
import threading
import time
from dataclasses import asdict, dataclass
from itertools import islice
from pathlib import Path
from typing import Any

import psutil
import sentencepiece
from large_corpus import write_large_corpus
from multi30k import REPOSITORY
from results import describe_machine, end_with, positive_count, save_result, summarise

from dragoman.corpus.tokenizer import train_tokenizer
from dragoman.run.errors import UserError

NUM_PROCESSES = 2
VOCAB_SIZE = 32_768
NUM_TOKENIZER_LINES = 200_000
LINES_PER_CALL = 20_000
REQUIRED_RATIO = 0.6
MAX_PEAK_BYTES = 1.5 * 2**30
MAX_OPENING_SECONDS = 1.0
MAX_OPENING_BYTES = 200e6
SECONDS_BETWEEN_SAMPLES = 0.1


@dataclass(frozen=True)
class Preparation:
    """One run of the command."""

    seconds: float
    peak_bytes: int
    """Largest sampled sum of the resident memory of all its processes."""
    num_pairs_read: int
    num_pairs_kept: int


def make_vocabulary(source: Path, target: Path, folder: Path) -> Path:
    """Trains the joint vocabulary that both sides use."""
    lines: list[str] = []
    for path in (source, target):
        with path.open(encoding="utf-8", newline="\n") as file:
            lines += (line.rstrip("\n") for line in islice(file, NUM_TOKENIZER_LINES // 2))
    path = folder / "vocabulary.model"
    path.write_bytes(train_tokenizer(lines, VOCAB_SIZE))
    return path


def prepare(source: Path, target: Path, vocabulary: Path | None, out: Path) -> Preparation:
    """Runs the command as a user would, and samples its memory."""
    command = [sys.executable, "-m", "dragoman", "prepare", "--source", str(source), "--target", str(target)]
    command += ["--languages", "en-de", "--out", str(out), "--processes", str(NUM_PROCESSES), "--json"]
    command += ["--discard-work"]  # so that every round cleans the text
    command += ["--reuse-vocabulary", str(vocabulary)] if vocabulary else ["--vocab-size", str(VOCAB_SIZE)]
    begin = time.perf_counter()
    with subprocess.Popen(command, cwd=REPOSITORY, stdout=subprocess.PIPE, text=True) as process:
        watch = MemoryWatch(process.pid)
        manifest, _ = process.communicate()
        seconds = time.perf_counter() - begin
    if process.returncode:
        raise UserError("dragoman prepare failed.")
    cleaning = json.loads(manifest)["cleaning"]
    return Preparation(seconds, watch.stop(), cleaning["num_read"], cleaning["num_kept"])


class MemoryWatch:
    """Samples the memory of a process and its children in a thread."""

    def __init__(self, pid: int) -> None:
        self._process = psutil.Process(pid)
        self._peak_bytes = 0
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def stop(self) -> int:
        """Ends the sampling and returns the largest sum."""
        self._is_over.set()
        self._thread.join()
        return self._peak_bytes

    def _run(self) -> None:
        while not self._is_over.wait(SECONDS_BETWEEN_SAMPLES):
            try:
                processes = [self._process, *self._process.children(recursive=True)]
                self._peak_bytes = max(self._peak_bytes, sum(map(_resident_bytes, processes)))
            except psutil.NoSuchProcess:
                return


def _resident_bytes(process: psutil.Process) -> int:
    try:
        return int(process.memory_info().rss)
    except psutil.NoSuchProcess:
        return 0


def encode(source: Path, target: Path, vocabulary: Path) -> float:
    """Seconds that the threads of SentencePiece take for the same text, without reading it."""
    processor = sentencepiece.SentencePieceProcessor(model_file=str(vocabulary))
    seconds = 0.0
    for path in (source, target):
        with path.open(encoding="utf-8", newline="\n") as file:
            while lines := [line.rstrip("\n") for line in islice(file, LINES_PER_CALL)]:
                begin = time.perf_counter()
                processor.encode(lines, out_type=int, num_threads=NUM_PROCESSES)
                seconds += time.perf_counter() - begin
    return seconds


OPENING_PROGRAM = """
import json, sys, time
from pathlib import Path
import psutil
from dragoman.corpus.batching import BatchSettings, BatchStream
from dragoman.corpus.mixture import Mixture
from dragoman.corpus.prepared_corpus import PreparedCorpus
from dragoman.run.config import DataSettings
process = psutil.Process()
before = process.memory_info().rss
begin = time.perf_counter()
corpus = PreparedCorpus.open(Path(sys.argv[1]))
mixture = Mixture.build(corpus.train_corpora, DataSettings(prepared=corpus.folder))
settings = BatchSettings(global_batch_tokens=16384, virtual_workers=4, max_tokens=256, seed=1)
stream = BatchStream(corpus.split("train"), corpus.train_length_counts, mixture, settings)
opened = time.perf_counter()
plan = stream.next_step()
for pairs in plan.micro_batches:
    stream.micro_batch(pairs)
stepped = time.perf_counter()
print(json.dumps({
    "seconds_to_open": opened - begin, "seconds_to_first_batch": stepped - begin,
    "bytes_added": process.memory_info().rss - before, "bytes_in_all": process.memory_info().rss,
}))
"""


def open_prepared(out: Path) -> dict[str, float]:
    """Time and memory of a new process to open the corpus and make the first batch."""
    done = subprocess.run([sys.executable, "-c", OPENING_PROGRAM, str(out)], capture_output=True, text=True, check=True)
    figures: dict[str, float] = json.loads(done.stdout)
    return figures


def main() -> int:
    """Measures and checks the limits."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("--pairs", type=positive_count, default=300_000, help="size of the corpus")
    parser.add_argument("--rounds", type=positive_count, default=3)
    parser.add_argument("--folder", type=Path, help="folder to work in (default: a temporary folder)")
    parser.add_argument("--train-vocabulary", action="store_true", help="also measure with training a vocabulary")
    options = parser.parse_args()
    machine = describe_machine()
    with tempfile.TemporaryDirectory(dir=options.folder) as name:
        figures = measure(Path(name), options.pairs, options.rounds, options.train_vocabulary)
    print(json.dumps(figures, indent=2))
    save_result("prepare_speed" if options.pairs <= 300_000 else "prepare_large", machine, figures)
    found = failures(figures)
    for failure in found:
        print(f"Beyond its limit: {failure}")
    return 1 if found else 0


def measure(folder: Path, num_pairs: int, num_rounds: int, with_vocabulary: bool) -> dict[str, Any]:
    """Runs all rounds, alternating between ours and theirs."""
    source, target = write_large_corpus(folder, num_pairs)
    vocabulary = make_vocabulary(source, target, folder)
    ours, theirs = [], []
    for number in range(num_rounds):
        ours.append(prepare(source, target, vocabulary, folder / f"prepared-{number}"))
        theirs.append(encode(source, target, vocabulary))
    figures: dict[str, Any] = {
        "pairs": num_pairs,
        "text_bytes": source.stat().st_size + target.stat().st_size,
        "ours_seconds": summarise([each.seconds for each in ours]),
        "theirs_seconds": summarise(theirs),
        "ratio": summarise([encoding / each.seconds for each, encoding in zip(ours, theirs, strict=True)]),
        "ours_pairs_per_second": summarise([num_pairs / each.seconds for each in ours]),
        "peak_bytes": max(each.peak_bytes for each in ours),
        "opening": open_prepared(folder / "prepared-0"),
        "rounds": [asdict(each) for each in ours],
    }
    if with_vocabulary:
        figures["with_vocabulary_training"] = asdict(prepare(source, target, None, folder / "prepared-whole"))
    return figures


def failures(figures: dict[str, Any]) -> list[str]:
    """Figures that are beyond their limits."""
    found = []
    if figures["ratio"]["median"] < REQUIRED_RATIO:
        found.append(f"ratio {figures['ratio']['median']:.2f} is below {REQUIRED_RATIO}")
    peaks = [figures["peak_bytes"], figures.get("with_vocabulary_training", {}).get("peak_bytes", 0)]
    if max(peaks) > MAX_PEAK_BYTES:
        found.append(f"peak memory {max(peaks) / 2**30:.2f} GiB is above 1.5 GiB")
    opening = figures["opening"]
    if opening["seconds_to_open"] > MAX_OPENING_SECONDS or opening["bytes_in_all"] > MAX_OPENING_BYTES:
        found.append(f"opening took {opening['seconds_to_open']:.2f} s and {opening['bytes_in_all'] / 1e6:.0f} MB")
    return found


if __name__ == "__main__":
    end_with(main)
