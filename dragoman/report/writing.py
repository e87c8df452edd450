"""The files of a report: report.html, report.md and report.json."""

import json
from pathlib import Path

from dragoman.report.parts import Comparison, Report
from dragoman.run.errors import UserError
from dragoman.run.files import write_text
from dragoman.run.folder import RunFolder


def write_report(report: Report | Comparison, folder: Path) -> dict[str, Path]:
    """Writes all three, each whole or not at all; returns where they are, by their endings."""
    from dragoman.report.markdown import render_markdown
    from dragoman.report.page import render_page

    place = RunFolder(folder)
    texts = {
        "html": render_page(report),
        "md": render_markdown(report),
        "json": json.dumps(report.to_json(), indent=2, ensure_ascii=False, allow_nan=False) + "\n",
    }
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for ending, text in texts.items():
            write_text(place.report(ending), text, is_durable=False)
    except OSError as error:
        raise UserError(
            f"The report cannot be written to {folder}: {error.strerror}. Choose another folder with --output."
        ) from None
    return {ending: place.report(ending) for ending in texts}


def report_run(run: RunFolder) -> Path:
    """Reports on one of our runs, into its folder; returns the page."""
    from dragoman.report.compose import build_report

    return write_report(build_report(run), run.path)["html"]
