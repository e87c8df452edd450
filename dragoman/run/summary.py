"""A run in figures and lines, from its files alone: what `dragoman status` prints, and `--json` after training."""

import time
from collections.abc import Iterable
from dataclasses import asdict
from math import floor
from typing import Any

from dragoman.run.batch_growth import BatchGrowth
from dragoman.run.budget import Budget, read_spent
from dragoman.run.checkpoints import MANIFEST_FILE
from dragoman.run.commands import resume_command
from dragoman.run.errors import UserError, describe_os_error
from dragoman.run.folder import RunFolder
from dragoman.run.line_follower import LineFollower
from dragoman.run.records import (
    EvaluationRecord,
    Record,
    RefusedLineError,
    TrainRecord,
    parse_record,
    parse_records,
    records_of,
)
from dragoman.run.status import Observation, planned_training
from dragoman.run.units import format_bytes, format_duration, format_figure

LastRecords = dict[str, Record]
"""The last record of each kind."""
NUM_RECENT_RECORDS = 50_000
"""Records read for `dragoman status`: more than lie between two evaluations, and a fifth of a second of work."""
LONGEST_SECONDS = 10**10
"""A longer remaining time is shown as unknown."""
_USED_UP = {"time": "training.max_hours is used up", "cost": "training.max_cost is used up"}
"""Why a run stopped by itself, by the reason in status.json."""


def read_records(run: RunFolder) -> list[Record]:
    """Reads all records of metrics.jsonl; a line cut off by a kill is skipped."""
    return list(parse_records(_read_lines(run)))


def _read_lines(run: RunFolder) -> list[str]:
    try:
        return run.metrics.read_text(encoding="utf-8", errors="replace").split("\n")
    except OSError as error:
        raise UserError(f"{run.metrics} cannot be read: {describe_os_error(error)}.") from None


def read_evaluation_records(run: RunFolder) -> list[EvaluationRecord]:
    """Reads the evaluations in metrics.jsonl; none where it cannot be read."""
    try:
        lines = _read_lines(run)
    except UserError:
        return []
    # Most lines are about steps; parsing all of them would take seconds.
    return records_of(parse_records(line for line in lines if '"evaluation"' in line), EvaluationRecord)


def last_records(lines: Iterable[str]) -> LastRecords:
    """Finds the last record of each kind among lines of metrics.jsonl."""
    last: LastRecords = {}
    known: list[str] = []
    for line in reversed(list(lines)):
        # Most lines are of a kind already found; parsing all of them would take far longer.
        if any(mark in line for mark in known):
            continue
        try:
            record = parse_record(line)
        except RefusedLineError:
            continue
        if record and record.kind not in last:
            last[record.kind] = record
            known.append(f'"kind": "{record.kind}", "step"')
    return last


def summarise_run(run: RunFolder) -> dict[str, Any]:
    """Returns the last record of each kind, and where the weights are."""
    last = last_records(_read_lines(run))
    links = {name: run.checkpoints / name for name in ("latest", "best")}
    return {
        "run": str(run.path),
        "step": last["checkpoint"].step if "checkpoint" in last else None,
        "train": last["train"].values() if "train" in last else None,
        "evaluation": last["evaluation"].values() if "evaluation" in last else None,
        "checkpoints": {name: str(link.resolve()) for name, link in links.items() if link.exists()},
    }


def run_figures(run: RunFolder, observation: Observation) -> dict[str, Any]:
    """Returns everything `dragoman status` shows; what is not known is None."""
    status = observation.status
    with LineFollower(run.metrics, NUM_RECENT_RECORDS) as metrics:
        last = last_records(metrics.read_lines())
    return {
        "state": observation.state,
        **progress_figures(run, observation, last),
        "workers": status and status.num_workers,
        "hosts": [asdict(host) for host in status.hosts] if status else [],
        "restarts": status and status.num_restarts,
        "last_restart_cause": status and status.last_restart_cause,
        "message": status and status.message,
        "checkpoint": _newest_checkpoint(run),
        "run": str(run.path),
        "host": status and status.host,
        "pid": status and status.pid,
    }


def progress_figures(run: RunFolder, observation: Observation, last: LastRecords) -> dict[str, Any]:
    """Returns progress, quality and speed of a run."""
    plan, status = planned_training(run), observation.status
    last_train, last_evaluation = last.get("train"), last.get("evaluation")
    train = last_train if isinstance(last_train, TrainRecord) else None
    evaluation = last_evaluation if isinstance(last_evaluation, EvaluationRecord) else None
    figures: dict[str, Any] = {
        "step": _newest_step(observation, last),
        "max_steps": status.num_steps if status else plan.get("max_steps"),
        "loss": train and train.loss,
        "train_step": train and train.step,
        "dev_loss": evaluation and evaluation.loss,
        "bleu": evaluation and evaluation.bleu,
        "evaluation_step": evaluation and evaluation.step,
        "seconds_per_step": train and train.seconds_per_step,
        "target_tokens_per_second": train and train.target_tokens_per_second,
    }
    spent_seconds = (train and (train.spent_seconds or train.training_seconds)) or 0.0
    seconds_left = _seconds_left(figures, train, spent_seconds, plan) if observation.is_alive else None
    return figures | {"seconds_left": seconds_left, "cost": train and train.cost}


def _newest_step(observation: Observation, last: LastRecords) -> int | None:
    """The step the run has reached, by the launcher or by the newest record, whichever is later."""
    steps = [observation.status.step] if observation.status else []
    if last:
        # Newest by time: a run that went back to a checkpoint has older records of later steps.
        steps.append(max(last.values(), key=lambda record: record.time or 0.0).step)
    return max(steps, default=None)


def _seconds_left(
    figures: dict[str, Any], train: TrainRecord | None, spent_seconds: float, plan: dict[str, float]
) -> float | None:
    """Seconds until the first budget is used up: steps, hours or money."""
    step, max_steps = figures["step"], figures["max_steps"]
    if step is None or max_steps is None or train is None or train.seconds_per_full_step is None:
        return None
    budget = Budget.smaller(plan.get("max_hours"), plan.get("max_cost"), plan.get("price_per_hour"))
    seconds_of_steps = BatchGrowth.planned(plan).full_steps(step, max_steps) * train.seconds_per_full_step
    seconds = max(0.0, min(seconds_of_steps, budget.seconds - spent_seconds))
    return seconds if seconds <= LONGEST_SECONDS else None


def _newest_checkpoint(run: RunFolder) -> dict[str, Any] | None:
    """The newest checkpoint that exists; its files are not verified, which would take long."""
    for step in reversed(run.checkpoint_steps()):
        folder = run.checkpoint(step)
        try:
            num_bytes = sum(file.stat().st_size for file in folder.iterdir())
            seconds_ago = max(0.0, time.time() - (folder / MANIFEST_FILE).stat().st_mtime)
        except OSError:
            continue  # removed in this moment, because a newer one was kept
        return {"step": step, "path": str(folder), "bytes": num_bytes, "seconds_ago": seconds_ago}
    return None


def with_full_stop(text: str) -> str:
    """Returns text with one full stop at its end."""
    return text.rstrip(". \n") + "."


def describe_observation(observation: Observation) -> str:
    """Describes the state of a run, with its cause where that is known."""
    cause = _cause(observation)
    return f"{observation.state}: {cause}" if cause else observation.state


def describe_end(run: RunFolder, observation: Observation, step: int | None) -> str:
    """Describes how a run ended, and how to continue it."""
    where = "" if step is None else f" at step {step:,}"
    cause = _cause(observation)
    is_used_up = observation.status is not None and observation.status.reason in _USED_UP
    spent = read_spent(run)
    used_up = planned_training(run) if is_used_up else None
    resume = resume_command(run.path, used_up, spent.seconds if spent else 0.0)
    match observation.state:
        case "finished":
            return f"{run.path} finished{where}."
        case "stopped":
            because = f" because {cause}" if cause else ""
            saved = "; everything is saved" if observation.status else ""
            return f"Stopped{where}{because}{saved}. Continue with: {resume}"
        case "failed":
            return with_full_stop(f"{run.path} failed{where}{f': {cause}' if cause else ''}")
        case _:
            advice = "Continue" if observation.is_process_gone else "If that process is gone, continue"
            return f"{run.path} is lost: {cause}. {advice} with: {resume}"


def _cause(observation: Observation) -> str | None:
    status = observation.status
    if status is None:
        return None
    match observation.state:
        case "lost" if observation.is_process_gone:
            return f"process {status.pid} on {status.host} ended without a message; it may have been killed"
        case "lost":
            silent = format_duration(observation.seconds_silent)
            return f"process {status.pid} on {status.host} has been silent for {silent}"
        case "restarting":
            return status.last_restart_cause or status.message
        case "stopped":
            return _USED_UP.get(status.reason or "")
        case _:
            return status.message


def status_lines(figures: dict[str, Any], observation: Observation) -> list[str]:
    """Formats the figures of a run for people; unknown figures have no line."""
    rows = {
        "State": describe_observation(observation) + _describe_launcher(figures, observation),
        "Step": _describe_step(figures),
        "Training": _at_step(format_figure("loss {:.4f}", figures["loss"]), figures["train_step"]),
        "Dev set": _at_step(
            _join(format_figure("loss {:.4f}", figures["dev_loss"]), format_figure("BLEU {:.2f}", figures["bleu"])),
            figures["evaluation_step"],
        ),
        "Speed": _join(
            format_figure("{:.3f} s per step", figures["seconds_per_step"]),
            format_figure("{:,.0f} target tokens/s", figures["target_tokens_per_second"]),
        ),
        "Cost": format_figure("{:,.2f}", figures["cost"]),
        "Workers": _describe_workers(figures),
        "Restarts": _describe_restarts(figures),
        "Checkpoint": _describe_checkpoint(figures["checkpoint"]),
    }
    return [f"{label + ':':<12}{text}" for label, text in rows.items() if text]


def _describe_launcher(figures: dict[str, Any], observation: Observation) -> str:
    return f" (process {figures['pid']} on {figures['host']})" if observation.is_alive and figures["pid"] else ""


def _describe_step(figures: dict[str, Any]) -> str:
    step, max_steps, seconds_left = figures["step"], figures["max_steps"], figures["seconds_left"]
    if step is None:
        return ""
    # Rounded down: only a complete run shows 100%.
    share = f" of {max_steps:,} ({floor(1000 * step / max_steps) / 10:.1f}%)" if max_steps else ""
    return _join(f"{step:,}{share}", f"{format_duration(seconds_left)} left" if seconds_left is not None else "")


def _at_step(text: str, step: int | None) -> str:
    return _join(text, format_figure("at step {:,}", step), between=" ") if text else ""


def _describe_workers(figures: dict[str, Any]) -> str:
    hosts = [
        f"{host['name']} {host['workers']}{' (lost)' if host['state'] == 'lost' else ''}" for host in figures["hosts"]
    ]
    return _join(format_figure("{:,}", figures["workers"]), ", ".join(hosts), between=" on ")


def _describe_restarts(figures: dict[str, Any]) -> str:
    if not figures["restarts"]:
        return ""
    cause = figures["last_restart_cause"]
    return _join(f"{figures['restarts']:,}", f"the last because: {cause}" if cause else "")


def _describe_checkpoint(checkpoint: dict[str, Any] | None) -> str:
    if checkpoint is None:
        return "none yet"
    return (
        f"step {checkpoint['step']:,}, {format_duration(checkpoint['seconds_ago'])} ago, "
        f"{format_bytes(checkpoint['bytes'])}, {checkpoint['path']}"
    )


def _join(*parts: str, between: str = ", ") -> str:
    return between.join(filter(None, parts))
