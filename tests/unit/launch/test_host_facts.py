"""Facts that a host reports about itself, and differences from this machine that prevent a start."""

import hashlib
import json
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

import dragoman
from dragoman.launch import hosts
from dragoman.launch.hosts import (
    CLOCK_ERROR_SECONDS,
    CLOCK_WARNING_SECONDS,
    Host,
    HostFacts,
    LaunchPlan,
    Placement,
    clock_warning,
    code_fingerprint,
    config_fingerprint,
    count_gpus,
    data_fingerprint,
    free_disk,
    gather_facts,
    host_problems,
)
from dragoman.run.errors import UserError
from dragoman.run.folder import RunFolder

# Facts


def write_corpus(folder: Path, **files: str) -> Path:
    """Writes files and a manifest as `prepare` does."""
    folder.mkdir()
    records = {}
    for name, text in files.items():
        path = folder / name.replace("_", ".")
        path.write_text(text, encoding="utf-8")
        records[path.name] = {"num_bytes": len(text), "sha256": hashlib.sha256(text.encode()).hexdigest()}
    (folder / "manifest.json").write_text(json.dumps({"files": records}), encoding="utf-8")
    return folder


@pytest.fixture
def corpus(tmp_path):
    return write_corpus(tmp_path / "prepared", train_bin="many pairs", cleaning_md="of /home/a/my.en")


def test_a_copy_of_the_data_has_the_same_fingerprint(corpus, tmp_path):
    shutil.copytree(corpus, tmp_path / "copy")
    assert data_fingerprint(corpus) is not None
    assert data_fingerprint(tmp_path / "copy") == data_fingerprint(corpus)


def test_other_data_has_another_fingerprint(corpus, tmp_path):
    other = write_corpus(tmp_path / "other", train_bin="more pairs", cleaning_md="of /home/a/my.en")
    assert data_fingerprint(other) not in (None, data_fingerprint(corpus))


def test_data_in_files_of_other_names_is_other_data(corpus, tmp_path):
    other = write_corpus(tmp_path / "other", dev_bin="many pairs", cleaning_md="of /home/a/my.en")
    assert data_fingerprint(other) not in (None, data_fingerprint(corpus))


def test_reports_for_people_do_not_count(corpus, tmp_path):
    other = write_corpus(tmp_path / "other", train_bin="many pairs", cleaning_md="of /home/b/texts/my.en")
    assert data_fingerprint(other) == data_fingerprint(corpus)


def test_missing_or_incomplete_data_has_no_fingerprint(corpus, tmp_path):
    assert data_fingerprint(tmp_path / "nowhere") is None
    file = corpus / "train.bin"
    file.write_bytes(file.read_bytes()[:-1])
    assert data_fingerprint(corpus) is None
    file.unlink()
    assert data_fingerprint(corpus) is None


@pytest.mark.parametrize(
    "manifest", ["", "{", "[]", "{}", '{"files": []}', '{"files": {"train.bin": {}}}', '{"files": {"train.bin": 3}}']
)
def test_a_broken_manifest_has_no_fingerprint(corpus, manifest):
    (corpus / "manifest.json").write_text(manifest, encoding="utf-8")
    assert data_fingerprint(corpus) is None


def test_a_corpus_that_prepare_wrote_has_a_fingerprint(prepared):
    assert data_fingerprint(prepared) is not None


def test_any_change_of_the_code_changes_its_fingerprint(tmp_path, monkeypatch):
    shutil.copytree(Path(dragoman.__file__).parent, tmp_path / "dragoman", ignore=shutil.ignore_patterns("__pycache__"))
    monkeypatch.setattr(dragoman, "__file__", str(tmp_path / "dragoman" / "__init__.py"))
    before = code_fingerprint()
    shutil.copytree(tmp_path / "dragoman", tmp_path / "elsewhere" / "dragoman")
    monkeypatch.setattr(dragoman, "__file__", str(tmp_path / "elsewhere" / "dragoman" / "__init__.py"))
    assert code_fingerprint() == before
    with (tmp_path / "elsewhere" / "dragoman" / "training" / "worker.py").open("a") as file:
        file.write("# changed\n")
    assert code_fingerprint() != before


def test_a_run_without_a_config_has_no_fingerprint_of_it(tmp_path):
    run = RunFolder(tmp_path)
    assert config_fingerprint(run) is None
    run.config.write_text("[data]\n")
    before = config_fingerprint(run)
    assert before is not None
    run.config.write_text("[data]\n\n")
    assert config_fingerprint(run) != before


@pytest.mark.parametrize(
    ("visible", "num_gpus"), [("0", 1), ("0,1", 2), ("1, 3 ,5", 3), ("GPU-8932f937", 1), ("", 0), ("-1", 0)]
)
def test_only_gpus_this_process_may_use_are_counted(monkeypatch, visible, num_gpus):
    monkeypatch.setattr(hosts, "version", lambda _: "2.13.0")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    assert count_gpus() == num_gpus


def test_a_torch_without_cuda_uses_no_gpus(monkeypatch):
    monkeypatch.setattr(hosts, "version", lambda _: "2.13.0+cpu")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0,1")
    assert count_gpus() == 0


def test_a_folder_that_does_not_exist_yet_has_the_disk_of_its_parent(tmp_path, monkeypatch):
    free = shutil.disk_usage(tmp_path).free
    assert free_disk(tmp_path / "runs" / "of" / "tomorrow") == pytest.approx(free, rel=0.05)
    monkeypatch.chdir(tmp_path)
    assert free_disk(Path("runs/tomorrow")) == pytest.approx(free, rel=0.05)


def test_facts_say_whether_the_run_folder_is_shared_and_travel_as_json(corpus, tmp_path):
    run = RunFolder(tmp_path)
    unseen = gather_facts(run, corpus, ".seen-1")
    (tmp_path / ".seen-1").touch()
    seen = gather_facts(run, corpus, ".seen-1")
    assert (unseen.shares_run_folder, seen.shares_run_folder) == (False, True)
    assert seen.data == data_fingerprint(corpus)
    assert HostFacts.from_json("b", json.loads(json.dumps(seen.to_json())), here=unseen) == seen


# Versions


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        ({"dragoman": "0.2.0"}, ["b has dragoman 0.2.0", "0.1.0", "install"]),
        ({"dragoman": "0.2.0", "code": "beef" * 16}, ["b has dragoman 0.2.0", "install"]),
        ({"code": "beef" * 16}, ["b runs different dragoman code", "beefbeefbeef", "c0dec0dec0de", "same commit"]),
        ({"code": None}, ["b runs different dragoman code", "same commit"]),
        ({}, ["b has dragoman of an unknown version", "0.1.0", "install"]),
    ],
)
def test_another_version_is_named_before_its_facts_are_read(answer, words):
    """They may have other names: a fact that is missing or unknown here must not look like a fault of the program."""
    facts = {key: value for key, value in THERE.to_json().items() if key not in ("data", "num_gpus")}
    with pytest.raises(UserError) as raised:
        HostFacts.from_json("b", (facts | {"num_tpus": 8} | answer) if answer else {}, HERE)
    assert [word for word in words if word not in str(raised.value)] == []


# Problems

HERE = HostFacts(
    hostname="a",
    dragoman="0.1.0",
    code="c0de" * 16,
    torch="2.13.0",
    num_cores=8,
    num_gpus=0,
    data="da7a" * 16,
    config="c0f1" * 16,
    shares_run_folder=True,
    newest_step=None,
    free_disk_bytes=50 * 10**9,
    time=1e9,
)
THERE = replace(HERE, hostname="b", shares_run_folder=False, num_cores=64, num_gpus=4, config=None)
PLAN = LaunchPlan(
    RunFolder(Path("/runs/my")),
    "trainer",
    Placement((Host("b"),)),
    Path("/data/prepared"),
    kept_bytes=3 * 10**9,
    max_workers=4,
    hang_timeout=60.0,
    host_timeout=15.0,
    max_restarts=2,
)


def problems(skew: float = 0.0, plan: LaunchPlan = PLAN, **differences: object) -> list[str]:
    return list(host_problems("b", replace(THERE, **differences), HERE, plan, skew))


def test_equal_hosts_have_no_problem():
    assert problems() == []
    assert problems(shares_run_folder=True, config=HERE.config) == []
    assert problems(config=HERE.config) == []


@pytest.mark.parametrize(
    ("differences", "words"),
    [
        ({"torch": "2.12.0"}, ["b has torch 2.12.0", "2.13.0", "install"]),
        ({"data": None}, ["b has no complete prepared corpus in /data/prepared", "da7ada7ada7a", "--send-data"]),
        ({"data": "f00d" * 16}, ["b", "/data/prepared", "f00df00df00d", "da7ada7ada7a", "--send-data"]),
        ({"config": "0dd0" * 16}, ["b", "/runs/my", "0dd00dd00dd0", "c0f1c0f1c0f1", "--run-dir"]),
        ({"free_disk_bytes": 10**9}, ["b", "1.0 GB", "3.0 GB", "/runs/my", "checkpoints.keep_last"]),
    ],
)
def test_each_difference_is_one_message_with_host_both_values_and_what_to_do(differences, words):
    (message,) = problems(**differences)
    assert [word for word in words if word not in message] == []
    assert message.endswith(".")


def test_small_sizes_are_not_zero_gigabytes():
    (message,) = problems(free_disk_bytes=5_120, plan=replace(PLAN, kept_bytes=3_200_000))
    assert "b has 5.1 kB free for /runs/my" in message
    assert "need 3.2 MB: free some space" in message


def test_all_problems_are_reported_at_once():
    assert len(problems(torch="2.12.0", data="f00d" * 16, free_disk_bytes=0, skew=-90.0)) == 4


def test_a_host_may_have_an_older_config_of_a_resumed_run():
    assert problems(config="0dd0" * 16, plan=replace(PLAN, is_resumed=True)) == []


def test_hosts_may_differ_in_what_does_not_change_the_result():
    assert problems(num_cores=2, num_gpus=0, hostname="other") == []


def test_missing_data_is_no_problem_if_it_is_sent():
    plan = replace(PLAN, placement=replace(PLAN.placement, is_data_sent=True))
    assert problems(data=None, plan=plan) == []
    assert len(problems(data="f00d" * 16, plan=plan)) == 1


@pytest.mark.parametrize(("skew", "direction"), [(75.0, "ahead of"), (-75.0, "behind")])
def test_a_clock_that_is_far_off_is_a_problem(skew, direction):
    assert problems(skew) == [f"The clock of b is 75.0 s {direction} this machine's: set the clocks (NTP)."]


@pytest.mark.parametrize(("skew", "direction"), [(3.5, "ahead of"), (-3.5, "behind")])
def test_a_clock_that_is_a_little_off_is_a_warning(skew, direction):
    message = f"The clock of b is 3.5 s {direction} this machine's; times in its records will be off."
    assert clock_warning("b", skew) == message


@given(st.floats(-1e6, 1e6))
def test_a_clock_is_right_or_a_warning_or_a_problem(skew):
    is_problem, is_warning = bool(problems(skew)), clock_warning("b", skew) is not None
    assert is_problem == (abs(skew) > CLOCK_ERROR_SECONDS)
    assert is_warning == (CLOCK_WARNING_SECONDS < abs(skew) <= CLOCK_ERROR_SECONDS)
