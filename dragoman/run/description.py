"""A run in words, from what its files tell: lines for `dragoman status`, and the sentence that ends a watching."""

import shlex
from datetime import timedelta
from math import floor
from pathlib import Path
from typing import Any

from dragoman.run.command import own_command
from dragoman.run.folder import RunFolder
from dragoman.run.following import Observation

USED_UP = {"time": "training.max_hours is used up", "cost": "training.max_cost is used up"}
"""Why runs stop that nobody stopped."""
BYTES_PER_MB = 10**6
MAX_SECONDS = 10**13
"""Files may hold any number; a timedelta cannot be much longer."""


def command_for(arguments: str, run: Path) -> str:
    """A command about a run that can be copied into a shell."""
    return f"{own_command()} {arguments} {shlex.quote(str(run))}"


def as_sentence(text: str) -> str:
    """Text with one full stop at its end."""
    return text.rstrip(". \n") + "."


def describe_observation(observation: Observation) -> str:
    """The state of a run, and why it is so where that is known."""
    cause = _cause(observation)
    return f"{observation.state}: {cause}" if cause else observation.state


def describe_end(run: RunFolder, observation: Observation, step: int | None) -> str:
    """How a run ended, and how to continue it."""
    where = "" if step is None else f" at step {step:,}"
    cause = _cause(observation)
    resume = command_for("train --resume --run-dir", run.path)
    match observation.state:
        case "finished":
            return f"{run.path} finished{where}."
        case "stopped":
            because = f" because {cause}" if cause else ""
            saved = "; everything is saved" if observation.status else ""
            return f"Stopped{where}{because}{saved}. Continue with: {resume}"
        case "failed":
            return as_sentence(f"{run.path} failed{where}{f': {cause}' if cause else ''}")
        case _:
            return f"{run.path} is lost: {cause}. If that process is gone, continue with: {resume}"


def _cause(observation: Observation) -> str | None:
    status = observation.status
    if status is None:
        return None
    match observation.state:
        case "lost":
            silent = format_seconds(observation.seconds_silent)
            return f"nothing was heard of process {status.pid} on {status.host} for {silent}"
        case "restarting":
            return status.last_restart_cause or status.message
        case "stopped":
            return USED_UP.get(status.reason or "")
        case _:
            return status.message


def status_lines(figures: dict[str, Any], observation: Observation) -> list[str]:
    """The figures of a run, for people; lines about what is not known are left out."""
    rows = {
        "State": describe_observation(observation) + _describe_launcher(figures, observation),
        "Step": _describe_step(figures),
        "Quality": _join(
            _figure("loss {:.4f}", figures["loss"]),
            _figure("BLEU {:.2f} at the last evaluation", figures["bleu"]),
        ),
        "Speed": _join(
            _figure("{:.3f} s per step", figures["seconds_per_step"]),
            _figure("{:,.0f} target tokens/s", figures["target_tokens_per_second"]),
        ),
        "Cost": _figure("{:,.2f}", figures["cost"]),
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
    # Rounded down: 100% is for what is complete.
    share = f" of {max_steps:,} ({floor(1000 * step / max_steps) / 10:.1f}%)" if max_steps else ""
    return _join(f"{step:,}{share}", f"{format_seconds(seconds_left)} left" if seconds_left is not None else "")


def _describe_workers(figures: dict[str, Any]) -> str:
    hosts = [
        f"{host['name']} {host['workers']}{' (lost)' if host['state'] == 'lost' else ''}" for host in figures["hosts"]
    ]
    return _join(_figure("{:,}", figures["workers"]), ", ".join(hosts), between=" on ")


def _describe_restarts(figures: dict[str, Any]) -> str:
    if not figures["restarts"]:
        return ""
    cause = figures["last_restart_cause"]
    return _join(f"{figures['restarts']:,}", f"the last because: {cause}" if cause else "")


def _describe_checkpoint(checkpoint: dict[str, Any] | None) -> str:
    if checkpoint is None:
        return "none yet"
    return (
        f"step {checkpoint['step']:,}, {format_seconds(checkpoint['seconds_ago'])} ago, "
        f"{checkpoint['bytes'] / BYTES_PER_MB:,.1f} MB, {checkpoint['path']}"
    )


def _figure(pattern: str, value: float | None) -> str:
    return "" if value is None else pattern.format(value)


def _join(*parts: str, between: str = ", ") -> str:
    return between.join(filter(None, parts))


def format_seconds(seconds: float) -> str:
    """As hours, minutes and seconds: 1:02:03."""
    return str(timedelta(seconds=round(max(-MAX_SECONDS, min(seconds, MAX_SECONDS)))))
