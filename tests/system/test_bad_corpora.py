"""Bad text in every format and compression: the file and the line are named, nothing is left, and some may be skipped.

The command runs in this process, because there are many cases and starting one takes longer than all it does.
"""

import bz2
import gzip
import json
import lzma
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
import zstandard
from corpora import names_in

from dragoman import cli

Command = Callable[..., tuple[int, str]]
COMPRESSIONS: dict[str, Callable[[bytes], bytes]] = {
    "gz": gzip.compress,
    "xz": lzma.compress,
    "zst": zstandard.ZstdCompressor().compress,
    "bz2": bz2.compress,
}
PAIRS = [(f"line number {number} of it", f"it of {number} number line") for number in range(1, 61)]


@pytest.fixture
def prepare(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Command:
    """Runs `dragoman prepare` on files in tmp_path; returns the exit code and standard error."""

    def run(*arguments: object) -> tuple[int, str]:
        fixed = ["dragoman", "prepare", "--json", "--out", tmp_path / "out"]
        monkeypatch.setattr(sys, "argv", [*map(str, fixed), *map(str, arguments)])
        with pytest.raises(SystemExit) as ended:
            cli.main()
        return int(ended.value.code or 0), capsys.readouterr().err

    return run


def tsv(bad: dict[int, bytes]) -> bytes:
    rows = [bad.get(number, f"{s}\t{t}".encode()) for number, (s, t) in enumerate(PAIRS, 1)]
    return b"".join(row + b"\n" for row in rows)


def jsonl(bad: dict[int, bytes]) -> bytes:
    rows = [
        bad.get(number, json.dumps({"translation": {"en": s, "de": t}}).encode())
        for number, (s, t) in enumerate(PAIRS, 1)
    ]
    return b"".join(row + b"\n" for row in rows)


def tmx(bad: dict[int, bytes]) -> bytes:
    units = [
        bad.get(
            number,
            f'<tu><tuv xml:lang="en"><seg>{s}</seg></tuv><tuv xml:lang="de"><seg>{t}</seg></tuv></tu>'.encode(),
        )
        for number, (s, t) in enumerate(PAIRS, 1)
    ]
    return b'<tmx version="1.4"><header/><body>\n' + b"".join(unit + b"\n" for unit in units) + b"</body></tmx>\n"


def parquet(bad: dict[int, bytes]) -> bytes:
    pyarrow = pytest.importorskip("pyarrow")
    from pyarrow import parquet as files

    targets = [None if number in bad else target for number, (_, target) in enumerate(PAIRS, 1)]
    table = pyarrow.table({"source": [source for source, _ in PAIRS], "target": targets})
    sink = pyarrow.BufferOutputStream()
    files.write_table(table, sink)
    return bytes(sink.getvalue())


ONE_SIDE = b'<tu><tuv xml:lang="en"><seg>alone</seg></tuv></tu>'
BAD_RECORDS = [
    ("my.tsv", tsv, b"one column only", "line {}", "has 1 column, but columns 1 and 2 are needed"),
    ("my.tsv", tsv, b"caf\xe9\tnoir", "line {}", "is not UTF-8 at byte offset 3"),
    ("my.tsv", tsv, b"nul\t\0", "line {}", "has a NUL byte"),
    ("my.tsv", tsv, b"x\t" + b"y" * 70_000, "line {}", "has 70,000 bytes"),
    ("my.jsonl", jsonl, b'{"source": "a"', "line {}", "is not valid JSON"),
    ("my.jsonl", jsonl, b'{"source": "a"}', "line {}", "has neither"),
    ("my.jsonl", jsonl, b'{"source": "a", "target": 5}', "line {}", 'has no text in "target"'),
    ("my.jsonl", jsonl, b'{"source": "a", "target": "\\ud800"}', "line {}", "has half a character"),
    ("my.tmx", tmx, ONE_SIDE, "unit {}", "has no de"),
    ("my.parquet", parquet, b"", "row {}", "has no text in column 'target'"),
]


def assert_refused(tmp_path: Path, result: tuple[int, str], given: set[str], expected: Sequence[str]) -> None:
    code, message = result
    assert code == 1, message
    assert len(message.splitlines()) == 1
    assert message.startswith("dragoman: ")
    assert all(part in message for part in expected), message
    assert "Traceback" not in message
    assert names_in(tmp_path) == given


@pytest.mark.parametrize(("name", "write", "record", "place", "reason"), BAD_RECORDS)
def test_a_bad_record_is_named_or_skipped_and_listed(
    tmp_path: Path,
    prepare: Command,
    name: str,
    write: Callable[[dict[int, bytes]], bytes],
    record: bytes,
    place: str,
    reason: str,
) -> None:
    path = tmp_path / name
    path.write_bytes(write({7: record, 30: record}))
    arguments = ["--corpus", path, "--languages", "en-de", "--cleaning", "none"]
    first, second = (f"{path}, {place.format(number)}" for number in (7, 30))
    assert_refused(tmp_path, prepare(*arguments), {name}, [f"{first} {reason}", "--skip-bad-lines N"])
    too_few = prepare(*arguments, "--skip-bad-lines", 1)
    assert_refused(tmp_path, too_few, {name}, [f"{second} {reason}", "1 bad lines"])
    code, message = prepare(*arguments, "--skip-bad-lines", 2)
    assert code == 0, message
    manifest = json.loads((tmp_path / "out" / "manifest.json").read_text())
    for entry, where in zip(manifest["bad_lines"], (first, second), strict=True):
        assert entry.startswith(f"{where}: {reason}")
    assert all(f"Skipped: {entry}" in message.splitlines() for entry in manifest["bad_lines"])
    assert sum(split["num_pairs"] for split in manifest["splits"].values()) == 58


BAD_FILES = [
    ("my.tmx", tmx({9: b"<tu><tuv></tu>"}), ["my.tmx, line 10, column", "is not well-formed XML"]),
    ("my.tmx", b'<!DOCTYPE t [<!ENTITY x "xxx">]><tmx/>', ["my.tmx, line 1", 'declares the entity "x"']),
    ("my.tmx", b"<tmx/>", ["my.tmx is empty"]),
    ("my.parquet", b"PAR1 but not really", ["my.parquet is not a Parquet file, or it is damaged"]),
    ("my.tsv", b"", ["my.tsv is empty"]),
    ("my.jsonl", b"", ["my.jsonl is empty"]),
    ("my.tsv", "a\tb\n".encode("utf-16"), ["my.tsv is UTF-16 text"]),
    ("my.docx", b"a\tb\n", ["my.docx does not show its format"]),
    ("my.tsv.gz", gzip.compress(tsv({}))[:-20], ["my.tsv.gz", "ends too early"]),
    ("my.jsonl.xz", lzma.compress(jsonl({}))[:-20], ["my.jsonl.xz", "ends too early"]),
    ("my.tmx.bz2", bz2.compress(tmx({}))[:-5], ["my.tmx.bz2", "ends too early"]),
    ("my.tsv.zst", COMPRESSIONS["zst"](tsv({}))[:-5], ["my.tsv.zst", "ends too early"]),
    ("my.tsv.gz", gzip.compress(tsv({}))[:60] + b"damage" + gzip.compress(tsv({}))[66:], ["my.tsv.gz"]),
    ("my.tsv.gz", gzip.compress((b"x" * 60_000 + b"\ty\n") * 1_200), ["my.tsv.gz", "64"]),
]


@pytest.mark.parametrize(("name", "content", "expected"), BAD_FILES)
def test_a_bad_file_is_named(tmp_path: Path, prepare: Command, name: str, content: bytes, expected: list[str]) -> None:
    (tmp_path / name).write_bytes(content)
    # Nothing in such a file can be skipped.
    result = prepare("--corpus", tmp_path / name, "--languages", "en-de", "--skip-bad-lines", 5)
    assert_refused(tmp_path, result, {name}, expected)


@pytest.mark.parametrize("ending", COMPRESSIONS)
def test_a_bad_line_in_a_compressed_plain_file_is_named(tmp_path: Path, prepare: Command, ending: str) -> None:
    source, target = tmp_path / f"my.en.{ending}", tmp_path / f"my.de.{ending}"
    lines = ["\n".join(side).encode() + b"\n" for side in zip(*PAIRS, strict=True)]
    source.write_bytes(COMPRESSIONS[ending](lines[0]))
    target.write_bytes(COMPRESSIONS[ending](lines[1].replace(b"it of 33", b"it of \xff33")))
    arguments = ["--source", source, "--target", target]
    given = {source.name, target.name}
    assert_refused(tmp_path, prepare(*arguments), given, [f"{target}, line 33 is not UTF-8 at byte offset 6"])
    assert prepare(*arguments, "--skip-bad-lines", 1)[0] == 0


def test_a_bad_dev_set_is_refused_like_training_text(tmp_path: Path, prepare: Command) -> None:
    (tmp_path / "train.tsv").write_bytes(tsv({}))
    (tmp_path / "dev.tsv").write_bytes(b"good\tpair\nbad\n")
    result = prepare("--corpus", tmp_path / "train.tsv", "--dev", tmp_path / "dev.tsv")
    assert_refused(tmp_path, result, {"train.tsv", "dev.tsv"}, [f"{tmp_path / 'dev.tsv'}, line 2 has 1 column"])


def test_a_bad_file_after_good_ones_leaves_nothing(tmp_path: Path, prepare: Command) -> None:
    (tmp_path / "a.tsv").write_bytes(tsv({}))
    (tmp_path / "b.tsv").write_bytes(b"bad\n")
    result = prepare("--corpus", tmp_path / "a.tsv", "--corpus", tmp_path / "b.tsv")
    assert_refused(tmp_path, result, {"a.tsv", "b.tsv"}, [f"{tmp_path / 'b.tsv'}, line 1 has 1 column"])


def test_languages_that_a_file_does_not_tell_are_asked_for(tmp_path: Path, prepare: Command) -> None:
    (tmp_path / "my.jsonl").write_bytes(b'{"translation": {"en": "a", "de": "b", "fr": "c"}}\n' * 9)
    result = prepare("--corpus", tmp_path / "my.jsonl")
    assert_refused(tmp_path, result, {"my.jsonl"}, ["en, de, fr", 'languages = "en-de"'])
