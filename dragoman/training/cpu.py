"""What a training process on a CPU needs before its first step."""

import ctypes
import os
import signal

import torch

M_TRIM_THRESHOLD, M_MMAP_MAX = -1, -4
LIMIT_KERNELS = "ONEDNN_MAX_CPU_ISA"
LAST_KERNELS_BEFORE_AMX = "AVX512_CORE_FP16"


def keep_freed_memory() -> None:
    """Tells glibc to keep freed memory; does nothing on other C libraries.

    Each step frees and takes the same large blocks. Handed back to the system, they return as fresh pages, zeroed
    one by one: a quarter of a CPU step.
    """
    try:
        libc = ctypes.CDLL("libc.so.6")
        libc.mallopt(M_MMAP_MAX, 0)
        libc.mallopt(M_TRIM_THRESHOLD, 2**31 - 1)
    except (OSError, AttributeError):
        return


def avoid_trapping_kernels() -> None:
    """Keeps half-precision products off kernels the machine announces but traps, as some virtual ones do with AMX.

    Must come before the first product: oneDNN chooses its kernels once. A child process tries, so that a trap ends
    the child alone.
    """
    if LIMIT_KERNELS in os.environ or not hasattr(os, "fork"):
        return
    child = os.fork()
    if child == 0:
        # A trap must not leave a core file or a message behind.
        signal.signal(signal.SIGILL, signal.SIG_DFL)
        for dtype in (torch.bfloat16, torch.float16):
            square = torch.ones(64, 64, dtype=dtype)
            square @ square
        os._exit(0)
    _, status = os.waitpid(child, 0)
    if os.waitstatus_to_exitcode(status) == -signal.SIGILL:
        os.environ[LIMIT_KERNELS] = LAST_KERNELS_BEFORE_AMX
