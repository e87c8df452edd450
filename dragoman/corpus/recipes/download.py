"""Downloads into mtdata's cache, which mtdata itself could then use: continued after a cut, and complete or absent.

mtdata's own downloader starts over after a cut, and where a host's certificate is wrong it goes on without checking it.
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

NUM_ATTEMPTS = 5
TIMEOUT_SECONDS = 30
_CHUNK_BYTES = 2**18
_HEADERS = {"User-Agent": "dragoman (downloads corpora for machine translation)"}
_NOT_SATISFIABLE = 416


def cached_path(cache: Path, url: str, filename: str) -> Path:
    """Where mtdata keeps a download."""
    digest = hashlib.md5(url.encode(), usedforsecurity=False).hexdigest()
    return cache / (urlsplit(url).hostname or "nohost") / digest[:4] / digest[4:] / Path(filename).name


def _valid_mark(path: Path) -> Path:
    """The empty file by which mtdata knows that a download is complete."""
    return path.with_name(f"{path.name}._valid")


def is_cached(path: Path) -> bool:
    """Whether a download is there and complete."""
    return path.exists() and _valid_mark(path).exists()


def forget(path: Path) -> None:
    """Removes a download that turned out to be damaged, so that it is fetched anew."""
    _valid_mark(path).unlink(missing_ok=True)
    path.unlink(missing_ok=True)


def download(url: str, path: Path, show: Show) -> None:
    """Makes `path` a complete copy of what is behind `url`; what an earlier attempt left is continued."""
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
    """Keeps other processes, mtdata's too, from writing the same download."""
    with path.with_name(f"{path.name}._lock").open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise UserError(f"{path} is being downloaded by another process; wait for that one.") from None
        yield


class _Partial:
    """The beginning of a download, and notes on which version of the remote file it is the beginning of."""

    def __init__(self, path: Path) -> None:
        self.path = path.with_name(f"{path.name}.partial")
        self.notes = path.with_name(f"{path.name}.partial.json")

    @property
    def num_bytes(self) -> int:
        return self.path.stat().st_size if self.path.exists() else 0

    def read_notes(self) -> tuple[str | None, int | None]:
        """(mark of the version, full length), each if known."""
        try:
            notes = read_json(self.notes)
            return notes["version"], notes["num_bytes"]
        except (OSError, ValueError, KeyError, TypeError):  # without notes that can be read, it starts over
            return None, None

    def start_over(self, version: str | None, num_bytes: int | None) -> None:
        self.path.unlink(missing_ok=True)
        write_json(self.notes, {"version": version, "num_bytes": num_bytes})


def _attempt_until_complete(url: str, partial: _Partial, show: Show) -> None:
    """Connects again after a cut, as long as each connection brings something."""
    for _ in range(NUM_ATTEMPTS):
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
    """One connection: asks for what is missing and appends it; ConnectionError if it ends early."""
    version, num_bytes_total = partial.read_notes()
    if num_bytes_total is not None and partial.num_bytes == num_bytes_total:
        return
    headers = dict(_HEADERS)
    if version is not None and partial.num_bytes > 0:
        # If-Range: a file that has changed meanwhile is sent from its beginning, not glued to the old one.
        headers |= {"Range": f"bytes={partial.num_bytes}-", "If-Range": version}
    request = Request(url, headers=headers)  # noqa: S310  (the scheme was checked by `download`)
    with urlopen(request, timeout=TIMEOUT_SECONDS) as response:  # noqa: S310
        num_bytes_total = _begin(response, partial)
        _append(response, partial, f"{Path(urlsplit(url).path).name} (kB)", num_bytes_total, show)
    if num_bytes_total is not None and partial.num_bytes != num_bytes_total:
        raise ConnectionError(f"the connection ended after {partial.num_bytes:,} of {num_bytes_total:,} bytes")


def _begin(response: HTTPResponse, partial: _Partial) -> int | None:
    """Keeps what is there if the response continues it, else starts over; gives the full length if it is told."""
    if response.status == 206:
        first, _, total = response.headers.get("Content-Range", "").removeprefix("bytes ").partition("/")
        if first.partition("-")[0] == str(partial.num_bytes) and total.isdigit():
            return int(total)
        partial.start_over(None, None)
        raise ConnectionError("the host continued at another place than asked")
    length = response.headers.get("Content-Length")
    num_bytes_total = int(length) if length is not None else None
    partial.start_over(_version(response), num_bytes_total)
    return num_bytes_total


def _version(response: HTTPResponse) -> str | None:
    """What tells one version of the remote file from another; weak tags may not be used for ranges (RFC 9110)."""
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
