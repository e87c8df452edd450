"""Paired tests give the p-values of the command `sacrebleu`, and say in plain words what they mean."""

import json
import os
import random
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import psutil
import pytest
from sacrebleu.metrics.bleu import BLEU

from dragoman.evaluation import significance
from dragoman.evaluation.scores import Judge
from dragoman.evaluation.significance import METRICS, ComparedSystem, MetricResult, compare_systems
from dragoman.run.errors import UserError

WORDS = ["a", "small", "old", "green", "house", "by", "the", "river", "near", "two", "dogs", "and", "one", "cat"]


def sentences(seed: int, num: int = 40) -> list[str]:
    draw = random.Random(seed)
    return [" ".join(draw.choices(WORDS, k=draw.randint(4, 12))) for _ in range(num)]


def damaged(lines: list[str], share: float, seed: int) -> list[str]:
    draw = random.Random(seed)
    return [" ".join("dog" if draw.random() < share else word for word in line.split()) for line in lines]


REFERENCES = [sentences(1), sentences(2)]
SYSTEMS = [
    ComparedSystem("baseline", damaged(REFERENCES[0], 0.3, seed=3)),
    ComparedSystem("near", damaged(REFERENCES[0], 0.28, seed=4)),
    ComparedSystem("good", damaged(REFERENCES[0], 0.02, seed=5)),
    ComparedSystem("copy", damaged(REFERENCES[0], 0.3, seed=3)),
]


@pytest.fixture(scope="module")
def judge() -> Judge:
    return Judge(REFERENCES, "13a")


def sacrebleu_p_values(folder: Path, test: str, samples: int, seed: int) -> list[list[float]]:
    """Returns for each system but the baseline its p-values of BLEU, chrF2++ and TER, by the command line."""
    names = []
    for name, lines in [("r1", REFERENCES[0]), ("r2", REFERENCES[1]), *((s.name, s.translations) for s in SYSTEMS)]:
        (folder / name).write_text("".join(f"{line}\n" for line in lines))
        names.append(str(folder / name))
    # Its JSON of the bootstrap fails (numbers of numpy), so the table is read.
    command = [sys.executable, "-m", "sacrebleu", *names[:2], "-i", *names[2:], "-m", "bleu", "chrf", "ter"]
    command += ["--chrf-word-order", "2", f"--paired-{test}", f"--paired-{test}-n", str(samples), "-f", "latex"]
    environment = os.environ | {"SACREBLEU_SEED": str(seed), "NO_COLOR": "1"}
    printed = subprocess.run(command, check=True, capture_output=True, encoding="utf-8", env=environment).stdout
    found = [float(value) for value in re.findall(r"p = ([\d.]+)", printed)]
    return [found[begin : begin + 3] for begin in range(0, len(found), 3)]


@pytest.mark.parametrize(("test", "name"), [("bs", "bootstrap"), ("ar", "randomisation")])
def test_p_values_are_those_of_the_command_line(tmp_path, judge, test, name):
    expected = sacrebleu_p_values(tmp_path, test, samples=80, seed=7)
    comparison = compare_systems(SYSTEMS, judge, [name], 80, seed=7)
    ours = [[round(result[metric].p_values[name], 4) for metric in METRICS] for result in comparison.results[1:]]
    assert ours == expected
    assert len(ours) == 3
    assert f"|{test}:80|seed:7|" in comparison.signatures[name]["bleu"]


@pytest.fixture(scope="module")
def comparison(judge: Judge) -> significance.SystemComparison:
    return compare_systems(SYSTEMS, judge, num_samples=200)


def test_scores_are_those_of_the_judge(judge, comparison):
    for system, results in zip(SYSTEMS, comparison.results, strict=True):
        score = judge.score(system.translations)
        assert {metric: results[metric].score for metric in METRICS} == {m: getattr(score, m) for m in METRICS}


def test_a_clear_difference_is_one_and_a_small_one_may_be_chance(comparison):
    baseline, near, good, copy = comparison.results
    assert baseline["bleu"].difference is None
    for metric in METRICS:
        assert good[metric].is_significant
        assert not near[metric].is_significant
        assert near[metric].low < 0 < near[metric].high
        assert good[metric].low <= good[metric].difference <= good[metric].high
        assert copy[metric].difference == 0
        assert not copy[metric].is_significant  # although sacreBLEU's p-value is small
    verdicts = comparison.verdicts()
    assert re.fullmatch(
        r"good is better than baseline by [\d.]+ TER \(95 %: [\d.]+ to [\d.]+, p = [\d.]+\)\.", verdicts[5]
    )
    assert re.match(r"The difference of [\d.]+ BLEU between near and baseline may be chance \(95 %: -", verdicts[0])
    assert verdicts[6] == "copy and baseline have the same BLEU."


def test_the_range_of_the_difference_is_that_of_the_samples(judge):
    """Against sacreBLEU's own corpus scores of the sampled sentences."""
    draws = np.random.default_rng(12345).choice(40, size=(40, 40), replace=True)
    differences = []
    for draw in draws:
        *references, first, second = (
            [column[index] for index in draw] for column in (*REFERENCES, *(s.translations for s in SYSTEMS[:2]))
        )
        bleu = BLEU(references=references)
        differences.append(bleu.corpus_score(second, None).score - bleu.corpus_score(first, None).score)
    differences.sort()
    result = compare_systems(SYSTEMS[:2], judge, ["bootstrap"], 40).results[1]["bleu"]
    assert (result.low, result.high) == (pytest.approx(differences[1]), pytest.approx(differences[-2]))


def test_figures_are_json_without_nan(comparison):
    figures = json.loads(json.dumps(comparison.figures(), allow_nan=False))
    assert figures["baseline"] == "baseline"
    assert set(figures["systems"][1]["ter"]["p_values"]) == {"bootstrap", "randomisation"}
    assert figures["systems"][0]["bleu"]["mean"] > 0
    assert figures["samples"] == {"bootstrap": 200, "randomisation": 200}


def test_less_ter_is_better():
    result = MetricResult(20.0, None, None, -3.0, -4.0, -2.0, {"bootstrap": 0.01, "randomisation": 0.02})
    assert result.describe("ter", "B", "A") == "B is better than A by 3.00 TER (95 %: 2.00 to 4.00, p = 0.02)."
    assert result.describe("bleu", "B", "A") == "B is worse than A by 3.00 BLEU (95 %: 2.00 to 4.00, p = 0.02)."


def test_every_test_must_find_the_difference():
    result = MetricResult(20.0, None, None, 1.0, 0.1, 2.0, {"bootstrap": 0.01, "randomisation": 0.2})
    assert "may be chance (95 %: 0.10 to 2.00, p = 0.2)" in result.describe("bleu", "B", "A")


def test_the_environment_is_left_as_it_was(judge, monkeypatch):
    monkeypatch.setenv("SACREBLEU_SEED", "3")
    compare_systems(SYSTEMS[:2], judge, ["bootstrap"], 5, seed=9)
    assert os.environ["SACREBLEU_SEED"] == "3"


def test_more_samples_than_fit_are_refused(judge, monkeypatch):
    monkeypatch.setattr(psutil, "virtual_memory", lambda: type("Memory", (), {"available": 2**20}))
    with pytest.raises(UserError, match="use fewer --samples"):
        compare_systems(SYSTEMS, judge)
