"""Finds TCP ports of this machine that nothing uses."""

import random
import socket
from contextlib import ExitStack


def free_port() -> int:
    """Returns a port that is not in use now."""
    with socket.create_server(("", 0)) as probe:
        return int(probe.getsockname()[1])


def free_range(num_ports: int) -> range:
    """Returns so many neighbouring ports that are all free now, below those that the system gives out.

    The place is random: tests that run at the same time must not choose the same.
    """
    while True:
        begin = random.SystemRandom().randrange(10_000, 30_000)
        ports = range(begin, begin + num_ports)
        try:
            with ExitStack() as stack:
                for port in ports:
                    stack.enter_context(socket.create_server(("", port)))
            return ports
        except OSError:
            continue
