"""The command line: each command a few lines that call a folder. Heavy libraries are imported inside commands."""

import os
import sys
from collections.abc import Callable
from itertools import count
from pathlib import Path
from typing import Annotated, Any

import typer

from dragoman.cli_corpus import add_corpus_commands
from dragoman.cli_output import Json, print_json, say, warn
from dragoman.run.errors import UsageError, UserError
from dragoman.run.folder import RunFolder

app = typer.Typer(
    name="dragoman",
    help="Trains neural translation models and tells the truth about the run.",
    epilog="Start with: dragoman demo",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
)

Overrides = Annotated[
    list[str] | None, typer.Option("--set", metavar="SECTION.KEY=VALUE", help="Change a setting; may be repeated.")
]
Workers = Annotated[
    int | None, typer.Option("--workers", "-w", help="Worker processes. Default: one per GPU, or one on a CPU machine.")
]
RunArgument = Annotated[Path, typer.Argument(metavar="RUN", help="A run folder, e.g. runs/demo.")]
Checkpoint = Annotated[str, typer.Option(help="best, latest, or the number of a step.")]
BeamSize = Annotated[int | None, typer.Option(min=1, help="Hypotheses kept. Default: as in the run's config.")]
LengthPenalty = Annotated[
    float | None, typer.Option(min=0.0, help="Alpha of ((5+length)/6)^alpha. Default: as in the run's config.")
]


def _print_version(is_asked: bool) -> None:
    if is_asked:
        from dragoman import __version__

        typer.echo(f"dragoman {__version__}")
        raise typer.Exit


@app.callback()
def _options(
    debug: Annotated[bool, typer.Option("--debug", help="Show tracebacks; may stand anywhere.")] = False,
    version: Annotated[
        bool, typer.Option("--version", help="Print the version.", is_eager=True, callback=_print_version)
    ] = False,
) -> None:
    """Options of every command; `main` has taken --debug off already."""


@app.command(epilog="Example: dragoman demo --run-dir runs/first")
def demo(
    run_dir: Annotated[Path | None, typer.Option(help="The run folder. Default: runs/demo.")] = None,
    workers: Annotated[int, typer.Option("--workers", "-w", min=1, help="Worker processes.")] = 2,
    overrides: Overrides = None,
    json: Json = False,
) -> None:
    """Train a translator on the corpus inside the package: about 3 minutes on 2 CPU cores."""
    from dragoman.demo import run_demo

    run = RunFolder(run_dir or _free_run_dir("demo"))
    figures = run_demo(run, workers, overrides or [], _speaker(json))
    if json:
        _print_run(run, figures)


@app.command(
    epilog="Examples: dragoman train --source my.en --target my.de | "
    "dragoman train config.toml --set training.max_steps=5000 --workers 2 | dragoman train --resume --run-dir runs/my"
)
def train(
    config: Annotated[Path | None, typer.Argument(metavar="[CONFIG.toml]", help="Settings of the run.")] = None,
    source: Annotated[list[Path] | None, typer.Option(help="Own source text instead of a config.")] = None,
    target: Annotated[list[Path] | None, typer.Option(help="Its translation, line by line.")] = None,
    overrides: Overrides = None,
    workers: Workers = None,
    run_dir: Annotated[Path | None, typer.Option(help="The run folder. Default: runs/NAME.")] = None,
    resume: Annotated[bool, typer.Option("--resume", help="Continue the run in --run-dir.")] = False,
    json: Json = False,
) -> None:
    """Train a model: from a config, from two text files, or further from where a run stopped."""
    from dragoman.run.config import load_settings
    from dragoman.training.start import resume_run, start_run

    changes, say, figures = overrides or [], _speaker(json), {}
    if source or target:
        if config or resume:
            raise UsageError("Give either a config (or --resume) or --source and --target, not both.")
        if not (source and target):
            raise UsageError("--source and --target belong together.")
        from dragoman.own_text import train_on_own_text

        run = RunFolder(run_dir or _free_run_dir(source[0].stem))
        figures = train_on_own_text(run, source, target, changes, _num_workers(workers), say)
    elif resume:
        run_dir = run_dir or (Path("runs") / config.stem if config else None)
        if run_dir is None:
            raise UsageError("--resume needs --run-dir, the run to continue.")
        run = RunFolder(run_dir)
        resume_run(run, load_settings(config, changes) if config else None, changes, _num_workers(workers))
    elif config is None:
        raise UsageError("Nothing to train: give a config, or --source and --target, or --resume --run-dir RUN.")
    else:
        run = RunFolder(run_dir or _free_run_dir(config.stem))
        say(f"Run folder: {run.path}")
        start_run(run, load_settings(config, changes), _num_workers(workers))
    if json:
        _print_run(run, figures)


@app.command(epilog="Example: dragoman evaluate runs/demo --source test.en --reference test.de --json")
def evaluate(
    run: RunArgument,
    source: Annotated[Path | None, typer.Option(help="Text to translate. Default: the prepared test set.")] = None,
    reference: Annotated[Path | None, typer.Option(help="Human translations of it, plain text.")] = None,
    output: Annotated[Path | None, typer.Option(help="Also write the translations to this file.")] = None,
    checkpoint: Checkpoint = "best",
    beam_size: BeamSize = None,
    length_penalty: LengthPenalty = None,
    json: Json = False,
) -> None:
    """Translate a test set and score it: sacreBLEU and chrF of real beam-search output, with their signatures."""
    from dragoman.evaluation.judgement import evaluate_run
    from dragoman.translation.loading import load_run

    loaded = load_run(run, checkpoint, beam_size, length_penalty, warn)
    result = evaluate_run(loaded, source, reference, warn, output)
    if json:
        print_json(result.figures())
    else:
        say(result.summary())


@app.command(
    epilog="Examples: dragoman translate runs/demo my.en > my.de; echo 'Hello.' | dragoman translate runs/demo"
)
def translate(
    run: RunArgument,
    file: Annotated[
        Path, typer.Argument(metavar="[FILE|-]", help="Text, a sentence a line; - is standard input.")
    ] = Path("-"),
    checkpoint: Checkpoint = "best",
    beam_size: BeamSize = None,
    length_penalty: LengthPenalty = None,
) -> None:
    """Translate text, line by line, to standard output; the order stays."""
    from dragoman.translation.loading import load_run
    from dragoman.translation.stream import translate_stream

    translate_stream(load_run(run, checkpoint, beam_size, length_penalty, warn).translator, file, sys.stdout, warn)


@app.command(epilog="Example: dragoman presets --json")
def presets(json: Json = False) -> None:
    """List the model presets and their sizes."""
    from dataclasses import asdict

    from dragoman.model.presets import count_parameters, load_preset, preset_about, preset_names

    rows = []
    for name in preset_names():
        shape = load_preset(name)
        rows.append({"name": name, "parameters": count_parameters(shape), "about": preset_about(name)} | asdict(shape))
    if json:
        print_json(rows)
        return
    for row in rows:
        say(
            f"{row['name']:<18}{row['parameters']:>13,} parameters with {row['target_vocab_size']:,} pieces; "
            f"{row['about']}"
        )


add_corpus_commands(app)


def main() -> None:
    """The command `dragoman`: errors people can act on are a sentence or two and an exit code."""
    is_debugging = "--debug" in sys.argv
    try:
        app([argument for argument in sys.argv[1:] if argument != "--debug"])
    except UserError as error:
        if is_debugging:
            raise
        warn(f"dragoman: {error}")
        sys.exit(error.exit_code)
    except BrokenPipeError:
        # The reader of our output has gone (`| head`): nothing more to say, also not at exit.
        sys.stdout = None
        sys.exit(1)
    except SystemExit as end:
        # 130 is Typer's code for Ctrl-C; ours are 0, 1 and 2.
        sys.exit(1 if end.code == 130 else end.code)
    except Exception as error:
        if is_debugging:
            raise
        warn(f"dragoman: unexpected {type(error).__name__}: {error}. Run again with --debug to see where.")
        sys.exit(1)


def _speaker(is_json: bool) -> Callable[[str], None]:
    """How long commands speak: with --json all words go to standard error, those of workers too."""
    if is_json:
        from dragoman.monitoring.console import CONSOLE_VARIABLE

        os.environ[CONSOLE_VARIABLE] = "stderr"
    return warn if is_json else say


def _print_run(run: RunFolder, figures: dict[str, Any]) -> None:
    from dragoman.run.summary import summarise_run

    print_json(summarise_run(run) | figures)


def _num_workers(asked: int | None) -> int:
    if asked is not None:
        return asked
    from dragoman.cluster.world import num_gpus

    return max(1, num_gpus())


def _free_run_dir(name: str) -> Path:
    """runs/NAME, or the first of runs/NAME-2, runs/NAME-3, … that does not exist."""
    candidates = (Path("runs") / (name if number == 1 else f"{name}-{number}") for number in count(1))
    return next(path for path in candidates if not path.exists())
