"""Unpacks zip and tar archives with logs into a temporary folder, up to their end or the first damage."""

import struct
import tarfile
import tempfile
import zipfile
import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from io import BufferedReader
from pathlib import Path, PurePosixPath
from typing import IO

from dragoman.importing.files.unpacking import CHUNK_BYTES, PackedFile, check_expansion
from dragoman.run.decompressors import ChunkStream
from dragoman.run.errors import UserError, describe_os_error

ARCHIVE_ENDINGS = (".zip", ".tar", ".tgz", ".tar.gz", ".tar.xz", ".tar.bz2", ".tar.zst")
_MAX_MEMBERS = 2_000
MAX_UNPACKED_BYTES = 4 * 10**9
_ZIP_MAGIC = b"PK\x03\x04"
_TAR_MAGIC, _TAR_MAGIC_PLACE = b"ustar", 257
_LOCAL_HEADER = struct.Struct("<4sHHHHHIIIHH")
_STORED, _DEFLATED = 0, 8
_IS_ENCRYPTED = 1
_DAMAGED = (OSError, EOFError, ValueError, zlib.error, zipfile.BadZipFile, tarfile.TarError, struct.error)


@dataclass
class Unpacked:
    """Paths of a run, where archives are replaced by what they hold."""

    paths: list[Path] = field(default_factory=list)
    names: dict[str, str] = field(default_factory=dict)
    """For each temporary folder, the archive that it holds."""
    cut: list[Path] = field(default_factory=list)
    """Archives whose end is missing."""

    def rename(self, text: str) -> str:
        """Replaces the names of temporary folders in a text by those of the archives."""
        for folder, archive in self.names.items():
            text = text.replace(folder, archive)
        return text


@contextmanager
def unpack_archives(paths: Sequence[Path]) -> Iterator[Unpacked]:
    """Unpacks the archives among the paths; what they held is deleted at the end."""
    unpacked = Unpacked()
    with tempfile.TemporaryDirectory(prefix="dragoman-") as temporary:
        for number, path in enumerate(paths):
            read = _reader_of(path)
            if read is None:
                unpacked.paths.append(path)
                continue
            folder = Path(temporary) / str(number)
            folder.mkdir()
            unpacked.names[str(folder)] = str(path)
            unpacked.paths.append(_unpack(path, folder, read, unpacked))
        yield unpacked


Member = tuple[str, Iterable[bytes]]
"""Name and content of a file in an archive."""


def _unpack(path: Path, folder: Path, read: Callable[[Path], Iterator[Member]], unpacked: Unpacked) -> Path:
    """Writes the files of an archive; returns the folder, or the file if there is only one."""
    files: list[Path] = []
    num_bytes, num_packed_bytes = 0, path.stat().st_size
    try:
        for name, content in read(path):
            if len(files) >= _MAX_MEMBERS or not (place := _safe_place(folder, name)):
                continue
            files.append(place)
            place.parent.mkdir(parents=True, exist_ok=True)
            with place.open("wb") as file:
                for chunk in content:
                    num_bytes += len(chunk)
                    check_expansion(path, num_bytes, num_packed_bytes)
                    _check_size(path, num_bytes)
                    file.write(chunk)
    except _DAMAGED as error:
        if isinstance(error, OSError) and error.errno is not None:
            raise UserError(f"{path} cannot be unpacked into {folder}: {describe_os_error(error)}.") from None
        unpacked.cut.append(path)
    if not files:
        raise UserError(f"{path} holds no file that can be read.")
    return files[0] if len(files) == 1 else folder


def _check_size(path: Path, num_bytes: int) -> None:
    if num_bytes > MAX_UNPACKED_BYTES:
        raise UserError(f"{path} holds more than {MAX_UNPACKED_BYTES // 10**9} GB: unpack it and name the logs.")


def _safe_place(folder: Path, name: str) -> Path | None:
    """Returns where a member goes; None for a folder and for names that lead out of the archive."""
    parts = PurePosixPath(name.replace("\\", "/")).parts
    is_safe = parts and not name.endswith("/") and not any(part in ("/", "..") or "\0" in part for part in parts)
    return folder.joinpath(*(part[:200] for part in parts[-8:])) if is_safe else None


def _reader_of(path: Path) -> Callable[[Path], Iterator[Member]] | None:
    """Returns what reads the archive; None for any other file."""
    if not path.is_file():
        return None
    head = b""
    for chunk in PackedFile(path):
        head += chunk
        if len(head) >= _TAR_MAGIC_PLACE + len(_TAR_MAGIC):
            break
    if head.startswith(_ZIP_MAGIC):
        return _zip_members
    return _tar_members if head.startswith(_TAR_MAGIC, _TAR_MAGIC_PLACE) else None


def _tar_members(path: Path) -> Iterator[Member]:
    stream = BufferedReader(ChunkStream(iter(PackedFile(path))), CHUNK_BYTES)
    with tarfile.open(fileobj=stream, mode="r|", errorlevel=1) as archive:
        for member in archive:
            if member.isfile() and (file := archive.extractfile(member)):
                yield member.name, _chunks(file, member.size)


def _chunks(file: IO[bytes], num_bytes: int) -> Iterator[bytes]:
    while num_bytes > 0:
        chunk = file.read(min(CHUNK_BYTES, num_bytes))
        if not chunk:
            raise EOFError("the archive is cut off")
        num_bytes -= len(chunk)
        yield chunk


def _zip_members(path: Path) -> Iterator[Member]:
    try:
        with zipfile.ZipFile(path) as archive:
            for info in archive.infolist():
                _require_no_password(path, info.flag_bits)
                with archive.open(info) as file:
                    yield info.filename, _chunks(file, info.file_size)
            return
    except zipfile.BadZipFile:
        pass  # its list of files is at its end: without it, the files are found one after the other
    except NotImplementedError as error:
        raise UserError(f"{path} cannot be unpacked: {error}.") from None
    yield from _zip_members_in_order(path)
    raise EOFError("the list of files is missing")


def _require_no_password(path: Path, flags: int) -> None:
    if flags & _IS_ENCRYPTED:
        raise UserError(f"{path} is protected by a password: unpack it first.")


def _zip_members_in_order(path: Path) -> Iterator[Member]:
    """Reads a zip that was cut off from its start."""
    with path.open("rb") as file:
        while (header := file.read(_LOCAL_HEADER.size)).startswith(_ZIP_MAGIC) and len(header) == _LOCAL_HEADER.size:
            _, _, flags, method, _, _, _, num_packed, _, name_length, extra_length = _LOCAL_HEADER.unpack(header)
            _require_no_password(path, flags)
            name = file.read(name_length).decode("utf-8", errors="replace")
            file.seek(extra_length, 1)
            if method == _DEFLATED:
                yield name, _inflate(file)
            elif method == _STORED:
                yield name, _chunks(file, num_packed)
            else:
                raise UserError(f"{path} is cut off, and its kind of compression cannot be read without its end.")
            _skip_to_next_header(file)


def _inflate(file: IO[bytes]) -> Iterator[bytes]:
    member = zlib.decompressobj(wbits=-zlib.MAX_WBITS)
    while raw := file.read(CHUNK_BYTES):
        while raw and not member.eof:
            yield member.decompress(raw, CHUNK_BYTES)
            raw = member.unconsumed_tail
        if member.eof:
            file.seek(-len(member.unused_data), 1)
            return
    yield member.flush()
    raise EOFError("the archive is cut off")


def _skip_to_next_header(file: IO[bytes]) -> None:
    """Skips the sizes that some programs write behind a member."""
    here = file.tell()
    place = file.read(64).find(_ZIP_MAGIC)
    file.seek(here + max(place, 0))
