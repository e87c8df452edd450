"""Runs `dragoman data get`: downloads the datasets of a recipe, and writes plain text and a config that prepares it.

DIR/recipe.json is written after each dataset, so an interrupted command continues where it stopped.
"""

import fcntl
import hashlib
import os
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from http.client import HTTPException, HTTPResponse
from importlib.metadata import version
from pathlib import Path
from typing import Any
from urllib.error import HTTPError
from urllib.parse import urlsplit
from urllib.request import Request, urlopen

from dragoman.corpus.recipes.extraction import Extracted, extract
from dragoman.corpus.recipes.index import (
    Dataset,
    Index,
    LanguagePair,
    Recipe,
    cache_folder,
    find_recipe,
    load_index,
    parse_languages,
)
from dragoman.run.decompressors import DamagedError
from dragoman.run.errors import UsageError, UserError, describe_os_error
from dragoman.run.files import read_json, remove_abandoned, require_free_space, sha256, write_json, write_text
from dragoman.run.interruption import signals_as_keyboard_interrupt
from dragoman.run.tables import dump_toml

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


def remove_download(path: Path) -> None:
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
    """The bytes of a download so far, and notes about the version of the remote file."""

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
        _require_space(partial, (num_bytes_total or 0) - partial.num_bytes)
        _append(response, partial, f"{Path(urlsplit(url).path).name} (kB)", num_bytes_total, show)
    if num_bytes_total is not None and partial.num_bytes != num_bytes_total:
        raise ConnectionError(f"the connection ended after {partial.num_bytes:,} of {num_bytes_total:,} bytes")


def _begin(response: HTTPResponse, partial: _Partial) -> int | None:
    """Keeps the bytes so far if the response continues them, else starts again; returns the full length if known."""
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
            _require_space(partial)  # the host may send more than it announced
            file.write(chunk)
            num_bytes += len(chunk)
            show(stage, num_bytes // 1000, num_bytes_total // 1000 if num_bytes_total is not None else None)
        file.flush()
        os.fsync(file.fileno())


def _require_space(partial: _Partial, num_bytes: int = 0) -> None:
    """Refuses to fill the disk; not as an OSError, which would be taken for one of the connection."""
    try:
        require_free_space(partial.path.parent, max(0, num_bytes))
    except OSError:
        raise UserError(
            f"There is not enough space left for {partial.path}; free some, or set "
            "MTDATA to a folder on another disk, and run the same command again to continue."
        ) from None


_RECORD_NAME = "recipe.json"
_CONFIG_NAME = "prepare.toml"
_TABLES = {"train": "prepare.corpora", "dev": "prepare.dev", "test": "prepare.test"}
Say = Callable[[str], None]


@dataclass(frozen=True)
class FileRecord:
    """Size and checksum of a file when it was written; `name` is a file name, or the URL of a download."""

    name: str
    num_bytes: int
    sha256: str


@dataclass(frozen=True)
class FetchedDataset:
    """One downloaded dataset of a recipe."""

    part: str
    """train, dev or test."""
    dataset: str
    """Its id in mtdata."""
    name: str
    """Its name in prepare.toml."""
    texts: tuple[tuple[str, ...], ...]
    """File names: (source, target), or single files that hold both sides."""
    num_pairs: int | None
    num_repaired_lines: int
    num_skipped_rows: int
    files: tuple[FileRecord, ...]
    downloads: tuple[FileRecord, ...]


def get_recipe(
    name: str,
    out: Path,
    say: Say,
    progress: Show,
    languages: LanguagePair | None = None,
    index: Index | None = None,
) -> list[FetchedDataset]:
    """Downloads a recipe, or one mtdata dataset by its id, into a folder; `languages` sets the direction."""
    index = index or load_index(say)
    recipe = find_recipe(name, index)
    pair = _choose_direction(recipe, languages, index)
    datasets = [(part, _find_dataset(dataset_id, pair, index)) for part, dataset_id in recipe.dataset_ids]
    with _trouble_as_user_errors(out):
        out.mkdir(parents=True, exist_ok=True)
        remove_abandoned(out)
        fetch = _Fetch(recipe, pair, out, index, say, progress)
        say(f"Downloads are kept in {cache_folder()} (set MTDATA to change that).")
        parts = [fetch.get_part(part, dataset) for part, dataset in datasets]
        _write_config(recipe, pair, parts, out)
    return parts


@contextmanager
def _trouble_as_user_errors(out: Path) -> Iterator[None]:
    try:
        with signals_as_keyboard_interrupt():
            yield
    except OSError as problem:
        raise UserError(
            f"{problem.filename or out} cannot be written: {describe_os_error(problem)}. "
            "Fix that or choose another folder; then run the same command again to continue."
        ) from None
    except KeyboardInterrupt:
        raise UserError("Stopped; run the same command again to continue where it stopped.") from None


def _choose_direction(recipe: Recipe, languages: LanguagePair | None, index: Index) -> LanguagePair:
    own = parse_languages(recipe.languages)
    if languages is None:
        return own
    if {index.primary_code(tag) for tag in languages} != {index.primary_code(tag) for tag in own}:
        raise UsageError(f"{recipe.name} is for {recipe.languages} (in either direction), not {'-'.join(languages)}.")
    return index.short_code(languages[0]), index.short_code(languages[1])


def _find_dataset(dataset_id: str, languages: LanguagePair, index: Index) -> Dataset:
    dataset = index.find(dataset_id)
    if dataset is None:
        raise UserError(f"mtdata {version('mtdata')} does not have {dataset_id}; install another version of mtdata.")
    if not dataset.is_readable:
        raise UserError(
            f"{dataset_id} has a format that dragoman cannot read ({dataset.format}); for other datasets, "
            f"see: dragoman data list --languages {'-'.join(languages)}"
        )
    return dataset


class _Fetch:
    """Downloads one recipe into one folder, and records what is already there."""

    def __init__(
        self, recipe: Recipe, languages: LanguagePair, out: Path, index: Index, say: Say, progress: Show
    ) -> None:
        self.languages, self.out, self.index, self.say, self.progress = languages, out, index, say, progress
        self._record_path = out / _RECORD_NAME
        self._header = {"name": recipe.name, "languages": "-".join(languages), "mtdata_version": version("mtdata")}
        self._parts = _read_record(self._record_path, self._header)

    def get_part(self, part: str, dataset: Dataset) -> FetchedDataset:
        """Returns the dataset if it is already in the folder, else downloads it."""
        known = self._parts.get((part, dataset.id))
        if known is not None and _is_intact(known, self.out):
            self.say(f"{dataset.id} is already there.")
            return known
        if known is not None:
            self.say(f"Files of {dataset.id} were changed or removed; they are written again.")
        fetched = self._fetch(part, dataset)
        self._parts[part, dataset.id] = fetched
        write_json(self._record_path, self._header | {"parts": [asdict(part) for part in self._parts.values()]})
        self._report(fetched)
        return fetched

    def _fetch(self, part: str, dataset: Dataset) -> FetchedDataset:
        downloads = list(self._download(dataset))
        # All datasets of a recipe have the same two languages, so their ids differ without them too.
        name = re.sub(r"[^A-Za-z0-9._-]", "_", "-".join(dataset.id.split("-")[:-2]))
        source, target = (self.out / f"{part}.{name}.{language}" for language in self.languages)
        is_reversed = self.index.primary_code(dataset.languages[0]) != self.index.primary_code(self.languages[0])
        sides = (target, source) if is_reversed else (source, target)
        try:
            extracted = extract(dataset, downloads, sides, self.out / f"{part}.{name}.{dataset.format}")
        except DamagedError as problem:
            for path in downloads:
                remove_download(path)
            raise UserError(
                f"{dataset.id}: the download from {' and '.join(dataset.urls)} is damaged: {problem}. "
                "It was removed; run the same command again to download it again."
            ) from None
        if dataset.format != "tmx":
            extracted.texts = [(source, target)]
        return _describe(part, name, dataset, downloads, extracted)

    def _download(self, dataset: Dataset) -> Iterator[Path]:
        for url, filename in zip(dataset.urls, dataset.filenames, strict=True):
            path = cached_path(cache_folder(), url, filename)
            if not is_cached(path):
                self.say(f"Downloading {dataset.id} from {url}")
                try:
                    download(url, path, self.progress)
                except UserError as problem:
                    raise UserError(f"{dataset.id}: {problem}") from None
            yield path

    def _report(self, part: FetchedDataset) -> None:
        amount = f"{part.num_pairs:,} pairs" if part.num_pairs is not None else "to be counted by dragoman prepare"
        self.say(f"{part.part}: {part.dataset}, {amount}")
        if part.num_repaired_lines:
            self.say(f"{part.num_repaired_lines:,} of its lines are not UTF-8; U+FFFD replaces the wrong bytes.")
        if part.num_skipped_rows:
            self.say(f"{part.num_skipped_rows:,} of its rows lack a side and were left out.")


def _describe(part: str, name: str, dataset: Dataset, downloads: list[Path], extracted: Extracted) -> FetchedDataset:
    paths = [path for text in extracted.texts for path in text]
    return FetchedDataset(
        part=part,
        dataset=dataset.id,
        name=name,
        texts=tuple(tuple(path.name for path in text) for text in extracted.texts),
        num_pairs=extracted.num_pairs,
        num_repaired_lines=extracted.num_repaired_lines,
        num_skipped_rows=extracted.num_skipped_rows,
        files=tuple(FileRecord(path.name, path.stat().st_size, sha256(path)) for path in paths),
        downloads=tuple(
            FileRecord(url, path.stat().st_size, sha256(path))
            for url, path in zip(dataset.urls, downloads, strict=True)
        ),
    )


def _read_record(path: Path, header: dict[str, str]) -> dict[tuple[str, str], FetchedDataset]:
    """Reads the datasets that an earlier command downloaded; refuses the folder of another recipe."""
    if not path.exists():
        return {}
    try:
        record = read_json(path)
        name, languages = record["name"], record["languages"]
        parts = [_parse_part(values) for values in record["parts"]]
    except (ValueError, KeyError, TypeError):
        raise UserError(f"{path} was not written by dragoman; remove it or choose another folder.") from None
    if (name, languages) != (header["name"], header["languages"]):
        raise UserError(f"{path.parent} holds {name} ({languages}); choose another folder.")
    return {(part.part, part.dataset): part for part in parts}


def _parse_part(values: dict[str, Any]) -> FetchedDataset:
    lists = {key: tuple(FileRecord(**record) for record in values[key]) for key in ("files", "downloads")}
    return FetchedDataset(**values | lists | {"texts": tuple(map(tuple, values["texts"]))})


def _is_intact(part: FetchedDataset, folder: Path) -> bool:
    return all(_is_as_recorded(folder / record.name, record) for record in part.files)


def _is_as_recorded(path: Path, record: FileRecord) -> bool:
    return path.exists() and path.stat().st_size == record.num_bytes and sha256(path) == record.sha256


def _write_config(recipe: Recipe, languages: LanguagePair, parts: list[FetchedDataset], out: Path) -> None:
    """Writes prepare.toml, unless it exists: it may have been edited."""
    path = out / _CONFIG_NAME
    if path.exists():
        return
    blocks = [f"# {recipe.name}, downloaded by dragoman. Paths are relative to this file.\n"]
    blocks.append(dump_toml({"prepare": {"languages": "-".join(languages)}}))
    for part in parts:
        for files in part.texts:
            keys = ("source", "target") if len(files) == 2 else ("file",)
            values = ({"name": part.name} if part.part == "train" else {}) | dict(zip(keys, files, strict=True))
            blocks.append(dump_toml({f"[{_TABLES[part.part]}]": values}))  # one more bracket: an array of tables
    write_text(path, "\n".join(blocks))
