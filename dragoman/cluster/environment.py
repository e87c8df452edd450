"""Who started this process and as which of how many: torchrun, Open MPI or Slurm, each with variables of its own."""

import os
from collections.abc import Mapping
from dataclasses import dataclass

from dragoman.run.processes import num_cores

CAUSE_VARIABLE = "DRAGOMAN_RESTART_CAUSE"
"""Tells restarted workers why they were restarted, for their record."""
RESUMED_VARIABLE = "DRAGOMAN_RESUMED"
"""Tells workers that the run must continue from a checkpoint, never start from step 0."""
CHECK_SECONDS_VARIABLE = "DRAGOMAN_CHECK_SECONDS"
"""Tells the workers of `dragoman check` how long they may measure."""
MEASUREMENTS_FILE = "measurements.json"
"""Where the workers of `dragoman check` leave what they measured."""


@dataclass(frozen=True)
class Place:
    """One process among those that somebody else started together."""

    rank: int
    size: int
    local_rank: int
    launcher: str
    job: str
    """A name that the processes of this start have in common, and no others."""
    is_restart: bool = False
    """Whether the launcher starts this job again: then its run is to be continued."""


def find_place(environment: Mapping[str, str] = os.environ) -> Place | None:
    """This process's place, where a launcher gave it one; None where a person started it alone."""
    for look in (_torchrun_place, _open_mpi_place, _slurm_place):
        if place := look(environment):
            return place
    return None


def _torchrun_place(environment: Mapping[str, str]) -> Place | None:
    """Also of other launchers that set the variables PyTorch reads."""
    if not {"RANK", "WORLD_SIZE", "MASTER_ADDR"} <= environment.keys():
        return None
    num_restarts = environment.get("TORCHELASTIC_RESTART_COUNT", "0")
    return Place(
        int(environment["RANK"]),
        int(environment["WORLD_SIZE"]),
        int(environment.get("LOCAL_RANK", "0")),
        "torchrun",
        f"{environment.get('TORCHELASTIC_RUN_ID', 'run')}-{num_restarts}",
        is_restart=int(num_restarts) > 0,
    )


def _open_mpi_place(environment: Mapping[str, str]) -> Place | None:
    size = int(environment.get("OMPI_COMM_WORLD_SIZE", "1"))
    if size == 1:
        return None
    return Place(
        int(environment["OMPI_COMM_WORLD_RANK"]),
        size,
        int(environment["OMPI_COMM_WORLD_LOCAL_RANK"]),
        "mpirun",
        environment.get("PMIX_NAMESPACE") or environment.get("OMPI_MCA_ess_base_jobid", "mpi"),
    )


def _slurm_place(environment: Mapping[str, str]) -> Place | None:
    """Of a step that srun started; a batch script itself has similar variables but only one process."""
    size = int(environment.get("SLURM_STEP_NUM_TASKS", "1"))
    if size == 1:
        return None
    num_restarts = environment.get("SLURM_RESTART_COUNT", "0")
    job, step = environment["SLURM_JOB_ID"], environment.get("SLURM_STEP_ID", "0")
    return Place(
        int(environment["SLURM_PROCID"]),
        size,
        int(environment["SLURM_LOCALID"]),
        "srun",
        f"slurm-{job}-{step}-{num_restarts}",
        is_restart=int(num_restarts) > 0,
    )


def fair_num_threads(num_local_workers: int) -> int:
    """Threads for this worker: what it was told, else its own cores, else its share of everybody's."""
    for variable in ("OMP_NUM_THREADS", "SLURM_CPUS_PER_TASK"):
        if (told := os.environ.get(variable, "")).isdecimal():
            return max(1, int(told))
    # Fewer cores than the machine has: the launcher has bound this process to some of its own.
    is_bound = num_cores() < (os.cpu_count() or 1)
    return num_cores() if is_bound else max(1, num_cores() // num_local_workers)
