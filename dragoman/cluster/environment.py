"""Environment variables that tell a worker who it is: those of torchrun, Open MPI and Slurm, and dragoman's own."""

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from dragoman.run.processes import num_physical_cores

IS_RESTART_RECORDED_VARIABLE = "DRAGOMAN_RESTART_RECORDED"
"""Tells restarted workers that their launcher has written the record of the restart."""
RESUMED_VARIABLE = "DRAGOMAN_RESUMED"
"""Tells workers that the run must continue from a checkpoint and must not start at step 0."""
LAUNCH_VARIABLE = "DRAGOMAN_LAUNCH"
"""Tells workers which launcher started them, by a name that no other launcher has."""
LAUNCH_SECONDS_VARIABLE = "DRAGOMAN_LAUNCH_SECONDS"
"""Tells hosts how long the launcher had been running when it started this attempt."""
LAUNCH_BEGIN_VARIABLE = "DRAGOMAN_LAUNCH_BEGIN"
"""Tells workers when their launcher began, by time.monotonic() of their own machine."""
CHECK_SECONDS_VARIABLE = "DRAGOMAN_CHECK_SECONDS"
"""Tells the workers of `dragoman check` how long they may measure."""
PARENT_VARIABLE = "DRAGOMAN_PARENT"
"""Id of the process that started the workers of this machine; they end with it."""
ADDRESS_VARIABLE = "DRAGOMAN_ADDRESS"
"""Tells workers at which address of their machine the other machines reach them."""
PORTS_VARIABLE = "DRAGOMAN_PORTS"
"""Tells workers at which ports they may listen ("29500-29563"); any, where it is not set."""
MEASUREMENTS_FILE = "measurements.json"
"""File in which the workers of `dragoman check` leave their results."""


@dataclass(frozen=True)
class RankInfo:
    """The rank of this process, as the launcher that started it has set it."""

    rank: int
    size: int
    local_rank: int
    launcher: str
    job: str
    """An identifier shared by the processes of this start and by no others."""
    is_restart: bool = False
    """Whether the launcher has started this job again, so that its run must be continued."""


def find_rank_info(environment: Mapping[str, str] = os.environ) -> RankInfo | None:
    """Returns the rank a launcher gave this process; None if a person started the process alone."""
    for find in (_torchrun_rank, _open_mpi_rank, _slurm_rank):
        if rank_info := find(environment):
            return rank_info
    return None


def _torchrun_rank(environment: Mapping[str, str]) -> RankInfo | None:
    """Also covers other launchers that set the variables PyTorch reads."""
    if not {"RANK", "WORLD_SIZE", "MASTER_ADDR"} <= environment.keys():
        return None
    num_restarts = environment.get("TORCHELASTIC_RESTART_COUNT", "0")
    return RankInfo(
        int(environment["RANK"]),
        int(environment["WORLD_SIZE"]),
        int(environment.get("LOCAL_RANK", "0")),
        "torchrun",
        f"{environment.get('TORCHELASTIC_RUN_ID', 'run')}-{num_restarts}",
        is_restart=int(num_restarts) > 0,
    )


def _open_mpi_rank(environment: Mapping[str, str]) -> RankInfo | None:
    size = int(environment.get("OMPI_COMM_WORLD_SIZE", "1"))
    if size == 1:
        return None
    return RankInfo(
        int(environment["OMPI_COMM_WORLD_RANK"]),
        size,
        int(environment["OMPI_COMM_WORLD_LOCAL_RANK"]),
        "mpirun",
        environment.get("PMIX_NAMESPACE") or environment.get("OMPI_MCA_ess_base_jobid", "mpi"),
    )


def _slurm_rank(environment: Mapping[str, str]) -> RankInfo | None:
    """Covers the tasks of srun only: a batch script has similar variables but is a single process."""
    size = int(environment.get("SLURM_STEP_NUM_TASKS", "1"))
    if size == 1:
        return None
    num_restarts = environment.get("SLURM_RESTART_COUNT", "0")
    job, step = environment["SLURM_JOB_ID"], environment.get("SLURM_STEP_ID", "0")
    return RankInfo(
        int(environment["SLURM_PROCID"]),
        size,
        int(environment["SLURM_LOCALID"]),
        "srun",
        f"slurm-{job}-{step}-{num_restarts}",
        is_restart=int(num_restarts) > 0,
    )


def threads_of_this_worker(num_sharing_cores: int) -> int:
    """Returns the number set in the environment, otherwise an equal share of the cores this process may use."""
    return threads_per_worker(num_physical_cores(), num_sharing_cores, ("OMP_NUM_THREADS", "SLURM_CPUS_PER_TASK"))


def threads_per_worker(num_cores: int, num_workers: int, variables: Sequence[str] = ("OMP_NUM_THREADS",)) -> int:
    """Returns the number in the first variable that holds one, otherwise divides the cores among the workers.

    More threads than cores would slow each other down.
    """
    values = [os.environ.get(variable, "") for variable in variables]
    chosen = next((int(value) for value in values if value.isdecimal()), num_cores // num_workers)
    return max(1, chosen)
