"""What trainers, Open MPI, ssh, NCCL and the kernel write when something goes wrong, and what to do about it."""

import re
from dataclasses import dataclass
from enum import IntEnum


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
