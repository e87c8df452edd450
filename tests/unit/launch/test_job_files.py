"""Job files, checked with the programs and schemas that will read them, also with values that need quoting."""

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import tomllib
from dataclasses import replace
from importlib.resources import files as package_files
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from dragoman.launch.hosts import Host
from dragoman.launch.job_files.render import build_job_files, quote_yaml, quote_yaml_block, save_files, show_files
from dragoman.launch.job_files.request import JobRequest, choose_hosts, name_job, parse_time
from dragoman.run.config import build_settings
from dragoman.run.errors import UsageError, UserError
from dragoman.run.files import write_json
from dragoman.run.folder import RunFolder
from dragoman.run.status import RunStatus

ROOT = Path(__file__).parents[3]
KINDS = ("slurm", "kubernetes", "docker")
COMMANDS = ("mpirun", "srun", "torchrun")
TWO_HOSTS = (Host("a", 2), Host("b", 2))
HOSTILE = 'a b\'; touch $(id) `id` "$HOME" ${HOME:?} #c: {d} {{e}} {% f %} %j <&> ü🙂'
CONFIG = '# mine\n[data]\nprepared = "prepared"\n'


@pytest.fixture(autouse=True)
def data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The current folder, which containers see; it has a config."""
    (tmp_path / "my.toml").write_text(CONFIG, encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def request_of(kind: str, **changes: Any) -> JobRequest:
    """Returns a request for 2 nodes with 2 workers and 2 GPUs each."""
    prepared = changes.pop("prepared", "prepared")
    mounted = {"data": Path.cwd()} if kind == "docker" else {}
    named = {"hosts": TWO_HOSTS} if kind in ("mpirun", "torchrun") else {}
    known = {
        "config": Path("my.toml"),
        "settings": build_settings({"data": {"prepared": prepared}}),
        "name": "my",
        "num_nodes": 2,
        "workers_per_node": 2,
        "gpus_per_node": 2,
    }
    return JobRequest(**(known | mounted | named | changes))


def build(kind: str, **changes: Any) -> dict[str, str]:
    return build_job_files(kind, request_of(kind, **changes))


def program(name: str) -> str:
    """Returns the path of a linter; skips the test if it is not installed."""
    beside = Path(sys.executable).with_name(name)
    found = str(beside) if beside.exists() else shutil.which(name)
    if found is None:
        pytest.skip(f"{name} is not installed")
    return found


def run_quietly(*command: object, **options: Any) -> None:
    done = subprocess.run([str(word) for word in command], capture_output=True, text=True, check=False, **options)
    assert (done.returncode, done.stdout + done.stderr) == (0, "")


# Requests


@pytest.mark.parametrize(
    ("kind", "changes", "message"),
    [
        ("pbs", {}, "--for is 'pbs'; it can be slurm, kubernetes, docker, mpirun, srun or torchrun."),
        ("slurm", {"workers_per_node": 3}, "6 workers on 2 nodes cannot share 4 virtual workers"),
        ("slurm", {"gpus_per_node": 1}, "--gpus-per-node 1 is not enough for 2 workers"),
        ("slurm", {"name": "My Job"}, "--name cannot be 'My Job'"),
        ("slurm", {"name": "a" * 41}, "--name cannot be"),
        ("slurm", {"partition": "gpu\n#SBATCH --uid=0"}, "--partition cannot be"),
        ("slurm", {"partition": "gpu\n"}, "--partition cannot be"),
        ("slurm", {"time": "soon"}, "--time cannot be 'soon': write HH:MM:SS"),
        ("slurm", {"time": "00:04:59"}, "--time 00:04:59 is too short"),
        ("slurm", {"run_dir": Path("a\nb")}, "has a character that cannot stand in a job file"),
        ("slurm", {"run_dir": Path("a\\b")}, "has a backslash"),
        ("slurm", {"overrides": ("model.preset=a\u2028b",)}, "has a character that cannot stand in a job file"),
        (
            "slurm",
            {"image": "dragoman:1"},
            "--image means nothing for slurm, only for kubernetes, docker",
        ),
        (
            "docker",
            {"time": "12:00:00"},
            "--time means nothing for docker, only for slurm, srun, kubernetes",
        ),
        ("docker", {"image": "a b"}, "--image cannot be 'a b'"),
        ("docker", {"data": Path("/elsewhere")}, "my.toml, but containers see only /elsewhere"),
        ("docker", {"run_dir": Path("../runs")}, "The run folder is "),
        ("docker", {"prepared": "/elsewhere"}, "data.prepared is /elsewhere, but containers see only"),
        ("kubernetes", {"claim": "-"}, "--claim cannot be '-'"),
        ("kubernetes", {"prepared": "/elsewhere"}, "data.prepared is /elsewhere, but containers see only /data"),
        ("kubernetes", {"run_dir": Path("/runs")}, "The run folder is /runs, but containers see only /data"),
        ("kubernetes", {"data": Path("/a:b")}, "--data /a:b has a colon"),
        ("srun", {"hosts": TWO_HOSTS}, "--hosts means nothing for srun, only for mpirun, torchrun: leave it out."),
        ("srun", {"time": "00:04:59"}, "--time 00:04:59 is too short"),
        ("torchrun", {"ssh_config": Path("x")}, "--ssh-config means nothing for torchrun, only for mpirun"),
        ("torchrun", {"hosts": None}, "--for torchrun needs the names of the 2 machines"),
        ("torchrun", {"hosts": (Host("localhost", 1), Host("b", 1))}, "cannot reach the first host as localhost"),
        ("torchrun", {"hosts": (Host("[::1]", 1), Host("b", 1))}, "cannot reach the first host as [::1]"),
        ("mpirun", {"hosts": None}, "--for mpirun needs the names of the 2 machines, for example --hosts a:2,b:2."),
        ("mpirun", {"hosts": (Host("a", 3), Host("b", 2))}, "5 workers on 2 nodes cannot share 4 virtual workers"),
        ("mpirun", {"hosts": (Host("me@a", 1),)}, "mpirun cannot use 'me@a', only letters, digits, - and dots"),
        ("mpirun", {"ssh_config": Path("none")}, "--ssh-config: there is no file "),
        ("mpirun", {"ssh_config": Path("my.toml"), "cwd": "a folder"}, "has a space, which mpirun cannot pass to ssh"),
    ],
)
def test_requests_that_could_not_run_are_refused(kind, changes, message, monkeypatch: pytest.MonkeyPatch):
    if folder := changes.pop("cwd", None):
        monkeypatch.chdir(Path.cwd().rename(Path.cwd().with_name(folder)))
    with pytest.raises(UsageError, match=re.escape(message)):
        build(kind, **changes)


@pytest.mark.parametrize(
    ("text", "seconds"), [("12:00:00", 43_200), ("0:05:00", 300), ("2-03:04:05", 183_845), ("100:00:00", 360_000)]
)
def test_times_are_read_as_slurm_does(text, seconds):
    assert parse_time(text) == seconds


@pytest.mark.parametrize(
    "text", ["", "12", "12:00", "1:60:00", "1:00:60", "-1:00:00", "12:00:00 ", "١٢:00:00", "1-0:0:0"]
)
def test_other_times_are_refused(text):
    with pytest.raises(UsageError, match="--time"):
        parse_time(text)


@given(st.text(st.characters(exclude_characters="/\0"), min_size=1))
def test_any_config_gives_a_name_that_schedulers_accept(stem):
    assert re.fullmatch(r"[a-z]([a-z0-9-]{0,38}[a-z0-9])?", name_job(Path(f"{stem}.toml")))


# Quoting

texts = st.text(st.characters(exclude_categories=["Cs"]))


@given(texts)
def test_any_text_survives_as_a_yaml_scalar(text):
    assert yaml.safe_load(f"key: {quote_yaml(text)}\nnext: 1") == {"key": text, "next": 1}


@given(texts | st.lists(st.text("ab #:-|'\"", max_size=5)).map(lambda lines: "\n".join(lines) + "\n"))
def test_any_text_survives_as_a_quote_yaml_block(text):
    document = f"outer:\n  key: {quote_yaml_block(text, indent=4)}\n  next: 1\n"
    assert yaml.safe_load(document) == {"outer": {"key": text, "next": 1}}


# Slurm


def script_of(**changes: Any) -> str:
    (text,) = build("slurm", **changes).values()
    return text


def directives(script: str) -> dict[str, str | None]:
    pairs = re.findall(r"^#SBATCH --([a-z-]+)(?:=(.*))?$", script, re.MULTILINE)
    return {name: value or None for name, value in pairs}


def test_slurm_gets_the_options_of_the_request(data: Path):
    asked = directives(script_of(time="1-00:00:00", partition="gpu", cpus_per_worker=3))
    assert asked == {
        "job-name": "my",
        "nodes": "2",
        "ntasks-per-node": "2",
        "gpus-per-node": "2",
        "cpus-per-task": "3",
        "time": "1-00:00:00",
        "partition": "gpu",
        "signal": "TERM@120",
        "requeue": None,
        "open-mode": "append",
        "output": f'"{data}/runs/my/launch.txt"',
    }


def test_slurm_gets_no_other_options():
    asked = directives(script_of(gpus_per_node=0))
    assert asked.keys().isdisjoint({"gpus-per-node", "partition"})
    assert asked["time"] == "12:00:00"


@pytest.mark.parametrize("run_dir", ["runs/my", HOSTILE])
def test_the_script_is_valid_bash(run_dir, tmp_path: Path):
    path = tmp_path / "job.sh"
    path.write_text(script_of(run_dir=Path(run_dir), overrides=(f"data.prepared={HOSTILE}",)), encoding="utf-8")
    run_quietly("bash", "-n", path)
    # SC2016 warns about $ between single quotes, where it is meant literally.
    run_quietly(program("shellcheck"), "--severity=style", "--exclude=SC2016", path)


def test_sbatch_itself_reads_the_options_as_meant(tmp_path: Path):
    sbatch = program("sbatch")
    (tmp_path / "slurm.conf").write_text(
        # There is no controller: sbatch reads the script, prints what it read, and fails.
        "ClusterName=x\nSlurmctldHost=localhost\nSlurmctldPort=1\nAuthType=auth/none\nNodeName=n1\n"
    )
    path = tmp_path / "job.sbatch"
    path.write_text(script_of(run_dir=Path(HOSTILE)), encoding="utf-8")
    environment = {"SLURM_CONF": str(tmp_path / "slurm.conf"), "PATH": "/usr/bin:/bin"}
    command = [sbatch, "-vvv", "--test-only", str(path)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment, timeout=60)
    read = {key.strip(): value for key, value in re.findall(r"^sbatch: ([a-z-]+ *): (.*)$", done.stderr, re.MULTILINE)}
    if "job-name" not in read:
        pytest.skip(f"this sbatch does not print what it read: {done.stderr[:200]}")
    assert read["output"] == f"{tmp_path}/{HOSTILE}/launch.txt".replace("%", "%%")
    assert read["signal"] == "TERM@120"
    assert read["job-name"] == "my"


STUB_OF_SRUN = """#!/bin/bash
while [[ "$1" == --* ]]; do shift; done
exec "$@"
"""
STUB_OF_SCONTROL = """#!/bin/bash
echo "$*" > requeued
"""
STUB_OF_DRAGOMAN = """#!/bin/bash
if [[ "$1" == train ]]; then printf '%s\\0' "$@" > trained; exit "$(cat code)"; fi
printf '%s\\0' "$2" > asked_about
[[ "$3 $4" == "--expect $(cat state)" ]]
"""


@pytest.fixture
def stubs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Stand-ins for Slurm and dragoman in the script's PATH."""
    folder = tmp_path / "programs with a space"
    folder.mkdir()
    for name, text in (("srun", STUB_OF_SRUN), ("scontrol", STUB_OF_SCONTROL), ("dragoman", STUB_OF_DRAGOMAN)):
        (folder / name).write_text(text)
        (folder / name).chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(folder / "python"))
    return folder


def run_script(stubs: Path, code: int, status: RunStatus, **changes: Any) -> int:
    """Runs the job's script from another folder, as Slurm may; returns its exit code."""
    Path("code").write_text(str(code))
    Path("state").write_text(status.state)
    Path("requeued").unlink(missing_ok=True)
    run = RunFolder(changes.get("run_dir", Path("runs/my")))
    run.path.mkdir(parents=True, exist_ok=True)
    write_json(run.status, status.to_json())
    environment = {"PATH": f"{stubs}:/usr/bin:/bin", "SLURM_JOB_ID": "17"}
    script = script_of(**changes).encode()
    return subprocess.run(["bash"], input=script, cwd="/", env=environment, check=False, timeout=30).returncode


@pytest.mark.parametrize(
    ("code", "state", "reason", "exit_code", "is_requeued"),
    [
        (0, "finished", "steps", 0, False),
        (0, "stopped", "signal", 0, True),
        (0, "stopped", "time", 0, False),
        (0, "stopped", "cost", 0, False),
        (0, "running", None, 1, False),
        (1, "failed", None, 1, False),
        (7, "stopped", "signal", 7, False),
    ],
)
def test_only_a_run_that_a_signal_stopped_in_order_is_queued_again(
    stubs: Path, code, state, reason, exit_code, is_requeued
):
    status = replace(RunStatus.starting(10, 4), state=state, reason=reason)
    assert run_script(stubs, code, status) == exit_code
    assert Path("requeued").exists() == is_requeued
    if is_requeued:
        assert Path("requeued").read_text() == "requeue 17\n"


one_line = st.text(
    st.characters(exclude_categories=["Cs", "Cc", "Zl", "Zp"], exclude_characters="/\\"), min_size=1, max_size=50
)


@settings(max_examples=25, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(run=one_line, override=one_line)
def test_any_arguments_reach_the_workers_unchanged(data: Path, stubs: Path, run, override):
    changes = {"run_dir": Path("runs") / f"x{run}", "overrides": (override,)}
    assert run_script(stubs, 0, replace(RunStatus.starting(10, 4), state="finished"), **changes) == 0
    words = Path("trained").read_text(encoding="utf-8").split("\0")[:-1]
    run_dir = f"{data}/runs/x{run}"
    assert words == ["train", f"{data}/my.toml", "--run-dir", run_dir, "--set", override, "--continue"]
    assert Path("asked_about").read_text(encoding="utf-8") == f"{run_dir}\0"


def test_a_single_task_trains_with_one_worker():
    # srun gives it no rank of its own, so it would start a worker for each core.
    assert "--workers 1 --continue" in script_of(num_nodes=1, workers_per_node=1)
    assert "--workers" not in script_of()


# Commands


@pytest.fixture
def launchers(stubs: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Launchers that only write down their arguments; none of the variables that are passed on is set."""
    for name in COMMANDS:
        (stubs / name).write_text('#!/bin/bash\nprintf \'%s\\0\' "$OMP_NUM_THREADS" "$@"\n')
        (stubs / name).chmod(0o755)
    for name in ("OMP_NUM_THREADS", "GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME", "MASTER_ADDR", "MASTER_PORT"):
        monkeypatch.delenv(name, raising=False)
    return stubs


def words_of(kind: str, launchers: Path, **changes: Any) -> tuple[str, list[str]]:
    """Copies what is printed into a shell in another folder; returns OMP_NUM_THREADS and the launcher's arguments."""
    (text,) = build(kind, **changes).values()
    environment = {"PATH": f"{launchers}:/usr/bin:/bin"}
    done = subprocess.run(["bash", "-c", text], cwd="/", env=environment, capture_output=True, check=True, timeout=30)
    threads, *words = done.stdout.decode().split("\0")[:-1]
    return threads, words


@pytest.mark.parametrize("kind", COMMANDS)
def test_any_shell_starts_this_installation_with_absolute_paths(data: Path, launchers: Path, kind):
    changes = {"run_dir": Path(HOSTILE), "overrides": (HOSTILE,), "num_nodes": 1}
    _, words = words_of(kind, launchers, **changes, **({} if kind == "srun" else {"hosts": (Host("a", 2),)}))
    changed = ["--set", HOSTILE, "--set", f"data.prepared={data}/prepared"]
    train = ["train", f"{data}/my.toml", "--run-dir", f"{data}/{HOSTILE}", *changed, "--continue"]
    assert words[-len(train) - 1 :] == [f"{launchers}/dragoman", *train]


@pytest.mark.parametrize("kind", COMMANDS)
def test_a_command_is_one_that_shellcheck_accepts(kind, tmp_path: Path):
    (text,) = build(kind, run_dir=Path(HOSTILE)).values()
    (tmp_path / "command.sh").write_text(text, encoding="utf-8")
    run_quietly(program("shellcheck"), "--shell=sh", "--exclude=SC2016", tmp_path / "command.sh")


@pytest.mark.parametrize(("kind", "is_told"), [("mpirun", True), ("srun", True), ("torchrun", False)])
def test_a_worker_without_a_rank_is_told_to_stay_alone(launchers: Path, kind, is_told):
    alone = {"num_nodes": 1, "workers_per_node": 1}
    _, words = words_of(kind, launchers, **alone, **({} if kind == "srun" else {"hosts": None}))
    assert (words[-3:] == ["--workers", "1", "--continue"]) == is_told


def test_mpirun_gets_hosts_ssh_config_and_variables(data: Path, launchers: Path, monkeypatch: pytest.MonkeyPatch):
    (data / "ssh_config").touch()
    monkeypatch.setenv("OMP_NUM_THREADS", "2")
    monkeypatch.setenv("MASTER_ADDR", "a")
    _, words = words_of("mpirun", launchers, ssh_config=Path("ssh_config"), cpus_per_worker=3)
    root = ["--allow-run-as-root"] if os.geteuid() == 0 else []
    agent = ["--mca", "plm_rsh_agent", f"ssh -F {data}/ssh_config"]
    expected = ["-H", "a:2,b:2", "--bind-to", "none", *root, *agent, "-x", "OMP_NUM_THREADS=3", "-x", "MASTER_ADDR=a"]
    assert words[: len(expected) + 1] == [*expected, f"{launchers}/dragoman"]


def test_mpirun_alone_uses_this_machine(launchers: Path):
    _, words = words_of("mpirun", launchers, num_nodes=1, hosts=None)
    assert words[:2] == ["-H", "localhost:2"]


def test_srun_gets_the_options_of_the_request(launchers: Path):
    _, words = words_of("srun", launchers, partition="gpu", time="1-00:00:00", cpus_per_worker=3)
    assert words[: words.index(f"{launchers}/dragoman")] == [
        "--job-name=my", "--nodes=2", "--ntasks=4", "--ntasks-per-node=2", "--cpus-per-task=3", "--gpus-per-node=2",
        "--partition=gpu", "--time=1-00:00:00", "--signal=TERM@120", "--kill-on-bad-exit=1",
    ]  # fmt: skip


def test_srun_gets_no_other_options(launchers: Path):
    _, words = words_of("srun", launchers, gpus_per_node=0)
    assert not [word for word in words if word.startswith(("--gpus", "--partition", "--time", "--signal"))]
    assert "--cpus-per-task=4" in words


@pytest.mark.parametrize(("cpus_per_worker", "threads"), [(None, ""), (3, "3")])
def test_torchrun_on_one_machine_needs_no_address(launchers: Path, cpus_per_worker, threads):
    changes = {"num_nodes": 1, "hosts": None, "cpus_per_worker": cpus_per_worker}
    found, words = words_of("torchrun", launchers, **changes)
    assert words[:2] == ["--standalone", "--nproc-per-node=2"]
    assert found == threads


def test_torchrun_has_a_command_for_each_host(launchers: Path):
    run = pytest.importorskip("torch.distributed.run")
    (text,) = build("torchrun", hosts=(Host("me@a", 3), Host("b", 1))).values()
    _, *commands = re.split(r"^# On (?:me@a|b):$", text, flags=re.MULTILINE)
    for rank, (command, num_workers) in enumerate(zip(commands, "31", strict=True)):
        program_name, *words = shlex.split(command.replace("\\\n", ""))
        asked = run.parse_args(words)
        assert program_name == f"{launchers}/torchrun"
        assert (asked.nnodes, asked.nproc_per_node, asked.node_rank) == ("2", num_workers, rank)
        assert (asked.master_addr, asked.master_port) == ("a", 29_500)
        assert asked.no_python
        assert asked.training_script == f"{launchers}/dragoman"


def test_hosts_without_a_number_get_the_workers_of_each_node():
    assert choose_hosts("a:3,b", None, workers_per_node=2) == (Host("a", 3), Host("b", 2))
    assert choose_hosts("a,b", 2, workers_per_node=2) == TWO_HOSTS
    assert choose_hosts(None, 2, workers_per_node=2) is None
    with pytest.raises(UsageError, match="--nodes 3 does not fit the 2 hosts in --hosts"):
        choose_hosts("a,b", 3, workers_per_node=1)


# Kubernetes


def manifests(**changes: Any) -> tuple[dict[str, Any], dict[str, Any]]:
    (text,) = build("kubernetes", **changes).values()
    config_map, train_job = yaml.safe_load_all(text)
    return config_map, train_job


def pod_patch(train_job: dict[str, Any]) -> dict[str, Any]:
    (patch,) = train_job["spec"]["runtimePatches"]
    (job,) = patch["trainingRuntimeSpec"]["template"]["spec"]["replicatedJobs"]
    return job["template"]["spec"]["template"]["spec"]


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"gpus_per_node": 0, "num_nodes": 1, "time": "24:00:00", "claim": "corpora", "image": "registry/me/d@sha256:0"},
        {"data": Path(f"/{HOSTILE.replace(':', '')}"), "overrides": (HOSTILE,)},
    ],
)
def test_kubeflow_knows_every_field_of_the_train_job(changes):
    models = pytest.importorskip("kubeflow_trainer_api.models")
    _, train_job = manifests(**changes)
    # Its models ignore unknown fields, so all that was written must be read back.
    assert models.TrainerV1alpha1TrainJob.from_dict(train_job).to_dict() == train_job


def test_the_train_job_asks_for_nodes_workers_and_gpus():
    _, train_job = manifests(cpus_per_worker=3, time="1-00:00:00")
    assert (train_job["apiVersion"], train_job["kind"]) == ("trainer.kubeflow.org/v1alpha1", "TrainJob")
    assert train_job["spec"]["runtimeRef"] == {"name": "torch-distributed"}
    assert train_job["spec"]["activeDeadlineSeconds"] == 86_400
    trainer = train_job["spec"]["trainer"]
    assert (trainer["numNodes"], trainer["numProcPerNode"]) == (2, 2)
    assert trainer["resourcesPerNode"]["limits"] == {"cpu": "6", "nvidia.com/gpu": "2"}
    assert trainer["resourcesPerNode"]["requests"] == trainer["resourcesPerNode"]["limits"]
    mounts = {mount["name"]: mount["mountPath"] for mount in pod_patch(train_job)["containers"][0]["volumeMounts"]}
    assert mounts == {"data": "/data", "config": "/etc/dragoman", "shared-memory": "/dev/shm"}
    assert pod_patch(train_job)["terminationGracePeriodSeconds"] == 120


def test_pods_on_cpus_ask_for_no_gpu():
    _, train_job = manifests(gpus_per_node=0)
    assert train_job["spec"]["trainer"]["resourcesPerNode"]["limits"] == {"cpu": "8"}
    assert [volume["name"] for volume in pod_patch(train_job)["volumes"]] == ["data", "config"]


def test_pods_find_config_corpus_and_run():
    config_map, train_job = manifests(overrides=("training.max_steps=5",))
    assert config_map["data"] == {"config.toml": CONFIG}
    (config_volume,) = (volume for volume in pod_patch(train_job)["volumes"] if volume["name"] == "config")
    assert config_volume["configMap"]["name"] == config_map["metadata"]["name"]
    train = ["train", "/etc/dragoman/config.toml", "--run-dir", "/data/runs/my"]
    changes = ["--set", "training.max_steps=5", "--set", "data.prepared=/data/prepared"]
    assert train_job["spec"]["trainer"]["args"][-9:] == [*train, *changes, "--continue"]


def test_an_absolute_path_of_the_corpus_is_kept():
    _, train_job = manifests(prepared="/data/prepared")
    assert "--set" not in train_job["spec"]["trainer"]["args"]


def test_a_config_that_no_yaml_block_can_hold_survives(data: Path):
    text = '[data]\r\nprepared = "a"\t# \u2028\n  \n[model]\npreset = "tiny"\n'
    (data / "my.toml").write_text(text, encoding="utf-8", newline="")
    config_map, _ = manifests()
    assert tomllib.loads(config_map["data"]["config.toml"]) == {"data": {"prepared": "a"}, "model": {"preset": "tiny"}}


def test_kubernetes_expands_no_variables_in_paths():
    _, train_job = manifests(run_dir=Path("$(HOME)$$x"))
    args = train_job["spec"]["trainer"]["args"]
    assert args[args.index("--run-dir") + 1] == "/data/$$(HOME)$$$$x"


# Docker


def compose_of(**changes: Any) -> dict[str, Any]:
    document = yaml.safe_load(build("docker", **changes)["compose.yaml"])
    assert isinstance(document, dict)
    return document


def interpolate(text: str) -> str:
    """Expands variables like Compose, with MASTER_ADDR set and MASTER_PORT not."""
    pattern = r"\$(?:\$|\{MASTER_ADDR:\?[^}]*\}|\{MASTER_PORT:-(\d+)\})"
    return re.sub(pattern, lambda match: "$" if match[0] == "$$" else match[1] or "10.0.0.1", text)


@pytest.mark.parametrize("gpus_per_node", [0, 2])
def test_the_compose_file_follows_the_specification(gpus_per_node):
    jsonschema = pytest.importorskip("jsonschema")
    pytest.importorskip("check_jsonschema")
    schema = json.loads((package_files("check_jsonschema") / "builtin_schemas/vendor/compose-spec.json").read_text())
    jsonschema.validate(compose_of(gpus_per_node=gpus_per_node), schema)


def test_each_machine_has_its_own_service(data: Path):
    services = compose_of()["services"]
    assert {name: service["profiles"] for name, service in services.items()} == {"node0": ["node0"], "node1": ["node1"]}
    for service in services.values():
        assert (service["network_mode"], service["ipc"], service["restart"]) == ("host", "host", "on-failure:5")
        assert service["stop_grace_period"] == "120s"
        (volume,) = service["volumes"]
        assert volume["source"] == volume["target"] == str(data)
        (device,) = service["deploy"]["resources"]["reservations"]["devices"]
        assert (device["count"], device["capabilities"]) == (2, ["gpu"])


def test_containers_on_cpus_reserve_no_gpu():
    assert all("deploy" not in service for service in compose_of(gpus_per_node=0)["services"].values())


def test_torchrun_understands_the_commands(data: Path):
    run = pytest.importorskip("torch.distributed.run")
    for rank, service in enumerate(compose_of(workers_per_node=1)["services"].values()):
        program_name, *words = (interpolate(word) for word in service["command"])
        asked = run.parse_args(words)
        assert program_name == "torchrun"
        assert (asked.nnodes, asked.nproc_per_node, asked.node_rank) == ("2", "1", rank)
        assert (asked.master_addr, asked.master_port) == ("10.0.0.1", 29_500)
        assert asked.no_python
        assert 30 < asked.shutdown_timeout < 120
        train = ["train", f"{data}/my.toml", "--run-dir", f"{data}/runs/my", "--continue"]
        assert [asked.training_script, *asked.training_script_args] == ["dragoman", *train]


def test_one_machine_needs_no_address():
    text = build("docker", num_nodes=1)["compose.yaml"]
    assert "MASTER_ADDR" not in text
    assert "--master-addr=127.0.0.1" in text


def test_compose_expands_no_variables_in_paths(data: Path, monkeypatch: pytest.MonkeyPatch):
    folder = data / HOSTILE
    folder.mkdir()
    monkeypatch.chdir(folder)
    (folder / "my.toml").write_text(CONFIG)
    service = compose_of(overrides=(HOSTILE,))["services"]["node0"]
    assert interpolate(service["volumes"][0]["source"]) == interpolate(service["working_dir"]) == str(folder)
    assert [interpolate(word) for word in service["command"][-6:]] == [
        f"{folder}/my.toml", "--run-dir", f"{folder}/runs/my", "--set", HOSTILE, "--continue",
    ]  # fmt: skip


def test_the_dockerfile_passes_its_linter(tmp_path: Path):
    (tmp_path / "Dockerfile").write_text(build("docker")["Dockerfile"])
    run_quietly(program("hadolint"), "--no-color", tmp_path / "Dockerfile")


def test_the_dockerfile_copies_existing_files_and_installs_the_pinned_torch():
    text = build("docker")["Dockerfile"]
    copied = [name for line in re.findall(r"^COPY (.*) \S+$", text, re.MULTILINE) for name in line.split()]
    assert {"constraints.txt", "pyproject.toml", "dragoman"} <= set(copied)
    assert all((ROOT / name).exists() for name in copied)
    assert "--constraint constraints.txt torch\n" in text
    pinned = re.search(r"^torch==.*$", (ROOT / "constraints.txt").read_text(), re.MULTILINE)
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert pinned is not None
    assert pinned[0] in project["dependencies"]


def test_an_image_for_cpus_can_do_without_gpu_libraries():
    text = build("docker", gpus_per_node=0)["Dockerfile"]
    assert "--build-arg TORCH_INDEX=ADDRESS" in text
    assert "GPUs need nothing more" not in text


# All kinds


@pytest.mark.parametrize("kind", KINDS)
def test_no_registry_is_named(kind):
    text = show_files(build(kind))
    hosts = set(re.findall(r"\b(?:[a-z0-9-]+\.)+(?:io|com|org|net|dev)\b", text))
    # These are names of Kubernetes resources, not addresses.
    assert hosts <= {"trainer.kubeflow.org", "jobset.sigs.k8s.io", "nvidia.com"}


@pytest.mark.parametrize("kind", [*KINDS, *COMMANDS])
def test_files_say_how_to_use_them_and_continue_the_run(kind):
    text = show_files(build(kind))
    start = {"slurm": "sbatch FILE", "kubernetes": "kubectl apply --filename FILE", "docker": "docker compose"}
    assert start.get(kind, f"dragoman stop {Path.cwd()}/runs/my") in text
    assert "--continue" in text
    assert all(text.endswith("\n") for text in build(kind).values())


def test_several_files_are_shown_with_a_line_before_each():
    lines = show_files(build("docker")).splitlines()
    assert lines[0] == "# --- Dockerfile ---"
    assert lines.count("# --- compose.yaml ---") == 1


def test_existing_files_are_replaced_only_on_request(tmp_path: Path):
    out = tmp_path / "new" / "docker"
    paths = save_files({"a": "1\n", "b": "2\n"}, out, may_replace=False)
    assert paths == [out / "a", out / "b"]
    (out / "a").unlink()
    with pytest.raises(UserError, match="b exists already: give --force"):
        save_files({"a": "3\n", "b": "3\n"}, out, may_replace=False)
    assert not (out / "a").exists()
    save_files({"a": "3\n", "b": "3\n"}, out, may_replace=True)
    assert [(out / name).read_text() for name in "ab"] == ["3\n", "3\n"]


def test_a_single_file_is_written_to_the_path_or_into_the_folder(tmp_path: Path):
    assert save_files({"a.sbatch": "1\n"}, tmp_path / "job", may_replace=False) == [tmp_path / "job"]
    assert save_files({"a.sbatch": "1\n"}, tmp_path, may_replace=False) == [tmp_path / "a.sbatch"]


def test_a_path_that_cannot_be_written_is_an_error(tmp_path: Path):
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match="cannot be written"):
        save_files({"a": ""}, tmp_path / "file" / "below", may_replace=False)
