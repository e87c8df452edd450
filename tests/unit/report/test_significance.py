"""Is a difference of BLEU more than chance? BLEU from counts is held against sacreBLEU itself."""

import json

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sacrebleu.metrics.bleu import BLEU

from dragoman.evaluation.scores import bleu_counts
from dragoman.evaluation.validation import Evaluation, save_translations
from dragoman.report.comparison import NUM_COUNTS, Judged, bleu_of, compare_bleu, read_judged
from dragoman.run.folder import RunFolder

WORDS = [
    "the",
    "a",
    "dog",
    "cat",
    "house",
    "runs",
    "sleeps",
    "big",
    "small",
    "red",
    "in",
    "on",
    "under",
    ",",
    ".",
    "and",
    "because",
    "Müller",
    "3,5",
    "%",
    "don't",
]
NUM_SENTENCES = 120

sentences = st.lists(st.sampled_from(WORDS), max_size=12).map(" ".join)
pairs = st.lists(
    st.tuples(sentences, sentences | st.just("the big dog runs in the red house .")), min_size=1, max_size=8
)


def references(num_sentences: int = NUM_SENTENCES) -> list[str]:
    random = np.random.default_rng(0)
    return [" ".join(random.choice(WORDS, size=random.integers(6, 20))) for _ in range(num_sentences)]


def translated(share_wrong: float, seed: int = 1) -> list[str]:
    """The references with some words replaced."""
    random = np.random.default_rng(seed)
    return [
        " ".join(random.choice(WORDS) if random.random() < share_wrong else word for word in line.split())
        for line in references()
    ]


def judged(translations: list[str], sources: list[str] | None = None, step: int = 100) -> Judged:
    wanted = references()[: len(translations)]
    counts = np.array(bleu_counts(translations, wanted), dtype=np.float64)
    return Judged(step, sources or [f"source {index}" for index in range(len(wanted))], wanted, counts)


@settings(max_examples=100)
@given(pairs)
def test_bleu_of_summed_counts_is_that_of_sacrebleu(lines):
    hypotheses, wanted = ([line[index] for line in lines] for index in range(2))
    counts = np.array(bleu_counts(hypotheses, wanted)).sum(axis=0)
    assert bleu_of(counts) == pytest.approx(BLEU().corpus_score(hypotheses, [wanted]).score, abs=1e-9)


def test_nothing_translated_is_a_bleu_of_nothing():
    assert bleu_of([0] * NUM_COUNTS) == 0


def test_a_run_compared_with_itself_is_not_better():
    difference = compare_bleu(judged(translated(0.3)), judged(translated(0.3)))
    assert difference is not None
    assert (difference.points, difference.low, difference.high) == (0, 0, 0)
    assert difference.p == 1
    assert not difference.is_significant


def test_equally_good_runs_are_seldom_called_different():
    found = [compare_bleu(judged(translated(0.3, seed)), judged(translated(0.3, seed + 50))) for seed in range(5)]
    assert sum(each is not None and each.is_significant for each in found) <= 1


def test_a_clearly_better_run_is_significantly_so_whichever_is_named_first():
    worse, better = judged(translated(0.4)), judged(translated(0.2, seed=2))
    forth, back = compare_bleu(worse, better), compare_bleu(better, worse)
    assert forth is not None
    assert back is not None
    assert forth.is_significant
    assert back.is_significant
    assert 0 < forth.low < forth.points < forth.high
    assert forth.points == pytest.approx(-back.points)
    expected = BLEU().corpus_score(translated(0.2, seed=2), [references()]).score
    expected -= BLEU().corpus_score(translated(0.4), [references()]).score
    assert forth.points == pytest.approx(expected)


def test_the_verdict_is_always_the_same():
    first, second = judged(translated(0.3)), judged(translated(0.28, seed=3))
    assert compare_bleu(first, second) == compare_bleu(first, second)


def test_other_sentences_cannot_be_compared():
    first = judged(translated(0.3))
    assert compare_bleu(first, judged(translated(0.3), sources=["other"] * NUM_SENTENCES)) is None
    assert compare_bleu(first, judged(translated(0.3)[:-1])) is None


def write_lines(run: RunFolder, *lines: object) -> None:
    run.translations.write_text("".join(json.dumps(line) + "\n" for line in lines))


def row(counts: object, source: object = "a", reference: object = "b") -> dict[str, object]:
    return {"source": source, "reference": reference, "translation": "c", "bleu_counts": counts}


HEAD = {"step": 7, "bleu": 20.0, "signature": "s"}
COUNTS = [5, 5, 4, 3, 2, 1, 5, 4, 3, 2]


def test_what_an_evaluation_kept_is_read_again(tmp_path):
    run = RunFolder(tmp_path)
    hypotheses, wanted = translated(0.3), references()
    evaluation = Evaluation(
        loss=1.0,
        negative_log_likelihood=1.0,
        bleu=20.0,
        signature="s",
        chrf=40.0,
        teacher_forced_bleu=0.3,
        train_sample_loss=1.0,
        seconds=1.0,
        sources=[f"Quelle {index}\u2028" for index in range(len(wanted))],
        references=wanted,
        translations=hypotheses,
    )
    save_translations(run, 300, evaluation)
    found = read_judged(run)
    assert found is not None
    assert found.step == 300
    assert (found.sources, found.references) == (evaluation.sources, wanted)
    assert bleu_of(found.counts.sum(axis=0)) == pytest.approx(BLEU().corpus_score(hypotheses, [wanted]).score)


def test_the_example_of_the_damaged_ones_is_whole(tmp_path):
    write_lines(RunFolder(tmp_path), HEAD, row(COUNTS))
    assert read_judged(RunFolder(tmp_path)) is not None


@pytest.mark.parametrize(
    "lines",
    [
        [],
        [HEAD],
        [[], row(COUNTS)],
        [None, row(COUNTS)],
        [{"step": "many"}, row(COUNTS)],
        [{"step": float("inf")}, row(COUNTS)],
        [{"bleu": 1.0}, row(COUNTS)],
        [HEAD, row(COUNTS[:-1])],
        [HEAD, row(COUNTS * 2)],
        [HEAD, row(COUNTS), row(COUNTS[:3])],
        [HEAD, row("five")],
        [HEAD, row(None)],
        [HEAD, row([-1, *COUNTS[1:]])],
        [HEAD, row([float("nan"), *COUNTS[1:]])],
        [HEAD, row([float("inf"), *COUNTS[1:]])],
        [HEAD, row([10**400, *COUNTS[1:]])],
        [HEAD, row([5, 5, 9, 3, 2, 1, 5, 4, 3, 2])],
        [HEAD, row([5, 5, 0, 0, 0, 0, 0, 0, 0, 2])],
        [HEAD, {"bleu_counts": COUNTS}],
        [HEAD, [COUNTS]],
        [HEAD, 5],
    ],
)
def test_damaged_translations_are_none(tmp_path, lines):
    run = RunFolder(tmp_path)
    write_lines(run, *lines)
    assert read_judged(run) is None


def test_missing_cut_and_foreign_files_are_none(tmp_path):
    run = RunFolder(tmp_path)
    assert read_judged(run) is None
    run.translations.write_bytes(json.dumps(HEAD).encode() + b'\n{"source": "a", "bleu')
    assert read_judged(run) is None
    run.translations.write_bytes(b"\xff\xfe\x00")
    assert read_judged(run) is None
    run.translations.write_text("[" * 100_000)
    assert read_judged(run) is None
    run.translations.unlink()
    run.translations.mkdir()
    assert read_judged(run) is None


numbers = st.integers(-2, 9) | st.floats() | st.integers() | st.none() | st.text(max_size=2)


@settings(max_examples=60)
@given(
    st.lists(st.lists(numbers, min_size=9, max_size=11), max_size=3),
    st.lists(st.integers(0, 9), min_size=10, max_size=10),
)
def test_whatever_a_strangers_file_holds_it_can_be_compared_or_is_none(tmp_path_factory, damaged, plain):
    run = RunFolder(tmp_path_factory.mktemp("run"))
    write_lines(run, HEAD, row(plain), *map(row, damaged))
    found = read_judged(run)
    if found is not None:
        difference = compare_bleu(found, found)
        assert difference is not None
        assert difference.points == 0
