"""Searches of CTranslate2 must mean the same as our own: outputs, scores, limits, constraints and alignments."""

import math
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from export_sources import LINES, build_source, native_log_probabilities

from dragoman.corpus.tokenizer import BOS_ID, EOS_ID, PAD_ID, UNK_ID
from dragoman.exporting.ctranslate2_format import write_ctranslate2
from dragoman.exporting.source import ExportSource
from dragoman.run.errors import UsageError, UserError
from dragoman.translation.ctranslate2_backend import CTranslate2Backend
from dragoman.translation.possible_outputs import contains, has_forbidden
from dragoman.translation.search import Found, Hypothesis, Sampling, SearchSettings, SourceSegment
from dragoman.translation.torch_search.torch_backend import TorchBackend

MAX_POSITIONS = 128
UNWANTED = [PAD_ID, BOS_ID, UNK_ID, 61, 62, 63]
"""The vocabulary has 61 subwords and is padded to 64."""


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> ExportSource:
    """A model whose outputs have many lengths, and are made of subwords that a trained model would choose."""
    source = build_source(tmp_path_factory.mktemp("run"), embeddings="untied", output_bias=True)
    source.model.output_bias.data[UNWANTED] = -30.0
    source.model.output_bias.data[EOS_ID] += 1.5
    return source


@pytest.fixture(scope="module")
def folder(source: ExportSource, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("export")
    write_ctranslate2(source, folder, MAX_POSITIONS)
    return folder


@pytest.fixture(scope="module")
def backend(source: ExportSource, folder: Path) -> CTranslate2Backend:
    return load(source, folder)


def load(source: ExportSource, folder: Path, num_workers: int = 2) -> CTranslate2Backend:
    return CTranslate2Backend(folder, source.source_tokenizer, source.target_tokenizer, MAX_POSITIONS, num_workers)


@pytest.fixture(scope="module")
def batches(source: ExportSource) -> list[list[SourceSegment]]:
    segments = [SourceSegment(ids, number=n) for n, ids in enumerate(source.source_tokenizer.encode_lines(LINES), 1)]
    return [segments[begin : begin + 5] for begin in range(0, len(segments), 5)]


def search(backend, batches, **settings) -> Found:
    found: dict[int, Found] = dict(backend.search_batches(batches, SearchSettings(**settings)))
    return [each for index in range(len(batches)) for each in found[index]]


def flat(batches: list[list[SourceSegment]]) -> Iterator[SourceSegment]:
    return (segment for batch in batches for segment in batch)


def native(source: ExportSource) -> TorchBackend:
    return TorchBackend(source.model, source.target_tokenizer.num_subwords)


def check_score(source: ExportSource, segment: SourceSegment, found: Hypothesis, settings: SearchSettings) -> None:
    """Compares with a pass over the finished output, EOS included unless the length limit ended it."""
    each = native_log_probabilities(source.model, segment.ids, found.tokens)
    sums = {len(found.tokens) + 1: sum(each), len(found.tokens): sum(each[:-1])}
    assert any(
        found.log_probability == pytest.approx(total, abs=1e-3)
        and found.score == pytest.approx(total / settings.penalty(length), abs=1e-3)
        for length, total in sums.items()
    )


def test_outputs_have_different_lengths_and_texts(source: ExportSource, batches):
    found = search(native(source), batches, beam_size=1)
    assert len({len(each[0].tokens) for each in found}) > 3
    assert len({tuple(each[0].tokens) for each in found}) > 0.5 * len(found)


def test_greedy_search_is_the_same(source: ExportSource, backend: CTranslate2Backend, batches):
    mine, its = (search(each, batches, beam_size=1) for each in (native(source), backend))
    assert [each[0].tokens for each in mine] == [each[0].tokens for each in its]
    assert [each[0].score for each in mine] == pytest.approx([each[0].score for each in its], abs=1e-3)


@pytest.mark.parametrize("length_penalty", [0.0, 0.6, 2.5])
def test_beam_search_finds_nearly_always_the_same(
    source: ExportSource, backend: CTranslate2Backend, batches, length_penalty: float
):
    options = {"beam_size": 4, "length_penalty": length_penalty}
    mine, its = (search(each, batches, **options) for each in (native(source), backend))
    num_same = sum(one[0].tokens == other[0].tokens for one, other in zip(mine, its, strict=True))
    assert num_same >= 0.9 * len(mine)
    # What is found instead is never a better translation by our own score: then our search would be wrong.
    assert all(other[0].score < one[0].score + 1e-3 for one, other in zip(mine, its, strict=True))


def test_all_of_the_n_best_have_exact_scores(source: ExportSource, backend: CTranslate2Backend, batches):
    settings = SearchSettings(beam_size=5, num_best=3)
    found = search(backend, batches, beam_size=5, num_best=3)
    for segment, hypotheses in zip(flat(batches), found, strict=True):
        assert 1 <= len(hypotheses) <= 3
        assert [each.score for each in hypotheses] == sorted((each.score for each in hypotheses), reverse=True)
        assert len({tuple(each.tokens) for each in hypotheses}) == len(hypotheses)
        for each in hypotheses:
            check_score(source, segment, each, settings)


def test_each_source_has_its_own_length_limit(source: ExportSource, backend: CTranslate2Backend, batches):
    """Sources of one batch have different lengths, but CTranslate2 knows one limit for all."""
    mixed = [list(flat(batches))]
    options = {"beam_size": 1, "max_length_factor": 0.5, "max_length_extra": 1}
    mine, its = (search(each, mixed, **options) for each in (native(source), backend))
    assert [each[0].tokens for each in mine] == [each[0].tokens for each in its]
    assert [each[0].score for each in mine] == pytest.approx([each[0].score for each in its], abs=1e-3)


def test_unwanted_ids_are_never_produced(tmp_path: Path, batches):
    """Weights that make PAD, BOS, UNK and the ids that pad the vocabulary the most probable ones."""
    batches = batches[:2]
    odd = build_source(tmp_path / "run", embeddings="untied", output_bias=True)
    odd.model.output_bias.data[UNWANTED] = 20.0
    write_ctranslate2(odd, tmp_path, MAX_POSITIONS)
    backend = load(odd, tmp_path)
    for options in ({"beam_size": 1}, {"beam_size": 3}, {"sampling": Sampling()}):
        for segment, [best, *_] in zip(flat(batches), search(backend, batches, **options), strict=True):
            assert set(best.tokens).isdisjoint(UNWANTED)
            check_score(odd, segment, best, SearchSettings())
    mine = search(native(odd), batches, beam_size=1)
    assert [each[0].tokens for each in mine] == [each[0].tokens for each in search(backend, batches, beam_size=1)]


def test_prefix_is_kept_and_counted(source: ExportSource, backend: CTranslate2Backend, batches):
    segments = [
        SourceSegment(each.ids, prefix=(10, 11, 12)[: index % 4], number=each.number)
        for index, each in enumerate(flat(batches))
    ]
    mine, its = (search(each, [segments], beam_size=1) for each in (native(source), backend))
    for segment, one, other in zip(segments, mine, its, strict=True):
        assert tuple(other[0].tokens[: len(segment.prefix)]) == segment.prefix
        assert one[0].tokens == other[0].tokens
        assert one[0].score == pytest.approx(other[0].score, abs=1e-3)


def test_prefix_longer_than_the_limit_is_kept(backend: CTranslate2Backend):
    segment = SourceSegment([5], prefix=tuple(range(10, 30)))
    [found] = search(backend, [[segment]], beam_size=2, max_length_factor=0, max_length_extra=3)
    assert tuple(found[0].tokens[:20]) == segment.prefix


def test_forbidden_sequences_do_not_occur(source: ExportSource, backend: CTranslate2Backend, batches):
    free = [token for each in search(backend, batches, beam_size=1) for token in each[0].tokens]
    forbidden = ((free[0],), tuple(free[-2:]))
    mine, its = (search(each, batches, beam_size=1, forbidden=forbidden) for each in (native(source), backend))
    for segment, one, [other] in zip(flat(batches), mine, its, strict=True):
        assert forbidden[0][0] not in other.tokens
        assert forbidden[1] not in zip(other.tokens, other.tokens[1:], strict=False)
        assert one[0].tokens == other.tokens
        check_score(source, segment, other, SearchSettings())


@pytest.mark.parametrize("options", [{"beam_size": 3}, {"sampling": Sampling(), "num_best": 3}])
def test_sequences_forbidden_where_a_word_begins_do_not_occur_there(
    source: ExportSource, backend: CTranslate2Backend, batches, options: dict
):
    firsts = {each.tokens[0] for best in search(backend, batches, **options) for each in best if each.tokens}
    rules = {"forbidden_starts": tuple((first,) for first in sorted(firsts)[:5]), "word_ends": (20, 21, 22)}
    found = search(backend, batches, **options, **rules)
    for segment, hypotheses in zip(flat(batches), found, strict=True):
        for each in hypotheses:
            assert not has_forbidden(each.tokens, SearchSettings(**rules))
            check_score(source, segment, each, SearchSettings())
    assert found == search(backend, batches, **options, **rules)


def test_required_words_are_written_and_scored_as_the_model_does(
    source: ExportSource, backend: CTranslate2Backend, batches
):
    wishes = [((10,),), ((10, 11), (12,)), ((13, 14), (14, 15)), ()]
    segments = [
        replace(each, required=wishes[index % 4], prefix=(20,) if index % 3 == 0 else ())
        for index, each in enumerate(flat(batches))
    ]
    for segment, hypotheses in zip(segments, search(backend, [segments], beam_size=3, num_best=2), strict=True):
        assert 1 <= len(hypotheses) <= 2
        for each in hypotheses:
            assert all(contains(each.tokens, part) for part in segment.required)
            assert tuple(each.tokens[: len(segment.prefix)]) == segment.prefix
            check_score(source, segment, each, SearchSettings())


def test_required_words_without_room_are_left_out_like_by_our_own_search(source, backend: CTranslate2Backend):
    segment = SourceSegment([5, 6], required=((10, 11), (12,), (13, 14, 15)))
    for most, num_written in ((8, 3), (5, 2), (3, 1), (1, 0)):
        limits = {"max_length_factor": 0, "max_length_extra": most}
        for each in (backend, native(source)):
            [[found, *_]] = search(each, [[segment]], beam_size=2, **limits)
            assert sum(contains(found.tokens, part) for part in segment.required[:num_written]) == num_written
            assert len(found.tokens) <= most


def test_required_words_cannot_be_drawn(backend: CTranslate2Backend):
    with pytest.raises(UsageError, match="beam search"):
        search(backend, [[SourceSegment([5, 6], required=((7,),))]], sampling=Sampling())


@pytest.mark.parametrize(("prefix", "forbidden"), [((3,), ()), ((10, 11), ((11,),))])
def test_impossible_prefix_is_refused_as_by_our_own_search(
    source: ExportSource, backend: CTranslate2Backend, prefix, forbidden
):
    segment = SourceSegment([5, 6], prefix=prefix, number=8)
    messages = []
    for each in (native(source), backend):
        with pytest.raises(UsageError, match="Line 8") as caught:
            search(each, [[segment]], forbidden=forbidden)
        messages.append(str(caught.value))
    assert messages[0] == messages[1]


def test_alignment_is_that_of_the_model(source: ExportSource, backend: CTranslate2Backend, batches):
    mine, its = (search(each, batches, beam_size=1, with_alignment=True) for each in (native(source), backend))
    pairs = [
        (one, other)
        for a, b in zip(mine, its, strict=True)
        for one, other in zip(a[0].aligned, b[0].aligned, strict=True)
    ]
    assert len(pairs) > 100
    assert sum(one == other for one, other in pairs) >= 0.99 * len(pairs)
    assert all(len(each[0].aligned) == len(each[0].tokens) for each in its)


def test_samples_are_repeatable_and_differ(source: ExportSource, folder: Path, batches):
    draws = [
        [
            [each.tokens for each in hypotheses]
            for hypotheses in search(load(source, folder), batches, num_best=3, sampling=Sampling(seed=seed))
        ]
        for seed in (1, 1, 2)
    ]
    assert draws[0] == draws[1]
    assert draws[0] != draws[2]
    assert all(len(each) == 3 for each in draws[0])
    assert any(each[0] != each[1] for each in draws[0])


def test_sampling_from_one_subword_is_greedy(source: ExportSource, backend: CTranslate2Backend, batches):
    greedy = search(backend, batches, beam_size=1)
    drawn = search(backend, batches, num_best=2, sampling=Sampling(top_k=1))
    assert [each[0].tokens for each in greedy] == [each[0].tokens for each in drawn]
    assert all(len(each) == 2 for each in drawn)


@pytest.mark.parametrize("sampling", [Sampling(top_k=5), Sampling(top_p=0.6), Sampling(temperature=0.5, top_k=10)])
def test_samples_have_exact_scores(source: ExportSource, backend: CTranslate2Backend, batches, sampling: Sampling):
    for segment, [drawn] in zip(flat(batches), search(backend, batches, sampling=sampling), strict=True):
        check_score(source, segment, drawn, SearchSettings())


def test_batches_come_in_order_whatever_the_number_of_workers(source: ExportSource, folder: Path, batches):
    found = [list(load(source, folder, number).search_batches(batches, SearchSettings())) for number in (1, 3)]
    assert [index for index, _ in found[0]] == list(range(len(batches)))
    assert [[each[0].tokens for each in batch] for _, batch in found[0]] == [
        [each[0].tokens for each in batch] for _, batch in found[1]
    ]


def test_nothing_to_search_for(backend: CTranslate2Backend):
    assert list(backend.search_batches([], SearchSettings())) == []
    assert list(backend.search_batches([], SearchSettings(sampling=Sampling()))) == []


def test_stopping_early_leaves_the_backend_usable(backend: CTranslate2Backend, batches):
    results = backend.search_batches(batches, SearchSettings())
    next(results)
    results.close()
    assert math.isfinite(search(backend, batches[:1])[0][0].score)


def test_a_folder_without_a_model_is_refused(source: ExportSource, tmp_path: Path):
    with pytest.raises(UserError, match="no model that CTranslate2 can load"):
        load(source, tmp_path)
