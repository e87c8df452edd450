import math
import time

import pytest

from dragoman.importing.imported_run import ImportedRun
from dragoman.importing.log_failures import FailureReader

FAILURES = {
    "A GPU ran out of memory": [
        "tensorflow.python.framework.errors_impl.ResourceExhaustedError: OOM when allocating tensor with "
        "shape[14336,32768] and type float on /job:localhost/replica:0/task:0/device:GPU:0 by allocator GPU_0_bfc",
        "RuntimeError: CUDA out of memory. Tried to allocate 1.53 GiB (GPU 0; 15.78 GiB total capacity)",
        "[rank0]: torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 20.00 MiB.",
        "[2020-02-25 19:52:17] Error: CUDA error 2 'out of memory' - /marian/src/tensors/gpu/device.cu:38",
        "2020-02-25 19:52:17 | WARNING | fairseq.trainer | OOM: Ran out of memory with exception: CUDA out of memory.",
        "failed to allocate 15.90G (17071734784 bytes) from device: CUDA_ERROR_OUT_OF_MEMORY",
    ],
    "A process was killed, or the machine's main memory ran out": [
        "Killed",
        "run.sh: line 12:  4711 Killed                  python run.py",
        "mpirun noticed that process rank 1 with PID 234 on node v100b exited on signal 9 (Killed).",
        "[ 1234.5] oom-kill:constraint=CONSTRAINT_NONE,nodemask=(null)",
        "Out of memory: Killed process 4711 (python) total-vm:123456kB",
        "  traceback : Signal 9 (SIGKILL) received by PID 4711",
        "failed (exitcode: -9) local_rank: 0 (pid: 4711) of binary: /usr/bin/python",
        "MemoryError",
    ],
    "A host name could not be resolved": [
        "ssh: Could not resolve hostname v100c: Name or service not known",
        "socket.gaierror: [Errno -3] Temporary failure in name resolution",
    ],
    "ssh does not know the key of a host": ["Host key verification failed."],
    "A host refused the ssh login": ["root@v100b: Permission denied (publickey,password)."],
    "A host could not be reached": [
        "ssh: connect to host v100b port 22: Connection refused",
        "ssh: connect to host 10.0.0.2 port 22: Connection timed out",
        "ssh: connect to host 10.0.0.2 port 22: No route to host",
    ],
    "Open MPI is missing on a host": ["bash: orted: command not found"],
    "Open MPI could not start its daemon on a host": [
        "ORTE was unable to reliably start one or more daemons.",
    ],
    "mpirun was asked for more processes than the host list has slots": [
        "There are not enough slots available in the system to satisfy the 4 slots",
    ],
    "The script or program was not found": [
        "python: can't open file 'run.py': [Errno 2] No such file or directory",
        "mpirun was unable to launch the specified application as it could not access",
        "mpirun was unable to find the specified executable file, and therefore",
        "bash: mpirun: command not found",
    ],
    "A library is missing": [
        "libnccl.so.2: cannot open shared object file: No such file or directory",
    ],
    "A Python module is missing": [
        "ModuleNotFoundError: No module named 'horovod'",
        "ImportError: cannot import name 'soft_unicode' from 'markupsafe'",
    ],
    "The disk is full": ["OSError: [Errno 28] No space left on device"],
    "No usable GPU was found": [
        "CUDA driver version is insufficient for CUDA runtime version",
        "RuntimeError: CUDA error: invalid device ordinal",
        "failed call to cuInit: CUDA_ERROR_NO_DEVICE: no CUDA-capable device is detected",
    ],
    "A GPU reported an error": [
        "RuntimeError: CUDA error: device-side assert triggered",
        "NVRM: Xid (PCI:0000:3b:00): 79, GPU has fallen off the bus.",
    ],
    "The command line or the configuration was rejected": [
        "run.py: error: unrecognized arguments: --enable_logz",
        "ValueError: Unknown parameter: batch_size",
        "fairseq-train: error: argument --arch: invalid choice: 'transfromer'",
    ],
    "A file was not found": [
        "FileNotFoundError: [Errno 2] No such file or directory: '/data/m_common.vocab'",
        "tensorflow.python.framework.errors_impl.NotFoundError: /data/train.en; No such file or directory",
    ],
    "There was no permission to read or write a file or folder": [
        "PermissionError: [Errno 13] Permission denied: '/data/x'"
    ],
    "A user or a scheduler stopped the run": [
        "KeyboardInterrupt",
        "slurmstepd: error: *** JOB 4711 ON node1 CANCELLED AT 2024-01-01T00:00:00 DUE TO TIME LIMIT ***",
        "received SIGTERM, shutting down",
    ],
    "The loss scale fell to its minimum": [
        "FloatingPointError: Minimum loss scale reached (0.0001). Your loss is probably exploding.",
        "Exception: Current loss scale already at minimum - cannot decrease scale anymore. Exiting run.",
    ],
    "Ranks timed out while they waited for each other": [
        "[E ProcessGroupNCCL.cpp:828] [Rank 1] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=1)",
    ],
    "NCCL could not reach the other ranks": [
        "RuntimeError: NCCL error in: ProcessGroupNCCL.cpp:911, unhandled system error, NCCL version 2.7.8",
        "RuntimeError: NCCL error in: /pytorch/torch/lib/c10d/ProcessGroupNCCL.cpp:911, invalid usage",
        "v100a:209:284 [0] include/socket.h:390 NCCL WARN Connect to 192.0.2.12<40923> failed : Connection refused",
    ],
    "A connection between processes broke": [
        "[v100b][[1,1],3][btl_tcp.c:559:mca_btl_tcp_recv_blocking] recv(49) failed: Connection reset by peer (104)",
    ],
    "A rank ended, and then the others": [
        "UnknownError: Horovod has been shut down. This was caused by an exception on one of the ranks",
        "torch.distributed.elastic.multiprocessing.errors.ChildFailedError:",
        "Segmentation fault (core dumped)",
        "Primary job  terminated normally, but 1 process returned",
        "torch/distributed/elastic/multiprocessing/api.py:874] failed (exitcode: -11) local_rank: 0",
    ],
    "The trainer itself reports a loss that is not a number": [
        "ERROR:tensorflow:Model diverged with loss = NaN.",
        "errors_impl.InvalidArgumentError: Nan in summary histogram for: Loss_Optimization/variables/gamma_0",
    ],
    "NCCL waited for other ranks": [
        "worker-0:16:63 [0] NCCL INFO Call to connect returned Connection refused, retrying",
    ],
}
CASES = [(what, line) for what, lines in FAILURES.items() for line in lines]

TRACEBACK = """\
Traceback (most recent call last):
  File "run.py", line 7, in <module>
    main()
{error}
"""
HARMLESS = """\
[v100a:00203] WARNING: local probe returned unhandled shell:unknown assuming bash
rm: cannot remove '/lib': Is a directory
was unable to find any relevant network interfaces:
Another transport will be used instead, although this may result in
E0228 01:35:41.742631 Thread-59 _internal.py:88] 1.2.3.4 code 400, message Error: Connection reset by peer
***     Train Source[0]:     <s> ▁CUDA ▁out ▁of ▁memory . CUDA out of memory </s>
2020-01-01 INFO joeynmt.training \tHypothesis: Killed by a KeyboardInterrupt
2020-02-25 19:52:17.265471: I tensorflow/gpu_device.cc:1115] (device: 1) with 14971 MB memory
[2020-02-25 19:52:17] [memory] Reserving 8192 MB, device gpu0
"""


def read(text, run=None, first_step=None):
    run = run or ImportedRun()
    if first_step is not None:
        run.add_train(first_step, loss=1.0)
    watch = FailureReader(run)
    for line in text.splitlines():
        if line.startswith("step "):
            run.add_train(int(line.split()[1]), loss=1.0)
        watch.read(line)
    watch.finish()
    return run


@pytest.mark.parametrize(("what", "line"), CASES)
def test_each_failure_is_recognised_and_its_line_is_the_evidence(what, line):
    (failure,) = read(line).failures
    assert failure.what == f"{what} before the first step."
    assert failure.evidence in line.strip()
    assert failure.cause.endswith(".")


def test_the_step_is_named():
    (failure,) = read("CUDA out of memory", first_step=1500).failures
    assert failure.what == "A GPU ran out of memory at step 1,500."
    assert failure.step == 1500


def test_a_failure_after_which_training_continues_is_not_fatal():
    (failure,) = read("step 1500\nCUDA out of memory\nstep 1600\n").failures
    assert failure.what == "A GPU ran out of memory at step 1,500; training continued."
    assert failure.cause.startswith("Not fatal")


def test_the_same_failure_again_and_again_is_counted():
    text = "step 1\nrecv failed: Connection reset by peer\nrecv failed: Connection reset by peer\nstep 2\n"
    (failure,) = read(text + "recv failed: Connection reset by peer\nstep 3\n").failures
    assert "2 times, first at step 1 and last at step 2; training continued" in failure.what


def test_a_reset_connection_at_the_end_is_fatal():
    (failure,) = read("step 1\nrecv failed: Connection reset by peer\n").failures
    assert failure.what == "A connection between processes broke at step 1."


def test_consequences_of_a_failure_are_not_listed():
    text = TRACEBACK.format(error="ResourceExhaustedError: OOM when allocating tensor with shape[2,3]")
    text += TRACEBACK.format(error="UnknownError: Horovod has been shut down.")
    text += "mpirun noticed that process rank 1 exited on signal 9 (Killed).\nConnection reset by peer\n"
    (failure,) = read(text).failures
    assert failure.what.startswith("A GPU ran out of memory")


def test_an_unknown_error_is_shown_by_its_last_line():
    text = TRACEBACK.format(error="my.module.StrangeError: shapes 3 and 4 do not fit")
    text += TRACEBACK.format(error="UnknownError: Horovod has been shut down.")
    text += "W1116 09:22:53 api.py:700] Sending process 12 closing signal SIGTERM\n"
    (failure,) = read(text, first_step=7).failures
    assert failure.what == "The program stopped with an error at step 7."
    assert failure.evidence == "my.module.StrangeError: shapes 3 and 4 do not fit"


def test_a_log_that_ends_within_a_traceback():
    (failure,) = read('Traceback (most recent call last):\n  File "run.py", line 7\n').failures
    assert failure.what == "The program stopped with an error before the first step."


def test_harmless_lines_are_no_failures():
    run = ImportedRun(facts={"is_finished": True})
    assert read(HARMLESS, run, first_step=5).failures == []


def test_missing_files_of_a_launch_script_are_ignored_if_training_continues():
    run = ImportedRun(facts={"is_finished": True})
    assert read("cat: x: No such file or directory\nstep 1\nstep 2", run).failures == []


def test_trouble_after_the_end_does_not_make_it_a_failure():
    run = ImportedRun(facts={"is_finished": True})
    assert read("step 9\nConnection reset by peer\n", run).failures == []
    (failure,) = read("step 9\nNo space left on device\n", ImportedRun(facts={"is_finished": True})).failures
    assert "training finished anyway" in failure.what


def test_a_log_that_just_ends():
    run = ImportedRun(facts={"is_finished": False, "steps_planned": 300_000})
    (failure,) = read("step 106300", run).failures
    assert failure.what == "The log ends at step 106,300 of 300,000 and does not say that training finished."


def test_where_the_end_is_not_known_nothing_is_claimed():
    assert read("step 100").failures == []


def test_a_log_without_a_step_or_a_reason():
    (failure,) = read("hello").failures
    assert "no step of training" in failure.what


def nan_run(**facts):
    run = ImportedRun(facts=facts | {"is_finished": True})
    run.add_train(100, loss=5.0, learning_rate=0.001, loss_scale=1024.0)
    run.add_train(200, loss=math.nan, learning_rate=0.002)
    run.add_train(300, loss=math.nan)
    return read("", run).failures[0]


def test_nan_names_step_rate_and_scale():
    failure = nan_run(precision="fp32")
    assert failure.step == 200
    for part in ("since step 200", "step 100", "learning rate 0.002", "loss scale 1024"):
        assert part in failure.what
    assert "learning rate was too high" in failure.cause


def test_nan_in_mixed_precision_without_loss_scaling():
    assert "without loss scaling" in nan_run(precision="mixed", loss_scaling="none").cause
    assert "Half precision overflowed" in nan_run(precision="mixed", loss_scaling="Backoff").cause


def test_a_loss_that_came_back_is_no_failure():
    run = ImportedRun(facts={"is_finished": True})
    run.add_train(1, loss=math.nan)
    run.add_train(2, loss=1.0)
    assert read("", run).failures == []


def test_a_loss_scale_that_collapsed():
    run = ImportedRun(facts={"is_finished": True})
    run.add_train(1, loss=3.0, loss_scale=0.0001)
    assert "loss scale had fallen to 0.0001 at step 1" in read("", run).failures[0].what


def test_evidence_can_be_shown_anywhere():
    (failure,) = read("CUDA out of memory \x1b[31mred\x07\u202e" + "x" * 100_000).failures
    assert "\x1b" not in failure.evidence
    assert "\u202e" not in failure.evidence
    assert len(failure.evidence) <= 400


def test_ordinary_lines_are_read_fast():
    line = (
        "2020-02-25 19:52:17 | INFO | train_inner | epoch 001: 100 / 1000 loss=12.3, ppl=5092, wps=31415, " + "x" * 150
    )
    watch = FailureReader(ImportedRun())
    start = time.process_time()
    for _ in range(20_000):
        watch.read(line)
    # A gigabyte is 4 million such lines: 3 µs each on an idle machine; five times that is a bug, not a busy machine.
    assert time.process_time() - start < 0.5
