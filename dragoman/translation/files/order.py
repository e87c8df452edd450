"""What a person asked to be done with the lines of a file, as plain values that also other machines can read."""

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, Self

from dragoman.corpus.cleaning.normalisation import normalise
from dragoman.run.errors import UsageError
from dragoman.translation.files.records import Columns, JsonLines, LineFormat, PlainLines, RecordFormat, TsvLines
from dragoman.translation.search import Sampling, SearchSettings
from dragoman.translation.translator import LineTranslator, SourceLine

DEFAULT_FIELD = "text"


@dataclass(frozen=True)
class TranslationOrder:
    """The format of the lines, how to search, and what to write."""

    format: LineFormat = "text"
    column: int | None = None
    """The column of a TSV file, counted from 1. None: the first."""
    field: str | None = None
    """The key of the text in JSON lines. None: "text"."""
    num_best: int | None = None
    """How many translations of a line are written. None: the best, without the number of its line."""
    with_scores: bool = False
    with_alignment: bool = False
    sampling: Sampling | None = None
    max_subwords: int | None = None
    """The most subwords of the translation of a sentence."""
    prefix: str = ""
    required: tuple[str, ...] = ()
    forbidden: tuple[str, ...] = ()

    def to_json(self) -> dict[str, Any]:
        """Returns plain values."""
        return asdict(self)

    @classmethod
    def from_json(cls, values: dict[str, Any]) -> Self:
        """Builds the order from what `to_json` returned."""
        sampling = values["sampling"] and Sampling(**values["sampling"])
        words = {name: tuple(values[name]) for name in ("required", "forbidden")}
        return cls(**values | words | {"sampling": sampling})

    def settings(self, base: SearchSettings, is_beam_chosen: bool = False) -> SearchSettings:
        """Returns how to search; a beam that nobody chose is widened for as many translations as are asked for."""
        num_best = self.num_best or 1
        beam_size = base.beam_size if is_beam_chosen or self.sampling else max(base.beam_size, num_best)
        if self.sampling is None and num_best > beam_size:
            raise UsageError(f"--n-best {num_best} needs a beam of this size or more: --beam-size {num_best}.")
        return replace(
            base,
            beam_size=beam_size,
            num_best=num_best,
            sampling=self.sampling,
            max_subwords=None if self.max_subwords is None else self.max_subwords + 1,  # EOS counts
            with_alignment=self.with_alignment,
        )

    def lines(self) -> RecordFormat:
        """Returns how to read and write lines."""
        demands = SourceLine(
            "", normalise(self.prefix), tuple(map(normalise, self.required)), tuple(map(normalise, self.forbidden))
        )
        columns = Columns(self.with_scores, self.with_alignment, self.num_best is not None)
        match self.format:
            case "tsv":
                return TsvLines(demands, columns, self.column or 1)
            case "jsonl":
                return JsonLines(demands, columns, self.field or DEFAULT_FIELD)
            case "text":
                return PlainLines(demands, columns)


@dataclass(frozen=True)
class LineBlock:
    """Consecutive lines of the input, each as it was read; a line that could not be read is empty."""

    first_number: int
    """The number of the first line, from 1."""
    lines: tuple[str, ...]


def translate_block(
    translator: LineTranslator,
    order: TranslationOrder,
    settings: SearchSettings,
    block: LineBlock,
    progress: Callable[[int], None] | None = None,
) -> str:
    """Returns what is written for the lines, each with its line end."""
    lines = order.lines()
    sources: Sequence[SourceLine] = [lines.parse(line) for line in block.lines]
    found = translator.translate_lines(sources, progress, block.first_number, settings)
    numbered = enumerate(zip(block.lines, found, strict=True), block.first_number)
    return "".join(f"{lines.render(line, number, best)}\n" for number, (line, best) in numbered)
