"""Question 3: is the model overfitting, and which checkpoint is best?"""

import numpy as np

from dragoman.report.findings import Findings
from dragoman.report.parts import Answer, Chart, Series

QUESTION = "Is it overfitting?"
HIDDEN_SHARE = 0.1
"""Of the steps: in the beginning both losses fall so fast that nothing else could be seen beside it."""


def answer_overfitting(findings: Findings) -> Answer:
    """A test on both losses, and which checkpoint to use."""
    found = findings.overfitting
    train, is_comparable = findings.comparable_train_loss
    if found is None:
        why = "That cannot be told: at least five evaluations are needed."
        return Answer(QUESTION, why, missing=["Evaluate more often (evaluation.evaluate_every)."])
    if found.is_overfitting:
        answer = (
            f"Yes: the dev set's loss rises beyond chance (p {_p(found.rise_p)}); use the checkpoint of step "
            f"{found.best_step:,}."
        )
    elif found.is_memorising:
        answer = (
            "Not yet: the dev set's loss does not rise beyond chance, but the training text's falls away from it "
            f"(p {_p(found.gap_p or 0.0)}); the best checkpoint is that of step {found.best_step:,}."
        )
    else:
        answer = (
            f"No: the dev set's loss does not rise beyond chance (p {_p(found.rise_p)}); the best checkpoint is that "
            f"of step {found.best_step:,}."
        )
    sentences = [
        f"Best dev loss {found.best_loss:.4f} at step {found.best_step:,}; the last is {found.last_loss:.4f}.",
        f"Over the last third of the evaluations it changes by {_per_tenth(findings, found.late_slope):+.4f} for each "
        "tenth of the run.",
        *_gap_sentences(findings),
        *_best_bleu_sentence(findings),
    ]
    missing = []
    if train is not None and not is_comparable:
        missing.append(
            "The training loss here is of single batches, with dropout: it lies too high for a fair comparison. "
            "dragoman also judges training sentences without dropout, at every evaluation."
        )
    confidence = min(0.95 if is_comparable else 0.8, 0.5 + 0.02 * len(findings.dev_loss[0]))
    chart = _gap_chart(findings)
    return Answer(QUESTION, answer, sentences, confidence, [chart] if chart else [], missing=missing)


def _per_tenth(findings: Findings, slope_per_thousand: float) -> float:
    return slope_per_thousand * (findings.evidence.last_step or 0) / 10_000


def _p(value: float) -> str:
    return f"= {value:.2g}" if value >= 0.001 else "< 0.001"


def _gap_sentences(findings: Findings) -> list[str]:
    found = findings.overfitting
    if found is None or found.gap_begin is None or found.gap_end is None or found.gap_p is None:
        return []
    return [
        f"Dev loss less training loss went from {found.gap_begin:+.3f} to {found.gap_end:+.3f} in the second half of "
        f"the run (p {_p(found.gap_p)} for a rise by chance)."
    ]


def _best_bleu_sentence(findings: Findings) -> list[str]:
    steps, values = findings.bleu
    is_trained = steps > 0
    if findings.bleu_name != "bleu" or not np.any(is_trained):
        return []
    best = int(np.argmax(values[is_trained]))
    return [f"Best BLEU {values[is_trained][best]:.2f} at step {int(steps[is_trained][best]):,}."]


def _gap_chart(findings: Findings) -> Chart | None:
    steps, losses = findings.dev_loss
    train, is_comparable = findings.comparable_train_loss
    if train is None:
        return None
    is_shown = steps > HIDDEN_SHARE * steps[-1]
    how = "both without dropout" if is_comparable else "training with dropout, smoothed over the same steps"
    gap = Series("dev loss less training loss", steps[is_shown].tolist(), (losses - train)[is_shown].tolist())
    note = f"Rising: the training text is learned faster than the language ({how})."
    return Chart("gap", "Dev loss less training loss", "step", "nats per token", [gap], note=note)
