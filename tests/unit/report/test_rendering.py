"""Page and Markdown of a report: complete, self-contained, safe with any text, readable in both colour modes."""

import base64
import hashlib
import json
import re
from dataclasses import replace
from html.parser import HTMLParser
from importlib.resources import files
from itertools import pairwise

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from markdown_it import MarkdownIt
from markupsafe import Markup
from sample_report import HOSTILE, hostile_report, sample_comparison, sample_report

from dragoman.diagnosis.verdict import Verdict
from dragoman.report.charts import NUM_COLOURS
from dragoman.report.content import (
    Answer,
    Chart,
    Comparison,
    Report,
    ReportSection,
    ReportWarning,
    RunState,
    Series,
    Table,
    TranslationSample,
    plain_text,
)
from dragoman.report.rendering import (
    LivePart,
    _tile_layout,
    describe_bottleneck,
    describe_confidence,
    escape_text,
    hover_data,
    render_markdown,
    render_page,
    sentences_over_time,
)

OWN_FILES = files("dragoman.report")
VOID = {"meta", "link", "br", "img", "input", "hr"}


class Page(HTMLParser):
    """Elements, ids, attributes and text of a page; fails where elements are not closed in order."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.open: list[str] = []
        self.text: list[str] = []
        self.scripts: list[str] = []
        self.feed(html)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag, attributes):
        self.elements.append((tag, dict(attributes)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag, attributes):
        self.elements.append((tag, dict(attributes)))

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        if self.open and self.open[-1] == "script":
            self.scripts.append(data)
        elif self.open and self.open[-1] != "style":
            self.text.append(data)

    @property
    def words(self) -> str:
        return " ".join(" ".join(self.text).split())

    def count(self, tag: str) -> int:
        return sum(name == tag for name, _ in self.elements)


@pytest.fixture(scope="module")
def sample(sample_html) -> Page:
    return Page(sample_html)


def test_the_first_screen_comes_first(sample, sample_html):
    report = sample_report()
    firsts = [report.summary, report.state.text, report.state.detail, *report.figures.values(), "What limited it"]
    firsts += [report.warnings[1].message, *(answer.short for answer in report.answers)]
    places = [sample.words.index(text, len(report.title)) for text in firsts]
    assert max(places) < sample.words.index(report.answers[0].evidence[0])
    assert 'data-chart="overview-loss"' in sample_html[: sample_html.index("<nav")]


def test_every_question_is_listed_and_answered(sample):
    ids = [attributes["id"] for _, attributes in sample.elements if "id" in attributes]
    links = [attributes["href"] for tag, attributes in sample.elements if tag == "a"]
    assert links[:11] == [f"#q{number}" for number in range(1, 12)]
    assert {link[1:] for link in links} <= set(ids)
    assert len(ids) == len(set(ids))
    for answer in sample_report().answers:
        assert answer.answer in sample.words
        assert answer.short in sample.words
        assert all(sentence in sample.words for sentence in (*answer.evidence, *answer.missing))


def test_every_table_and_sample_and_text_is_there(sample):
    for section in sample_report().sections:
        assert all(cell in sample.words for table in section.tables for row in table.rows for cell in row)
        assert all(shown.translation in sample.words for shown in section.samples)
        assert " ".join(section.text.split()) in sample.words
    assert sample.words.count("teacher-forced") >= 2
    assert sample.count("details") == 3, "long text, and what two warnings add to their first sentence"


def test_every_chart_is_drawn_and_has_its_values(sample):
    report = sample_report()
    charts = [*report.overview, *(chart for answer in report.answers for chart in answer.charts)]
    assert sample.count("svg") == len(charts)
    assert set(json.loads(sample.scripts[0])) == {chart.key for chart in charts}


@pytest.mark.parametrize("name", ["sample_html", "comparison_html"])
def test_the_page_fetches_nothing(name, request):
    html = request.getfixturevalue(name)
    assert "://" not in html
    assert "@import" not in html
    page = Page(html)
    addresses = [attributes[name] for _, attributes in page.elements for name in ("src", "href") if name in attributes]
    assert all(address.startswith("#") or address == "data:," for address in addresses)


def test_only_our_own_script_may_run(sample):
    policy = next(attributes["content"] for _, attributes in sample.elements if "http-equiv" in attributes)
    digest = base64.b64encode(hashlib.sha256(sample.scripts[1].encode()).digest()).decode()
    assert f"script-src 'sha256-{digest}'" in policy
    assert "default-src 'none'" in policy
    assert len(OWN_FILES.joinpath("page.js").read_bytes()) < 10_000


def test_hostile_text_is_only_text_on_the_page(hostile_html):
    page = Page(hostile_html)
    assert page.count("img") == 0
    assert page.count("script") == 2
    assert "\x1b" not in "".join(page.text + page.scripts)
    assert "<img src=x onerror=alert(2)> \\x1b[31mred" in page.words
    assert json.loads(page.scripts[0])["evil"]["series"][0]["name"].startswith("</script><script>")


def page_with(word: str) -> Page:
    """A page that says the same word everywhere."""
    chart = Chart("k", word, word, word, [Series(word, [1, 2], [1, 2])])
    answer = Answer(word, word, [word], 0.5, [chart], [Table("t", [word], [[word]])], [word])
    samples = [TranslationSample(1, word, word, word)]
    section = ReportSection(word, [word], samples=samples, text=f"x{word}")
    html = render_page(
        Report(
            word,
            word,
            RunState(word, "bad", f"x{word}"),
            {word: word},
            [answer],
            [section],
            [ReportWarning(word, f"x{word}", f"x{word}")],
            Verdict(f"x{word}", 0.5, 0.5, f"x{word}"),
        )
    )
    return Page(html.encode().decode())


@pytest.fixture(scope="module")
def plain_page() -> Page:
    return page_with("word")


@settings(max_examples=20)
@given(st.text(st.characters(codec=None), max_size=10))
@example(HOSTILE)
def test_any_text_leaves_the_structure_of_the_page_alone(plain_page, text):
    strange = page_with(text)
    # How a chart is drawn may depend on how long its words are; what stands around it may not.
    drawn = {"g", "text", "path", "use", "defs", "pattern", "rect", "clippath"}
    assert [tag for tag, _ in strange.elements if tag not in drawn] == [
        tag for tag, _ in plain_page.elements if tag not in drawn
    ]


def test_a_chart_shown_twice_has_two_ids():
    chart = sample_report().answers[0].charts[0]
    html = render_page(replace(sample_comparison(), sections=[ReportSection("twice", charts=[chart, chart])]))
    ids = re.findall(r' id="([^"]*)"', html)
    assert len(ids) == len(set(ids))
    assert 'data-chart="phases--2"' in html


def test_a_chart_without_values_is_left_out():
    chart = Chart("empty", "Nothing", "x", "y", [Series("s", [1], [None])])
    html = render_page(replace(sample_comparison(), sections=[ReportSection("s", charts=[chart])]))
    assert "<svg" not in html
    assert "Nothing" not in html


def test_hovering_costs_less_than_a_megabyte_and_keeps_steps_exact():
    series = [Series(f"s{number}", list(range(100_000, 101_000)), [x / 7 for x in range(1000)]) for number in range(40)]
    charts = [Chart(f"c{number}", "t", "x", "y", series) for number in range(2)]
    data = hover_data(charts)
    assert len(json.dumps(data, separators=(",", ":"))) < 1_000_000
    few = hover_data([Chart("c", "t", "x", "y", [Series("s", [106_301], [1.23456789])])])["c"]["series"][0]
    assert (few["x"], few["y"]) == ([106_301], [1.2346])


@pytest.mark.parametrize(
    ("confidence", "word"),
    [
        *((1, "certain"), (0.9, "certain"), (0.89, "quite sure"), (0.7, "quite sure"), (0.5, "likely")),
        *((0.01, "a guess"), (0, "not known"), (float("nan"), "not known")),
    ],
)
def test_confidence_in_words(confidence, word):
    assert describe_confidence(confidence) == word


def test_a_known_bottleneck_is_named_with_its_share_and_certainty():
    assert describe_bottleneck(Verdict("network", 0.62, 0.86, "")) == "Network, 62% of the time (quite sure)"


@pytest.mark.parametrize("confidence", [0.0, 0.5])
def test_an_unknown_bottleneck_has_no_share(confidence):
    unknown = describe_bottleneck(Verdict("unknown", 0.0, confidence, "No record says."))
    assert unknown == "Not known."


@pytest.mark.parametrize("share", [0.0, 0.001, float("nan")])
def test_a_bottleneck_without_a_share_is_named_alone(share):
    assert describe_bottleneck(Verdict("network", share, 0.6, "")) == "Network (likely)"


def page_words(**changes) -> str:
    return Page(render_page(replace(sample_report(), **changes))).words


def test_the_state_has_a_sign_and_words_besides_its_colour():
    for mood, sign in (("good", "✓"), ("neutral", "◐"), ("bad", "✗")):
        assert f"State {sign} Some state Why." in page_words(state=RunState("Some state", mood, "Why."))


def test_warnings_come_before_the_answers_of_a_run_that_went_wrong():
    for mood, is_first in (("bad", True), ("neutral", False)):
        words = page_words(state=RunState("x", mood))
        assert (words.index("Warnings") < words.index("What limited it")) == is_first


def test_a_warning_is_one_line_with_the_rest_folded():
    message = "The loss is 1.5 nats, e.g. low. It rose at step 3. Look at it."
    html = render_page(replace(sample_report(), warnings=[ReportWarning(message), ReportWarning("Short.")]))
    assert "<summary>The loss is 1.5 nats, e.g. low.</summary>\n<p>It rose at step 3. Look at it.</p>" in html
    assert "<li>Short.</li>" in html


def test_an_answer_without_a_short_form_is_cut_to_a_sentence():
    answer = replace(sample_report().answers[0], short="", answer="Yes: it took 57.4 hours. That is long.")
    html = render_page(replace(sample_report(), answers=[answer]))
    assert "<b>Yes: it took 57.4 hours.</b>" in html


def test_a_run_without_steps_was_limited_by_nothing():
    unknown = Verdict("unknown", 0.0, 0.0, "No record says.")
    assert "What limited it" not in page_words(verdict=unknown, overview=[])
    assert "What limited it Not known. No record says." in page_words(verdict=unknown)


@given(st.integers(0, 40))
def test_tiles_fill_their_rows_at_every_width(number):
    layout = dict(re.findall(r"--([\w-]+): (\d+)", _tile_layout(number)))
    columns, span, medium, last = (int(layout[name]) for name in ("columns", "span", "medium-span", "last-span"))
    assert (number + span) % columns == 0
    assert span >= 2
    assert (number + medium) % 4 == 0
    assert 1 <= medium <= 4
    assert number == 0 or (2 + number - 1 + last) % 2 == 0


def test_a_live_page_may_ask_only_its_own_server():
    html = render_page(sample_comparison(), LivePart(Markup("<aside id='live'></aside>"), "1;"))
    page = Page(html)
    policy = next(attributes["content"] for _, attributes in page.elements if "http-equiv" in attributes)
    assert policy.endswith("connect-src 'self'")
    assert policy.count("'sha256-") == 2
    assert page.count("aside") == 2
    assert "connect-src" not in render_page(sample_comparison())


def test_a_page_needs_no_verdict(comparison_html, sample_html):
    assert "What limited it" in sample_html
    assert "What limited it" not in comparison_html


def test_samples_are_grouped_by_sentence_in_order_of_steps():
    samples = [TranslationSample(step, source, "r", f"{source}{step}") for step in (20, 10) for source in "ab"]
    grouped = sentences_over_time(samples)
    assert [(one.source, [sample.step for sample in one.samples]) for one in grouped] == [
        ("a", [10, 20]),
        ("b", [10, 20]),
    ]


def palette() -> dict[str, tuple[str, str]]:
    css = OWN_FILES.joinpath("page.css").read_text(encoding="utf-8")
    found = re.findall(r"--([\w-]+): light-dark\((#[0-9a-f]{6}), (#[0-9a-f]{6})\);", css)
    return {name: (light, dark) for name, light, dark in found}


def luminance(colour: str) -> float:
    channels = [int(colour[start : start + 2], 16) / 255 for start in (1, 3, 5)]
    linear = [value / 12.92 if value <= 0.04045 else ((value + 0.055) / 1.055) ** 2.4 for value in channels]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def contrast(one: str, other: str) -> float:
    bright, dim = sorted((luminance(one), luminance(other)), reverse=True)
    return (bright + 0.05) / (dim + 0.05)


def test_contrast_is_computed_as_wcag_says():
    assert contrast("#000000", "#ffffff") == pytest.approx(21)
    assert contrast("#777777", "#ffffff") == pytest.approx(4.48, abs=0.01)


@pytest.mark.parametrize("scheme", [0, 1], ids=["light", "dark"])
def test_colours_pass_contrast_checks(scheme):
    colours = {name: pair[scheme] for name, pair in palette().items()}
    for text in ("ink", "muted", "link", "caution", "good", "bad"):
        for paper in ("paper", "panel"):
            assert contrast(colours[text], colours[paper]) >= 4.5, (text, paper)
    series = [name for name in colours if name.startswith("series-")]
    assert len(series) == NUM_COLOURS
    for name in series:
        assert contrast(colours[name], colours["paper"]) >= 3, name
        assert contrast(colours[name], colours["panel"]) >= 3, name


def test_each_variable_that_is_used_has_a_colour(sample_html):
    css = OWN_FILES.joinpath("page.css").read_text(encoding="utf-8")
    used = set(re.findall(r"var\(--([\w-]+)\)", css + sample_html))
    sizes = {"columns", "span", "medium-span", "last-span"}
    assert used - set(palette()) == {"text-font", "code-font", "series", *sizes}


PARSER = MarkdownIt("commonmark").enable(["table", "strikethrough"])
KEEPS_LINKS_APART = "<!-- -->"


def tokens_of(markdown: str) -> list:
    """Returns all tokens, also those inside lines."""
    return [inner for token in PARSER.parse(markdown) for inner in (token, *(token.children or ()))]


def shown(markdown: str) -> str:
    return "".join(token.content for token in tokens_of(markdown) if token.type in ("text", "text_special"))


def test_markdown_has_everything_but_charts():
    report = sample_report()
    text = " ".join(shown(render_markdown(report)).split())
    for answer in report.answers:
        assert answer.question in text
        assert answer.answer in text
        assert all(sentence in text for sentence in (*answer.evidence, *answer.missing))
    assert all(warning.message in text for warning in report.warnings)
    assert f"State: {report.state.text}. {report.state.detail}" in text
    assert all(value in text for value in report.figures.values())
    assert all(sample.translation in text for section in report.sections for sample in section.samples)
    assert "charts are in report.html" in text
    assert "setting_39 = 39000" in render_markdown(report)


def test_markdown_tables_are_tables():
    kinds = [token.type for token in tokens_of(render_markdown(sample_comparison()))]
    assert kinds.count("table_open") == 1
    assert kinds.count("tr_open") == 3


def test_hostile_text_is_only_text_in_markdown():
    tokens = tokens_of(render_markdown(hostile_report()))
    kinds = {token.type for token in tokens}
    assert not kinds & {"html_block", "link_open", "image", "code_inline", "s_open", "em_open", "hr", "blockquote_open"}
    assert {token.content for token in tokens if token.type == "html_inline"} == {KEEPS_LINKS_APART}
    assert "\x1b" not in render_markdown(hostile_report())
    fences = [token.content for token in tokens if token.type == "fence"]
    assert len(fences) == 1
    assert fences[0].count("```") == 20


def test_addresses_do_not_become_markdown_links():
    text = escape_text("see https://x.org, WWW.x.org and me@x.org")
    assert text == "see https<!-- -->://x.org, WWW<!-- -->.x.org and me<!-- -->@x.org"


@pytest.mark.parametrize(
    "text", ["- a", "+ a", "1. a", "1) a", "# a", "> a", "---", "===", "    code", "~~~", "a\n\nb"]
)
def test_no_text_starts_a_markdown_block(text):
    kinds = [token.type for token in PARSER.parse(escape_text(text))]
    assert kinds == ["paragraph_open", "inline", "paragraph_close"]


def test_numbers_stay_readable_in_markdown():
    assert escape_text("26.4 BLEU, 62% of 1,000") == "26.4 BLEU, 62% of 1,000"


@settings(max_examples=50)
@given(st.text(max_size=60))
@example(HOSTILE)
@example("\\|")
@example("&lt;b&gt;&amp;")
@example("1.")
def test_any_text_reads_the_same_and_stays_in_its_cell(text):
    table = Table("t", ["a", "b"], [[text, "x"]])
    tokens = PARSER.parse(render_markdown(Comparison("c", "s", [ReportSection("h", tables=[table])], [])))
    cells = [after for before, after in pairwise(tokens) if before.type == "td_open"]
    assert len(cells) == 2
    children = cells[0].children or []
    assert "".join(child.content for child in children if child.type != "html_inline") == " ".join(
        plain_text(text).split()
    )
    assert {child.type for child in children} <= {"text", "text_special", "html_inline"}
