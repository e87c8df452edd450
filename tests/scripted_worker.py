"""A worker that follows a script of the test, in place of the trainer: `python -m scripted_worker RUN`.

It does not import torch, so an attempt takes a fraction of a second. Tests write the script with `write_script` and
read with `read_starts` how the worker was started; `ACTS` lists what it can do.
"""

import json
import os
import signal
import sys
import time
from pathlib import Path
from typing import Any

from dragoman.cluster.environment import PARENT_VARIABLE
from dragoman.cluster.failure import report_failure
from dragoman.cluster.heartbeat import PAUSE_SIGNAL, beat, report_end, start_heartbeat, waiting
from dragoman.run.processes import end_with_parent

LONG_SECONDS = 120.0
Acts = list[str]


def write_script(run: Path, **attempts_of_rank: list[Acts]) -> None:
    """Writes the acts of each rank in each attempt, e.g. rank0=[["step 3", "signal SIGKILL"], ["end 9 steps"]].

    Further attempts repeat the last one. "load SECONDS" as the first act delays the first heartbeat.
    """
    run.mkdir(exist_ok=True)
    (run / "script.json").write_text(json.dumps(attempts_of_rank), encoding="utf-8")


def read_starts(run: Path, rank: int) -> list[dict[str, Any]]:
    """Returns the process id and environment of each start of a rank."""
    path = run / f"starts.rank{rank}.jsonl"
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()] if path.exists() else []


def main() -> None:
    """Performs the acts of this rank in this attempt."""
    end_with_parent(int(os.environ[PARENT_VARIABLE]))
    run, rank = Path(sys.argv[1]), int(os.environ["RANK"])
    num_starts = len(read_starts(run, rank))
    with (run / f"starts.rank{rank}.jsonl").open("a", encoding="utf-8") as file:
        file.write(json.dumps({"pid": os.getpid(), "environment": dict(os.environ)}) + "\n")
    attempts = json.loads((run / "script.json").read_text(encoding="utf-8"))[f"rank{rank}"]
    acts = attempts[min(num_starts, len(attempts) - 1)]
    if acts[0].startswith("load "):
        # As a worker that still imports torch: it has no handler for any signal, and sends no heartbeat.
        time.sleep(float(acts[0].removeprefix("load ")))
        acts = acts[1:]
    start_heartbeat(rank)
    for act in acts:
        name, _, argument = act.partition(" ")
        ACTS[name](argument)


def _meet(_: str) -> None:
    """Waits until all ranks have started: a rank that dies sooner might prevent the others from starting."""
    run, ranks = Path(sys.argv[1]), range(int(os.environ["WORLD_SIZE"]))
    num_own_starts = len(read_starts(run, int(os.environ["RANK"])))
    while min(len(read_starts(run, rank)) for rank in ranks) < num_own_starts:
        time.sleep(0.01)


def _wait(for_whom: str) -> None:
    with waiting(for_whom):
        time.sleep(LONG_SECONDS)


def _save(seconds: str) -> None:
    """Sends heartbeats for some time."""
    end = time.monotonic() + float(seconds)
    while time.monotonic() < end:
        beat("saving")
        time.sleep(0.05)


def _end(step_and_reason: str) -> None:
    """Reports an end, e.g. "9 steps"."""
    step, reason = step_and_reason.split()
    beat("computing a gradient", int(step))
    report_end(reason, int(step))
    beat("closing files")  # does not change the end


def _obey(step: str) -> None:
    """Waits for the signal to stop or to pause, and reports the end it asks for."""
    numbers = {signal.SIGTERM, PAUSE_SIGNAL}
    signal.pthread_sigmask(signal.SIG_BLOCK, numbers)
    beat("waiting for orders", int(step))
    report_end("signal" if signal.sigwait(numbers) == signal.SIGTERM else "host_back", int(step))


def _fail(message: str) -> None:
    report_failure(message, is_plain=False)
    sys.exit(1)


def _fail_plainly(message: str) -> None:
    report_failure(message, is_plain=True)
    sys.exit(1)


ACTS = {
    "end": _end,
    "exit": lambda code: sys.exit(int(code)),
    "fail": _fail,
    "fail_plainly": _fail_plainly,
    "ignore": lambda name: signal.signal(signal.Signals[name], signal.SIG_IGN),
    "meet": _meet,
    "obey": _obey,
    "print": lambda text: print(text, flush=True),
    "save": _save,
    "signal": lambda name: os.kill(os.getpid(), signal.Signals[name]),
    "step": lambda number: beat("computing a gradient", int(number)),
    "wait": _wait,
    "work": lambda seconds: time.sleep(float(seconds or LONG_SECONDS)),
}

if __name__ == "__main__":
    main()
