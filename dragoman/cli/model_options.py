"""Options of the commands that use a trained model; they load it with `open_model`."""

from pathlib import Path
from typing import Annotated

import typer

from dragoman.exporting.opening import BackendName, open_model

__all__ = [
    "Backend",
    "BeamSize",
    "Checkpoint",
    "Ensemble",
    "LengthPenalty",
    "RunArgument",
    "Workers",
    "open_model",
]

RunArgument = Annotated[
    Path, typer.Argument(metavar="RUN", help="A run folder, e.g. runs/demo, or a folder that `dragoman export` wrote.")
]
Checkpoint = Annotated[
    str,
    typer.Option(
        help="best, latest, a step number, average:best:N (mean of the weights of the N best checkpoints) or "
        "average:last:N (of the N newest)."
    ),
]
BeamSize = Annotated[int | None, typer.Option(help="Hypotheses kept. Default: as in the run's config.")]
LengthPenalty = Annotated[
    float | None, typer.Option(help="Alpha of ((5+length)/6)^alpha. Default: as in the run's config.")
]
Workers = Annotated[
    int | None,
    typer.Option(min=1, help="Processes that translate. Default: one per physical core, as far as memory allows."),
]
Ensemble = Annotated[
    list[str] | None,
    typer.Option(
        metavar="RUN[@CHECKPOINT]",
        help="Another run or checkpoint to decode with: the models' probabilities are averaged. May be repeated. "
        "Slower by the number of models, often a little better.",
    ),
]
Backend = Annotated[
    BackendName | None,
    typer.Option(
        metavar="NAME",
        help="Program that computes, torch or ctranslate2 (faster on a CPU; a run is exported for it once). "
        "Default: torch for a run, ctranslate2 for an export.",
    ),
]
