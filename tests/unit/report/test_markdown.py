"""The report as Markdown: all content, and nothing a run wrote becomes markup."""

from itertools import pairwise

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from markdown_it import MarkdownIt
from sample_report import HOSTILE, hostile_report, sample_comparison, sample_report

from dragoman.report.markdown import escape_text, render_markdown
from dragoman.report.parts import Comparison, Section, Table, plain_text

PARSER = MarkdownIt("commonmark").enable(["table", "strikethrough"])
KEEPS_LINKS_APART = "<!-- -->"


def tokens_of(markdown: str) -> list:
    """All tokens, those inside of lines too."""
    return [inner for token in PARSER.parse(markdown) for inner in (token, *(token.children or ()))]


def shown(markdown: str) -> str:
    return "".join(token.content for token in tokens_of(markdown) if token.type in ("text", "text_special"))


def test_everything_but_charts_is_there():
    report = sample_report()
    text = " ".join(shown(render_markdown(report)).split())
    for answer in report.answers:
        assert answer.question in text
        assert answer.answer in text
        assert all(sentence in text for sentence in (*answer.evidence, *answer.missing))
    assert all(warning in text for warning in report.warnings)
    assert all(value in text for value in report.figures.values())
    assert all(sample.translation in text for section in report.sections for sample in section.samples)
    assert "charts are in report.html" in text
    assert "setting_39 = 39000" in render_markdown(report)


def test_tables_are_tables():
    kinds = [token.type for token in tokens_of(render_markdown(sample_comparison()))]
    assert kinds.count("table_open") == 1
    assert kinds.count("tr_open") == 3


def test_hostile_text_is_only_text():
    tokens = tokens_of(render_markdown(hostile_report()))
    kinds = {token.type for token in tokens}
    assert not kinds & {"html_block", "link_open", "image", "code_inline", "s_open", "em_open", "hr", "blockquote_open"}
    assert {token.content for token in tokens if token.type == "html_inline"} == {KEEPS_LINKS_APART}
    assert "\x1b" not in render_markdown(hostile_report())
    fences = [token.content for token in tokens if token.type == "fence"]
    assert len(fences) == 1
    assert fences[0].count("```") == 20


def test_addresses_do_not_become_links():
    text = escape_text("see https://x.org, WWW.x.org and me@x.org")
    assert text == "see https<!-- -->://x.org, WWW<!-- -->.x.org and me<!-- -->@x.org"


@pytest.mark.parametrize(
    "text", ["- a", "+ a", "1. a", "1) a", "# a", "> a", "---", "===", "    code", "~~~", "a\n\nb"]
)
def test_no_text_starts_a_block(text):
    kinds = [token.type for token in PARSER.parse(escape_text(text))]
    assert kinds == ["paragraph_open", "inline", "paragraph_close"]


def test_numbers_stay_readable():
    assert escape_text("26.4 BLEU, 62% of 1,000") == "26.4 BLEU, 62% of 1,000"


@given(st.text(max_size=60))
@example(HOSTILE)
@example("\\|")
@example("&lt;b&gt;&amp;")
@example("1.")
def test_any_text_reads_the_same_and_stays_in_its_cell(text):
    table = Table("t", ["a", "b"], [[text, "x"]])
    tokens = PARSER.parse(render_markdown(Comparison("c", "s", [Section("h", tables=[table])], [])))
    cells = [after for before, after in pairwise(tokens) if before.type == "td_open"]
    assert len(cells) == 2
    children = cells[0].children or []
    assert "".join(child.content for child in children if child.type != "html_inline") == " ".join(
        plain_text(text).split()
    )
    assert {child.type for child in children} <= {"text", "text_special", "html_inline"}
