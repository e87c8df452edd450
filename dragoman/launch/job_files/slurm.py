"""A batch script for Slurm: `sbatch FILE` trains, saves before the time limit, and queues itself again until the end.

The way out is the point: only a run that stopped in good order is queued again, never one that failed.
"""

import shlex
import sys
from pathlib import Path

from dragoman.launch.job_files.request import (
    SECONDS_TO_SAVE,
    JobRequest,
    absolute,
    parse_time,
    train_command,
)
from dragoman.run.errors import UsageError
from dragoman.run.folder import RunFolder

_DEFAULT_TIME = "12:00:00"
_MOST_RESTARTS = 10
"""A worker killed from outside is worth another try, but not for ever: too little memory kills it again."""
_SHORTEST_SECONDS = 300
"""Slurm may send its signal a minute early; a job without time to train would be queued again for ever."""


def slurm_files(request: JobRequest) -> dict[str, str]:
    """The script, by its usual name."""
    time = request.time or _DEFAULT_TIME
    if parse_time(time) < _SHORTEST_SECONDS:
        raise UsageError(
            f"--time {time} is too short: Slurm asks workers to stop up to 3 minutes before; take 5 or more."
        )
    run_dir = absolute(request.run_dir or Path("runs") / request.name)
    if "\\" in str(run_dir):
        raise UsageError(f"The run folder {run_dir} has a backslash, which Slurm takes out of the names of log files.")
    text = "\n".join(
        [_introduction(request, run_dir), *_directives(request, run_dir, time), _commands(request, run_dir)]
    )
    return {f"{request.name}.sbatch": text}


def _introduction(request: JobRequest, run_dir: Path) -> str:
    return f"""\
#!/bin/bash
# Trains {request.config} with {request.workers_in_words}; written by `dragoman launch --for slurm`.
# Submit this file with
#   mkdir -p {shlex.quote(str(run_dir))} && sbatch FILE
# (Slurm does not make the folder of its log, and drops the job without a word where there is none.)
# Every node must see the run folder, the prepared corpus and the program under the paths below.
# End it for good with scancel JOB; submitted again, it continues where it was saved last."""


def _directives(request: JobRequest, run_dir: Path, time: str) -> list[str]:
    optional = {"gpus-per-node": request.gpus_per_node or None, "partition": request.partition}
    return [
        f"#SBATCH --job-name={request.name}",
        f"#SBATCH --nodes={request.num_nodes}",
        f"#SBATCH --ntasks-per-node={request.workers_per_node}",
        f"#SBATCH --cpus-per-task={request.cpus_per_worker}",
        *(f"#SBATCH --{name}={value}" for name, value in optional.items() if value is not None),
        f"#SBATCH --time={time}",
        "# Before the time limit every worker gets SIGTERM, finishes its step, saves and ends with code 0. Not B:TERM,",
        "# which would go to this shell alone: the shell would die of it, and the workers would never hear of it.",
        f"#SBATCH --signal=TERM@{SECONDS_TO_SAVE}",
        "# A job whose node was lost is queued again; its log goes on where it broke off.",
        "#SBATCH --requeue",
        "#SBATCH --open-mode=append",
        f"#SBATCH --output={_directive_text(str(RunFolder(run_dir).launch_log).replace('%', '%%'))}",
    ]


def _directive_text(text: str) -> str:
    """Quoted for sbatch, which is no shell: a backslash escapes even between quotes, but never a space outside them."""
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"'


def _commands(request: JobRequest, run_dir: Path) -> str:
    train = shlex.join(train_command(absolute(request.config), run_dir, request.overrides))
    return f"""\
set -euo pipefail

dragoman={shlex.quote(_program())}
run={shlex.quote(str(run_dir))}

# The config may name its corpus relative to the folder it is used from.
cd -- {shlex.quote(str(Path.cwd()))}
# Otherwise every worker would start a thread for each core of its node.
export OMP_NUM_THREADS={request.cpus_per_worker}

# srun does not take over --cpus-per-task from the job (since Slurm 22.05). One worker that fails ends the others,
# which would wait for it.
exit_code=0
srun --cpus-per-task={request.cpus_per_worker} --kill-on-bad-exit=1 \\
  "$dragoman" {train} || exit_code=$?

if ((exit_code > 128 && ${{SLURM_RESTART_COUNT:-0}} < {_MOST_RESTARTS})); then
  echo "A worker was killed (code $exit_code): queued again, to continue from what was saved last." >&2
  scontrol requeue "$SLURM_JOB_ID"
  exit 0
fi
if ((exit_code != 0)); then
  # What failed would fail again: not queued again, so that nobody pays for it for ever.
  echo "Training failed with code $exit_code; the reason is above and in $run/log.txt." >&2
  exit "$exit_code"
fi
if "$dragoman" status "$run" --expect finished; then
  exit 0
fi
if ! "$dragoman" status "$run" --expect stopped >/dev/null; then
  echo "The run ended without being finished or stopped, and is not queued again." >&2
  exit 1
fi
# A run that used up its hours or its money has stopped too, and would at once again.
if grep -Eq '"reason": ?"signal"' {shlex.quote(str(RunFolder(run_dir).status))}; then
  echo "Stopped by a signal before its end, everything saved: queued again." >&2
  scontrol requeue "$SLURM_JOB_ID"
fi
"""


def _program() -> str:
    """The program that is running, by its full path: jobs need no environment to be activated first."""
    installed = Path(sys.executable).with_name("dragoman")
    return str(installed) if installed.exists() else "dragoman"
