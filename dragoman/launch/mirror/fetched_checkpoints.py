"""Brings the newest and the best checkpoint of a run from its hosts, in small parts, and verifies them.

A checkpoint appears complete or not at all, as on its host. Its files are copied under another name, where an
interrupted copy continues, and renamed once their hashes are those of the manifest.
"""

import json
import os
import shutil
import threading
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from dragoman.launch.mirror.file_link import FileFacts, FileLink, Listing
from dragoman.launch.mirror.host_files import LINKS, MAX_READ_BYTES, checkpoint_file
from dragoman.run.checkpoints import (
    FORMAT_VERSION,
    MANIFEST_FILE,
    MODEL_FILE,
    OPTIMIZER_FILE,
    OPTIONAL_FILES,
    STATE_FILE,
    check_sizes,
    verify_checkpoint,
)
from dragoman.run.errors import UserError
from dragoman.run.files import fsync_folder, read_json, replace_link, require_free_space, write_text
from dragoman.run.folder import RunFolder

MARK_FILE = "fetched.json"
"""Says that a checkpoint was brought from a host: only such ones are removed here."""
MAX_ATTEMPTS = 2
"""How often a checkpoint is copied whose files are not those of its manifest."""
_FILES = (STATE_FILE, MODEL_FILE, OPTIMIZER_FILE)
_SUFFIX = ".fetched"


@dataclass(frozen=True)
class _FileRecord:
    """A file as the manifest describes it."""

    num_bytes: int
    sha256: str


class CheckpointCopy:
    """One checkpoint on its way from a host."""

    def __init__(self, run: RunFolder, step: int, host: str, facts: FileFacts, is_reusing: bool = True) -> None:
        """`is_reusing`: files of an earlier copy of the step are used where the manifest gives them the same hash."""
        self.step, self.host = step, host
        self.facts = facts
        """The facts of its manifest on the host, which change when the step is saved again."""
        self.num_bytes_done = 0
        self.num_bytes = 0
        self._final = run.checkpoint(step)
        self._aside = self._final.with_name(f".{self._final.name}{_SUFFIX}")
        self._records: Mapping[str, _FileRecord] = {}
        self._is_reusing = is_reusing

    def advance(self, link: FileLink, max_bytes: int) -> int:
        """Brings the next part; returns its size, 0 once the checkpoint is here.

        Raises FileGoneError where the host has removed it, and a UserError where its files are not those it describes.
        """
        if not self._records:
            return self._begin(link)
        for name, record in self._records.items():
            path = self._aside / name
            offset = path.stat().st_size if path.exists() else 0
            if offset < record.num_bytes:
                return self._copy_part(link, name, offset, min(max_bytes, record.num_bytes - offset))
        verify_checkpoint(self._aside, tuple(self._records))
        write_text(self._aside / MARK_FILE, json.dumps({"host": self.host}) + "\n")
        fsync_folder(self._aside)
        self._put_in_place()
        return 0

    def discard(self) -> None:
        """Removes what was copied."""
        shutil.rmtree(self._aside, ignore_errors=True)

    def _begin(self, link: FileLink) -> int:
        """Reads the manifest and prepares the folder; files that are here already are not copied again."""
        manifest = link.read(checkpoint_file(self.step, MANIFEST_FILE), 0).content
        records = _parse_manifest(self._final.name, manifest)
        if self._is_here(manifest, records):
            return 0
        self._aside.parent.mkdir(parents=True, exist_ok=True)
        for other in self._aside.parent.glob(f".step-*{_SUFFIX}"):
            if other != self._aside:
                shutil.rmtree(other, ignore_errors=True)
        self._aside.mkdir(mode=0o700, exist_ok=True)
        self._keep_what_is_here(records)
        self.num_bytes = sum(record.num_bytes for record in records.values())
        self.num_bytes_done = sum(path.stat().st_size for name in records if (path := self._aside / name).exists())
        require_free_space(self._aside, self.num_bytes - self.num_bytes_done)
        (self._aside / MANIFEST_FILE).write_bytes(manifest)
        self._records = records
        return len(manifest)

    def _is_here(self, manifest: bytes, records: Mapping[str, _FileRecord]) -> bool:
        """Whether it was brought before; on another host its state differs in the seconds counted, not in weights."""
        if not is_fetched(self._final):
            return False
        if (self._final / MANIFEST_FILE).read_bytes() == manifest:
            return True
        here = _read_records(self._final) if is_complete(self._final) else {}
        weights = (MODEL_FILE, OPTIMIZER_FILE, *OPTIONAL_FILES)
        is_same = all(here.get(name) == records.get(name) for name in weights)
        return is_same and read_json(self._final / MARK_FILE).get("host") != self.host

    def _keep_what_is_here(self, records: Mapping[str, _FileRecord]) -> None:
        """Keeps the parts of the same files, and uses those of the same step: only its evaluation may be new."""
        before = _read_records(self._aside)
        here = _read_records(self._final) if self._is_reusing and is_complete(self._final) else {}
        for name, record in records.items():
            path = self._aside / name
            if before.get(name) != record or (path.exists() and path.stat().st_size > record.num_bytes):
                path.unlink(missing_ok=True)
            if here.get(name) == record:
                path.unlink(missing_ok=True)
                with suppress(OSError):  # not every file system has hard links
                    os.link(self._final / name, path)

    def _copy_part(self, link: FileLink, name: str, offset: int, max_bytes: int) -> int:
        content = link.read(checkpoint_file(self.step, name), offset, max_bytes).content
        if not content:
            raise UserError(f"{self.host}: {checkpoint_file(self.step, name)} is shorter than its manifest says.")
        require_free_space(self._aside, len(content))
        with (self._aside / name).open("ab") as file:
            file.write(content)
        self.num_bytes_done += len(content)
        return len(content)

    def _put_in_place(self) -> None:
        """Renames, also over an older copy of the same step; a kill in between leaves what a resumed run restores."""
        old = self._final.with_name(f".{self._final.name}.old")
        if self._final.exists():
            self._final.rename(old)
        self._aside.rename(self._final)
        fsync_folder(self._final.parent)
        shutil.rmtree(old, ignore_errors=True)


class MirroredCheckpoints:
    """The checkpoints that were brought here, and which ones are still wanted; one is brought at a time."""

    def __init__(self, run: RunFolder) -> None:
        self.is_needed = True
        """Whether checkpoints are to be brought: not where a worker saves them in the run folder here."""
        self._run = run
        self._lock, self._links_lock = threading.Lock(), threading.Lock()
        self._reached: dict[str, tuple[int, ...]] = {}
        """The newest and the best step of each host that is reached now; -1 for one that it does not have."""
        self._sender: str | None = None
        self._known: dict[tuple[str, int], FileFacts] = {}
        """Facts of the manifests, by host and step, of checkpoints that are here."""
        self._num_failures: dict[tuple[str, int, FileFacts], int] = {}

    def note_reached(self, host: str, listing: Listing) -> None:
        """Counts the host among those that can send checkpoints."""
        with self._lock:
            self._reached[host] = how_far(listing)

    def leave(self, host: str) -> None:
        """Lets another host send the next checkpoint; what came of an unfinished one stays."""
        with self._lock:
            self._reached.pop(host, None)
            self._sender = None if self._sender == host else self._sender

    def is_source(self, host: str) -> bool:
        """Whether a host is the one to bring checkpoints from: the one that got furthest, the first of several."""
        reached = dict(self._reached)
        return self.is_needed and host == max(reached, key=reached.__getitem__, default=None)

    def claim(self, host: str, listing: Listing, is_start_wanted: bool) -> CheckpointCopy | None:
        """Returns the next checkpoint that this host is to send; None if another one sends, or nothing is wanted."""
        with self._lock:
            if self._sender is not None or not self.is_source(host):
                return None
            copy = self._next_copy(host, listing, is_start_wanted)
            self._sender = host if copy else None
            return copy

    def is_any_wanted(self, host: str, listing: Listing, is_start_wanted: bool) -> bool:
        """Whether this host is to send a checkpoint, now or after the one that another host sends."""
        with self._lock:
            return self.is_source(host) and self._next_copy(host, listing, is_start_wanted) is not None

    def _next_copy(self, host: str, listing: Listing, is_start_wanted: bool) -> CheckpointCopy | None:
        """Returns the next checkpoint to bring: first the best, which changes less often.

        The one of step 0 holds no training; it is wanted only where the run has ended with it.
        """
        for name in reversed(LINKS):
            step = listing.links.get(name)
            facts = listing.files.get(checkpoint_file(step, MANIFEST_FILE)) if step is not None else None
            if step is None or facts is None or (step == 0 and not is_start_wanted):
                continue
            num_failures = self._num_failures.get((host, step, facts), 0)
            is_here = self._known.get((host, step)) == facts or self._is_own(step)
            if num_failures < MAX_ATTEMPTS and not is_here:
                return CheckpointCopy(self._run, step, host, facts, is_reusing=num_failures == 0)
        return None

    def note_done(self, copy: CheckpointCopy, listing: Listing) -> None:
        """Points the links at what is here now, and removes what was brought before and is not needed any more."""
        self._known[copy.host, copy.step] = copy.facts
        self._release(copy)
        self.point_links(listing)

    def note_gone(self, copy: CheckpointCopy) -> None:
        """Removes a copy whose original is gone."""
        copy.discard()
        self._release(copy)

    def note_wrong(self, copy: CheckpointCopy) -> None:
        """Removes a copy whose files are not those of its manifest; after two of them, no third one is made."""
        key = (copy.host, copy.step, copy.facts)
        self._num_failures[key] = self._num_failures.get(key, 0) + 1
        self.note_gone(copy)

    def _release(self, copy: CheckpointCopy) -> None:
        with self._lock:
            self._sender = None if self._sender == copy.host else self._sender

    def missing_steps(self, listing: Listing) -> list[int]:
        """Returns the steps that a host has as latest or best and that are not here."""
        if not self.is_needed:
            return []
        return sorted({step for step in listing.links.values() if not is_complete(self._run.checkpoint(step))})

    def point_links(self, listing: Listing) -> None:
        """Points `latest` at the newest checkpoint here that the host's run has reached, `best` at the host's best."""
        with self._links_lock:
            self._point_links(*(listing.links.get(name) for name in LINKS))

    def _point_links(self, latest: int | None, best: int | None) -> None:
        here = [step for step in self._run.checkpoint_steps() if is_complete(self._run.checkpoint(step))]
        reached = [step for step in here if latest is not None and step <= latest]
        if reached:
            replace_link(self._run.checkpoints / "latest", self._run.checkpoint(reached[-1]).name)
        if best in here:
            replace_link(self._run.checkpoints / "best", self._run.checkpoint(best).name)
        self._remove_old(here, latest)

    def _remove_old(self, here: list[int], latest: int | None) -> None:
        linked = {(self._run.checkpoints / name).resolve() for name in LINKS}
        for step in here:
            folder = self._run.checkpoint(step)
            if latest is not None and folder.resolve() not in linked and is_fetched(folder):
                shutil.rmtree(folder, ignore_errors=True)

    def _is_own(self, step: int) -> bool:
        """Whether a process here wrote this checkpoint; it is never replaced."""
        folder = self._run.checkpoint(step)
        return folder.exists() and not is_fetched(folder)


def how_far(listing: Listing) -> tuple[int, ...]:
    """The newest and the best step that a host has, by which hosts are compared; -1 for one that it does not have."""
    return tuple(listing.links.get(name, -1) for name in LINKS)


def is_fetched(checkpoint: Path) -> bool:
    """Whether a checkpoint was brought from a host."""
    return (checkpoint / MARK_FILE).exists()


def is_complete(checkpoint: Path) -> bool:
    """Whether all files of a checkpoint are here with their sizes."""
    try:
        check_sizes(checkpoint, tuple(_read_records(checkpoint)) or _FILES)
    except UserError:
        return False
    return True


def _read_records(checkpoint: Path) -> dict[str, _FileRecord]:
    """Reads the manifest of a folder; empty if it is missing or damaged."""
    with suppress(OSError, UserError):
        return _parse_manifest(checkpoint.name, (checkpoint / MANIFEST_FILE).read_bytes())
    return {}


def _parse_manifest(name: str, content: bytes) -> dict[str, _FileRecord]:
    """Reads sizes and hashes from a manifest that another host has sent."""
    try:
        values = json.loads(content)
        names = (*_FILES, *(each for each in OPTIONAL_FILES if each in values["files"]))
        records = {each: values["files"][each] for each in names}
        if values["format_version"] != FORMAT_VERSION or len(content) >= MAX_READ_BYTES:
            raise ValueError
        found = {each: _FileRecord(int(record["bytes"]), str(record["sha256"])) for each, record in records.items()}
        if any(record.num_bytes < 0 for record in found.values()):
            raise ValueError
    except (ValueError, KeyError, TypeError, OverflowError, RecursionError):
        raise UserError(f"The {MANIFEST_FILE} of {name} cannot be read, or has another format.") from None
    return found
