"""A real Slurm on this one machine for the length of a test: munged, slurmctld and one slurmd per node.

with Slurm(tmp_path) as slurm:
    slurm.run(["srun", "--nodes=2", "--ntasks=2", "hostname"])

Its nodes are this machine under other names, on loopback; or, with `rig`, the hosts of a rig, on their network.
"""

import os
import re
import secrets
import socket
import subprocess
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from types import TracebackType
from typing import Any, Self

import psutil

from dragoman.run.processes import end_with_parent
from rig.requirements import failure_of
from rig.rig import Rig
from rig.tools import SYSTEM_FOLDERS, find_tool

PROGRAMS = ("munged", "slurmctld", "slurmd", "srun", "sbatch", "scontrol", "scancel", "sinfo", "squeue")
LOOPBACK = "127.0.0.1"
LOGIN_HOST = "login"
"""Host of the controller, from which the cluster is used; in a rig the first host."""

START_SECONDS = 30
STOP_SECONDS = 10
CLIENT_SECONDS = 120
CPUS_PER_NODE = 2
CREDENTIAL_SECONDS = 10
"""How long a launch may take, and how long a requeued job waits before it starts again; Slurm's own 120 is long."""

FINAL_STATES = {"BOOT_FAIL", "CANCELLED", "COMPLETED", "DEADLINE", "FAILED", "NODE_FAIL", "OUT_OF_MEMORY", "TIMEOUT"}


def slurm_problem() -> str | None:
    """Returns why Slurm cannot run here; None if it can."""
    if os.geteuid() != 0:
        return "Slurm's daemons start tasks for other users and so need root."
    missing = [name for name in PROGRAMS if find_tool(name) is None]
    if missing:
        return f"Slurm is not installed ({', '.join(missing)} not found): Debian has it in slurm-wlm and munge."
    if reason := failure_of(["mount", "--bind", "/etc/hosts", "/etc/hosts"]):
        return f"Slurm's nodes cannot have names of their own here ({reason}); a container may need more privileges."
    return None


class Slurm:
    """A cluster of the nodes n1, n2, …, or of the hosts of a rig; its logs stay in `folder`."""

    def __init__(self, folder: Path, num_nodes: int = 2, rig: Rig | None = None) -> None:
        self.folder = folder.resolve()
        self.nodes = [host.name for host in rig.hosts] if rig else [f"n{number}" for number in range(1, num_nodes + 1)]
        self.login = self.nodes[0] if rig else LOGIN_HOST
        self.environment = _client_environment(self.folder / "slurm.conf")
        self._rig = rig
        self._daemons: dict[str, subprocess.Popen[bytes]] = {}
        # Names of Unix sockets have at most 107 bytes, which a test's own folder may use up.
        self._sockets_folder = TemporaryDirectory(prefix="slurm-", dir="/tmp")
        self._sockets = Path(self._sockets_folder.name)

    def __enter__(self) -> Self:
        try:
            self._start()
        except BaseException:
            self._stop()
            raise
        return self

    def __exit__(self, *_: type[BaseException] | BaseException | TracebackType | None) -> None:
        self._stop()

    def run(self, argv: Sequence[object], code: int = 0, **options: Any) -> subprocess.CompletedProcess[str]:
        """Runs a command as a user of this cluster and checks its exit code."""
        settings: dict[str, Any] = {"timeout": CLIENT_SECONDS, "env": self.environment} | options
        done = self._run_at_login(argv, **settings)
        assert done.returncode == code, f"exit code {done.returncode}, not {code}\n{done.stdout}\n{done.stderr}"
        return done

    def submit(self, script: Path, *options: str) -> int:
        """Submits a script with sbatch; returns the number of the job."""
        # A requeued job continues in the same file.
        output = ["--open-mode=append", f"--output={self.folder / 'job-%j.txt'}"]
        return int(self.run(["sbatch", "--parsable", *output, *options, script]).stdout)

    def output(self, job: int) -> Path:
        """Returns what a submitted job has printed, over all its starts."""
        return self.folder / f"job-{job}.txt"

    def state(self, job: int) -> str:
        """PENDING, RUNNING, COMPLETED, …"""
        return self.run(["squeue", "--noheader", "--states=all", "--format=%T", f"--jobs={job}"]).stdout.strip()

    def wait_for(self, job: int, state: str, seconds: float = 60) -> None:
        """Waits until a job is in a state; a job that ended in another one is an error at once."""
        end = time.monotonic() + seconds
        while (now := self.state(job)) != state:
            if now in FINAL_STATES or time.monotonic() > end:
                raise AssertionError(f"job {job} is {now}, not {state}\n{self._account_of(job)}")
            time.sleep(0.1)

    def _account_of(self, job: int) -> str:
        """Returns what Slurm reports about a job, the job's output, and the logs of the daemons."""
        known = self.run(["scontrol", "show", "job", job]).stdout
        printed = re.search(r"^\s*StdOut=(.+)$", known, re.MULTILINE)
        return "\n".join([known, _tail(Path(printed[1])) if printed else "", self._logs()])

    def _start(self) -> None:
        end = time.monotonic() + START_SECONDS
        self._write_files()
        self._start_daemon("munged", self._munge_options())
        self._wait_until("munged has its socket", (self._sockets / "munge").exists, end)
        # -D stays in the foreground, -c forgets jobs of an earlier cluster in the same folder.
        self._start_daemon("slurmctld", ["-D", "-c"])
        for node in self.nodes:
            self._start_daemon("slurmd", ["-D", "-N", node], node)
        self._wait_until("all nodes are idle", self._are_nodes_idle, end)

    def _munge_options(self) -> list[str]:
        return [
            "--foreground",
            "--force",  # only warns of folders closed to other users, as those of pytest are
            f"--socket={self._sockets / 'munge'}",
            f"--key-file={self.folder / 'munge.key'}",
            f"--pid-file={self.folder / 'munged.pid'}",
            f"--log-file={self.folder / 'munged.log'}",
            f"--seed-file={self.folder / 'munge.seed'}",
        ]

    def _write_files(self) -> None:
        (self.folder / "state").mkdir(parents=True, exist_ok=True)
        for node in self.nodes:
            (self._sockets / node).mkdir()
        key = self.folder / "munge.key"
        key.touch(mode=0o600)
        key.write_bytes(secrets.token_bytes(128))
        (self.folder / "hosts").write_text(_hosts(self.nodes), encoding="utf-8")
        settings = slurm_conf(self.folder, self._sockets, self.login, self.nodes)
        (self.folder / "slurm.conf").write_text(settings, encoding="utf-8")
        # Version 22.05 loads a cgroup plugin even where nothing uses cgroups, and its choice by itself fails in a
        # container. This one, never called, leaves the machine's cgroups alone.
        (self.folder / "cgroup.conf").write_text("CgroupPlugin=cgroup/v1\nCgroupAutomount=no\n", encoding="utf-8")

    def _start_daemon(self, program: str, options: list[str], node: str | None = None) -> None:
        name, host, argv = f"{program}-{node}" if node else program, node or self.login, [program, *options]
        with (self.folder / f"{name}.out").open("wb") as output:
            settings: dict[str, Any] = {
                "env": self.environment,
                "cwd": self._sockets,  # by which `processes` knows them and the steps they start
                "stdin": subprocess.DEVNULL,
                "stdout": output,
                "stderr": subprocess.STDOUT,
                "start_new_session": True,  # a Ctrl-C is for the tests, which then take the daemons down in order
                "preexec_fn": end_with_parent,
            }
            if self._rig is not None:
                self._daemons[name] = self._rig[host].popen(argv, **settings)
            else:
                self._daemons[name] = subprocess.Popen(self._renamed(host, argv), **settings)

    def _run_at_login(self, argv: Sequence[object], **options: Any) -> subprocess.CompletedProcess[str]:
        settings = {"capture_output": True, "text": True, "check": False, "env": self.environment} | options
        if self._rig is not None:
            return self._rig[self.login].run([str(word) for word in argv], **settings)
        return subprocess.run(self._renamed(self.login, argv), **settings)

    def _renamed(self, name: str, argv: Sequence[object]) -> list[str]:
        """The command, to run under a host's name: Slurm listens at the address its own host's name stands for."""
        script = 'mount --bind "$1" /etc/hosts && hostname "$2" && shift 2 && exec "$@"'
        inside = ["sh", "-c", script, "sh", self.folder / "hosts", name, *argv]
        return ["unshare", "--uts", "--mount", *map(str, inside)]

    def _are_nodes_idle(self) -> bool:
        # Before the controller answers, sinfo tries for a while and fails.
        done = self._run_at_login(["sinfo", "--noheader", "--Node", "--format=%T"])
        return done.stdout.split() == ["idle"] * len(self.nodes)

    def _wait_until(self, what: str, is_so: Callable[[], bool], end: float) -> None:
        """Waits for a step of the start; raises if a daemon has ended."""
        while not is_so():
            ended = [name for name, daemon in self._daemons.items() if daemon.poll() is not None]
            if ended:
                raise RuntimeError(f"Slurm did not come up: {', '.join(ended)} ended.\n{self._logs()}")
            if time.monotonic() > end:
                raise RuntimeError(f"Slurm did not come up: not in {START_SECONDS} s that {what}.\n{self._logs()}")
            time.sleep(0.1)

    def _logs(self) -> str:
        """The last lines every daemon printed, to explain a failure."""
        return "\n".join(_tail(output) for output in sorted(self.folder.glob("*.out")))

    def _stop(self) -> None:
        """Ends the daemons, the controller before it sees its nodes fail, then processes that jobs left behind."""
        for name in sorted(self._daemons, key="slurmctld".__ne__):
            self._daemons[name].terminate()
        for daemon in self._daemons.values():
            with suppress(subprocess.TimeoutExpired):
                daemon.wait(STOP_SECONDS)
        self._kill_what_is_left()
        for daemon in self._daemons.values():
            daemon.wait(STOP_SECONDS)
        self._sockets_folder.cleanup()

    def _kill_what_is_left(self) -> None:
        """Kills until nothing runs: a parent may have started one more while it was being killed."""
        end = time.monotonic() + STOP_SECONDS
        while (left := list(self.processes())) and time.monotonic() < end:
            for process in left:
                with suppress(psutil.NoSuchProcess):
                    process.kill()
            psutil.wait_procs(left, timeout=1)

    def processes(self) -> Iterator[psutil.Process]:
        """Everything that runs for this cluster: clients, daemons, steps and tasks."""
        for process in psutil.process_iter():
            with suppress(psutil.Error):
                # Slurm hands SLURM_CONF down to every task; a slurmstepd writes its title over its environment,
                # but works where its slurmd does.
                is_ours = process.environ().get("SLURM_CONF") == self.environment["SLURM_CONF"]
                if is_ours or process.cwd() == str(self._sockets):
                    yield process


def slurm_conf(folder: Path, sockets: Path, login: str, nodes: list[str]) -> str:
    """Settings of a cluster that runs as root, at the addresses of its hosts only, without accounting and cgroups."""
    controller_port, *node_ports = _free_ports(1 + len(nodes))
    lines = [
        "ClusterName=test",
        f"SlurmctldHost={login}",
        f"SlurmctldPort={controller_port}",
        # Without it all daemons listen on every network the machine is in.
        "CommunicationParameters=NoCtldInAddrAny,NoInAddrAny",
        "SlurmUser=root",
        "SlurmdUser=root",
        "AuthType=auth/munge",
        "CredType=cred/munge",
        f"AuthInfo=socket={sockets / 'munge'},cred_expire={CREDENTIAL_SECONDS}",
        f"StateSaveLocation={folder / 'state'}",
        f"SlurmdSpoolDir={sockets}/%n",
        f"SlurmctldPidFile={folder / 'slurmctld.pid'}",
        f"SlurmdPidFile={folder / 'slurmd-%n.pid'}",
        f"SlurmctldLogFile={folder / 'slurmctld.log'}",
        f"SlurmdLogFile={folder / 'slurmd-%n.log'}",
        "MailProg=/bin/true",
        "MpiDefault=none",
        "ProctrackType=proctrack/linuxproc",
        "TaskPlugin=task/none",
        "JobAcctGatherType=jobacct_gather/none",
        "AccountingStorageType=accounting_storage/none",
        "SelectType=select/cons_tres",
        "SelectTypeParameters=CR_Core",
        "SchedulerType=sched/builtin",
        # Jobs start at once; by default the scheduler looks a minute later again.
        "SchedulerParameters=batch_sched_delay=0,sched_interval=1,sched_min_interval=0",
        # The nodes are what is written here, whatever the machine has.
        "SlurmdParameters=config_overrides",
        "ReturnToService=2",
    ]
    lines += [f"NodeName={node} Port={port} CPUs={CPUS_PER_NODE}" for node, port in zip(nodes, node_ports, strict=True)]
    lines.append("PartitionName=main Nodes=ALL Default=YES MaxTime=INFINITE State=UP")
    return "\n".join(lines) + "\n"


def _hosts(nodes: list[str]) -> str:
    """The machine's own /etc/hosts, and before it the cluster's hosts."""
    # All have one address: a step answers the sender of its launch, and on loopback everything is sent by 127.0.0.1.
    own = "".join(f"{LOOPBACK} {host}\n" for host in (LOGIN_HOST, *nodes))
    return own + Path("/etc/hosts").read_text(encoding="utf-8")


def _tail(path: Path, num_lines: int = 30) -> str:
    """The end of a text file under its name; also if the file was never written."""
    text = path.read_text(encoding="utf-8", errors="replace") if path.exists() else "(there is no such file)"
    return "\n".join([f"== {path}", *text.splitlines()[-num_lines:]])


def _free_ports(number: int) -> list[int]:
    """Different free ports of loopback."""
    with ExitStack() as stack:
        listeners = [stack.enter_context(socket.socket()) for _ in range(number)]
        for listener in listeners:
            listener.bind((LOOPBACK, 0))
        return [listener.getsockname()[1] for listener in listeners]


def _client_environment(slurm_conf: Path) -> dict[str, str]:
    """Variables that lead every command to this cluster; those of a job the tests may run in lead elsewhere."""
    inherited = {name: value for name, value in os.environ.items() if not name.startswith(("SLURM", "SBATCH"))}
    return inherited | {"SLURM_CONF": str(slurm_conf), "PATH": _program_path()}


def _program_path() -> str:
    return os.pathsep.join((os.environ.get("PATH", os.defpath), *SYSTEM_FOLDERS))
