"""The claim of a host on its run folder: one writer at a time, and nothing left of a start that failed."""

import shutil
import socket
import time
from contextlib import ExitStack, suppress
from pathlib import Path

from dragoman.run.errors import UserError
from dragoman.run.files import try_lock
from dragoman.run.folder import RunFolder, lock_run, make_run_folder

POLL_SECONDS = 0.1


class RunClaim:
    """Locks the run folder until this process ends, and remembers what was made for a run that has not begun."""

    def __init__(self) -> None:
        self._locks = ExitStack()
        self._claimed: Path | None = None
        self._made: list[Path] = []
        """Folders that did not exist before."""
        self._whole: set[Path] = set()
        """Those of them to remove with everything inside."""

    def take(self, run: RunFolder, holder: str, is_shared: bool, seconds: float) -> None:
        """Locks the folder; waits for an earlier program of this host, which may still have to end its workers.

        In a folder that hosts share, the launcher holds the lock of the run, so each host has one of its own.
        """
        if self._claimed == run.path:
            return
        self.note_made(run.path)
        make_run_folder(run)
        end = time.monotonic() + seconds
        while True:
            try:
                self._lock(run, holder, is_shared)
            except UserError:
                if time.monotonic() >= end:
                    raise
                time.sleep(POLL_SECONDS)
            else:
                self._claimed = run.path
                return

    def _lock(self, run: RunFolder, holder: str, is_shared: bool) -> None:
        if not is_shared:
            self._locks.enter_context(lock_run(run, holder))
        elif not self._locks.enter_context(try_lock(run.path / f".lock-{socket.gethostname()}")):
            raise UserError(f"{run.path} is still used by an earlier program of this host.")

    def note_made(self, path: Path) -> None:
        """Notes a folder that is about to be made, with those of its parents that do not exist either."""
        self._whole |= set() if path.exists() else {path}
        self._made += [folder for folder in (path, *path.parents) if not folder.exists()]

    def keep(self) -> None:
        """Keeps everything from now on: the run begins."""
        self._made.clear()
        self._whole.clear()

    def undo(self) -> None:
        """Removes what was made; a parent in which somebody else has put something stays."""
        for path in sorted(self._made, reverse=True):  # folders before their parents
            with suppress(OSError):
                shutil.rmtree(path) if path in self._whole else path.rmdir()
        self.keep()
