"""Commands for text: prepare, tokenize, and the `data` commands. Each is a few lines that call `corpus/`."""

import sys
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, cast

import typer

from dragoman.cli.help_text import PlainGroup, add_command
from dragoman.cli.output import Json, print_json, say, warn
from dragoman.run.errors import UsageError

if TYPE_CHECKING:
    from dragoman.corpus.preparation.engine import EngineName
    from dragoman.corpus.settings import PrepareSettings

data_app = typer.Typer(
    cls=PlainGroup,
    help="List, download and describe corpora, and write built-in ones.",
    no_args_is_help=True,
    rich_markup_mode=None,
)


def add_corpus_commands(app: typer.Typer) -> None:
    """Adds the commands of this module to the command line."""
    add_command(
        app,
        prepare,
        "dragoman prepare --source a.en.gz --target a.de.gz --languages en-de --out prepared/a",
        "dragoman prepare --corpus crawl.tsv.zst --corpus memory.tmx --filter language=off --out prepared/b",
        "dragoman prepare config.toml",
    )
    add_command(app, tokenize, "dragoman tokenize prepared/mine < my.en > my.en.subwords")
    add_command(app, detokenize, "dragoman detokenize prepared/mine < my.en.subwords > my.en")
    app.add_typer(data_app, name="data")
    data = partial(add_command, data_app)
    data(data_describe, "dragoman data describe prepared/mine --batch-tokens 25000", name="describe")
    data(data_list, "dragoman data list --languages en-de", name="list")
    data(data_get, "dragoman data get wmt16-en-de --out corpora/wmt16", name="get")
    data(data_builtin, "dragoman data builtin --out corpus --pairs 100000", name="builtin")
    data(data_reversal, "dragoman data reversal --out corpus", name="reversal")


Paths = list[Path] | None


def prepare(
    config: Annotated[
        Path | None,
        typer.Argument(metavar="CONFIG.toml", help="Config file with a [prepare] table; see docs/corpora.md."),
    ] = None,
    source: Annotated[
        Paths, typer.Option(metavar="FILE", help="Source text, one sentence per line; may be repeated.")
    ] = None,
    target: Annotated[
        Paths, typer.Option(metavar="FILE", help="Its translation, line by line; as many files as --source.")
    ] = None,
    corpus: Annotated[
        Paths,
        typer.Option(metavar="FILE", help="Both sides in one file: TSV, JSON lines, TMX, Parquet; may be repeated."),
    ] = None,
    out: Annotated[
        Path | None, typer.Option(metavar="FOLDER", help="Folder to write. Default: data.prepared of the config.")
    ] = None,
    languages: Annotated[
        str | None,
        typer.Option(
            metavar="FROM-TO", help="Source and target language, e.g. en-de; needed to check languages and scripts."
        ),
    ] = None,
    dev_source: Annotated[
        Paths,
        typer.Option(
            metavar="FILE", help="Source text for evaluation during training. Default: held out of the training text."
        ),
    ] = None,
    dev_target: Annotated[Paths, typer.Option(metavar="FILE", help="Its translation.")] = None,
    test_source: Annotated[
        Paths,
        typer.Option(
            metavar="FILE", help="Source text for the final evaluation. Default: held out of the training text."
        ),
    ] = None,
    test_target: Annotated[Paths, typer.Option(metavar="FILE", help="Its translation.")] = None,
    dev: Annotated[Paths, typer.Option(metavar="FILE", help="--dev-source and --dev-target in one file.")] = None,
    test: Annotated[Paths, typer.Option(metavar="FILE", help="--test-source and --test-target in one file.")] = None,
    cleaning: Annotated[
        str | None, typer.Option(help="Which filters are on: none, moses (1-80 words), standard (default) or strict.")
    ] = None,
    filters: Annotated[
        list[str] | None,
        typer.Option(
            "--filter",
            metavar="NAME=VALUE",
            help="Change a filter, e.g. length_words=1-100, identical=off; may be repeated.",
        ),
    ] = None,
    weights: Annotated[
        list[str] | None,
        typer.Option("--weight", metavar="NAME=W", help="How often each corpus is used per epoch, by file name."),
    ] = None,
    columns: Annotated[
        str | None, typer.Option(metavar="N,N", help="Columns of source and target in TSV files. Default: 1,2.")
    ] = None,
    vocab_size: Annotated[
        int | None, typer.Option(help="Number of subwords. Default: chosen by the size of the text.")
    ] = None,
    separate: Annotated[
        bool, typer.Option("--separate", help="One vocabulary per language instead of a joint one.")
    ] = False,
    tokenizer: Annotated[str | None, typer.Option(help="Kind of tokenizer: bpe (default) or unigram.")] = None,
    byte_fallback: Annotated[bool, typer.Option("--byte-fallback", help="Encode rare characters as bytes.")] = False,
    character_coverage: Annotated[
        float | None, typer.Option(metavar="FRACTION", help="Fraction of all characters that are subwords. Default: 1.")
    ] = None,
    tokenizer_sample: Annotated[
        int | None, typer.Option(help="Lines to train the tokenizer on. Default: 1,000,000.")
    ] = None,
    reuse_vocabulary: Annotated[
        Path | None, typer.Option(help="Prepared folder or model file to copy the vocabulary from.")
    ] = None,
    held_out: Annotated[
        int | None, typer.Option(help="Number of pairs to hold out for dev and for test, if not given.")
    ] = None,
    seed: Annotated[int | None, typer.Option(help="Seed of the shuffle and of the held-out sets. Default: 1.")] = None,
    skip_bad_lines: Annotated[
        int | None, typer.Option(metavar="N", help="Skip up to N lines that cannot be read. Default: 0.")
    ] = None,
    processes: Annotated[int | None, typer.Option(min=1, help="Worker processes. Default: one per core.")] = None,
    engine: Annotated[str, typer.Option(help="local, or ray for a running Ray cluster.")] = "local",
    discard_work: Annotated[
        bool,
        typer.Option(
            "--discard-work",
            help="Delete the cleaned text at the end. By default it stays in .dragoman-work beside --out, so that "
            "another preparation of it, e.g. with another --vocab-size, does not clean it again.",
        ),
    ] = False,
    json: Json = False,
) -> None:
    """Turn parallel text of any size into a folder for training.

    Cleans and shuffles the text, splits it into subwords and describes it.
    """
    from dragoman.corpus.settings import load_prepare_settings, parse_filters, with_weights

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
    settings, prepared = load_prepare_settings(config, changes)
    settings = with_weights(settings, weights or [])
    _prepare(settings, out or prepared, cast("EngineName", engine), processes, not discard_work, json)


def _prepare(
    settings: "PrepareSettings",
    out: Path | None,
    engine: "EngineName",
    num_processes: int | None,
    keep_work: bool,
    as_json: bool,
) -> None:
    from dragoman.corpus.preparation.prepare import prepare_corpus
    from dragoman.corpus.statistics import describe_corpus
    from dragoman.run.progress import progress_bars

    if out is None:
        raise UsageError("No output folder: give --out, or a config with data.prepared.")
    with progress_bars() as show:
        corpus = prepare_corpus(settings, out, warn, show, engine, num_processes, keep_work)
    if as_json:
        print_json({"out": str(out), "fingerprint": corpus.fingerprint} | corpus.manifest.model_dump(mode="json"))
        return
    for line in describe_corpus(corpus):
        say(line)
    say(f'Written to {out}. Next: put prepared = "{out}" under [data] in a config, then dragoman train CONFIG.toml')


def _plain_texts(sources: Paths, targets: Paths) -> list[dict[str, Any]]:
    from dragoman.corpus.settings import pair_up

    return [{"source": source, "target": target} for source, target in pair_up(sources or [], targets or [])]


def _single_files(files: Paths, columns: str | None) -> list[dict[str, Any]]:
    if columns is None:
        return [{"file": file} for file in files or []]
    numbers = columns.split(",")
    if len(numbers) != 2 or not all(number.strip().isdecimal() for number in numbers):
        raise UsageError(f"--columns takes two numbers, e.g. 1,2, not {columns!r}.")
    return [{"file": file, "columns": [int(number) for number in numbers]} for file in files or []]


VocabularyArgument = Annotated[Path, typer.Argument(metavar="VOCABULARY", help="A prepared folder or a model file.")]
SideOption = Annotated[str, typer.Option(help="source or target, if the folder has one vocabulary per language.")]


def tokenize(
    vocabulary: VocabularyArgument,
    side: SideOption = "source",
    ids: Annotated[bool, typer.Option("--ids", help="Write ids instead of subwords.")] = False,
) -> None:
    """Split standard input into subwords, line by line."""
    from dragoman.corpus.token_streams import load_vocabulary, tokenize_stream

    tokenize_stream(load_vocabulary(vocabulary, side), sys.stdin.buffer, sys.stdout.buffer, ids)


def detokenize(
    vocabulary: VocabularyArgument,
    side: SideOption = "target",
    ids: Annotated[bool, typer.Option("--ids", help="Read ids instead of subwords.")] = False,
) -> None:
    """Join subwords on standard input to text again, line by line."""
    from dragoman.corpus.token_streams import detokenize_stream, load_vocabulary

    detokenize_stream(load_vocabulary(vocabulary, side), sys.stdin.buffer, sys.stdout.buffer, ids)


def data_describe(
    prepared: Annotated[Path, typer.Argument(metavar="PREPARED", help="A folder that dragoman prepare wrote.")],
    batch_tokens: Annotated[int, typer.Option(min=1, help="Tokens in the batch of one virtual worker.")] = 4096,
    json: Json = False,
) -> None:
    """Describe a prepared corpus: size, lengths, coverage, padding."""
    from dragoman.corpus.prepared_corpus import PreparedCorpus
    from dragoman.corpus.statistics import corpus_figures, statistics_page

    corpus = PreparedCorpus.open(prepared)
    if json:
        print_json(corpus_figures(corpus, [batch_tokens]))
    else:
        say(statistics_page(corpus, [batch_tokens]))


def data_list(
    languages: Annotated[
        str | None, typer.Option(metavar="FROM-TO", help="E.g. en-de: also list the datasets of mtdata.")
    ] = None,
    json: Json = False,
) -> None:
    """List corpora that `dragoman data get` can download."""
    from dataclasses import asdict

    from dragoman.corpus.recipes import list_corpora, parse_languages

    listing = list_corpora(parse_languages(languages) if languages else None, warn)
    if json:
        print_json(asdict(listing))
        return
    for line in listing.lines():
        say(line)


def data_get(
    name: Annotated[
        str, typer.Argument(metavar="NAME", help="A recipe of `dragoman data list`, or the name of an mtdata dataset.")
    ],
    out: Annotated[Path, typer.Option(metavar="FOLDER", help="Folder to write into.")],
    languages: Annotated[
        str | None, typer.Option(metavar="FROM-TO", help="Direction, e.g. de-en. Default: that of the recipe.")
    ] = None,
    json: Json = False,
) -> None:
    """Download a corpus, verify it, and write a config for prepare.

    Run it again to continue an interrupted download.
    """
    from dataclasses import asdict

    from dragoman.corpus.recipes import get_recipe, parse_languages
    from dragoman.run.commands import own_command, shell_path
    from dragoman.run.progress import progress_bars

    with progress_bars("kB") as show:
        parts = get_recipe(name, out, warn, show, parse_languages(languages) if languages else None)
    if json:
        print_json([asdict(part) for part in parts])
        return
    config, prepared = shell_path(out / "prepare.toml"), shell_path(out / "prepared")
    say(f"Written to {out}. Next: {own_command()} prepare {config} --out {prepared}")


def data_builtin(
    out: Annotated[
        Path, typer.Option(metavar="FOLDER", help="Folder to write train, dev, test and test-compositional into.")
    ],
    pairs: Annotated[int, typer.Option(min=1, help="Number of training pairs.")] = 40_000,
    seed: Annotated[int, typer.Option(min=0, help="Seed of the random choices.")] = 1,
) -> None:
    """Write the English-German corpus that a grammar generates."""
    from dragoman.builtin import write_builtin_corpus

    write_builtin_corpus(out, num_train=pairs, seed=seed)
    say(f"Written to {out}: train, dev, test and test-compositional, .en and .de")


def data_reversal(
    out: Annotated[Path, typer.Option(metavar="FOLDER", help="Folder to write train, dev and test into.")],
    pairs: Annotated[int, typer.Option(min=1, help="Number of training pairs.")] = 10_000,
    seed: Annotated[int, typer.Option(min=0, help="Seed of the random choices.")] = 1,
) -> None:
    """Write the toy task of OpenSeq2Seq: letters to reverse."""
    from dragoman.builtin.reversal import write_reversal_corpus

    write_reversal_corpus(out, num_train=pairs, seed=seed)
    say(f"Written to {out}: train, dev and test, .source and .target")
