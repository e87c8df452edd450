"""Trains with an artificial delay, as torchrun's worker: `torchrun … held_back.py CAUSE AMOUNT train …`.

`data` delays every batch by AMOUNT seconds, `data-rank1` only those of rank 1; `throttle` limits rank 1 to AMOUNT
percent of a core with a control group; `load` runs AMOUNT busy loops on rank 1's core; `none` does nothing.
"""

import multiprocessing
import os
import sys
import time
from pathlib import Path

from dragoman.cli import main
from dragoman.corpus.batching import BatchStream

CONTROL_GROUPS = Path("/sys/fs/cgroup")
PERIOD_MICROSECONDS = 20_000


def hold_back(cause: str, amount: float) -> None:
    """Slows down this process as the cause requires."""
    rank = int(os.environ["RANK"])
    if cause == "data" or (cause == "data-rank1" and rank == 1):
        _slow_batches(amount)
    elif cause == "throttle" and rank == 1:
        _throttle(amount / 100)
    elif cause == "load":
        os.sched_setaffinity(0, {rank % len(os.sched_getaffinity(0))})
        for _ in range(int(amount) if rank == 1 else 0):
            multiprocessing.Process(target=_spin, daemon=True).start()


def _slow_batches(seconds: float) -> None:
    read = BatchStream.micro_batch

    def read_slowly(self: BatchStream, *arguments: object) -> object:
        time.sleep(seconds)
        return read(self, *arguments)  # type: ignore[arg-type]

    BatchStream.micro_batch = read_slowly  # type: ignore[assignment,method-assign]


def _throttle(share: float) -> None:
    quota = int(share * PERIOD_MICROSECONDS)
    if (CONTROL_GROUPS / "cpu").is_dir():
        group = CONTROL_GROUPS / "cpu" / f"dragoman-{os.getpid()}"
        group.mkdir()
        (group / "cpu.cfs_period_us").write_text(str(PERIOD_MICROSECONDS))
        (group / "cpu.cfs_quota_us").write_text(str(quota))
    else:
        group = CONTROL_GROUPS / f"dragoman-{os.getpid()}"
        group.mkdir()
        (group / "cpu.max").write_text(f"{quota} {PERIOD_MICROSECONDS}")
    (group / "cgroup.procs").write_text(str(os.getpid()))


def _spin() -> None:
    parent = os.getppid()
    while os.getppid() == parent:
        for _ in range(10**6):
            pass


if __name__ == "__main__":
    hold_back(sys.argv[1], float(sys.argv[2]))
    del sys.argv[1:3]
    main()
