"""Decides training.precision = "auto" once, by what all devices of a run compute in hardware."""

import json

from dragoman.cluster.world import World
from dragoman.model.device import best_precision
from dragoman.run.config import Settings
from dragoman.run.errors import UsageError
from dragoman.run.files import write_text
from dragoman.run.folder import RunFolder
from dragoman.run.synchronisation import require_possible
from dragoman.run.tables import dump_toml, read_toml
from dragoman.training.checkpoint import read_state
from dragoman.training.resuming import ResumePlan

_FROM_SLOWEST = ("fp32", "fp16", "bf16")
"""A device that has one of them has those before it too."""


def resolve_precision(settings: Settings, world: World, resume: ResumePlan | None = None) -> Settings:
    """Collective: returns settings without "auto": as the checkpoint was trained, or what every rank's device has."""
    if settings.training.precision != "auto":
        return settings
    saved = read_state(resume.checkpoint).precision if resume is not None and resume.checkpoint is not None else ""
    known = world.gather_texts([(world.rank, json.dumps(saved))] if saved else [])
    if known:
        return _with_precision(settings, json.loads(known[0]))
    own = _FROM_SLOWEST.index(best_precision(world.device))
    (smallest,) = world.smallest_numbers([float(own)])
    chosen = _with_precision(settings, _FROM_SLOWEST[int(smallest)])
    try:
        require_possible(chosen)
    except UsageError:  # replicas that learn apart cannot share the loss scale of fp16
        return _with_precision(settings, "fp32")
    return chosen


def keep_precision(run: RunFolder, settings: Settings) -> None:
    """Writes the decided precision into config.toml, where a resume and every reader of the run finds it."""
    tables = read_toml(run.config)
    training = tables.setdefault("training", {})
    if training.get("precision") == "auto":
        training["precision"] = settings.training.precision
        write_text(run.config, dump_toml(tables))


def _with_precision(settings: Settings, precision: str) -> Settings:
    training = settings.training.model_copy(update={"precision": precision})
    return settings.model_copy(update={"training": training})
