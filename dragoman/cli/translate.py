"""Commands that use a trained model: translate, evaluate; and the list of model presets."""

import sys
from pathlib import Path
from typing import Annotated

import typer

from dragoman.cli.help_text import add_command
from dragoman.cli.output import Json, print_json, say, warn
from dragoman.run.interruption import signals_as_keyboard_interrupt

RunArgument = Annotated[Path, typer.Argument(metavar="RUN", help="A run folder, e.g. runs/demo.")]
Checkpoint = Annotated[str, typer.Option(help="best, latest, or a step number.")]
BeamSize = Annotated[int | None, typer.Option(help="Hypotheses kept. Default: as in the run's config.")]
LengthPenalty = Annotated[
    float | None, typer.Option(help="Alpha of ((5+length)/6)^alpha. Default: as in the run's config.")
]
Workers = Annotated[
    int | None,
    typer.Option(min=1, help="Processes that translate. Default: one per physical core, as far as memory allows."),
]


def add_translate_commands(app: typer.Typer) -> None:
    """Adds the commands of this file to the command line."""
    add_command(app, evaluate, "dragoman evaluate runs/demo --source test.en --reference test.de --json")
    add_command(
        app,
        translate,
        "dragoman translate runs/demo my.en > my.de",
        "echo 'Hello.' | dragoman translate runs/demo",
    )
    add_command(app, presets, "dragoman presets", "dragoman presets --json")


@signals_as_keyboard_interrupt()
def evaluate(
    run: RunArgument,
    source: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Text to translate. Default: the prepared test set.")
    ] = None,
    reference: Annotated[Path | None, typer.Option(metavar="FILE", help="Its human translation, plain text.")] = None,
    output: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Also write the translations to this file.")
    ] = None,
    checkpoint: Checkpoint = "best",
    tokenizer: Annotated[
        str | None,
        typer.Option(
            help="How BLEU cuts text into words, e.g. 13a, char, zh or ja-mecab; auto: by the language. "
            "Default: as in the run's config."
        ),
    ] = None,
    beam_size: BeamSize = None,
    length_penalty: LengthPenalty = None,
    workers: Workers = None,
    json: Json = False,
) -> None:
    """Translate a test set and score it with sacreBLEU and chrF.

    The scores are those of real beam-search output, with their signatures.
    """
    from dragoman.evaluation.final_evaluation import evaluate_run
    from dragoman.evaluation.scores import parse_tokenizer
    from dragoman.run.files import require_writable
    from dragoman.translation.translator import load_run

    if output is not None:
        require_writable(output)
    score_tokenizer = parse_tokenizer(tokenizer) if tokenizer else None
    loaded = load_run(run, checkpoint, beam_size, length_penalty, warn, workers)
    result = evaluate_run(loaded, source, reference, warn, output, score_tokenizer)
    if json:
        print_json(result.figures())
    else:
        say(result.summary())


@signals_as_keyboard_interrupt()
def translate(
    run: RunArgument,
    file: Annotated[
        Path, typer.Argument(metavar="FILE", help="Text with one sentence per line; - is standard input.")
    ] = Path("-"),
    checkpoint: Checkpoint = "best",
    beam_size: BeamSize = None,
    length_penalty: LengthPenalty = None,
    skip_bad_lines: Annotated[
        int, typer.Option(min=0, metavar="N", help="Leave up to N lines that cannot be read empty.")
    ] = 0,
    workers: Workers = None,
) -> None:
    """Translate text line by line to standard output, in the same order.

    Started in a terminal without a file, it translates what you type.
    """
    from dragoman.translation.stream import translate_stream
    from dragoman.translation.translator import load_run

    loaded = load_run(run, checkpoint, beam_size, length_penalty, warn, workers)
    warn(loaded.describe_checkpoint(checkpoint))
    translate_stream(loaded.translator, file, sys.stdout, warn, skip_bad_lines)


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
