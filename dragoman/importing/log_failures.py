"""Finds what made a run fail in the lines of any trainer's log."""

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from enum import IntEnum
from functools import cached_property
from typing import Any

from dragoman.importing.imported_run import ImportedRun, LogFailure
from dragoman.importing.log_text import clean_text


class Role(IntEnum):
    """Role of a failure among several at the same step: only those with the lowest value are reported."""

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

    @cached_property
    def _regex(self) -> re.Pattern[str]:
        return re.compile(self.pattern)

    def is_shown_by(self, lowered: str) -> bool:
        """Whether a line, in lower case, shows this failure."""
        return self._regex.search(lowered) is not None


# fmt: off
_CUES = (
    "allocate memory", "bad_alloc", "became nan", "broken pipe", "can't open", "cancelled", "command not found",
    "connection closed", "could not", "cuda driver", "cuda gpu", "cuda-capable", "denied", "device ordinal",
    "device-side", "diverged", "ecc", "error", "exception", "exit code", "exitcode", "exited", "exploded", "fail",
    "gpu memory", "illegal memory", "interrupt", "is inf", "is nan", "kernel image", "kex_exchange", "kill",
    "loss scale", "mpi_abort", "nan in summary", "nanloss", "no module", "no space", "no such ", "not known",
    "nvidia driver", "of memory", "oom when", "oom-", "orted", "quota", "refused", "reset by peer", "resol",
    "retrying", "route to", "segmentation", "shut down", "sigint", "signal", "sigterm", "slots", "socketstartconnect",
    "stalled", "submitted", "terminat", "time limit", "timed out", "timeout", "traceback", "unable to", "unhandled",
    "unreachable", "unrecognized", "verification", "version mismatch", "was nan", "with cuda", "xid",
)
# fmt: on
"""Every line that shows a failure has one of these, in lower case: all other lines are skipped quickly."""

_UNKNOWN_ERROR = FailureKind(
    r"^traceback \(most recent call last\)",
    "The program stopped with an error",
    "The message names the error; the traceback in the log says where it happened.",
    Role.UNKNOWN_ERROR,
)

HARMLESS = re.compile(
    r"unable to find any relevant network interfaces|another transport will be used|_internal\.py|tf_logging\.py"
)
"""Open MPI uses sockets if there is no InfiniBand; TensorBoard's web server logs errors of its visitors."""

# The first kind that matches a line counts: special kinds stand before general ones.
_KNOWN_FAILURES = (
    FailureKind(
        r"loss scale reached|already at minimum - cannot decrease|loss scale .{0,40}too (?:small|low)",
        "The loss scale fell to its minimum",
        "Every update overflowed in half precision, so the loss exploded: lower the learning rate, warm up for "
        "longer, clip gradients, or train in bf16 or fp32.",
    ),
    FailureKind(
        r"model (?:has )?exploded|loss (?:is|became|was) (?:nan|inf)"
        r"|diverged with loss|nan in summary|nanlossduringtraining",
        "The trainer itself reports a loss that is not a number",
        "Lower the learning rate, warm up for longer or clip gradients; with half precision, use loss scaling.",
    ),
    FailureKind(
        r"oom-kill|out of memory: kill|^killed$|^killed by signal 9|line \d+: +\d+ killed|signal:? 9\b|sigkill"
        r"|exit ?code *:? *-9\b|\bmemoryerror|arraymemoryerror|std::bad_alloc|cannot allocate memory"
        r"|cpuallocator: (?:can't|not enough)",
        "A process was killed, or the machine's main memory ran out",
        "Usually the kernel kills the largest process when main memory is full: look for 'oom-kill' in dmesg, and use "
        "a smaller shuffle buffer, fewer data workers or fewer ranks per machine. A user may also have used kill -9.",
        Role.STOPPED,
    ),
    FailureKind(
        r"resourceexhaustederror|oom when allocating tensor|out of memory|outofmemoryerror|out_of_memory"
        r"|cublas_status_alloc_failed|ran out of gpu memory",
        "A GPU ran out of memory",
        "The batch and the model do not fit into the GPU: use a smaller batch (and accumulate gradients), shorter "
        "sentences or half precision, and check with nvidia-smi whether another process uses the memory.",
    ),
    FailureKind(
        r"could not resolve host|name or service not known|failure in name resolution"
        r"|cannot resolve",
        "A host name could not be resolved",
        "The name in the host list is wrong or not known on this machine: correct it, or add it to /etc/hosts on every "
        "machine and try `ssh NAME true`.",
    ),
    FailureKind(
        r"host key verification failed",
        "ssh does not know the key of a host",
        "Log in once by ssh from the launching machine, or add the key to known_hosts.",
    ),
    FailureKind(
        r"permission denied \(publickey|permission denied, please try again|too many authentication failures",
        "A host refused the ssh login",
        "Add the public key of the launching machine to authorized_keys on every host, then try `ssh NAME true`.",
    ),
    FailureKind(
        r"connect to (?:host|address) .{1,200}(?:refused|timed out|no route)|no route to host|network is unreachable"
        r"|kex_exchange_identification",
        "A host could not be reached",
        "Nothing listens on that port, or a firewall blocks it: check that the machine is up, that sshd runs on this "
        "port and that no firewall separates the machines.",
    ),
    FailureKind(
        r"orted: (?:command )?not found|orted: no such file",
        "Open MPI is missing on a host",
        "orted was not found there: install the same Open MPI on every machine, and start mpirun by its full path or "
        "with --prefix.",
    ),
    FailureKind(
        r"unable to start the orte daemon|orte was unable to reliably|prte was unable"
        r"|an orte daemon has unexpectedly failed",
        "Open MPI could not start its daemon on a host",
        "ssh failed, orted is missing, or it could not connect back: try `ssh NAME orted --version`, and check that no "
        "firewall blocks any port between the machines.",
        Role.CONSEQUENCE,
    ),
    FailureKind(
        r"not enough slots|slots available in the system",
        "mpirun was asked for more processes than the host list has slots",
        "Give every host its number of slots (`-H a:2,b:2`) or start fewer processes (-np).",
    ),
    FailureKind(
        r"can't open file|could not access or execute an executable|execvp error|exec format error"
        r"|unable to (?:launch|start) the specified application|unable to find the specified executable"
        r"|: command not found",
        "The script or program was not found",
        "Check the path: every machine and every container needs the script at the same path.",
    ),
    FailureKind(
        r"could not load dynamic library|error while loading shared libraries|cannot open shared object file",
        "A library is missing",
        "Install the version of CUDA, cuDNN or NCCL that the program was built for, or add its folder to "
        "LD_LIBRARY_PATH.",
        is_harmless_if_training_continues=True,
    ),
    FailureKind(
        r"modulenotfounderror|importerror|no module named",
        "A Python module is missing",
        "Install it on every machine, in the environment that starts the training, or set PYTHONPATH.",
    ),
    FailureKind(
        r"no space left on device|disk quota exceeded",
        "The disk is full",
        "Free space or keep fewer checkpoints; the newest checkpoint may be damaged.",
    ),
    FailureKind(
        r"driver version is insufficient|no cuda-capable device|cuda_error_no_device|invalid device ordinal"
        r"|found no nvidia driver|no cuda gpus are available|torch not compiled with cuda|cuda_error_unknown"
        r"|no kernel image is available|driver/library version mismatch|cuda_error_invalid_device",
        "No usable GPU was found",
        "The driver, the CUDA version or the number of GPUs does not fit: compare nvidia-smi with the version that the "
        "program was built for, and start at most one process per GPU.",
        is_harmless_if_training_continues=True,
    ),
    FailureKind(
        r"nvrm: xid|uncorrectable ecc|an illegal memory access|cuda error: unspecified launch failure"
        r"|device-side assert|cuda_error_illegal_address",
        "A GPU reported an error",
        "An index is out of range (a token id beyond the vocabulary), or the hardware fails: run with "
        "CUDA_LAUNCH_BLOCKING=1 to see where, and look for Xid in dmesg.",
    ),
    FailureKind(
        r"unrecognized arguments|valueerror: unknown param|unknown (?:parameter|option|argument|flag)|no such option"
        r"|argument --?[\w-]+: |error: the following arguments are required|configattributeerror|missing mandatory",
        "The command line or the configuration was rejected",
        "The message names the option: correct its name or its value.",
    ),
    FailureKind(
        r"filenotfounderror|notfounderror.{0,200}no such file|: no such file or directory|no such file or directory: ",
        "A file was not found",
        "The message names the file: check the paths of data, vocabulary and checkpoint on every machine.",
        is_harmless_if_training_continues=True,
    ),
    FailureKind(
        r"permissionerror|permission denied",
        "There was no permission to read or write a file or folder",
        "The message names it: check its owner and permissions on every machine.",
        is_harmless_if_training_continues=True,
    ),
    FailureKind(
        r"keyboardinterrupt|(?<!closing signal )sigterm|signal:? 15\b|sigint\b|due to time limit|job .{1,60} cancelled",
        "A user or a scheduler stopped the run",
        "The reason is Ctrl-C, kill or a time limit: continue from the newest checkpoint.",
        Role.STOPPED,
    ),
    FailureKind(
        r"watchdog caught collective|collective operation timeout|nccl.{0,80}time(?:d )?out|one or more tensors were "
        r"submitted to be reduced.{0,80}(?:waiting|stalled)|stalled ranks|stall.{0,20}shutdown",
        "Ranks timed out while they waited for each other",
        "One rank died, hangs or runs other code than the rest: look for the first error of any rank in the logs of "
        "all machines.",
        Role.CONSEQUENCE,
        is_harmless_if_training_continues=True,
    ),
    FailureKind(
        r"nccl info .{0,80}, retrying",
        "NCCL waited for other ranks",
        "They had not started yet, or do not listen on the interface that NCCL chose: set NCCL_SOCKET_IFNAME to the "
        "interface between the machines, and check that every rank has started.",
        Role.CONSEQUENCE,
        is_harmless_if_training_continues=True,
    ),
    FailureKind(
        r"nccl error|nccl.{0,120}(?:unhandled|(?:system|internal|remote) error|connection (?:refused|timed out))"
        r"|unhandled (?:system|cuda) error|socketstartconnect|ncclsystemerror|ncclinternalerror|ncclremoteerror"
        r"|connect to .{1,120} failed",
        "NCCL could not reach the other ranks",
        "A rank died, NCCL chose the wrong network interface, or a firewall blocks it: set NCCL_SOCKET_IFNAME to the "
        "interface between the machines and run with NCCL_DEBUG=INFO.",
        Role.CONSEQUENCE,
    ),
    FailureKind(
        r"connection reset by peer|broken pipe|connection closed by|connection refused|connection timed out",
        "A connection between processes broke",
        "The process at the other end died or the network failed: look for the first error in the logs of the other "
        "machines.",
        Role.CONSEQUENCE,
    ),
    FailureKind(
        r"horovod has been shut down|exited on signal|exited with non-zero status|primary job +terminated"
        r"|childfailederror|closing signal sigterm|mpi_abort|terminating the job|segmentation fault"
        r"|process group .{0,40}aborted|exit ?code *:? *-[0-9]",
        "A rank ended, and then the others",
        "The cause is the first error of any rank, earlier in this log or in the logs of the other machines.",
        Role.CONSEQUENCE,
    ),
)


MAX_CHARACTERS = 2_000
"""Characters of a line that are searched."""
_MAX_ORDINARY_LINES = 1_000
"""Lines without a cue that are remembered, without their digits: this halves the time for a long log."""
_MAX_TRACEBACK_LINES = 500
_MAX_EVIDENCE_CHARACTERS = 400
_SMALLEST_SOUND_LOSS_SCALE = 2.0**-6

_RANK_TAG = re.compile(r"\[rank[0-9]{1,6}\]: ?")
_ERROR_LINE = re.compile(
    r"[A-Za-z_][\w.]{0,200}(?:Error|Exception|Interrupt|Exit|Iteration|Exhausted|Failure|Fault|Timeout|Empty|Full)(?::|$)"
)
# Lines with sentences of samples, as the trainers print them.
_SAMPLE_LINE = re.compile(
    r"\b(?:source|reference|hypothesis|raw hypothesis|translation|target|prediction):\s"
    r"|\b(?:sent|pred|gold) [0-9]{1,9}:|\bbest translation [0-9]"
)


@dataclass
class _Occurrence:
    """A failure that was seen once or several times."""

    kind: FailureKind
    evidence: str
    first_step: int | None
    step: int | None
    count: int
    has_continued: bool = False
    """Whether training continued after it."""


class FailureReader:
    """Reads every line of a run, after the trainer's own reader, which sets the newest step."""

    def __init__(self, run: ImportedRun) -> None:
        self._run = run
        self._occurrences: dict[str, _Occurrence] = {}
        self._have_all_continued = True
        self._ordinary_lines: set[bytes] = set()
        self._num_traceback_lines = 0
        self._traceback_step: int | None = None

    def read(self, line: str) -> None:
        """Reads a line."""
        if not self._have_all_continued:
            self._check_whether_training_continued()
        if line.startswith("***     "):
            return
        if self._num_traceback_lines:
            self._read_traceback(line)
        if not self._is_ordinary(line):
            self._search(line, line[:MAX_CHARACTERS].lower())

    def finish(self) -> None:
        """Adds the failures to the run, the worst first; the trainer's reader must have finished."""
        if self._num_traceback_lines and self._traceback_step == self._run.newest_step:
            self._add(_UNKNOWN_ERROR, "Traceback (most recent call last), and the log ends before the error itself")
        self._check_whether_training_continued()
        causes = list(self._causes())
        fatal = [cause for cause in causes if not cause.has_continued]
        self._add_nan()
        self._add_loss_scale()
        self._add_failures(fatal)
        # Once the loss is not a number, it does not matter what ended the run.
        if not fatal and self._run.first_nan_step is None:
            self._add_early_end()
        self._add_failures(cause for cause in causes if cause.has_continued)

    def _add_failures(self, occurrences: Iterable[_Occurrence]) -> None:
        is_finished = bool(self._run.facts.get("is_finished"))
        for occurrence in occurrences:
            if occurrence.has_continued or not is_finished:
                self._run.add_failure(_to_failure(occurrence))
            elif occurrence.kind.role != Role.CONSEQUENCE:
                self._run.add_failure(_to_failure(occurrence, outcome="training finished anyway"))

    def _is_ordinary(self, line: str) -> bool:
        """Whether the line has no cue; most lines of a trainer differ only in digits, which no cue has."""
        text = line[:MAX_CHARACTERS].encode(errors="replace").translate(None, b"0123456789")
        if text in self._ordinary_lines:
            return True
        lowered = text.decode().lower()
        if any(cue in lowered for cue in _CUES):
            return False
        if len(self._ordinary_lines) >= _MAX_ORDINARY_LINES:
            self._ordinary_lines.clear()
        self._ordinary_lines.add(text)
        return True

    def _search(self, line: str, lowered: str) -> None:
        if tag := _RANK_TAG.match(lowered):
            line, lowered = line[tag.end() :], lowered[tag.end() :]
        if _SAMPLE_LINE.search(lowered) or HARMLESS.search(lowered):
            return
        if kind := _kind_of(lowered):
            self._add(kind, line)
        elif _UNKNOWN_ERROR.is_shown_by(lowered):
            self._num_traceback_lines = 1
            self._traceback_step = self._run.newest_step

    def _read_traceback(self, line: str) -> None:
        """Reads on to the error of a traceback, the first line that looks like one; known kinds are added elsewhere."""
        line = _RANK_TAG.sub("", line[:MAX_CHARACTERS], count=1)
        self._num_traceback_lines += 1
        if _ERROR_LINE.match(line):
            self._num_traceback_lines = 0
            if not _kind_of(line.lower()):
                self._add(_UNKNOWN_ERROR, line)
        elif self._num_traceback_lines > _MAX_TRACEBACK_LINES:
            self._num_traceback_lines = 0

    def _add(self, kind: FailureKind, line: str) -> None:
        step = self._run.newest_step
        known = self._occurrences.get(kind.what)
        if known is None or known.has_continued:
            evidence = clean_text(line, _MAX_EVIDENCE_CHARACTERS)
            first_step, count = (step, 0) if known is None else (known.first_step, known.count)
            self._occurrences[kind.what] = _Occurrence(kind, evidence, first_step, step, count + 1)
            self._have_all_continued = False

    def _check_whether_training_continued(self) -> None:
        step = self._run.newest_step
        for occurrence in self._occurrences.values():
            occurrence.has_continued = occurrence.has_continued or occurrence.step != step
        self._have_all_continued = all(occurrence.has_continued for occurrence in self._occurrences.values())

    def _causes(self) -> Iterator[_Occurrence]:
        """Yields the failures that are not consequences of another one at the same step."""
        lowest: dict[int | None, Role] = {}
        for seen in self._occurrences.values():
            lowest[seen.step] = min(seen.kind.role, lowest.get(seen.step, Role.CONSEQUENCE))
        for seen in self._occurrences.values():
            is_harmless = seen.has_continued and seen.kind.is_harmless_if_training_continues
            if seen.kind.role == lowest[seen.step] and not is_harmless:
                yield seen

    def _add_nan(self) -> None:
        step = self._run.first_nan_step
        if step is None:
            return
        good = self._run.last_finite_step
        before = "at all logged steps" if good is None else f"the last good one was at step {good:,}"
        figures = _figures_before(self._run, step)
        known = [f"{name.replace('_', ' ')} {figures[name]:.4g}" for name in figures]
        what = f"The loss is not a number since step {step:,} ({', '.join([before, *known])})."
        self._run.add_failure(LogFailure(what, _nan_cause(self._run.facts, figures), step=step))

    def _add_loss_scale(self) -> None:
        newest = self._run.newest_step
        scale = None if newest is None else _figures_before(self._run, newest).get("loss_scale")
        if scale is not None and scale < _SMALLEST_SOUND_LOSS_SCALE:
            what = f"The loss scale had fallen to {scale:.3g} at step {newest:,}."
            cause = (
                "Many updates in a row overflowed in half precision and were skipped: lower the learning rate, warm "
                "up for longer, or train in bf16 or fp32."
            )
            self._run.add_failure(LogFailure(what, cause, step=newest))

    def _add_early_end(self) -> None:
        """Adds a failure for a log that ends without saying why."""
        run = self._run
        step, planned = run.newest_step, run.facts.get("steps_planned")
        if run.facts.get("is_finished"):
            return
        if run.is_empty:
            what = "The log holds no step of training and no message that says why."
            cause = "The run ended before its first step, or its output is elsewhere: look for other logs of the run."
            run.add_failure(LogFailure(what, cause))
        elif step is not None and (run.facts.get("is_finished") is False or (planned and step < planned)):
            of_planned = f" of {planned:,}" if isinstance(planned, int) else ""
            what = f"The log ends at step {step:,}{of_planned} and does not say that training finished."
            cause = (
                "The run was stopped or killed, is still running, or the log was cut: continue from the newest "
                "checkpoint if more training is wanted."
            )
            run.add_failure(LogFailure(what, cause, step=step))


def _kind_of(lowered: str) -> FailureKind | None:
    return next((kind for kind in _KNOWN_FAILURES if kind.is_shown_by(lowered)), None)


def _to_failure(seen: _Occurrence, outcome: str = "") -> LogFailure:
    place = _place(seen.step)
    if seen.count > 1:
        place = f"{seen.count} times, first {_place(seen.first_step)} and last {place}"
    outcome = outcome or ("training continued" if seen.has_continued else "")
    if not outcome:
        return LogFailure(f"{seen.kind.what} {place}.", seen.kind.cause, seen.evidence, seen.step)
    cause = f"Not fatal: {outcome}. {seen.kind.cause}"
    return LogFailure(f"{seen.kind.what} {place}; {outcome}.", cause, seen.evidence, seen.step)


def _place(step: int | None) -> str:
    return "before the first step" if step is None else f"at step {step:,}"


def _figures_before(run: ImportedRun, step: int) -> dict[str, float]:
    """Returns the newest learning rate, loss scale and gradient norm up to a step."""
    figures: dict[str, float] = {}
    wanted = ("learning_rate", "loss_scale", "gradient_norm")
    for record in reversed(run.records):
        if record["kind"] == "train" and record["step"] <= step:
            figures = {name: record[name] for name in wanted if name in record} | figures
        if len(figures) == len(wanted):
            break
    return figures


def _nan_cause(facts: dict[str, Any], figures: dict[str, float]) -> str:
    is_half_precision = facts.get("precision") in ("mixed", "fp16")
    if is_half_precision and facts.get("loss_scaling") == "none":
        return (
            "Most likely mixed precision without loss scaling: gradients overflowed and the update was not skipped. "
            "Switch loss scaling on (loss_scaling='Backoff') and start again from a checkpoint before that step."
        )
    if is_half_precision:
        cause = "Half precision overflowed or the learning rate was too high"
    else:
        cause = "The learning rate was too high, or a batch held damaged data"
    rate = f" ({figures['learning_rate']:.3g})" if "learning_rate" in figures else ""
    return (
        f"{cause}: start again from a checkpoint before that step with a lower learning rate{rate}, a longer warm-up "
        "or gradient clipping; all later checkpoints are unusable."
    )
