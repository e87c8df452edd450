"""Which checkpoints are whole, and which one a name means: every kind of damage is found and named."""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from checkpoint_folders import add_average, cut_off, flip_bit, lengthen, make_checkpoint

from dragoman.run import checkpoints as checkpoints_module
from dragoman.run.checkpoints import (
    AVERAGED_FILE,
    MANIFEST_FILE,
    MODEL_FILE,
    OPTIMIZER_FILE,
    RESUME_FILES,
    STATE_FILE,
    TRANSLATOR_FILES,
    find_checkpoint,
    newest_complete_checkpoint,
    verify_checkpoint,
    weights_file,
)
from dragoman.run.config import Metric
from dragoman.run.errors import UsageError, UserError
from dragoman.run.folder import RunFolder


@pytest.fixture
def run(tmp_path):
    return RunFolder(tmp_path / "run")


def test_a_whole_checkpoint_passes(run):
    checkpoint = make_checkpoint(run, 5)
    verify_checkpoint(checkpoint)
    verify_checkpoint(checkpoint, TRANSLATOR_FILES)


@pytest.mark.parametrize("name", RESUME_FILES)
@pytest.mark.parametrize("damage", [flip_bit, cut_off, lengthen])
def test_a_damaged_file_is_named(run, name, damage):
    checkpoint = make_checkpoint(run, 5)
    damage(checkpoint / name)
    with pytest.raises(UserError, match=f"step-00000005/{name} is damaged"):
        verify_checkpoint(checkpoint)


@pytest.mark.parametrize("name", RESUME_FILES)
def test_a_missing_file_is_named(run, name):
    checkpoint = make_checkpoint(run, 5)
    (checkpoint / name).unlink()
    with pytest.raises(UserError, match=f"step-00000005 is incomplete: {name} is missing"):
        verify_checkpoint(checkpoint)


@pytest.mark.parametrize(
    "content", [None, "", "{", "[]", "null", '{"files": {}}', '{"files": {"model.safetensors": 3}}']
)
def test_an_unreadable_manifest_is_named(run, content):
    checkpoint = make_checkpoint(run, 5)
    if content is None:
        (checkpoint / MANIFEST_FILE).unlink()
    else:
        (checkpoint / MANIFEST_FILE).write_text(content)
    with pytest.raises(UserError, match=r"incomplete: its manifest.json is missing or unreadable"):
        verify_checkpoint(checkpoint)


def test_a_translator_does_not_need_the_optimizer(run):
    checkpoint = make_checkpoint(run, 5)
    (checkpoint / OPTIMIZER_FILE).unlink()
    verify_checkpoint(checkpoint, TRANSLATOR_FILES)
    with pytest.raises(UserError):
        verify_checkpoint(checkpoint)


def test_the_newest_whole_checkpoint_is_found_without_warnings(run):
    warnings: list[str] = []
    for step in (5, 10, 100):
        make_checkpoint(run, step)
    assert newest_complete_checkpoint(run, warnings.append) == run.checkpoint(100)
    assert warnings == []


def test_damaged_checkpoints_are_passed_over_with_a_warning_each(run):
    warnings: list[str] = []
    for step in (5, 10, 100):
        make_checkpoint(run, step)
    flip_bit(run.checkpoint(100) / MODEL_FILE)
    (run.checkpoint(10) / STATE_FILE).unlink()
    assert newest_complete_checkpoint(run, warnings.append) == run.checkpoint(5)
    assert len(warnings) == 2
    assert "step-00000100/model.safetensors is damaged" in warnings[0]
    assert "step-00000010 is incomplete: state.json" in warnings[1]


def test_where_none_is_whole_none_is_returned(run):
    assert newest_complete_checkpoint(run, pytest.fail) is None
    make_checkpoint(run, 5)
    cut_off(run.checkpoint(5) / OPTIMIZER_FILE)
    warnings: list[str] = []
    assert newest_complete_checkpoint(run, warnings.append) is None
    assert len(warnings) == 1


def test_half_written_folders_are_ignored(run):
    make_checkpoint(run, 5)
    make_checkpoint(run, 9).rename(run.checkpoints / ".step-00000009.partial")
    assert newest_complete_checkpoint(run, pytest.fail) == run.checkpoint(5)


@pytest.mark.parametrize("version", [3, 17])
def test_a_checkpoint_of_a_later_program_is_refused_and_never_replaced_by_an_older_one(run, version):
    """Continuing from the older one would overwrite what the later program has trained."""
    make_checkpoint(run, 5, loss=1.0, bleu=1.0)
    make_checkpoint(run, 9, format_version=version, loss=1.0, bleu=9.0)
    (run.checkpoints / "best").symlink_to("step-00000009")
    expected = rf"manifest.json was written by a later dragoman \(format {version}, this program reads 2\): update"
    with pytest.raises(UserError, match=expected):
        newest_complete_checkpoint(run, pytest.fail)
    for which in ("best", "latest", "9"):
        with pytest.raises(UserError, match=expected):
            find(run, which)
    assert find(run, "5") == (run.checkpoint(5), [])


def test_a_file_that_cannot_be_read_is_named(run, monkeypatch):
    checkpoint = make_checkpoint(run, 5)

    def fail(path: Path) -> str:
        raise PermissionError(13, "Permission denied", str(path))

    monkeypatch.setattr(checkpoints_module, "sha256", fail)
    with pytest.raises(UserError, match=r"model.safetensors cannot be read: you do not have the permission\."):
        verify_checkpoint(checkpoint)


def test_a_file_removed_between_two_looks_is_missing(run, monkeypatch):
    """The thread that saves removes old checkpoints while the training loop looks at them."""
    checkpoint = make_checkpoint(run, 5)
    (checkpoint / MODEL_FILE).unlink()
    monkeypatch.setattr(Path, "is_file", lambda _: True)  # as a look before the removal would say
    with pytest.raises(UserError, match=f"incomplete: {MODEL_FILE} is missing"):
        verify_checkpoint(checkpoint)


# Names


def find(run: RunFolder, which: str = "best", best_by: Metric = "bleu") -> tuple[Path, list[str]]:
    """Returns the checkpoint and the warnings."""
    warnings: list[str] = []
    return find_checkpoint(run, which, best_by, warnings.append), warnings


@pytest.fixture
def evaluated(run):
    """A run with three evaluated checkpoints, of which the middle one is the best, and one that was not evaluated."""
    for step, bleu in ((5, 10.0), (10, 30.0), (15, 20.0)):
        make_checkpoint(run, step, loss=1.0, bleu=bleu)
    make_checkpoint(run, 20)
    (run.checkpoints / "best").symlink_to("step-00000010")
    (run.checkpoints / "latest").symlink_to("step-00000020")
    return run


def test_names_lead_to_their_checkpoints(evaluated):
    assert find(evaluated) == (evaluated.checkpoint(10), [])
    assert find(evaluated, "latest") == (evaluated.checkpoint(20), [])
    for number in ("5", "05"):
        assert find(evaluated, number) == (evaluated.checkpoint(5), [])


@pytest.mark.parametrize("damage", [flip_bit, cut_off, Path.unlink])
def test_a_damaged_best_is_replaced_by_the_next_best_with_a_warning(evaluated, damage):
    damage(evaluated.checkpoint(10) / MODEL_FILE)
    found, (warning,) = find(evaluated)
    assert found == evaluated.checkpoint(15)
    assert "step-00000010" in warning
    assert MODEL_FILE in warning
    assert warning.endswith("Using the checkpoint of step 15 instead, the best intact one by BLEU.")
    flip_bit(evaluated.checkpoint(15) / MODEL_FILE)
    assert find(evaluated)[0] == evaluated.checkpoint(5)
    flip_bit(evaluated.checkpoint(5) / MODEL_FILE)
    found, (warning,) = find(evaluated)
    assert found == evaluated.checkpoint(20)
    assert warning.endswith("Using the checkpoint of step 20 instead, the newest intact one.")
    flip_bit(evaluated.checkpoint(20) / MODEL_FILE)
    with pytest.raises(UserError, match=r"No checkpoint of .* is intact: .*step-00000010"):
        find(evaluated)


def test_a_damaged_latest_is_replaced_by_the_next_newest_with_a_warning(evaluated):
    flip_bit(evaluated.checkpoint(20) / STATE_FILE)
    found, (warning,) = find(evaluated, "latest")
    assert found == evaluated.checkpoint(15)
    assert "step-00000020/state.json is damaged" in warning
    assert "step 15 instead, the newest intact one" in warning


def test_a_damaged_step_that_was_asked_for_is_never_replaced(evaluated):
    flip_bit(evaluated.checkpoint(5) / MODEL_FILE)
    with pytest.raises(UserError, match=r"step-00000005/model.safetensors is damaged"):
        find(evaluated, "5")


@pytest.mark.parametrize(
    ("target", "words"),
    [
        ("step-00000001", "points at step-00000001, which is no checkpoint of this run"),
        ("/etc", "points at /etc, which is no checkpoint of this run"),
        ("../../step-00000010", "which is no checkpoint of this run"),
        ("best", "points at best, which is no checkpoint of this run"),
        (None, "There is no link"),
    ],
)
@pytest.mark.parametrize(("name", "step"), [("best", 10), ("latest", 20)])
def test_a_link_that_leads_nowhere_is_replaced_with_a_warning(evaluated, target, words, name, step):
    link = evaluated.checkpoints / name
    link.unlink()
    if target is not None:
        link.symlink_to(target)
    found, (warning,) = find(evaluated, name)
    assert found == evaluated.checkpoint(step)
    assert words in warning
    assert f"Using the checkpoint of step {step} instead" in warning


def test_the_next_best_is_chosen_by_the_metric_of_the_run(run):
    make_checkpoint(run, 5, loss=1.0, bleu=1.0)
    make_checkpoint(run, 9, loss=2.0, bleu=9.0)
    assert find(run, best_by="loss")[0] == run.checkpoint(5)
    found, (warning,) = find(run, best_by="chrf")  # which evaluations of earlier programs lack
    assert found == run.checkpoint(5)
    assert "by chrF" in warning


def test_without_an_evaluation_the_newest_is_used_and_this_is_said(run):
    for step in (5, 10):
        make_checkpoint(run, step)
    (run.checkpoints / "latest").symlink_to("step-00000010")
    found, (warning,) = find(run)
    assert found == run.checkpoint(10)
    assert warning == f"No checkpoint of {run.path} was evaluated yet: using the newest intact one, of step 10."


def test_a_link_that_a_tool_has_copied_stands_for_its_step(evaluated):
    for name in ("best", "latest"):
        link = evaluated.checkpoints / name
        target = link.resolve()
        link.unlink()
        shutil.copytree(target, link)
    assert find(evaluated) == (evaluated.checkpoint(10), [])
    assert find(evaluated, "latest") == (evaluated.checkpoint(20), [])
    (evaluated.checkpoints / "best" / MANIFEST_FILE).unlink()
    found, (warning,) = find(evaluated)
    assert found == evaluated.checkpoint(10)
    assert "is a folder without a readable manifest.json" in warning


def test_a_link_that_a_tool_has_turned_into_a_text_file_is_replaced_with_a_warning(evaluated):
    (evaluated.checkpoints / "best").unlink()
    (evaluated.checkpoints / "best").write_text("step-00000005")
    found, (warning,) = find(evaluated)
    assert found == evaluated.checkpoint(10)
    assert "There is no link" in warning


def test_a_moved_run_folder_keeps_its_links(evaluated):
    moved = RunFolder(evaluated.path.rename(evaluated.path.with_name("moved")))
    assert find(moved) == (moved.checkpoint(10), [])


def test_a_run_folder_behind_a_link_has_the_same_checkpoints(evaluated, tmp_path):
    (tmp_path / "link").symlink_to(evaluated.path)
    linked = RunFolder(tmp_path / "link")
    assert find(linked) == (linked.checkpoint(10), [])


def test_a_translator_needs_the_weights_that_the_state_names(evaluated):
    checkpoint = evaluated.checkpoint(10)
    assert weights_file(checkpoint) == MODEL_FILE
    add_average(checkpoint)
    assert weights_file(checkpoint) == AVERAGED_FILE
    assert find_checkpoint(evaluated, "10", "bleu", print) == checkpoint
    flip_bit(checkpoint / AVERAGED_FILE)
    with pytest.raises(UserError, match=AVERAGED_FILE):
        find_checkpoint(evaluated, "10", "bleu", print)
    with pytest.raises(UserError, match=AVERAGED_FILE):
        verify_checkpoint(checkpoint)  # a moving average is part of what training continues from


def test_a_checkpoint_that_is_not_there_is_answered_with_those_that_are(run):
    with pytest.raises(UserError, match="has no checkpoint yet"):
        find(run)
    for step in (5, 10):
        make_checkpoint(run, step)
    with pytest.raises(UserError, match="has no checkpoint of step 7; there are: 5, 10"):
        find(run, "7")
    with pytest.raises(UserError, match="has no checkpoint of step 9999"):
        find(run, "9" * 5_000)
    for name in ("newest", "-5", "5.0", "٥", ""):
        with pytest.raises(
            UsageError, match=f"takes best, latest, a step number, average:best:N or average:last:N, not {name!r}"
        ):
            find(run, name)


def test_checkpoints_are_judged_without_torch():
    program = "import sys, dragoman.run.checkpoints, dragoman.run.config; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0
