"""HTML: sentences are translated whole, and their tags stand around the words that belong together."""

import re
import time
from collections import Counter
from html import unescape
from html.parser import HTMLParser

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dragoman.serving.cut_html import cut_html
from dragoman.serving.html_markup import read_html
from dragoman.translation.translator import Translation

PIECES = ("<p>", "</p>", "<b/>", "<b class='x'>", "</b>", "a word", "&amp;", "&lt;", "<", ">", "<!--", "-->", '"')
MORE = ("<script>", "</script>", "<code>", "</code>", "if (a<b)", "é", '<a href=">">', "<![CDATA[", "]]>", "&#33;", " ")
ANY_HTML = st.lists(st.sampled_from([*PIECES, *MORE, "<i>", "</i>", "</a>", "<br>", "<sup>", "1", "</sup>"])).map(
    "".join
)
WORDS = st.sampled_from(["one", "(two", "three,", "x", " ", "\n", "4", ".", "&amp;", "<br>", "<!-- c -->", "é"])
GOOD_HTML = st.recursive(
    WORDS,
    lambda inner: st.builds(
        lambda name, parts: f"<{name}>{''.join(parts)}</{name}>",
        st.sampled_from(["b", "i", "a", "p", "div", "code"]),
        st.lists(inner, max_size=4),
    ),
    max_leaves=12,
)
NUMBERS = st.integers(0, 6)
TRANSLATIONS = st.builds(
    Translation,
    st.lists(st.sampled_from(["eins", "(zwei)", "<drei>,", "…", "vier"]), max_size=6).map(" ".join),
    st.just(0.0),
    st.none() | st.lists(st.tuples(NUMBERS, NUMBERS)).map(tuple),
)


def same_words(line: str) -> Translation:
    return Translation(line, 0.0, tuple((number, number) for number in range(len(line.split()))))


def other_order(line: str) -> Translation:
    words = line.split()
    pairs = tuple((number, len(words) - 1 - number) for number in range(len(words)))
    return Translation(" ".join(words[::-1]), 0.0, pairs)


def fill(text: str, translate=same_words) -> str:
    cut = cut_html(text)
    return cut.fill([translate(line) for line in cut.lines])


def tags_of(text: str) -> Counter:
    return Counter(piece.text for piece in read_html(text) if piece.text[0] == "<")


def without_tags(text: str) -> str:
    return unescape("".join(piece.text for piece in read_html(text) if piece.kind.name == "TEXT"))


def without_blanks(text: str) -> str:
    return "".join(text.split())


class NestingCheck(HTMLParser):
    """Fails at an end tag that does not close the last start tag."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []

    def handle_starttag(self, tag, attrs):
        if tag != "br":
            self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag


def assert_well_nested(text: str) -> None:
    check = NestingCheck()
    check.feed(text)
    check.close()
    assert check.open == []


@given(ANY_HTML)
def test_pieces_of_any_html_are_the_text_again(text):
    assert "".join(piece.text for piece in read_html(text)) == text


@given(ANY_HTML, st.data())
def test_any_html_keeps_its_tags(text, data):
    cut = cut_html(text)
    translations = [data.draw(TRANSLATIONS) for _ in cut.lines]
    filled = cut.fill(translations)
    assert Counter(re.findall("<[a-z/!]", filled)) == Counter(re.findall("<[a-z/!]", re.sub("<(?![a-z/!])", "", text)))


@given(GOOD_HTML, st.data())
def test_good_html_stays_well_nested_with_the_same_tags_and_the_plain_translation(text, data):
    cut = cut_html(text)
    translations = [data.draw(TRANSLATIONS) for _ in cut.lines]
    filled = cut.fill(translations)
    assert tags_of(filled) == tags_of(text)
    assert_well_nested(filled)
    by_place = dict(zip(cut.places, translations, strict=True))
    parts = [by_place[at].text if at in by_place else without_tags(part) for at, part in enumerate(cut.parts)]
    assert without_blanks(without_tags(filled)) == without_blanks("".join(parts))


@given(GOOD_HTML)
def test_html_filled_with_its_own_text_means_the_same(text):
    filled = fill(text)
    assert without_blanks(without_tags(filled)) == without_blanks(without_tags(text))
    assert cut_html(filled).lines == cut_html(text).lines


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("<p>The <b>dog</b> runs.</p>", "<p>runs. <b>dog</b> The</p>"),
        ("<p>a <b>b <i>c</i> d</b> e</p>", "<p>e <b>d <i>c</i> b</b> a</p>"),
        ("(<i>a</i>) <b>b</b>!", "<b>b</b>! (<i>a</i>)"),
        ("see <a href='x>y'>the page</a> <!-- c --> now", "now <a href='x>y'>page the</a> <!-- c --> see"),
        ("Run <code>ls -l</code>.", "Run <code>ls -l</code>."),
        ("foo<img src=x>bar", "bar foo<img src=x>"),
        ("dogs<sup><a>1</a></sup>, cats", "cats dogs<sup><a>1</a></sup>,"),
        ("super<b>man</b> flies", "flies <b>superman</b>"),
        ("a <i></i> b", "b a<i></i>"),
    ],
)
def test_tags_follow_the_words_they_enclosed(text, expected):
    assert fill(text, other_order) == expected


def test_an_element_reaches_from_its_first_to_its_last_word():
    far_apart = Translation("hat am Montag stattgefunden", 0.0, ((0, 0), (1, 3), (2, 1), (3, 2)))
    assert fill("<u>took place</u> on Monday", lambda _: far_apart) == "<u>hat am Montag stattgefunden</u>"


def test_elements_whose_words_alternate_do_not_overlap():
    mixed = Translation("A1 B1 A2 A3", 0.0, ((0, 0), (1, 1), (0, 2), (0, 3)))
    assert fill("<a>x</a> <b>y</b>", lambda _: mixed) == "A1 <b>B1</b> <a>A2 A3</a>"


def test_an_element_without_an_aligned_word_takes_one_beside_its_neighbour():
    one_missing = Translation("x y z", 0.0, ((0, 0), (2, 2)))
    assert fill("a <b>b</b> c", lambda _: one_missing) == "x <b>y</b> z"
    all_taken = Translation("x", 0.0, ((0, 0), (1, 0)))
    assert fill("<a>a</a> <b>b</b>", lambda _: all_taken) == "<a>x</a><b></b>"


@pytest.mark.parametrize("alignment", [None, (), ((50, 50),)])
def test_without_an_alignment_tags_are_around_the_whole(alignment):
    filled = fill("a <b>b <i>c</i></b> <u>d</u><br>e", lambda _: Translation("x & y", 0.0, alignment))
    assert filled == "<b><i><u><br>x &amp; y</u></i></b>"


@pytest.mark.parametrize(
    ("text", "lines"),
    [
        ("<p>a <b>b</b></p><li>c", ["a b", "c"]),
        ("<b>a <p>b</p> c</b>", ["a", "b", "c"]),
        ("a <b>b <i>c</b> d</i>", ["a", "b", "c", "d"]),
        ("one.<br>two<br>three", ["one.", "two three"]),
        ("<script>var a = '<p>b</p>';</script>c", ["c"]),
        ("<style>p{}</style><title>a<b></title><pre>x <b>y</b></pre>", ["a<b>"]),
        ("a &amp; b &lt;i&gt;", ["a & b <i>"]),
        ("<code>x<code>y</code>z</code>a", ["a"]),
        ('<p translate="no">a</p>b <i class="notranslate">c</i> d', ["b d"]),
        ("<!-- a --><!doctype html><?php a ?>b", ["b"]),
        ("a < b <3", ["a < b <3"]),
        ("<p>&nbsp;|&nbsp;</p>\n\n 1 ", []),
        ("<p>a\n  b</p>", ["a b"]),
        ("<p unclosed 'a", []),
        ("<textarea><b>a</b></textarea><custom-tag>b</custom-tag>", ["b"]),
    ],
)
def test_sentences_are_whole_and_only_text_is_translated(text, lines):
    assert cut_html(text).lines == lines


@pytest.mark.parametrize(
    "text", ["\n <p>\n  a <b>b</b> \n</p>\n", "<a href=\"x>y\" title='a>b'>a</a>", "<b>a </b><u>b"]
)
def test_blanks_around_sentences_and_attributes_stay(text):
    assert fill(text).replace(" ", "") == text.replace(" ", "")
    assert without_tags(fill(text)) == without_tags(text)


@pytest.mark.parametrize(
    "piece",
    ["<p>", "<", "<!--", "<a '", "<![CDATA[", "<script>", "<code>", "&", "<p>a", "</", "<b>a", "<b>a</b>", "<i>a <br>"],
)
def test_the_time_grows_with_the_length_only(piece):
    text = (piece * 50_000)[:50_000]
    begin = time.process_time()
    fill(text, lambda line: Translation("x " * len(line), 0.0, tuple((0, number) for number in range(len(line)))))
    assert time.process_time() - begin < 1.5


def test_deep_elements_are_kept():
    text = "<b>" * 3_000 + "a word" + "</b>" * 3_000
    assert fill(text) == text


def test_a_translation_cannot_become_markup():
    script = Translation("<script>", 0.0, ((0, 0),))
    assert fill("<p>a</p>", lambda _: script) == "<p>&lt;script&gt;</p>"
    assert fill("<p><b>a</b></p>", lambda _: script) == "<p><b>&lt;script&gt;</b></p>"
