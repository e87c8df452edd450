"""The mirror brings what hosts write to the run folder here; each host is a process that reads a folder of its own."""

import json
import os
import shutil
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
from checkpoint_folders import add_average, add_replicas, flip_bit, make_checkpoint
from program import wait_until

from dragoman.launch.hosts import Host
from dragoman.launch.mirror import fetched_checkpoints, host_mirror
from dragoman.launch.mirror.host_mirror import Pacer
from dragoman.launch.mirror.run_mirror import MirroredHost, RunMirror
from dragoman.run.checkpoints import resume_files, translator_files, verify_checkpoint
from dragoman.run.files import replace_link
from dragoman.run.folder import RunFolder

ELSEWHERE = Path(__file__).parents[3] / "host_files_elsewhere.py"
A, B = Host("a", 1), Host("b", 1)
SECONDS = 30


class Laptop:
    """A machine that shares no folder with hosts a and b."""

    def __init__(self, folder: Path) -> None:
        self.run = RunFolder(folder / "here")
        self.run.path.mkdir()
        self.hosts = {name: RunFolder(folder / name) for name in ("a", "b")}
        for run in self.hosts.values():
            run.path.mkdir()
        self.lost: set[str] = set()
        self.programs: dict[str, list[str]] = {}
        """Programs that take the place of the real one."""
        self.said: list[str] = []
        self.mirrors: list[RunMirror] = []

    def command(self, host: Host) -> list[str]:
        if host.name in self.lost:
            return ["sh", "-c", "echo ssh: no route to host >&2; exit 255"]
        return self.programs.get(host.name) or [sys.executable, str(ELSEWHERE), str(self.hosts[host.name].path)]

    def mirror(self, rate: float = 1e9) -> RunMirror:
        mirror = RunMirror(self.run, None, self.said.append, rate, self.command)
        self.mirrors.append(mirror)
        return mirror

    def write(self, host: str, name: str, text: str) -> None:
        """Appends to a file of a host."""
        path = self.hosts[host].path / name
        path.parent.mkdir(exist_ok=True)
        with path.open("a", encoding="utf-8") as file:
            file.write(text)

    def read(self, name: str) -> str:
        path = self.run.path / name
        return path.read_text(encoding="utf-8") if path.exists() else ""

    def wait_for(self, name: str, text: str) -> None:
        wait_until(lambda: self.read(name) == text, f"{text!r} in {name}, which is {self.read(name)!r}", SECONDS)

    def save(self, host: str, step: int, is_best: bool = False, size: int = 0, **evaluation: float) -> Path:
        """Saves a checkpoint on a host, as a worker does."""
        run = self.hosts[host]
        folder = make_checkpoint(run, step, **evaluation)
        if size:
            enlarge(folder, size)
        replace_link(run.checkpoints / "latest", folder.name)
        if is_best:
            replace_link(run.checkpoints / "best", folder.name)
        return folder

    def step(self, link: str) -> int | None:
        path = self.run.checkpoints / link
        return int(path.readlink().name.removeprefix("step-")) if path.is_symlink() else None


def enlarge(checkpoint: Path, size: int) -> None:
    """Gives a checkpoint large weights, and the manifest that belongs to them."""
    from dragoman.run.files import sha256

    (checkpoint / "model.safetensors").write_bytes(os.urandom(size))
    manifest = json.loads((checkpoint / "manifest.json").read_text())
    manifest["files"]["model.safetensors"] = {"bytes": size, "sha256": sha256(checkpoint / "model.safetensors")}
    (checkpoint / "manifest.json").write_text(json.dumps(manifest))


@pytest.fixture
def laptop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Laptop]:
    monkeypatch.setattr(host_mirror, "FIRST_PAUSE_SECONDS", 0.1)
    monkeypatch.setattr(host_mirror, "LONGEST_PAUSE_SECONDS", 0.4)
    monkeypatch.setattr(host_mirror, "LOOK_SECONDS", 0.1)
    monkeypatch.setattr(host_mirror, "PORT_SHARE", 1e9)  # only the rate that a test gives counts
    laptop = Laptop(tmp_path)
    yield laptop
    for mirror in laptop.mirrors:
        mirror.close()


def apart(*hosts: Host) -> list[MirroredHost]:
    return [MirroredHost(host, shares_folder=False) for host in hosts]


# Histories


def test_what_rank_0_writes_comes_while_it_trains(laptop: Laptop):
    mirror = laptop.mirror()
    mirror.begin_attempt(apart(A, B))
    laptop.write("a", "metrics.jsonl", '{"step": 1}\n')
    laptop.write("a", "log.txt", "step 1\n")
    laptop.wait_for("metrics.jsonl", '{"step": 1}\n')
    laptop.wait_for("log.txt", "step 1\n")
    laptop.write("a", "metrics.jsonl", '{"step": 2}\n{"st')
    laptop.wait_for("metrics.jsonl", '{"step": 1}\n{"step": 2}\n')


def test_history_is_whole_when_rank_0_moves_to_another_host_and_back(laptop: Laptop):
    mirror = laptop.mirror()
    mirror.begin_attempt(apart(A, B))
    laptop.write("a", "metrics.jsonl", "a1\n")
    laptop.wait_for("metrics.jsonl", "a1\n")
    laptop.lost.add("a")
    laptop.write("a", "metrics.jsonl", "a2\n")  # perhaps not seen any more
    mirror.end_attempt(lost=[A])
    with laptop.run.metrics.open("a") as file:
        file.write("restart\n")
    mirror.begin_attempt(apart(B))
    laptop.write("b", "metrics.jsonl", "b1\n")
    wait_until(lambda: laptop.read("metrics.jsonl").endswith("restart\nb1\n"), "the line of b", SECONDS)
    laptop.write("a", "metrics.jsonl", "a3\ncut")
    laptop.lost.clear()
    mirror.host_returned(A)
    laptop.wait_for("metrics.jsonl", "a1\na2\na3\nrestart\nb1\n")
    mirror.end_attempt()
    mirror.begin_attempt(apart(A, B))
    laptop.write("a", "metrics.jsonl", "\na4\n")  # a worker ends the line of its predecessor
    laptop.wait_for("metrics.jsonl", "a1\na2\na3\nrestart\nb1\na4\n")
    assert mirror.finish() == []


def test_the_last_lines_of_an_attempt_are_here_when_it_has_ended(laptop: Laptop):
    mirror = laptop.mirror()
    mirror.begin_attempt(apart(A))
    laptop.write("a", "log.txt", "last\n" * 100)
    mirror.end_attempt(timeout=SECONDS)
    assert laptop.read("log.txt") == "last\n" * 100


def test_the_end_of_an_attempt_does_not_wait_for_a_lost_host(laptop: Laptop):
    mirror = laptop.mirror()
    mirror.begin_attempt(apart(A))
    laptop.programs["a"] = ["sleep", "60"]
    begin = time.monotonic()
    mirror.end_attempt(lost=[A], timeout=20)
    assert time.monotonic() - begin < 10


def test_an_attempt_does_not_wait_long_for_a_host_that_does_not_answer(laptop: Laptop, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("dragoman.launch.mirror.run_mirror.BEGIN_SECONDS", 0.5)
    monkeypatch.setattr(host_mirror, "STUCK_SECONDS", 0.2)
    laptop.programs["a"] = ["sleep", "60"]
    mirror = laptop.mirror()
    begin = time.monotonic()
    mirror.begin_attempt(apart(A))
    assert time.monotonic() - begin < 30  # it would answer after 60 s
    laptop.write("a", "log.txt", "line\n")
    del laptop.programs["a"]
    mirror.end_attempt(lost=[A])  # the launcher gives it up, and finds it again
    mirror.begin_attempt(apart(A))
    laptop.wait_for("log.txt", "line\n")


def test_a_new_launcher_goes_on_where_a_killed_one_stopped(laptop: Laptop):
    first = laptop.mirror()
    first.begin_attempt(apart(A))
    laptop.write("a", "metrics.jsonl", "1\n2\n")
    laptop.wait_for("metrics.jsonl", "1\n2\n")
    first.close()
    laptop.write("a", "metrics.jsonl", "3\n")
    second = laptop.mirror()
    second.begin_attempt(apart(A))
    laptop.write("a", "metrics.jsonl", "4\n")
    laptop.wait_for("metrics.jsonl", "1\n2\n3\n4\n")


def test_history_of_before_is_brought_if_there_is_none_here(laptop: Laptop):
    laptop.write("a", "metrics.jsonl", "before\n")
    laptop.mirror().begin_attempt(apart(A))
    laptop.write("a", "metrics.jsonl", "now\n")
    laptop.wait_for("metrics.jsonl", "before\nnow\n")


def test_where_rank_0_writes_here_only_samples_and_such_come(laptop: Laptop):
    laptop.run.metrics.write_text("own\n")
    laptop.write("b", "metrics.jsonl", "old\n")
    laptop.write("b", "system.b.jsonl", "{}\n")
    laptop.save("b", 5)
    mirror = laptop.mirror()
    mirror.begin_attempt([MirroredHost(Host("localhost", 1), shares_folder=True), *apart(B)])
    laptop.wait_for("system.b.jsonl", "{}\n")
    assert mirror.finish() == []
    assert laptop.read("metrics.jsonl") == "own\n"
    assert not laptop.run.checkpoints.exists()


def test_a_run_whose_hosts_share_the_folder_starts_nothing(laptop: Laptop):
    mirror = laptop.mirror()
    num_threads = threading.active_count()
    mirror.begin_attempt([MirroredHost(A, shares_folder=True), MirroredHost(B, shares_folder=True)])
    mirror.end_attempt()
    assert mirror.finish() == []
    assert threading.active_count() == num_threads
    assert list(laptop.run.path.iterdir()) == []


def test_a_host_that_turns_out_to_share_the_folder_is_left_alone(laptop: Laptop):
    laptop.programs["a"] = [
        sys.executable,
        "-m",
        "dragoman.launch.mirror.host_files",
    ]  # reads our folder
    laptop.run.metrics.write_text("own\n")
    mirror = laptop.mirror()
    mirror.adopt([A])
    assert mirror.finish() == []
    assert laptop.read("metrics.jsonl") == "own\n"
    assert not [path for path in laptop.run.path.iterdir() if path.name.startswith(".seen")]


# Other files


def test_growing_files_of_every_host_come_and_continue(laptop: Laptop):
    mirror = laptop.mirror()
    mirror.begin_attempt(apart(A, B))
    events = "tensorboard/events.out.tfevents.1.a.2"
    for host, name in (("a", "system.a.jsonl"), ("b", "system.b.jsonl"), ("a", events)):
        laptop.write(host, name, "1")
        laptop.wait_for(name, "1")
    for host, name in (("a", "system.a.jsonl"), ("b", "system.b.jsonl"), ("a", events)):
        laptop.write(host, name, "2" * 10**6)
        laptop.wait_for(name, "1" + "2" * 10**6)


def test_hosts_that_share_a_folder_with_each_other_bring_nothing_twice(laptop: Laptop):
    laptop.hosts["b"] = laptop.hosts["a"]
    mirror = laptop.mirror()
    mirror.begin_attempt(apart(A, B))
    for number in range(20):
        laptop.write("a", "system.a.jsonl", f"{number}\n" * 1000)
        laptop.write("a", "metrics.jsonl", f"{number}\n")
        time.sleep(0.02)
    assert mirror.finish() == []
    for name in ("system.a.jsonl", "metrics.jsonl"):
        assert laptop.read(name) == (laptop.hosts["a"].path / name).read_text()


def test_a_file_that_is_written_again_is_brought_again_and_the_newest_stays(laptop: Laptop):
    mirror = laptop.mirror()
    mirror.begin_attempt(apart(A, B))
    for host, text in (("a", "first"), ("b", "second"), ("a", "third")):
        (laptop.hosts[host].path / "translations.jsonl").write_text(text)
        laptop.wait_for("translations.jsonl", text)
    os.utime(laptop.hosts["b"].path / "translations.jsonl", (1, 1))
    assert mirror.finish() == []
    assert laptop.read("translations.jsonl") == "third"


def test_files_of_the_launcher_are_not_replaced(laptop: Laptop):
    for name in ("config.toml", "scores.jsonl"):
        (laptop.run.path / name).write_text("ours")
        laptop.write("a", name, "theirs")
    laptop.write("a", "status.json", "theirs")
    laptop.write("a", "tokenizers/source.model", "model")
    mirror = laptop.mirror()
    mirror.begin_attempt(apart(A))
    assert mirror.finish() == []
    assert [laptop.read(name) for name in ("config.toml", "scores.jsonl", "status.json")] == ["ours", "ours", ""]
    assert laptop.read("tokenizers/source.model") == "model"


def test_a_clock_that_is_wrong_does_not_keep_out_later_files(laptop: Laptop):
    mirror = laptop.mirror()
    mirror.begin_attempt(apart(A, B))
    wrong = laptop.hosts["a"].path / "translations.jsonl"
    wrong.write_text("from the future")
    os.utime(wrong, (time.time() + 10**6,) * 2)
    laptop.wait_for("translations.jsonl", "from the future")
    (laptop.hosts["b"].path / "translations.jsonl").write_text("of now")
    laptop.wait_for("translations.jsonl", "of now")


# Checkpoints


def test_the_newest_and_the_best_checkpoint_come_and_older_ones_go(laptop: Laptop):
    mirror = laptop.mirror()
    laptop.save("a", 0)
    mirror.begin_attempt(apart(A, B))
    laptop.save("a", 10, is_best=True, bleu=5.0)
    wait_until(lambda: (laptop.step("latest"), laptop.step("best")) == (10, 10), "step 10", SECONDS)
    laptop.save("a", 20)
    laptop.save("b", 20)
    wait_until(lambda: laptop.step("latest") == 20, "step 20", SECONDS)
    laptop.save("a", 30)
    wait_until(lambda: laptop.step("latest") == 30, "step 30", SECONDS)
    wait_until(lambda: laptop.run.checkpoint_steps() == [10, 30], "the removal of step 20", SECONDS)
    assert laptop.step("best") == 10
    for step in (10, 30):
        verify_checkpoint(laptop.run.checkpoint(step))
    assert mirror.finish() == []
    assert mirror.brought["a"].steps | mirror.brought["b"].steps == {10, 20, 30}


@pytest.mark.parametrize("order", [(A, B), (B, A)])
def test_of_hosts_that_were_lost_one_after_the_other_the_one_that_got_furthest_sends(
    laptop: Laptop, order: tuple[Host, Host]
):
    for host in ("a", "b"):
        laptop.save(host, 10, is_best=True, bleu=5.0)
        laptop.save(host, 20)
    laptop.save("a", 20, is_best=True, bleu=6.0)  # lost before b had heard of the evaluation
    for steps in ({20}, set()):
        mirror = laptop.mirror()
        mirror.adopt(order)
        assert mirror.finish() == []
        assert mirror.brought["a"].steps | mirror.brought["b"].steps == steps
        assert (laptop.step("latest"), laptop.step("best")) == (20, 20)
        mirror.close()


@pytest.mark.parametrize("order", [(A, B), (B, A)])
def test_an_older_checkpoint_of_another_host_does_not_come_again(laptop: Laptop, order: tuple[Host, Host]):
    for host in ("a", "b"):
        laptop.save(host, 10, is_best=True, bleu=5.0)
        laptop.save(host, 20)
    laptop.save("a", 30)
    for steps in ({10, 30}, set()):
        mirror = laptop.mirror()
        mirror.adopt(order)
        assert mirror.finish() == []
        assert mirror.brought["a"].steps | mirror.brought["b"].steps == steps
        assert laptop.run.checkpoint_steps() == [10, 30]
        mirror.close()


def test_averaged_weights_come_with_their_checkpoint(laptop: Laptop):
    folder = laptop.save("a", 10, bleu=5.0)
    add_average(folder)
    replace_link(laptop.hosts["a"].checkpoints / "best", folder.name)
    mirror = laptop.mirror()
    mirror.begin_attempt(apart(A))
    wait_until(lambda: laptop.step("best") == 10, "step 10", SECONDS)
    assert mirror.finish() == []
    brought = laptop.run.checkpoint(10)
    assert translator_files(brought) == ("averaged.safetensors", "state.json")
    verify_checkpoint(brought, translator_files(brought))


def test_the_state_of_replicas_comes_with_its_checkpoint(laptop: Laptop):
    add_replicas(laptop.save("a", 10))
    mirror = laptop.mirror()
    mirror.begin_attempt(apart(A))
    wait_until(lambda: laptop.step("latest") == 10, "step 10", SECONDS)
    assert mirror.finish() == []
    assert "replicas.safetensors" in resume_files(laptop.run.checkpoint(10))
    verify_checkpoint(laptop.run.checkpoint(10))


def test_what_was_here_before_is_never_replaced_or_removed(laptop: Laptop):
    for step in (3, 10):
        make_checkpoint(laptop.run, step, bleu=1.0)
    before = {step: (laptop.run.checkpoint(step) / "state.json").read_bytes() for step in (3, 10)}
    laptop.save("a", 10, bleu=2.0)
    mirror = laptop.mirror()
    mirror.begin_attempt(apart(A))
    laptop.save("a", 20)
    wait_until(lambda: laptop.step("latest") == 20, "step 20", SECONDS)
    mirror.finish()
    assert laptop.run.checkpoint_steps() == [3, 10, 20]
    assert {step: (laptop.run.checkpoint(step) / "state.json").read_bytes() for step in (3, 10)} == before


def test_a_step_that_is_saved_again_is_brought_again_without_its_weights(laptop: Laptop):
    laptop.save("a", 10, size=3_000_000)
    mirror = laptop.mirror()
    mirror.begin_attempt(apart(A))
    wait_until(lambda: laptop.step("latest") == 10, "step 10", SECONDS)
    num_bytes = mirror.brought["a"].num_bytes
    weights = (laptop.hosts["a"].checkpoint(10) / "model.safetensors").read_bytes()
    folder = laptop.save("a", 10, is_best=True, bleu=7.0)
    (folder / "model.safetensors").write_bytes(weights)
    manifest = json.loads((folder / "manifest.json").read_text())
    record = json.loads((laptop.run.checkpoint(10) / "manifest.json").read_text())["files"]["model.safetensors"]
    manifest["files"]["model.safetensors"] = record
    (folder / "manifest.json").write_text(json.dumps(manifest))
    wait_until(lambda: laptop.step("best") == 10, "the link", SECONDS)
    assert mirror.finish() == []
    verify_checkpoint(laptop.run.checkpoint(10))
    assert json.loads((laptop.run.checkpoint(10) / "state.json").read_text())["evaluation"] == {"bleu": 7.0}
    assert mirror.brought["a"].num_bytes < num_bytes + 100_000


def test_a_checkpoint_comes_at_the_rate_and_the_rest_of_it_at_once(laptop: Laptop):
    laptop.save("a", 10, size=20_000_000)  # 40 s at this rate
    mirror = laptop.mirror(rate=500_000)
    mirror.begin_attempt(apart(A))
    begin = time.monotonic()
    aside = laptop.run.checkpoints / ".step-00000010.fetched" / "model.safetensors"
    wait_until(lambda: aside.exists() and aside.stat().st_size > 10**6, "the first megabyte", SECONDS)
    assert time.monotonic() - begin > 1.0
    laptop.write("a", "log.txt", "line\n")  # small files do not wait
    laptop.wait_for("log.txt", "line\n")
    assert laptop.step("latest") is None
    assert mirror.finish() == []
    assert laptop.step("latest") == 10
    assert time.monotonic() - begin < 20


def test_a_slow_network_card_lowers_the_rate():
    pacer = Pacer(2e6)
    pacer.spare_port(125_000_000)
    assert pacer.rate == 2e6
    pacer.spare_port(12_500_000)
    assert pacer.rate == 500_000
    unknown = Pacer(2e6)
    unknown.spare_port(None)
    assert unknown.rate == 500_000
    pacer.count(500_000)
    assert 0.9 < pacer.seconds_to_next_part <= 1.0
    pacer.is_hurrying = True
    assert pacer.seconds_to_next_part == 0.0


def test_an_interrupted_copy_continues_on_another_link(laptop: Laptop):
    laptop.save("a", 10, size=4_000_000)
    first = laptop.mirror(rate=500_000)
    first.begin_attempt(apart(A))
    aside = laptop.run.checkpoints / ".step-00000010.fetched" / "model.safetensors"
    wait_until(lambda: aside.exists() and aside.stat().st_size > 10**6, "the first megabyte", SECONDS)
    first.close()
    second = laptop.mirror()
    second.begin_attempt(apart(A))
    assert second.finish() == []
    assert laptop.step("latest") == 10
    assert second.brought["a"].num_bytes < 3_100_000


def test_a_checkpoint_comes_from_another_host_if_the_first_is_lost(laptop: Laptop):
    laptop.save("a", 10, size=4_000_000)
    shutil.copytree(laptop.hosts["a"].checkpoints, laptop.hosts["b"].checkpoints, symlinks=True)
    mirror = laptop.mirror(rate=500_000)
    mirror.begin_attempt(apart(A, B))
    aside = laptop.run.checkpoints / ".step-00000010.fetched" / "model.safetensors"
    wait_until(lambda: aside.exists() and aside.stat().st_size > 10**6, "the first megabyte", SECONDS)
    lost, left = (A, B) if mirror.brought["a"].num_bytes else (B, A)
    laptop.lost.add(lost.name)
    mirror.end_attempt(lost=[lost])
    (message,) = mirror.finish()
    assert laptop.step("latest") == 10
    assert 10 in mirror.brought[left.name].steps
    assert mirror.brought[left.name].num_bytes < 3_100_000
    assert f"Files of the run are still on {lost.name}" in message
    assert f"fetch {laptop.run.path}" in message


def test_the_end_can_be_interrupted_and_says_where_the_weights_are(laptop: Laptop):
    laptop.save("a", 10, size=400_000)
    laptop.programs["a"] = [sys.executable, str(ELSEWHERE), str(laptop.hosts["a"].path), "0.3"]
    mirror = laptop.mirror(rate=1000)
    mirror.begin_attempt(apart(A))
    end = time.monotonic() + 1.0
    missing = mirror.finish(should_stop=lambda: time.monotonic() > end)
    assert any(f"The weights of step 10 are still on a in {laptop.run.path}; bring them" in each for each in missing)


def test_a_checkpoint_that_vanishes_is_no_error(laptop: Laptop):
    mirror = laptop.mirror(rate=500_000)
    mirror.begin_attempt(apart(A))
    folder = laptop.save("a", 10, size=3_000_000)
    aside = laptop.run.checkpoints / ".step-00000010.fetched"
    wait_until(aside.exists, "the beginning of step 10", SECONDS)
    shutil.rmtree(folder)
    laptop.save("a", 20)
    assert mirror.finish() == []
    assert laptop.step("latest") == 20
    assert not aside.exists()
    assert laptop.said == []


def test_wrong_hashes_are_noticed_and_not_tried_forever(laptop: Laptop):
    flip_bit(laptop.save("a", 10) / "model.safetensors")
    mirror = laptop.mirror()
    mirror.begin_attempt(apart(A))
    missing = mirror.finish()
    assert laptop.run.checkpoint_steps() == []
    assert laptop.step("latest") is None
    assert any("damaged" in each for each in laptop.said)
    assert any("The weights of step 10 are still on a" in each for each in missing)
    num_bytes = mirror.brought["a"].num_bytes
    time.sleep(0.5)
    assert mirror.brought["a"].num_bytes == num_bytes
    laptop.save("a", 20)
    assert mirror.finish() == []


# Faults


def test_a_full_disk_is_said_once_and_what_is_missing_comes_later(laptop: Laptop, monkeypatch: pytest.MonkeyPatch):
    is_full = True

    def require_free_space(folder: Path, _num_bytes: int = 0) -> None:
        if is_full:
            raise OSError(28, "No space left on device", str(folder))

    for module in ("host_mirror", "history", "fetched_checkpoints"):
        monkeypatch.setattr(f"dragoman.launch.mirror.{module}.require_free_space", require_free_space)
    monkeypatch.setattr(host_mirror, "DISK_PAUSE_SECONDS", 0.1)
    laptop.write("a", "system.a.jsonl", "{}\n")
    mirror = laptop.mirror()
    mirror.begin_attempt(apart(A))
    laptop.write("a", "log.txt", "line\n")
    laptop.save("a", 10)
    wait_until(lambda: laptop.said, "a message", SECONDS)
    time.sleep(0.5)
    assert len(laptop.said) == 1
    assert "there is no space left on the disk" in laptop.said[0]
    assert any("Files of the run are still on a" in each for each in mirror.finish())
    is_full = False
    laptop.wait_for("log.txt", "line\n")
    laptop.wait_for("system.a.jsonl", "{}\n")
    wait_until(lambda: laptop.step("latest") == 10, "step 10", SECONDS)
    assert mirror.finish() == []


def test_absurd_sizes_are_refused(laptop: Laptop):
    folder = laptop.save("a", 10)
    manifest = json.loads((folder / "manifest.json").read_text())
    manifest["files"]["model.safetensors"]["bytes"] = 10**17
    (folder / "manifest.json").write_text(json.dumps(manifest))
    with (laptop.hosts["a"].path / "translations.jsonl").open("wb") as file:
        file.truncate(10**9)  # without its blocks
    mirror = laptop.mirror()
    mirror.begin_attempt(apart(A))
    missing = mirror.finish()
    assert any("translations.jsonl is too large (1.0 GB)" in each for each in laptop.said)
    assert any("there is no space left on the disk" in each for each in laptop.said)
    assert missing
    assert sum(path.stat().st_size for path in laptop.run.path.rglob("*") if path.is_file()) < 10**6


@pytest.mark.parametrize("size", [-1, "many", 10**400, None])
def test_manifests_of_a_hostile_host_are_refused(laptop: Laptop, size: object):
    folder = laptop.save("a", 10)
    manifest = json.loads((folder / "manifest.json").read_text())
    manifest["files"]["model.safetensors"]["bytes"] = size
    (folder / "manifest.json").write_text(json.dumps(manifest))
    mirror = laptop.mirror()
    mirror.begin_attempt(apart(A))
    assert mirror.finish()
    assert laptop.run.checkpoint_steps() == []


def test_a_hostile_host_cannot_write_elsewhere(laptop: Laptop, tmp_path: Path):
    answer = {"files": {"../evil": [4, 10**18], "tokenizers/../../evil": [4, 10**18]}, "links": {"latest": 5}}
    program = (
        "import json, sys\n"
        "for line in sys.stdin:\n"
        "    match json.loads(line)['do']:\n"
        "        case 'open': print('{\"shares_folder\": false}', flush=True)\n"
        f"        case 'list': print({json.dumps(answer)!r}, flush=True)\n"
        '        case _: print(\'{"num_bytes": 4, "size": 4, "changed": 1}\\\\nevil\', end="", flush=True)\n'
    )
    laptop.programs["a"] = [sys.executable, "-c", program]
    mirror = laptop.mirror()
    mirror.begin_attempt(apart(A))
    time.sleep(0.5)
    mirror.finish()
    assert not [path for path in tmp_path.rglob("*") if "evil" in path.name]


def test_a_host_that_cannot_be_reached_is_said_once_and_reported_at_the_end(laptop: Laptop):
    mirror = laptop.mirror()
    mirror.begin_attempt(apart(A, B))
    laptop.lost.add("b")
    mirror._hosts["b"].abort()
    wait_until(lambda: laptop.said, "a message", SECONDS)
    time.sleep(1.0)
    (said,) = laptop.said
    assert said.startswith(
        "Files of b are not all brought here: b cannot be reached: ssh failed: ssh: no route to host"
    )
    assert said.endswith("Training is not affected; dragoman keeps trying.")
    (missing,) = mirror.finish()
    assert missing.startswith(f"Files of the run are still on b in {laptop.run.path} (b cannot be reached: ssh failed")


def test_a_host_that_sends_endless_files_is_stopped(laptop: Laptop, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(host_mirror, "MAX_HISTORY_BYTES", 10**6)
    laptop.write("a", "system.a.jsonl", "x" * 3_000_000)
    mirror = laptop.mirror()
    mirror.begin_attempt(apart(A))
    (missing,) = mirror.finish()
    assert "it has sent more than 1.0 MB besides checkpoints" in missing
    assert (laptop.run.path / "system.a.jsonl").stat().st_size < 1_500_000


def test_a_lost_link_is_opened_again(laptop: Laptop):
    of_others = set(psutil.Process().children())
    mirror = laptop.mirror()
    mirror.begin_attempt(apart(A))
    for number in range(3):
        for child in set(psutil.Process().children()) - of_others:
            child.kill()
        laptop.write("a", "log.txt", f"{number}\n")
        laptop.wait_for("log.txt", "".join(f"{each}\n" for each in range(number + 1)))
    assert laptop.said == []


def test_nothing_is_left_behind_by_a_closed_mirror(laptop: Laptop):
    num_threads, before = threading.active_count(), set(psutil.Process().children())
    mirror = laptop.mirror()
    mirror.begin_attempt(apart(A, B))
    begin = time.monotonic()
    mirror.close()
    assert time.monotonic() - begin < 5
    wait_until(lambda: not set(psutil.Process().children()) - before, "the end of processes", SECONDS)
    wait_until(lambda: threading.active_count() <= num_threads, "the end of threads", SECONDS)


# Without a launcher


def test_adopted_hosts_give_what_a_killed_launcher_did_not_bring(laptop: Laptop):
    first = laptop.mirror()
    first.begin_attempt(apart(A, B))
    laptop.write("a", "metrics.jsonl", "a1\n")
    laptop.wait_for("metrics.jsonl", "a1\n")
    first.close()
    laptop.write("a", "metrics.jsonl", "a2\n")
    laptop.write("b", "system.b.jsonl", "{}\n")
    laptop.save("a", 10)
    second = laptop.mirror()
    second.adopt([A, B])
    assert second.finish() == []
    assert laptop.read("metrics.jsonl") == "a1\na2\n"
    assert laptop.read("system.b.jsonl") == "{}\n"
    assert laptop.step("latest") == 10
    assert second.brought["a"].files == {"metrics.jsonl"}
    assert second.brought["a"].steps == {10}


def test_adopted_hosts_of_an_unknown_run_are_joined_in_the_order_of_time(laptop: Laptop):
    laptop.write("b", "metrics.jsonl", "b1\n")
    laptop.write("a", "metrics.jsonl", "a1\n")
    laptop.write("a", "config.toml", "x = 1\n")
    os.utime(laptop.hosts["b"].metrics, (1000, 1000))
    laptop.save("b", 20)
    laptop.save("a", 10)
    # While a sends what it has, b says that it has more.
    laptop.programs["b"] = [sys.executable, str(ELSEWHERE), str(laptop.hosts["b"].path), "0.2"]
    mirror = laptop.mirror()
    mirror.adopt([A, B, Host("localhost")])
    assert mirror.finish() == []
    assert laptop.read("metrics.jsonl") == "b1\na1\n"
    assert laptop.read("config.toml") == "x = 1\n"
    assert laptop.step("latest") == 20


def test_hosts_may_be_adopted_again_while_they_still_write(laptop: Laptop):
    for number in range(3):
        laptop.write("a", "metrics.jsonl", f"{number}\n{number} is not compl")
        mirror = laptop.mirror()
        mirror.adopt([A])
        assert mirror.finish() == []
        mirror.close()
        laptop.write("a", "metrics.jsonl", "ete\n")
    mirror = laptop.mirror()
    mirror.adopt([A])
    assert mirror.finish() == []
    assert laptop.read("metrics.jsonl") == "".join(f"{each}\n{each} is not complete\n" for each in range(3))


def test_the_same_weights_are_not_brought_again_from_another_host(laptop: Laptop):
    for host, seconds in (("a", 1.0), ("b", 2.0)):
        laptop.save(host, 10, seconds=seconds)
    for hosts in ([A], [B], [A]):
        mirror = laptop.mirror()
        mirror.adopt(hosts)
        assert mirror.finish() == []
    assert [each.steps for mirror in laptop.mirrors for each in mirror.brought.values()] == [{10}, set(), set()]
    laptop.save("a", 10, seconds=3.0)  # the host that it came from has saved it again
    mirror = laptop.mirror()
    mirror.adopt([A])
    assert mirror.finish() == []
    assert json.loads((laptop.run.checkpoint(10) / "state.json").read_text())["evaluation"] == {"seconds": 3.0}


def test_marks_name_the_host_that_a_checkpoint_came_from(laptop: Laptop):
    laptop.save("a", 10)
    mirror = laptop.mirror()
    mirror.adopt([A])
    assert mirror.finish() == []
    mark = laptop.run.checkpoint(10) / fetched_checkpoints.MARK_FILE
    assert json.loads(mark.read_text()) == {"host": "a"}
