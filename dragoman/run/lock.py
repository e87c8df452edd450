"""One process at a time writes a run: a lock that the system frees when its holder ends, however it ends."""

import fcntl
from collections.abc import Iterator
from contextlib import contextmanager

from dragoman.run.errors import UserError
from dragoman.run.folder import RunFolder


@contextmanager
def hold_run(run: RunFolder) -> Iterator[None]:
    """Holds a run for the block; a UserError where another process holds it."""
    with run.lock.open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise UserError(f"{run.path} is being trained by another process; stop that one first.") from None
        yield


def is_held(run: RunFolder) -> bool:
    """Whether a process of this machine trains the run now."""
    try:
        with run.lock.open("rb") as file:
            # A shared lock, for an instant: two who look at once do not take each other for the one who trains.
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:
        return False
    return False
