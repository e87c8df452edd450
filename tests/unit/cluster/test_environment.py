"""Ranks from the environment: each launcher is known by its variables; a shell inside a job is not a launcher."""

import pytest

from dragoman.cluster import environment
from dragoman.cluster.environment import RankInfo, find_rank_info, threads_of_this_worker

# Taken from real processes of each launcher.
TORCHRUN = {
    "RANK": "3",
    "WORLD_SIZE": "4",
    "LOCAL_RANK": "1",
    "MASTER_ADDR": "10.0.0.1",
    "MASTER_PORT": "29500",
    "TORCHELASTIC_RUN_ID": "f00d",
    "TORCHELASTIC_RESTART_COUNT": "0",
}
OPEN_MPI = {
    "OMPI_COMM_WORLD_RANK": "2",
    "OMPI_COMM_WORLD_SIZE": "4",
    "OMPI_COMM_WORLD_LOCAL_RANK": "0",
    "PMIX_NAMESPACE": "prterun-a-17@1",
}
SLURM_JOB = {"SLURM_JOB_ID": "42", "SLURM_NTASKS": "4", "SLURM_NPROCS": "4", "SLURM_NNODES": "2"}
SLURM_STEP = SLURM_JOB | {
    "SLURM_PROCID": "3",
    "SLURM_LOCALID": "1",
    "SLURM_STEP_ID": "7",
    "SLURM_STEP_NUM_TASKS": "4",
}
SLURM_BATCH_SCRIPT = SLURM_JOB | {"SLURM_PROCID": "0", "SLURM_LOCALID": "0"}
SLURM_SHELL = SLURM_JOB | {
    "SLURM_PROCID": "0",
    "SLURM_LOCALID": "0",
    "SLURM_STEP_ID": "4294967290",
    "SLURM_STEP_NUM_TASKS": "1",
    "SLURM_PTY_PORT": "38123",
}


def test_without_a_launcher_a_process_has_no_rank():
    assert find_rank_info({}) is None
    assert find_rank_info({"PATH": "/bin", "MASTER_ADDR": "10.0.0.1", "RANK": "0"}) is None


def test_torchrun():
    assert find_rank_info(TORCHRUN) == RankInfo(3, 4, 1, "torchrun", "f00d-0")
    again = find_rank_info(TORCHRUN | {"TORCHELASTIC_RESTART_COUNT": "2"})
    assert again.is_restart
    assert again.job == "f00d-2"  # the store of its agent keeps values of earlier workers


def test_a_launcher_that_sets_only_the_variables_of_pytorch():
    bare = {"RANK": "1", "WORLD_SIZE": "2", "MASTER_ADDR": "a"}
    assert find_rank_info(bare) == RankInfo(1, 2, 0, "torchrun", "run-0")


def test_open_mpi():
    assert find_rank_info(OPEN_MPI) == RankInfo(2, 4, 0, "mpirun", "prterun-a-17@1")


def test_older_open_mpi_has_another_job_variable():
    older = {name: value for name, value in OPEN_MPI.items() if name != "PMIX_NAMESPACE"}
    assert find_rank_info(older | {"OMPI_MCA_ess_base_jobid": "123456"}).job == "123456"


def test_a_single_process_under_mpirun_is_alone():
    assert find_rank_info(OPEN_MPI | {"OMPI_COMM_WORLD_SIZE": "1", "OMPI_COMM_WORLD_RANK": "0"}) is None


def test_slurm_step():
    assert find_rank_info(SLURM_STEP) == RankInfo(3, 4, 1, "srun", "slurm-42-7-0")


@pytest.mark.parametrize("variables", [SLURM_JOB, SLURM_BATCH_SCRIPT, SLURM_SHELL])
def test_a_batch_script_or_a_shell_inside_a_job_is_one_process(variables):
    assert find_rank_info(variables) is None


def test_a_requeued_job_continues_and_has_another_rendezvous_file():
    again = find_rank_info(SLURM_STEP | {"SLURM_RESTART_COUNT": "2"})
    assert again.is_restart
    assert again.job == "slurm-42-7-2"


def test_torchrun_comes_before_mpirun_before_srun():
    """mpirun inside a job sees Slurm's variables too; torchrun inside either sees theirs."""
    assert find_rank_info(SLURM_STEP | OPEN_MPI | TORCHRUN).launcher == "torchrun"
    assert find_rank_info(SLURM_STEP | OPEN_MPI).launcher == "mpirun"
    assert find_rank_info(SLURM_STEP | OPEN_MPI | {"OMPI_COMM_WORLD_SIZE": "1"}).launcher == "srun"


@pytest.fixture
def machine(monkeypatch):
    """A machine of 8 cores without variables about threads."""
    for name in ("OMP_NUM_THREADS", "SLURM_CPUS_PER_TASK"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(environment, "num_physical_cores", lambda: 8)


def test_cores_are_divided_among_the_workers_that_share_them(machine):
    assert [threads_of_this_worker(workers) for workers in (1, 2, 3, 8, 20)] == [8, 4, 2, 1, 1]


@pytest.mark.parametrize(
    ("variables", "threads"),
    [
        ({"OMP_NUM_THREADS": "3"}, 3),
        ({"SLURM_CPUS_PER_TASK": "5"}, 5),
        ({"OMP_NUM_THREADS": "3", "SLURM_CPUS_PER_TASK": "5"}, 3),
        ({"OMP_NUM_THREADS": "0"}, 1),
        ({"OMP_NUM_THREADS": ""}, 4),
    ],
)
def test_the_number_of_threads_in_the_environment_is_kept(machine, monkeypatch, variables, threads):
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    assert threads_of_this_worker(2) == threads
