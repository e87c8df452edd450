"""Pieces of work on a Ray cluster that is already running; Ray is an optional dependency."""

import logging
import os
import socket
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

from dragoman.corpus.preparation.engine import Interrupted, in_order
from dragoman.run.errors import UserError

Task = TypeVar("Task")
Result = TypeVar("Result")

ANSWER_SECONDS = 10


class RayCluster:
    """Does pieces as Ray tasks, each on one core of any machine."""

    def map(self, function: Callable[[Task], Result], tasks: Iterable[Task]) -> Iterator[Result]:
        """Keeps every core of the cluster busy, with one more task waiting for each."""
        import ray

        remote = ray.remote(num_cpus=1)(function)
        num_in_flight = 2 * max(1, int(ray.cluster_resources().get("CPU", 1)))  # type: ignore[no-untyped-call]
        try:
            take: Callable[[Any], Result] = ray.get
            yield from in_order(remote.remote, take, tasks, num_in_flight)
        except ray.exceptions.RayTaskError as problem:
            if isinstance(problem.cause, UserError):
                raise problem.cause from None
            raise
        except ray.exceptions.RayError as problem:
            raise Interrupted(
                f"The Ray cluster failed: {problem}. Run the same command again to continue where it stopped."
            ) from None


@contextmanager
def open_ray() -> Iterator[RayCluster]:
    """Connects to the cluster that RAY_ADDRESS names, or the one this machine belongs to."""
    try:
        import ray
    except ImportError:
        raise UserError("--engine ray needs Ray: pip install 'dragoman[ray]'.") from None
    was_connected = ray.is_initialized()
    if not was_connected:
        try:
            _check_that_somebody_answers(os.environ.get("RAY_ADDRESS", ""))
            ray.init(address="auto", log_to_driver=False, logging_level=logging.ERROR)
        except ConnectionError as problem:
            raise UserError(
                f"No Ray cluster was found ({problem}). Start one with `ray start --head`, or name it in RAY_ADDRESS."
            ) from None
    try:
        yield RayCluster()
    finally:
        if not was_connected:
            ray.shutdown()


def _check_that_somebody_answers(address: str) -> None:
    """Raises a ConnectionError for an address HOST:PORT that is dead, which Ray itself would try for minutes."""
    host, _, port = address.removeprefix("ray://").rpartition(":")
    if not (host and port.isdecimal()):
        return
    try:
        socket.create_connection((host, int(port)), timeout=ANSWER_SECONDS).close()
    except OSError as problem:
        raise ConnectionError(f"nobody answers at {address}: {problem}") from None
