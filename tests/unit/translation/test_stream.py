"""Files and pipes, line by line: places kept, bad lines, what has arrived, numbers that count from the start."""

import gzip
import io
import os
import threading
from pathlib import Path

import pytest

from dragoman.run.errors import UserError
from dragoman.translation.files import input_blocks, stream
from dragoman.translation.files.stream import translate_stream

LINES = ["the cat", "a mat", "two small dogs", "the river", "an old green house"]


@pytest.fixture
def said() -> list[str]:
    return []


@pytest.fixture
def run_stream(build, said: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Translates bytes in blocks of two lines, and returns the output, also if it ends with an error."""
    monkeypatch.setattr(input_blocks, "LINES_PER_BLOCK", 2)

    def run(content: bytes, max_bad_lines: int = 0, **options) -> str:
        path = tmp_path / "input"
        path.write_bytes(content)
        output = io.StringIO()
        try:
            translate_stream(build(say=said.append, **options), path, output, said.append, max_bad_lines)
        except UserError as error:
            said.append(f"error: {error}")
        return output.getvalue()

    return run


def joined(lines: list[str]) -> str:
    return "".join(line + "\n" for line in lines)


def test_every_line_keeps_its_place(run_stream, build, said) -> None:
    expected = joined([*build().translate(LINES[:3]), "", *build().translate(LINES[3:])])
    assert run_stream(joined([*LINES[:3], "", *LINES[3:]]).encode()) == expected
    assert said == []


@pytest.mark.parametrize("content", [b"", b"\xef\xbb\xbf", gzip.compress(b"")], ids=["nothing", "mark", "gzip"])
def test_an_empty_input_has_an_empty_output(run_stream, said, content: bytes) -> None:
    assert run_stream(content) == ""
    assert not [text for text in said if "error" in text]


def test_empty_lines_stay_empty_lines(run_stream) -> None:
    assert run_stream(b"\n\n \n") == "\n\n\n"


BAD_LINES = {"not UTF-8": b"caf\xe9", "NUL": b"a\0b", "more than the 65,536": b"a " * 40_000}


@pytest.mark.parametrize("reason", BAD_LINES)
def test_a_bad_line_is_an_error_after_everything_before_it(
    run_stream, build, said, tmp_path: Path, reason: str
) -> None:
    content = joined(LINES[:3]).encode() + BAD_LINES[reason] + b"\n" + LINES[4].encode()
    assert run_stream(content) == joined(build().translate(LINES[:3]))
    assert len(said) == 1
    assert said[0].startswith(f"error: {tmp_path / 'input'}, line 4 ")
    assert reason in said[0]
    assert said[0].endswith("or skip up to N bad lines with --skip-bad-lines N.")


def test_skipped_lines_are_empty_lines_and_are_counted(run_stream, build, said, tmp_path: Path) -> None:
    content = b"\n".join([LINES[0].encode(), *BAD_LINES.values(), LINES[1].encode()])
    assert run_stream(content, max_bad_lines=3) == joined(
        [*build().translate(LINES[:1]), "", "", "", *build().translate(LINES[1:2])]
    )
    assert [text.split(":")[0] for text in said] == ["Skipped", "Skipped", "Skipped", "Skipped lines"]
    assert said[1].startswith(f"Skipped: {tmp_path / 'input'}, line 3: has a NUL byte")
    assert said[3] == "Skipped lines: 3; each is an empty line of the output."


def test_more_bad_lines_than_allowed(run_stream, build, said) -> None:
    content = b"\n".join([LINES[0].encode(), *BAD_LINES.values(), LINES[1].encode()])
    assert run_stream(content, max_bad_lines=2) == joined([*build().translate(LINES[:1]), "", ""])
    assert "line 4 has 80,000 bytes" in said[-1]
    assert "after 2 bad lines" in said[-1]


def test_a_damaged_archive_is_an_error_after_what_could_be_read(run_stream, build, said) -> None:
    packed = gzip.compress(joined(LINES[:1]).encode()) + gzip.compress(os.urandom(1_000))[:500]
    output = run_stream(packed)
    assert "is damaged" in said[-1]
    assert output == "" or output.startswith(build().translate(LINES[:1])[0])


def test_numbers_in_notices_count_from_the_start_of_the_file(run_stream, said) -> None:
    run_stream(joined([*LINES, " ".join(LINES), "a ☃"]).encode(), max_source_tokens=15)
    assert said[0].startswith("Line 6 has ")
    assert "☃ U+2603 (line 7)" in said[1]


def test_only_plain_files_are_counted_before_they_are_translated(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    content = joined(LINES).encode()
    Path("plain").write_bytes(content)
    Path("-").write_bytes(content)
    Path("packed.gz").write_bytes(gzip.compress(content))
    assert [input_blocks.count_lines(Path(name)) for name in ("plain", "-", "packed.gz")] == [5, None, None]
    monkeypatch.setattr(input_blocks, "_MAX_COUNTED_BYTES", len(content) - 1)
    assert input_blocks.count_lines(Path("plain")) is None


def test_nothing_is_counted_where_no_progress_is_shown(build, said, tmp_path: Path, monkeypatch) -> None:
    (tmp_path / "input").write_text(joined(LINES))
    terminal = io.StringIO()
    monkeypatch.setattr(terminal, "isatty", lambda: True)
    monkeypatch.setattr(stream, "count_lines", None)
    translate_stream(build(), tmp_path / "input", terminal, said.append)
    assert terminal.getvalue() == joined(build().translate(LINES))


def test_lines_of_a_pipe_are_translated_as_they_arrive(build, said, tmp_path: Path) -> None:
    """Nobody waits for a full block: the second line is written only after the translation of the first was read."""
    source, output = tmp_path / "pipe", tmp_path / "output"
    os.mkfifo(source)

    def translate() -> None:
        with output.open("w") as file:
            translate_stream(build(), source, file, said.append)

    worker = threading.Thread(target=translate, daemon=True)
    worker.start()
    with source.open("w") as writer:
        for number, line in enumerate(LINES[:3], 1):
            print(line, file=writer, flush=True)
            for _ in range(3_000):
                if output.exists() and output.read_text().count("\n") == number:
                    break
                worker.join(0.01)
            assert output.read_text() == joined(build().translate(LINES[:number]))
    worker.join(30)
    assert not worker.is_alive()
