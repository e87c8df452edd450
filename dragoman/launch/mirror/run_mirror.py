"""Brings what the hosts of a run write to the launcher's machine while the run goes on.

Where hosts share no folder with the machine on which a person typed the command, the log, records, samples,
translations and the newest and best checkpoint are copied there, so that every command about the run works on that
machine. Nothing here can end a run: what cannot be brought now is brought later.
"""

import contextlib
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from dragoman.launch.hosts import Host
from dragoman.launch.mirror.fetched_checkpoints import MirroredCheckpoints, how_far
from dragoman.launch.mirror.file_link import Command, file_command
from dragoman.launch.mirror.history import HistoryFile
from dragoman.launch.mirror.host_mirror import Brought, HostMirror, MirroredRun, Pacer
from dragoman.run.commands import command_for
from dragoman.run.errors import explain_os_error
from dragoman.run.folder import RunFolder

BULK_RATE = 2e6
"""Bytes per second of checkpoints while workers train; less where a host has a slow network card."""
BEGIN_SECONDS = 10.0
"""Longest delay of an attempt by a host that does not tell the sizes of its files."""
ADOPT_SECONDS = 30.0
CLOSE_SECONDS = 1.0
FOLDER_NAME = ".mirror"


@dataclass(frozen=True)
class MirroredHost:
    """A host of an attempt."""

    host: Host
    shares_folder: bool
    """Whether it sees the run folder of the launcher, so that its files are here already."""


class RunMirror:
    """Copies the files of a run from its hosts in the background, one thread for each host."""

    def __init__(
        self,
        run: RunFolder,
        ssh_config: Path | None,
        say: Callable[[str], None],
        rate_bytes_per_second: float = BULK_RATE,
        command: Command | None = None,
    ) -> None:
        """`command` starts the program on a host; over ssh unless given."""
        run = RunFolder(run.path.absolute())
        folder = run.path / FOLDER_NAME
        self._run = run
        self._say = say
        self._complaints: set[str] = set()
        self._mirrored = MirroredRun(
            run,
            command or file_command(ssh_config),
            ssh_config,
            tuple(HistoryFile(path, folder) for path in (run.log, run.metrics)),
            MirroredCheckpoints(run),
            Pacer(rate_bytes_per_second),
            self._complain,
        )
        self._hosts: dict[str, HostMirror] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def begin_attempt(self, hosts: Sequence[MirroredHost]) -> None:
        """Follows the hosts of an attempt, the host of rank 0 first; call it before the workers start.

        It waits, a few seconds at most, until the host of rank 0 has told the sizes of its files.
        """
        self._mirrored.checkpoints.is_needed = not any(each.shares_folder for each in hosts)
        apart = [each.host for each in hosts if not (each.shares_folder or each.host.is_this_machine)]
        for host in apart:
            self._follow(host).settle()
        first = hosts[0].host
        if first not in apart:
            self._end_segments()
            return
        is_all_wanted = self._has_no_history()
        listing = self._hosts[first.name].fresh_listing(BEGIN_SECONDS)
        try:
            for history in self._mirrored.histories:
                size = listing.size(history.name) if listing else None
                history.begin_segment(first.name, size, is_all_wanted)
        except OSError as error:
            self._complain(first.name, explain_os_error(error))

    def end_attempt(self, lost: Collection[Host] = (), timeout: float = 3.0) -> None:
        """Brings the last lines of an attempt whose workers have ended, except from hosts that were lost."""
        begin = time.monotonic()
        names = {host.name for host in lost}
        waiting = []
        for name, mirror in self._hosts.items():
            if name in names:
                mirror.unsettle()
            elif mirror.is_connected:
                mirror.settle()
                waiting.append(mirror)
        self._wait_until(lambda: all(mirror.has_looked_since(begin) for mirror in waiting), timeout)
        self._end_segments()

    def host_returned(self, host: Host) -> None:
        """Tries at once to reach a host that was lost; without this call it takes up to half a minute."""
        if mirror := self._hosts.get(host.name):
            mirror.wake()

    def finish(self, should_stop: Callable[[], bool] = lambda: False) -> list[str]:
        """Brings everything that is left, without a limit of the rate; returns sentences about what is still missing.

        It ends early when `should_stop` says so, and at Ctrl-C while a progress bar is shown.
        """
        if not self._hosts:
            return []
        from dragoman.run.progress import progress_bars

        begin = time.monotonic()
        self._mirrored.pacer.is_hurrying = True
        for mirror in self._hosts.values():
            mirror.wake()
        try:
            with progress_bars("kB") as show:
                while not should_stop() and any(mirror.may_bring_more(begin) for mirror in self._hosts.values()):
                    self._wait_until(lambda: False, 0.1)
                    for copy in [mirror.copy for mirror in self._hosts.values()]:
                        if copy and copy.num_bytes:
                            stage = f"Weights of step {copy.step:,} from {copy.host}"
                            show(stage, copy.num_bytes_done // 1000, copy.num_bytes // 1000)
        except KeyboardInterrupt:
            pass
        return list(self._missing(begin))

    def close(self) -> None:
        """Ends all links and threads; what was brought stays, and a later mirror continues."""
        self._mirrored.over.set()
        mirrors = list(self._hosts.values())
        for mirror in mirrors:
            mirror.wake()
        end = time.monotonic() + CLOSE_SECONDS
        for mirror in mirrors:
            mirror.join(end - time.monotonic())
        for mirror in mirrors:
            mirror.abort()
            mirror.join(CLOSE_SECONDS)
        for history in self._mirrored.histories:
            with contextlib.suppress(OSError):
                history.close()

    def adopt(self, hosts: Sequence[Host]) -> None:
        """Follows the hosts of a run that no launcher supervises now; where nothing is known of its attempts, the
        histories of its hosts are joined in the order in which they were written last."""
        # Hosts that were lost one after the other have different checkpoints: wait for all answers before choosing one.
        self._mirrored.checkpoints.is_needed = False
        mirrors = [self._follow(host) for host in hosts if not host.is_this_machine]
        self._wait_until(lambda: all(mirror.has_answered_or_failed for mirror in mirrors), ADOPT_SECONDS)
        self._mirrored.checkpoints.is_needed = True
        if not self._has_no_history():
            return
        metrics = self._run.metrics.name
        written = [mirror for mirror in mirrors if metrics in mirror.listing.files]
        for mirror in sorted(written, key=lambda mirror: mirror.listing.files[metrics].changed):
            for history in self._mirrored.histories:
                history.begin_segment(mirror.host.name, mirror.listing.size(history.name), is_all_wanted=True)
        self._end_segments()

    @property
    def brought(self) -> dict[str, Brought]:
        """What came from each host."""
        return {name: mirror.brought for name, mirror in self._hosts.items()}

    def _follow(self, host: Host) -> HostMirror:
        if host.name not in self._hosts:
            self._hosts[host.name] = HostMirror(host, self._mirrored)
        return self._hosts[host.name]

    def _has_no_history(self) -> bool:
        """Whether nothing of the run's history is here, nor known to be on a host."""
        is_empty = not (self._run.metrics.exists() and self._run.metrics.stat().st_size)
        return is_empty and not any(history.has_segments for history in self._mirrored.histories)

    def _end_segments(self) -> None:
        for history in self._mirrored.histories:
            history.end_attempt()

    def _wait_until(self, is_so: Callable[[], bool], seconds: float) -> None:
        with self._mirrored.changed:
            self._mirrored.changed.wait_for(is_so, seconds)

    def _complain(self, host: str, reason: str) -> None:
        """Says once for each cause that something could not be brought."""
        text = f"Files of {host} are not all brought here: {reason}"
        if text not in self._complaints:
            self._complaints.add(text)
            self._say(text)

    def _missing(self, begin: float) -> Iterator[str]:
        """Says what the hosts have and this machine has not, as far as is known."""
        fetch = f"bring them with: {command_for('fetch', self._run.path)}"
        apart = {name: mirror for name, mirror in self._hosts.items() if not mirror.shares_folder}
        if apart:
            source = max(apart.values(), key=lambda mirror: how_far(mirror.listing))
            for step in self._mirrored.checkpoints.missing_steps(source.listing):
                yield f"The weights of step {step:,} are still on {source.host.name} in {self._run.path}; {fetch}"
        for name, mirror in apart.items():
            if mirror.trouble or not mirror.has_looked_since(begin):
                reason = (mirror.trouble or "it was not reached in time").rstrip(".")
                yield f"Files of the run are still on {name} in {self._run.path} ({reason}); {fetch}"
