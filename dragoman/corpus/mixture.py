"""How much of each training corpus an epoch shows, and in which order: computed from a position, never stored.

A corpus of weight w shows each of its pairs w times an epoch; where w is no whole number, another random part of them
is shown once more in each epoch. Stages change the weights at given steps of a run.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from functools import cached_property
from mmap import MADV_DONTNEED, mmap

import numpy as np
from numpy.typing import NDArray

from dragoman.corpus.permutation import MAX_SIZE, Permutation
from dragoman.corpus.prepared_corpus import TrainCorpus
from dragoman.run.config import DataSettings
from dragoman.run.errors import UsageError

MAX_MAPPED_BYTES = 2**25
"""Of a corpus's members, at a time."""

Weights = Mapping[str, float]


@dataclass(frozen=True)
class Stage:
    """The weights of all corpora from a step on."""

    from_step: int
    weights: Weights


@dataclass(frozen=True)
class Mixture:
    """The training corpora and their weights over a run; the first stage begins with step 0."""

    corpora: tuple[TrainCorpus, ...]
    stages: tuple[Stage, ...]

    @classmethod
    def build(cls, corpora: tuple[TrainCorpus, ...], data: DataSettings) -> "Mixture":
        """The mixture the settings ask for; a corpus they name but nobody knows is a UsageError."""
        _require_known(corpora, data.weights, "data.weights")
        for number, stage in enumerate(data.stages, start=1):
            _require_known(corpora, stage.weights, f"data.stages (number {number}, from_step = {stage.from_step})")
        mixture = cls(corpora, build_stages(corpora, data))
        for resolved in mixture.stages:
            mixture.num_draws(resolved)  # refuses weights that leave nothing
        return mixture

    def stage_at(self, step: int) -> Stage:
        """The stage in force when so many steps have been made."""
        return [stage for stage in self.stages if stage.from_step <= step][-1]

    def is_stage_begin(self, step: int) -> bool:
        """Whether a stage begins when so many steps have been made."""
        return any(stage.from_step == step for stage in self.stages)

    def epoch_order(self, step: int, seed: int, epoch: int) -> "EpochOrder":
        """The order of an epoch, with the weights in force when so many steps have been made."""
        return EpochOrder(self.corpora, self.stage_at(step).weights, seed, epoch)

    def num_draws(self, stage: Stage) -> int:
        """Pairs shown in an epoch of a stage."""
        return EpochOrder(self.corpora, stage.weights, seed=0, epoch=0).num_draws

    def describe(self) -> list[str]:
        """One sentence a stage: pairs an epoch, and the share of each corpus."""
        return [self._describe_stage(stage) for stage in self.stages]

    def _describe_stage(self, stage: Stage) -> str:
        total = self.num_draws(stage)
        shares = [f"{corpus.name} {_draws_of(corpus, stage.weights) / total:.1%}" for corpus in self.corpora]
        begin = f"From step {stage.from_step:,} on, an" if len(self.stages) > 1 else "An"
        return f"{begin} epoch has {total:,} pairs: {', '.join(shares)}."


def base_weights(corpora: Sequence[TrainCorpus], overrides: Weights) -> dict[str, float]:
    """The weight of every corpus outside of stages: as recorded, unless overridden."""
    return {corpus.name: overrides.get(corpus.name, corpus.weight) for corpus in corpora}


def build_stages(corpora: Sequence[TrainCorpus], data: DataSettings) -> tuple[Stage, ...]:
    """All stages of a run, the first from step 0, with the weights of all corpora spelled out."""
    base = base_weights(corpora, data.weights)
    later = tuple(Stage(stage.from_step, base | stage.weights) for stage in data.stages)
    if later and later[0].from_step == 0:
        return later
    return Stage(0, base), *later


def stages_begun(stages: Sequence[Stage], num_steps: int) -> tuple[Stage, ...]:
    """The stages under which at least one of so many steps was made."""
    return tuple(stage for stage in stages if stage.from_step < num_steps)


def _require_known(corpora: Sequence[TrainCorpus], weights: Weights, setting: str) -> None:
    names = [corpus.name for corpus in corpora]
    for name in weights:
        if name not in names:
            nearest = get_close_matches(name, names, n=1, cutoff=0.0)[0]
            raise UsageError(f"{setting}: there is no training corpus {name!r}; did you mean {nearest!r}?")


def _draws_of(corpus: TrainCorpus, weights: Weights) -> int:
    # Bounded, so that an absurd weight is refused in words and not by an overflow.
    return round(min(weights[corpus.name] * corpus.num_pairs, 2.0 * MAX_SIZE))


@dataclass(frozen=True)
class EpochOrder:
    """The pairs of one epoch in their order, each found from its position alone."""

    corpora: tuple[TrainCorpus, ...]
    weights: Weights
    seed: int
    epoch: int

    def __post_init__(self) -> None:
        if not self.num_draws:
            raise UsageError(
                "The weights of the training corpora leave no pair to learn from. Give at least one corpus a larger "
                "weight in data.weights or data.stages."
            )
        if self.num_draws > MAX_SIZE:
            raise UsageError("The weights of the training corpora are too large. Divide them all by the largest.")

    @cached_property
    def num_draws(self) -> int:
        """How many pairs the epoch has, repeated ones counted."""
        return sum(self._draws_by_corpus)

    def pairs(self, begin: int, end: int) -> NDArray[np.int64]:
        """The pairs at positions begin to end (exclusive), as indices into the training split."""
        shuffle = Permutation(self.num_draws, (self.seed, self.epoch, "epoch"))
        draws = shuffle(np.arange(begin, end))
        corpus_ends = np.cumsum(self._draws_by_corpus, dtype=np.int64)
        owners = np.searchsorted(corpus_ends, draws, side="right")
        found = np.empty(len(draws), dtype=np.int64)
        for number in np.unique(owners):
            own = owners == number
            first_draw = corpus_ends[number] - self._draws_by_corpus[number]
            found[own] = self._pairs_of_corpus(int(number), draws[own] - first_draw)
        return found

    @cached_property
    def _draws_by_corpus(self) -> list[int]:
        return [_draws_of(corpus, self.weights) for corpus in self.corpora]

    def _pairs_of_corpus(self, number: int, draws: NDArray[np.int64]) -> NDArray[np.int64]:
        """Every `num_pairs` draws in a row are all pairs once; what is left over is another random part each epoch."""
        corpus = self.corpora[number]
        shuffle = Permutation(corpus.num_pairs, (self.seed, self.epoch, "corpus", number))
        places = shuffle(draws % corpus.num_pairs)
        return places if corpus.members is None else _read_members(corpus.members, places)


def _read_members(members: NDArray[np.int64], places: NDArray[np.int64]) -> NDArray[np.int64]:
    """Scattered items of a memory map, read from its beginning to its end without keeping its pages."""
    found = np.empty(len(places), dtype=np.int64)
    file: object = members.base
    for part in np.array_split(np.argsort(places), 1 + members.nbytes // MAX_MAPPED_BYTES):
        found[part] = members[places[part]]
        if isinstance(file, mmap):
            # Every place touched maps its whole neighbourhood: 45 million pairs would show as 360 MB of this process.
            file.madvise(MADV_DONTNEED)
    return found
