import math
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dragoman.importing.imported_run import MAX_LISTED, ImportedRun
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
        "slurmstepd: error: Job 8430179 exceeded memory limit (10442128 > 10240000), being killed",
        "slurmstepd: error: Detected 1 oom_kill event in StepId=123.0. Some of the step tasks have been OOM Killed.",
        "srun: error: gpu01: tasks 0-3: Out Of Memory",
        "RuntimeError: DataLoader worker (pid 12345) is killed by signal: Killed.",
        "command terminated with exit code 137",
    ],
    "A machine of the cluster failed": [
        "slurmstepd: error: *** JOB 7 ON r002 CANCELLED AT 2026-09-25T10:25:59 DUE TO NODE FAILURE, SEE THE LOG ***",
        "srun: error: Node failure on gpu01",
    ],
    "Shared memory ran out": [
        "ERROR: Unexpected bus error encountered in worker. This might be caused by insufficient shared memory (shm).",
        "RuntimeError: unable to write to file </torch_1234_567>",
    ],
    "Too many files were open": [
        "OSError: [Errno 24] Too many open files",
        "RuntimeError: received 0 items of ancdata",
    ],
    "A process crashed": [
        "Segmentation fault (core dumped)",
        "Bus error (core dumped)",
        "run.sh: line 3: 42 Aborted (core dumped) marian -c a.yml",
    ],
    "A program or script has a syntax error": [
        "SyntaxError: invalid syntax",
        "./run.sh: line 4: syntax error near unexpected token `done'",
        "run.sh: line 9: unexpected EOF while looking for matching `\"'",
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
        "2024-01-01 10:00:00,123 - ERROR - joeynmt - ModuleNotFoundError: No module named 'sacrebleu'",
        "/usr/bin/python3: No module named fairseq",
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
        "[2019-01-08 04:45:31] Error: CUDA error 4 'unspecified launch failure' - /marian/src/cuda_helpers.h:45",
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
        "^CTraceback (most recent call last):",
        "slurmstepd: error: *** JOB 4711 ON node1 CANCELLED AT 2024-01-01T00:00:00 DUE TO TIME LIMIT ***",
        "received SIGTERM, shutting down",
        "train.sh: line 2:  7796 Terminated              marian/marian --model model/model.npz",
        "Terminated",
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
        "srun: error: gpu01: tasks 0-3: Killed",
        "Primary job  terminated normally, but 1 process returned",
        "torch/distributed/elastic/multiprocessing/api.py:874] failed (exitcode: -11) local_rank: 0",
    ],
    "The trainer itself reports a loss that is not a number": [
        "ERROR:tensorflow:Model diverged with loss = NaN.",
        "errors_impl.InvalidArgumentError: Nan in summary histogram for: Loss_Optimization/variables/gamma_0",
    ],
    "The trainer itself reports that training diverged": [
        "[2021-05-26 23:11:56] Error: Detected training divergence",
    ],
    "The program stopped with an error": [
        "[2021-05-26 23:11:56] Error: Vocabulary file does not exist: vocab.yml",
        "[2021-05-26 23:11:56 mpi:1] Error: There are 3 source files and 2 vocabularies",
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
[1688151643.420670] [node1:2:f] vfs_fuse.c:281  UCX  ERROR inotify_add_watch(/tmp) failed: No space left on device
[v100a:00203] WARNING: local probe returned unhandled shell:unknown assuming bash
rm: cannot remove '/lib': Is a directory
was unable to find any relevant network interfaces:
Another transport will be used instead, although this may result in
E0228 01:35:41.742631 Thread-59 _internal.py:88] 1.2.3.4 code 400, message Error: Connection reset by peer
***     Train Source[0]:     <s> ▁CUDA ▁out ▁of ▁memory . CUDA out of memory </s>
2020-01-01 INFO joeynmt.training \tHypothesis: Killed by a KeyboardInterrupt
2020-02-25 19:52:17.265471: I tensorflow/gpu_device.cc:1115] (device: 1) with 14971 MB memory
[2020-02-25 19:52:17] [memory] Reserving 8192 MB, device gpu0
eole/constants.py:8: RuntimeWarning: Could not import flash_attn: No module named 'flash_attn'. Install it.
2021-10-20 18:51:10 - WARNING - joeynmt.helpers - Wanted to delete. ([Errno 2] No such file or directory: '/m/1.ckpt')
2024-01-01 10:00:00 | INFO | fairseq.utils | ImportError: apex is not installed, so fused kernels are not used
Could not import apex (ImportError: no such module)
[2021-05-26 23:11:56] Error: Aborted from marian::Vocab::load in src/data/vocab.cpp:42
"""


def read(text, run=None, first_step=None):
    """Reads lines; "launch" stands for the first line of a trainer, "finished" for its last, "step N" for a step."""
    run = run or ImportedRun()
    if first_step is not None:
        run.add_train(first_step, loss=1.0)
    watch = FailureReader(run)
    for line in text.splitlines():
        if line == "launch":
            run.begin_launch()
        if line == "finished":
            run.launches[-1].end = "finished"
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
    assert failure.is_fatal is False


def test_the_same_failure_again_and_again_is_counted():
    text = "step 1\nrecv failed: Connection reset by peer\nrecv failed: Connection reset by peer\nstep 2\n"
    (failure,) = read(text + "recv failed: Connection reset by peer\nstep 3\n").failures
    assert "at least twice, first at step 1 and last at step 2; training continued" in failure.what


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


def launches_of(run):
    return [(launch.end, launch.first_step, launch.last_step) for launch in run.launches]


TEARDOWN = """\
UnknownError: Horovod has been shut down. This was caused by an exception on one of the ranks
[v100b][[1,1],3][btl_tcp.c:559:mca_btl_tcp_recv_blocking] recv(49) failed: Connection reset by peer (104)
RuntimeError: NCCL error in: ProcessGroupNCCL.cpp:911, unhandled system error, NCCL version 2.7.8
Primary job  terminated normally, but 1 process returned
mpirun noticed that process rank 1 with PID 234 on node v100b exited on signal 9 (Killed).
"""


def test_a_failure_that_ended_one_launch_is_fatal_for_it_though_another_one_trained():
    text = "launch\nstep 100\nCUDA out of memory\n" + TEARDOWN + "launch\nstep 100\nstep 200\nfinished\n"
    run = read(text)
    assert launches_of(run) == [("failed", 100, 100), ("finished", 100, 200)]
    assert run.launches[0].reason == "A GPU ran out of memory at step 100."
    (failure,) = run.failures
    assert failure.what == "A GPU ran out of memory at step 100 and ended launch 1."
    assert (failure.launch, failure.is_fatal) == (1, True)
    assert failure.is_fatal


def test_launches_that_failed_before_the_trainer_wrote_a_line():
    wrong = '  File "run.py", line 3\n    if x\n       ^\nSyntaxError: invalid syntax\n'
    text = wrong * 4 + "bash: mpirun: command not found\n" + "launch\nrun.py: error: unrecognized arguments: --x\n"
    run = read(text + "launch\nstep 1\nstep 2\n")
    assert launches_of(run) == [("failed", None, None)] * 3 + [("unknown", 1, 2)]
    assert [failure.launch for failure in run.failures] == [1, 2, 3]
    for launch, reason in zip(run.launches, ("syntax error", "not found", "rejected"), strict=False):
        assert reason in launch.reason


@pytest.mark.parametrize(
    "line", ["./run.sh: line 4: syntax error near unexpected token `done'", "bash: mpirun: command not found"]
)
def test_a_launch_that_a_shell_refused_after_one_that_trained(line):
    run = read(f"launch\nstep 100\n{line}\n")
    assert launches_of(run) == [("unknown", 100, 100), ("failed", None, None)]
    (failure,) = run.failures
    assert (failure.launch, failure.is_fatal) == (2, True)
    assert "ended launch 2" in failure.what


def test_a_launch_that_somebody_stopped():
    run = read("launch\nstep 100\n" + TRACEBACK.format(error="KeyboardInterrupt") + "launch\nstep 200\n")
    assert [launch.end for launch in run.launches] == ["stopped", "unknown"]


def test_trouble_that_a_launch_survived_does_not_end_it():
    run = read("launch\nCUDA out of memory\nstep 1\nstep 2\n")
    assert launches_of(run) == [("unknown", 1, 2)]
    assert run.failures[0].is_fatal is False


def test_all_ranks_that_announce_a_launch_announce_one():
    assert len(read("launch\nlaunch\nsome line\nlaunch\nstep 1\nlaunch\nlaunch\nstep 2\n").launches) == 2


def test_an_error_in_a_validation_script_that_training_survived():
    error = "Traceback (most recent call last):\n  File \"/w/validate.py\", line 7, in <module>\nKeyError: 'x'\n"
    (failure,) = read("launch\nstep 500\n" + error + "step 600\n").failures
    assert failure.what == "The validation script failed at step 500; training continued."
    assert failure.is_fatal is False
    (failure,) = read("launch\nstep 500\nsh: ./valid.sh: No such file or directory\nstep 600\n").failures
    assert failure.what == "The validation script failed at step 500; training continued."


@pytest.mark.parametrize(
    "line",
    [
        "bash: nvidia-smi: command not found",
        "-bash: htop: command not found",
        "tail: cannot open 'nohup.out' for reading: No such file or directory",
        "ls: cannot access '/data': No such file or directory",
        "bash: cd: /data/x: No such file or directory",
        "root@v100a:/workspace# kill -9 4711",
        "(base) user@host:~/run$ mpirun --oops error: unrecognized arguments",
        "$ tail -f nohup.out error",
    ],
)
def test_what_a_person_typed_into_the_terminal_is_no_failure(line):
    run = ImportedRun(facts={"is_finished": True})
    assert read(f"launch\nstep 1\n{line}\n", run).failures == []
    assert len(run.launches) == 1


def test_any_number_of_failed_launches_is_bounded():
    run = read("launch\nCUDA out of memory\n" * 2_000 + "Primary job  terminated\npython: can't open file\n" * 2_000)
    assert len(run.launches) <= MAX_LISTED
    assert len(run.failures) <= MAX_LISTED
    assert [launch.number for launch in run.launches] == list(range(1, len(run.launches) + 1))


@given(
    st.lists(
        st.sampled_from(
            [
                "launch", "step 1", "step 2", "CUDA out of memory", "Killed", "bash: python: command not found",
                "Connection reset by peer", "Primary job  terminated", "Traceback (most recent call last):",
                "ValueError: x", "KeyboardInterrupt", "No module named x", "cat: x: No such file or directory",
            ]
        ),
        max_size=25,
    )
)  # fmt: skip
def test_every_order_of_lines_gives_sound_launches(lines):
    run = read("\n".join(lines))
    assert [launch.number for launch in run.launches] == list(range(1, len(run.launches) + 1))
    numbers = {launch.number: launch for launch in run.launches}
    for failure in run.failures:
        assert failure.launch is None or failure.launch in numbers
        if failure.is_fatal:
            assert numbers[failure.launch].end in ("failed", "stopped")
            assert "continued" not in failure.what


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


def test_the_first_of_marians_errors_is_the_cause():
    error = "[2021-05-26 23:11:56] Error: Labels are missing"
    rest = "[2021-05-26 23:11:56] Error: Aborted from marian::f in x.cpp:4\n\n[CALL STACK]\n[0x7f0a] main + 0x1 error\n"
    (failure,) = read(f"launch\n{error}\n{rest}[2021-05-26 23:11:56] Error: Unhandled exception\n").failures
    assert failure.evidence == error
    assert failure.is_fatal
    assert failure.cause.startswith('The message is "Labels are missing". ')


def test_a_file_that_was_not_deleted_after_a_validation_is_no_failed_script():
    line = "- WARNING - joeynmt - Wanted to delete old checkpoint after validation: No such file or directory: 'a.ckpt'"
    assert read(f"step 1\n{line}\nstep 2\nfinished").failures == []


@pytest.mark.parametrize(
    ("line", "is_of_validation"),
    [
        ("bash: ./validate.sh: Permission denied", True),
        ("ValueError: the score has no number; no space left on device", True),
        ("no space left on device, so the translations stay in memory", False),
    ],
)
def test_only_an_error_of_a_script_is_called_that(line, is_of_validation):
    failures = read(f"step 1\n{line}\nstep 2\n").failures
    assert ("The validation script failed at step 1; training continued." in [f.what for f in failures]) == (
        is_of_validation
    )


@pytest.mark.parametrize(
    "line",
    [
        "[2022-12-02 09:47:06] [config] sigterm: save-and-exit",
        "INFO: registered a handler for SIGTERM and SIGINT",
        "SIGTERM handler installed",
    ],
)
def test_a_setting_about_signals_is_no_stop(line):
    run = ImportedRun()
    reader = FailureReader(run)
    run.begin_launch()
    reader.read(line)
    run.add_train(100, loss=2.0)
    reader.read("done")
    reader.finish()
    assert run.launches[0].end == "unknown"
    assert not any("stopped the run" in failure.what for failure in run.failures)


@pytest.mark.parametrize(
    "bar", ["epoch 001:  20% 345/1759 [33:55<2:22:42,  6.06s/it, loss=10.951]", " 7%|▋ | 7/99 [0:1]"]
)
@pytest.mark.parametrize("message", ["Traceback (most recent call last):\nKeyError: 'a'", "Killed"])
def test_a_message_on_the_line_of_a_progress_bar_is_read(bar, message):
    first, *_ = message.splitlines()
    (failure,) = read(f"step 5\n{bar}{message}").failures
    assert "at step 5" in failure.what
    assert bar not in failure.evidence
    assert failure.is_fatal, first


def test_what_fails_in_a_program_after_the_training_is_no_failure_of_it():
    run = ImportedRun()
    run.add_train(100, loss=1.0)
    run.is_other_program = True
    failures = read("KeyboardInterrupt", run).failures
    assert not any(failure.evidence for failure in failures)


def test_a_second_start_beside_a_run_that_goes_on_is_told_apart():
    refused = "OSError: Log directory is not empty. If you want to continue learning, you should provide a flag"
    (failure,) = read(f"step 6900\n{refused}\nstep 7000\n").failures
    assert failure.what.startswith("Another start failed in the same log (the folder of the run held an earlier run)")
    assert failure.is_fatal is False


@pytest.mark.parametrize(
    "line",
    [
        "/bin/bash: fairseq-interactive: command not found",
        "bash: marian-decoder: command not found",
        "[vcs 12:28:21Z] fatal: unable to access 'https://example.org/': Could not resolve host: example.org",
        "curl: (6) Could not resolve host: example.org",
    ],
)
def test_programs_that_do_not_train_are_no_launch(line):
    run = read(f"{line}\nlaunch\nstep 100\nfinished")
    assert len(run.launches) == 1
    assert not run.failures


def test_a_failure_after_the_end_is_counted_with_those_before():
    text = "launch\nstep 1\nCUDA out of memory\nstep 2\nCUDA out of memory\nfinished"
    (failure,) = read(text).failures
    assert failure.what.startswith("A GPU ran out of memory at least twice, first at step 1 and last at step 2")
