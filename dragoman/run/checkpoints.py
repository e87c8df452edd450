"""Checkpoints as files: which are complete, which is the best, which ones a name means. Needs no torch."""

import math
import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from stat import S_ISREG
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from dragoman.run.errors import UsageError, UserError, describe_os_error
from dragoman.run.files import LaterFormatError, read_json, read_json_table, require_known_format, sha256
from dragoman.run.folder import RunFolder, checkpoint_step

if TYPE_CHECKING:
    from dragoman.run.config import Metric

FORMAT_VERSION = 2
"""Format of state.json and manifest.json."""
MODEL_FILE = "model.safetensors"
"""The weights that training continues from."""
AVERAGED_FILE = "averaged.safetensors"
"""An average of weights, which a translator uses where state.json says so."""
OPTIMIZER_FILE = "optimizer.safetensors"
REPLICAS_FILE = "replicas.safetensors"
"""Weights, moments and unsent differences of each replica, where replicas differ."""
STATE_FILE = "state.json"
MANIFEST_FILE = "manifest.json"
OPTIONAL_FILES = (AVERAGED_FILE, REPLICAS_FILE)
"""Files that only some checkpoints have."""
TRANSLATOR_FILES = (MODEL_FILE, STATE_FILE)
RESUME_FILES = (MODEL_FILE, OPTIMIZER_FILE, STATE_FILE)
SavedEvaluation = dict[str, Any]
"""The figures in state.json by which checkpoints are ranked, and the tokenizer that cut text into words for BLEU."""
START_FOLDER = "start"
"""Folder of a run that holds the weights it started from, if those are of another run."""
WeightsName = Literal["trained", "averaged"]
METRIC_NAMES = {"bleu": "BLEU", "chrf": "chrF", "loss": "loss"}


# Complete ones


def resume_files(checkpoint: Path) -> tuple[str, ...]:
    """Returns the files that training continues from, with a moving average and the state of replicas if it has any."""
    average = _read_from_state(checkpoint, "average")
    is_moving = isinstance(average, dict) and average.get("kind") == "ema"
    replicas = _read_from_state(checkpoint, "has_replicas")
    return (*RESUME_FILES, *([AVERAGED_FILE] if is_moving else []), *([REPLICAS_FILE] if replicas is True else []))


def translator_files(checkpoint: Path) -> tuple[str, ...]:
    """Returns the files that a translator needs: the weights that state.json names, and itself."""
    return weights_file(checkpoint), STATE_FILE


def weights_file(checkpoint: Path) -> str:
    """Returns the name of the file with the weights that a translator should use."""
    return AVERAGED_FILE if _read_from_state(checkpoint, "weights") == "averaged" else MODEL_FILE


def verify_checkpoint(checkpoint: Path, names: tuple[str, ...] | None = None) -> None:
    """Compares files with the sizes and SHA-256 in the manifest; a UserError names the first that differs.

    Without names, compares what training continues from.
    """
    names = resume_files(checkpoint) if names is None else names
    for name, digest in check_sizes(checkpoint, names).items():
        try:
            is_same = sha256(checkpoint / name) == digest
        except OSError as error:
            raise UserError(f"{checkpoint / name} cannot be read: {describe_os_error(error)}.") from None
        if not is_same:
            raise _damaged(checkpoint / name)


def check_sizes(checkpoint: Path, names: tuple[str, ...] = RESUME_FILES) -> dict[str, str]:
    """Compares only the sizes, which takes no time; returns the SHA-256 of each file in the manifest."""
    try:
        manifest = read_json(checkpoint / MANIFEST_FILE)
        require_known_format(checkpoint / MANIFEST_FILE, manifest.get("format_version"), FORMAT_VERSION)
        records = {name: manifest["files"][name] for name in names}
        expected = {name: (int(record["bytes"]), str(record["sha256"])) for name, record in records.items()}
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError):
        raise UserError(f"{checkpoint} is incomplete: its {MANIFEST_FILE} is missing or unreadable.") from None
    for name, (num_bytes, _) in expected.items():
        path = checkpoint / name
        try:
            found = path.stat()  # asked once: the thread that saves may remove the file at any moment
        except FileNotFoundError:
            raise UserError(f"{checkpoint} is incomplete: {name} is missing.") from None
        except OSError as error:
            raise UserError(f"{path} cannot be read: {describe_os_error(error)}.") from None
        if not S_ISREG(found.st_mode) or found.st_size != num_bytes:
            raise _damaged(path)
    return {name: digest for name, (_, digest) in expected.items()}


def _damaged(path: Path) -> UserError:
    return UserError(f"{path} is damaged: it is not the file its {MANIFEST_FILE} describes.")


def newest_complete_checkpoint(run: RunFolder, warn: Callable[[str], None]) -> Path | None:
    """Finds the newest checkpoint a run can continue from; damaged ones are skipped with a warning."""
    for step in reversed(run.checkpoint_steps()):
        try:
            verify_checkpoint(run.checkpoint(step))
        except LaterFormatError:
            raise  # to continue from an older one would overwrite what a later program trained
        except UserError as error:
            warn(f"Skipping a checkpoint: {error}")
        else:
            return run.checkpoint(step)
    return None


def require_same_data(checkpoint: Path, fingerprint: str) -> None:
    """Refuses prepared data with another fingerprint than the data that a checkpoint was trained on."""
    if not is_trained_on(checkpoint, fingerprint):
        raise UserError(
            f"{checkpoint} was trained on other prepared data than data.prepared holds now (fingerprint "
            f"{fingerprint[:12]}). Name the folder it was trained on: --set data.prepared=FOLDER."
        )


def is_trained_on(checkpoint: Path, fingerprint: str) -> bool:
    """Whether a checkpoint was trained on the prepared data with this fingerprint; true if it does not tell."""
    return _read_from_state(checkpoint, "data_fingerprint") in (None, fingerprint)


def is_state_readable(checkpoint: Path) -> bool:
    """Whether state.json tells if its step was evaluated."""
    return "evaluation" in read_json_table(checkpoint / STATE_FILE)


def _read_from_state(checkpoint: Path, key: str) -> Any:
    """Reads one value of state.json; None if it cannot be read."""
    return read_json_table(checkpoint / STATE_FILE).get(key)


# The best ones


class Rank(NamedTuple):
    """Orders evaluated checkpoints: the smallest is the best. Figures that are missing or not finite count as last."""

    figure: float
    """The metric, negated where higher is better."""
    loss: float
    minus_step: int
    """The later of two equals is better."""


def rank_evaluation(step: int, evaluation: SavedEvaluation, best_by: "Metric", tokenizer: object = None) -> Rank:
    """Ranks the evaluation of a step by a metric, then by loss, then by step.

    BLEU of another tokenizer counts as last, because it cannot be compared; earlier programs saved no tokenizer.
    """
    sign = 1.0 if best_by == "loss" else -1.0
    is_comparable = best_by != "bleu" or tokenizer is None or evaluation.get("tokenizer") in (None, tokenizer)
    figure = evaluation.get(best_by) if is_comparable else None
    return Rank(_or_last(figure, sign), _or_last(evaluation.get("loss"), 1.0), -step)


def _or_last(figure: Any, sign: float) -> float:
    return sign * figure if isinstance(figure, int | float) and math.isfinite(figure) else math.inf


def read_evaluations(run: RunFolder, steps: Iterable[int]) -> dict[int, SavedEvaluation]:
    """Reads the evaluations in state.json; steps that were not evaluated or cannot be read are left out."""
    found = {step: _read_from_state(run.checkpoint(step), "evaluation") for step in steps}
    return {step: evaluation for step, evaluation in found.items() if isinstance(evaluation, dict)}


def rank_steps(run: RunFolder, steps: Iterable[int], best_by: "Metric") -> list[int]:
    """Returns the steps that were evaluated, the best first; the newest of them tells which tokenizer counts."""
    evaluations = read_evaluations(run, steps)
    tokenizer = evaluations[max(evaluations)].get("tokenizer") if evaluations else None
    return sorted(evaluations, key=lambda step: rank_evaluation(step, evaluations[step], best_by, tokenizer))


# Names

_WHICH_ONES = "--checkpoint takes best, latest, a step number, average:best:N or average:last:N"


def find_checkpoint(run: RunFolder, which: str, best_by: "Metric", warn: Callable[[str], None]) -> Path:
    """Finds the intact checkpoint of "best", "latest" or a step number, with all that a translator needs.

    Where a link leads to no intact one, the next best or newest takes its place, and `warn` is told. A step number has
    no substitute.
    """
    if not run.checkpoint_steps():
        raise UserError(f"{run.path} has no checkpoint yet.")
    is_name = which in ("best", "latest")
    try:
        checkpoint = _follow_link(run, which) if is_name else _numbered_checkpoint(run, which)
        verify_checkpoint(checkpoint, translator_files(checkpoint))
    except LaterFormatError:
        raise
    except UserError as error:
        if not is_name:
            raise
        return _find_substitute(run, which, best_by, error, warn)
    return checkpoint


def _numbered_checkpoint(run: RunFolder, number: str) -> Path:
    if not (number.isascii() and number.isdecimal()):
        raise UsageError(f"{_WHICH_ONES}, not {number!r}.")
    steps = {str(step): step for step in run.checkpoint_steps()}
    step = steps.get(number.lstrip("0") or "0")
    if step is None:
        raise UserError(f"{run.path} has no checkpoint of step {number}; there are: {', '.join(steps)}.")
    return run.checkpoint(step)


def _follow_link(run: RunFolder, name: str) -> Path:
    """Returns the checkpoint that a link names; a UserError says why it names none."""
    link = run.checkpoints / name
    if is_copied_link(link):
        return run.checkpoint(copied_step(link))
    if not link.is_symlink():
        raise UserError(f"There is no link {link}.")
    target = link.readlink()
    steps = {run.checkpoint(step).name: step for step in run.checkpoint_steps()}
    is_inside = (run.checkpoints / target.parent).resolve() == run.checkpoints.resolve()
    if not (is_inside and target.name in steps):
        raise UserError(f"{link} points at {target}, which is no checkpoint of this run.")
    return run.checkpoint(steps[target.name])


def is_copied_link(link: Path) -> bool:
    """Whether a folder stands where a link to a step should be: some tools copy what links point at."""
    return link.is_dir() and not link.is_symlink()


def copied_step(folder: Path) -> int:
    """Returns the step that a copied checkpoint holds; its name does not tell."""
    try:
        return int(read_json(folder / MANIFEST_FILE)["step"])
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        raise UserError(f"{folder} is a folder without a readable {MANIFEST_FILE}, not a link to a step.") from None


def _find_substitute(
    run: RunFolder, name: str, best_by: "Metric", problem: UserError, warn: Callable[[str], None]
) -> Path:
    newest_first = run.checkpoint_steps()[::-1]
    evaluated = rank_steps(run, newest_first, best_by) if name == "best" else []
    for step in dict.fromkeys(evaluated + newest_first):
        try:
            verify_checkpoint(run.checkpoint(step), translator_files(run.checkpoint(step)))
        except LaterFormatError:
            raise
        except UserError:
            continue
        why = f"the best intact one by {METRIC_NAMES[best_by]}" if step in evaluated else "the newest intact one"
        if name == "best" and not evaluated and not (run.checkpoints / name).is_symlink():
            warn(f"No checkpoint of {run.path} was evaluated yet: using the newest intact one, of step {step:,}.")
        else:
            warn(f"{problem} Using the checkpoint of step {step:,} instead, {why}.")
        return run.checkpoint(step)
    raise UserError(f"No checkpoint of {run.path} is intact: {problem}")


# Averages


@dataclass(frozen=True)
class AverageOf:
    """Which checkpoints to average: the best or the last ones."""

    order: Literal["best", "last"]
    number: int

    @classmethod
    def parse(cls, text: str) -> "AverageOf":
        """Reads "best:5" or "last:8"; a ValueError says what is wrong."""
        match = re.fullmatch(r"(best|last):([1-9]\d{0,3})", text, re.ASCII)
        if match is None:
            raise ValueError(f"{text!r} must be best:N or last:N, for example best:5")
        return cls("best" if match[1] == "best" else "last", int(match[2]))

    def choose(self, run: RunFolder, steps: Iterable[int], best_by: "Metric") -> list[int]:
        """Orders the steps that may be averaged, the first choice first; the untrained model is none of them."""
        trained = sorted((step for step in steps if step > 0), reverse=True)
        return rank_steps(run, trained, best_by) if self.order == "best" else trained


def parse_average_name(which: str) -> AverageOf | None:
    """Reads "average:best:5"; None for other names, and a UsageError for a wrong average."""
    if not which.startswith("average"):
        return None
    try:
        return AverageOf.parse(which.removeprefix("average").removeprefix(":"))
    except ValueError:
        raise UsageError(f"{_WHICH_ONES}, not {which!r}.") from None


def find_checkpoints_to_average(
    run: RunFolder,
    average: AverageOf,
    best_by: "Metric",
    warn: Callable[[str], None],
    steps: Iterable[int] | None = None,
) -> list[Path]:
    """Finds the intact checkpoints of an average in the order of their steps; `warn` is told where some are missing.

    `steps` are those that may be used, all where it is None.
    """
    found: list[Path] = []
    for step in average.choose(run, run.checkpoint_steps() if steps is None else steps, best_by):
        if len(found) == average.number:
            break
        try:
            verify_checkpoint(run.checkpoint(step), TRANSLATOR_FILES)
        except LaterFormatError:
            raise
        except UserError as error:
            warn(f"Leaving a checkpoint out of the average: {error}")
        else:
            found.append(run.checkpoint(step))
    if not found:
        kind = "evaluated" if average.order == "best" else "trained"
        raise UserError(f"{run.path} has no intact checkpoint of a {kind} model to average.")
    if len(found) < average.number:
        warn(f"Only {len(found)} of {average.number} checkpoints to average are there: using these.")
    return sorted(found, key=checkpoint_step)
