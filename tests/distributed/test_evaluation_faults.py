"""An evaluation that fails on one rank costs a run its scores and nothing that it has learned."""

import os
from pathlib import Path

import pytest
from program import Training, latest_step, read_records

from dragoman.run.folder import RunFolder
from dragoman.run.status import read_status

pytestmark = [pytest.mark.usefixtures("one_thread"), pytest.mark.slow]
FAULT = """
import os
if os.environ.get("RANK") == "1":
    from sacrebleu.metrics.bleu import BLEU
    def fail(*_arguments, **_options):
        raise UnicodeError("MeCab says no")
    BLEU.corpus_score = fail
"""


def test_a_run_whose_scoring_fails_on_one_rank_is_trained_to_its_end(config: Path, tmp_path: Path):
    (tmp_path / "faulty").mkdir()
    (tmp_path / "faulty" / "sitecustomize.py").write_text(FAULT)
    environment = {"PYTHONPATH": f"{tmp_path / 'faulty'}{os.pathsep}{os.environ.get('PYTHONPATH', '')}"}
    with Training(tmp_path / "run", config, "--workers", 2, environment=environment) as training:
        done = training.end()
    run = tmp_path / "run"
    assert "could not be evaluated (rank 1: UnicodeError: MeCab says no)" in done.stdout
    assert "evaluate --checkpoint " in done.stdout
    assert str(run) in done.stdout
    assert read_status(RunFolder(run)).state == "finished"
    assert latest_step(run) == 50
    assert read_records(run, "evaluation") == []
    assert read_records(run, "restart") == []
    assert "MeCab says no" in (run / "failure.rank1.txt").read_text()
