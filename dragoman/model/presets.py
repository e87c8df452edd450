"""Model shapes by name, and how many parameters a shape has. Needs no torch."""

import tomllib
from dataclasses import asdict, dataclass, fields, replace
from difflib import get_close_matches
from functools import cache
from importlib.resources import files
from typing import TYPE_CHECKING, Any

from dragoman.run.errors import UsageError

if TYPE_CHECKING:
    # Not at run time: it builds all sections of the config, 20 ms that `dragoman plan` has no use for.
    from dragoman.run.config import ModelSettings

PRESET_VOCAB_SIZE = 32_768


@dataclass(frozen=True)
class ModelShape:
    """Everything that decides which weights a model has and how they are used."""

    width: int
    feed_forward: int
    heads: int
    encoder_layers: int
    decoder_layers: int
    dropout: float
    attention_dropout: float
    relu_dropout: float
    source_vocab_size: int = PRESET_VOCAB_SIZE
    target_vocab_size: int = PRESET_VOCAB_SIZE
    shares_vocabulary: bool = True
    """One embedding for source, target and softmax; otherwise target and softmax share one, the source has its own."""

    def __post_init__(self) -> None:
        if self.width % self.heads:
            raise UsageError(f"model.width {self.width} cannot be divided among {self.heads} heads: choose a multiple.")
        if self.width % 2:
            raise UsageError(f"model.width must be even (positions are sines and cosines), not {self.width}.")

    def differences(self, other: "ModelShape") -> list[str]:
        """The weights-deciding fields in which two shapes differ, as `name: mine, theirs`."""
        mine, theirs = asdict(self), asdict(other)
        names = [name for name in mine if not name.endswith("dropout")]  # may be changed between restarts
        return [f"{name}: {mine[name]}, {theirs[name]}" for name in names if mine[name] != theirs[name]]


@cache
def _presets() -> dict[str, dict[str, Any]]:
    return tomllib.loads(files("dragoman.model").joinpath("presets.toml").read_text(encoding="utf-8"))


def preset_names() -> list[str]:
    """The known presets, as in presets.toml."""
    return list(_presets())


def preset_about(name: str) -> str:
    """One line on what the preset is for."""
    return str(_presets()[name]["about"])


def load_preset(name: str) -> ModelShape:
    """The shape behind a name; an unknown name is an error that names the nearest known one."""
    if name not in _presets():
        nearest = get_close_matches(name, preset_names(), n=1, cutoff=0.3) or preset_names()[:1]
        raise UsageError(
            f"There is no model preset {name!r}; did you mean {nearest[0]!r}? Known: {', '.join(preset_names())}."
        )
    return ModelShape(**{key: value for key, value in _presets()[name].items() if key != "about"})


def resolve_shape(
    settings: "ModelSettings", source_vocab_size: int, target_vocab_size: int, shares_vocabulary: bool
) -> ModelShape:
    """A preset with the run's own overrides and vocabulary."""
    overrides = settings.model_dump(exclude={"preset"}, exclude_none=True)
    return replace(
        load_preset(settings.preset),
        **overrides,
        source_vocab_size=source_vocab_size,
        target_vocab_size=target_vocab_size,
        shares_vocabulary=shares_vocabulary,
    )


def shape_from_dict(values: dict[str, Any]) -> ModelShape:
    """The shape saved in a checkpoint; fields this version does not know are an error."""
    known = {field.name for field in fields(ModelShape)}
    if set(values) != known:
        raise ValueError(f"model shape has fields {sorted(values)}, expected {sorted(known)}")
    return ModelShape(**values)


def count_parameters(shape: ModelShape) -> int:
    """Trainable parameters, by arithmetic (FACTS §2); a test holds it against the built model."""
    attention = 4 * shape.width**2  # query, key, value, output; no biases
    feed_forward = 2 * shape.width * shape.feed_forward + shape.feed_forward + shape.width
    norm = 2 * shape.width
    encoder_layer = attention + feed_forward + 2 * norm
    decoder_layer = 2 * attention + feed_forward + 3 * norm
    vocabulary = shape.target_vocab_size + (0 if shape.shares_vocabulary else shape.source_vocab_size)
    return (
        vocabulary * shape.width
        + shape.encoder_layers * encoder_layer
        + shape.decoder_layers * decoder_layer
        + 2 * norm
    )
