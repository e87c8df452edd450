"""Files of any size: interrupted and continued, compressed, by an engine; always the same output, in order."""

import bz2
import gzip
import lzma
from pathlib import Path

import pytest
import zstandard
from hypothesis import given, settings
from hypothesis import strategies as st

from dragoman.corpus.preparation.engine import OwnProcess
from dragoman.run.errors import UserError
from dragoman.translation.files import bulk, input_blocks
from dragoman.translation.files.bulk import PartsOnEngine, TextPart, TranslatedPart, translate_file, work_folder
from dragoman.translation.files.order import LineBlock, TranslationOrder
from dragoman.translation.files.output_files import open_output
from dragoman.translation.model_choice import ModelChoice


class Shouting:
    """Writes lines in capitals, the newest of each two parts first; may be stopped after some parts."""

    def __init__(self, num_parts: int = 10**9) -> None:
        self.num_left, self.seen = num_parts, list[int]()

    def translate(self, parts, progress):
        held: list[TranslatedPart] = []
        for part in parts:
            if not self.num_left:
                raise KeyboardInterrupt
            self.num_left -= 1
            self.seen.append(part.index)
            held.append(TranslatedPart(part.index, "".join(f"{line.upper()}\n" for line in part.block.lines), ("!",)))
            progress(len(part.block.lines))
            if len(held) == 2:
                yield from reversed(held)
                held = []
        yield from held


@pytest.fixture(autouse=True)
def small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(input_blocks, "LINES_PER_BLOCK", 2)


@pytest.fixture
def source(tmp_path: Path) -> Path:
    path = tmp_path / "in.txt"
    path.write_text("".join(f"line {number}\n" for number in range(15)))
    return path


def run(source: Path, out: Path, translator=None, key: str = "model", **options):
    said: list[str] = []
    order = TranslationOrder(**options)
    result = translate_file(source, out, order, key, translator or Shouting(), said.append)
    return result, said


def test_the_output_is_in_order_and_nothing_else_is_left(source: Path, tmp_path: Path) -> None:
    out = tmp_path / "out.txt"
    result, said = run(source, out)
    assert out.read_text() == source.read_text().upper()
    assert (result.num_lines, result.num_lines_reused) == (15, 0)
    assert said == ["!"] * 8
    assert {path.name for path in tmp_path.iterdir()} == {"in.txt", "out.txt"}
    assert set(result.figures()) == {"out", "num_lines", "num_lines_reused", "seconds", "lines_per_second"}


def test_an_interrupted_command_continues_where_it_stopped(source: Path, tmp_path: Path) -> None:
    out = tmp_path / "out.txt"
    with pytest.raises(KeyboardInterrupt):
        run(source, out, Shouting(5))
    assert not out.exists()
    assert work_folder(out).is_dir()
    again = Shouting()
    result, _ = run(source, out, again)
    assert again.seen == [4, 5, 6, 7]  # the fifth part was not handed over before the end
    assert result.num_lines_reused == 8
    assert out.read_text() == source.read_text().upper()
    assert not work_folder(out).exists()


def test_parts_of_other_input_models_and_settings_are_not_used(source: Path, tmp_path: Path) -> None:
    out = tmp_path / "out.txt"

    def interrupt() -> None:
        with pytest.raises(KeyboardInterrupt):
            run(source, out, Shouting(4))

    interrupt()
    source.write_text(source.read_text().replace("line 3\n", "another\n"))
    again = Shouting()
    run(source, out, again)
    assert again.seen == [1, 4, 5, 6, 7]
    assert out.read_text() == source.read_text().upper()
    for change in ({"key": "other model"}, {"with_scores": True}, {"prefix": "x"}):
        interrupt()
        again = Shouting()
        run(source, out, again, **change)
        assert len(again.seen) == 8


def test_two_commands_do_not_write_one_output(source: Path, tmp_path: Path) -> None:
    out = tmp_path / "out.txt"

    class Second(Shouting):
        def translate(self, parts, progress):
            with pytest.raises(UserError, match="another process"):
                run(source, out)
            yield from super().translate(parts, progress)

    run(source, out, Second())
    with pytest.raises(UserError, match="also the input"):
        run(source, source)


def test_a_bad_line_keeps_the_parts_before_it(source: Path, tmp_path: Path) -> None:
    out = tmp_path / "out.txt"
    content = source.read_bytes().replace(b"line 9\n", b"\xff\n")
    source.write_bytes(content)
    with pytest.raises(UserError, match="line 10 is not UTF-8"):
        run(source, out)
    source.write_bytes(content.replace(b"\xff\n", b"line 9\n"))
    assert run(source, out)[0].num_lines_reused == 8
    with pytest.raises(UserError, match="does not exist"):
        run(tmp_path / "none", tmp_path / "other")
    assert not work_folder(tmp_path / "other").exists()


@pytest.mark.parametrize(
    ("ending", "unpack"),
    [
        (".gz", gzip.decompress),
        (".bz2", bz2.decompress),
        (".xz", lzma.decompress),
        (".zst", lambda data: zstandard.ZstdDecompressor().decompressobj().decompress(data)),
        ("", bytes),
    ],
)
def test_the_name_says_how_the_output_is_compressed(tmp_path: Path, ending: str, unpack) -> None:
    paths = [tmp_path / f"{name}.txt{ending}" for name in "ab"]
    for path in paths:
        with open_output(path) as file:
            file.write(b"one\n")
            file.write(b"two\n")
    assert unpack(paths[0].read_bytes()) == b"one\ntwo\n"
    assert paths[0].read_bytes() == paths[1].read_bytes()


@settings(max_examples=8)
@given(st.lists(st.integers(0, 3), max_size=5))
def test_any_number_of_interruptions_gives_the_same_output(tmp_path_factory, stops: list[int]) -> None:
    folder = tmp_path_factory.mktemp("stops")
    source, out = folder / "in", folder / "out"
    source.write_text("".join(f"{number}é\n" for number in range(9)))
    for stop in stops:
        try:
            run(source, out, Shouting(stop))
        except KeyboardInterrupt:
            continue
    run(source, out)
    assert out.read_text() == source.read_text().upper()


def test_blocks_of_long_lines_are_small(source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(input_blocks, "LINES_PER_BLOCK", 100)
    monkeypatch.setattr(input_blocks, "BLOCK_CHARACTERS", 20)
    translator = Shouting()
    run(source, tmp_path / "out", translator)
    assert len(translator.seen) == 4


def test_an_engine_returns_the_text_and_the_notices(build, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ModelChoice, "load", lambda _model, say, _workers: build(say=say, max_source_tokens=15))
    monkeypatch.setattr(bulk, "_load", lambda model: bulk.LoadedModel(model, 1))
    lines = ("the cat", "", "the cat sat on a mat and saw two small dogs near an old green house", "a ☃")
    done: list[int] = []
    engine = PartsOnEngine(OwnProcess(), ModelChoice("run"), TranslationOrder())
    [part] = engine.translate([TextPart(0, LineBlock(11, lines))], done.append)
    assert part.text == "".join(f"{line}\n" for line in build(max_source_tokens=15).translate(lines))
    assert part.notices[0].startswith("Line 13 has ")
    assert "U+2603 (line 14)" in part.notices[1]
    assert done == [4]
