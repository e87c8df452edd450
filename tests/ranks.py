"""Several ranks on this machine that exchange tensors through gloo, for tests of what they compute together."""

import sys
import traceback
from collections.abc import Callable
from datetime import timedelta
from multiprocessing import Queue
from multiprocessing.context import ForkServerContext
from multiprocessing.synchronize import Event
from typing import Any

from torch._C._distributed_c10d import TCPStore

from dragoman.cluster.addresses import LOOPBACK
from dragoman.cluster.guarded_store import open_local_store
from dragoman.cluster.rendezvous import Rendezvous
from dragoman.cluster.world import World, join_world

SECONDS = 90.0
Work = Callable[[World], Any]
"""What each rank does; a function of a module, so that a process can find it. It returns no tensors."""


def run_ranks(processes: ForkServerContext, size: int, work: Work, machines: tuple[str, ...] = ()) -> list[Any]:
    """Returns what each rank returned; raises what the first one raised."""
    if size == 1:
        return [work(World(machines=machines or ("here",)))]
    store, answers, done = open_local_store(SECONDS), processes.Queue(), processes.Event()
    machines = machines or ("here",) * size
    started = [
        processes.Process(target=_run_rank, args=(rank, size, store.port, machines, work, answers, done))
        for rank in range(size)
    ]
    for process in started:
        process.start()
    found: dict[int, Any] = {}
    try:
        while len(found) < size:
            rank, problem, answer = answers.get(timeout=SECONDS)
            assert problem is None, f"rank {rank}: {problem}"
            found[rank] = answer
    finally:
        done.set()
        for process in started:
            process.join(timeout=10)
            process.kill()
    return [found[rank] for rank in range(size)]


def _run_rank(
    rank: int, size: int, port: int, machines: tuple[str, ...], work: Work, answers: Queue, done: Event
) -> None:
    try:
        store = TCPStore(LOOPBACK, port, is_master=False, timeout=timedelta(seconds=SECONDS))
        world = join_world(Rendezvous(store, rank, size, rank, size, machines, LOOPBACK, None))
        answer = work(world)
        world.wait_for_all()
        answers.put((rank, None, answer))
        done.wait(SECONDS)
    except BaseException as error:
        answers.put((rank, f"{type(error).__name__}: {error}", None))
        traceback.print_exc(file=sys.stderr)
