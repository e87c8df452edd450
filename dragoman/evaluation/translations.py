"""The dev set as a run translated it last, kept sentence by sentence so that two runs can be compared pair by pair."""

import json
from contextlib import suppress

from dragoman.evaluation.scores import bleu_counts
from dragoman.evaluation.validation import Evaluation
from dragoman.run.files import write_aside
from dragoman.run.folder import RunFolder


def keep_translations(run: RunFolder, step: int, judged: Evaluation) -> None:
    """Writes translations.jsonl: a line about the evaluation, then one for each sentence."""
    counts = bleu_counts(judged.translations, judged.references)
    rows = zip(judged.sources, judged.references, judged.translations, counts, strict=True)
    names = ("source", "reference", "translation", "bleu_counts")
    lines: list[dict[str, object]] = [{"step": step, "bleu": judged.bleu, "signature": judged.signature}]
    lines += [dict(zip(names, row, strict=True)) for row in rows]
    # On a full disk a run goes on without: it is the figures in metrics.jsonl that it needs.
    with suppress(OSError), write_aside(run.translations, "w", is_durable=False) as file:
        file.writelines(json.dumps(line, ensure_ascii=False) + "\n" for line in lines)
