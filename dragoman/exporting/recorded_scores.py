"""Scores of a run's weights on test sets, as `dragoman evaluate` recorded them."""

import json
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from dragoman.exporting.source import ExportSource
from dragoman.translation.exported_model import ExportedScore

_MAX_SCORES = 20


def read_scores(source: ExportSource) -> list[ExportedScore]:
    """Returns the last score of each test set for exactly the exported weights; none for an average of checkpoints."""
    if source.is_average:
        return []
    try:
        lines = source.run.scores.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return []
    scores: dict[str, ExportedScore] = {}
    for line in lines:
        if (score := _parse(line, source.step)) is not None:
            scores[score.judged_on] = score
    return list(scores.values())[-_MAX_SCORES:]


def _parse(line: str, step: int) -> ExportedScore | None:
    """Returns the score of a line; None if it is damaged or of other weights."""
    try:
        values: dict[str, Any] = json.loads(line)
        if values["step"] != step:
            return None
        # The name of the file alone: folders of the machine that trained are nobody's business.
        judged_on = Path(str(values["judged_on"])).name
        return ExportedScore.model_validate(
            values | {"judged_on": judged_on, "num_sentences": values.get("sentences")}, strict=False
        )
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError, ValidationError):
        return None
