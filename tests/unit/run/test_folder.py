"""A run by its folder: names, checkpoints that count, and words for what is no run."""

import stat

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dragoman.run.errors import UserError
from dragoman.run.folder import RunFolder, make_run_folder, open_run


def make_run(folder):
    (folder / "config.toml").write_text("")
    return RunFolder(folder)


def test_everything_a_run_leaves_is_inside_its_folder(tmp_path):
    run = RunFolder(tmp_path)
    assert run.config == tmp_path / "config.toml"
    assert run.log == tmp_path / "log.txt"
    assert run.metrics == tmp_path / "metrics.jsonl"
    assert run.tensorboard == tmp_path / "tensorboard"
    assert run.checkpoint(500) == tmp_path / "checkpoints" / "step-00000500"
    for path in (run.tokenizers, run.prepared, run.chosen_config, run.placement, *run.preparation()):
        assert path.parent == tmp_path


def test_checkpoint_steps_rise_as_numbers(tmp_path):
    run = RunFolder(tmp_path)
    for step in (1_000, 20, 123_456_789, 0):
        run.checkpoint(step).mkdir(parents=True)
    assert run.checkpoint_steps() == [0, 20, 1_000, 123_456_789]


def test_only_finished_checkpoints_count(tmp_path):
    run = RunFolder(tmp_path)
    run.checkpoint(7).mkdir(parents=True)
    for name in (".step-00000008.partial", ".step-00000007.old", "step-9", "step-00000010.bak", "notes"):
        (run.checkpoints / name).mkdir()
    for name in ("latest", "best", "step-00000011"):
        (run.checkpoints / name).symlink_to("step-00000007")
    assert run.checkpoint_steps() == [7]


def test_a_run_without_checkpoints_has_no_steps(tmp_path):
    assert RunFolder(tmp_path).checkpoint_steps() == []
    assert RunFolder(tmp_path / "nowhere").checkpoint_steps() == []


@given(st.integers(0, 10**12), st.integers(0, 10**12))
def test_step_names_are_one_to_one(tmp_path_factory, first, second):
    run = RunFolder(tmp_path_factory.getbasetemp())
    assert (run.checkpoint(first) == run.checkpoint(second)) == (first == second)


def test_an_existing_run_opens(tmp_path):
    make_run(tmp_path)
    assert open_run(tmp_path) == RunFolder(tmp_path)
    assert open_run(tmp_path).exists


def test_what_is_no_run_is_said(tmp_path):
    with pytest.raises(UserError, match=r"There is no run folder .*nowhere"):
        open_run(tmp_path / "nowhere")
    with pytest.raises(UserError, match=r"is not a run folder: it has no config.toml"):
        open_run(tmp_path)
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match="There is no run folder"):
        open_run(tmp_path / "file")


def mode_of(path):
    return stat.S_IMODE(path.stat().st_mode)


def test_a_new_run_folder_is_for_its_owner_only(tmp_path):
    run = RunFolder(tmp_path / "runs" / "my")
    make_run_folder(run)
    assert mode_of(run.path) == 0o700
    assert mode_of(run.path.parent) & 0o700 == 0o700
    assert mode_of(run.path.parent) == mode_of(make(tmp_path / "other"))  # as any other folder


def make(folder):
    folder.mkdir()
    return folder


def test_a_folder_that_exists_keeps_its_mode(tmp_path):
    folder = make(tmp_path / "shared")
    folder.chmod(0o750)
    make_run_folder(RunFolder(folder))
    assert mode_of(folder) == 0o750


def test_what_is_in_the_way_of_a_run_folder_is_said(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(UserError, match=r"file exists and is not a run folder. Choose another one with --run-dir"):
        make_run_folder(RunFolder(tmp_path / "file"))
    with pytest.raises(UserError, match=r"file/run cannot be written: a part of the path is a file"):
        make_run_folder(RunFolder(tmp_path / "file" / "run"))
