"""The way from lines to lines: order, blanks, long lines, shares of ranks, and the model left as it was."""

import json
from itertools import chain, pairwise
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import dragoman.translation.torch_search.torch_backend as backend_module
from dragoman.corpus.tokenizer import Tokenizer
from dragoman.model.transformer import Transformer
from dragoman.run.config import build_settings
from dragoman.run.errors import UsageError
from dragoman.translation.lines.segments import cut_at_words
from dragoman.translation.loading import LoadedRun
from dragoman.translation.search import SearchSettings
from dragoman.translation.torch_search.torch_backend import TorchBackend, choose_num_workers
from dragoman.translation.translator import LineTranslator, SourceLine, Translation

SENTENCE = "the cat sat on a mat and saw two small dogs near an old green house by the river"
WORDS = SENTENCE.split()
LINES = [" ".join(WORDS[begin:end]) for begin in range(6) for end in range(begin + 1, len(WORDS), 3)]


def test_translations_come_in_the_order_of_the_lines(build) -> None:
    one_by_one = [build().translate([line])[0] for line in LINES[:12]]
    assert len(set(one_by_one)) > 6, "translations that are all alike would prove nothing"
    assert build().translate(LINES[:12]) == one_by_one
    assert build(batch_tokens=1).translate(LINES[:12]) == one_by_one
    assert build().translate(LINES[:12][::-1]) == one_by_one[::-1]


def test_blank_lines_stay_blank(build) -> None:
    translated = build().translate(["", LINES[0], "  \t ", LINES[1], ""])
    assert translated == ["", *build().translate(LINES[:1]), "", *build().translate(LINES[1:2]), ""]
    assert translated[1]


def test_nothing_to_translate(build) -> None:
    assert build().translate([]) == []
    assert build().translate_share([], 0, 2) == []


def test_shares_of_all_ranks_make_the_whole_once(build) -> None:
    lines = [*LINES[::3], "", "  ", " ".join(WORDS * 3)]
    translator = build(batch_tokens=60, max_source_tokens=40)
    whole = list(enumerate(translator.translate(lines)))
    for size in (1, 3, 50):
        shares = [translator.translate_share(lines, rank, size) for rank in range(size)]
        assert sorted(chain(*shares)) == whole
        if size < 4:
            assert all(shares)


def test_batches_do_not_depend_on_the_number_of_ranks(build, monkeypatch: pytest.MonkeyPatch) -> None:
    batches: list[list[list[int]]] = []
    start_decoding = Transformer.start_decoding

    def noting(self: Transformer, source_BS: torch.Tensor, lengths: torch.Tensor):
        batches.append(source_BS.tolist())
        assert source_BS.numel() <= 60
        return start_decoding(self, source_BS, lengths)

    monkeypatch.setattr(Transformer, "start_decoding", noting)
    build(batch_tokens=60).translate(LINES)
    alone = batches.copy()
    assert len(alone) > 6
    for rank in range(3):
        batches.clear()
        build(batch_tokens=60).translate_share(LINES, rank, 3)
        assert batches == alone[rank::3]


def test_a_long_line_is_cut_at_words_and_nothing_is_lost(build, tokenizer: Tokenizer) -> None:
    line, said = " ".join(WORDS * 4), []
    translated = build(max_source_tokens=30, say=said.append).translate(["a cat", line])
    [ids] = tokenizer.encode_lines([line])
    is_word_start = [subword.startswith("▁") for subword in tokenizer.subwords(ids)]
    segments = tokenizer.decode_lines(cut_at_words(ids, is_word_start, 29))
    assert " ".join(segments) == line
    assert translated[1] == " ".join(build().translate(segments))
    assert said == [
        f"Line 2 has {len(ids)} subwords, more than the 29 the model was trained on; "
        f"it is translated in {len(segments)} segments."
    ]


def test_a_line_that_just_fits_is_not_cut(build, tokenizer: Tokenizer) -> None:
    [ids] = tokenizer.encode_lines([LINES[3]])
    said: list[str] = []
    build(max_source_tokens=len(ids) + 1, say=said.append).translate([LINES[3]])
    assert said == []
    build(max_source_tokens=len(ids), say=said.append).translate([LINES[3]])
    assert len(said) == 1


@settings(max_examples=100)
@given(st.lists(st.booleans(), min_size=1, max_size=60), st.integers(1, 20))
def test_segments_fit_and_words_are_cut_only_where_necessary(is_word_start: list[bool], max_ids: int) -> None:
    ids = list(range(len(is_word_start)))
    segments = cut_at_words(ids, is_word_start, max_ids)
    assert list(chain(*segments)) == ids
    assert all(1 <= len(segment) <= max_ids for segment in segments)
    for segment, following in pairwise(segments):
        had_no_choice = not any(is_word_start[segment[0] + 1 : segment[0] + max_ids + 1])
        assert is_word_start[following[0]] or had_no_choice


def test_segments_are_of_similar_size() -> None:
    assert [len(segment) for segment in cut_at_words(list(range(101)), [True] * 101, 100)] == [51, 50]


def test_progress_counts_every_line_once(build) -> None:
    done: list[int] = []
    build(batch_tokens=60).translate([*LINES, ""], progress=done.append)
    assert sum(done) == len(LINES) + 1
    assert len(done) > 3


def test_every_module_gets_its_mode_back(build, model: Transformer, monkeypatch: pytest.MonkeyPatch) -> None:
    modes_seen: list[bool] = []
    start_decoding = Transformer.start_decoding

    def noting(self: Transformer, *batch: torch.Tensor):
        modes_seen.append(any(module.training for module in self.modules()))
        return start_decoding(self, *batch)

    monkeypatch.setattr(Transformer, "start_decoding", noting)
    model.train()
    model.encoder.eval()
    build().translate(LINES[:2])
    assert modes_seen == [False]
    assert model.training
    assert not model.encoder.training
    model.eval()


def test_training_goes_on_after_translating(model: Transformer, build) -> None:
    """Positions grown while translating must not be tensors that autograd refuses."""
    model.positions_TD = model.positions_TD[:4].clone()
    build().translate([" ".join(WORDS)])
    source, lengths = torch.full((1, 9), 5), torch.tensor([9])
    model(source, lengths, source).sum().backward()
    assert model.target_embedding.grad is not None
    model.zero_grad()


def best_of(translator: LineTranslator, lines: list[str], progress: Any = None) -> list[Translation]:
    return [best[0] for best in translator.translate_lines([SourceLine(line) for line in lines], progress)]


def test_scores_are_those_of_the_search(build) -> None:
    translations = best_of(build(max_source_tokens=30), [LINES[0], "", " ".join(WORDS * 4)])
    assert translations[1].score == 0.0
    assert translations[0].score < 0
    assert translations[2].score < 0
    assert [translation.text for translation in translations] == build(max_source_tokens=30).translate(
        [LINES[0], "", " ".join(WORDS * 4)]
    )


def test_a_model_without_room_for_a_piece_is_refused(build) -> None:
    with pytest.raises(UsageError, match="max_source_tokens"):
        build(max_source_tokens=1)


def test_several_processes_give_the_same_bits(build) -> None:
    lines = [*LINES, "", " ".join(WORDS * 3)]
    options = {"batch_tokens": 60, "max_source_tokens": 40}
    alone = best_of(build(**options), lines)
    done: list[int] = []
    assert best_of(build(**options, num_workers=3), lines, done.append) == alone
    assert sum(done) == len(lines)
    assert len(done) > 3


def test_line_numbers_of_notices_count_from_the_number_given(build) -> None:
    said: list[str] = []
    lines = [SourceLine("a cat"), SourceLine(" ".join(WORDS * 4))]
    build(max_source_tokens=30, say=said.append).translate_lines(lines, first_number=2_001)
    assert said[0].startswith("Line 2,002 has ")


def test_only_the_first_long_lines_are_named_and_all_are_counted(build) -> None:
    said: list[str] = []
    translator = build(max_source_tokens=3, say=said.append)
    translator.translate(LINES[4:20])
    assert len(said) == 10
    translator.finish_notices()
    assert said[10:] == ["13 lines in all were translated in segments."]
    translator.finish_notices()
    assert len(said) == 11


def test_characters_that_the_model_cannot_read_are_named_once(build) -> None:
    said: list[str] = []
    translator = build(say=said.append)
    translator.translate(["a cat", "a ☃ cat ▁ 漢", "☃☃ dogs"])
    assert said == []
    translator.finish_notices()
    assert said == [
        "3 characters on 2 lines of the input are not in the model's vocabulary: ☃ U+2603 (line 2), ▁ U+2581 (line 2), "
        "漢 U+6F22 (line 2). The model cannot read such a character; translations of these lines may lack something."
    ]


def test_characters_that_the_model_cannot_write_are_described(build) -> None:
    assert build().describe_unwritable(LINES) is None
    message = build().describe_unwritable(["a cat", "a\u200bcat", "".join(map(chr, range(0x4E00, 0x4E10)))])
    assert message is not None
    assert message.startswith(
        "17 characters on 2 lines of the references are not in the model's vocabulary: U+200B (line"
    )
    assert " and 12 more. " in message


def test_a_wide_beam_gets_small_batches(
    model: Transformer, tokenizer: Tokenizer, monkeypatch: pytest.MonkeyPatch
) -> None:
    sizes: list[int] = []
    start_decoding = Transformer.start_decoding

    def noting(self: Transformer, source_BS: torch.Tensor, lengths: torch.Tensor):
        sizes.append(source_BS.numel())
        return start_decoding(self, source_BS, lengths)

    monkeypatch.setattr(Transformer, "start_decoding", noting)
    search = SearchSettings(beam_size=800, max_length_factor=0, max_length_extra=1)
    LineTranslator(TorchBackend(model, tokenizer.num_subwords), tokenizer, tokenizer, search).translate(LINES)
    assert max(sizes) <= 30
    assert len(sizes) > 10


def test_processes_are_limited_by_cores_and_memory(model: Transformer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(backend_module, "num_physical_cores", lambda: 6)
    monkeypatch.setattr(backend_module, "available_memory", lambda: 2**40)
    assert choose_num_workers(model, SearchSettings()) == 6
    monkeypatch.setattr(backend_module, "available_memory", lambda: 450 * 2**20)
    assert choose_num_workers(model, SearchSettings()) in (2, 3, 4)
    monkeypatch.setattr(backend_module, "available_memory", lambda: 0)
    assert choose_num_workers(model, SearchSettings()) == 1


@pytest.mark.parametrize(
    ("metric", "score"),
    [
        ("bleu", "BLEU 26.4 on the dev set (nrefs:1)"),
        ("chrf", "chrF 54.3 on the dev set"),
        ("loss", "dev loss 1.750"),
    ],
)
def test_a_checkpoint_is_described_by_the_metric_that_chose_it(build, metric: str, score: str, tmp_path: Path) -> None:
    figures = {"kind": "evaluation", "step": 5, "loss": 1.75, "bleu": 26.41, "chrf": 54.32, "signature": "nrefs:1"}
    (tmp_path / "metrics.jsonl").write_text(json.dumps(figures) + "\n")
    chosen = build_settings({"data": {"prepared": "gone"}, "checkpoints": {"best_by": metric}})
    checkpoint = tmp_path / "checkpoints/step-00000005"
    run = LoadedRun(build(), chosen, checkpoint, "the checkpoint of step 5 (best)")
    assert run.describe() == f"Translating with the checkpoint of step 5 (best): {score}."
    (tmp_path / "metrics.jsonl").unlink()
    assert LoadedRun(build(), chosen, checkpoint).describe().endswith("of step 5: not evaluated on the dev set.")
