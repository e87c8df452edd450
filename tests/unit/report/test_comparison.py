"""Comparison of runs: which is better, by how much, whether by chance, and what differs."""

import json

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from run_folders import (
    evaluation_record,
    own_records,
    train_record,
    write_own_run,
    write_records,
    write_translations,
)
from sacrebleu.metrics.bleu import BLEU

from dragoman.evaluation.scores import bleu_counts
from dragoman.evaluation.validation import Evaluation, save_translations
from dragoman.report.comparison import (
    NUM_COUNTS,
    DevTranslations,
    bleu_of,
    compare_bleu,
    compare_runs,
    read_translations,
)
from dragoman.report.evidence import StatedFacts, read_evidence
from dragoman.report.findings import Findings
from dragoman.run.folder import RunFolder


def compare(*runs: RunFolder, **known):
    return compare_runs([Findings(read_evidence(run, StatedFacts(**known))) for run in runs])


def counts(share: float, num_sentences: int = 200) -> list[list[int]]:
    """Returns counts of sentences with twelve words, about this share of them right."""
    random = np.random.default_rng(7)
    rows = []
    for right in random.binomial(12, share, num_sentences):
        matches = [max(0, int(right) - lost) for lost in range(4)]
        rows.append([12, 12, *matches, 12, 11, 10, 9])
    return rows


def shifted(records: list[dict], better: float) -> list[dict]:
    """The same run with dev losses lower, and BLEU higher, by so much."""
    return [
        record | {"loss": record["loss"] - better, "bleu": record["bleu"] + 10 * better}
        if record["kind"] == "evaluation"
        else record
        for record in records
    ]


@pytest.fixture
def worse(tmp_path) -> RunFolder:
    return write_own_run(tmp_path / "worse", own_records(5_000), training={"price_per_hour": 6.0})


@pytest.fixture
def better(tmp_path) -> RunFolder:
    records = shifted(own_records(5_000), 0.2)
    return write_own_run(tmp_path / "better", records, training={"price_per_hour": 6.0, "learning_rate": 1.5})


def test_the_run_with_the_lower_loss_is_named(worse, better):
    found = compare(worse, better)
    by_score, judgement = found.facts["judgements"]
    assert by_score.startswith("At step 5,000, which all have reached, better has the highest BLEU: 24.99, 2.00 above")
    assert "better has the lowest dev loss" in judgement
    assert "step 5,000" in judgement
    assert "beyond the noise" in judgement
    assert "0.2" in judgement
    assert found.summary == f"{by_score} {judgement}"
    assert found.title == "worse against better"
    assert found.warnings == []


def test_a_difference_within_the_noise_is_reported_as_such(tmp_path):
    random = np.random.default_rng(1)
    runs = []
    for name in ("a", "b"):
        records = [evaluation_record(step, loss=2.0 + random.normal(0, 0.02)) for step in range(500, 10_001, 500)]
        runs.append(write_own_run(tmp_path / name, records))
    assert "within the noise" in compare(*runs).summary


def test_significance_by_the_translations_of_both(worse, better):
    write_translations(worse, counts(0.5))
    write_translations(better, counts(0.8))
    first = compare(worse, better).facts["judgements"][0]
    assert first.startswith("better translates better than worse")
    assert "significant" in first
    assert "200 sentences" in first


def test_equal_translations_do_not_differ(worse, better):
    for run in (worse, better):
        write_translations(run, counts(0.6))
    assert "do not differ significantly" in compare(worse, better).facts["judgements"][0]


def test_different_dev_sets_are_not_compared(worse, better):
    write_translations(worse, counts(0.5, 20))
    write_translations(better, counts(0.8, 20), [f"another {number}" for number in range(20)])
    assert "different dev sets" in compare(worse, better).facts["judgements"][0]


def test_bleu_of_different_tokenizers_is_not_compared(worse, better):
    for run, tokenizer in ((worse, "13a"), (better, "ja-mecab-0.996-IPA")):
        write_translations(run, counts(0.5, 20), tokenizer=tokenizer)
    (judgement, *_) = compare(worse, better).facts["judgements"]
    assert "different tokenizers (ja-mecab-0.996-IPA and 13a)" in judgement
    assert "significant" not in judgement


def test_with_damaged_translations_losses_are_compared(worse, better):
    write_translations(worse, counts(0.5, 20))
    better.translations.write_text('{"step": 5}\n{"bleu_counts": "x"}\n')
    assert "lowest dev loss" in compare(worse, better).summary


def test_settings_that_differ_and_only_those(worse, better):
    found = compare(worse, better)
    assert found.facts["differences"] == {"training.learning_rate": {"worse": 2.0, "better": 1.5}}
    (table,) = [table for section in found.sections for table in section.tables if "setting" in table.columns]
    assert table.rows == [["training.learning_rate", "2.0", "1.5"]]


def test_a_setting_that_one_run_lacks_is_shown_as_missing(worse, tmp_path):
    other = write_own_run(tmp_path / "other", own_records(1_000), training={"price_per_hour": 6.0, "max_hours": 2.0})
    assert compare(worse, other).facts["differences"] == {"training.max_hours": {"worse": None, "other": 2.0}}


def test_provenance_is_no_setting(worse, tmp_path):
    other = write_own_run(
        tmp_path / "x", own_records(500), training={"price_per_hour": 6.0}, provenance={"git_commit": "else"}
    )
    assert compare(worse, other).facts["differences"] == {}


def test_curves_by_step_time_and_cost(worse, better):
    charts = {chart.key: chart for section in compare(worse, better).sections for chart in section.charts}
    assert set(charts) == {f"{figure}-by-{axis}" for figure in ("loss", "bleu") for axis in ("step", "time", "cost")}
    by_step, by_time, by_cost = (charts[f"loss-by-{axis}"].series[0] for axis in ("step", "time", "cost"))
    assert by_step.x[-1] == 5_000
    assert by_time.x[-1] == pytest.approx(5_000 * 2 / 3600, rel=0.1)
    assert by_cost.x[-1] == pytest.approx(6 * by_time.x[-1])
    assert [series.name for series in charts["loss-by-step"].series] == ["worse", "better"]


def test_logs_that_begin_midway_keep_their_shape_by_time(tmp_path):
    records = [record for record in own_records(5_000) if record["step"] > 2_000]
    late = write_own_run(tmp_path / "late", records)
    late.imported.write_text(json.dumps({"trainer": "Marian", "facts": {}}))
    charts = {chart.key: chart for section in compare(late, late).sections for chart in section.charts}
    hours = charts["loss-by-time"].series[0].x
    assert hours == sorted(set(hours))
    assert hours[-1] == pytest.approx(3_000 * 2 / 3600, rel=0.1)
    assert "the log of late begins after step 2,000" in charts["loss-by-time"].note


def test_runs_with_batches_of_other_sizes_are_drawn_by_tokens_too(worse, tmp_path):
    double = [
        record | {"target_tokens_per_second": 30_000.0} if record["kind"] == "train" else record
        for record in own_records(5_000)
    ]
    other = write_own_run(tmp_path / "other", double, training={"price_per_hour": 6.0})
    charts = {chart.key: chart for section in compare(worse, other).sections for chart in section.charts}
    few, many = charts["loss-by-tokens"].series
    assert many.x[-1] == pytest.approx(2 * few.x[-1])
    assert few.x[-1] == pytest.approx(5_000 * 2 * 15_000, rel=0.1)


def test_few_evaluations_are_compared_at_a_step_that_all_have_reached(tmp_path):
    short, long = (
        write_own_run(tmp_path / name, [evaluation_record(step, loss=loss) for step, loss in points])
        for name, points in (("short", [(500, 3.0), (1_000, 2.5)]), ("long", [(600, 4.0), (1_400, 3.0), (9_000, 1.0)]))
    )
    summary = compare(short, long).summary
    assert "At step 1,000, which all have reached, short has the lowest dev loss, 2.5000" in summary


def test_without_a_price_nothing_is_drawn_by_cost(tmp_path):
    runs = [write_own_run(tmp_path / name, own_records(1_000)) for name in "ab"]
    assert not [chart for section in compare(*runs).sections for chart in section.charts if "cost" in chart.key]


def test_three_runs_have_a_column_each_and_the_figures_of_a_report(worse, better, tmp_path):
    third = write_own_run(tmp_path / "third", shifted(own_records(5_000), 0.1))
    found = compare(worse, better, third)
    (table,) = [table for section in found.sections for table in section.tables if table.columns[0] == ""]
    assert list(table.columns) == ["", "worse", "better", "third"]
    assert "better has the lowest dev loss" in found.summary
    assert "below third" in found.summary
    figures = json.loads(json.dumps(found.to_json(), allow_nan=False))
    assert [run["name"] for run in figures["runs"]] == ["worse", "better", "third"]
    assert all(run["steps"]["last"] == 5_000 for run in figures["runs"])
    assert any("price" in str(warning) for warning in found.warnings)


def test_folders_with_the_same_name_get_numbers(tmp_path):
    runs = [write_own_run(tmp_path / parent / "run", own_records(500)) for parent in "abc"]
    names = [run["name"] for run in compare(*runs).facts["runs"]]
    assert len(set(names)) == 3
    assert names[0] == "run"


def test_numbered_names_do_not_collide_with_real_names(tmp_path):
    folders = ["run (2)", "a/run", "b/run"]
    runs = [write_own_run(tmp_path / folder, own_records(500)) for folder in folders]
    assert len({run["name"] for run in compare(*runs).facts["runs"]}) == 3


def test_teacher_forced_bleu_beside_real_bleu_is_warned_of(worse, imported_run):
    found = compare(worse, imported_run)
    assert any("teacher-forced" in str(warning) for warning in found.warnings)
    (table,) = [table for section in found.sections for table in section.tables if table.columns[0] == ""]
    row = next(row for row in table.rows if row[0] == "last BLEU")
    assert "teacher-forced" in row[2]
    assert "teacher-forced" not in row[1]


def test_losses_on_different_scales_are_warned_of(worse, tmp_path):
    other = write_own_run(
        tmp_path / "other", own_records(1_000), training={"label_smoothing": 0.0, "price_per_hour": 6.0}
    )
    other.corpus_facts.write_text('{"key": "another corpus"}')
    warnings = " ".join(map(str, compare(worse, other).warnings))
    assert "Label smoothing" in warnings
    assert "different corpora" in warnings


def imported_with(path, printed_config: dict, vocab_size: int) -> RunFolder:
    run = write_own_run(path, own_records(1_000))
    imported = {
        "trainer": "JoeyNMT",
        "facts": {"vocab_size": vocab_size, "dev_files": {"source": "dev.de"}},
        "printed_config": printed_config,
    }
    run.imported.write_text(json.dumps(imported))
    return run


def test_losses_of_different_vocabularies_are_not_compared(tmp_path):
    words = imported_with(tmp_path / "words", {"data": {"level": "word", "lang": "de"}}, 2_004)
    subwords = imported_with(tmp_path / "subwords", {"data": {"level": "bpe", "lang": "de"}}, 5_000)
    found = compare(words, subwords)
    assert any("different corpora or vocabularies" in str(warning) for warning in found.warnings)
    assert "lowest dev loss" not in found.summary
    assert found.facts["differences"] == {"data.level": {"words": "word", "subwords": "bpe"}}


def test_runs_that_were_never_evaluated_cannot_be_compared(tmp_path):
    runs = [write_own_run(tmp_path / name, [train_record(100)]) for name in "ab"]
    found = compare(*runs)
    assert "fewer than two runs were evaluated" in found.summary
    json.dumps(found.to_json(), allow_nan=False)


def test_empty_folders_can_be_compared(tmp_path):
    runs = [write_records(RunFolder(tmp_path / name), []) for name in "ab"]
    assert "fewer than two runs were evaluated" in compare(*runs).summary


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


def dev_translations(translations: list[str], sources: list[str] | None = None, step: int = 100) -> DevTranslations:
    wanted = references()[: len(translations)]
    counts = np.array(bleu_counts(translations, wanted, "13a"), dtype=np.float64)
    return DevTranslations(step, sources or [f"source {index}" for index in range(len(wanted))], wanted, counts)


@settings(max_examples=50)
@given(pairs)
def test_bleu_of_summed_counts_is_that_of_sacrebleu(lines):
    hypotheses, wanted = ([line[index] for line in lines] for index in range(2))
    counts = np.array(bleu_counts(hypotheses, wanted, "13a")).sum(axis=0)
    assert bleu_of(counts) == pytest.approx(BLEU().corpus_score(hypotheses, [wanted]).score, abs=1e-9)


def test_bleu_of_empty_counts_is_zero():
    assert bleu_of([0] * NUM_COUNTS) == 0


def test_a_run_compared_with_itself_is_not_better():
    difference = compare_bleu(dev_translations(translated(0.3)), dev_translations(translated(0.3)))
    assert difference is not None
    assert (difference.points, difference.low, difference.high) == (0, 0, 0)
    assert difference.p == 1
    assert not difference.is_significant


def test_equally_good_runs_are_seldom_called_different():
    found = [
        compare_bleu(dev_translations(translated(0.3, seed)), dev_translations(translated(0.3, seed + 50)))
        for seed in range(5)
    ]
    assert sum(each is not None and each.is_significant for each in found) <= 1


def test_a_clearly_better_run_is_significantly_better_in_either_order():
    worse, better = dev_translations(translated(0.4)), dev_translations(translated(0.2, seed=2))
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


def test_the_bootstrap_is_deterministic():
    first, second = dev_translations(translated(0.3)), dev_translations(translated(0.28, seed=3))
    assert compare_bleu(first, second) == compare_bleu(first, second)


def test_other_sentences_cannot_be_compared():
    first = dev_translations(translated(0.3))
    assert compare_bleu(first, dev_translations(translated(0.3), sources=["other"] * NUM_SENTENCES)) is None
    assert compare_bleu(first, dev_translations(translated(0.3)[:-1])) is None


def write_lines(run: RunFolder, *lines: object) -> None:
    run.translations.write_text("".join(json.dumps(line) + "\n" for line in lines))


def row(counts: object, source: object = "a", reference: object = "b") -> dict[str, object]:
    return {"source": source, "reference": reference, "translation": "c", "bleu_counts": counts}


HEAD = {"step": 7, "bleu": 20.0, "signature": "s"}
COUNTS = [5, 5, 4, 3, 2, 1, 5, 4, 3, 2]


def test_saved_translations_are_read_again(tmp_path):
    run = RunFolder(tmp_path)
    hypotheses, wanted = translated(0.3), references()
    evaluation = Evaluation(
        loss=1.0,
        negative_log_likelihood=1.0,
        bleu=20.0,
        signature="s",
        tokenizer="13a",
        chrf=40.0,
        teacher_forced_bleu=0.3,
        train_sample_loss=1.0,
        seconds=1.0,
        sources=[f"Quelle {index}\u2028" for index in range(len(wanted))],
        references=wanted,
        translations=hypotheses,
    )
    save_translations(run, 300, evaluation)
    found = read_translations(run)
    assert found is not None
    assert found.step == 300
    assert (found.sources, found.references) == (evaluation.sources, wanted)
    assert bleu_of(found.counts.sum(axis=0)) == pytest.approx(BLEU().corpus_score(hypotheses, [wanted]).score)


def test_the_undamaged_example_is_valid(tmp_path):
    write_lines(RunFolder(tmp_path), HEAD, row(COUNTS))
    assert read_translations(RunFolder(tmp_path)) is not None


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
    assert read_translations(run) is None


def test_missing_and_damaged_translation_files_are_none(tmp_path):
    run = RunFolder(tmp_path)
    assert read_translations(run) is None
    run.translations.write_bytes(json.dumps(HEAD).encode() + b'\n{"source": "a", "bleu')
    assert read_translations(run) is None
    run.translations.write_bytes(b"\xff\xfe\x00")
    assert read_translations(run) is None
    run.translations.write_text("[" * 100_000)
    assert read_translations(run) is None
    run.translations.unlink()
    run.translations.mkdir()
    assert read_translations(run) is None


numbers = st.integers(-2, 9) | st.floats() | st.integers() | st.none() | st.text(max_size=2)


@settings(max_examples=60)
@given(
    st.lists(st.lists(numbers, min_size=9, max_size=11), max_size=3),
    st.lists(st.integers(0, 9), min_size=10, max_size=10),
)
def test_any_translation_file_is_comparable_or_none(tmp_path_factory, damaged, plain):
    run = RunFolder(tmp_path_factory.mktemp("run"))
    write_lines(run, HEAD, row(plain), *map(row, damaged))
    found = read_translations(run)
    if found is not None:
        difference = compare_bleu(found, found)
        assert difference is not None
        assert difference.points == 0
