"""Statistics of a prepared corpus, as figures for programs and as a page for people.

The figures were recorded by the preparation; only the expected padding is computed, by planning the first batches of
training. MB are 10^6 bytes, lengths are subwords without EOS.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from dragoman.corpus.batching import BatchSettings, BatchStream
from dragoman.corpus.cleaning.cleaning_account import kept_message, table_lines, visible
from dragoman.corpus.mixture import Mixture, MixtureStage, base_weights
from dragoman.corpus.prepared_corpus import SPLIT_NAMES, PreparedCorpus, SideRecord, SplitName, SplitRecord
from dragoman.corpus.shards import OFFSET_DTYPE, SIDES
from dragoman.run.errors import UserError

BYTES_PER_MB = 10**6
_MAX_TOKENS = 256
"""Default of data.max_tokens: the longest side of a training pair, in subwords with EOS."""
_NUM_POOLS_PLANNED = 2
MAX_BINS = 20
_BAR_WIDTH = 40
MAX_BAD_LINES_SHOWN = 3
NOT_KNOWN = "–"

Figures = dict[str, Any]


# --- figures


def corpus_figures(corpus: PreparedCorpus, batch_tokens: Sequence[int]) -> Figures:
    """Figures of the page as plain values for JSON; `batch_tokens` are batch sizes to estimate the padding for."""
    manifest = corpus.manifest
    cleaning = manifest.cleaning
    return {
        "languages": manifest.settings.get("languages"),
        "splits": {name: _split_figures(corpus, manifest.splits[name]) for name in SPLIT_NAMES},
        "corpora": _corpora_figures(corpus),
        "tokenizer": manifest.tokenizer.model_dump()
        | {"sample_mb": manifest.tokenizer.num_sample_bytes / BYTES_PER_MB},
        "cleaning": {
            "num_read": cleaning["num_read"],
            "num_kept": cleaning["num_kept"],
            "num_dropped": cleaning["num_read"] - cleaning["num_kept"],
            "dropped_by_filter": {entry["name"]: entry["num_dropped"] for entry in cleaning["filters"]},
        },
        "num_bad_lines": len(manifest.bad_lines),
        "batches": [_batch_figures(corpus, num_tokens) for num_tokens in batch_tokens],
    }


def _split_figures(corpus: PreparedCorpus, split: SplitRecord) -> Figures:
    vocabulary = corpus.manifest.tokenizer
    bin_width = _choose_bin_width(split)
    return {
        "num_pairs": split.num_pairs,
        "num_lines_read": split.num_lines_read,
        "is_held_out": split.is_held_out,
        "source": _side_figures(split, split.source, vocabulary.num_source_pieces, bin_width),
        "target": _side_figures(split, split.target, vocabulary.num_target_pieces, bin_width),
    }


def _side_figures(split: SplitRecord, side: SideRecord, vocabulary_size: int, bin_width: int) -> Figures:
    return {
        "text_mb": side.num_bytes / BYTES_PER_MB,
        "piece_text_mb": side.num_piece_bytes / BYTES_PER_MB,
        "ids_mb": _num_bytes_on_disk(split, side.num_tokens) / BYTES_PER_MB,
        "num_words": side.num_words,
        "num_pieces": side.num_tokens,
        "pieces_per_word": _ratio(side.num_tokens, side.num_words),
        "mean_length": _ratio(side.num_tokens, split.num_pairs),
        "median_length": length_within(side.length_counts, 50),
        "length_within_95_percent": length_within(side.length_counts, 95),
        "length_within_99_percent": length_within(side.length_counts, 99),
        "max_length": max(side.length_counts, default=None),
        "histogram": _histogram(side.length_counts, bin_width),
        "num_unknown": side.num_unknown,
        "unknown_share": _ratio(side.num_unknown, side.num_tokens),
        "vocabulary_size": vocabulary_size,
        "num_pieces_used": side.num_pieces_used,
        "pieces_used_share": _ratio(side.num_pieces_used, vocabulary_size),
    }


def _num_bytes_on_disk(split: SplitRecord, num_tokens: int) -> int:
    """Bytes of the ids and offsets files of one side."""
    num_offsets = split.num_pairs + len(split.shards.shards)
    return num_tokens * np.dtype(split.shards.dtype).itemsize + num_offsets * OFFSET_DTYPE.itemsize


def _ratio(part: int, whole: int) -> float | None:
    return part / whole if whole else None


def length_within(length_counts: Mapping[int, int], percent: int) -> int | None:
    """Smallest length that `percent` of the sentences do not exceed; None if there are no sentences."""
    if not length_counts:
        return None
    lengths = sorted(length_counts)
    num_within = np.cumsum([length_counts[length] for length in lengths])
    return lengths[int(np.searchsorted(100 * num_within, percent * num_within[-1]))]


def _choose_bin_width(split: SplitRecord) -> int:
    """Chooses 1, 2, 5, 10, 20, 50, ... for both sides, so that few sentences are beyond the last bin."""
    lengths = [length_within(side.length_counts, 99) or 0 for side in (split.source, split.target)]
    widths = (digit * power for power in (1, 10, 100, 1000, 10_000) for digit in (1, 2, 5))
    return next(width for width in widths if width * (MAX_BINS - 1) > max(lengths))


def _histogram(length_counts: Mapping[int, int], bin_width: int) -> list[dict[str, int]]:
    """Counts sentences by length, both ends of a bin included; the last bin holds all longer ones."""
    if not length_counts:
        return []
    longest = max(length_counts)
    num_bins = min(MAX_BINS, longest // bin_width + 1)
    num_sentences = [0] * num_bins
    for length, num in length_counts.items():
        num_sentences[min(length // bin_width, num_bins - 1)] += num
    last_lengths = [bin_width * number - 1 for number in range(1, num_bins)] + [longest]
    return [
        {"from": bin_width * number, "to": last, "num_sentences": num}
        for number, (last, num) in enumerate(zip(last_lengths, num_sentences, strict=True))
    ]


def _corpora_figures(corpus: PreparedCorpus) -> list[Figures]:
    num_shown = {record.name: record.weight * record.num_pairs for record in corpus.manifest.corpora}
    total = sum(num_shown.values())
    return [
        record.model_dump() | {"epoch_share": num_shown[record.name] / total if total else None}
        for record in corpus.manifest.corpora
    ]


def _batch_figures(corpus: PreparedCorpus, batch_tokens: int) -> Figures:
    settings = BatchSettings(batch_tokens, virtual_workers=1, max_tokens=_MAX_TOKENS, seed=1)
    # EOS makes every sentence longer by one.
    too_long = (num for length, num in corpus.train_length_counts.items() if length + 1 > settings.longest_used)
    num_left_out = sum(too_long)
    return {
        "batch_tokens": batch_tokens,
        "longest_used": settings.longest_used,
        "num_pairs_left_out": num_left_out,
        "left_out_share": _ratio(num_left_out, corpus.manifest.splits["train"].num_pairs),
    } | _plan_batches(corpus, settings)


def _plan_batches(corpus: PreparedCorpus, settings: BatchSettings) -> Figures:
    """Padding in the first pools of training; unknown if no pair can be used."""
    num_batches = num_pairs = num_tokens = num_positions = 0
    pairs = corpus.split("train")
    mixture = Mixture(corpus.train_corpora, (MixtureStage(0, base_weights(corpus.train_corpora, {})),))
    try:
        stream = BatchStream(pairs, corpus.train_length_counts, mixture, settings)
        while stream.position.epoch == 0 and stream.position.pool < _NUM_POOLS_PLANNED:
            step = stream.next_step()
            num_batches += 1
            num_pairs += sum(map(len, step.micro_batches))
            num_tokens += step.num_tokens
            num_positions += step.num_padded_tokens
    except UserError:  # also a corpus that cannot be trained on with these settings is described
        num_batches = num_pairs = num_tokens = num_positions = 0
    return {
        "padding_share": _ratio(num_positions - num_tokens, num_positions),
        "pairs_per_batch": _ratio(num_pairs, num_batches),
        "num_batches_planned": num_batches,
    }


# --- the page


def statistics_page(corpus: PreparedCorpus, batch_tokens: Sequence[int] = (1024, 4096, 16384)) -> str:
    """Returns the figures as a Markdown page that is also readable in a terminal."""
    figures = corpus_figures(corpus, batch_tokens)
    sections = (
        _size_section(figures),
        _corpora_section(figures),
        _text_section(figures),
        _lengths_section(figures),
        _padding_section(figures),
    )
    return "\n".join(["# Statistics", "", *(line for section in sections for line in section)]).rstrip("\n") + "\n"


def _size_section(figures: Figures) -> Iterator[str]:
    train, cleaning = figures["splits"]["train"], figures["cleaning"]
    source_mb, target_mb = train["source"]["text_mb"], train["target"]["text_mb"]
    yield (
        f"The training set has {train['num_pairs']:,} lines per side: {_megabytes(source_mb)} MB of source and "
        f"{_megabytes(target_mb)} MB of target text, {_megabytes(source_mb + target_mb)} MB together "
        "(1 MB = 10^6 bytes; plain UTF-8 text, line ends included)."
    )
    yield (
        f"It comes from {cleaning['num_read']:,} pairs, of which cleaning dropped "
        f"{cleaning['num_dropped'] - _num_beside_held_out(figures):,} (see cleaning.md){_held_out(figures)}."
    )
    yield ""
    rows = [
        (_split_name(name, split), f"{split['num_pairs']:,}", f"{split['num_lines_read']:,}")
        for name, split in figures["splits"].items()
    ]
    yield from _table(("split", "pairs", "lines read"), rows)
    yield ""


def _held_out(figures: Figures) -> str:
    num_held_out = figures["cleaning"]["num_kept"] - figures["splits"]["train"]["num_pairs"]
    num_beside = _num_beside_held_out(figures)
    held_out = f" and {num_held_out:,} were held out for dev and test" if num_held_out > 0 else ""
    beside = f"; {num_beside:,} more share a sentence with those and are left out" if num_beside else ""
    bad = f"; {figures['num_bad_lines']:,} more could not be read" if figures["num_bad_lines"] else ""
    return held_out + beside + bad


def _num_beside_held_out(figures: Figures) -> int:
    num_pairs: int = figures["cleaning"]["dropped_by_filter"]["held_out"]
    return num_pairs


def _split_name(name: str, split: Figures) -> str:
    return f"{name}, held out from training" if split["is_held_out"] else name


def _corpora_section(figures: Figures) -> Iterator[str]:
    if len(figures["corpora"]) > 1:
        rows = [
            (each["name"], f"{each['num_pairs']:,}", f"{each['weight']:g}", _percent(each["epoch_share"]))
            for each in figures["corpora"]
        ]
        yield "## Corpora"
        yield ""
        yield from _table(("corpus", "pairs", "weight", "share of an epoch"), rows)
        yield ""
        yield "The weight is how often each pair is used per epoch; [data.weights] of a run can change it."
        yield ""


# Name of each row of the table, and how to format it from the figures of a side.
_ROWS: tuple[tuple[str, Callable[[Figures], str]], ...] = (
    ("MB of text", lambda side: _megabytes(side["text_mb"])),
    ("MB of text in subwords", lambda side: _megabytes(side["piece_text_mb"])),
    ("MB of ids on disk", lambda side: _megabytes(side["ids_mb"])),
    ("words", lambda side: f"{side['num_words']:,}"),
    ("subwords", lambda side: f"{side['num_pieces']:,}"),
    ("subwords per word", lambda side: _decimal(side["pieces_per_word"], 2)),
    ("subwords per sentence, mean", lambda side: _decimal(side["mean_length"], 1)),
    ("– median", lambda side: _decimal(side["median_length"], 0)),
    ("– 95 % have at most", lambda side: _decimal(side["length_within_95_percent"], 0)),
    ("– 99 % have at most", lambda side: _decimal(side["length_within_99_percent"], 0)),
    ("– longest", lambda side: _decimal(side["max_length"], 0)),
    ("unknown subwords", lambda side: f"{side['num_unknown']:,}"),
    ("– share", lambda side: _percent(side["unknown_share"])),
    ("vocabulary", lambda side: f"{side['vocabulary_size']:,}"),
    ("– of which used", lambda side: f"{side['num_pieces_used']:,}"),
    ("– share", lambda side: _percent(side["pieces_used_share"])),
)


def _text_section(figures: Figures) -> Iterator[str]:
    columns = [(f"{name} {side}", figures["splits"][name][side]) for name in SPLIT_NAMES for side in SIDES]
    yield "## Text and subwords"
    yield ""
    yield _describe_vocabulary(figures["tokenizer"])
    yield ""
    yield from _table(
        ("", *(title for title, _ in columns)),
        [(name, *(format_cell(side) for _, side in columns)) for name, format_cell in _ROWS],
    )
    yield ""
    yield (
        "Fewer subwords per word mean that more words are a single subword. Unknown subwords stand for "
        "characters that the vocabulary lacks; a model can neither read nor write them. Subwords that the training "
        "text does not use are not learned; each side uses a subset of a joint vocabulary. Text in subwords is the "
        "size of the file that `dragoman tokenize` would write."
    )
    yield ""


def _describe_vocabulary(tokenizer: Figures) -> str:
    sample = "copied from another corpus"
    if tokenizer["num_sample_lines"]:
        size = f"{tokenizer['num_sample_lines']:,} lines ({_megabytes(tokenizer['sample_mb'])} MB)"
        sample = f"trained on {size}" if tokenizer["is_joint"] else f"each trained on up to {size}"
    if tokenizer["is_joint"]:
        return f"Source and target share one vocabulary of {tokenizer['num_source_pieces']:,} subwords, {sample}."
    return (
        f"Source and target have separate vocabularies of {tokenizer['num_source_pieces']:,} and "
        f"{tokenizer['num_target_pieces']:,} subwords, {sample}."
    )


def _lengths_section(figures: Figures) -> Iterator[str]:
    for side in SIDES:
        yield f"## Lengths of {side} sentences in training"
        yield ""
        yield "```text"
        yield from _draw_histogram(figures["splits"]["train"][side]["histogram"])
        yield "```"
        yield ""


def _draw_histogram(bins: Sequence[Mapping[str, int]]) -> list[str]:
    names = [f"{each['from']}-{each['to']}" if each["to"] > each["from"] else f"{each['from']}" for each in bins]
    counts = [f"{each['num_sentences']:,}" for each in bins]
    name_width, count_width = (max(map(len, ("", *texts))) for texts in (names, counts))
    most = max((each["num_sentences"] for each in bins), default=0)
    lines = [
        f"{name:>{name_width}} subwords  {count:>{count_width}}  {_bar(each['num_sentences'], most)}"
        for name, count, each in zip(names, counts, bins, strict=True)
    ]
    return [line.rstrip() for line in lines]


def _bar(number: int, most: int) -> str:
    # A thin bar for counts too small to draw.
    return "█" * round(_BAR_WIDTH * number / most) or ("▏" if number else "")


def _padding_section(figures: Figures) -> Iterator[str]:
    rows = [
        (
            f"{each['batch_tokens']:,}",
            _percent(each["padding_share"]),
            _decimal(each["pairs_per_batch"], 1),
            f"{each['num_pairs_left_out']:,}",
            _percent(each["left_out_share"]),
        )
        for each in figures["batches"]
    ]
    yield "## Padding to expect"
    yield ""
    yield from _table(("tokens per batch", "padding", "pairs per batch", "pairs left out", "share left out"), rows)
    yield ""
    yield (
        "A batch is what one virtual worker computes at a time; padding is the share of its positions without a "
        f"token. Training leaves out pairs with a side of more than {_MAX_TOKENS} subwords (set by data.max_tokens) or "
        "of more than a batch holds, EOS included."
    )


def _table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> Iterator[str]:
    """Formats an aligned table: the first column to the left, figures to the right."""
    widths = [max(3, *map(len, column)) for column in zip(header, *rows, strict=True)]
    rule = ["-" * widths[0], *("-" * (width - 1) + ":" for width in widths[1:])]
    for row in (header, rule, *rows):
        first, *others = (
            f"{cell:<{width}}" if index == 0 else f"{cell:>{width}}"
            for index, (cell, width) in enumerate(zip(row, widths, strict=True))
        )
        yield f"| {' | '.join((first, *others))} |"


def _megabytes(number: float) -> str:
    return f"{number:,.1f}" if number >= 1 else f"{number:.3f}"


def _decimal(number: float | None, num_decimals: int) -> str:
    return NOT_KNOWN if number is None else f"{number:,.{num_decimals}f}"


def _percent(share: float | None) -> str:
    return NOT_KNOWN if share is None else f"{share:.2%}".replace("%", " %")


# --- after a preparation


def describe_corpus(corpus: PreparedCorpus) -> list[str]:
    """Lines to print after a preparation: dropped pairs, sizes of the splits, and where to find more."""
    manifest = corpus.manifest
    return [
        kept_message(manifest.cleaning),
        *table_lines(manifest.cleaning),
        "",
        *(_split_line(name, manifest.splits[name]) for name in SPLIT_NAMES),
        *_bad_line_lines(manifest.bad_lines),
        f"More in {visible(str(corpus.folder / 'cleaning.md'))} and {visible(str(corpus.folder / 'statistics.md'))}",
    ]


def _split_line(name: SplitName, split: SplitRecord) -> str:
    source, target = split.source, split.target
    return (
        f"{name}: {split.num_pairs:,} pairs, {_megabytes(source.num_bytes / BYTES_PER_MB)} MB source and "
        f"{_megabytes(target.num_bytes / BYTES_PER_MB)} MB target text, {source.num_tokens:,} source and "
        f"{target.num_tokens:,} target subwords"
    )


def _bad_line_lines(bad_lines: Sequence[str]) -> list[str]:
    if not bad_lines:
        return []
    shown = [f"  {visible(line)}" for line in bad_lines[:MAX_BAD_LINES_SHOWN]]
    num_more = len(bad_lines) - len(shown)
    noun = "line was" if len(bad_lines) == 1 else "lines were"
    more = [f"  and {num_more:,} more, all in manifest.json"] if num_more else []
    return [f"{len(bad_lines):,} bad {noun} skipped:", *shown, *more]
