"""Commands about text: prepare it, look at it, cut it into pieces, get it. Each is a few lines that call `corpus/`."""

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, cast

import typer

from dragoman.cli.output import Json, print_json, say, warn
from dragoman.run.errors import UsageError, UserError

if TYPE_CHECKING:
    from dragoman.corpus.preparation.engine import EngineName

data_app = typer.Typer(
    help="Corpora: find and get them, write built-in ones, describe prepared ones.",
    no_args_is_help=True,
    rich_markup_mode=None,
)


def add_corpus_commands(app: typer.Typer) -> None:
    """Adds these commands to the command line."""
    app.command(epilog=_PREPARE_EXAMPLES)(prepare)
    app.command(epilog="Example: dragoman tokenize prepared/mine < my.en > my.en.pieces")(tokenize)
    app.command(epilog="Example: dragoman detokenize prepared/mine < my.en.pieces > my.en")(detokenize)
    app.add_typer(data_app, name="data")


_PREPARE_EXAMPLES = """Examples: dragoman prepare --source a.en.gz --target a.de.gz --languages en-de --out prepared/a |
dragoman prepare --corpus crawl.tsv.zst --corpus memory.tmx --languages en-de --filter language=off --out prepared/b |
dragoman prepare config.toml (with a [prepare] table; see docs/corpora.md)"""


def prepare(
    config: Annotated[Path | None, typer.Argument(metavar="[CONFIG.toml]", help="With a [prepare] table.")] = None,
    source: Annotated[
        list[Path] | None, typer.Option(help="Source text, one sentence a line; may be repeated.")
    ] = None,
    target: Annotated[list[Path] | None, typer.Option(help="Its translation; as many files as --source.")] = None,
    corpus: Annotated[
        list[Path] | None, typer.Option(help="Both sides in one file: TSV, JSON lines, TMX, Parquet; may be repeated.")
    ] = None,
    out: Annotated[Path | None, typer.Option(help="Folder to write. Default: data.prepared of the config.")] = None,
    languages: Annotated[str | None, typer.Option(help="E.g. en-de; needed to check languages and scripts.")] = None,
    dev_source: Annotated[list[Path] | None, typer.Option(help="Text to judge training by. Default: held out.")] = None,
    dev_target: Annotated[list[Path] | None, typer.Option(help="Its translation.")] = None,
    test_source: Annotated[list[Path] | None, typer.Option(help="Text to judge the result. Default: held out.")] = None,
    test_target: Annotated[list[Path] | None, typer.Option(help="Its translation.")] = None,
    dev: Annotated[list[Path] | None, typer.Option(help="Like --dev-source and --dev-target, in one file.")] = None,
    test: Annotated[list[Path] | None, typer.Option(help="Like --test-source and --test-target, in one file.")] = None,
    cleaning: Annotated[str | None, typer.Option(help="none, seeds (1-80 words), standard or strict.")] = None,
    filters: Annotated[
        list[str] | None,
        typer.Option("--filter", metavar="NAME=VALUE", help="E.g. length_words=1-100, identical=off; may be repeated."),
    ] = None,
    weights: Annotated[
        list[str] | None,
        typer.Option("--weight", metavar="NAME=W", help="Times an epoch that training sees a corpus; by file name."),
    ] = None,
    columns: Annotated[str | None, typer.Option(help="Of TSV files: source and target. Default: 1,2.")] = None,
    vocab_size: Annotated[int | None, typer.Option(help="Pieces. Default: by the size of the text.")] = None,
    separate: Annotated[bool, typer.Option("--separate", help="One vocabulary per language, not a joint one.")] = False,
    tokenizer: Annotated[str | None, typer.Option(help="bpe (default) or unigram.")] = None,
    byte_fallback: Annotated[bool, typer.Option("--byte-fallback", help="Rare characters as bytes.")] = False,
    character_coverage: Annotated[
        float | None, typer.Option(help="Share of characters with a piece; default 1.")
    ] = None,
    tokenizer_sample: Annotated[int | None, typer.Option(help="Lines to train it on. Default: 1,000,000.")] = None,
    reuse_vocabulary: Annotated[
        Path | None, typer.Option(help="A prepared folder or model file to take it from.")
    ] = None,
    held_out: Annotated[int | None, typer.Option(help="Pairs for each of dev and test where none are given.")] = None,
    seed: Annotated[int | None, typer.Option(help="Of the held-out choice and the shuffle. Default: 1.")] = None,
    skip_bad_lines: Annotated[int | None, typer.Option(metavar="N", help="Continue past at most N bad lines.")] = None,
    processes: Annotated[int | None, typer.Option(min=1, help="Worker processes. Default: one per core.")] = None,
    engine: Annotated[str, typer.Option(help="local, or ray: an existing Ray cluster.")] = "local",
    json: Json = False,
) -> None:
    """Turn parallel text of any size into a folder that training reads: clean, shuffle, cut into pieces, describe."""
    from dragoman.corpus.preparation.prepare import prepare_corpus
    from dragoman.corpus.settings import load_prepare_settings, parse_filters, with_weights
    from dragoman.monitoring.progress import progress_bars

    if engine not in ("local", "ray"):
        raise UsageError(f"--engine is {engine!r}; it can be local or ray.")
    changes: dict[str, Any] = {
        "corpora": [*_plain_texts(source, target), *_single_files(corpus, columns)],
        "dev": [*_plain_texts(dev_source, dev_target), *_single_files(dev, columns)],
        "test": [*_plain_texts(test_source, test_target), *_single_files(test, columns)],
        "languages": languages,
        "cleaning": cleaning,
        "filters": parse_filters(filters or []),
        "tokenizer": {
            "kind": tokenizer,
            "vocab_size": vocab_size,
            "separate": separate or None,
            "byte_fallback": byte_fallback or None,
            "character_coverage": character_coverage,
            "sample_lines": tokenizer_sample,
            "reuse": reuse_vocabulary,
        },
        "held_out": held_out,
        "seed": seed,
        "skip_bad_lines": skip_bad_lines,
    }
    settings, trained_from = load_prepare_settings(config, changes)
    out = out or trained_from
    if out is None:
        raise UsageError("Nowhere to write to: give --out, or a config with data.prepared.")
    settings = with_weights(settings, weights or [])
    try:
        with progress_bars() as show:
            prepared = prepare_corpus(settings, out, warn, show, cast("EngineName", engine), processes)
    except KeyboardInterrupt:
        raise UserError("Stopped; run the same command again to continue where it stopped.") from None
    if json:
        print_json({"out": str(out), "fingerprint": prepared.fingerprint} | prepared.manifest.model_dump(mode="json"))
        return
    from dragoman.corpus.statistics import describe_corpus

    for line in describe_corpus(prepared):
        say(line)
    say(f'Written to {out}. Next: put prepared = "{out}" under [data] in a config, then dragoman train CONFIG.toml')


def _plain_texts(sources: list[Path] | None, targets: list[Path] | None) -> list[dict[str, Any]]:
    from dragoman.corpus.settings import pair_up

    return [{"source": source, "target": target} for source, target in pair_up(sources or [], targets or [])]


def _single_files(files: list[Path] | None, columns: str | None) -> list[dict[str, Any]]:
    if columns is None:
        return [{"file": file} for file in files or []]
    numbers = columns.split(",")
    if len(numbers) != 2 or not all(number.strip().isdecimal() for number in numbers):
        raise UsageError(f"--columns takes two numbers, e.g. 1,2, not {columns!r}.")
    return [{"file": file, "columns": [int(number) for number in numbers]} for file in files or []]


VocabularyArgument = Annotated[Path, typer.Argument(metavar="VOCABULARY", help="A prepared folder or a model file.")]
SideOption = Annotated[str, typer.Option(help="source or target, where a folder has one vocabulary each.")]


def tokenize(
    vocabulary: VocabularyArgument,
    side: SideOption = "source",
    ids: Annotated[bool, typer.Option("--ids", help="Write numbers instead of pieces.")] = False,
) -> None:
    """Cut standard input into pieces, line by line, to standard output."""
    from dragoman.corpus.pipes import load_vocabulary, tokenize_stream

    tokenize_stream(load_vocabulary(vocabulary, side), sys.stdin.buffer, sys.stdout.buffer, ids)


def detokenize(
    vocabulary: VocabularyArgument,
    side: SideOption = "target",
    ids: Annotated[bool, typer.Option("--ids", help="Read numbers instead of pieces.")] = False,
) -> None:
    """Put pieces on standard input together again, line by line, to standard output."""
    from dragoman.corpus.pipes import detokenize_stream, load_vocabulary

    detokenize_stream(load_vocabulary(vocabulary, side), sys.stdin.buffer, sys.stdout.buffer, ids)


@data_app.command("describe", epilog="Example: dragoman data describe prepared/mine --batch-tokens 25000")
def data_describe(
    prepared: Annotated[Path, typer.Argument(metavar="PREPARED", help="A folder that dragoman prepare wrote.")],
    batch_tokens: Annotated[int, typer.Option(min=1, help="Tokens of one virtual worker's batch.")] = 4096,
    json: Json = False,
) -> None:
    """Tell what is in a prepared corpus: pairs, MB, words, lengths, coverage, and the padding to expect."""
    from dragoman.corpus.prepared_corpus import PreparedCorpus
    from dragoman.corpus.statistics import corpus_figures, statistics_page

    corpus = PreparedCorpus.open(prepared)
    if json:
        print_json(corpus_figures(corpus, [batch_tokens]))
    else:
        say(statistics_page(corpus, [batch_tokens]))


@data_app.command("list", epilog="Example: dragoman data list --languages en-de")
def data_list(
    languages: Annotated[str | None, typer.Option(help="E.g. en-de: also list what mtdata has for them.")] = None,
    json: Json = False,
) -> None:
    """List corpora that can be got by name."""
    from dataclasses import asdict

    from dragoman.corpus.recipes import list_corpora, parse_languages

    listing = list_corpora(parse_languages(languages) if languages else None, warn)
    if json:
        print_json(asdict(listing))
        return
    for line in listing.lines():
        say(line)


@data_app.command("get", epilog="Example: dragoman data get wmt16-en-de --out corpora/wmt16")
def data_get(
    name: Annotated[str, typer.Argument(help="A recipe of `dragoman data list`, or the name of an mtdata dataset.")],
    out: Annotated[Path, typer.Option(help="Folder to write into.")],
    languages: Annotated[str | None, typer.Option(help="The direction, e.g. de-en. Default: the recipe's.")] = None,
    json: Json = False,
) -> None:
    """Download a corpus, verify it, and write a config for `dragoman prepare`; run again, it continues."""
    from dataclasses import asdict

    from dragoman.corpus.recipes import get_recipe, parse_languages
    from dragoman.monitoring.progress import progress_bars

    with progress_bars("kB") as show:
        parts = get_recipe(name, out, warn, show, parse_languages(languages) if languages else None)
    if json:
        print_json([asdict(part) for part in parts])
        return
    say(f"Written to {out}. Next: dragoman prepare {out / 'prepare.toml'} --out {out / 'prepared'}")


@data_app.command("builtin", epilog="Example: dragoman data builtin --out corpus --pairs 100000")
def data_builtin(
    out: Annotated[Path, typer.Option(help="Folder to write train, dev, test and test-compositional into.")],
    pairs: Annotated[int, typer.Option(min=1, help="Training pairs.")] = 40_000,
    seed: Annotated[int, typer.Option(min=0)] = 1,
) -> None:
    """Write the English-German corpus inside the package."""
    from dragoman.builtin import write_builtin_corpus

    write_builtin_corpus(out, num_train=pairs, seed=seed)
    say(f"Written to {out}: train, dev, test and test-compositional, .en and .de")


@data_app.command("reversal", epilog="Example: dragoman data reversal --out corpus")
def data_reversal(
    out: Annotated[Path, typer.Option(help="Folder to write train, dev and test into.")],
    pairs: Annotated[int, typer.Option(min=1, help="Training pairs.")] = 10_000,
    seed: Annotated[int, typer.Option(min=0)] = 1,
) -> None:
    """Write the toy task of the seeds' system: sequences of letters, to be reversed."""
    from dragoman.builtin.reversal import write_reversal_corpus

    write_reversal_corpus(out, num_train=pairs, seed=seed)
    say(f"Written to {out}: train, dev and test, .source and .target")
