"""Lines of a growing file arrive whole, whatever happens to the file."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dragoman.run import line_follower
from dragoman.run.errors import UserError
from dragoman.run.line_follower import LineFollower

lines_of_text = st.lists(st.text(st.characters(exclude_characters="\n", exclude_categories=["Cs"])), max_size=8)


@pytest.fixture
def log(tmp_path: Path) -> Path:
    return tmp_path / "log.txt"


def append(path: Path, content: str | bytes) -> None:
    with path.open("ab") as file:
        file.write(content.encode() if isinstance(content, str) else content)


@given(lines_of_text, st.text(st.characters(exclude_characters="\n")), st.data())
def test_lines_come_whole_wherever_writing_is_cut(tmp_path_factory, lines, half_line, data):
    path = tmp_path_factory.mktemp("log") / "log.txt"
    content = "".join(line + "\n" for line in lines).encode() + half_line.encode("utf-8", "surrogatepass")
    cuts = sorted(data.draw(st.lists(st.integers(0, len(content)), max_size=6)))
    seen: list[str] = []
    with LineFollower(path) as follower:
        for begin, end in zip([0, *cuts], [*cuts, len(content)], strict=True):
            append(path, content[begin:end])
            seen += follower.read_lines()
            assert len(seen) == content[:end].count(b"\n")
        assert seen == lines
        append(path, b"\n")
        assert len(list(follower.read_lines())) == 1


@given(lines_of_text, st.integers(0, 10), st.integers(1, 30))
def test_the_last_lines_are_found_from_the_end(tmp_path_factory, lines, num_lines, chunk_bytes):
    path = tmp_path_factory.mktemp("log") / "log.txt"
    append(path, "".join(line + "\n" for line in lines) + "half")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(line_follower, "CHUNK_BYTES", chunk_bytes)
        with LineFollower(path, num_lines) as follower:
            assert list(follower.read_lines()) == lines[max(0, len(lines) - num_lines) :]
            append(path, " a line\nnew\n")
            assert list(follower.read_lines()) == ["half a line", "new"]


def test_bytes_that_are_no_text_are_shown_as_such(log):
    append(log, b"caf\xe9\nnext\n")
    with LineFollower(log) as follower:
        assert list(follower.read_lines()) == ["caf\ufffd", "next"]


@pytest.mark.parametrize("num_lines", [None, 0, 10])
def test_a_file_may_appear_later(log, num_lines):
    with LineFollower(log, num_lines) as follower:
        assert list(follower.read_lines()) == []
        append(log, "first\nsecond\n")
        assert list(follower.read_lines()) == ["first", "second"]


def test_a_file_that_was_cut_short_is_read_from_its_beginning(log):
    append(log, "first\nsecond\nhalf")
    with LineFollower(log) as follower:
        assert list(follower.read_lines()) == ["first", "second"]
        log.write_text("new\n")
        assert list(follower.read_lines()) == ["new"]


def test_a_file_that_was_replaced_is_read_to_its_end_then_the_new_one(log):
    append(log, "first\nsecond, ")
    with LineFollower(log) as follower:
        assert list(follower.read_lines()) == ["first"]
        append(log, "completed\nhalf")
        log.rename(log.with_name("log.old"))
        append(log, "new, which is longer than the old one was\n")
        assert list(follower.read_lines()) == ["second, completed", "new, which is longer than the old one was"]


def test_a_file_that_is_away_for_a_while_is_not_read_twice(log):
    append(log, "first\n")
    with LineFollower(log) as follower:
        assert list(follower.read_lines()) == ["first"]
        away = log.with_name("away")
        log.rename(away)
        append(away, "second\n")
        assert list(follower.read_lines()) == ["second"]
        away.rename(log)
        append(log, "third\n")
        assert list(follower.read_lines()) == ["third"]


def test_a_file_that_was_removed_and_made_again_is_new(log):
    """Though the new one may be as long as the old one, and would have its inode were that not held."""
    append(log, "old\n")
    with LineFollower(log) as follower:
        assert list(follower.read_lines()) == ["old"]
        log.unlink()
        append(log, "new\n")
        assert list(follower.read_lines()) == ["new"]


def test_what_cannot_be_read_is_said(log):
    log.parent.joinpath("file").write_text("")
    with pytest.raises(UserError, match=r"log\.txt cannot be read: a part of the path is a file"):
        list(LineFollower(log.parent / "file" / "log.txt").read_lines())
