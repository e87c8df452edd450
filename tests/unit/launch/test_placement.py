"""A run remembers where it was placed: what is saved is loaded, and what is damaged is refused with advice."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from dragoman.launch.hosts import Host, LaunchPlan, Placement, load_placement, save_placement
from dragoman.run.config import load_settings
from dragoman.run.errors import UserError
from dragoman.run.folder import RunFolder

PLACEMENT = Placement((Host("a", 2), Host("me@[fd00::1]", 1), Host("b")), 2, Path("/etc/ssh/ssh_config"), True)


@pytest.fixture
def run(tmp_path) -> RunFolder:
    run = RunFolder(tmp_path / "run")
    run.path.mkdir()
    return run


@pytest.mark.parametrize(
    "placement", [PLACEMENT, Placement.on_this_machine(3), Placement((Host("a"),)), replace(PLACEMENT, ssh_config=None)]
)
def test_what_is_saved_is_loaded(run, placement):
    assert load_placement(run) is None
    save_placement(run, placement)
    assert load_placement(run) == placement
    assert placement.is_chosen


def test_the_file_is_plain(run):
    save_placement(run, PLACEMENT)
    assert json.loads(run.placement.read_text(encoding="utf-8")) == {
        "hosts": [
            {"name": "a", "workers": 2},
            {"name": "me@[fd00::1]", "workers": 1},
            {"name": "b", "workers": None},
        ],
        "min_hosts": 2,
        "ssh_config": "/etc/ssh/ssh_config",
        "send_data": True,
    }


def test_the_ssh_config_is_found_from_any_folder(run, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    save_placement(run, replace(PLACEMENT, ssh_config=Path("my_config")))
    monkeypatch.chdir("/")
    assert load_placement(run).ssh_config == tmp_path / "my_config"


GOOD = {"hosts": [{"name": "a", "workers": 2}], "min_hosts": 1, "ssh_config": None, "send_data": False}


@pytest.mark.parametrize(
    "content",
    [
        "",
        "{",
        "[]",
        "[" * 100_000,
        "null",
        "\udcff",
        {},
        GOOD | {"hosts": []},
        GOOD | {"hosts": "a"},
        GOOD | {"hosts": [{"name": "a"}]},
        GOOD | {"hosts": [{"name": "a", "workers": 0}]},
        GOOD | {"hosts": [{"name": "a", "workers": "2"}]},
        GOOD | {"hosts": [{"name": "a", "workers": True}]},
        GOOD | {"hosts": [{"name": "-oProxyCommand=touch x", "workers": 2}]},
        GOOD | {"hosts": [{"name": "a,b", "workers": 2}, {"name": "b", "workers": 2}]},
        GOOD | {"hosts": [{"name": "a", "workers": 2}] * 2},
        GOOD | {"min_hosts": 0},
        GOOD | {"min_hosts": 2},
        GOOD | {"ssh_config": 3},
        GOOD | {"send_data": "yes"},
    ],
)
def test_a_damaged_file_is_refused_with_what_to_give_instead(run, content):
    text = content if isinstance(content, str) else json.dumps(content)
    run.placement.write_text(text, encoding="utf-8", errors="surrogateescape")
    with pytest.raises(
        UserError, match=r"hosts\.json: it is damaged\. Give them again with --hosts A:N,B:N .*--workers"
    ):
        load_placement(run)


def test_a_file_that_cannot_be_read_is_refused(run):
    run.placement.mkdir()
    with pytest.raises(UserError, match=r"hosts\.json: it cannot be read \(it is a folder, not a file\)"):
        load_placement(run)


@pytest.mark.parametrize("place", ["ssh_config", "deep/er/config", "../run/ssh_config"])
def test_an_ssh_config_from_the_run_folder_is_not_used(run, place):
    """It may name programs to start, and the folder may come from somebody else."""
    run.placement.write_text(json.dumps(GOOD | {"ssh_config": str(run.path / place)}))
    with pytest.raises(UserError, match=r"its ssh config .* is inside the run folder\. Give them again with --hosts"):
        load_placement(run)


def test_only_what_a_person_chose_is_worth_remembering():
    assert not Placement.on_this_machine().is_chosen
    assert Placement.on_this_machine(1).is_chosen
    assert Placement((Host("a"),)).is_chosen


@pytest.mark.parametrize(
    ("setting", "ports"), [("0", None), ("4711", range(4711, 4775)), ("29500-29531", range(29500, 29532))]
)
def test_the_plan_has_the_ports_of_the_settings(run, config, setting, ports):
    settings = load_settings(config, [f"cluster.port={setting}"])
    assert LaunchPlan.from_settings(run, settings, PLACEMENT, "module").ports == ports
