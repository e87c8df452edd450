"""The command `import-model`: models of others as runs."""

from pathlib import Path
from typing import Annotated

import typer

from dragoman.cli.help_text import add_command
from dragoman.cli.output import Json, print_json, say
from dragoman.run.interruption import signals_as_keyboard_interrupt


def add_import_model_command(app: typer.Typer) -> None:
    """Adds the command of this file to the command line."""
    add_command(
        app,
        import_model,
        "dragoman import-model opus-mt-en-de --run-dir runs/opus --languages en-de",
        name="import-model",
    )


@signals_as_keyboard_interrupt()
def import_model(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="A folder with a Hugging Face Marian model.")],
    run_dir: Annotated[
        Path | None, typer.Option(metavar="RUN", help="The run folder to write. Default: runs/ and the name of DIR.")
    ] = None,
    languages: Annotated[
        str | None, typer.Option(metavar="FROM-TO", help="Source and target language. Default: as DIR tells.")
    ] = None,
    json: Json = False,
) -> None:
    """Import a Hugging Face Marian model as a run.

    The run translates, is scored, served, exported and fine-tuned like one that was trained here. A model that cannot
    be imported exactly is refused.
    """
    from dragoman.exporting.marian_import import import_marian
    from dragoman.run.folder import RunFolder

    imported = import_marian(folder, RunFolder(run_dir or Path("runs") / folder.absolute().name), languages)
    if json:
        print_json(imported.figures())
    else:
        say(imported.summary())
        say(f"Translate with: dragoman translate {imported.run}")
