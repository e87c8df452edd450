"""The command `translate`, and the list of model presets."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from dragoman.cli.help_text import add_command
from dragoman.cli.model_options import (
    Backend,
    BeamSize,
    Checkpoint,
    Ensemble,
    LengthPenalty,
    RunArgument,
    Workers,
    open_model,
)
from dragoman.cli.output import Json, print_json, say, warn
from dragoman.run.errors import UsageError
from dragoman.run.interruption import signals_as_keyboard_interrupt

if TYPE_CHECKING:
    from dragoman.exporting.opening import BackendName
    from dragoman.translation.files.bulk import BulkResult, PartTranslator
    from dragoman.translation.files.order import TranslationOrder
    from dragoman.translation.model_choice import ModelChoice
    from dragoman.translation.search import Sampling

Words = list[str] | None
EngineChoice = Literal["local", "ray"]


def add_translate_commands(app: typer.Typer) -> None:
    """Adds the commands of this file to the command line."""
    add_command(
        app,
        translate,
        "dragoman translate runs/demo my.en > my.de",
        "echo 'Hello.' | dragoman translate runs/demo",
        "dragoman translate runs/demo crawl.en.zst --out crawl.de.zst",
        "dragoman translate runs/demo pages.jsonl --field title --n-best 3 --scores --out pages.de.jsonl",
        "dragoman translate runs/de-en mono.de.gz --sample --hosts a,b --out back.en.gz",
    )
    add_command(app, presets, "dragoman presets", "dragoman presets --json")


@signals_as_keyboard_interrupt()
def translate(
    run: RunArgument,
    file: Annotated[
        Path,
        typer.Argument(
            metavar="FILE",
            help="Plain text with one sentence per line, TSV or JSON lines, also compressed; - is standard input.",
        ),
    ] = Path("-"),
    out: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="Write here instead of to standard output; .gz, .xz, .zst and .bz2 are compressed. "
            "An interrupted command continues where it stopped.",
        ),
    ] = None,
    line_format: Annotated[
        str | None,
        typer.Option("--format", metavar="FORMAT", help="text, tsv or jsonl. Default: by the file's name, or text."),
    ] = None,
    column: Annotated[
        int | None, typer.Option(min=1, help="TSV: the column to translate. Default: 1. The translation is added last.")
    ] = None,
    field: Annotated[
        str | None, typer.Option(metavar="KEY", help="JSON lines: the key of the text to translate. Default: text.")
    ] = None,
    checkpoint: Checkpoint = "best",
    ensemble: Ensemble = None,
    backend: Backend = None,
    beam_size: BeamSize = None,
    length_penalty: LengthPenalty = None,
    n_best: Annotated[
        int | None, typer.Option(min=1, help="Write N translations of each line, best first, each on its own line.")
    ] = None,
    scores: Annotated[bool, typer.Option("--scores", help="Add the score of each translation.")] = False,
    align: Annotated[
        bool, typer.Option("--align", help="Add the alignment of words: 0-1 joins the first word and the second.")
    ] = False,
    sample: Annotated[
        bool, typer.Option("--sample", help="Draw translations at random instead of searching for the best.")
    ] = False,
    top_k: Annotated[
        int | None, typer.Option(min=1, help="Draw only from the N most probable subwords. Needs --sample.")
    ] = None,
    top_p: Annotated[
        float | None,
        typer.Option(
            metavar="FRACTION",
            help="Draw only from the most probable subwords that together have this probability. Needs --sample.",
        ),
    ] = None,
    temperature: Annotated[
        float | None, typer.Option(help="Below 1 draws are more cautious, above 1 more varied. Needs --sample.")
    ] = None,
    seed: Annotated[
        int | None, typer.Option(help="The same seed draws the same translations. Default: 1. Needs --sample.")
    ] = None,
    prefix: Annotated[str | None, typer.Option(metavar="TEXT", help="Text that each translation begins with.")] = None,
    require: Annotated[
        Words, typer.Option(metavar="WORD", help="A word that each translation contains; may be repeated.")
    ] = None,
    forbid: Annotated[
        Words, typer.Option(metavar="WORD", help="A word that no translation contains; may be repeated.")
    ] = None,
    max_length: Annotated[
        int | None,
        typer.Option(
            min=1,
            help="Most subwords of a translation, or of each sentence of a line. Default: by the source's length.",
        ),
    ] = None,
    skip_bad_lines: Annotated[
        int, typer.Option(min=0, metavar="N", help="Leave up to N lines that cannot be read empty.")
    ] = 0,
    workers: Workers = None,
    engine: Annotated[
        EngineChoice, typer.Option(help="local, or ray for a running Ray cluster. ray needs --out.")
    ] = "local",
    hosts: Annotated[
        str | None,
        typer.Option(
            metavar="A,B:N",
            help="Hosts that translate, reached by ssh, each with a number of processes if given. Needs --out.",
        ),
    ] = None,
    ssh_config: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Config file for ssh. Default: that of the user.")
    ] = None,
    json: Json = False,
) -> None:
    """Translate text line by line, in the same order.

    Started in a terminal without a file, it translates what you type. See docs/translating.md.
    """
    from dragoman.run.files import require_writable
    from dragoman.translation.files.order import TranslationOrder
    from dragoman.translation.files.records import choose_format

    out = None if out == Path("-") else out
    if out is not None:
        require_writable(out)  # before the model is loaded
    _refuse_contradictions(out, engine, hosts, ssh_config, workers, json)
    order = TranslationOrder(
        choose_format(file, line_format, column, field),
        column,
        field,
        n_best,
        scores,
        align,
        _sampling(sample, top_k, top_p, temperature, seed),
        max_length,
        prefix or "",
        tuple(require or ()),
        tuple(forbid or ()),
    )
    command = _Command(run, checkpoint, tuple(ensemble or ()), backend, beam_size, length_penalty, workers, order)
    if out is None or not _is_plain_file(out):
        command.write_stream(file, out, skip_bad_lines)
        return
    result = command.write_file(file, out, skip_bad_lines, engine, hosts, ssh_config)
    if json:
        print_json(result.figures())
    else:
        say(result.summary())


def _refuse_contradictions(
    out: Path | None,
    engine: EngineChoice,
    hosts: str | None,
    ssh_config: Path | None,
    workers: int | None,
    json: bool,
) -> None:
    is_file = out is not None and _is_plain_file(out)
    flags = {"--engine ray": engine == "ray", "--hosts": hosts is not None, "--json": json}
    for flag, is_given in flags.items():
        if is_given and not is_file:
            raise UsageError(f"{flag} needs --out FILE.")
    if engine == "ray" and hosts is not None:
        raise UsageError("--engine ray and --hosts exclude each other: Ray has its own machines.")
    if ssh_config is not None and hosts is None:
        raise UsageError("--ssh-config needs --hosts.")
    if workers is not None and (hosts is not None or engine == "ray"):
        raise UsageError("--workers is for this machine; with --hosts write A:N, and Ray uses all its cores.")


def _is_plain_file(path: Path) -> bool:
    """Whether a path is or becomes a regular file, and not a pipe or a device."""
    return path.is_file() or not path.exists()


def _sampling(
    is_wanted: bool, top_k: int | None, top_p: float | None, temperature: float | None, seed: int | None
) -> "Sampling | None":
    from dragoman.translation.search import Sampling

    given = {"top_k": top_k, "top_p": top_p, "temperature": temperature, "seed": seed}
    chosen: dict[str, Any] = {name: value for name, value in given.items() if value is not None}
    if chosen and not is_wanted:
        raise UsageError(f"--{next(iter(chosen)).replace('_', '-')} needs --sample.")
    return Sampling(**chosen) if is_wanted else None


class _Command:
    """A model and an order, ready to be carried out."""

    def __init__(
        self,
        run: Path,
        checkpoint: str,
        ensemble: tuple[str, ...],
        backend: "BackendName | None",
        beam_size: int | None,
        length_penalty: float | None,
        workers: int | None,
        order: "TranslationOrder",
    ) -> None:
        from dragoman.translation.lines.usual_length import usual_subwords

        self._checkpoint, self._ensemble = checkpoint, ensemble
        self._beam_size, self._length_penalty = beam_size, length_penalty
        self._order = order
        self._loaded = open_model(run, checkpoint, beam_size, length_penalty, workers, ensemble, backend, warn)
        self._usual_subwords = usual_subwords(run)
        self._translator = self._loaded.translator.by_sentences(self._usual_subwords)
        self._folder = getattr(self._loaded, "folder", run)  # that of the export, where one is used
        self._settings = order.settings(self._translator.settings, beam_size is not None)
        warn(self._loaded.describe())

    def write_stream(self, file: Path, out: Path | None, max_bad_lines: int) -> None:
        """Writes to standard output, or to a pipe or a device, as lines arrive."""
        from dragoman.run.files import write_then_rename
        from dragoman.translation.files.stream import translate_stream

        order, settings, translator = self._order, self._settings, self._translator
        if out is None:
            translate_stream(translator, file, sys.stdout, warn, max_bad_lines, order, settings)
            return
        with write_then_rename(out, "w") as output:
            translate_stream(translator, file, output, warn, max_bad_lines, order, settings)

    def write_file(
        self,
        file: Path,
        out: Path,
        max_bad_lines: int,
        engine: EngineChoice,
        hosts: str | None,
        ssh_config: Path | None,
    ) -> "BulkResult":
        """Writes a file that appears when it is complete; returns figures."""
        from dragoman.translation.files.bulk import translate_file

        model = self._choice()
        with self._open_translator(model, out, engine, hosts, ssh_config) as translator:
            return translate_file(file, out, self._order, model.fingerprint(), translator, warn, max_bad_lines)

    def _choice(self) -> "ModelChoice":
        from dragoman.translation.model_choice import ModelChoice

        path, search = str(self._folder.absolute()), (self._beam_size, self._length_penalty)
        return ModelChoice(path, self._checkpoint, self._ensemble, *search, self._usual_subwords).pinned()

    @contextmanager
    def _open_translator(
        self, model: "ModelChoice", out: Path, engine: EngineChoice, hosts: str | None, ssh_config: Path | None
    ) -> Iterator["PartTranslator"]:
        """Opens what translates: this process, a Ray cluster, or hosts."""
        from dragoman.corpus.preparation.engine import open_engine
        from dragoman.translation.files.bulk import PartsHere, PartsOnEngine, work_folder

        if hosts is not None:
            from dragoman.launch.hosts import parse_hosts
            from dragoman.launch.translation_hosts import open_hosts

            with open_hosts(parse_hosts(hosts), ssh_config, model, self._order, work_folder(out), warn) as pool:
                yield pool
        elif engine == "ray":
            with open_engine("ray", None, 0) as cluster:
                yield PartsOnEngine(cluster, model, self._order)
        else:
            yield PartsHere(self._translator, self._order, self._settings)


def presets(json: Json = False) -> None:
    """List the model presets and their sizes."""
    from dataclasses import asdict

    from dragoman.model.shape import count_parameters, load_preset, preset_about, preset_names

    rows = []
    for name in preset_names():
        shape = load_preset(name)
        rows.append({"name": name, "parameters": count_parameters(shape), "about": preset_about(name)} | asdict(shape))
    if json:
        print_json(rows)
        return
    for row in rows:
        say(
            f"{row['name']:<18}{row['parameters']:>13,} parameters with {row['target_vocab_size']:,} subwords; "
            f"{row['about']}"
        )
