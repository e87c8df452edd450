"""The first lines of a report: its summary and its warnings."""

from typing import Any

from dragoman.diagnosis.wording import format_step
from dragoman.report.answers.duration import describe_hours
from dragoman.report.answers.trained import is_schedule_over, what_more_would_bring
from dragoman.report.evidence import Evidence, table
from dragoman.report.findings import Findings
from dragoman.run.status import number_or_none
from dragoman.run.summary import as_sentence

CURVES_ONLY = ("TensorBoard", "CSV")
"""Sources that do not tell which program trained."""


def summarise(findings: Findings) -> str:
    """A few sentences in plain words."""
    sentences = [
        _what(findings.evidence),
        _how_good(findings),
        _how_long(findings),
        findings.verdict.why if findings.evidence.last_step is not None else "",
        f"Next: {next_step(findings)}",
    ]
    return " ".join(filter(None, sentences))


def _what(evidence: Evidence) -> str:
    if evidence.last_step is None:
        failures = evidence.imported.get("failures")
        first = table(failures[0]) if isinstance(failures, list) and failures else {}
        return f"No step was trained. {first.get('what', '')} {first.get('cause', '')}".strip()
    size = f"A model of {evidence.parameters:,} parameters" if evidence.parameters else "A model"
    by = f" by {evidence.trainer}" if evidence.is_foreign and evidence.trainer not in CURVES_ONLY else ""
    where = ""
    if evidence.num_ranks:
        nodes = evidence.num_nodes
        where = f" on {evidence.num_ranks} worker{'s' if evidence.num_ranks > 1 else ''}"
        where += f" of {nodes} machine{'s' if nodes > 1 else ''}" if nodes else ""
    planned = number_or_none(evidence.training.get("max_steps"))
    is_cut_short = planned is not None and planned > evidence.last_step
    steps = f"{evidence.last_step:,} steps" + (f" of {planned:,.0f} planned" if is_cut_short else "")
    return f"{size} was trained{by} for {steps}{where}."


def _how_good(findings: Findings) -> str:
    evaluations = findings.evidence.evaluations
    if not evaluations:
        return "It was never judged, so how good it is is not known." if findings.evidence.last_step is not None else ""
    last = evaluations[-1]
    loss, bleu = number_or_none(last.get("loss")), number_or_none(last.get("bleu"))
    forced = number_or_none(last.get("teacher_forced_bleu"))
    figures = [] if loss is None else [f"a dev loss of {loss:.4f}"]
    if bleu is not None:
        figures.append(f"BLEU {bleu:.1f} on the dev set")
    elif forced is not None:
        figures.append(f"a teacher-forced BLEU of {forced:.4f}, which says nothing about its translations")
    return f"At step {last['step']:,} it reached {' and '.join(figures)}." if figures else ""


def _how_long(findings: Findings) -> str:
    if findings.wall_seconds is None:
        return ""
    cost = f" and cost {findings.cost:,.2f}" if findings.cost is not None else ""
    step = f", {format_step(findings.step_times.median)} a step" if findings.step_times else ""
    return f"That took {describe_hours(findings.wall_seconds).split(' (')[0]}{step}{cost}."


def next_step(findings: Findings) -> str:
    """What the owner of the run should do now, in one or two sentences."""
    evidence = findings.evidence
    if evidence.last_step is None:
        return "mend the cause and start again."
    if _is_nan(evidence):
        return "throw away what was trained since the loss became NaN, and start again with the cause mended."
    advice = _speed_advice(findings)
    return f"{_quality_advice(findings)}{f' {advice}' if advice else ''}"


def _is_nan(evidence: Evidence) -> bool:
    return number_or_none(evidence.facts.get("first_nan_step")) is not None


def _quality_advice(findings: Findings) -> str:
    found, loss, bleu = findings.overfitting, findings.loss_forecast, findings.bleu_forecast
    if found is not None and found.is_overfitting:
        return f"use the checkpoint of step {found.best_step:,}; more text, more dropout or a smaller model would help."
    if loss is None:
        return "evaluate at least five times, so that one can tell what more steps would bring."
    if is_schedule_over(findings):
        return f"use it, or train longer anew. {what_more_would_bring(findings)}"
    if loss.is_flat and (bleu is None or bleu.is_flat):
        return "stop here: more of the same steps would bring next to nothing."
    return f"it can go on. {what_more_would_bring(findings)}"


def _speed_advice(findings: Findings) -> str:
    verdict = findings.verdict
    for record in reversed(findings.evidence.predictions):
        advice = record.get("advice")
        if isinstance(advice, list) and advice and isinstance(advice[0], str) and verdict.bottleneck != "compute":
            return f"Against waiting: {advice[0]}"
    match verdict.bottleneck:
        case "network":
            return (
                "For any further run mend the network: a faster link, fewer bytes or larger batches; it sets the pace."
            )
        case "straggler":
            return "For any further run find out what slows the slowest rank."
        case "input":
            return "For any further run speed up reading the data."
    return ""


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
