"""Scores of evaluations: which one judges the task, and which are left out because the scoring failed."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from dragoman.run.records import EvaluationRecord

SCORE_NAMES = {"bleu": "BLEU", "chrf": "chrF", "ter": "TER", "teacher_forced_bleu": "teacher-forced BLEU"}
TASK_SCORES = ("bleu", "chrf", "ter")
"""Scores of translations, the most common first."""
_OTHER_TASK_SCORES = {
    "comet": "COMET",
    "wer": "WER",
    "cer": "CER",
    "rougel": "ROUGE-L",
    "rouge-l": "ROUGE-L",
    "rouge_l": "ROUGE-L",
    "rougelsum": "ROUGE-Lsum",
    "rouge1": "ROUGE-1",
    "rouge2": "ROUGE-2",
    "meteor": "METEOR",
}
"""Names of further scores of texts that were generated, by the trainer's own names in lower case; those that judge a
run without any of the others first."""
_CHECKED_SCORES = ("bleu", "chrf", "teacher_forced_bleu")
"""Scores that are high for good models: among such scores, a value near 0 is a failed scoring script."""
_FEWEST_SCORES = 2
_FAILED_SHARE = 0.1
"""A score below this share of the scores around it is not a score of the model."""
_LEAST_LEVEL = {"bleu": 1.0, "chrf": 1.0, "teacher_forced_bleu": 0.01}
"""Scores below this are those of a model that has hardly begun to learn: they may fall to 0."""
_COLLAPSED_LOSS = 1.5
"""A dev loss above this many times the lowest one shows that the model itself became bad."""
_MANY_ZEROS = 3
"""Evaluations in which a score may be 0 because the model has hardly begun to learn."""
_SAME_LOSS = 1.05
"""A model whose dev loss is at most this many times that of a good one does not have a score of 0."""
_GOOD_LEVEL = {"bleu": 10.0, "chrf": 20.0, "teacher_forced_bleu": 0.1}
"""Scores from this on are those of a model that has learned something."""
_LOWER_IS_BETTER = ("ter", "wer", "cer", "loss", "ppl", "perplexity", "error", "entropy")
_NOT_TASK_SCORES = ("loss", "ppl", "perplexity", "entropy", "runtime", "per_second")
_MAX_SPANS_NAMED = 4


@dataclass(frozen=True)
class TaskScore:
    """The score of the translations over the evaluations of a run."""

    key: str
    """Field of an evaluation, or the trainer's own name."""
    steps: list[int]
    values: list[float]

    @property
    def name(self) -> str:
        """Name for the reader."""
        return name_of_score(self.key)

    @property
    def is_lower_better(self) -> bool:
        """Whether small values are good, as with error rates."""
        return is_lower_better(self.key)

    def format(self, value: float) -> str:
        """Formats a value: scores from 0 to 1 need more digits than those from 0 to 100."""
        return format_score(value, 100.0 if self.key in TASK_SCORES else max(map(abs, self.values)))


@dataclass(frozen=True)
class FailedScore:
    """A score that says nothing about the model, because the program that computed it failed."""

    key: str
    step: int
    value: float
    before: float
    """The best score before it; 0 where no earlier scoring worked."""
    after: float | None
    """The best score after it; None where no later scoring worked."""


def name_of_score(key: str) -> str:
    """Returns the usual spelling of a score, or the trainer's own name."""
    return SCORE_NAMES.get(key) or _OTHER_TASK_SCORES.get(key.lower(), key)


def judging_keys(evaluations: Sequence[EvaluationRecord]) -> list[str]:
    """Returns the scores of generated text that evaluations have, the one to judge them by first."""
    keys = {key.lower(): key for key in reversed(_all_keys(evaluations))}
    return [*TASK_SCORES, *(keys[name] for name in _OTHER_TASK_SCORES if name in keys)]


def is_lower_better(key: str) -> bool:
    """Whether small values of a score are good, by its name."""
    words = key.lower().replace("-", "_").split("_")
    return any(name in words for name in _LOWER_IS_BETTER)


def format_score(value: float, largest: float) -> str:
    """Formats a score with two digits, or four where all scores are at most 1."""
    return f"{value:.2f}" if largest > 1 else f"{value:.4f}"


def score_of(record: EvaluationRecord, key: str) -> float | None:
    """Returns a score by its field, or by the name that the trainer gives it."""
    if key in SCORE_NAMES or key == "accuracy":
        return record.number(key)
    return (record.other_scores or {}).get(key)


def choose_task_score(evaluations: Sequence[EvaluationRecord], metric: str | None) -> TaskScore | None:
    """Chooses BLEU, chrF or TER, the trainer's own metric, or another score; None where none was computed twice."""
    chosen = (metric or "").lower().removeprefix("eval_").removeprefix("valid_")
    own = next((key for key in _all_keys(evaluations) if key.lower().removeprefix("eval_") == chosen), None)
    # The metric that the trainer itself was told to use decides, if it is a score of translations.
    preferred = [own] if own in TASK_SCORES else []
    others = [own] if own is not None and not any(word in chosen for word in _NOT_TASK_SCORES) else []
    for key in [*preferred, *TASK_SCORES, *others, *judging_keys(evaluations)]:
        score = _score_curve(evaluations, key)
        if len(score.values) >= _FEWEST_SCORES and len(set(score.values)) > 1:
            return score
    return None


def _all_keys(evaluations: Sequence[EvaluationRecord]) -> list[str]:
    named = dict.fromkeys(key for record in evaluations for key in record.other_scores or {})
    return [*TASK_SCORES, "accuracy", *named]


def _score_curve(evaluations: Sequence[EvaluationRecord], key: str) -> TaskScore:
    known = [(each.step, value) for each in evaluations if each.step > 0 and (value := score_of(each, key)) is not None]
    return TaskScore(key, [step for step, _ in known], [value for _, value in known])


def find_failed_scores(evaluations: Sequence[EvaluationRecord]) -> list[FailedScore]:
    """Finds scores near 0 among good ones; the zeros of a model that has learned nothing yet are real."""
    return [failed for key in _CHECKED_SCORES for failed in _failed_of(key, evaluations)]


def _failed_of(key: str, evaluations: Sequence[EvaluationRecord]) -> list[FailedScore]:
    known = [(record, value) for record in evaluations if record.step > 0 and (value := record.number(key)) is not None]
    latest = [max((value for _, value in known[index + 1 :]), default=None) for index in range(len(known))]
    failed = _failed_at_first(key, known)
    before, lowest_loss = 0.0, None
    for (record, value), after in zip(known, latest, strict=True):
        is_low = before >= _LEAST_LEVEL[key] and value < _FAILED_SHARE * before
        if is_low and _is_scoring_failure(record, before, after, lowest_loss):
            works_later = after is not None and after >= _FAILED_SHARE * before
            failed.append(FailedScore(key, record.step, value, before, after if works_later else None))
        else:
            before = max(before, value)
        if record.loss is not None:
            lowest_loss = record.loss if lowest_loss is None else min(lowest_loss, record.loss)
    return failed


def _failed_at_first(key: str, known: Sequence[tuple[EvaluationRecord, float]]) -> list[FailedScore]:
    """Finds zeros before the first good score, up to the last one of a model that was as good by its loss."""
    place = next((index for index, (_, value) in enumerate(known) if value >= _GOOD_LEVEL[key]), 0)
    good_loss, leading = (known[place][0].loss, known[:place]) if known else (None, [])
    if good_loss is None or any(value for _, value in leading):
        return []
    as_good = [
        record.step for record, _ in leading if record.loss is not None and record.loss <= _SAME_LOSS * good_loss
    ]
    after = max(value for _, value in known)
    return [
        FailedScore(key, record.step, value, 0.0, after)
        for record, value in leading
        if as_good and record.step <= as_good[-1]
    ]


def _is_scoring_failure(
    record: EvaluationRecord, before: float, after: float | None, lowest_loss: float | None
) -> bool:
    """Whether the scoring failed, and not the model: later scores are good again, or the loss stays good."""
    if after is not None and after >= before / 2:
        return True
    return record.loss is None or lowest_loss is None or record.loss <= _COLLAPSED_LOSS * lowest_loss


def is_always_zero(evaluations: Sequence[EvaluationRecord], key: str) -> bool:
    """Whether a score is 0 in so many evaluations that it says nothing about the model."""
    values = [value for record in evaluations if (value := record.number(key)) is not None]
    return len(values) >= _MANY_ZEROS and not any(values)


def without_failed_scores(
    evaluations: Sequence[EvaluationRecord], failed: Sequence[FailedScore]
) -> list[EvaluationRecord]:
    """Returns the evaluations with the failed scores removed."""
    by_step: dict[int, dict[str, None]] = {}
    for each in failed:
        by_step.setdefault(each.step, {})[each.key] = None
    return [
        record.model_copy(update=by_step[record.step]) if record.step in by_step else record for record in evaluations
    ]


def describe_failed_scores(failed: Sequence[FailedScore], evaluated_steps: Sequence[int]) -> list[str]:
    """Says once per score which values are left out, and why."""
    messages = []
    for key in dict.fromkeys(each.key for each in failed):
        of_key = [each for each in failed if each.key == key]
        first = of_key[0]
        level = max(each.before for each in of_key) or max(each.after or 0.0 for each in of_key)
        digits = 4 if key == "teacher_forced_bleu" else 0
        when = "before and after" if any(each.after is not None for each in of_key) else "before"
        when = when if any(each.before for each in of_key) else "after"
        value = f"{first.value:.2g}" if len({each.value for each in of_key}) == 1 else "close to 0"
        where = _describe_steps([each.step for each in of_key], evaluated_steps)
        messages.append(
            f"{SCORE_NAMES[key]} is {value} {where} although it is {level:.{digits}f} {when}: the scoring failed "
            "there, so it is left out."
        )
    return messages


def _describe_steps(steps: Sequence[int], evaluated_steps: Sequence[int]) -> str:
    if len(steps) == 1:
        return f"at step {steps[0]:,}"
    places = {step: place for place, step in enumerate(evaluated_steps)}
    spans = [[steps[0], steps[0]]]
    for earlier, later in pairwise(steps):
        if places.get(later, 0) == places.get(earlier, -2) + 1:
            spans[-1][1] = later
        else:
            spans.append([later, later])
    named = [f"{low:,}" if low == high else f"{low:,} to {high:,}" for low, high in spans[:_MAX_SPANS_NAMED]]
    rest = ", …" if len(spans) > _MAX_SPANS_NAMED else ""
    return f"at {len(steps)} evaluations (steps {' and '.join(named)}{rest})"
