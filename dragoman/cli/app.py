"""The command line: each command a few lines that call a folder. Heavy libraries are imported inside commands."""

import sys
from pathlib import Path
from typing import Annotated

import typer

from dragoman.cli.corpus import add_corpus_commands
from dragoman.cli.launch import add_launch_command
from dragoman.cli.output import Json, print_json, say, speaker, warn
from dragoman.cli.plan import add_check_command, add_foresight_commands
from dragoman.cli.report import add_report_commands
from dragoman.cli.runs import add_run_commands
from dragoman.cli.train import Overrides, add_train_command, free_run_dir, print_run
from dragoman.run.errors import UserError
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
    from dragoman.cli.demo import run_demo

    run = RunFolder(run_dir or free_run_dir("demo"))
    figures = run_demo(run, workers, overrides or [], speaker(json))
    if json:
        print_run(run, figures)


add_train_command(app)
add_check_command(app)
add_run_commands(app)
add_report_commands(app)


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
    from dragoman.evaluation.final_evaluation import evaluate_run
    from dragoman.translation.translator import load_run

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
    from dragoman.translation.translator import load_run, translate_stream

    translate_stream(load_run(run, checkpoint, beam_size, length_penalty, warn).translator, file, sys.stdout, warn)


@app.command(epilog="Example: dragoman presets --json")
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
            f"{row['name']:<18}{row['parameters']:>13,} parameters with {row['target_vocab_size']:,} pieces; "
            f"{row['about']}"
        )


add_corpus_commands(app)
add_launch_command(app)
add_foresight_commands(app)


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
