"""Ranks that another launcher started: rank 0 makes the run ready, the others get it, and one reports a failure."""

from pathlib import Path

import pytest
from torch.distributed import HashStore

from dragoman.cluster.environment import find_rank_info
from dragoman.cluster.rendezvous import Rendezvous
from dragoman.launch import other_launchers
from dragoman.launch.other_launchers import _agree_on_run, _print_failure, _restart_cause
from dragoman.run.errors import UsageError, UserError
from dragoman.run.folder import RunFolder

CONFIG = "[training]\nmax_steps = 50\n"
LOST_PEER = RuntimeError("Connection closed by peer [10.0.0.1]:1024")


class EndedError(Exception):
    """Instead of the end of the process."""


@pytest.fixture
def store():
    return HashStore()


@pytest.fixture(autouse=True)
def _survive(monkeypatch):
    def end_process(code: int) -> None:
        raise EndedError(code)

    monkeypatch.setattr(other_launchers, "end_process", end_process)


def rendezvous(store: HashStore, rank: int, local_rank: int = 0) -> Rendezvous:
    return Rendezvous(store, rank, 2, local_rank, 1)


def make_ready(path: Path) -> RunFolder:
    run = RunFolder(path)
    path.mkdir(parents=True)
    run.config.write_text(CONFIG, encoding="utf-8")
    return run


def refuse(store: HashStore, error: UserError) -> None:
    def fail(_num_workers: int) -> RunFolder:
        raise error

    with pytest.raises(type(error)):
        _agree_on_run(rendezvous(store, 0), fail)


def not_called(_num_workers: int) -> RunFolder:
    raise AssertionError("only rank 0 makes the run ready")


def test_the_others_get_the_absolute_path_of_the_run(store, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    _agree_on_run(rendezvous(store, 0), lambda num_workers: make_ready(Path(f"run{num_workers}")))
    assert _agree_on_run(rendezvous(store, 1), not_called).path == tmp_path / "run2"


def move_to_other_host(run: RunFolder) -> None:
    """Makes the folder of the first rank one that this host does not see."""
    run.path.rename(run.path.with_name("on the first host"))


def test_a_host_that_does_not_share_the_folder_gets_the_config(store, tmp_path):
    first = _agree_on_run(rendezvous(store, 0), lambda _: make_ready(tmp_path / "run"))
    move_to_other_host(first)
    run = _agree_on_run(rendezvous(store, 1), not_called)
    assert run.config.read_text(encoding="utf-8") == CONFIG


def test_only_one_process_of_a_host_writes_there(store, tmp_path):
    first = _agree_on_run(rendezvous(store, 0), lambda _: make_ready(tmp_path / "run"))
    move_to_other_host(first)
    assert not _agree_on_run(rendezvous(store, 1, local_rank=1), not_called).path.exists()


def test_a_host_with_an_older_config_gets_the_newer(store, tmp_path):
    """The run may have been resumed with others; ranks that disagree about the last step would wait for ever."""
    first = _agree_on_run(rendezvous(store, 0), lambda _: make_ready(tmp_path / "run"))
    move_to_other_host(first)
    make_ready(first.path).config.write_text("[training]\nmax_steps = 20\n", encoding="utf-8")
    run = _agree_on_run(rendezvous(store, 1), not_called)
    assert run.config.read_text(encoding="utf-8") == CONFIG


@pytest.mark.parametrize("error", [UserError("There is nothing to resume."), UsageError("That makes no sense.")])
def test_if_the_run_cannot_be_made_ready_all_end_with_the_same_code(store, error, capsys, monkeypatch):
    monkeypatch.setattr(other_launchers, "READ_SECONDS", 0.01)  # the other one asks only afterwards
    refuse(store, error)
    with pytest.raises(EndedError, match=str(error.exit_code)):
        _agree_on_run(rendezvous(store, 1), not_called)
    assert capsys.readouterr() == ("", "")  # the command prints the error of rank 0


@pytest.mark.parametrize(
    ("rank", "error", "text"),
    [
        (1, UserError("The disk is full."), "dragoman: The disk is full.\n"),
        (0, UserError("The disk is full."), "dragoman: The disk is full.\n"),
        (1, LOST_PEER, ""),
        (0, LOST_PEER, "dragoman: Worker 0 failed: RuntimeError: Connection closed by peer"),
        (1, ValueError("shapes differ"), "dragoman: Worker 1 failed: ValueError: shapes differ Details are in "),
    ],
)
def test_the_cause_is_printed_and_lost_peers_only_by_rank_0(tmp_path, capsys, rank, error, text):
    _print_failure(RunFolder(tmp_path), rank, error)
    printed = capsys.readouterr().err
    assert printed.startswith(text) if text else printed == ""


def test_an_error_that_is_not_printed_is_in_the_run_folder(tmp_path):
    _print_failure(RunFolder(tmp_path), 1, LOST_PEER)
    assert "Connection closed by peer" in (tmp_path / "failure.rank1.txt").read_text(encoding="utf-8")


@pytest.mark.parametrize(("num_restarts", "cause"), [("0", None), ("2", "torchrun started the processes again.")])
def test_a_restart_by_the_launcher_is_not_taken_for_one_by_a_person(num_restarts, cause):
    address = {"RANK": "0", "WORLD_SIZE": "2", "MASTER_ADDR": "localhost"}
    assert _restart_cause(find_rank_info(address | {"TORCHELASTIC_RESTART_COUNT": num_restarts})) == cause
