"""Several models that decode as one: the mean of their probabilities chooses each subword."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from dragoman.model.shape import ModelShape
from dragoman.model.transformer import DecodingState, Transformer


@dataclass
class EnsembleState:
    """The decoding state of each model."""

    states: list[DecodingState]

    def select_targets(self, rows: Tensor) -> None:
        """Reorders the state of the hypotheses, not that of the sources."""
        for state in self.states:
            state.select_targets(rows)

    def select_sources(self, rows: Tensor) -> None:
        """Keeps the given sources; the others are finished."""
        for state in self.states:
            state.select_sources(rows)


class Ensemble(nn.Module):
    """Models with the same vocabularies, with the methods for decoding that one model has."""

    def __init__(self, models: Sequence[Transformer]) -> None:
        super().__init__()
        self.models = nn.ModuleList(models)
        self._members = list(models)

    @property
    def shape(self) -> ModelShape:
        """Sizes of the largest model."""
        return max((model.shape for model in self._members), key=lambda shape: shape.decoder_layers * shape.width)

    @property
    def target_embedding(self) -> Tensor:
        """Embeddings of the first model; its device and number type are those of the ensemble."""
        return self._members[0].target_embedding

    def start_decoding(self, source_BS: Tensor, source_lengths_B: Tensor) -> EnsembleState:
        """Encodes sources once with each model, ready for `decode_next`."""
        return EnsembleState([model.start_decoding(source_BS, source_lengths_B) for model in self._members])

    def decode_next(self, token_B: Tensor, state: EnsembleState) -> Tensor:
        """Returns the logarithm [B, V] of the mean probability of each next subword; advances all states."""
        log_p_MBV = torch.stack(
            [
                model.decode_next(token_B, its_state).log_softmax(-1)
                for model, its_state in zip(self._members, state.states, strict=True)
            ]
        )
        return log_p_MBV.logsumexp(0) - math.log(len(self._members))

    def attend(self, source_BS: Tensor, source_lengths_B: Tensor, target_BT: Tensor) -> Tensor:
        """Returns the mean attention [B, T, S] of the models."""
        attended = [model.attend(source_BS, source_lengths_B, target_BT) for model in self._members]
        return torch.stack(attended).mean(0)
