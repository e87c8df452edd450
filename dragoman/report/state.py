"""How a run ended, in a few words for the top of the page, with an explanation."""

import re

from dragoman.diagnosis.divergence import FEWEST_LOSSES, Divergence
from dragoman.diagnosis.wording import join_words
from dragoman.report.content import Mood, RunState
from dragoman.report.durations import describe_hours, format_money
from dragoman.report.findings import Findings
from dragoman.report.nan_loss import NanLoss
from dragoman.run.status import ALIVE_STATES
from dragoman.run.summary import with_full_stop
from dragoman.run.units import counted

_SHORT_CAUSES = {
    "gpu ran out of memory": "out of GPU memory",
    "out of gpu memory": "out of GPU memory",
    "gpu reported an error": "GPU error",
    "shared memory": "out of shared memory",
    "main memory": "killed, or out of main memory",
    "disk is full": "disk full",
    "host name": "unknown host",
    "could not be reached": "host not reached",
    "refused the ssh": "ssh login refused",
    "key of a host": "unknown ssh key",
    "program was not found": "program not found",
    "module is missing": "Python module missing",
    "library is missing": "library missing",
    "no usable gpu": "no usable GPU",
    "configuration was rejected": "configuration rejected",
    "held an earlier run": "folder of an earlier run",
    "syntax error": "syntax error",
    "file was not found": "file not found",
    "no permission": "no permission",
    "timed out": "ranks timed out",
    "connection": "connection broke",
}
"""Few words for a failure, by words of its message."""
_STOPPED_BY_SOMEBODY = "stopped the run"
_STOPPED_EARLY = "stopped early"
_NEARLY_ALL = 0.9
"""Share of the planned epochs from which the rest may only be missing in the log."""
_PLACE = re.compile(r"\s+(?:at step [\d,]+|before the first step|\d+ times)\b.*$", re.DOTALL)
_MAX_CAUSE = 40


def describe_state(findings: Findings) -> RunState:
    """Describes how the run ended; the worst comes first."""
    evidence, nan = findings.evidence, findings.nan_loss
    if nan is not None:
        return RunState(f"NaN since step {nan.step:,}", "bad", describe_nan(nan))
    if (diverged := findings.divergence) is not None:
        text = f"Diverged after step {diverged.last_good_step:,}"
        return RunState(text, "bad", f"{_capitalise(describe_divergence(findings, diverged))} {_done(findings)}")
    if evidence.state in ALIVE_STATES:
        share = findings.progress.share
        percent = "" if share is None else f", {findings.progress.percent}"
        return RunState(f"Running{percent}", "neutral", "The run has not ended: this page shows its current state.")
    if cause := cause_of_death(findings):
        is_stopped = is_stop(cause)
        text = "Stopped by a person or scheduler" if is_stopped else f"Died: {shorten_cause(cause)}"
        return RunState(text, "neutral" if is_stopped else "bad", f"{with_full_stop(cause)} {_done(findings)}".strip())
    if not evidence.last_step:
        return _without_steps(findings)
    if evidence.state == "finished":
        return RunState("Finished", "good", _finished(findings))
    if evidence.state == "lost":
        return RunState("Lost", "bad", f"Its processes ended without a message. {_done(findings)}")
    return _unfinished(findings)


def cause_of_death(findings: Findings) -> str:
    """Returns the message about what ended the run; empty where nothing is known to have ended it."""
    evidence = findings.evidence
    if evidence.state != "failed":
        return ""
    if not evidence.is_imported:
        return evidence.message or "The run failed"
    failure, launch = evidence.fatal_failure, evidence.trained_launch
    reason = launch.reason if launch is not None else ""
    return (failure.what if failure is not None else reason) or "The run failed"


def is_stop(cause: str) -> bool:
    """Whether a person or a scheduler ended the run, and no fault."""
    return _STOPPED_BY_SOMEBODY in cause


def shorten_cause(cause: str) -> str:
    """Shortens the message of a failure to a few words."""
    lowered = cause.lower()
    for words, short in _SHORT_CAUSES.items():
        if words in lowered:
            return short
    first = _PLACE.sub("", cause.split(". ")[0]).strip().rstrip(".")
    if len(first) > _MAX_CAUSE:
        first = f"{first[: _MAX_CAUSE - 1].rsplit(' ', 1)[0].rstrip(' :,;-')}…"
    return first[:1].lower() + first[1:] if first[1:2].islower() else first


def describe_nan(nan: NanLoss) -> str:
    """Says since when the loss is NaN, why, and what was spent after it."""
    return f"The training loss is not a number since step {nan.step:,}{_last_good(nan)}.{describe_nan_cost(nan)}"


def describe_divergence(findings: Findings, found: Divergence) -> str:
    """Says since when training diverged, as the rest of a sentence."""
    name = "the training loss" if len(findings.evidence.train) >= FEWEST_LOSSES else "the dev loss"
    rise = f"{name} rose from {found.lowest:.2f} to {found.last:.2f} and did not come back"
    return f"training diverged after step {found.last_good_step:,}: {rise}."


def _capitalise(text: str) -> str:
    return text[:1].upper() + text[1:]


def describe_nan_cost(nan: NanLoss) -> str:
    """Says what was spent after the loss became NaN, and why it did."""
    spent = ""
    if nan.steps_after and nan.seconds_after:
        cost = f" and {format_money(nan.cost_after)}" if nan.cost_after is not None else ""
        spent = f" The {nan.steps_after:,} steps after it, {describe_hours(nan.seconds_after)}{cost}, were wasted."
    return f"{spent} Likely cause: {join_words(nan.causes, 'or')}."


def _last_good(nan: NanLoss) -> str:
    return f"; the last good one was at step {nan.last_good_step:,}" if nan.last_good_step is not None else ""


def describe_rest(findings: Findings) -> str:
    """Says what the steps that are left would take; empty where that is not known."""
    progress = findings.progress
    if progress.seconds_left is None:
        return ""
    cost = f" and cost {progress.cost_left:,.2f}" if progress.cost_left is not None else ""
    return f"The rest would take about {describe_hours(progress.seconds_left)}{cost}."


def describe_warmup(findings: Findings) -> str:
    """Says that the learning rate was still rising; empty where it was not."""
    progress = findings.progress
    if not progress.is_warming_up:
        return ""
    return f"The learning rate was still warming up: the warm-up has {progress.warmup_steps:,} steps."


def _done(findings: Findings) -> str:
    if not findings.evidence.last_step:
        return findings.evidence.missing_steps
    parts = [f"It made {findings.progress.describe()}.", describe_rest(findings)]
    return " ".join(filter(None, parts))


def _without_steps(findings: Findings) -> RunState:
    if findings.evidence.may_have_steps:
        return RunState("No step found", "neutral", findings.evidence.missing_steps)
    if findings.evidence.facts.has_begun_training:
        return RunState("No step logged", "bad", findings.evidence.missing_steps)
    return RunState("No step trained", "bad", "The files show no step of training: the run ended before its first one.")


def _finished(findings: Findings) -> str:
    evidence, progress, last = findings.evidence, findings.progress, findings.evidence.last_step or 0
    planned, share = progress.steps_planned, progress.share
    launch = evidence.trained_launch
    reason = evidence.message or (launch.reason if launch is not None else "")
    if planned and last < planned and reason:
        return f"Training ended at step {last:,} of at most {planned:,}: {with_full_stop(reason)}"
    if planned and last < planned and (share or 0.0) < 1:
        return f"Training ended by itself at step {last:,} of {planned:,}, for example by early stopping."
    if _STOPPED_EARLY in reason:
        of_plan = f", {progress.describe()}" if not planned and share is not None else ""
        return f"Training ended after {counted(last, evidence.step_noun)}{of_plan}. {with_full_stop(reason)}"
    if not planned and not reason and share is not None and share < _NEARLY_ALL:
        return f"Training ended by itself after {progress.describe()}, for example by early stopping."
    how = "by itself" if share is None and evidence.is_imported else "as planned"
    return f"Training ended {how}, after {counted(last, evidence.step_noun)}."


def _unfinished(findings: Findings) -> RunState:
    evidence, progress = findings.evidence, findings.progress
    # Both are empty for most runs.
    more = " ".join(filter(None, (describe_warmup(findings), describe_rest(findings))))
    if evidence.state == "unknown":
        return RunState("End not known", "neutral", f"The log does not say whether it finished. {_done(findings)}")
    why = (
        ""
        if not evidence.is_imported
        else (" The log does not say why it ended: it was stopped or killed, is still running, or the log was cut.")
    )
    if progress.share is None:
        return RunState(f"Stopped at step {progress.steps_done:,}", "neutral", why.strip() or "The run was stopped.")
    mood: Mood = "bad" if progress.is_untrained else "neutral"
    return RunState(f"Stopped at {progress.percent}", mood, f"It made {progress.describe()}.{why} {more}".strip())
