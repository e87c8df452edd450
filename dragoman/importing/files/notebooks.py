"""Takes the printed output out of Jupyter notebooks, so that their logs are read as those of a terminal."""

import json
from collections.abc import Iterator
from typing import Any

MAX_NOTEBOOK_BYTES = 64 * 2**20
"""Larger notebooks are read as any other text: a notebook is parsed as a whole."""
_MARKS = (b'"nbformat"', b'"cells"')


def is_notebook(head: bytes) -> bool:
    """Whether a file with this beginning is a notebook."""
    return head.lstrip().startswith(b"{") and any(mark in head for mark in _MARKS)


def output_of(document: bytes) -> bytes | None:
    """Returns everything that the cells printed, in their order; None if the document is no whole notebook."""
    try:
        notebook = json.loads(document)
    except (ValueError, RecursionError):
        return None
    if not isinstance(notebook, dict) or not isinstance(notebook.get("cells"), list):
        return None
    return "".join(_joined(notebook["cells"])).encode("utf-8", errors="replace")


def _joined(cells: list[Any]) -> Iterator[str]:
    """Yields the outputs; a stream may have been stored in pieces, which continue each other's lines."""
    ends_line, previous = True, ""
    for output in _outputs(cells):
        stream = str(output.get("name", "")) if output.get("output_type") == "stream" else ""
        if not (ends_line or (stream and stream == previous)):
            yield "\n"
            ends_line = True
        if text := _text_of(output):
            yield text
            ends_line, previous = text.endswith("\n"), stream


def _outputs(cells: list[Any]) -> Iterator[dict[str, Any]]:
    for cell in cells:
        outputs = cell.get("outputs") if isinstance(cell, dict) else None
        if isinstance(outputs, list):
            yield from (output for output in outputs if isinstance(output, dict))


def _text_of(output: dict[str, Any]) -> str:
    """Returns the text of an output: a stream, the traceback of an error, or a value."""
    if "traceback" in output:
        return "\n".join(_pieces(output["traceback"]))
    data = output.get("data")
    return "".join(_pieces(output.get("text") or (data.get("text/plain") if isinstance(data, dict) else None)))


def _pieces(text: Any) -> list[str]:
    """Returns the parts of a text, which is stored as one string or as a list of its lines."""
    if isinstance(text, str):
        return [text]
    return [piece for piece in text if isinstance(piece, str)] if isinstance(text, list) else []
