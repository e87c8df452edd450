"""The report as Markdown: the same content as the page without its charts, and no text of a run can become markup."""

import re
from collections.abc import Iterable, Iterator, Sequence

from dragoman.report.page import how_sure, read_verdict, sentences_over_time
from dragoman.report.parts import Answer, Comparison, Report, Section, Table, TranslationSample, plain_text

_MARKUP = re.compile(r"[\\`*_{}\[\]#|~!$]")
_START_OF_BLOCK = re.compile(r"^([-+=]|\d+(?=[.)](?:\s|$)))")
_START_OF_LINK = re.compile(r"(?=://|@)|(?<=www)(?=\.)", re.IGNORECASE)


def render_markdown(report: Report | Comparison) -> str:
    """The whole report as text."""
    blocks = [f"# {escape_text(report.title)}", escape_text(report.summary), *_overview(report)]
    if isinstance(report, Report):
        for number, answer in enumerate(report.answers, 1):
            blocks += _answer_blocks(number, answer)
    for section in report.sections:
        blocks += _section_blocks(section)
    blocks.append("The charts are in report.html.")
    return "\n\n".join(filter(None, blocks)) + "\n"


def escape_text(text: str) -> str:
    """One line that reads the same after Markdown has been rendered."""
    line = " ".join(plain_text(text).split())
    line = line.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
    line = _MARKUP.sub(r"\\\g<0>", line)
    # Addresses become links even where their punctuation is escaped; an empty comment keeps the pieces apart.
    line = _START_OF_LINK.sub("<!-- -->", line)
    return _START_OF_BLOCK.sub(lambda match: match[1] + "\\" if match[1].isdigit() else "\\" + match[1], line)


def _overview(report: Report | Comparison) -> Iterator[str]:
    if isinstance(report, Report) and report.figures:
        yield _grid(["figure", "value"], report.figures.items(), numeric_columns=(1,))
    if verdict := read_verdict(report.facts):
        details = "; ".join(escape_text(detail) for detail in (verdict.share, verdict.sureness) if detail)
        yield f"**What held it back:** {escape_text(verdict.bottleneck)}" + (f" ({details})" if details else "")
        yield escape_text(verdict.why)
    if report.warnings:
        yield "**Warnings**"
        yield _list(report.warnings)


def _answer_blocks(number: int, answer: Answer) -> Iterator[str]:
    yield f"## {number}. {escape_text(answer.question)}"
    yield f"**Answer:** {escape_text(answer.answer)} ({how_sure(answer.confidence)})"
    yield _list(answer.evidence)
    yield from _table_blocks(answer.tables)
    if answer.missing:
        yield "What this run’s files cannot tell:"
        yield _list(answer.missing)


def _section_blocks(section: Section) -> Iterator[str]:
    yield f"## {escape_text(section.title)}"
    yield from map(escape_text, section.sentences)
    yield from _table_blocks(section.tables)
    yield from _sample_blocks(section.samples)
    yield _code(section.text)


def _table_blocks(tables: Sequence[Table]) -> Iterator[str]:
    for table in tables:
        if table.title:
            yield f"**{escape_text(table.title)}**"
        yield _grid(table.columns, table.rows, table.numeric_columns)


def _sample_blocks(samples: Sequence[TranslationSample]) -> Iterator[str]:
    rows = [
        [f"{sample.step:,}{' (teacher-forced)' if sample.is_teacher_forced else ''}", *texts]
        for sentence in sentences_over_time(samples)
        for sample in sentence.samples
        for texts in [(sentence.source, sentence.reference, sample.translation)]
    ]
    if rows:
        yield _grid(["step", "source", "reference", "translation"], rows, numeric_columns=(0,))


def _grid(columns: Sequence[str], rows: Iterable[Sequence[str]], numeric_columns: Sequence[int] = ()) -> str:
    rules = ["---:" if number in numeric_columns else "---" for number in range(len(columns))]
    lines = [_row(columns), f"| {' | '.join(rules)} |", *map(_row, rows)]
    return "\n".join(lines)


def _row(cells: Sequence[str]) -> str:
    return f"| {' | '.join(map(escape_text, cells))} |"


def _list(sentences: Sequence[str]) -> str:
    return "\n".join(f"- {escape_text(sentence)}" for sentence in sentences)


def _code(text: str) -> str:
    """A fence longer than any in the text cannot be closed by it."""
    if not text.strip():
        return ""
    longest = max(map(len, re.findall("`+", text)), default=0)
    fence = "`" * max(3, longest + 1)
    return f"{fence}text\n{plain_text(text).rstrip()}\n{fence}"
