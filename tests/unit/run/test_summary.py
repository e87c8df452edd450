import json

import pytest
from checkpoint_folders import make_checkpoint

from dragoman.run.errors import UserError
from dragoman.run.folder import RunFolder
from dragoman.run.status import Observation
from dragoman.run.summary import read_records, run_figures, status_lines, summarise_run


def test_the_last_record_of_each_kind_counts(tmp_path):
    run = RunFolder(tmp_path)
    records = [{"kind": "train", "step": step, "loss": 1 / step} for step in (1, 2)]
    records += [{"kind": "checkpoint", "step": 2}]
    run.metrics.write_text("".join(json.dumps(record) + "\n" for record in records) + '{"kind": "trai')
    run.checkpoint(2).mkdir(parents=True)
    (run.checkpoints / "latest").symlink_to("step-00000002")
    assert [record.values() for record in read_records(run)] == records
    summary = summarise_run(run)
    assert summary["step"] == 2
    assert summary["train"] == records[1]
    assert summary["evaluation"] is None
    assert summary["checkpoints"] == {"latest": str(run.checkpoint(2).resolve())}


def test_a_run_without_records_is_told(tmp_path):
    with pytest.raises(UserError, match=r"metrics\.jsonl cannot be read"):
        summarise_run(RunFolder(tmp_path))


def test_a_small_checkpoint_has_a_size(tmp_path):
    run, observation = RunFolder(tmp_path), Observation("stopped")
    folder = make_checkpoint(run, 2)
    (last,) = [line for line in status_lines(run_figures(run, observation), observation) if "step 2" in line]
    assert last.endswith(f" kB, {folder}")
    assert " 0.0 " not in last
