"""What made a run fail, found in the lines of any trainer's log."""

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from enum import IntEnum
from typing import Any

from dragoman.importing.foreign_run import Failure, ForeignRun
from dragoman.importing.log_text import clean_text


class Rank(IntEnum):
    """Of several signs at the same place, those of the first rank are the cause and the others its consequences."""

    CAUSE = 0
    STOPPED = 1
    UNKNOWN_ERROR = 2
    CONSEQUENCE = 3


@dataclass(frozen=True)
class Sign:
    """A kind of failure."""

    pattern: re.Pattern[str]
    what: str
    """What happened, as the beginning of a sentence that goes on with the step."""
    cause: str
    """Why, and what to do."""
    rank: Rank = Rank.CAUSE
    is_noise_if_training_goes_on: bool = False


def _sign(
    pattern: str, what: str, cause: str, rank: Rank = Rank.CAUSE, *, is_noise_if_training_goes_on: bool = False
) -> Sign:
    return Sign(re.compile(pattern), what, cause, rank, is_noise_if_training_goes_on)


# Words, not a table: one a line would fill two screens.
# fmt: off
CUES = (
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
"""A line without any of these is no sign. Small letters: lines and patterns are compared without regard to case."""

UNKNOWN_ERROR = _sign(
    r"^traceback \(most recent call last\)",
    "The program stopped with an error",
    "The message names the error; the traceback in the log says where it happened.",
    Rank.UNKNOWN_ERROR,
)

HARMLESS = re.compile(
    r"unable to find any relevant network interfaces|another transport will be used|_internal\.py|tf_logging\.py"
)
"""Open MPI without InfiniBand takes sockets; TensorBoard's web server complains about its visitors."""

# The first that fits a line is taken: the special stands before the general.
SIGNS = (
    _sign(
        r"loss scale reached|already at minimum - cannot decrease|loss scale .{0,40}too (?:small|low)",
        "The loss scale fell to its minimum",
        "Every update overflowed in half precision, so the loss has exploded: lower the learning rate, warm up for "
        "longer, clip gradients, or train in bf16 or fp32.",
    ),
    _sign(
        r"model (?:has )?exploded|loss (?:is|became|was) (?:nan|inf)"
        r"|diverged with loss|nan in summary|nanlossduringtraining",
        "The trainer itself reports a loss that is not a number",
        "Lower the learning rate, warm up for longer or clip gradients; with half precision, use loss scaling.",
    ),
    _sign(
        r"oom-kill|out of memory: kill|^killed$|^killed by signal 9|line \d+: +\d+ killed|signal:? 9\b|sigkill"
        r"|exit ?code *:? *-9\b|\bmemoryerror|arraymemoryerror|std::bad_alloc|cannot allocate memory"
        r"|cpuallocator: (?:can't|not enough)",
        "A process was killed, or the machine's main memory ran out",
        "Mostly the kernel ends the largest process when main memory is full: look for 'oom-kill' in dmesg, use a "
        "smaller shuffle buffer, fewer data workers or fewer ranks a machine. Somebody may also have used kill -9.",
        Rank.STOPPED,
    ),
    _sign(
        r"resourceexhaustederror|oom when allocating tensor|out of memory|outofmemoryerror|out_of_memory"
        r"|cublas_status_alloc_failed|ran out of gpu memory",
        "A GPU ran out of memory",
        "The batch and the model do not fit into the GPU: use a smaller batch (and accumulate gradients), shorter "
        "sentences or half precision, and look with nvidia-smi whether another process holds the memory.",
    ),
    _sign(
        r"could not resolve host|name or service not known|failure in name resolution"
        r"|cannot resolve",
        "A host name could not be resolved",
        "The name in the host list is wrong or unknown on this machine: correct it, or add it to /etc/hosts on every "
        "machine and try `ssh NAME true`.",
    ),
    _sign(
        r"host key verification failed",
        "ssh did not know a host's key",
        "Log in once by hand with ssh from the launching machine, or add the key to known_hosts.",
    ),
    _sign(
        r"permission denied \(publickey|permission denied, please try again|too many authentication failures",
        "ssh was not let in to a host",
        "Put the launching machine's public key into authorized_keys on every host and try `ssh NAME true`.",
    ),
    _sign(
        r"connect to (?:host|address) .{1,200}(?:refused|timed out|no route)|no route to host|network is unreachable"
        r"|kex_exchange_identification",
        "A host could not be reached",
        "Nothing listens on that port, or a firewall is in between: check that the machine is up, that sshd runs on "
        "this port and that the machines may talk to each other.",
    ),
    _sign(
        r"orted: (?:command )?not found|orted: no such file",
        "Open MPI is missing on a host",
        "orted was not found there: install the same Open MPI on every machine, and start mpirun by its full path or "
        "with --prefix.",
    ),
    _sign(
        r"unable to start the orte daemon|orte was unable to reliably|prte was unable"
        r"|an orte daemon has unexpectedly failed",
        "Open MPI could not start its helper on a host",
        "ssh failed, orted is missing or it could not report back: try `ssh NAME orted --version`, and check that the "
        "machines may talk to each other on all ports.",
        Rank.CONSEQUENCE,
    ),
    _sign(
        r"not enough slots|slots available in the system",
        "mpirun was asked for more processes than the host list has slots",
        "Write the slots behind every host (`-H a:2,b:2`) or start fewer processes (-np).",
    ),
    _sign(
        r"can't open file|could not access or execute an executable|execvp error|exec format error"
        r"|unable to (?:launch|start) the specified application|unable to find the specified executable"
        r"|: command not found",
        "The script or program was not found",
        "Check the path: every machine, and every container, needs the script at the same place.",
    ),
    _sign(
        r"could not load dynamic library|error while loading shared libraries|cannot open shared object file",
        "A library is missing",
        "Install the version of CUDA, cuDNN or NCCL that this program was built for, or add its folder to "
        "LD_LIBRARY_PATH.",
        is_noise_if_training_goes_on=True,
    ),
    _sign(
        r"modulenotfounderror|importerror|no module named",
        "A Python module is missing",
        "Install it on every machine, in the environment that starts the training, or set PYTHONPATH.",
    ),
    _sign(
        r"no space left on device|disk quota exceeded",
        "The disk is full",
        "Free some space or keep fewer checkpoints; the newest checkpoint may be damaged.",
    ),
    _sign(
        r"driver version is insufficient|no cuda-capable device|cuda_error_no_device|invalid device ordinal"
        r"|found no nvidia driver|no cuda gpus are available|torch not compiled with cuda|cuda_error_unknown"
        r"|no kernel image is available|driver/library version mismatch|cuda_error_invalid_device",
        "No usable GPU was found",
        "The driver, the CUDA version and the number of GPUs must fit: compare nvidia-smi with the version the program "
        "was built for, and start no more processes on a machine than it has GPUs.",
        is_noise_if_training_goes_on=True,
    ),
    _sign(
        r"nvrm: xid|uncorrectable ecc|an illegal memory access|cuda error: unspecified launch failure"
        r"|device-side assert|cuda_error_illegal_address",
        "A GPU reported an error",
        "An index outside of a table (a token beyond the vocabulary) or failing hardware: run with "
        "CUDA_LAUNCH_BLOCKING=1 to see where, and look for Xid in dmesg.",
    ),
    _sign(
        r"unrecognized arguments|valueerror: unknown param|unknown (?:parameter|option|argument|flag)|no such option"
        r"|argument --?[\w-]+: |error: the following arguments are required|configattributeerror|missing mandatory",
        "The command line or the configuration was refused",
        "The message names the option: correct its name or its value.",
    ),
    _sign(
        r"filenotfounderror|notfounderror.{0,200}no such file|: no such file or directory|no such file or directory: ",
        "A file was not found",
        "The message names the file: check the paths of data, vocabulary and checkpoint on every machine.",
        is_noise_if_training_goes_on=True,
    ),
    _sign(
        r"permissionerror|permission denied",
        "A file or folder may not be read or written",
        "The message names it: check its owner and rights on every machine.",
        is_noise_if_training_goes_on=True,
    ),
    _sign(
        r"keyboardinterrupt|(?<!closing signal )sigterm|signal:? 15\b|sigint\b|due to time limit|job .{1,60} cancelled",
        "Somebody stopped the run, or a scheduler did",
        "Ctrl-C, kill or a time limit; continue from the newest checkpoint.",
        Rank.STOPPED,
    ),
    _sign(
        r"watchdog caught collective|collective operation timeout|nccl.{0,80}time(?:d )?out|one or more tensors were "
        r"submitted to be reduced.{0,80}(?:waiting|stalled)|stalled ranks|stall.{0,20}shutdown",
        "Ranks waited in vain for each other",
        "One rank died, hangs or does other work than the rest: look for the first error of any rank in the logs of "
        "all machines.",
        Rank.CONSEQUENCE,
        is_noise_if_training_goes_on=True,
    ),
    _sign(
        r"nccl info .{0,80}, retrying",
        "NCCL waited for other ranks",
        "They had not started yet, or do not listen on the interface NCCL took: set NCCL_SOCKET_IFNAME to the "
        "interface between the machines, and look whether every rank has started.",
        Rank.CONSEQUENCE,
        is_noise_if_training_goes_on=True,
    ),
    _sign(
        r"nccl error|nccl.{0,120}(?:unhandled|(?:system|internal|remote) error|connection (?:refused|timed out))"
        r"|unhandled (?:system|cuda) error|socketstartconnect|ncclsystemerror|ncclinternalerror|ncclremoteerror"
        r"|connect to .{1,120} failed",
        "NCCL could not talk to the other ranks",
        "A rank has died, the wrong network interface was taken or a firewall is in between: set NCCL_SOCKET_IFNAME to "
        "the interface between the machines and run with NCCL_DEBUG=INFO.",
        Rank.CONSEQUENCE,
    ),
    _sign(
        r"connection reset by peer|broken pipe|connection closed by|connection refused|connection timed out",
        "A connection between processes broke",
        "The process at the other end died or the network failed: look at the other machines' logs for what came "
        "first.",
        Rank.CONSEQUENCE,
    ),
    _sign(
        r"horovod has been shut down|exited on signal|exited with non-zero status|primary job +terminated"
        r"|childfailederror|closing signal sigterm|mpi_abort|terminating the job|segmentation fault"
        r"|process group .{0,40}aborted|exit ?code *:? *-[0-9]",
        "A rank ended, and the others with it",
        "The first error of any rank, further up or in the logs of the other machines, is the cause.",
        Rank.CONSEQUENCE,
    ),
)


MAX_CHARACTERS = 2_000
"""Of a line that is searched."""
MAX_ORDINARY_LINES = 1_000
"""That are remembered, without their digits, so as not to search them again: it halves the time of a long log."""
MAX_TRACEBACK_LINES = 500
MAX_EVIDENCE_CHARACTERS = 400
SMALLEST_SOUND_LOSS_SCALE = 2.0**-6

_RANK_TAG = re.compile(r"\[rank[0-9]{1,6}\]: ?")
_ERROR_LINE = re.compile(
    r"[A-Za-z_][\w.]{0,200}(?:Error|Exception|Interrupt|Exit|Iteration|Exhausted|Failure|Fault|Timeout|Empty|Full)(?::|$)"
)
# Sentences of samples, by the trainers that print them.
_SAMPLE_LINE = re.compile(
    r"\b(?:source|reference|hypothesis|raw hypothesis|translation|target|prediction):\s"
    r"|\b(?:sent|pred|gold) [0-9]{1,9}:|\bbest translation [0-9]"
)


@dataclass
class _Sighting:
    """A sign that was seen, once or more often."""

    sign: Sign
    evidence: str
    first_step: int | None
    step: int | None
    count: int = 1
    went_on: bool = False


class FailureWatch:
    """Reads every line of a run; each line is to be given to the trainer's reader first, so that the step is known."""

    def __init__(self, run: ForeignRun) -> None:
        self._run = run
        self._sightings: dict[str, _Sighting] = {}
        self._are_all_old = True
        self._ordinary_lines: set[bytes] = set()
        self._num_traceback_lines = 0
        self._traceback_step: int | None = None

    def read(self, line: str) -> None:
        """Takes a line of the log."""
        if not self._are_all_old:
            self._see_whether_training_went_on()
        if line.startswith("***     "):
            return
        if self._num_traceback_lines:
            self._read_traceback(line)
        if not self._is_ordinary(line):
            self._search(line, line[:MAX_CHARACTERS].lower())

    def finish(self) -> None:
        """Adds the failures to the run, the gravest first; its reader must have finished."""
        if self._num_traceback_lines and self._traceback_step == self._run.newest_step:
            self._add(UNKNOWN_ERROR, "Traceback (most recent call last), and the log ends before the error itself")
        self._see_whether_training_went_on()
        causes = list(self._causes())
        self._add_nan()
        self._add_loss_scale()
        self._add_sightings(sighting for sighting in causes if not sighting.went_on)
        # What ended a run that learned nothing any more does not matter.
        if all(sighting.went_on for sighting in causes) and self._run.first_nan_step is None:
            self._add_early_end()
        self._add_sightings(sighting for sighting in causes if sighting.went_on)

    def _add_sightings(self, sightings: Iterable[_Sighting]) -> None:
        is_finished = bool(self._run.facts.get("is_finished"))
        for sighting in sightings:
            if sighting.went_on or not is_finished:
                self._run.add_failure(_as_failure(sighting))
            elif sighting.sign.rank != Rank.CONSEQUENCE:
                self._run.add_failure(_as_failure(sighting, after="training finished all the same"))

    def _is_ordinary(self, line: str) -> bool:
        """Whether the line has no cue; a trainer's lines differ in little but their digits, and cues have none."""
        text = line[:MAX_CHARACTERS].encode(errors="replace").translate(None, b"0123456789")
        if text in self._ordinary_lines:
            return True
        small = text.decode().lower()
        if any(cue in small for cue in CUES):
            return False
        if len(self._ordinary_lines) >= MAX_ORDINARY_LINES:
            self._ordinary_lines.clear()
        self._ordinary_lines.add(text)
        return True

    def _search(self, line: str, small: str) -> None:
        if tag := _RANK_TAG.match(small):
            line, small = line[tag.end() :], small[tag.end() :]
        if _SAMPLE_LINE.search(small) or HARMLESS.search(small):
            return
        if sign := _sign_in(small):
            self._add(sign, line)
        elif UNKNOWN_ERROR.pattern.search(small):
            self._num_traceback_lines = 1
            self._traceback_step = self._run.newest_step

    def _read_traceback(self, line: str) -> None:
        """Its error is the first line that looks like one; if that says what went wrong, it has a sign of its own."""
        line = _RANK_TAG.sub("", line[:MAX_CHARACTERS], count=1)
        self._num_traceback_lines += 1
        if _ERROR_LINE.match(line):
            self._num_traceback_lines = 0
            if not _sign_in(line.lower()):
                self._add(UNKNOWN_ERROR, line)
        elif self._num_traceback_lines > MAX_TRACEBACK_LINES:
            self._num_traceback_lines = 0

    def _add(self, sign: Sign, line: str) -> None:
        step = self._run.newest_step
        known = self._sightings.get(sign.what)
        if known is None or known.went_on:
            evidence = clean_text(line, MAX_EVIDENCE_CHARACTERS)
            first_step, count = (step, 0) if known is None else (known.first_step, known.count)
            known = self._sightings[sign.what] = _Sighting(sign, evidence, first_step, step, count)
            known.count += 1
            self._are_all_old = False

    def _see_whether_training_went_on(self) -> None:
        step = self._run.newest_step
        for sighting in self._sightings.values():
            sighting.went_on = sighting.went_on or sighting.step != step
        self._are_all_old = all(sighting.went_on for sighting in self._sightings.values())

    def _causes(self) -> Iterator[_Sighting]:
        """What was seen, without the consequences of something else at the same step."""
        worst: dict[int | None, Rank] = {}
        for sighting in self._sightings.values():
            worst[sighting.step] = min(sighting.sign.rank, worst.get(sighting.step, Rank.CONSEQUENCE))
        for sighting in self._sightings.values():
            is_noise = sighting.went_on and sighting.sign.is_noise_if_training_goes_on
            if sighting.sign.rank == worst[sighting.step] and not is_noise:
                yield sighting

    def _add_nan(self) -> None:
        step = self._run.first_nan_step
        if step is None:
            return
        good = self._run.last_finite_step
        before = "from the first logged step on" if good is None else f"the last good one was at step {good:,}"
        figures = _figures_before(self._run, step)
        known = [f"{name.replace('_', ' ')} {figures[name]:.4g}" for name in figures]
        what = f"The loss is not a number since step {step:,} ({', '.join([before, *known])})."
        self._run.add_failure(Failure(what, _nan_cause(self._run.facts, figures), step=step))

    def _add_loss_scale(self) -> None:
        newest = self._run.newest_step
        scale = None if newest is None else _figures_before(self._run, newest).get("loss_scale")
        if scale is not None and scale < SMALLEST_SOUND_LOSS_SCALE:
            what = f"The loss scale had fallen to {scale:.3g} at step {newest:,}."
            cause = (
                "Update after update overflowed in half precision and was skipped: lower the learning rate, warm up "
                "for longer, or train in bf16 or fp32."
            )
            self._run.add_failure(Failure(what, cause, step=newest))

    def _add_early_end(self) -> None:
        """For a log that just ends, with nothing that says why."""
        run = self._run
        step, planned = run.newest_step, run.facts.get("steps_planned")
        if run.facts.get("is_finished"):
            return
        if run.is_empty:
            what = "The log holds no step of training and no message that says why."
            cause = "The run ended before its first step or its output went elsewhere: look for other logs of the run."
            run.add_failure(Failure(what, cause))
        elif step is not None and (run.facts.get("is_finished") is False or (planned and step < planned)):
            of_planned = f" of {planned:,}" if isinstance(planned, int) else ""
            what = f"The log ends at step {step:,}{of_planned} without a word that training finished."
            cause = (
                "The run was stopped or killed, is still going, or the log was cut; continue from the newest "
                "checkpoint if more training is wanted."
            )
            run.add_failure(Failure(what, cause, step=step))


def _sign_in(small: str) -> Sign | None:
    return next((sign for sign in SIGNS if sign.pattern.search(small)), None)


def _as_failure(sighting: _Sighting, after: str = "") -> Failure:
    sign = sighting.sign
    place = "before the first step" if sighting.step is None else f"at step {sighting.step:,}"
    if sighting.count > 1:
        first = "before the first step" if sighting.first_step is None else f"at step {sighting.first_step:,}"
        place = f"{sighting.count} times, first {first} and last {place}"
    after = after or ("training went on" if sighting.went_on else "")
    if not after:
        return Failure(f"{sign.what} {place}.", sign.cause, sighting.evidence, sighting.step)
    cause = f"Not fatal: {after}. {sign.cause}"
    return Failure(f"{sign.what} {place}; {after}.", cause, sighting.evidence, sighting.step)


def _figures_before(run: ForeignRun, step: int) -> dict[str, float]:
    """The newest learning rate, loss scale and gradient norm up to a step."""
    figures: dict[str, float] = {}
    wanted = ("learning_rate", "loss_scale", "gradient_norm")
    for record in reversed(run.records):
        if record["kind"] == "train" and record["step"] <= step:
            figures = {name: record[name] for name in wanted if name in record} | figures
        if len(figures) == len(wanted):
            break
    return figures


def _nan_cause(facts: dict[str, Any], figures: dict[str, float]) -> str:
    if facts.get("loss_scaling") == "none" and facts.get("precision") in ("mixed", "fp16"):
        return (
            "Most likely mixed precision without loss scaling: gradients overflowed and nothing skipped the update. "
            "Switch loss scaling on (loss_scaling='Backoff') and start again from a checkpoint before that step."
        )
    if facts.get("precision") in ("mixed", "fp16"):
        cause = "Half precision overflowed or the learning rate was too high"
    else:
        cause = "The learning rate was too high, or a batch held something broken"
    rate = f" ({figures['learning_rate']:.3g})" if "learning_rate" in figures else ""
    return (
        f"{cause}: start again from a checkpoint before that step with a lower learning rate{rate}, a longer warm-up, "
        "or gradients clipped; every later checkpoint is worthless."
    )
