"""Segments that several hosts wrote become one file in the order of attempts, whatever is lost, late or killed."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any
from unittest import mock

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dragoman.launch.mirror import history as history_module
from dragoman.launch.mirror.history import HistoryFile


def open_history(folder: Path) -> HistoryFile:
    return HistoryFile(folder / "log.txt", folder / ".mirror")


def fetch(history: HistoryFile, host: str, content: bytes, max_bytes: int = 10**6) -> int:
    """Brings the next part of a host's file, as the mirror does."""
    segment = history.next_segment(host, len(content))
    if segment is None:
        return 0
    offset = segment.fetched
    part = content[offset : offset + min(max_bytes, segment.rest(len(content)))]
    is_last = segment.limit is not None and offset + len(part) >= segment.limit
    return history.add(segment, offset, part, is_last)


def append_own(folder: Path, line: bytes) -> None:
    with (folder / "log.txt").open("ab") as file:
        file.write(line)


def test_lines_of_a_lost_host_are_inserted_before_those_of_the_next_attempt(tmp_path: Path):
    history = open_history(tmp_path)
    append_own(tmp_path, b"own: a and b\n")
    history.begin_segment("a", 0)
    fetch(history, "a", b"a1\na2\n")
    append_own(tmp_path, b"own: a is lost\n")
    history.begin_segment("b", 0)
    fetch(history, "b", b"b1\n")
    fetch(history, "a", b"a1\na2\na3\n")
    fetch(history, "b", b"b1\nb2\n")
    assert (tmp_path / "log.txt").read_text() == "own: a and b\na1\na2\na3\nown: a is lost\nb1\nb2\n"


def test_lines_of_a_returned_host_are_divided_between_its_attempts(tmp_path: Path):
    history = open_history(tmp_path)
    history.begin_segment("a", 0)
    history.begin_segment("b", 0)
    fetch(history, "b", b"b1\n")
    late = b"a1\na2\n"
    history.begin_segment("a", len(late))
    while fetch(history, "a", late + b"a3\n"):
        pass
    assert (tmp_path / "log.txt").read_text() == "a1\na2\nb1\na3\n"


def test_only_whole_lines_are_taken_and_a_line_cut_by_a_kill_is_dropped(tmp_path: Path):
    history = open_history(tmp_path)
    history.begin_segment("a", 0)
    assert fetch(history, "a", b"one\ntw") == 4
    assert fetch(history, "a", b"one\ntw") == 0
    history.begin_segment("a", 6)
    append_own(tmp_path, b"own\n")
    # The next worker first ends the line that its predecessor left.
    while fetch(history, "a", b"one\ntw\nthree\n"):
        pass
    assert (tmp_path / "log.txt").read_text() == "one\nown\nthree\n"


def test_a_host_that_does_not_tell_its_size_continues_where_it_was_read(tmp_path: Path):
    history = open_history(tmp_path)
    history.begin_segment("a", 0)
    fetch(history, "a", b"one\n")
    history.begin_segment("a", None)
    fetch(history, "a", b"one\ntwo\n")
    assert (tmp_path / "log.txt").read_text() == "one\ntwo\n"


def test_history_of_before_comes_only_where_it_is_wanted(tmp_path: Path):
    history = open_history(tmp_path)
    history.begin_segment("a", 4, is_all_wanted=True)
    fetch(history, "a", b"old\nnew\n")
    assert (tmp_path / "log.txt").read_text() == "old\nnew\n"
    history.begin_segment("b", 4)
    fetch(history, "b", b"old\nnext\n")
    assert (tmp_path / "log.txt").read_text() == "old\nnew\nnext\n"


def test_a_line_that_was_appended_while_the_file_was_replaced_is_kept(tmp_path: Path):
    history = open_history(tmp_path)
    history.begin_segment("a", 0)
    fetch(history, "a", b"a1\n")
    append_own(tmp_path, b"own\n")
    history.end_attempt()
    with (tmp_path / "log.txt").open("ab", buffering=0) as other:  # opened before, written after
        fetch(history, "a", b"a1\na2\n")
        other.write(b"late\n")
    history.close()
    assert (tmp_path / "log.txt").read_text() == "a1\na2\nown\nlate\n"


def test_a_full_disk_delays_lines_and_loses_or_repeats_none(tmp_path: Path):
    history = open_history(tmp_path)
    history.begin_segment("a", 0)

    def write_a_part(file: Any, data: bytes) -> None:
        file.write(data[:3])
        raise OSError(28, "No space left on device")

    with mock.patch.object(history_module, "write_all", write_a_part), pytest.raises(OSError, match="No space"):
        fetch(history, "a", b"a1\na2\n")
    fetch(history, "a", b"a1\na2\na3\n")
    fetch(history, "a", b"a1\na2\na3\n")
    assert (tmp_path / "log.txt").read_text() == "a1\na2\na3\n"


def test_a_damaged_book_is_taken_for_none(tmp_path: Path):
    history = open_history(tmp_path)
    history.begin_segment("a", 0)
    fetch(history, "a", b"a1\n")
    (tmp_path / ".mirror" / "log.txt.segments.json").write_text("[{]")
    history = open_history(tmp_path)
    history.begin_segment("a", 3)
    fetch(history, "a", b"a1\na2\n")
    assert (tmp_path / "log.txt").read_text() == "a1\na2\n"


# Any order of events


class Killed(BaseException):
    """The launcher is killed at this moment."""


class Kill:
    """Kills before or after the n-th write; -1 for never."""

    def __init__(self) -> None:
        self.num_left = -1

    def tick(self) -> None:
        self.num_left -= 1
        if self.num_left == 0:
            raise Killed

    @contextmanager
    def armed(self) -> Iterator[None]:
        real_rename, real_json, real_all = (
            history_module.write_then_rename,
            history_module.write_json,
            history_module.write_all,
        )

        @contextmanager
        def write_then_rename(*arguments: Any, **options: Any) -> Iterator[Any]:
            self.tick()
            with real_rename(*arguments, **options) as file:
                yield file
            self.tick()

        def write_json(*arguments: Any, **options: Any) -> None:
            self.tick()
            real_json(*arguments, **options)
            self.tick()

        def write_all(file: Any, data: bytes) -> None:
            self.tick()
            real_all(file, data[: len(data) // 2])
            self.tick()
            real_all(file, data[len(data) // 2 :])
            self.tick()

        with mock.patch.multiple(
            history_module, write_then_rename=write_then_rename, write_json=write_json, write_all=write_all
        ):
            yield


class Cluster:
    """Hosts that write, and a launcher that joins what they wrote; knows what must come out."""

    def __init__(self, folder: Path, kill: Kill) -> None:
        self.folder = folder
        self.kill = kill
        self.content: dict[str, bytes] = {"a": b"", "b": b"", "c": b""}
        self.writer: str | None = None
        self.expected: list[bytes] = []
        self.own: list[bytes] = []
        self.history = open_history(folder)

    def begin(self, host: str, is_size_known: bool) -> None:
        """Starts an attempt with rank 0 on a host; its worker ends a line that a killed one left."""
        content = self.content[host]
        if not is_size_known and self.history.next_segment(host, len(content)):
            is_size_known = True  # what is left of before cannot be told from what is new
        self.history.begin_segment(host, len(content) if is_size_known else None)
        self.content[host] += b"\n" if content and not content.endswith(b"\n") else b""
        self.writer = host

    def write(self, text: str, is_cut: bool) -> None:
        """Rank 0 writes a line, or is killed while it does."""
        if self.writer is None:
            return
        line = f"{len(self.expected)}{text}".encode()
        if is_cut:
            self.content[self.writer] += line
            self.writer = None
        else:
            self.content[self.writer] += line + b"\n"
            self.expected.append(line)

    def say(self) -> None:
        """The launcher appends a line of its own."""
        self.own.append(f"own {len(self.own)}".encode())
        append_own(self.folder, self.own[-1] + b"\n")

    def fetch(self, host: str, max_bytes: int, num_writes_to_kill: int) -> None:
        """A part of a host's file comes; perhaps the launcher is killed meanwhile, and resumed."""
        self.kill.num_left = num_writes_to_kill
        try:
            fetch(self.history, host, self.content[host], max_bytes)
        except Killed:
            self.resume()
        self.kill.num_left = -1

    def resume(self) -> None:
        """Another launcher continues; the workers of the one before have ended."""
        self.kill.num_left = -1
        self.writer = None
        self.history = open_history(self.folder)

    def finish(self) -> list[bytes]:
        """Brings the rest; returns the lines of the joined file."""
        self.history.end_attempt()
        for host, content in self.content.items():
            self.history.close_segments(host, len(content))
            while fetch(self.history, host, content, max_bytes=30):
                pass
        self.history.close()
        return (self.folder / "log.txt").read_bytes().splitlines() if (self.folder / "log.txt").exists() else []


HOSTS = st.sampled_from("abc")
EVENTS = st.one_of(
    st.tuples(st.just("begin"), HOSTS, st.booleans()),
    st.tuples(st.just("write"), st.sampled_from(["", "x" * 20]), st.sampled_from([False] * 5 + [True])),
    st.tuples(st.just("say")),
    st.tuples(st.just("fetch"), HOSTS, st.sampled_from([25, 100]), st.sampled_from([-1] * 3 + list(range(1, 9)))),
    st.tuples(st.just("resume")),
)


@given(events=st.lists(EVENTS, max_size=60))
def test_any_order_of_writes_losses_returns_and_kills_gives_all_segments_in_order(events: list[tuple[Any, ...]]):
    kill = Kill()
    with TemporaryDirectory() as folder, kill.armed():
        cluster = Cluster(Path(folder), kill)
        for name, *arguments in events:
            getattr(cluster, name)(*arguments)
        lines = cluster.finish()
    assert [line for line in lines if not line.startswith(b"own")] == cluster.expected
    assert [line for line in lines if line.startswith(b"own")] == cluster.own
