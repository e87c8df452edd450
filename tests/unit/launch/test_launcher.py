"""Launching a run: one launcher at a time, a status that says how the run ended, settings that reach the hosts.

A start that fails leaves nothing behind, and hosts that a person chose are remembered.
"""

import os
import signal
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from dragoman.corpus.prepared_corpus import PreparedCorpus
from dragoman.launch import launcher
from dragoman.launch.hosts import Host, LaunchPlan, Placement, load_placement, save_placement
from dragoman.launch.launcher import kept_bytes, launch_run, note_end
from dragoman.model.shape import count_parameters, resolve_shape
from dragoman.run.config import load_settings
from dragoman.run.errors import UserError
from dragoman.run.folder import RunFolder, is_locked, lock_run
from dragoman.run.status import RunStatus, StatusFile, observe_run, read_status
from dragoman.run.summary import describe_observation
from dragoman.training.run_setup import create_run

HERE = Placement.on_this_machine(2)
ELSEWHERE = Placement((Host("a", 1), Host("b", 1)))


def as_new() -> bool:
    """Stands in for making a new run ready, where a test has done that."""
    return False


def as_resumed() -> bool:
    """Stands in for reopening a run."""
    return True


@pytest.fixture
def run(tmp_path, config):
    run = RunFolder(tmp_path / "run")
    overrides = ["cluster.hang_timeout=77", "cluster.host_timeout=9", "cluster.max_restarts=3", "cluster.port=4711"]
    create_run(run, load_settings(config, overrides), num_workers=2)
    return run


@pytest.fixture
def plans(monkeypatch) -> Callable[..., list[LaunchPlan]]:
    """Stands in for the supervisor: collects the plans it is given, and ends as the test says."""
    found: list[LaunchPlan] = []

    def supervise_as(end: str | BaseException, is_before_workers: bool = False) -> list[LaunchPlan]:
        def supervise(plan: LaunchPlan, status: Any, say: Callable[[str], None], _early_program: object) -> str:
            assert is_locked(plan.run)
            found.append(plan)
            if not is_before_workers:
                status.update(state="running")
            say("Starting again.")
            if isinstance(end, BaseException):
                raise end
            return end

        monkeypatch.setattr(launcher, "supervise", supervise)
        return found

    return supervise_as


@pytest.mark.parametrize(
    ("reason", "state", "is_whole"),
    [
        ("steps", "finished", True),
        ("time", "stopped", True),
        ("cost", "stopped", True),
        ("signal", "stopped", False),
        ("request", "stopped", False),
    ],
)
def test_how_a_run_ended_is_in_its_status(run, plans, reason, state, is_whole):
    """A run that used up its budget is evaluated like a finished one; a run that was stopped is not."""
    plans(reason)
    assert launch_run(run, HERE, as_new) is is_whole
    status = read_status(run)
    assert (status.state, status.reason, status.num_steps, status.num_workers) == (state, reason, 50, 2)
    assert not is_locked(run)


def test_a_run_that_got_no_better_has_no_steps_left(run):
    status = StatusFile(run, replace(RunStatus.starting(1_000, 1), step=120))
    note_end(status, "patience")
    written = read_status(run)
    assert (written.state, written.reason, written.step, written.num_steps) == ("finished", "patience", 120, 120)
    assert "evaluation.patience" in describe_observation(observe_run(run))


def test_why_a_run_failed_is_in_its_status_and_its_log(run, plans):
    plans(UserError("The disk is full."))
    with pytest.raises(UserError, match="The disk is full"):
        launch_run(run, HERE, as_new)
    assert (read_status(run).state, read_status(run).message) == ("failed", "The disk is full.")
    assert run.log.read_text(encoding="utf-8").splitlines() == ["Starting again.", "The disk is full."]
    assert not is_locked(run)


def test_messages_of_the_launcher_go_to_standard_error(run, plans, capsys):
    """Standard output is for JSON."""
    plans("steps")
    launch_run(run, HERE, as_new)
    assert capsys.readouterr() == ("", "Starting again.\n")


def test_a_run_that_another_process_trains_is_left_alone(run, plans):
    found = plans("steps")
    with lock_run(run), pytest.raises(UserError, match="is being trained by process"):
        launch_run(run, HERE, as_new)
    assert found == []
    assert read_status(run) is None


def test_settings_reach_the_supervisor(run, plans, prepared):
    found = plans("steps")
    launch_run(run, HERE, as_resumed)
    (plan,) = found
    assert (plan.hang_timeout, plan.max_restarts, plan.max_workers, plan.placement) == (77.0, 3, 4, HERE)
    assert (plan.host_timeout, plan.ports, plan.is_resumed) == (9.0, range(4711, 4775), True)
    assert plan.prepared == prepared.resolve()
    assert plan.module == "dragoman.training.worker"


def test_other_hosts_get_absolute_paths(run, plans, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    found = plans("steps")
    hosts = (Host("elsewhere.example.org", 2),)
    placement = Placement(hosts, 1, Path("ssh_config"), is_data_sent=True)
    launch_run(RunFolder(Path("run")), placement, as_new)
    launch_run(RunFolder(Path("run")), HERE, as_new)
    elsewhere, here = found
    assert elsewhere.run.path == tmp_path / "run"
    assert elsewhere.placement == placement
    assert here.run.path == Path("run")  # as the person wrote it


def test_disk_is_needed_for_all_checkpoints_that_exist_at_one_time(config, prepared):
    """The kept ones, and one that is written before an old one is removed."""
    corpus = PreparedCorpus.open(prepared)
    settings = load_settings(config, ["checkpoints.keep_last=2", "checkpoints.keep_best=3"])
    shape = resolve_shape(settings.model, corpus.source_vocab_size, corpus.target_vocab_size, corpus.is_joint)
    assert kept_bytes(settings) == 6 * 12 * count_parameters(shape)


def test_checkpoints_of_replicas_need_more_disk_space(config):
    """Each has weights, moments and what 8 bits have lost; all agree on an anchor."""
    alone = kept_bytes(load_settings(config))
    apart = {
        strategy: kept_bytes(load_settings(config, [f"synchronisation.strategy={strategy}"]), num_machines=2)
        for strategy in ("every_step", "hierarchical", "bf16", "int8", "powersgd", "local", "auto")
    }
    assert [apart[name] / alone for name in ("every_step", "hierarchical", "bf16")] == [1.0] * 3
    assert [apart[name] / alone for name in ("int8", "powersgd")] == [pytest.approx((3 + 2) / 3)] * 2
    assert [apart[name] / alone for name in ("local", "auto")] == [pytest.approx((3 + 1 + 2 * 4) / 3)] * 2


def test_a_launcher_that_finds_the_run_in_use_writes_nothing_to_its_log(run):
    log = run.log.read_text(encoding="utf-8") if run.log.exists() else None
    with lock_run(run), pytest.raises(UserError, match="is being trained by process"):
        launch_run(run, Placement.on_this_machine(None), as_new)
    assert (run.log.read_text(encoding="utf-8") if run.log.exists() else None) == log


# One launcher at a time


def content_of(run: RunFolder) -> dict[str, bytes]:
    return {str(path): path.read_bytes() for path in sorted(run.path.rglob("*")) if path.is_file()}


def test_a_refused_launcher_changes_nothing(run, plans):
    """Not even the stop request that somebody made to the first one."""
    found = plans("steps")
    run.stop_request.write_text("{}")
    save_placement(run, HERE)
    called = []
    with lock_run(run):
        before = content_of(run)
        with pytest.raises(UserError, match="is being trained by process"):
            launch_run(run, ELSEWHERE, lambda: bool(called.append(1)))
        assert content_of(run) == before
    assert (found, called) == ([], [])


def test_a_launcher_on_another_machine_is_left_alone(run, plans, monkeypatch):
    """Its lock may not be seen here."""
    plans("steps")
    initial = StatusFile(run, launcher.RunStatus("running", 1e9, "alpha", 4242, 1e9, 3, 50, 2))
    with initial, pytest.raises(UserError, match=r"is being trained by process 4242 on alpha; stop it first with: "):
        launch_run(run, HERE, as_new)
    assert not run.lock.exists()
    assert not run.log.exists()


def test_a_run_is_made_ready_while_it_is_locked(run, plans):
    plans("steps")
    assert launch_run(run, HERE, lambda: not is_locked(run))
    assert read_status(run).state == "finished"


# Starts that fail


@pytest.fixture
def new_run(tmp_path, config) -> tuple[RunFolder, Callable[[], bool]]:
    """A run that does not exist yet, and what creates it."""
    run = RunFolder(tmp_path / "runs" / "my" / "run")

    def make_ready() -> bool:
        create_run(run, load_settings(config), num_workers=2)
        return False

    return run, make_ready


@pytest.mark.parametrize("placement", [HERE, ELSEWHERE, Placement.on_this_machine()])
@pytest.mark.parametrize("error", [UserError("b cannot be reached."), KeyboardInterrupt()])
def test_a_start_that_fails_leaves_nothing_behind(new_run, plans, tmp_path, error, placement):
    run, make_ready = new_run
    before = sorted(tmp_path.iterdir())
    plans(error, is_before_workers=True)
    with pytest.raises(type(error)) as raised:
        launch_run(run, placement, make_ready)
    assert str(raised.value) == str(error)
    assert sorted(tmp_path.iterdir()) == before


def test_a_start_that_fails_keeps_everything_that_was_there(new_run, plans):
    run, make_ready = new_run
    run.path.mkdir(parents=True)
    run.launch_log.write_text("of --detach")
    before = content_of(run)
    plans(UserError("b cannot be reached."), is_before_workers=True)
    with pytest.raises(UserError):
        launch_run(run, HERE, make_ready)
    assert content_of(run) == before
    run.launch_log.unlink()
    with pytest.raises(UserError):
        launch_run(run, HERE, make_ready)
    assert list(run.path.iterdir()) == []


def test_a_folder_that_is_no_run_stays_as_it_is(new_run, plans):
    run, make_ready = new_run
    run.path.mkdir(parents=True)
    (run.path / "thesis.tex").touch()
    plans("steps")
    with pytest.raises(UserError, match="is not a run folder"):
        launch_run(run, HERE, make_ready)
    assert [path.name for path in run.path.iterdir()] == ["thesis.tex"]


def test_a_run_whose_workers_began_is_kept(new_run, plans):
    """Messages of its workers name files in it; and without a shared folder, only other hosts have checkpoints."""
    run, make_ready = new_run
    plans(UserError("Details are in traceback.txt."))
    with pytest.raises(UserError, match=r"Details are in traceback.txt\.$"):
        launch_run(run, ELSEWHERE, make_ready)
    assert read_status(run).state == "failed"
    assert load_placement(run) == ELSEWHERE


@pytest.mark.parametrize("trace", ["metrics.jsonl", "checkpoints/step-00000000/model.safetensors"])
def test_a_run_that_has_trained_is_kept(run, plans, trace):
    (run.path / trace).parent.mkdir(parents=True, exist_ok=True)
    (run.path / trace).touch()
    run.log.write_text("an old line\n")
    before = content_of(run)
    plans(UserError("b cannot be reached."), is_before_workers=True)
    with pytest.raises(UserError):
        launch_run(run, HERE, as_resumed)
    assert set(before) <= set(content_of(run))


def test_prepared_text_is_kept_and_the_message_says_so(new_run, plans):
    run, make_ready = new_run

    def prepare() -> bool:
        run.prepared.mkdir()
        (run.prepared / "manifest.json").touch()
        return make_ready()

    plans(UserError("b cannot be reached."), is_before_workers=True)
    kept = rf"^b cannot be reached\. What was prepared is kept in {run.path}: .* with --run-dir {run.path}$"
    with pytest.raises(UserError, match=kept):
        launch_run(run, HERE, prepare)
    assert list(run.path.iterdir()) == [run.prepared]
    assert list(run.prepared.iterdir()) == [run.prepared / "manifest.json"]
    plans("steps")
    assert launch_run(run, HERE, make_ready)  # the folder may be used again


def test_prepared_text_is_kept_after_ctrl_c(new_run, plans, capsys):
    run, _ = new_run

    def prepare() -> bool:
        (run.path / ".prepared.partial").mkdir()
        os.kill(os.getpid(), signal.SIGTERM)
        raise AssertionError("the signal must interrupt")

    plans("steps")
    with pytest.raises(KeyboardInterrupt):
        launch_run(run, HERE, prepare)
    assert [path.name for path in run.path.iterdir()] == [".prepared.partial"]
    assert f"What was prepared is kept in {run.path}" in capsys.readouterr().err


def test_a_fault_of_the_program_leaves_everything_to_look_at(new_run, plans):
    run, make_ready = new_run
    plans(ZeroDivisionError("a fault"), is_before_workers=True)
    with pytest.raises(ZeroDivisionError):
        launch_run(run, HERE, make_ready)
    assert run.exists
    assert read_status(run).state == "failed"


def test_a_new_run_is_readable_by_its_owner_only(new_run, plans):
    run, make_ready = new_run
    plans("steps")
    launch_run(run, HERE, make_ready)
    assert run.path.stat().st_mode & 0o777 == 0o700


# Hosts


@pytest.mark.parametrize("end", ["steps", "signal"])
def test_hosts_and_workers_that_a_person_chose_are_remembered(run, plans, end):
    plans(end)
    launch_run(run, ELSEWHERE, as_new)
    assert load_placement(run) == ELSEWHERE
    launch_run(run, Placement.on_this_machine(), as_resumed)
    assert load_placement(run) == ELSEWHERE
    launch_run(run, HERE, as_resumed)
    assert load_placement(run) == HERE


def test_hosts_that_could_not_be_used_are_not_remembered(run, plans):
    plans("signal")
    launch_run(run, ELSEWHERE, as_new)
    run.metrics.touch()
    plans(UserError("ab cannot be reached."), is_before_workers=True)
    with pytest.raises(UserError, match="ab cannot"):
        launch_run(run, Placement((Host("ab", 2),)), as_resumed)
    assert load_placement(run) == ELSEWHERE
