"""Brings the files of one host to the run folder here, in a thread of its own.

Small files come within a second or two. Large ones come in parts, at a rate that all hosts share.
"""

import contextlib
import math
import os
import secrets
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from dragoman.launch.hosts import Host
from dragoman.launch.mirror.fetched_checkpoints import CheckpointCopy, MirroredCheckpoints
from dragoman.launch.mirror.file_link import (
    Command,
    FileFacts,
    FileGoneError,
    FileLink,
    LinkError,
    Listing,
    RefusedFileError,
)
from dragoman.launch.mirror.history import HistoryFile
from dragoman.launch.mirror.host_files import MAX_FILES, MAX_READ_BYTES, FileKind, kind_of_file
from dragoman.run.errors import FULL_DISK, UserError, describe_fault, describe_os_error, explain_os_error
from dragoman.run.files import require_free_space, write_then_rename
from dragoman.run.folder import RunFolder
from dragoman.run.units import format_bytes

LOOK_SECONDS = 1.0
STUCK_SECONDS = 2.0
"""A link that does not answer for so long, to a host that the launcher has just reached, is opened again."""
FIRST_PAUSE_SECONDS, LONGEST_PAUSE_SECONDS = 1.0, 30.0
"""Time between two tries to reach a host."""
DISK_PAUSE_SECONDS = 30.0
"""Time until a checkpoint is tried again that the disk here did not take."""
REACH_SECONDS = 15.0
"""How long the end of a run waits for a host that does not answer."""
NUM_TRIES = 3
"""Failures in a row after which a person is told, and after which nobody waits any more."""
MAX_PARTS_PER_LOOK = 4
"""Parts of one file that are brought in a row: a long file must not delay the others."""
SMALL_BYTES = 2**16
"""Smaller parts do not count for the rate."""
PORT_SHARE = 0.04
"""Share of a network card that checkpoints may take while workers train: steps take no more than that longer."""
UNKNOWN_PORT_RATE = 12.5e6
"""Bytes per second of a network card that does not tell its speed, as in most virtual machines: at worst 100 Mbit/s."""
MAX_HISTORY_BYTES = 2**33
"""Most bytes of one host, except checkpoints: more than a run writes in months, less than would fill a disk."""
MAX_WHOLE_BYTES = 2**26
"""Largest file that is brought as a whole, in memory."""


class Pacer:
    """Limits the rate of large files, over all hosts."""

    def __init__(self, bytes_per_second: float) -> None:
        self.is_hurrying = False
        """Whether training is over, so that there is no limit any more."""
        self.rate = bytes_per_second
        self._next_at = 0.0
        self._lock = threading.Lock()

    @property
    def seconds_to_next_part(self) -> float:
        """How long to wait until the next part may be asked for."""
        return 0.0 if self.is_hurrying else max(0.0, self._next_at - time.monotonic())

    @property
    def part_bytes(self) -> int:
        """Size of a part; at a slow rate it takes no longer than a second."""
        return MAX_READ_BYTES if self.is_hurrying else max(1, int(min(MAX_READ_BYTES, self.rate)))

    def count(self, num_bytes: int) -> None:
        """Counts a part that was brought."""
        with self._lock:
            self._next_at = max(self._next_at, time.monotonic()) + num_bytes / self.rate

    def spare_port(self, bytes_per_second: int | None) -> None:
        """Lowers the rate to a small share of a network card, which the gradients need too; None if it is not known."""
        self.rate = min(self.rate, PORT_SHARE * (bytes_per_second or UNKNOWN_PORT_RATE))


@dataclass(frozen=True)
class MirroredRun:
    """The run folder here, and what the threads of all hosts share."""

    run: RunFolder
    command: Command
    """Starts the program that reads files on a host."""
    ssh_config: Path | None
    histories: tuple[HistoryFile, ...]
    checkpoints: MirroredCheckpoints
    pacer: Pacer
    complain: Callable[[str, str], None]
    """Says that files of a host could not be brought, and why."""
    over: threading.Event = field(default_factory=threading.Event)
    changed: threading.Condition = field(default_factory=threading.Condition)
    """Announces that a host was listed, is complete or has failed."""
    files_lock: threading.Lock = field(default_factory=threading.Lock)


@dataclass
class Brought:
    """What came from one host."""

    files: set[str] = field(default_factory=set)
    """Names of files other than those of checkpoints."""
    num_bytes: int = 0
    steps: set[int] = field(default_factory=set)
    """Steps of checkpoints."""


class HostMirror:
    """Brings the files of one host; a host that does not answer delays no other."""

    def __init__(self, host: Host, mirrored: MirroredRun) -> None:
        self.host = host
        self.listing = Listing()
        """What the host had when it was asked last."""
        self.shares_folder = False
        self.brought = Brought()
        self.copy: CheckpointCopy | None = None
        """The checkpoint that is being brought."""
        self.trouble: str | None = None
        """Why some files could not be brought, since the host was asked last."""
        self._mirrored = mirrored
        self._run = mirrored.run
        self._link: FileLink | None = None
        self._is_open = False
        """Whether the host has answered over this link."""
        self._num_small_bytes = 0
        self._woken = threading.Event()
        self._listed_at = self._looked_at = self._complete_at = -math.inf
        self._settled_at = math.inf
        """From this time on, nobody appends to the files of the host but workers of the current attempt."""
        self._failed_at: list[float] = []
        """When the tries began that have failed since the host was reached last."""
        self._copy_after = 0.0
        self._links: dict[str, int] = {}
        self._names: set[str] = set()
        self._seen: dict[str, FileFacts] = {}
        self._thread = threading.Thread(target=self._follow, name=f"mirror of {host.name}", daemon=True)
        self._thread.start()

    # For other threads

    @property
    def is_connected(self) -> bool:
        """Whether the host is reached now."""
        return self._is_open

    @property
    def has_answered_or_failed(self) -> bool:
        """Whether it is known what the host has, or that it cannot be reached."""
        return self._listed_at > 0 or self.shares_folder or len(self._failed_at) >= NUM_TRIES

    def has_looked_since(self, begin: float) -> bool:
        """Whether the small files that the host had at this time were brought, except those in trouble."""
        return self._looked_at >= begin

    def may_bring_more(self, begin: float) -> bool:
        """Whether waiting is of use until all is here that the host had at this time."""
        if self._complete_at >= begin or self.shares_folder:
            return False
        num_failures = sum(each >= begin for each in self._failed_at)
        return num_failures < NUM_TRIES and (self._listed_at >= begin or time.monotonic() < begin + REACH_SECONDS)

    def settle(self) -> None:
        """Notes that earlier workers of the host have ended: their last lines are in its files now."""
        self._settled_at = time.monotonic()
        self.wake()

    def unsettle(self) -> None:
        """Notes that the host is lost: its workers may still write, and its link is of no use."""
        self._settled_at = math.inf
        self.abort()

    def wake(self) -> None:
        """Looks at once, or tries at once to reach the host."""
        self._woken.set()

    def fresh_listing(self, seconds: float) -> Listing | None:
        """Returns what the host has now; None if it does not answer in time."""
        begin = time.monotonic()
        self.wake()
        with self._mirrored.changed:
            is_stuck = not self._mirrored.changed.wait_for(lambda: self._listed_at >= begin, STUCK_SECONDS)
        if is_stuck and self.is_connected:
            self.abort()
            self.wake()
        with self._mirrored.changed:
            self._mirrored.changed.wait_for(lambda: self._listed_at >= begin, begin + seconds - time.monotonic())
        return self.listing if self._listed_at >= begin else None

    def join(self, seconds: float) -> None:
        """Waits for the end of the thread, which closes the link, once the mirror is over."""
        self._thread.join(max(0.0, seconds))

    def abort(self) -> None:
        """Ends the link at once; the thread opens another one unless the mirror is over."""
        if link := self._link:
            link.abort()

    # The thread

    def _follow(self) -> None:
        pause = FIRST_PAUSE_SECONDS
        while not (self._mirrored.over.is_set() or self.shares_folder):
            begin = time.monotonic()
            try:
                with (
                    FileLink(self.host, self._mirrored.command, self._mirrored.ssh_config) as link,
                    self._connected(link),
                ):
                    if not self.shares_folder:
                        self._look_often(link)
            except Exception as error:  # no fault here may end a run, or leave it waiting for this thread
                self._note_failure(
                    begin, explain_os_error(error) if isinstance(error, OSError) else describe_fault(error)
                )
            if self._listed_at >= begin:
                pause = FIRST_PAUSE_SECONDS
            self._woken.wait(pause)
            self._woken.clear()
            pause = min(2 * pause, LONGEST_PAUSE_SECONDS)

    @contextmanager
    def _connected(self, link: FileLink) -> Iterator[None]:
        """Opens the run folder on the host; a file made for this moment shows whether it is that of this machine."""
        token = self._run.path / f".seen-{secrets.token_hex(8)}"
        self._link = link
        try:
            with contextlib.suppress(OSError):
                token.touch()
            opened = link.open_run(self._run.path, token.name)
            token.unlink(missing_ok=True)
            self.shares_folder, self._is_open = opened.shares_folder, True
            self._mirrored.pacer.spare_port(opened.port_rate)
            yield
        finally:
            token.unlink(missing_ok=True)
            self._link, self._is_open, self.copy = None, False, None
            self._mirrored.checkpoints.leave(self.host.name)
            self._announce()

    def _note_failure(self, begin: float, reason: str) -> None:
        self.trouble = reason
        self._failed_at.append(begin)
        is_expected = self._settled_at == math.inf or self._mirrored.pacer.is_hurrying
        if len(self._failed_at) == NUM_TRIES and not is_expected:
            self._mirrored.complain(self.host.name, f"{reason} Training is not affected; dragoman keeps trying.")
        self._announce()

    def _look_often(self, link: FileLink) -> None:
        while not self._mirrored.over.is_set():
            self._woken.clear()
            begin = time.monotonic()
            self.listing = listing = link.list_files()
            self._listed_at, self._failed_at, self.trouble = begin, [], None
            self._mirrored.checkpoints.note_reached(self.host.name, listing)
            self._announce()
            is_all_here = self._look(link, listing)
            self._looked_at = begin
            is_copy_wanted = self.copy is not None
            if not is_copy_wanted and time.monotonic() >= self._copy_after:
                is_copy_wanted = self._choose_copy(listing)
            if is_all_here and not is_copy_wanted:
                self._complete_at = begin
            self._announce()
            if is_all_here or not self._mirrored.pacer.is_hurrying:
                # On a slow link, looking may take longer than the time between two looks; copying gets its share too.
                self._copy_until(link, max(begin + LOOK_SECONDS, time.monotonic() + LOOK_SECONDS / 2))

    def _announce(self) -> None:
        with self._mirrored.changed:
            self._mirrored.changed.notify_all()

    @contextmanager
    def _skipping_trouble(self) -> Iterator[None]:
        """Continues after a file that the host or the disk here refuses, and says why."""
        try:
            yield
        except FileGoneError:
            pass
        except LinkError:
            raise
        except (UserError, OSError) as error:
            self._note_trouble(error)

    def _note_trouble(self, error: UserError | OSError) -> None:
        """Says what is in the way: on the host, or the disk here, whatever file it was."""
        if isinstance(error, OSError) and error.errno in FULL_DISK:
            error = UserError(f"{self._run.path} cannot be written: {describe_os_error(error)}.")
        self.trouble = explain_os_error(error) if isinstance(error, OSError) else str(error)
        self._mirrored.complain(self.host.name, self.trouble)

    # Small files

    def _look(self, link: FileLink, listing: Listing) -> bool:
        """Brings what is new; returns whether nothing is left that could be brought at once."""
        is_all_here = True
        for history in self._mirrored.histories:
            with self._skipping_trouble():
                is_all_here &= self._bring_history(link, history, listing.size(history.name))
        for name, facts in listing.files.items():
            with self._skipping_trouble():
                self._require_few_files(name)
                match kind_of_file(name):
                    case FileKind.GROWING:
                        is_all_here &= self._bring_growing(link, name, facts)
                    case FileKind.REPLACED | FileKind.WRITTEN_ONCE as kind:
                        self._bring_whole(link, name, facts, is_replaced=kind is FileKind.REPLACED)
        return is_all_here

    def _require_few_files(self, name: str) -> None:
        """Refuses what no run does: a host that lists other names each time would fill the disk here."""
        if len(self._names) >= MAX_FILES and name not in self._names:
            raise RefusedFileError(f"it has more than {MAX_FILES:,} files.")
        self._names.add(name)

    def _bring_history(self, link: FileLink, history: HistoryFile, size: int) -> bool:
        name = self.host.name
        history.forget_cut(name, size)
        if self._listed_at >= self._settled_at:
            history.close_segments(name, size)
        for _ in range(MAX_PARTS_PER_LOOK):
            segment = history.next_segment(name, size)
            if segment is None:
                return True
            offset = segment.fetched
            content = self._read(link, history.name, offset, segment.rest(size))
            is_last = segment.limit is not None and offset + len(content) >= segment.limit
            if not history.add(segment, offset, content, is_last):
                return True  # a line that is not complete yet
        return False

    def _bring_growing(self, link: FileLink, name: str, facts: FileFacts) -> bool:
        path = self._run.path / name
        for _ in range(MAX_PARTS_PER_LOOK):
            offset = path.stat().st_size if path.exists() else 0
            if offset >= facts.size:
                return True
            content = self._read(link, name, offset, facts.size - offset)
            require_free_space(self._run.path, len(content))
            path.parent.mkdir(exist_ok=True)
            with self._mirrored.files_lock, path.open("ab", buffering=0) as file:
                if file.tell() != offset or not file.write(content):  # two hosts may share a folder
                    return True
        return False

    def _bring_whole(self, link: FileLink, name: str, facts: FileFacts, is_replaced: bool) -> None:
        """Brings a file that is newer than the one here, or one that is missing here."""
        path = self._run.path / name
        if self._seen.get(name) == facts or (path.exists() and not is_replaced):
            return
        if path.exists() and path.stat().st_mtime_ns >= facts.changed:
            self._seen[name] = facts
            return
        if facts.size > MAX_WHOLE_BYTES:
            raise RefusedFileError(f"{name} is too large ({format_bytes(facts.size)}).")
        content = b""
        while len(content) < facts.size:
            content += (part := self._read(link, name, len(content), facts.size - len(content)))
            if not part:
                return  # it has become shorter
        if link.read(name, 0, 0).facts != facts:
            return  # replaced meanwhile; the next look brings the new one
        require_free_space(self._run.path, len(content))
        path.parent.mkdir(exist_ok=True)
        # Not later than now: a host whose clock is wrong must not keep out all that follows.
        changed = min(facts.changed, time.time_ns())
        with self._mirrored.files_lock, write_then_rename(path, is_durable=False) as file:
            file.write(content)
            file.flush()
            os.utime(file.fileno(), ns=(changed, changed))
        self._seen[name] = facts

    def _read(self, link: FileLink, name: str, offset: int, num_bytes: int) -> bytes:
        """Reads a part of a file; a large one when the rate allows it."""
        pacer = self._mirrored.pacer
        if num_bytes > SMALL_BYTES:
            self._mirrored.over.wait(pacer.seconds_to_next_part)
        if self._num_small_bytes > MAX_HISTORY_BYTES:
            raise RefusedFileError(f"it has sent more than {format_bytes(MAX_HISTORY_BYTES)} besides checkpoints.")
        content = link.read(name, offset, min(num_bytes, MAX_READ_BYTES)).content
        self._num_small_bytes += len(content)
        if len(content) > SMALL_BYTES:
            pacer.count(len(content))
        if content:
            self.brought.files.add(name)
            self.brought.num_bytes += len(content)
        return content

    # Checkpoints

    def _choose_copy(self, listing: Listing) -> bool:
        """Chooses the checkpoint to bring; returns whether one is wanted, perhaps only after that of another host."""
        checkpoints, name = self._mirrored.checkpoints, self.host.name
        is_start_wanted = self._mirrored.pacer.is_hurrying
        self.copy = checkpoints.claim(name, listing, is_start_wanted)
        if self.copy is None and listing.links != self._links and checkpoints.is_source(name):
            with self._skipping_trouble():
                checkpoints.point_links(listing)
                self._links = dict(listing.links)
        return checkpoints.is_any_wanted(name, listing, is_start_wanted)

    def _copy_until(self, link: FileLink, end: float) -> None:
        """Copies parts of a checkpoint as the rate allows, until it is time for the next look."""
        while not self._woken.is_set() and (left := end - time.monotonic()) > 0:
            seconds = self._mirrored.pacer.seconds_to_next_part if self.copy else left
            if seconds > 0:
                self._woken.wait(min(left, seconds))
            elif self.copy and self._copy_part(link, self.copy):
                self.copy = None
                self.wake()

    def _copy_part(self, link: FileLink, copy: CheckpointCopy) -> bool:
        """Brings the next part of a checkpoint; returns whether its copy has ended, for good or bad."""
        checkpoints, pacer = self._mirrored.checkpoints, self._mirrored.pacer
        try:
            if pacer.is_hurrying and copy.step not in self.listing.links.values():
                raise FileGoneError  # there are newer ones, which are the last
            if num_bytes := copy.advance(link, pacer.part_bytes):
                pacer.count(num_bytes)
                self.brought.num_bytes += num_bytes
                return False
            if copy.num_bytes:
                self.brought.steps.add(copy.step)
            checkpoints.note_done(copy, self.listing)
        except LinkError:
            raise
        except FileGoneError:
            checkpoints.note_gone(copy)
        except UserError as error:
            checkpoints.note_wrong(copy)
            self._note_trouble(error)
        except OSError as error:
            checkpoints.leave(self.host.name)
            self._copy_after = time.monotonic() + DISK_PAUSE_SECONDS
            self._note_trouble(error)
        return True
