"""Decides how often an epoch uses each training corpus, and in which order; computed from a position, never stored.

Each pair of a corpus of weight w is used w times per epoch; for the fraction of w, another random subset is used once
more in each epoch. Stages change the weights at given steps of a run.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from mmap import MADV_DONTNEED, mmap

import numpy as np
from numpy.typing import NDArray

from dragoman.corpus.permutation import MAX_SIZE, Permutation
from dragoman.corpus.prepared_corpus import TrainCorpus
from dragoman.run.config import DataSettings
from dragoman.run.errors import UsageError, did_you_mean

MAX_MAPPED_BYTES = 2**25
"""Bytes of a members file that are mapped at a time."""

Weights = Mapping[str, float]


@dataclass(frozen=True)
class MixtureStage:
    """Weights of all corpora, starting at a step."""

    from_step: int
    weights: Weights


@dataclass(frozen=True)
class Mixture:
    """Training corpora and their weights over a run; the first stage starts at step 0."""

    corpora: tuple[TrainCorpus, ...]
    stages: tuple[MixtureStage, ...]

    @classmethod
    def build(cls, corpora: tuple[TrainCorpus, ...], data: DataSettings) -> "Mixture":
        """Builds the mixture from the settings; an unknown corpus in them is a UsageError."""
        _require_known(corpora, data.weights, "data.weights")
        for number, stage in enumerate(data.stages, start=1):
            _require_known(corpora, stage.weights, f"data.stages (number {number}, from_step = {stage.from_step})")
        mixture = cls(corpora, build_stages(corpora, data))
        for resolved in mixture.stages:
            mixture.num_draws(resolved)  # refuses weights that leave nothing
        return mixture

    def stage_at(self, step: int) -> MixtureStage:
        """MixtureStage that is active after this many steps."""
        return [stage for stage in self.stages if stage.from_step <= step][-1]

    def is_stage_begin(self, step: int) -> bool:
        """Whether a stage begins after this many steps."""
        return any(stage.from_step == step for stage in self.stages)

    def epoch_order(self, step: int, seed: int, epoch: int) -> "EpochOrder":
        """Order of an epoch, with the weights that are active after this many steps."""
        return EpochOrder(self.corpora, self.stage_at(step).weights, seed, epoch)

    def num_draws(self, stage: MixtureStage) -> int:
        """Number of pairs in an epoch of a stage, repeated ones included."""
        return EpochOrder(self.corpora, stage.weights, seed=0, epoch=0).num_draws

    def describe(self) -> list[str]:
        """Returns one message per stage: pairs per epoch, and the share of each corpus."""
        return [self._describe_stage(stage) for stage in self.stages]

    def _describe_stage(self, stage: MixtureStage) -> str:
        total = self.num_draws(stage)
        shares = [f"{corpus.name} {_draws_of(corpus, stage.weights) / total:.1%}" for corpus in self.corpora]
        begin = f"From step {stage.from_step:,}, an" if len(self.stages) > 1 else "An"
        return f"{begin} epoch has {total:,} pairs: {', '.join(shares)}."


def base_weights(corpora: Sequence[TrainCorpus], overrides: Weights) -> dict[str, float]:
    """Weight of every corpus outside of stages: as recorded by prepare, unless overridden."""
    return {corpus.name: overrides.get(corpus.name, corpus.weight) for corpus in corpora}


def build_stages(corpora: Sequence[TrainCorpus], data: DataSettings) -> tuple[MixtureStage, ...]:
    """Builds all stages of a run, the first from step 0, each with the weights of all corpora."""
    base = base_weights(corpora, data.weights)
    later = tuple(MixtureStage(stage.from_step, base | stage.weights) for stage in data.stages)
    if later and later[0].from_step == 0:
        return later
    return MixtureStage(0, base), *later


def stages_begun(stages: Sequence[MixtureStage], num_steps: int) -> tuple[MixtureStage, ...]:
    """Stages that began within the first `num_steps` steps."""
    return tuple(stage for stage in stages if stage.from_step < num_steps)


def _require_known(corpora: Sequence[TrainCorpus], weights: Weights, setting: str) -> None:
    names = [corpus.name for corpus in corpora]
    for name in weights:
        if name not in names:
            hint = did_you_mean(name, names)
            raise UsageError(f"{setting}: there is no training corpus {name!r}{hint} There are: {', '.join(names)}.")


def _draws_of(corpus: TrainCorpus, weights: Weights) -> int:
    # Bounded, so that an absurd weight gives a message and not an overflow.
    return round(min(weights[corpus.name] * corpus.num_pairs, 2.0 * MAX_SIZE))


@dataclass(frozen=True)
class EpochOrder:
    """Order of the pairs of one epoch; each pair is computed from its position."""

    corpora: tuple[TrainCorpus, ...]
    weights: Weights
    seed: int
    epoch: int

    def __post_init__(self) -> None:
        if not self.num_draws:
            raise UsageError(
                "The weights of the training corpora leave no pair to train on. Give at least one corpus a larger "
                "weight in data.weights or data.stages."
            )
        if self.num_draws > MAX_SIZE:
            raise UsageError("The weights of the training corpora are too large. Divide them all by the largest.")

    @cached_property
    def num_draws(self) -> int:
        """Number of pairs in the epoch, repeated ones included."""
        return sum(self._draws_by_corpus)

    def pairs(self, begin: int, end: int) -> NDArray[np.int64]:
        """Returns the pairs at positions begin to end - 1, as indices into the training split."""
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
        """Maps draws to pairs: every `num_pairs` draws are all pairs once; the rest is a random subset per epoch."""
        corpus = self.corpora[number]
        shuffle = Permutation(corpus.num_pairs, (self.seed, self.epoch, "corpus", number))
        places = shuffle(draws % corpus.num_pairs)
        return places if corpus.members is None else _read_members(corpus.members, places)


def _read_members(members: NDArray[np.int64], places: NDArray[np.int64]) -> NDArray[np.int64]:
    """Reads scattered items of a memory map in file order, without keeping its pages in memory."""
    found = np.empty(len(places), dtype=np.int64)
    file: object = members.base
    for group in np.array_split(np.argsort(places), 1 + members.nbytes // MAX_MAPPED_BYTES):
        found[group] = members[places[group]]
        if isinstance(file, mmap):
            # Every item read maps its neighbours: 45 million pairs would show as 360 MB of this process.
            file.madvise(MADV_DONTNEED)
    return found
