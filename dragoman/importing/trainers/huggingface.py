"""Reads the JSON files of the Hugging Face Trainer: trainer_state.json and all_results.json.

`read_trainer_state` comes first, on a run that is empty; of several checkpoints the newest holds the whole history.
`read_results` comes after it (or after the log), for all_results.json, train_results.json and eval_results.json: it
adds what the others lack. Both may be called alone.
"""

import json
import math
import re
from pathlib import Path
from typing import Any

from dragoman.importing.imported_run import ImportedRun
from dragoman.importing.log_text import is_usable, parse_number
from dragoman.importing.trainers.huggingface_history import TRAINER, History
from dragoman.importing.trainers.huggingface_log import HfReader, is_own_line
from dragoman.run.errors import UserError, describe_os_error
from dragoman.run.records import LARGEST_NUMBER

__all__ = [
    "RESULT_NAMES",
    "TRAINER",
    "HfReader",
    "checkpoint_number",
    "is_checkpoint_folder",
    "is_own_line",
    "length_of_history",
    "read_results",
    "read_trainer_state",
]

RESULT_NAMES = ("all_results.json", "train_results.json", "eval_results.json")
"""Files that read_results understands, those with steps first."""
_SPEED_ERROR = 0.0005
"""Largest error of train_steps_per_second, which is rounded."""
MAX_STATE_BYTES = 200 * 10**6

# The Hub calls the newest checkpoint of a run that goes on last-checkpoint.
_CHECKPOINT_FOLDER = re.compile(r"checkpoint-(\d{1,15})|last-checkpoint", re.ASCII)
_STATE_SETTINGS = {
    "max_steps": ("training", "max_steps"),
    "logging_steps": ("training", "log_every"),
    "eval_steps": ("evaluation", "evaluate_every"),
}


def checkpoint_number(folder: Path) -> int | None:
    """Returns the step in the name of a checkpoint folder; None for any other folder."""
    match = _CHECKPOINT_FOLDER.fullmatch(folder.name)
    return int(match[1]) if match and match[1] else None


def is_checkpoint_folder(folder: Path) -> bool:
    """Whether the Trainer keeps a checkpoint in the folder, which is inside its output folder."""
    return _CHECKPOINT_FOLDER.fullmatch(folder.name) is not None


def length_of_history(path: Path) -> tuple[int, int]:
    """Returns the steps and the entries that a trainer_state.json holds; less than any other if it cannot be read."""
    try:
        state = _load(path)
    except UserError:
        return (-1, 0)
    entries = state.get("log_history")
    return (_whole(state.get("global_step")) or 0, len(entries) if isinstance(entries, list) else 0)


def read_trainer_state(path: Path, run: ImportedRun) -> None:
    """Reads a trainer_state.json, which the Trainer writes into its output folder and each checkpoint."""
    state = _load(path)
    if not isinstance(state.get("log_history"), list):
        raise UserError(f"{path} has no list log_history: it is not a trainer_state.json of the HF Trainer.")
    history = History(run)
    entries = [entry for entry in state["log_history"] if isinstance(entry, dict)]
    for entry in entries:
        history.add(_whole(entry.get("step")), _numbers(entry))
    _add_state_facts(run, state, history.has_ended)
    history.finish()
    _add_best(run, state, entries)
    run.note("trainer_state.json has no dates: the times of single steps are unknown without the TensorBoard files.")


def read_results(path: Path, run: ImportedRun) -> None:
    """Reads the results at the end of a run: its time, and scores that no other file has."""
    figures = _numbers(_load(path))
    if not any(name.startswith(("train_", "eval_")) for name in figures):
        raise UserError(f"{path} has no train_ or eval_ figure: it is not a result file of the HF Trainer.")
    is_alone = run.is_empty and "steps_done" not in run.facts
    step = _step_of_results(run, figures)
    if step is None:
        raise UserError(
            f"{path} has scores, but no step and no time of training: give trainer_state.json or a log too."
        )
    # Read apart: the scores of the run are on their scale already.
    results = run if is_alone else ImportedRun()
    history = History(results)
    for prefix in ("eval_", "train_"):
        history.add(step, {name: value for name, value in figures.items() if name.startswith(prefix)})
    history.finish()
    if not is_alone:
        _add_missing(run, results)
    else:
        run.facts |= {"steps_done": step, "steps_planned": step, "is_finished": True}
        if not any(name.startswith("eval_") for name in figures):
            run.note(f"{path.name} is an excerpt: scores of the run are in other files, if it was evaluated.")
        run.note(
            f"{path.name} has no number of steps: it was computed from the time and the steps per second, so it is "
            "not exact. Give trainer_state.json too."
        )


def _add_missing(run: ImportedRun, results: ImportedRun) -> None:
    """Adds the evaluation and the times of the result files where the run has none."""
    for name in ("training_seconds", "mean_seconds_per_step", "timed_steps", "step_time_includes_evaluation"):
        is_time_of_part = any("last launch only" in note for note in run.notes)
        if name in results.facts and not is_time_of_part:
            run.facts.setdefault(name, results.facts[name])
    for record in results.records:
        figures = {name: value for name, value in record.items() if name not in ("kind", "step")}
        if record["kind"] == "evaluation" and _is_new_evaluation(run, record["step"]):
            run.add_evaluation(record["step"], **figures)


def _step_of_results(run: ImportedRun, figures: dict[str, float]) -> int | None:
    """Returns the last step of the run; without one, the step that the figures lead to."""
    known = run.facts.get("steps_done") or run.newest_step
    if known is not None:
        return int(known)
    seconds, speed = figures.get("train_runtime", 0.0), figures.get("train_steps_per_second", 0.0)
    num_steps = seconds * speed
    if not is_usable(num_steps) or not 1 <= num_steps <= LARGEST_NUMBER:
        return None
    # The speed has three decimals: digits that it does not tell are left out.
    digits = math.ceil(math.log10(max(1.0, _SPEED_ERROR * seconds)))
    return int(round(num_steps, -digits)) or round(num_steps)


def _is_new_evaluation(run: ImportedRun, step: int) -> bool:
    return not any(record["kind"] == "evaluation" and record["step"] == step for record in run.records)


def _load(path: Path) -> dict[str, Any]:
    try:
        if path.stat().st_size > MAX_STATE_BYTES:
            raise UserError(f"{path} is larger than {MAX_STATE_BYTES // 10**6} MB, which no file of the Trainer is.")
        state = json.loads(path.read_text(encoding="utf-8", errors="replace"))
    except OSError as error:
        raise UserError(f"{path} cannot be read: {describe_os_error(error)}.") from None
    except (ValueError, RecursionError):
        raise UserError(
            f"{path} is not valid JSON and may have been cut off: use the one of an earlier checkpoint."
        ) from None
    if not isinstance(state, dict):
        raise UserError(f"{path} holds no JSON object: it is not a file of the HF Trainer.")
    return state


def _add_state_facts(run: ImportedRun, state: dict[str, Any], has_ended: bool) -> None:
    facts = run.facts
    for name, (section, ours) in _STATE_SETTINGS.items():
        run.add_settings(section, **{ours: _whole(state.get(name)) or None})
    if (batch := _whole(state.get("train_batch_size"))) is not None:
        facts["batch_sentences_per_rank"] = batch
    for name, fact in (("epoch", "epochs_done"), ("num_train_epochs", "epochs_planned")):
        value = _number(state.get(name))
        # A run that is limited by steps has 2**63 - 1 or so epochs.
        if is_usable(value) and 0 <= value < 10**6:
            facts[fact] = value
    done, planned = _whole(state.get("global_step")), _whole(state.get("max_steps"))
    if done is None or done < 0:
        return
    facts["steps_done"] = done
    if planned and planned > 0:
        facts["is_finished"] = done >= planned or has_ended
        if has_ended and done < planned:
            run.note(f"Training ended by itself at step {done:,} of {planned:,}: it was stopped early by a callback.")
    if facts.get("is_finished"):
        run.end_launch("finished")


def _add_best(run: ImportedRun, state: dict[str, Any], entries: list[dict[str, Any]]) -> None:
    """Names the checkpoint that the Trainer itself calls the best, and the figure by which it did."""
    best, folder = _number(state.get("best_metric")), state.get("best_model_checkpoint")
    if best is None or not isinstance(folder, str):
        return
    names = (name for entry in entries for name, value in _numbers(entry).items() if _is_named(name) and value == best)
    name = next(names, "").removeprefix("eval_")
    if name:
        run.facts["metric"] = name
    run.note(f"The Trainer's own best checkpoint is {Path(folder).name} ({name or 'its metric'} {best:.4g}).")


def _is_named(name: str) -> bool:
    return name.startswith("eval_") and not name.endswith(("_runtime", "_per_second"))


def _numbers(entry: dict[str, Any]) -> dict[str, float]:
    found = {name: _number(value) for name, value in entry.items()}
    return {name: value for name, value in found.items() if value is not None}


def _number(value: Any) -> float | None:
    """Returns a figure of an entry; some versions write it as text, and some libraries as a table with its score."""
    if isinstance(value, dict):
        value = value.get("score")
    if isinstance(value, str):
        return parse_number(value)
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    # JSON may hold an integer that is too large for a float.
    return float(value) if isinstance(value, float) or abs(value) < 2**1000 else None


def _whole(value: Any) -> int | None:
    is_whole = isinstance(value, int) and not isinstance(value, bool)
    return value if is_whole and abs(value) <= LARGEST_NUMBER else None
