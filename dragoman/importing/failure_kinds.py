"""Kinds of failure that any trainer's log may show, and the lines that only look like one."""

import re
import tomllib
from dataclasses import dataclass
from enum import IntEnum
from functools import cached_property
from importlib.resources import files


class Role(IntEnum):
    """Role of a failure among several at the same step of a launch: only those with the lowest value are reported."""

    CAUSE = 0
    STOPPED = 1
    UNKNOWN_ERROR = 2
    CONSEQUENCE = 3


@dataclass(frozen=True)
class FailureKind:
    """A kind of failure and the lines that show it."""

    pattern: str
    """Regular expression for lines in lower case."""
    what: str
    """Message about what happened; the step is added to its end."""
    cause: str
    """Why, and what to do."""
    role: Role = Role.CAUSE
    is_harmless_if_training_continues: bool = False
    is_at_start: bool = False
    """Whether it can only happen before the first step: after steps, it belongs to another launch."""
    is_stop: bool = False
    """Whether somebody wanted the end."""
    is_refusal: bool = False
    """Whether a shell, an interpreter or a parser of options refused the only program of the launch."""
    is_end_of_processes: bool = False
    """Whether it says that the processes of the launch have ended."""
    is_no_warning: bool = False
    """Whether a line that is a warning or a note is not this failure."""

    @cached_property
    def _regex(self) -> re.Pattern[str]:
        return re.compile(self.pattern)

    def is_shown_by(self, lowered: str) -> bool:
        """Whether a line, in lower case, shows this failure."""
        return self._regex.search(lowered) is not None


# fmt: off
CUES = (
    "allocate memory", "bad_alloc", "became nan", "broken pipe", "can't open", "cancelled",
    "connection closed", "could not", "cuda driver", "cuda gpu", "cuda-capable", "denied", "device ordinal",
    "device-side", "diverged", "ecc", "error", "exception", "exit code", "exitcode", "exited", "exploded", "fail",
    "gpu memory", "hangup", "illegal memory", "interrupt", "is inf", "is nan", "kernel image", "kex_exchange", "kill",
    "loss scale", "mpi_abort", "nan in summary", "nanloss", "no module", "no space", "no such ", "not known",
    "not found", "nvidia driver", "of memory", "oom when", "oom-", "orted", "quota", "refused", "reset by peer",
    "resol", "retrying", "route to", "segmentation", "shut down", "sigint", "signal", "sigterm", "slots",
    "socketstartconnect", "stalled", "submitted", "syntax", "terminat", "time limit", "timed out", "timeout",
    "traceback", "unable to", "unexpected", "unhandled", "unreachable", "unrecognized", "unterminated", "verification",
    "version mismatch", "was nan", "with cuda", "xid",
)
# fmt: on
"""Every line that shows a failure has one of these, in lower case: all other lines are skipped quickly."""

UNKNOWN_ERROR = FailureKind(
    r"^traceback \(most recent call last\)",
    "The program stopped with an error",
    "The traceback in the log says where it happened.",
    Role.UNKNOWN_ERROR,
)

_SMALL_PROGRAMS = (
    "ls|tail|head|cat|less|more|rm|rmdir|cp|mv|ln|mkdir|touch|chmod|chown|grep|find|wc|du|df|cd|sed|awk|tee|stat|kill|pkill"
    "|nvidia-smi|htop|watch|vim?|nano|screen|tmux|curl|wget|git|pip3?"
)
_HARMLESS = re.compile(
    # Open MPI uses sockets if there is no InfiniBand; TensorBoard's web server logs errors of its visitors.
    r"unable to find any relevant network interfaces|another transport will be used|_internal\.py|tf_logging\.py"
    # Programs that fetch files, and try again.
    r"|\bunable to access 'https?://"
    # The limit of watched folders, for which the kernel also says "no space left on device".
    r"|\binotify_"
    # Where in its code Marian stopped, after the line that says why; and settings such as "sigterm: save-and-exit".
    r"|\] error: aborted from |\] \[config\] "
    # Programs that announce how they will treat a signal.
    r"|\bsig(?:term|int)\b.{0,20}\bhandl|\bhandl.{0,40}\bsig(?:term|int)\b"
    # What a person typed into the same terminal: a prompt, and messages of small programs about their own files.
    r"|^[\w.() -]{0,60}@[\w.-]{1,64}[: ][^$#%]{0,200}[$#%] |^\$ "
    rf"|^(?:{_SMALL_PROGRAMS}): "
    r"|^(?:-?(?:ba|z|da)?sh|[\w./-]{1,100}\.sh): (?:line [0-9]{1,6}: )?(?:cd|kill|pushd|source|\.): "
)
_MILD_LINE = re.compile(r"(?:^|[\s|\[(-])(?:warning|warn|info|debug)[\s|\]):-]|\b[a-z]{0,40}warning: ")
"""The level of a line that is no error, as loggers and Python's warnings write it."""
_MAX_PREFIX_CHARACTERS = 150
_NOT_FOUND = re.compile(r"([^\s:'\"]{1,200}): (?:command )?not found\s*$")
_STARTS_TRAINING = re.compile(
    r"python[0-9.]*|mpirun|mpiexec|orterun|orted|horovodrun|srun|sbatch|torchrun|deepspeed|accelerate|ray|conda|nohup|docker"
    r"|singularity|apptainer|fairseq-(?:hydra-)?train|marian(?:-train)?|onmt[_-]train|eole|joeynmt|sockeye-train"
    r"|[\w.-]*(?:train|run|launch|start)[\w.-]*|[\w.-]+\.(?:sh|py)"
)
"""Programs that start a training; all others that a shell did not find are no matter of the run."""
VALIDATION = re.compile(r"(?<![a-z])valid|(?<![a-z])eval|bleu|scor(?:e|ing)|translat|detok")
"""Words in a line about the evaluation of a model."""


def _load_kinds() -> tuple[FailureKind, ...]:
    """Reads the known kinds of failure from failure_kinds.toml."""
    text = files("dragoman.importing").joinpath("failure_kinds.toml").read_text(encoding="utf-8")
    return tuple(
        FailureKind("|".join(entry.pop("patterns")), role=Role[entry.pop("role", "CAUSE")], **entry)
        for entry in tomllib.loads(text)["failure"]
    )


_KNOWN_FAILURES = _load_kinds()


def kind_of(lowered: str) -> FailureKind | None:
    """Returns the kind of failure that a line, in lower case, shows; None for all other lines."""
    kind = next((kind for kind in _KNOWN_FAILURES if kind.is_shown_by(lowered)), None)
    is_mild = kind is not None and kind.is_no_warning and _MILD_LINE.search(lowered[:_MAX_PREFIX_CHARACTERS])
    return None if is_mild else kind


def is_harmless(lowered: str) -> bool:
    """Whether a line, in lower case, only looks like a failure of the run."""
    if _HARMLESS.search(lowered):
        return True
    found = _NOT_FOUND.search(lowered)
    return found is not None and not _STARTS_TRAINING.fullmatch(found[1].rpartition("/")[2])
