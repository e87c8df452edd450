"""Exports of tiny models must compute, in transformers, what our own model computes, for every choice that can be
exported; those that cannot must say why."""

import json
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from random_exports import LINES, POST_NORM, SENTENCE, build_source

from dragoman.corpus.tokenizer import BOS_ID, EOS_ID, Tokenizer, TokenizerDesign, train_tokenizer
from dragoman.exporting.huggingface import translate_with_huggingface, write_huggingface
from dragoman.exporting.source import ExportSource
from dragoman.run.errors import UserError
from dragoman.translation.search import SearchSettings
from dragoman.translation.torch_search.torch_backend import TorchBackend
from dragoman.translation.translator import LineTranslator


@pytest.fixture(scope="module")
def tokenizers() -> tuple[bytes, bytes]:
    """Two models of different sizes; the second splits unknown characters into bytes."""
    design = TokenizerDesign(kind="unigram", byte_fallback=True)
    return train_tokenizer([SENTENCE, *LINES], 60), train_tokenizer([SENTENCE, *LINES], 290, design)


def export(source: ExportSource, tmp_path: Path) -> Path:
    folder = tmp_path / "export"
    folder.mkdir()
    write_huggingface(source, folder)
    return folder


def load(folder: Path, dtype=torch.float64):
    from transformers import AutoModelForSeq2SeqLM

    return AutoModelForSeq2SeqLM.from_pretrained(folder, dtype=dtype, local_files_only=True).eval()


def load_tokenizer(folder: Path):
    from transformers import AutoTokenizer

    return AutoTokenizer.from_pretrained(folder, local_files_only=True)


@torch.no_grad()
def both_logits(source: ExportSource, folder: Path) -> tuple[torch.Tensor, torch.Tensor]:
    """Scores of our model and of transformers for sources of different lengths."""
    randomness = torch.Generator().manual_seed(2)
    source_ids = torch.randint(4, source.source_tokenizer.num_subwords, (3, 9), generator=randomness)
    target_ids = torch.randint(4, source.target_tokenizer.num_subwords, (3, 7), generator=randomness)
    target_ids[:, 0] = BOS_ID
    lengths = torch.tensor([9, 4, 6])
    mask = torch.arange(9) < lengths[:, None]
    ours = source.model.logits(source.model(source_ids * mask, lengths, target_ids))
    theirs = load(folder)(input_ids=source_ids * mask, attention_mask=mask.long(), decoder_input_ids=target_ids).logits
    return ours, theirs


CHOICES = [
    {},
    {"activation": "gelu", "attention_bias": True, "output_bias": True},
    {"activation": "swish", "embeddings": "untied", "positions": "marian", "norm_epsilon": 1e-5},
    POST_NORM,
    POST_NORM | {"attention_bias": True, "output_bias": True, "activation": "swish"},
    POST_NORM | {"embeddings": "untied", "activation": "gelu"},
]


@pytest.mark.parametrize("is_joint", [True, False])
@pytest.mark.parametrize("choices", CHOICES, ids=lambda choices: "-".join(map(str, choices.values())) or "default")
def test_every_layout_gives_our_scores(tmp_path, tokenizers, choices, is_joint):
    source = build_source(tmp_path, tokenizers[:1] if is_joint else tokenizers, **choices)
    ours, theirs = both_logits(source, export(source, tmp_path))
    num_ids = ours.shape[-1]
    # The positions of Marian are computed by transformers, in another order of roundings.
    tolerance = 1e-9 if source.shape.norm == "pre" else 2e-5
    torch.testing.assert_close(theirs[..., :num_ids], ours, rtol=0, atol=tolerance)
    assert theirs[..., num_ids:].log_softmax(-1).exp().numel() == 0 or theirs[..., num_ids:].max() < -1e8


def test_epsilon_is_not_ignored(tmp_path, tokenizers):
    """Tiny embeddings make the epsilon of norms count: without scaling of the residual, scores would differ."""
    source = build_source(tmp_path, tokenizers[:1], norm_epsilon=1e-3)
    ours, theirs = both_logits(source, export(source, tmp_path))
    torch.testing.assert_close(theirs, ours, rtol=0, atol=1e-9)


@pytest.mark.parametrize("is_joint", [True, False])
@pytest.mark.parametrize("choices", [{}, POST_NORM | {"attention_bias": True}], ids=["pre", "post"])
def test_translations_are_ours(tmp_path, tokenizers, choices, is_joint):
    source = build_source(tmp_path, tokenizers[:1] if is_joint else tokenizers, torch.float32, **choices)
    backend = TorchBackend(source.model, source.target_tokenizer.num_subwords, num_workers=1)
    search = SearchSettings(beam_size=1)
    ours = LineTranslator(backend, source.source_tokenizer, source.target_tokenizer, search).translate(
        [*LINES, " ", "☃"]
    )
    folder = export(source, tmp_path)
    assert translate_with_huggingface(folder, [*LINES, " ", "☃"], beam_size=1) == ours
    assert len(set(ours)) > 5


@pytest.mark.parametrize(
    ("choices", "reason"),
    [
        ({"activation": "swiglu"}, "swiglu"),
        ({"norm": "post", "norm_epsilon": 1e-5}, "tensor2tensor"),
        (POST_NORM | {"norm_epsilon": 1e-6}, "norm_epsilon = 1e-06"),
    ],
)
def test_models_without_a_layout_are_refused(tmp_path, tokenizers, choices, reason):
    source = build_source(tmp_path, tokenizers[:1], **choices)
    with pytest.raises(UserError, match=rf"{reason}.*--format ctranslate2"):
        write_huggingface(source, tmp_path)
    assert not (tmp_path / "config.json").exists()


def test_symbols_that_look_like_language_codes_are_refused(tmp_path):
    model = train_tokenizer([SENTENCE, *LINES], 60, TokenizerDesign(symbols=(">>de<<",)))
    with pytest.raises(UserError, match=">>de<<"):
        write_huggingface(build_source(tmp_path, (model,)), tmp_path)


ODD_LINES = [
    "",
    "  the  cat ",
    "the\tcat\u00a0sat\u200b",
    "</s> the <pad> <unk> <s> cat</s>",
    "☃☃ 日本 🐈‍⬛ the",
    "שלום עולם the",
    "e\u0301 ﬁ ½ the",
    "▁the ▁▁ cat",
    "<0x41> the",
]


@pytest.fixture(scope="module")
def tokenizer_pairs(tmp_path_factory, tokenizers):
    """Our tokenizers, and what AutoTokenizer makes of their exports."""
    pairs = []
    for model in tokenizers:
        folder = tmp_path_factory.mktemp("tokenizer")
        pairs.append((Tokenizer(model), load_tokenizer(export(build_source(folder, (model,)), folder))))
    return pairs


def assert_same_ids(tokenizer_pairs, line: str) -> None:
    for ours, theirs in tokenizer_pairs:
        [ids] = ours.encode_lines([line])
        assert theirs(line)["input_ids"] == [*ids, EOS_ID]


@pytest.mark.parametrize("line", [SENTENCE, *ODD_LINES])
def test_ids_are_ours(tokenizer_pairs, line):
    assert_same_ids(tokenizer_pairs, line)


@given(
    line=st.one_of(st.text(), st.text("the cat<s>/▁ \t☃日", max_size=30)).filter(lambda line: not line.startswith(">>"))
)
def test_ids_of_any_text_are_ours(tokenizer_pairs, line):
    assert_same_ids(tokenizer_pairs, line)


@given(data=st.data())
def test_any_ids_are_decoded_as_ours(tokenizer_pairs, data):
    for ours, theirs in tokenizer_pairs:
        ids = data.draw(st.lists(st.integers(4, ours.num_subwords - 1), max_size=12))
        assert theirs.decode([*ids, EOS_ID], skip_special_tokens=True).strip() == ours.decode_lines([ids])[0].strip()


def test_search_never_returns_marks(tmp_path, tokenizers):
    source = build_source(tmp_path, tokenizers[:1])
    folder = export(source, tmp_path)
    config = json.loads((folder / "generation_config.json").read_text())
    padding = list(range(source.target_tokenizer.num_subwords, source.target_tokenizer.vocab_size))
    assert config["suppress_tokens"] == [0, 2, 3, *padding]
    assert config["num_beams"] == source.settings.evaluation.beam_size
