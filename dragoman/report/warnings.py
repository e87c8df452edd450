"""Warnings of a report, the most important first: one line each, with the rest and the line of the log folded away."""

import re

from dragoman.diagnosis.network_estimate import gpu_mismatch
from dragoman.diagnosis.wording import join_words
from dragoman.report.content import ReportWarning
from dragoman.report.evidence import Evidence
from dragoman.report.findings import Findings
from dragoman.report.nan_loss import is_about_nan, likely_causes
from dragoman.report.scores import describe_failed_scores, is_always_zero
from dragoman.report.state import cause_of_death, describe_nan_cost
from dragoman.run.records import ImportedFailure
from dragoman.run.summary import with_full_stop
from dragoman.run.units import counted

_MAX_FAILURES = 5
_MAX_MESSAGE = 110
_GOOD_LOSS = 1.5
"""Dev loss, in nats per token, of models whose translations cannot have a BLEU of 0."""
TEACHER_FORCED = ReportWarning(
    "The BLEU in this log is teacher-forced: it is not the BLEU of translations.",
    "The decoder was fed the reference and scored on subwords, so the score cannot be compared with published ones (an "
    "untrained model reached 0.95 in such a log): translate a test set and score that with sacreBLEU.",
)


def find_warnings(findings: Findings) -> list[ReportWarning]:
    """Returns warnings, the most important first."""
    evidence = findings.evidence
    return [
        *_nan_warnings(findings),
        *_divergence_warnings(findings),
        *_state_warnings(findings),
        *_failure_warnings(findings),
        *_failed_score_warnings(findings),
        *_zero_warnings(findings),
        *_score_warnings(findings),
        *_gap_warnings(evidence),
        *_step_warnings(evidence),
        *_loss_warnings(evidence),
        *map(one_line, findings.network.warnings if findings.network and evidence.is_imported else []),
        *_contradictions(evidence),
        *_checkpoint_warnings(evidence),
        *_refused_lines(evidence),
    ]


def one_line(text: str) -> ReportWarning:
    """Makes a warning of a message: what follows its first clause is folded away if the message is long."""
    text = text.strip()
    if len(text) <= _MAX_MESSAGE:
        return ReportWarning(text)
    first, rest = _split(text)
    return ReportWarning(first, rest)


def _split(text: str) -> tuple[str, str]:
    """Splits a message at the end of a sentence or clause that fits into one line; the rest may be empty."""
    ends = [match.end() for match in re.finditer(r"\.(?=\s)|[:;](?=\s)", text) if match.end() <= _MAX_MESSAGE]
    if not ends:
        return text, ""
    first, rest = text[: ends[-1]], text[ends[-1] :].strip()
    return with_full_stop(first.rstrip(":;")), rest[:1].upper() + rest[1:]


def _nan_warnings(findings: Findings) -> list[ReportWarning]:
    nan = findings.nan_loss
    if nan is None:
        return []
    message = f"The training loss is not a number since step {nan.step:,}: nothing was learned after it."
    return [ReportWarning(message, describe_nan_cost(nan).strip(), nan.log_line)]


def _divergence_warnings(findings: Findings) -> list[ReportWarning]:
    found = findings.divergence
    if found is None:
        return []
    message = f"Training diverged after step {found.last_good_step:,}: the loss rose and did not come back."
    causes = join_words(likely_causes(findings.evidence, found.step), "or")
    return [ReportWarning(message, f"It went from {found.lowest:.2f} to {found.last:.2f}. Likely cause: {causes}.")]


def _state_warnings(findings: Findings) -> list[ReportWarning]:
    evidence = findings.evidence
    if evidence.state == "failed" and evidence.fatal_failure is None:
        cause = one_line(with_full_stop(cause_of_death(findings)))
        hint = "" if evidence.is_imported else " `dragoman status` says more."
        return [ReportWarning(cause.message, f"{cause.detail}{hint}".strip())]
    if evidence.state == "lost":
        return [ReportWarning("The run was lost: its processes ended without reporting why.")]
    return []


def _failure_warnings(findings: Findings) -> list[ReportWarning]:
    """Returns what went wrong in the launch that trained, what ended it first."""
    has_nan = findings.nan_loss is not None
    shown = [
        each
        for each in findings.evidence.failures
        if not (has_nan and is_about_nan(each)) and not _is_said_by_state(each, findings)
    ]
    shown.sort(key=lambda failure: not failure.is_fatal)
    return [describe_failure(failure) for failure in shown[:_MAX_FAILURES]]


def _is_said_by_state(failure: ImportedFailure, findings: Findings) -> bool:
    """Whether it only says that the log ends early, which the state of the run says with more detail."""
    return (
        not failure.evidence and failure.what.startswith("The log ends at step") and bool(findings.evidence.last_step)
    )


def describe_failure(failure: ImportedFailure) -> ReportWarning:
    """Makes a warning of a failure."""
    found = one_line(with_full_stop(failure.what))
    return ReportWarning(found.message, f"{found.detail} {failure.cause}".strip(), failure.evidence)


def _failed_score_warnings(findings: Findings) -> list[ReportWarning]:
    steps = [record.step for record in findings.evidence.evaluations]
    return [
        ReportWarning(message, "Neither curves nor forecasts nor the choice of a checkpoint use these scores.")
        for message in describe_failed_scores(findings.failed_scores, steps)
    ]


def _zero_warnings(findings: Findings) -> list[ReportWarning]:
    """Doubts BLEU that is 0 in every evaluation, or beside a good dev loss."""
    detail = "Look at some translations: a wrong reference file or subwords that were not joined give 0, too."
    last = findings.evaluations[-1] if findings.evaluations else None
    if last is not None and last.bleu == 0 and _is_good(findings, last.loss):
        message = f"BLEU is 0 although the dev loss is {last.loss:.2f}: the model or the scoring failed."
        return [ReportWarning(message, detail)]
    if not is_always_zero(findings.evaluations, "bleu"):
        return []
    num_zeros = len(findings.bleu[1])
    return [ReportWarning(f"BLEU is 0 in all {num_zeros} evaluations: the model or the scoring failed.", detail)]


def _score_warnings(findings: Findings) -> list[ReportWarning]:
    evidence = findings.evidence
    if not evidence.evaluations:
        if not evidence.last_step:
            return []
        if evidence.facts.has_unread_evaluations:
            return [ReportWarning("The model was evaluated, but the log does not show the results.")]
        if evidence.is_excerpt:
            return [ReportWarning("This excerpt shows no evaluation.")]
        return [ReportWarning("The model was never evaluated on a dev set.")]
    if findings.is_bleu_forced and len(findings.bleu[0]):
        return [TEACHER_FORCED]
    if evidence.facts.bleu_kind == "tokenised":
        detail = "It depends on the tokenizer: score the translations again with sacreBLEU to compare them with others."
        return [ReportWarning("BLEU in this log was computed on tokenised text, so it cannot be compared.", detail)]
    is_by_bleu = findings.score is None or findings.score.key == "bleu"
    if evidence.is_imported and is_by_bleu and len(findings.bleu[0]) and evidence.facts.bleu_kind == "unknown":
        detail = "Score the translations again with sacreBLEU to compare them with others."
        return [ReportWarning("The log does not say how its BLEU was computed.", detail)]
    return []


def _is_good(findings: Findings, loss: float | None) -> bool:
    return loss is not None and loss < _GOOD_LOSS and findings.loss_unit == "loss in nats per token"


def _gap_warnings(evidence: Evidence) -> list[ReportWarning]:
    if evidence.gap is None:
        return []
    before, after = evidence.gap
    detail = "Its middle is missing, or it holds parts of two runs: figures from before and after may not fit together."
    return [ReportWarning(f"The log shows no training between steps {before:,} and {after:,}.", detail)]


def _step_warnings(evidence: Evidence) -> list[ReportWarning]:
    noun = evidence.step_noun
    if noun == "step":
        return []
    detail = f"How many updates one {noun} has is not in these files, so there is no time per step."
    return [ReportWarning(f"The files count {noun}s, not updates: every step on this page is one {noun}.", detail)]


def _loss_warnings(evidence: Evidence) -> list[ReportWarning]:
    found = []
    if evidence.facts.is_train_loss_of_one_rank:
        found.append("The training loss in this log covers only the first rank's batches, not the whole batch.")
    skipped = evidence.train[-1].skipped_steps if evidence.train else None
    if skipped:
        were = (
            "update was skipped because its gradient was"
            if skipped == 1
            else "updates were skipped because gradients were"
        )
        found.append(f"{skipped:,} {were} not finite (dynamic loss scaling).")
    return [ReportWarning(message) for message in found]


def _contradictions(evidence: Evidence) -> list[ReportWarning]:
    """Returns options of the user that the files contradict."""
    stated, found = evidence.known, []
    if stated.nodes and evidence.num_nodes and stated.nodes != evidence.num_nodes:
        found.append(f"--nodes {stated.nodes}, but the files of the run show {counted(evidence.num_nodes, 'machine')}")
    if stated.gpus_per_node and evidence.num_ranks and evidence.num_nodes:
        each = evidence.num_ranks / evidence.num_nodes
        if each != stated.gpus_per_node:
            found.append(
                f"--gpus-per-node {stated.gpus_per_node}, but the files of the run show {each:g} workers per machine"
            )
    mismatch = gpu_mismatch(stated.gpu, evidence.facts.gpus or [])
    others = [one_line(mismatch)] if mismatch else []
    return [*(one_line(f"You passed {option}: the report uses the files.") for option in found), *others]


def _checkpoint_warnings(evidence: Evidence) -> list[ReportWarning]:
    if not evidence.is_imported:
        return []  # Our own runs save a checkpoint at the end, too.
    every, last = evidence.settings.checkpoints.save_every, evidence.last_step
    if not every or last is None or not 0 < last < every:
        return []
    message = f"Checkpoints were to be saved only every {every:,.0f} steps, and the run ended at step {last:,}."
    return [ReportWarning(message, "Only the first step and the best checkpoint, if any, were saved.")]


def _refused_lines(evidence: Evidence) -> list[ReportWarning]:
    name = evidence.run.metrics.name
    found = [f"{name} {line}." for line in evidence.refused.first]
    num_more = evidence.refused.number - len(found)
    more = (
        [f"{counted(num_more, 'more line')} of {name} {'was' if num_more == 1 else 'were'} skipped."]
        if num_more
        else []
    )
    return [ReportWarning(message) for message in [*found, *more]]
