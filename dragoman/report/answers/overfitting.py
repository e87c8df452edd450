"""Question 3: is the model overfitting?"""

from dragoman.diagnosis.overfitting import SIGNIFICANT
from dragoman.report.answers.learning import (
    FEWEST_EVALUATIONS,
    describe_evaluations,
    does_score_disagree,
    missing_evaluations,
    score_near,
    step_of_falling_score,
)
from dragoman.report.content import Answer, Chart, Series
from dragoman.report.findings import Findings

_OVERFITTING = "Is it overfitting?"
_HIDDEN_GAP_SHARE = 0.1
"""Share of the steps left out of the chart of the gap between the losses, which fall too fast at first."""
_CLEAR_GAIN = 0.02
"""Relative change of a score that is worth mentioning in a few words."""


def answer_overfitting(findings: Findings) -> Answer:
    """A statistical test on both losses, and the checkpoint to use."""
    found = findings.overfitting
    train, is_comparable = findings.comparable_train_loss
    if found is None:
        needs = f", but the test needs {FEWEST_EVALUATIONS} evaluations" if findings.evaluations else ""
        why = f"Cannot say: {describe_evaluations(findings)}{needs}."
        return Answer(_OVERFITTING, why, missing=[missing_evaluations(findings)], short="Cannot say")
    answer, short = _overfitting_or_not(findings)
    change = found.late_slope * (findings.evidence.last_step or 0) / 10_000
    evidence = [
        f"Lowest dev loss: {found.best_loss:.4f} at step {found.best_step:,}; the last is {found.last_loss:.4f}.",
        f"Over the last third of the evaluations it changes by {_signed(change)} per tenth of the run.",
    ]
    if found.gap_begin is not None and found.gap_end is not None and found.gap_p is not None:
        evidence.append(
            f"The gap between dev loss and training loss went from {found.gap_begin:+.3f} to {found.gap_end:+.3f} in "
            f"the second half of the run (p {_p(found.gap_p)} for a rise by chance)."
        )
    missing = []
    if train is not None and not is_comparable and findings.evidence.facts.dropout == 0:
        missing.append("A comparable training loss: here it is that of single batches. dragoman evaluates a sample.")
    elif train is not None and not is_comparable:
        missing.append(
            "A comparable training loss: here it is that of single batches with dropout, which is too high for a fair "
            "comparison. dragoman also evaluates training sentences without dropout."
        )
    confidence = min(0.95 if is_comparable else 0.8, 0.5 + 0.02 * len(findings.dev_loss[0]))
    evidence += _describe_best_score(findings)
    return Answer(_OVERFITTING, answer, evidence, confidence, _gap_charts(findings), missing=missing, short=short)


def _overfitting_or_not(findings: Findings) -> tuple[str, str]:
    """Returns the answer with the checkpoint to use, and the answer in a few words."""
    found, best = findings.overfitting, findings.best_checkpoint
    if found is None:
        return "", ""
    if (diverged := findings.divergence) is not None:
        use = f"; the best checkpoint is that of {best.describe()}" if best else ""
        since = f"training diverged after step {diverged.last_good_step:,}"
        return f"No: {since}, so the dev loss rose with the training loss{use}.", "No: it diverged"
    use = f"use the checkpoint of {best.describe()}" if best else f"use the checkpoint of step {found.best_step:,}"
    kept = use.replace("use the checkpoint of", "the best checkpoint is that of")
    rises = f"the dev loss rises more than chance explains (p {_p(found.rise_p)})"
    if found.is_overfitting and does_score_disagree(findings) and best and findings.score:
        before = score_near(findings, found.best_step)
        since = "" if before is None else f" from {findings.score.format(before)} at step {found.best_step:,}"
        answer = f"By the loss, yes: {rises}. But {best.by} went{since} to {best.shown} meanwhile: {use}."
        is_clear = before is None or abs(best.value - before) > _CLEAR_GAIN * abs(before)
        return answer, f"By the loss, not by {best.by}" if is_clear else "By the loss, yes"
    if found.is_overfitting:
        worse = ""
        if findings.score and best and step_of_falling_score(findings) is not None:
            last = findings.score.format(findings.score.values[-1])
            worse = f", and {best.by} has become worse since step {best.step:,} ({best.shown} → {last})"
        return f"Yes: {rises}{worse}; {use}.", "Yes"
    if found.may_be_overfitting:
        rose = f"the dev loss rose from {found.best_loss:.4f} at step {found.best_step:,} to {found.last_loss:.4f}"
        chance = f"with {len(findings.dev_loss[0])} evaluations that may be chance (p {_p(found.rise_p)})"
        return f"Perhaps: {rose}, but {chance}; {kept}.", "Perhaps"
    is_tiny = found.rise_p < SIGNIFICANT
    no_rise = "the dev loss hardly rises" if is_tiny else "the dev loss does not rise more than chance explains"
    if found.is_memorising:
        gap = f"but the training loss falls away from it (p {_p(found.gap_p or 0.0)})"
        return f"Not yet: {no_rise}, {gap}; {kept}.", "Not yet"
    likely = (
        f"by {found.last_loss - found.best_loss:.4f} since its lowest value" if is_tiny else f"p {_p(found.rise_p)}"
    )
    return f"No: {no_rise} ({likely}); {kept}.", "No"


def _signed(change: float) -> str:
    return f"{round(change, 4) + 0.0:+.4f}"  # not "-0.0000"


def _p(value: float) -> str:
    if value > 0.99:
        return "> 0.99"
    return f"= {value:.2g}" if value >= 0.001 else "< 0.001"


def _describe_best_score(findings: Findings) -> list[str]:
    score = findings.score
    if score is None:
        return []
    extreme = min if score.is_lower_better else max
    best = extreme(range(len(score.values)), key=score.values.__getitem__)
    return [f"Best {score.name}: {score.format(score.values[best])} at step {score.steps[best]:,}."]


def _gap_charts(findings: Findings) -> list[Chart]:
    steps, losses = findings.dev_loss
    train, is_comparable = findings.comparable_train_loss
    if train is None:
        return []
    is_shown = steps > _HIDDEN_GAP_SHARE * steps[-1]
    how = "both without dropout" if is_comparable else "training with dropout, smoothed over the same steps"
    title = "Gap between dev and training loss"
    gap = Series("dev loss minus training loss", steps[is_shown].tolist(), (losses - train)[is_shown].tolist())
    note = f"A rising line means that the model memorises its training data ({how})."
    return [Chart("gap", title, "step", findings.loss_unit.replace("loss in ", "difference in "), [gap], note=note)]
