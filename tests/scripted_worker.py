"""A worker that does what a test wrote down for it, in place of the trainer: `python -m scripted_worker RUN`.

It imports no torch, so an attempt takes a fraction of a second. Tests write its acts with `write_script` and read with
`read_starts` when and with what it was started; `ACTS` lists what it can do.
"""

import json
import os
import signal
import sys
import time
from pathlib import Path
from typing import Any

from dragoman.cluster.failure import report_failure
from dragoman.cluster.heartbeat import PAUSE_SIGNAL, beat, start_heartbeat, waiting

LONG_SECONDS = 120.0
Acts = list[str]


def write_script(run: Path, **attempts_of_rank: list[Acts]) -> None:
    """What each rank does at each attempt, e.g. rank0=[["step 3", "signal SIGKILL"], ["end steps"]]; the last stays."""
    run.mkdir(exist_ok=True)
    (run / "script.json").write_text(json.dumps(attempts_of_rank), encoding="utf-8")


def read_starts(run: Path, rank: int) -> list[dict[str, Any]]:
    """The process and environment of each start of a rank."""
    path = run / f"starts.rank{rank}.jsonl"
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()] if path.exists() else []


def main() -> None:
    """Plays this rank's part of this attempt."""
    run, rank = Path(sys.argv[1]), int(os.environ["RANK"])
    num_starts = len(read_starts(run, rank))
    with (run / f"starts.rank{rank}.jsonl").open("a", encoding="utf-8") as file:
        file.write(json.dumps({"pid": os.getpid(), "environment": dict(os.environ)}) + "\n")
    start_heartbeat(rank)
    attempts = json.loads((run / "script.json").read_text(encoding="utf-8"))[f"rank{rank}"]
    for act in attempts[min(num_starts, len(attempts) - 1)]:
        name, _, words = act.partition(" ")
        ACTS[name](words)


def _meet(_words: str) -> None:
    """Waits until all ranks have begun this attempt: one that dies sooner might keep others from ever beginning it."""
    run, ranks = Path(sys.argv[1]), range(int(os.environ["WORLD_SIZE"]))
    num_own_starts = len(read_starts(run, int(os.environ["RANK"])))
    while min(len(read_starts(run, rank)) for rank in ranks) < num_own_starts:
        time.sleep(0.01)


def _wait(for_whom: str) -> None:
    with waiting(for_whom):
        time.sleep(LONG_SECONDS)


def _save(seconds: str) -> None:
    """Gives signs of life all the while."""
    end = time.monotonic() + float(seconds)
    while time.monotonic() < end:
        beat("saving")
        time.sleep(0.05)


def _obey(_words: str) -> None:
    """Waits to be told to end or to pause, and says which it was."""
    numbers = {signal.SIGTERM, PAUSE_SIGNAL}
    signal.pthread_sigmask(signal.SIG_BLOCK, numbers)
    beat("waiting for orders")
    beat("signal" if signal.sigwait(numbers) == signal.SIGTERM else "host_back")


def _fail(words: str) -> None:
    report_failure(words, is_plain=False)
    sys.exit(1)


def _complain(words: str) -> None:
    report_failure(words, is_plain=True)
    sys.exit(1)


ACTS = {
    "complain": _complain,
    "end": beat,
    "exit": lambda code: sys.exit(int(code)),
    "fail": _fail,
    "ignore": lambda name: signal.signal(signal.Signals[name], signal.SIG_IGN),
    "meet": _meet,
    "obey": _obey,
    "print": lambda words: print(words, flush=True),
    "save": _save,
    "signal": lambda name: os.kill(os.getpid(), signal.Signals[name]),
    "step": lambda number: beat("computing a gradient", int(number)),
    "wait": _wait,
    "work": lambda seconds: time.sleep(float(seconds or LONG_SECONDS)),
}

if __name__ == "__main__":
    main()
