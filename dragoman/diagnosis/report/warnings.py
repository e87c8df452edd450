"""What the owner of a run should not overlook."""

from typing import Any

from dragoman.diagnosis.report.evidence import Evidence, table
from dragoman.diagnosis.report.findings import Findings
from dragoman.run.description import as_sentence
from dragoman.run.status import number_or_none

TEACHER_FORCED = (
    "The BLEU in this log is teacher-forced: the decoder was fed the reference and scored on subword pieces. It is not "
    "the BLEU of translations and cannot be compared with published scores (an untrained model reached 0.95 in such a "
    "log); translate a test set and score that with sacreBLEU."
)
MAX_FAILURES = 5


def find_warnings(findings: Findings) -> list[str]:
    """The most important first."""
    evidence = findings.evidence
    return [
        *_failures(evidence),
        *_scores(findings),
        *_loss(evidence),
        *_network(findings),
        *_contradictions(evidence),
        *_checkpoints(evidence),
        *_state(evidence),
    ]


def _failures(evidence: Evidence) -> list[str]:
    failures = evidence.imported.get("failures")
    found = [table(each) for each in failures[:MAX_FAILURES]] if isinstance(failures, list) else []
    return [_describe_failure(each) for each in found]


def _describe_failure(failure: dict[str, Any]) -> str:
    line = f' The line: "{failure["evidence"]}"' if failure.get("evidence") else ""
    return f"{as_sentence(str(failure.get('what', '')))} {failure.get('cause', '')}{line}".strip()


def _scores(findings: Findings) -> list[str]:
    evidence = findings.evidence
    if not evidence.evaluations:
        return ["The model was never judged on a dev set."] if evidence.last_step is not None else []
    if findings.bleu_name == "teacher_forced_bleu" and len(findings.bleu[0]):
        return [TEACHER_FORCED]
    if evidence.facts.get("bleu_kind") == "tokenised":
        return ["BLEU in this log was computed on tokenised text: it depends on the tokenizer and is not sacreBLEU."]
    if evidence.is_foreign and len(findings.bleu[0]) and evidence.facts.get("bleu_kind") == "unknown":
        return ["How the BLEU in this log was computed is not known; score translations again with sacreBLEU."]
    return []


def _loss(evidence: Evidence) -> list[str]:
    found = []
    if evidence.facts.get("is_train_loss_of_one_rank"):
        found.append("The training loss in this log is of the first rank's batches alone, not of the whole batch.")
    skipped = [number_or_none(record.get("skipped_steps")) for record in evidence.train[-1:]]
    if skipped and skipped[0]:
        found.append(
            f"{skipped[0]:,.0f} updates were skipped because gradients were not finite (dynamic loss scaling)."
        )
    return found


def _network(findings: Findings) -> list[str]:
    estimate = findings.network
    if estimate is None or not findings.evidence.is_foreign:
        return []
    return estimate.warnings


def _contradictions(evidence: Evidence) -> list[str]:
    """What a person said that the files know better."""
    given, known = evidence.known, []
    if given.nodes and evidence.num_nodes and given.nodes != evidence.num_nodes:
        known.append(f"--nodes {given.nodes}, but the run was on {evidence.num_nodes} machines by its own files")
    if given.gpus_per_node and evidence.num_ranks and evidence.num_nodes:
        each = evidence.num_ranks / evidence.num_nodes
        if each != given.gpus_per_node:
            known.append(f"--gpus-per-node {given.gpus_per_node}, but there were {each:g} workers on each machine")
    return [f"You said {sentence}: what the files tell was taken." for sentence in known]


def _checkpoints(evidence: Evidence) -> list[str]:
    if not evidence.is_foreign:
        return []  # ours save when they end, too
    every = number_or_none(table(evidence.config.get("checkpoints")).get("save_every"))
    planned = number_or_none(evidence.training.get("max_steps"))
    last = evidence.last_step
    if every and last is not None and last < every and last > 0:
        plan = f" of {planned:,.0f}" if planned else ""
        return [
            f"Checkpoints were to be saved every {every:,.0f} steps only, and the run ended at step {last:,}{plan}: "
            "nothing but the first step and what is kept as best was saved."
        ]
    return []


def _state(evidence: Evidence) -> list[str]:
    if evidence.state == "failed":
        return ["The run failed; `dragoman status` says why."]
    if evidence.state == "lost":
        return ["The run was lost: its processes ended without a word."]
    if evidence.state in ("running", "starting", "restarting", "waiting"):
        return ["The run is still going on: this is how it stands now."]
    return []
