"""The command `export`: models for other programs."""

from pathlib import Path
from typing import Annotated, Literal

import typer

from dragoman.cli.help_text import add_command
from dragoman.cli.model_options import Checkpoint
from dragoman.cli.output import Json, print_json, say, warn
from dragoman.run.interruption import signals_as_keyboard_interrupt


def add_export_command(app: typer.Typer) -> None:
    """Adds the command of this file to the command line."""
    add_command(
        app,
        export,
        "dragoman export runs/demo --format ctranslate2 --out demo-ct2",
        "dragoman export runs/demo --format ctranslate2 --quantization int8 --out demo-int8",
        "dragoman export runs/demo --format huggingface --licence cc-by-4.0 --out demo-hf",
    )


@signals_as_keyboard_interrupt()
def export(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="A run folder, e.g. runs/demo.")],
    out: Annotated[Path, typer.Option(metavar="DIR", help="Folder to write; an earlier export there is replaced.")],
    format: Annotated[  # noqa: A002 - the name of the option
        Literal["ctranslate2", "huggingface", "safetensors"],
        typer.Option(
            help="ctranslate2: fast on CPUs, and what `dragoman serve` uses. huggingface: for the library "
            "transformers. safetensors: the plain weights."
        ),
    ] = "ctranslate2",
    quantization: Annotated[
        Literal["int8", "int8_float32", "float16"] | None,
        typer.Option(
            help="Smaller weights, for ctranslate2 only. int8: a quarter of the size and fastest on a CPU; "
            "int8_float32: the same, computed in float32 where no integers are; float16: half the size, for GPUs. "
            "Default: float32, exact."
        ),
    ] = None,
    checkpoint: Checkpoint = "best",
    licence: Annotated[
        str | None, typer.Option(metavar="TEXT", help="Licence in the model card, e.g. cc-by-4.0. Default: not stated.")
    ] = None,
    max_different: Annotated[
        float,
        typer.Option(
            min=0, max=1, help="Share of dev sentences that may come out differently; float32 and greedy search only."
        ),
    ] = 0.01,
    max_bleu_drop: Annotated[
        float, typer.Option(min=0, max=100, help="By how much BLEU on the dev set may fall below the run's.")
    ] = 0.5,
    verify_source: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Compare translations of this text. Default: the dev set."),
    ] = None,
    verify_reference: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Its human translation, for BLEU.")
    ] = None,
    json: Json = False,
) -> None:
    """Write a trained model for other programs.

    The folder has weights, tokenizer, model card and checksums. Afterwards the dev set is translated with the run and
    with the export. If too many sentences differ, or BLEU falls too far, the export is refused and nothing is left
    behind.
    """
    from dragoman.exporting.export import ExportChoice, export_model, require_replaceable
    from dragoman.exporting.source import open_export_source
    from dragoman.exporting.verification import Limits, find_text

    choice = ExportChoice(format, quantization, licence)
    require_replaceable(out)
    source = open_export_source(run, checkpoint, warn)
    text = find_text(source, (verify_source, verify_reference), warn)
    finished = export_model(source, choice, out, text, Limits(max_different, max_bleu_drop))
    if json:
        print_json(finished.figures())
    else:
        say(finished.summary())
