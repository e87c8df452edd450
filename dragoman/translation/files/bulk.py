"""Translates a file of any size into another file: an interrupted command continues where it stopped.

.NAME.partial/        work for the output NAME, used by one process at a time; removed when the output is complete
  parts-KEY/THOUSAND/NUMBER-HASH     what is written for one block of lines

KEY is a hash of the model and the settings, HASH one of the block's lines: a part that exists is always right, and a
part that does not belong to the input is never used. The output is the same as without an interruption.
"""

import hashlib
import json
import shutil
import time
from collections.abc import Callable, Generator, Iterable, Iterator
from contextlib import closing
from dataclasses import asdict, dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, Protocol

from dragoman.corpus.preparation.engine import Engine
from dragoman.run.errors import UserError
from dragoman.run.files import require_free_space, require_writable, try_lock, write_then_rename
from dragoman.translation.files.input_blocks import BlockReader, is_terminal_input, open_lines, open_terminal
from dragoman.translation.files.order import LineBlock, TranslationOrder, translate_block
from dragoman.translation.files.output_files import open_output
from dragoman.translation.files.stream import LineCounter, show_progress
from dragoman.translation.model_choice import ModelChoice
from dragoman.translation.notices import SPLIT_NOTICE, FirstNotices, Say
from dragoman.translation.search import SearchSettings
from dragoman.translation.translator import LineTranslator

_KEY_LETTERS = 12
_HASH_LETTERS = 16
_PARTS_PER_FOLDER = 1_000


@dataclass(frozen=True)
class TextPart:
    """A block of lines on its way to a translator."""

    index: int
    block: LineBlock


@dataclass(frozen=True)
class TranslatedPart:
    """What is written for a block of lines, and what was noticed about them."""

    index: int
    text: str
    notices: tuple[str, ...] = ()


class PartTranslator(Protocol):
    """Translates parts: in this process, on a Ray cluster, or on other hosts."""

    def translate(self, parts: Iterable[TextPart], progress: Callable[[int], None]) -> Generator[TranslatedPart]:
        """Yields each part once it is translated, in any order; calls `progress` with the number of new lines done."""
        ...


@dataclass(frozen=True)
class BulkResult:
    """Figures of a finished translation."""

    out: str
    num_lines: int
    num_lines_reused: int
    """Lines that an earlier, interrupted command had translated."""
    seconds: float

    def figures(self) -> dict[str, Any]:
        """Returns the figures for --json."""
        rate = (self.num_lines - self.num_lines_reused) / self.seconds if self.seconds else 0.0
        return asdict(self) | {"seconds": round(self.seconds, 3), "lines_per_second": round(rate, 1)}

    def summary(self) -> str:
        """Describes the figures in a sentence."""
        figures = self.figures()
        reused = (
            f", {self.num_lines_reused:,} of them by an interrupted command before" if self.num_lines_reused else ""
        )
        rate = f" ({figures['lines_per_second']:,.0f} lines/s)" if self.num_lines > self.num_lines_reused else ""
        lines = "1 line" if self.num_lines == 1 else f"{self.num_lines:,} lines"
        return f"Translated {lines}{reused}, to {self.out}{rate}."


def translate_file(
    path: Path,
    out: Path,
    order: TranslationOrder,
    model_key: str,
    translator: PartTranslator,
    say: Say,
    max_bad_lines: int = 0,
) -> BulkResult:
    """Translates all lines of a file (`-` is standard input) to `out`, which appears when it is complete."""
    require_writable(out)
    if path.exists() and out.exists() and path.samefile(out):
        raise UserError(f"{out} is also the input; name another file with --out.")
    begin = time.monotonic()
    folder = work_folder(out)
    folder.mkdir(exist_ok=True)
    with try_lock(folder / "lock") as is_ours:
        if not is_ours:
            raise UserError(f"{out} is being written by another process; wait for it, or stop it first.")
        work = _Work(folder / f"parts-{work_key(model_key, order)}", say)
        try:
            num_lines = work.run(path, order, translator, max_bad_lines)
            work.join(out)
        except BaseException:
            if any(folder.glob("parts-*/*/*")):
                say(f"The same command continues where it stopped; finished parts are in {folder}.")
            else:
                shutil.rmtree(folder, ignore_errors=True)
            raise
        shutil.rmtree(folder, ignore_errors=True)
    return BulkResult(str(out), num_lines, work.num_lines_reused, time.monotonic() - begin)


def work_folder(out: Path) -> Path:
    """Returns the folder for the unfinished work of an output."""
    return out.resolve().with_name(f".{out.name}.partial")


def work_key(model_key: str, order: TranslationOrder) -> str:
    """Returns a hash of the model and of the settings."""
    return hashlib.sha256(json.dumps([model_key, order.to_json()]).encode()).hexdigest()[:_KEY_LETTERS]


class _Work:
    """The parts of one translation."""

    def __init__(self, folder: Path, say: Say) -> None:
        self._folder, self._say = folder, say
        self._files: list[Path] = []
        self.num_lines_reused = 0

    def run(self, path: Path, order: TranslationOrder, translator: PartTranslator, max_bad_lines: int) -> int:
        """Translates all parts that do not exist yet; returns the number of lines."""
        lines = order.lines()
        is_typed = is_terminal_input(path)
        source = (
            open_terminal(None, lines.max_line_bytes, self._say) if is_typed else open_lines(path, lines.max_line_bytes)
        )
        reader = BlockReader(source, lines, self._say, max_bad_lines)
        notices, general = FirstNotices(self._say), {SPLIT_NOTICE}
        with show_progress(path) as show:
            count = LineCounter(0, show)
            try:
                with closing(translator.translate(self._missing_parts(reader, count), count)) as parts:
                    for part in parts:
                        self._save(part)
                        for notice in part.notices:
                            if notice in general:  # every process says it once
                                general.remove(notice)
                                self._say(notice)
                            elif notice != SPLIT_NOTICE:
                                notices.add(notice)
            finally:
                reader.finish_notices()
        return reader.num_lines

    def _missing_parts(self, reader: BlockReader, count: LineCounter) -> Iterator[TextPart]:
        for index, block in enumerate(reader.blocks(is_awaited=False)):
            digest = hashlib.sha256("\n".join([str(block.first_number), *block.lines]).encode()).hexdigest()
            folder = self._folder / f"{index // _PARTS_PER_FOLDER:06d}"
            self._files.append(folder / f"{index:09d}-{digest[:_HASH_LETTERS]}")
            if self._files[index].exists():
                self.num_lines_reused += len(block.lines)
                count(len(block.lines))
            else:
                folder.mkdir(parents=True, exist_ok=True)
                require_free_space(folder)
                yield TextPart(index, block)

    def _save(self, part: TranslatedPart) -> None:
        with write_then_rename(self._files[part.index]) as file:
            file.write(part.text.encode())

    def join(self, out: Path) -> None:
        """Writes all parts to the output, in order."""
        with open_output(out) as output:
            for path in self._files:
                with path.open("rb") as part:
                    shutil.copyfileobj(part, output)


class PartsHere:
    """Translates parts with a translator of this process, which uses all cores by itself."""

    def __init__(self, translator: LineTranslator, order: TranslationOrder, settings: SearchSettings) -> None:
        self._translator, self._order, self._settings = translator, order, settings

    def translate(self, parts: Iterable[TextPart], progress: Callable[[int], None]) -> Generator[TranslatedPart]:
        """Yields each part once it is translated, one after the other; the translator says its own notices."""
        try:
            for part in parts:
                text = translate_block(self._translator, self._order, self._settings, part.block, progress)
                yield TranslatedPart(part.index, text)
        finally:
            self._translator.finish_notices()


# On a cluster


@dataclass(frozen=True)
class PartTask:
    """A part with all that another process needs to translate it; the model's folder is the same there."""

    part: TextPart
    model: ModelChoice
    order: TranslationOrder


class PartsOnEngine:
    """Translates parts as tasks of an engine, one core each."""

    def __init__(self, engine: Engine, model: ModelChoice, order: TranslationOrder) -> None:
        self._engine, self._model, self._order = engine, model, order

    def translate(self, parts: Iterable[TextPart], progress: Callable[[int], None]) -> Generator[TranslatedPart]:
        """Yields the parts in order."""
        sizes: dict[int, int] = {}

        def tasks() -> Iterator[PartTask]:
            for part in parts:
                sizes[part.index] = len(part.block.lines)
                yield PartTask(part, self._model, self._order)

        for done in self._engine.map(translate_part, tasks()):
            progress(sizes.pop(done.index))
            yield done


def translate_part(task: PartTask) -> TranslatedPart:
    """Runs a task: translates a part with one process."""
    return _load(task.model).translate(task.part, task.order)


class LoadedModel:
    """A model that translates parts and collects what it notices about each."""

    def __init__(self, model: ModelChoice, num_workers: int | None) -> None:
        self._notices: list[str] = []
        self._translator = model.load(self._notices.append, num_workers)
        self._is_beam_chosen = model.beam_size is not None

    def translate(self, part: TextPart, order: TranslationOrder) -> TranslatedPart:
        """Translates a part."""
        self._notices.clear()
        settings = order.settings(self._translator.settings, self._is_beam_chosen)
        text = translate_block(self._translator, order, settings, part.block)
        self._translator.finish_notices()
        return TranslatedPart(part.index, text, tuple(self._notices))


@lru_cache(maxsize=1)
def _load(model: ModelChoice) -> LoadedModel:
    """Loads a model once per process."""
    return LoadedModel(model, num_workers=1)
