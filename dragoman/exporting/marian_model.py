"""Reads a Hugging Face Marian model as a model of ours: its shape, its weights under our names, and two tokenizers."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from dragoman.exporting.huggingface_layouts import NORM_EPSILON
from dragoman.exporting.huggingface_names import (
    OUTPUT_BIAS,
    OUTPUT_EMBEDDING,
    SHARED_EMBEDDING,
    SOURCE_EMBEDDING,
    SOURCE_POSITIONS,
    TARGET_EMBEDDING,
    TARGET_POSITIONS,
    layer_modules,
    weight_size,
)
from dragoman.exporting.marian_files import (
    WEIGHTS_FILE,
    check_file,
    count,
    read_bytes,
    read_ids,
    read_table,
    require_model_folder,
    setting,
)
from dragoman.exporting.marian_vocabulary import (
    ImportedVocabulary,
    Marks,
    is_complete,
    read_sentencepiece,
    source_vocabulary,
    target_vocabulary,
)
from dragoman.model.shape import ModelShape
from dragoman.model.transformer import sinusoidal_positions
from dragoman.run.config import Activation
from dragoman.run.errors import UsageError, UserError

_ACTIVATIONS: dict[str, Activation] = {"relu": "relu", "gelu": "gelu", "swish": "swish", "silu": "swish"}
_EXPECTED = {
    "scale_embedding": True,
    "static_position_embeddings": True,
    "normalize_before": False,
    "normalize_embedding": False,
    "add_final_layer_norm": False,
    "is_encoder_decoder": True,
}
"""Settings that our model can follow with one value only; old files have some that transformers ignores."""
_IMPOSSIBLE_LOGIT = -1e4
"""Bias of ids that have no row of their own: small enough for a probability of 0, and within the range of fp16."""
_POSITION_ERROR = 1e-4
_NUMBER_TYPES = ("F64", "F32", "F16", "BF16")


@dataclass(frozen=True)
class MarianModel:
    """A model that was read completely and found to map exactly."""

    shape: ModelShape
    weights: dict[str, Tensor]
    """By our names."""
    source: ImportedVocabulary
    target: ImportedVocabulary
    """The same as `source` if one tokenizer serves both languages."""
    max_tokens: int
    """Number of positions the model was made for."""
    languages: str | None
    """Source and target language, if the files tell, e.g. "en-de"."""


def read_marian_model(folder: Path) -> MarianModel:
    """Reads a folder; a UserError says what is missing, damaged, or cannot be mapped exactly."""
    require_model_folder(folder)
    files = _MarianFolder(folder, read_table(folder / "config.json"))
    files.require_known_architecture()
    source, target = files.vocabularies()
    shape = replace(
        files.shape,
        source_vocab_size=source.size,
        target_vocab_size=target.size,
        shares_vocabulary=source is target,
        output_bias=True,
    )
    weights = _drop_needless_bias(files.read_weights(shape, source, target))
    shape = replace(shape, output_bias="output_bias" in weights)
    return MarianModel(shape, weights, source, target, count(files.config, "max_position_embeddings"), files.languages)


def _drop_needless_bias(weights: dict[str, Tensor]) -> dict[str, Tensor]:
    return weights if weights["output_bias"].any() else {k: v for k, v in weights.items() if k != "output_bias"}


@dataclass(frozen=True)
class _MarianFolder:
    """The files of a model and their settings."""

    path: Path
    config: Mapping[str, Any]

    def require_known_architecture(self) -> None:
        """Refuses models that transformers would not load as MarianMTModel, or that ours cannot follow."""
        kind = self.config.get("model_type")
        if kind != "marian" or self.config.get("architectures", ["MarianMTModel"]) != ["MarianMTModel"]:
            raise UserError(f"{self.path} holds a model of the type {kind!r:.40}, not one of Marian (MarianMTModel).")
        for name, expected in _EXPECTED.items():
            default = False if name == "scale_embedding" else expected
            if self.config.get(name, default) is not expected:
                raise UserError(
                    f"The model in {self.path} cannot be imported exactly: {name} in config.json is not "
                    f"{str(expected).lower()}."
                )
        for name in ("attention_heads", "ffn_dim"):
            if count(self.config, f"encoder_{name}") != count(self.config, f"decoder_{name}"):
                raise UserError(f"The model in {self.path} cannot be imported: encoder and decoder differ in {name}.")

    @property
    def is_tied(self) -> bool:
        """Whether the softmax shares the matrix of the target."""
        return bool(setting(self.config, "tie_word_embeddings", bool, default=True))

    @property
    def is_shared(self) -> bool:
        """Whether source and target share a matrix."""
        return bool(setting(self.config, "share_encoder_decoder_embeddings", bool, default=True))

    @property
    def num_source_rows(self) -> int:
        """Rows of the source embedding."""
        return count(self.config, "vocab_size")

    @property
    def num_target_rows(self) -> int:
        """Rows of the target embedding and of the softmax."""
        has_own = not self.is_shared and self.config.get("decoder_vocab_size") is not None
        return count(self.config, "decoder_vocab_size") if has_own else self.num_source_rows

    @property
    def shape(self) -> ModelShape:
        """Size and architecture, before the vocabulary is known."""
        activation = _ACTIVATIONS.get(setting(self.config, "activation_function", str, "gelu"))
        if activation is None:
            raise UserError(f"The model in {self.path} cannot be imported: its activation is none of ours.")
        try:
            return ModelShape(
                width=count(self.config, "d_model"),
                feed_forward=count(self.config, "encoder_ffn_dim"),
                heads=count(self.config, "encoder_attention_heads"),
                encoder_layers=count(self.config, "encoder_layers"),
                decoder_layers=count(self.config, "decoder_layers"),
                dropout=self._fraction("dropout", 0.1),
                attention_dropout=self._fraction("attention_dropout", 0.0),
                relu_dropout=self._fraction("activation_dropout", 0.0),
                norm="post",
                activation=activation,
                embeddings="tied" if self.is_tied else "untied",
                positions="marian",
                attention_bias=True,
                norm_epsilon=NORM_EPSILON,
            )
        except UsageError as error:
            raise UserError(f"The model in {self.path} cannot be imported: {error}") from None

    def _fraction(self, name: str, default: float) -> float:
        value = float(setting(self.config, name, float, default))
        if not 0 <= value < 1:
            raise UserError(f"config.json: {name} is {value:g}, which a Marian model cannot have.")
        return value

    # The vocabulary

    @cached_property
    def _tokenizer_config(self) -> dict[str, Any]:
        return read_table(self.path / "tokenizer_config.json", is_optional=True)

    @property
    def languages(self) -> str | None:
        """The language pair that the tokenizer was made for."""
        names = [self._tokenizer_config.get(name) for name in ("source_lang", "target_lang")]
        return "-".join(map(str, names)) if all(isinstance(name, str) and name.isalpha() for name in names) else None

    def vocabularies(self) -> tuple[ImportedVocabulary, ImportedVocabulary]:
        """Returns the vocabularies of source and target; one and the same if the model has one for both."""
        has_two_lists = self._tokenizer_config.get("separate_vocabs") is True
        source_ids = read_ids(self.path / "vocab.json", self.num_source_rows)
        target_ids = read_ids(self.path / "target_vocab.json", self.num_target_rows) if has_two_lists else source_ids
        contents = [read_bytes(self.path / name) for name in ("source.spm", "target.spm")]
        source, target = (
            read_sentencepiece(content, str(self.path / name))
            for content, name in zip(contents, ("source.spm", "target.spm"), strict=True)
        )
        of_target = target_vocabulary(target, target_ids, self._target_marks(target_ids), self.num_target_rows)
        has_one_matrix = self.is_shared or not self.is_tied
        if contents[0] == contents[1] and not has_two_lists and has_one_matrix and is_complete(source, source_ids):
            return of_target, of_target
        return source_vocabulary(source, source_ids, self._source_marks(source_ids)), of_target

    def _source_marks(self, ids: Mapping[str, int]) -> Marks:
        """Returns the rows of the marks of source text, in which padding is masked and a start never occurs."""
        for name in ("</s>", "<unk>"):
            if name not in ids:
                raise UserError(f"The vocabulary of {self.path} has no {name}.")
        return Marks(ids["<unk>"], ids["</s>"], ids["<unk>"], ids["<unk>"])

    def _target_marks(self, ids: Mapping[str, int]) -> Marks:
        """Returns the rows of the marks of target text; config.json names those of padding and start."""
        marks = self._source_marks(ids)
        names = ("pad_token_id", "eos_token_id", "decoder_start_token_id")
        pad, end, start = (setting(self.config, name, int) for name in names)
        if not all(0 <= row < self.num_target_rows for row in (pad, start)):
            raise UserError(f"config.json of {self.path} names marks outside the vocabulary.")
        if end != marks.end:
            raise UserError(f"The vocabulary of {self.path} and its config.json name different ids for the end.")
        return Marks(pad, end, start, marks.unknown)

    # The weights

    def read_weights(
        self, shape: ModelShape, source: ImportedVocabulary, target: ImportedVocabulary
    ) -> dict[str, Tensor]:
        """Reads the weights of a model of ours with this shape."""
        path = check_file(self.path / WEIGHTS_FILE)
        try:
            with safe_open(path, framework="pt") as file:
                reader = _WeightReader(path, file)
                weights = self._embeddings(reader, shape, source, target)
                for module in layer_modules(shape):
                    for kind in ("weight", "bias"):
                        names = [f"{name}.{kind}" for name in module.theirs]
                        parts = [reader.read(name, weight_size(name, shape)) for name in names]
                        weights[f"{module.ours}.{kind}"] = torch.cat(parts)
                self._check_positions(reader, shape)
                reader.require_all_read()
        except (SafetensorError, OSError, ValueError) as error:
            raise UserError(f"{path} is not a readable safetensors file ({error}).") from None
        return weights

    def _embeddings(
        self, reader: "_WeightReader", shape: ModelShape, source: ImportedVocabulary, target: ImportedVocabulary
    ) -> dict[str, Tensor]:
        matrices = self._matrices(reader, shape.width)
        weights = {"target_embedding": matrices[TARGET_EMBEDDING][target.rows]}
        if not (self.is_tied and source is target):
            weights["source_embedding"] = matrices[SOURCE_EMBEDDING][source.rows]
        if not self.is_tied:
            weights["output_embedding"] = matrices[OUTPUT_EMBEDDING][target.rows]
        bias = reader.read_optional(OUTPUT_BIAS, (1, self.num_target_rows), may_be_infinite=True)
        bias = torch.zeros(1, self.num_target_rows) if bias is None else bias.clamp(min=_IMPOSSIBLE_LOGIT)
        impossible = torch.full((target.size,), _IMPOSSIBLE_LOGIT)
        weights["output_bias"] = torch.where(torch.tensor(target.is_possible), bias[0][target.rows], impossible)
        return weights

    def _matrices(self, reader: "_WeightReader", width: int) -> dict[str, Tensor]:
        """Returns the matrices of source, target and softmax; a file may hold a tied one under any of its names."""
        sizes = {SOURCE_EMBEDDING: (self.num_source_rows, width)}
        sizes |= dict.fromkeys((TARGET_EMBEDDING, OUTPUT_EMBEDDING), (self.num_target_rows, width))
        found = {name: reader.read_optional(name, size) for name, size in sizes.items()}
        if self.is_shared:
            shared = reader.read_optional(SHARED_EMBEDDING, sizes[SOURCE_EMBEDDING])
            if not self.is_tied:
                sides = {name: found[name] if found[name] is not None else shared for name in sizes}
                return reader.require(sides | {OUTPUT_EMBEDDING: found[OUTPUT_EMBEDDING]})
            return reader.require(dict.fromkeys(sizes, reader.only_one([shared, *found.values()])))
        if self.is_tied:
            tied = reader.only_one([found[TARGET_EMBEDDING], found[OUTPUT_EMBEDDING]])
            found |= {TARGET_EMBEDDING: tied, OUTPUT_EMBEDDING: tied}
        return reader.require(found)

    def _check_positions(self, reader: "_WeightReader", shape: ModelShape) -> None:
        """Refuses a table of positions that is not Marian's: ours is computed."""
        size = (count(self.config, "max_position_embeddings"), shape.width)
        for name in (SOURCE_POSITIONS, TARGET_POSITIONS):
            table = reader.read_optional(name, size)
            if table is not None and (table - sinusoidal_positions(*size, "marian")).abs().max() > _POSITION_ERROR:
                raise UserError(f"The model in {self.path} cannot be imported exactly: its positions are not Marian's.")


class _WeightReader:
    """Reads tensors of expected shapes as finite float32, and knows which were not read."""

    def __init__(self, path: Path, file: Any) -> None:
        self._path = path
        self._file = file
        self._unread = set(file.keys())

    def read(self, name: str, size: tuple[int, ...]) -> Tensor:
        """Reads a tensor that must be there."""
        tensor = self.read_optional(name, size)
        if tensor is None:
            raise UserError(f"{self._path} lacks {name}: it is damaged, or not the model that config.json describes.")
        return tensor

    def read_optional(self, name: str, size: tuple[int, ...], may_be_infinite: bool = False) -> Tensor | None:
        """Reads a tensor; None if the file has none of this name."""
        if name not in self._unread:
            return None
        self._unread.discard(name)
        entry = self._file.get_slice(name)
        if tuple(entry.get_shape()) != size or entry.get_dtype() not in _NUMBER_TYPES:
            found = " × ".join(map(str, entry.get_shape()))
            raise UserError(
                f"{self._path} is not the model that config.json describes: {name} is {found} of {entry.get_dtype()}, "
                f"expected {' × '.join(map(str, size))} numbers."
            )
        tensor: Tensor = self._file.get_tensor(name).float()
        if not (tensor.isfinite() | (tensor == -torch.inf if may_be_infinite else False)).all():
            raise UserError(f"{self._path} is of no use: {name} has values that are NaN or infinite.")
        return tensor

    def only_one(self, tensors: list[Tensor | None]) -> Tensor | None:
        """Returns the one matrix that a file holds under several names."""
        found = [tensor for tensor in tensors if tensor is not None]
        if any(not torch.equal(found[0], other) for other in found[1:]):
            raise UserError(f"{self._path} holds different embeddings where config.json says that they are shared.")
        return found[0] if found else None

    def require(self, matrices: dict[str, Tensor | None]) -> dict[str, Tensor]:
        """Refuses a file without one of the embeddings."""
        complete = {name: matrix for name, matrix in matrices.items() if matrix is not None}
        if missing := sorted(matrices.keys() - complete.keys()):
            raise UserError(f"{self._path} lacks {missing[0]}: it is damaged, or not the model of this config.json.")
        return complete

    def require_all_read(self) -> None:
        """Refuses weights that the model has no use for: it may compute something else."""
        if self._unread:
            raise UserError(
                f"{self._path} holds weights that a Marian model does not have, such as {min(self._unread)[:80]}."
            )
