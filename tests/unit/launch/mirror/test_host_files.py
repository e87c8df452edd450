"""The program that reads a run folder on another host, as a real process; and hosts that answer what they want."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
from checkpoint_folders import make_checkpoint
from program import wait_until

from dragoman.launch.hosts import Host
from dragoman.launch.mirror import file_link
from dragoman.launch.mirror.file_link import FileGoneError, FileLink, LinkError, RefusedFileError, file_command
from dragoman.launch.mirror.host_files import MAX_READ_BYTES, MODULE, FileKind, kind_of_file, slowest_port
from dragoman.run.folder import RunFolder

HOST = Host("there")
PROGRAM = [sys.executable, "-P", "-m", MODULE]


@pytest.fixture
def run(tmp_path: Path) -> RunFolder:
    folder = tmp_path / "run"
    folder.mkdir()
    return RunFolder(folder)


@pytest.fixture
def link(run: RunFolder) -> Iterator[FileLink]:
    with FileLink(HOST, lambda _: PROGRAM) as link:
        link.open_run(run.path, "no-such-token")
        yield link


# Names


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("metrics.jsonl", FileKind.HISTORY),
        ("log.txt", FileKind.HISTORY),
        ("system.gpu-1.cluster.jsonl", FileKind.GROWING),
        ("system.a%20b.jsonl", FileKind.GROWING),
        ("tensorboard/events.out.tfevents.1753.123456.h1.77", FileKind.GROWING),
        ("translations.jsonl", FileKind.REPLACED),
        ("failure.rank12.txt", FileKind.REPLACED),
        ("tokenizers/source.model", FileKind.WRITTEN_ONCE),
        ("checkpoints/step-00000500/model.safetensors", FileKind.CHECKPOINT),
    ],
)
def test_files_of_a_run_are_known_by_name(name: str, kind: FileKind):
    assert kind_of_file(name) is kind


@pytest.mark.parametrize(
    "name",
    [
        "",
        "..",
        "/etc/passwd",
        "../metrics.jsonl",
        "tokenizers/..",
        "tokenizers/../config.toml",
        "tokenizers/.hidden",
        "tokenizers/a/b",
        "system./../../x.jsonl",
        "metrics.jsonl\n",
        "log.txt\0",
        "status.json",
        ".lock",
        "hosts.json",
        "report.html",
        "checkpoints/step-00000500/evil.py",
        "checkpoints/step-٠٠٠٠٠٠٠٠/model.safetensors",
        "checkpoints/latest",
        "tensorboard/evil",
        f"system.{'x' * 300}.jsonl",
    ],
)
def test_no_other_name_is_read_or_written(name: str):
    assert kind_of_file(name) is None


# Reading


def test_files_are_listed_with_sizes_and_the_steps_of_links(run: RunFolder, link: FileLink):
    run.metrics.write_text("{}\n")
    run.tensorboard.mkdir()
    (run.tensorboard / "events.out.tfevents.1.h.2").write_bytes(b"12345")
    make_checkpoint(run, 0)
    checkpoint = make_checkpoint(run, 500)
    (run.checkpoints / "latest").symlink_to(checkpoint.name)
    (run.checkpoints / "best").symlink_to("../elsewhere")
    run.status.write_text("{}")
    listing = link.list_files()
    assert {name: facts.size for name, facts in listing.files.items()} == {
        "metrics.jsonl": 3,
        "tensorboard/events.out.tfevents.1.h.2": 5,
        "checkpoints/step-00000500/manifest.json": (checkpoint / "manifest.json").stat().st_size,
    }
    assert listing.links == {"latest": 500}
    assert listing.files["metrics.jsonl"].changed == run.metrics.stat().st_mtime_ns


def test_an_empty_or_missing_run_is_listed_as_empty(tmp_path: Path):
    with FileLink(HOST, lambda _: PROGRAM) as link:
        assert not link.open_run(tmp_path / "none", "token").shares_folder
        assert (link.list_files().files, link.list_files().links) == ({}, {})


def test_a_host_that_sees_the_token_shares_the_folder(run: RunFolder):
    (run.path / ".seen-1").touch()
    with FileLink(HOST, lambda _: PROGRAM) as link:
        assert link.open_run(run.path, ".seen-1").shares_folder


def test_parts_are_read_from_any_offset_without_loss(run: RunFolder, link: FileLink):
    content = bytes(range(256)) * 3000
    run.log.write_bytes(content)
    parts = [link.read("log.txt", offset).content for offset in range(0, len(content), MAX_READ_BYTES)]
    assert b"".join(parts) == content
    assert link.read("log.txt", len(content)).content == b""
    assert link.read("log.txt", 10, 5).content == content[10:15]


def test_a_missing_file_is_gone(link: FileLink):
    with pytest.raises(FileGoneError):
        link.read("log.txt", 0)


def test_links_and_pipes_are_not_read(run: RunFolder, link: FileLink, tmp_path: Path):
    secret = tmp_path / "secret"
    secret.mkdir()
    (secret / "source.model").write_text("secret")
    run.log.symlink_to(secret / "source.model")
    run.tokenizers.symlink_to(secret)
    os.mkfifo(run.metrics)
    assert link.list_files().files == {}
    with pytest.raises((FileGoneError, RefusedFileError)):
        link.read("log.txt", 0)
    with pytest.raises((FileGoneError, RefusedFileError)):
        link.read("tokenizers/source.model", 0)
    with pytest.raises((FileGoneError, RefusedFileError)):
        link.read("metrics.jsonl", 0)


def test_names_outside_the_run_are_refused_on_the_host_too(link: FileLink):
    with pytest.raises(RefusedFileError, match="not a file of a run"):
        link.read("../secret", 0)


def test_a_checkpoint_that_the_run_removes_is_read_to_its_end(run: RunFolder, link: FileLink):
    checkpoint = make_checkpoint(run, 7)
    content = (checkpoint / "model.safetensors").read_bytes()
    link.read("checkpoints/step-00000007/manifest.json", 0)
    for file in checkpoint.iterdir():
        file.unlink()
    checkpoint.rmdir()
    assert link.read("checkpoints/step-00000007/model.safetensors", 0).content == content
    with pytest.raises(FileGoneError):  # the manifest is always that of now
        link.read("checkpoints/step-00000007/manifest.json", 0)
    with pytest.raises(FileGoneError):
        link.read("checkpoints/step-00000007/model.safetensors", 0)


@pytest.mark.parametrize(
    ("cards", "rate"),
    [
        ({"eth0": ("up", "1000"), "eth1": ("up", "100")}, 12_500_000),
        ({"eth0": ("up", "1000"), "eth1": ("down", "100"), "eth2": ("up", "-1")}, 125_000_000),
        ({"eth0": ("up", "")}, None),
        ({}, None),
    ],
)
def test_the_slowest_network_card_that_is_up_counts(tmp_path: Path, cards: dict[str, tuple[str, str]], rate: int):
    for name, (state, speed) in cards.items():
        (tmp_path / name / "device").mkdir(parents=True)
        (tmp_path / name / "operstate").write_text(f"{state}\n")
        (tmp_path / name / "speed").write_text(f"{speed}\n")
    (tmp_path / "docker0").mkdir()
    (tmp_path / "docker0" / "operstate").write_text("up\n")
    (tmp_path / "docker0" / "speed").write_text("10\n")
    assert slowest_port(tmp_path) == rate


# The end


def test_the_program_ends_with_its_input(run: RunFolder):
    with FileLink(HOST, lambda _: PROGRAM) as link:
        link.open_run(run.path, "token")
        program = psutil.Process(link._process.pid)
        begin = time.monotonic()
    assert not program.is_running()
    assert time.monotonic() - begin < file_link.CLOSE_SECONDS


def test_the_program_ends_when_the_launcher_is_silent(run: RunFolder):
    # With a short limit; a stopped launcher keeps the pipes open.
    silent = "from dragoman.launch.mirror import host_files; host_files.SILENCE_SECONDS = 1; host_files.main()"
    program = subprocess.Popen([sys.executable, "-c", silent], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    try:
        assert program.wait(timeout=20) == -signal.SIGALRM
    finally:
        program.kill()
        program.communicate()


def test_an_aborted_request_fails_at_once(run: RunFolder, monkeypatch: pytest.MonkeyPatch):
    with FileLink(HOST, lambda _: ["sleep", "60"]) as link:
        link.abort()
        with pytest.raises(LinkError, match="ended with code"):
            link.open_run(run.path, "token")


def test_the_link_uses_an_ssh_of_its_own_that_notices_a_lost_link(tmp_path: Path):
    command = file_command(tmp_path / "config")(Host("user@h1"))
    assert command[0] == "ssh"
    assert command[-3:-1] == ["--", "user@h1"]
    assert "ServerAliveInterval=5" in command
    assert command[-1].endswith(f"-P -m {MODULE}")


@pytest.mark.parametrize(
    ("host", "message"),
    [
        ("unreachable", "unreachable cannot be reached: ssh failed: unreachable does not answer on port 22"),
        ("bare", "bare has no .*python.*: install dragoman at the same path there."),
    ],
)
def test_a_host_that_cannot_be_read_says_why(fake_ssh, run: RunFolder, host: str, message: str):
    with FileLink(Host(host), file_command(None)) as link, pytest.raises(LinkError, match=message):
        link.open_run(run.path, "token")


def test_greetings_of_login_scripts_are_skipped(fake_ssh, run: RunFolder):
    run.log.write_text("line\n")
    with FileLink(Host("talkative"), file_command(None)) as link:
        link.open_run(run.path, "token")
        assert link.read("log.txt", 0).content == b"line\n"


# Hosts that answer what they want


def hostile(*answers: bytes) -> list[str]:
    """A program that sends these answers, one for each request, and then waits."""
    program = (
        "import sys\n"
        f"for answer in {answers!r}:\n"
        "    sys.stdin.buffer.readline()\n"
        "    sys.stdout.buffer.write(answer)\n"
        "    sys.stdout.buffer.flush()\n"
        "sys.stdin.buffer.read()\n"
    )
    return [sys.executable, "-c", program]


OPENED = b'{"shares_folder": false}\n'


@pytest.mark.parametrize(
    "answer",
    [
        b"[]\n",
        b"hello\n",
        b"{}\n",
        b"[" * 100_000 + b"\n",
        b'{"files": {"log.txt": [-1, 0]}, "links": {}}\n',
        b'{"files": {"log.txt": [1e400, 0]}, "links": {}}\n',
        b'{"files": {"log.txt": [9999999999999999999999, 0]}, "links": {}}\n',
        b'{"files": {"log.txt": [true, 0]}, "links": {}}\n',
        b'{"files": {"log.txt": "x"}, "links": {}}\n',
        json.dumps({"files": {str(number): [1, 1] for number in range(6000)}, "links": {}}).encode() + b"\n",
    ],
)
def test_nonsense_instead_of_a_listing_is_refused(tmp_path: Path, answer: bytes):
    with FileLink(HOST, lambda _: hostile(OPENED, answer)) as link:
        link.open_run(tmp_path, "token")
        with pytest.raises(LinkError, match="no answer"):
            link.list_files()


def test_evil_names_and_steps_of_a_listing_are_left_out(tmp_path: Path):
    answer = {
        "files": {"../evil": [1, 1], "/etc/passwd": [1, 1], "log.txt": [1, 1]},
        "links": {"latest": "../../etc", "best": -1, "other": 5},
    }
    with FileLink(HOST, lambda _: hostile(OPENED, json.dumps(answer).encode() + b"\n")) as link:
        link.open_run(tmp_path, "token")
        listing = link.list_files()
    assert list(listing.files) == ["log.txt"]
    assert listing.links == {}


@pytest.mark.parametrize("num_bytes", [-1, 11, 10**15, 1.5, "5", None, True])
def test_an_answer_of_another_length_than_asked_for_is_refused(tmp_path: Path, num_bytes: object):
    answer = json.dumps({"num_bytes": num_bytes, "size": 100, "changed": 1}).encode() + b"\n" + b"x" * 100
    with FileLink(HOST, lambda _: hostile(OPENED, answer)) as link:
        link.open_run(tmp_path, "token")
        with pytest.raises(LinkError, match="no answer"):
            link.read("log.txt", 0, 10)


def test_an_endless_line_is_refused_before_it_fills_the_memory(tmp_path: Path):
    endless = [sys.executable, "-c", "import sys\nwhile True: sys.stdout.write('x' * 65536)"]
    with FileLink(HOST, lambda _: endless) as link, pytest.raises(LinkError, match="no answer"):
        link.open_run(tmp_path, "token")


def test_endless_complaints_do_not_fill_the_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(file_link, "OPEN_SECONDS", 2.0)
    endless = [sys.executable, "-c", "import sys\nwhile True: sys.stderr.write('x' * 65536)"]
    with FileLink(HOST, lambda _: endless) as link:
        with pytest.raises(LinkError, match="does not answer"):
            link.open_run(tmp_path, "token")
        assert len(link._complaints) <= file_link.MAX_COMPLAINT_BYTES


def test_a_host_that_falls_silent_in_the_middle_of_a_file_is_noticed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(file_link, "SILENCE_SECONDS", 0.5)
    answer = json.dumps({"num_bytes": 10, "size": 100, "changed": 1}).encode() + b"\nhalf"
    with FileLink(HOST, lambda _: hostile(OPENED, answer)) as link:
        wait_until(lambda: link._process.poll() is None, "the program")
        monkeypatch.setattr(file_link, "SILENCE_SECONDS", 10.0)
        link.open_run(tmp_path, "token")
        monkeypatch.setattr(file_link, "SILENCE_SECONDS", 0.5)
        with pytest.raises(LinkError, match="does not answer"):
            link.read("log.txt", 0, 10)


def test_what_a_host_sent_is_shown_without_control_characters(tmp_path: Path):
    with FileLink(HOST, lambda _: hostile(OPENED, b'{"error": "\\u001b[2Jgone"}\n')) as link:
        link.open_run(tmp_path, "token")
        with pytest.raises(RefusedFileError) as caught:
            link.read("log.txt", 0, 10)
    assert str(caught.value) == "there: ?[2Jgone."
