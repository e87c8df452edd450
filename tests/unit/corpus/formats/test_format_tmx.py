"""TMX: text without markup, languages, bad units, and XML that is malformed or means harm."""

from pathlib import Path

import pytest

from dragoman.corpus.formats.blocks import BadLines, Block
from dragoman.corpus.formats.reading import ParallelText
from dragoman.corpus.settings import TextSettings
from dragoman.run.errors import UserError

HEAD = '<?xml version="1.0" encoding="utf-8"?>\n<!DOCTYPE tmx SYSTEM "tmx14.dtd">\n<tmx version="1.4">'
GOOD = '<tu><tuv xml:lang="en"><seg>a</seg></tuv><tuv xml:lang="de"><seg>A</seg></tuv></tu>'


def document(units: str, source: str = "en") -> str:
    return f'{HEAD}<header srclang="{source}"><note>none</note></header>\n<body>{units}</body></tmx>'


def unit(*segments: tuple[str, str]) -> str:
    variants = "".join(f'<tuv xml:lang="{name}"><prop>p</prop><seg>{text}</seg></tuv>' for name, text in segments)
    return f"<tu><note>n</note>{variants}</tu>\n"


def open_tmx(
    folder: Path,
    content: str | bytes,
    languages: tuple[str, str] | None = ("en", "de"),
    bad_lines: BadLines | None = None,
) -> ParallelText:
    (folder / "a.tmx").write_bytes(content if isinstance(content, bytes) else content.encode())
    return ParallelText(TextSettings(file=folder / "a.tmx"), languages, bad_lines or BadLines(0), 200)


def read_failure(folder: Path, content: str | bytes, languages: tuple[str, str] | None = ("en", "de")) -> str:
    with pytest.raises(UserError) as failure:
        list(open_tmx(folder, content, languages, BadLines(9)).blocks())
    return str(failure.value)


@pytest.mark.parametrize(
    ("segment", "text"),
    [
        ("a &amp; b &lt;c&gt; &#228;", "a & b <c> ä"),
        ("<![CDATA[a < b]]>", "a < b"),
        ("a<ph x='1'>&lt;br/&gt;</ph>b", "ab"),
        ("<bpt i='1'>{\\b </bpt>bold<ept i='1'>}</ept> and <it pos='begin'>x</it>on", "bold and on"),
        ("a <hi>very <ph>x</ph>good</hi> b", "a very good b"),
        ("a<ph>code <sub>inside</sub> code</ph>b", "ab"),
        ("one\n  two\r\nthree", "one   two three"),
        ("", ""),
        ("<!-- comment -->a", "a"),
    ],
)
def test_segments_are_read_without_markup(tmp_path: Path, segment: str, text: str) -> None:
    blocks = list(open_tmx(tmp_path, document(unit(("en", segment), ("de", "A")))).blocks())
    assert blocks == [Block(1, [text], ["A"])]


def test_languages_are_matched_whatever_their_order_and_country(tmp_path: Path) -> None:
    units = unit(("FR", "?"), ("de-AT", "A"), ("EN-us", "a")) + '<tu><tuv lang="en"><seg>b</seg></tuv>'
    units += '<tuv lang="de"><seg>B</seg></tuv></tu>'
    text = open_tmx(tmp_path, document(units))
    assert list(text.blocks()) == [Block(1, ["a", "b"], ["A", "B"])]
    assert text.notices() == []
    assert text.what == "unit"


@pytest.mark.parametrize(
    ("header_language", "expected"), [("de-DE", ("A", "a")), ("en", ("a", "A")), ("*all*", ("a", "A"))]
)
def test_languages_of_the_file_are_used_and_reported(
    tmp_path: Path, header_language: str, expected: tuple[str, str]
) -> None:
    text = open_tmx(tmp_path, document(unit(("en", "a"), ("de", "A")), header_language), languages=None)
    assert list(text.blocks()) == [Block(1, [expected[0]], [expected[1]])]
    [notice] = text.notices()
    assert "is used as the source" in notice


def test_units_with_many_languages_ask_for_them(tmp_path: Path) -> None:
    units = document(unit(("en", "a"), ("de", "A"), ("fr", "?")))
    assert "(en, de, fr)" in read_failure(tmp_path, units, languages=None)


def test_bad_units_are_skipped_with_their_line(tmp_path: Path) -> None:
    bad_lines = BadLines(9)
    long = "ä" * 32_769
    units = [
        unit(("en", "a"), ("de", "A")),
        unit(("en", "b")),
        unit(("en", "c"), ("de", long)),
        unit(("en", "d"), ("de", "x" * 10**6)),
        unit(("en", "e&nbsp;"), ("de", "E")),
        unit(("en", "f"), ("de", "F")),
    ]
    text = open_tmx(tmp_path, document("\n" + "".join(units)), bad_lines=bad_lines)
    assert list(text.blocks()) == [Block(1, ["a"], ["A"]), Block(6, ["f"], ["F"])]
    assert [(record.number, record.reason) for record in bad_lines.records] == [
        (2, "has no de (line 6)"),
        (3, "has 65,538 bytes, more than the 65,536 a sentence may have (line 7)"),
        (4, "has a segment of more than 65,536 bytes, the limit for a sentence (line 8)"),
        (5, 'uses the entity "nbsp", which the file does not declare (line 9)'),
    ]
    assert text.num_read == 6


def test_bad_unit_is_an_error_if_not_allowed(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"a\.tmx, unit 2 has no de \(line 4\); .* --skip-bad-lines"):
        list(open_tmx(tmp_path, document(GOOD + unit(("en", "b")))).blocks())


def test_first_unit_without_translation_does_not_decide_the_languages(tmp_path: Path) -> None:
    bad_lines = BadLines(2)
    units = unit(("en", "a")) + unit(("fr", "b"), ("de", "B")) + unit(("de", "C"), ("en", "c"))
    assert list(open_tmx(tmp_path, document(units), None, bad_lines).blocks()) == [Block(3, ["c"], ["C"])]
    assert [record.reason for record in bad_lines.records] == [
        "has no other language than en (line 4)",
        "has no en (line 5)",
    ]


@pytest.mark.parametrize("encoding", ["utf-16", "iso-8859-1", "cp1252"])
def test_declared_encodings_are_read(tmp_path: Path, encoding: str) -> None:
    content = document(unit(("en", "ä"), ("de", "Ä"))).replace("utf-8", encoding).encode(encoding)
    assert list(open_tmx(tmp_path, content).blocks()) == [Block(1, ["ä"], ["Ä"])]


@pytest.mark.parametrize(
    ("content", "place"),
    [
        (document(GOOD + "\n<tu></tuv>"), "line 5, column 7 is not well-formed XML (mismatched tag)"),
        (document(GOOD)[:-12], "is not well-formed XML"),
        (document(GOOD).encode() + b"\xff", "is not well-formed XML"),
        (document(GOOD.replace("<seg>a", "<seg>\udce4")).encode("utf-8", "surrogateescape"), "line 4, column 35"),
        (b"", "is not well-formed XML (no element found)"),
        ("no XML\n", "line 1, column 1 is not well-formed XML"),
    ],
)
def test_malformed_xml_is_an_error_at_its_place(tmp_path: Path, content: str | bytes, place: str) -> None:
    assert place in read_failure(tmp_path, content)


def test_file_without_units_is_refused(tmp_path: Path) -> None:
    assert "has no translation unit" in read_failure(tmp_path, document(""))


@pytest.mark.parametrize("entity", ['<!ENTITY a "aaaa">', '<!ENTITY a SYSTEM "file:///etc/passwd">'])
def test_entity_declarations_are_refused(tmp_path: Path, entity: str) -> None:
    content = f"<!DOCTYPE tmx [{entity}]><tmx><body>{GOOD.replace('<seg>a', '<seg>&a;')}</body></tmx>"
    assert 'line 1 declares the entity "a"' in read_failure(tmp_path, content)


def test_endless_markup_is_refused(tmp_path: Path) -> None:
    message = read_failure(tmp_path, document("<!--" + "x" * 20 * 2**20))
    assert "line 4 has a tag or comment of more than 8 MiB" in message
    assert "opens more than 100 elements" in read_failure(tmp_path, document("<x>" * 10_000))


def test_text_is_split_anywhere_by_reads(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dragoman.corpus.formats.compression.CHUNK_BYTES", 3)
    text = open_tmx(tmp_path, document("".join(unit(("en", f"ä{i}"), ("de", f"Ä&amp;{i}")) for i in range(9))))
    [block] = text.blocks()
    assert block == Block(1, [f"ä{i}" for i in range(9)], [f"Ä&{i}" for i in range(9)])
    assert text.num_bytes_read == text.num_bytes
