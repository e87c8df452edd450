"""A server under load against CTranslate2 itself: `python serving.py`.

64 clients ask for one sentence after another. In turns, CTranslate2 is called directly with batches of the size that
the server formed, of the same sentences in the same order. Exit code 1 if a request failed or the server is too slow.
"""

import argparse
import asyncio
import json
import os
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import count
from pathlib import Path
from statistics import mean, median, quantiles
from typing import Any

import psutil
from decoding_speed import train_briefly
from multi30k import REPOSITORY, prepare_multi30k
from results import describe_machine, end_with, positive_count, save_result, summarise

from dragoman.corpus.tokenizer import Tokenizer
from dragoman.run.errors import UserError
from dragoman.run.processes import num_physical_cores
from dragoman.translation.ctranslate2_backend import search_options, vocabulary_entries
from dragoman.translation.exported_model import is_export, load_export, read_facts
from dragoman.translation.search import SearchSettings

REQUIRED_RATIO = 0.8


async def ask(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, request: bytes) -> int:
    """Sends a request on an open connection and returns the status of its answer."""
    writer.write(request)
    head = await reader.readuntil(b"\r\n\r\n")
    (length,) = (line for line in head.lower().split(b"\r\n") if line.startswith(b"content-length:"))
    await reader.readexactly(int(length.split(b":")[1]))
    return int(head.split(b" ", 2)[1])


async def keep_asking(
    address: str, requests: list[bytes], numbers: Iterator[int], ends_at: float, answers: list[tuple[int, float]]
) -> None:
    """Is one client: asks for the next sentence as soon as it has the last."""
    host, port = address.removeprefix("http://").rstrip("/").split(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    while (begin := time.perf_counter()) < ends_at:
        status = await ask(reader, writer, requests[next(numbers) % len(requests)])
        answers.append((status, time.perf_counter() - begin))
    writer.close()


def build_request(sentence: str, target: str) -> bytes:
    body = json.dumps({"q": sentence, "source": "auto", "target": target}).encode()
    head = f"POST /translate HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: {len(body)}"
    return f"{head}\r\nContent-Type: application/json\r\n\r\n".encode() + body


def be_clients(address: str, text: Path, num_clients: int, seconds: float) -> int:
    """Is the process of all clients; prints their figures as JSON."""
    target = target_of(address)
    requests = [build_request(sentence, target) for sentence in read_sentences(text)]
    answers: list[tuple[int, float]] = []

    async def run() -> float:
        numbers, begin = count(), time.perf_counter()
        clients = [keep_asking(address, requests, numbers, begin + seconds, answers) for _ in range(num_clients)]
        await asyncio.gather(*clients)
        return time.perf_counter() - begin

    cpu_begin = time.process_time()
    elapsed = asyncio.run(run())
    times = sorted(latency for _, latency in answers)
    cuts = quantiles(times, n=100)
    figures = {
        "requests": len(answers),
        "errors": sum(status != 200 for status, _ in answers),
        "sentences_per_second": len(answers) / elapsed,
        "p50_seconds": median(times),
        "p95_seconds": cuts[94],
        "p99_seconds": cuts[98],
        "cpu_seconds_of_clients": time.process_time() - cpu_begin,
    }
    print(json.dumps(figures))
    return 0


def call_directly(export: Path, text: Path, batch_size: int, num_threads: int, seconds: float) -> int:
    """Prints the speed of CTranslate2 alone as JSON; loading and subwords are not counted."""
    import ctranslate2

    facts = read_facts(export)
    tokenizer = Tokenizer.load(next(export.glob("*source*.model"), export / "tokenizer.model"))
    entries = vocabulary_entries(tokenizer)
    sources = [[entries[each] for each in ids] for ids in tokenizer.encode_lines(read_sentences(text))]
    settings = SearchSettings(facts.beam_size, facts.length_penalty)
    model = ctranslate2.Translator(str(export), "cpu", inter_threads=num_threads, intra_threads=1)

    def submit(number: int) -> list[Any]:
        batch = [sources[(number * batch_size + index) % len(sources)] for index in range(batch_size)]
        longest = settings.max_length(max(map(len, batch)) + 1)
        return model.translate_batch(
            batch, asynchronous=True, max_decoding_length=longest, return_scores=True, **search_options(settings)
        )

    def wait(results: list[Any]) -> int:
        return len([each.result() for each in results])

    wait(submit(0))
    numbers, begin, cpu_begin, num_done = count(), time.perf_counter(), time.process_time(), 0
    waiting = deque(submit(next(numbers)) for _ in range(2 * num_threads))
    while time.perf_counter() - begin < seconds:
        num_done += wait(waiting.popleft())
        waiting.append(submit(next(numbers)))
    num_done += sum(map(wait, waiting))
    speed = num_done / (time.perf_counter() - begin)
    print(json.dumps([speed, (time.process_time() - cpu_begin) / num_done]))
    return 0


def read_sentences(text: Path) -> list[str]:
    return [line for line in text.read_text(encoding="utf-8").splitlines() if line.strip()]


def read_address(address: str, path: str) -> str:
    with urllib.request.urlopen(address + path, timeout=60) as answer:
        return answer.read().decode()


def target_of(address: str) -> str:
    return json.loads(read_address(address, "frontend/settings"))["language"]["target"]["code"]


def batch_figures(address: str) -> tuple[float, float]:
    """Returns how many lines and batches the server has translated so far."""
    figures = dict(line.rsplit(" ", 1) for line in read_address(address, "metrics").splitlines() if line[:1] != "#")
    sums = [float(value) for name, value in figures.items() if name.startswith("dragoman_batch_lines_sum")]
    counts = [float(value) for name, value in figures.items() if name.startswith("dragoman_batch_lines_count")]
    return sum(sums), sum(counts)


@contextmanager
def served(export: Path, num_threads: int) -> Iterator[tuple[str, psutil.Process]]:
    """Starts the server; yields its address and process."""
    command = [sys.executable, "-m", "dragoman", "serve", str(export), "--port", "0", "--workers", str(num_threads)]
    command += ["--languages", "en-de"]
    environment = {name: value for name, value in os.environ.items() if name != "DRAGOMAN_API_KEY"}
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment) as process:
        try:
            line = process.stdout.readline()
            if not line.startswith("Translate at "):
                raise UserError("The server did not start.")
            yield line.split()[-1], psutil.Process(process.pid)
            process.terminate()
            if process.wait(timeout=120):
                raise UserError(f"The server ended with exit code {process.returncode}.")
        finally:
            process.kill()


def run_part(*arguments: object) -> Any:
    """Runs one side of the comparison in a process of its own."""
    command = [sys.executable, __file__, *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise UserError(f"A part of the benchmark failed: {done.stderr.strip()}")
    return json.loads(done.stdout)


def measure(export: Path, text: Path, options: argparse.Namespace) -> list[dict[str, Any]]:
    """Returns the figures of each round."""
    rounds = []
    num_threads = options.workers or num_physical_cores()
    with served(export, num_threads) as (address, process):
        run_part("--clients", address, "--text", text, "--num-clients", options.num_clients, "--seconds", 2)
        for number in range(options.rounds):
            lines, batches = batch_figures(address)
            cpu_seconds = sum(process.cpu_times()[:2])
            load = ("--num-clients", options.num_clients, "--seconds", options.seconds)
            figures = run_part("--clients", address, "--text", text, *load)
            later_lines, later_batches = batch_figures(address)
            figures["mean_batch_lines"] = (later_lines - lines) / (later_batches - batches)
            figures["cpu_seconds_per_sentence"] = (sum(process.cpu_times()[:2]) - cpu_seconds) / (later_lines - lines)
            size = round(figures["mean_batch_lines"])
            direct = ("--batch-size", size, "--workers", num_threads, "--seconds", options.direct_seconds)
            speed, direct_cpu = run_part("--direct", export, "--text", text, *direct)
            figures |= {"direct_sentences_per_second": speed, "direct_cpu_seconds_per_sentence": direct_cpu}
            figures["ratio"] = figures["sentences_per_second"] / figures["direct_sentences_per_second"]
            rounds.append(figures)
            print(f"round {number + 1}: {describe_round(figures)}", flush=True)
    return rounds


def describe_round(figures: dict[str, Any]) -> str:
    cpu = [f"{1e3 * figures[name]:.1f}" for name in ("cpu_seconds_per_sentence", "direct_cpu_seconds_per_sentence")]
    return (
        f"{figures['sentences_per_second']:.1f} sentences/s served, {figures['direct_sentences_per_second']:.1f} "
        f"directly in batches of {figures['mean_batch_lines']:.1f}, ratio {figures['ratio']:.2f}; "
        f"{' and '.join(cpu)} ms of processor time a sentence; "
        f"p50 {figures['p50_seconds']:.3f} s, p95 {figures['p95_seconds']:.3f} s, {figures['errors']} errors"
    )


def find_export(model: Path | None, folder: Path, train_steps: int) -> Path:
    """Returns the export of a given model, or of one that is trained briefly."""
    if model is not None and is_export(model):
        load_export(model)
        return model
    from dragoman.exporting.cached_export import ensure_export

    if model is None:
        train_briefly(folder, prepare_multi30k(folder), train_steps)
        model = folder / "run"
    return ensure_export(model, "latest", print)


def main() -> int:
    """Measures and writes the result; the exit code says whether the server is fast enough and made no error."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", type=Path, help="run or export to serve (default: trains `small` on Multi30k)")
    parser.add_argument("--text", type=Path, help="file of sentences (default: Multi30k's test set)")
    parser.add_argument("--rounds", type=positive_count, default=3, help="turns of each side (default: 3)")
    parser.add_argument("--seconds", type=positive_count, default=60, help="of load in each round (default: 60)")
    parser.add_argument("--direct-seconds", type=positive_count, default=20, help="without a server (default: 20)")
    parser.add_argument("--num-clients", type=positive_count, default=64, help="at the same time (default: 64)")
    parser.add_argument("--workers", type=positive_count, help="batches at once (default: one per physical core)")
    parser.add_argument("--train-steps", type=positive_count, default=150, help="before measuring (default: 150)")
    parser.add_argument("--clients", metavar="ADDRESS", help=argparse.SUPPRESS)
    parser.add_argument("--direct", type=Path, metavar="EXPORT", help=argparse.SUPPRESS)
    parser.add_argument("--batch-size", type=positive_count, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.clients:
        return be_clients(options.clients, options.text, options.num_clients, options.seconds)
    if options.direct:
        return call_directly(options.direct, options.text, options.batch_size, options.workers, options.seconds)
    machine = describe_machine()
    with tempfile.TemporaryDirectory(prefix="dragoman-benchmark-") as name:
        folder = Path(name)
        export = find_export(options.model, folder, options.train_steps)
        text = options.text or folder / "prepared" / "test.source.txt"
        if not text.exists():
            raise UserError("With --model, give sentences with --text.")
        rounds = measure(export, text, options)
    ratio = summarise([figures["ratio"] for figures in rounds])
    num_errors = sum(figures["errors"] for figures in rounds)
    figures = {
        "workload": f"{options.num_clients} clients, one sentence per request, float32, clients on the same machine",
        "required_ratio": REQUIRED_RATIO,
        "ratio": ratio,
        "errors": num_errors,
        "p50_seconds": mean(each["p50_seconds"] for each in rounds),
        "p95_seconds": mean(each["p95_seconds"] for each in rounds),
        "rounds": rounds,
    }
    print(f"Written to {save_result('serving', machine, figures).relative_to(REPOSITORY)}")
    return 0 if ratio["median"] >= REQUIRED_RATIO and not num_errors else 1


if __name__ == "__main__":
    end_with(main)
