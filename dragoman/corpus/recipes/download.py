"""Downloads files into mtdata's cache, continues interrupted downloads, and leaves only complete files there.

mtdata's own downloader starts again after an interruption, and ignores a wrong certificate of a host.
"""

import fcntl
import hashlib
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.client import HTTPException, HTTPResponse
from pathlib import Path
from urllib.error import HTTPError
from urllib.parse import urlsplit
from urllib.request import Request, urlopen

from dragoman.run.errors import UserError
from dragoman.run.files import read_json, write_json

Show = Callable[[str, int, int | None], None]

_NUM_ATTEMPTS = 5
TIMEOUT_SECONDS = 30
_CHUNK_BYTES = 2**18
_HEADERS = {"User-Agent": "dragoman (downloads corpora for machine translation)"}
_NOT_SATISFIABLE = 416


def cached_path(cache: Path, url: str, filename: str) -> Path:
    """Path of a download in mtdata's cache."""
    digest = hashlib.md5(url.encode(), usedforsecurity=False).hexdigest()
    return cache / (urlsplit(url).hostname or "nohost") / digest[:4] / digest[4:] / Path(filename).name


def _valid_mark(path: Path) -> Path:
    """Path of the empty file that marks a download as complete for mtdata."""
    return path.with_name(f"{path.name}._valid")


def is_cached(path: Path) -> bool:
    """Whether a download exists and is complete."""
    return path.exists() and _valid_mark(path).exists()


def forget(path: Path) -> None:
    """Removes a damaged download, so that it is downloaded again."""
    _valid_mark(path).unlink(missing_ok=True)
    path.unlink(missing_ok=True)


def download(url: str, path: Path, show: Show) -> None:
    """Downloads `url` to `path`, and continues what an earlier attempt left."""
    if urlsplit(url).scheme not in ("http", "https"):
        raise UserError(f"{url} is not a web address.")
    path.parent.mkdir(parents=True, exist_ok=True)
    with _hold(path):
        if is_cached(path):
            return
        partial = _Partial(path)
        _attempt_until_complete(url, partial, show)
        partial.path.replace(path)
        partial.notes.unlink(missing_ok=True)
        _valid_mark(path).touch()


@contextmanager
def _hold(path: Path) -> Iterator[None]:
    """Keeps other processes, also those of mtdata, from writing the same download."""
    with path.with_name(f"{path.name}._lock").open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise UserError(f"{path} is being downloaded by another process; wait until it has finished.") from None
        yield


class _Partial:
    """The first part of a download, and notes about the version of the remote file."""

    def __init__(self, path: Path) -> None:
        self.path = path.with_name(f"{path.name}.partial")
        self.notes = path.with_name(f"{path.name}.partial.json")

    @property
    def num_bytes(self) -> int:
        return self.path.stat().st_size if self.path.exists() else 0

    def read_notes(self) -> tuple[str | None, int | None]:
        """Returns the version and the full length, each None if unknown."""
        try:
            notes = read_json(self.notes)
            return notes["version"], notes["num_bytes"]
        except (OSError, ValueError, KeyError, TypeError):  # without readable notes, the download starts again
            return None, None

    def start_over(self, version: str | None, num_bytes: int | None) -> None:
        self.path.unlink(missing_ok=True)
        write_json(self.notes, {"version": version, "num_bytes": num_bytes})


def _attempt_until_complete(url: str, partial: _Partial, show: Show) -> None:
    """Connects again after an interruption, as long as each connection transfers something."""
    for _ in range(_NUM_ATTEMPTS):
        num_bytes_before = partial.num_bytes
        try:
            _continue(url, partial, show)
            return
        except (OSError, HTTPException) as problem:
            reason = problem
            if isinstance(problem, HTTPError) and problem.code == _NOT_SATISFIABLE:
                partial.start_over(None, None)
            elif partial.num_bytes <= num_bytes_before:
                break
    raise UserError(
        f"{url} could not be downloaded: {_in_words(reason)}. "
        f"{partial.num_bytes / 1e6:,.1f} MB of it are kept; run the same command again to continue."
    )


def _in_words(problem: Exception) -> str:
    reason = getattr(problem, "reason", None) or problem
    return str(reason).rstrip(".") or type(problem).__name__


def _continue(url: str, partial: _Partial, show: Show) -> None:
    """Requests the missing bytes over one connection and appends them; ConnectionError if it ends early."""
    version, num_bytes_total = partial.read_notes()
    if num_bytes_total is not None and partial.num_bytes == num_bytes_total:
        return
    headers = dict(_HEADERS)
    if version is not None and partial.num_bytes > 0:
        # If-Range: a file that has changed is sent from its beginning, so that it is not appended to the old one.
        headers |= {"Range": f"bytes={partial.num_bytes}-", "If-Range": version}
    request = Request(url, headers=headers)  # noqa: S310  (the scheme was checked by `download`)
    with urlopen(request, timeout=TIMEOUT_SECONDS) as response:  # noqa: S310
        num_bytes_total = _begin(response, partial)
        _append(response, partial, f"{Path(urlsplit(url).path).name} (kB)", num_bytes_total, show)
    if num_bytes_total is not None and partial.num_bytes != num_bytes_total:
        raise ConnectionError(f"the connection ended after {partial.num_bytes:,} of {num_bytes_total:,} bytes")


def _begin(response: HTTPResponse, partial: _Partial) -> int | None:
    """Keeps the first part if the response continues it, else starts again; returns the full length if known."""
    if response.status == 206:
        first, _, total = response.headers.get("Content-Range", "").removeprefix("bytes ").partition("/")
        if first.partition("-")[0] == str(partial.num_bytes) and total.isdigit():
            return int(total)
        partial.start_over(None, None)
        raise ConnectionError("the host continued at a wrong position")
    length = response.headers.get("Content-Length")
    num_bytes_total = int(length) if length is not None else None
    partial.start_over(_version(response), num_bytes_total)
    return num_bytes_total


def _version(response: HTTPResponse) -> str | None:
    """Returns what identifies the version of the remote file; weak tags may not be used for ranges (RFC 9110)."""
    tag = response.headers.get("ETag")
    if tag is not None and not tag.startswith("W/"):
        return tag
    return response.headers.get("Last-Modified")


def _append(response: HTTPResponse, partial: _Partial, stage: str, num_bytes_total: int | None, show: Show) -> None:
    num_bytes = partial.num_bytes
    with partial.path.open("ab") as file:
        while chunk := response.read1(_CHUNK_BYTES):
            file.write(chunk)
            num_bytes += len(chunk)
            show(stage, num_bytes // 1000, num_bytes_total // 1000 if num_bytes_total is not None else None)
        file.flush()
        os.fsync(file.fileno())
