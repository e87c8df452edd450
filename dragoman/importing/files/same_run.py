"""Decides whether two files are of the same run: a copy, a part that overlaps, or the continuation of another."""

from collections.abc import Collection
from dataclasses import dataclass, field
from enum import Enum
from itertools import pairwise
from statistics import median
from typing import Any

from dragoman.importing.imported_run import ImportedRun
from dragoman.importing.trainers.openseq2seq import CONTINUED

_MODEL_FACTS = ("parameters", "width", "feed_forward", "heads", "encoder_layers", "decoder_layers", "vocab_size")
_MIN_EQUAL_SHARE = 0.9
"""Share of equal figures at common steps from which two files show the same run."""
_MAX_MISSING_LINES = 3
_COMPARED_LOSSES = 5
_USUAL_LEVELS = (0.5, 1.3)
"""Loss of the first steps of a file by that of the last steps before it, where both are of the same run."""
_FIGURES = ("loss", "negative_log_likelihood", "perplexity", "bleu", "accuracy", "chrf", "learning_rate")
_ALIKE = {"learning_rate"}
"""Figures that other runs of the same settings have too."""

Point = tuple[str, int]
"""Kind and step of a record."""


class Relation(Enum):
    """What a file is to an earlier one."""

    COPY = "all of it is in the other file"
    OVERLAP = "its beginning is in the other file"
    CONTINUATION = "it continues the other file"
    OTHER_RUN = "it is another run"


@dataclass
class Traits:
    """What shows to which run some files belong."""

    figures: dict[Point, dict[str, float]] = field(default_factory=dict)
    train_steps: list[int] = field(default_factory=list)
    model: dict[str, Any] = field(default_factory=dict)
    hosts: set[str] = field(default_factory=set)
    is_resumed: bool = False
    """Whether the trainer itself says that it continues an earlier run."""
    is_announced: bool = False
    """Whether the files hold the line with which the trainer starts."""

    @property
    def starts_over(self) -> bool:
        """Whether its first step is the first of a run."""
        if not self.has_steps or self.is_resumed:
            return False
        # A single step has no interval: it may be the first of any part.
        is_known = len(set(self.train_steps)) > 1 or self.is_announced or self.train_steps[0] == 0
        return is_known and begins_at_start(self.train_steps)

    @property
    def names(self) -> set[tuple[str, str]]:
        """Kind and name of each figure: a table of rates and one of losses can be of the same run."""
        return {(kind, name) for (kind, _), figures in self.figures.items() for name in figures}

    @property
    def has_steps(self) -> bool:
        """Whether it has a step of training."""
        return bool(self.train_steps)


def begins_at_start(steps: list[int]) -> bool:
    """Whether the first logged step is no later than the interval between the first ones allows."""
    interval = next((b - a for a, b in pairwise(steps) if b > a), steps[0])
    return steps[0] <= 2 * max(interval, 1)


def traits_of(run: ImportedRun) -> Traits:
    """Returns what a run that was read alone shows about itself."""
    figures: dict[Point, dict[str, float]] = {}
    for record in run.records:
        if record["kind"] in ("train", "evaluation"):
            known = {name: record[name] for name in _FIGURES if isinstance(record.get(name), int | float)}
            figures[record["kind"], record["step"]] = known
    steps = [record["step"] for record in run.records if record["kind"] == "train"]
    is_announced = bool(run.launches) and run.launches[0].is_announced
    return Traits(
        figures,
        steps,
        {name: run.facts[name] for name in _MODEL_FACTS if name in run.facts},
        {host for launch in run.launches for host in launch.hosts} or set(run.facts.get("hosts", ())),
        CONTINUED in run.notes or (is_announced and bool(steps) and not begins_at_start(steps)),
        is_announced,
    )


def relation_of(later: Traits, earlier: Traits, is_same_place: bool, may_have_gap: bool = False) -> Relation:
    """Returns what a file is to files that were read before it and begin no later.

    In the same place, files that follow each other may be parts of one run; elsewhere the trainer must say so.
    """
    if any(later.model[name] != earlier.model[name] for name in later.model.keys() & earlier.model.keys()):
        return Relation.OTHER_RUN
    common = later.figures.keys() & earlier.figures.keys()
    if common and _share_of_equal(later, earlier, common) >= _MIN_EQUAL_SHARE:
        return Relation.COPY if len(common) == len(later.figures) else Relation.OVERLAP
    if not later.has_steps or not earlier.has_steps or not later.names & earlier.names:
        return Relation.CONTINUATION if is_same_place else Relation.OTHER_RUN
    if later.starts_over or later.train_steps[0] <= earlier.train_steps[0]:
        return Relation.OTHER_RUN
    is_elsewhere = bool(later.hosts and earlier.hosts and not later.hosts & earlier.hosts)
    if later.is_resumed:
        return Relation.CONTINUATION
    is_next = is_same_place and not is_elsewhere and not common
    is_next = is_next and (may_have_gap or _follows_at_once(later, earlier)) and _fits_in_level(later, earlier)
    return Relation.CONTINUATION if is_next else Relation.OTHER_RUN


def _follows_at_once(later: Traits, earlier: Traits) -> bool:
    """Whether no more steps are missing between two files than a few lines of a log have."""
    gap = later.train_steps[0] - max(earlier.train_steps)
    intervals = [b - a for steps in (later.train_steps, earlier.train_steps) for a, b in pairwise(steps) if b > a]
    return not intervals or gap <= _MAX_MISSING_LINES * median(intervals)


def _fits_in_level(later: Traits, earlier: Traits) -> bool:
    """Whether the loss goes on at about the level at which the earlier file ends."""
    before, after = _losses(earlier)[-_COMPARED_LOSSES:], _losses(later)[:_COMPARED_LOSSES]
    if not before or not after or median(before) <= 0:
        return True
    low, high = _USUAL_LEVELS
    return low <= median(after) / median(before) <= high


def _losses(traits: Traits) -> list[float]:
    points = sorted(point for point in traits.figures if point[0] == "train")
    return [traits.figures[point]["loss"] for point in points if "loss" in traits.figures[point]]


def _share_of_equal(later: Traits, earlier: Traits, points: Collection[Point]) -> float:
    """Share of points at which all figures that both have are equal; points without common figures do not count."""
    num_equal = num_compared = 0
    # Runs that are alike have the same rates: those count only where there is nothing else.
    told = [point for point in points if (later.figures[point].keys() & earlier.figures[point].keys()) - _ALIKE]
    for point in told or points:
        one, other = later.figures[point], earlier.figures[point]
        names = one.keys() & other.keys()
        num_compared += bool(names)
        # A file of evaluations alone may have figures that the log lacks: then it is no copy.
        is_copied = later.has_steps or one.keys() <= other.keys()
        num_equal += bool(names) and is_copied and all(_is_equal(one[name], other[name]) for name in names)
    return num_equal / num_compared if num_compared else 0.0


def _is_equal(one: float, other: float) -> bool:
    return abs(one - other) <= 1e-6 * max(abs(one), abs(other))


def merge(one: Traits, other: Traits) -> Traits:
    """Returns the traits of two files of the same run together."""
    figures = dict(one.figures)
    for point, values in other.figures.items():
        figures[point] = figures.get(point, {}) | values
    return Traits(
        figures,
        one.train_steps + other.train_steps,
        one.model | other.model,
        other.hosts or one.hosts,
        one.is_resumed,
        one.is_announced,
    )
