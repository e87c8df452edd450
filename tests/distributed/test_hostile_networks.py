"""Networks as they really are: firewalls, packets that vanish, IPv6 only, strangers on the same wire."""

import json
import os
import socket
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from host_runs import ONE_EACH, ONE_THREAD, TWO_EACH, hosts_options, train_on_hosts, training_on_hosts, write_config
from program import dragoman_command, read_records, run_dragoman, wait_for_step
from rig import Host, Rig, rig_problem

PORTS = "29500-29531"
SSH_PORT, ALL_OF_RANGE = "22", "29500:29531"
NUM_STEPS = 6
REFUSED_SECONDS = 30
"""A refusal takes 6 s on an idle machine."""

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def rig(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Rig]:
    """Hosts h1 and h2 of a run, and h3, a stranger; the folder of the run is not shared."""
    if problem := rig_problem():
        pytest.skip(problem)
    with Rig(folder=tmp_path_factory.mktemp("rig"), hosts=3) as rig:
        yield rig


@pytest.fixture
def config(prepared: Path, tmp_path: Path) -> Path:
    return write_config(tmp_path / "config.toml", prepared, f"training.max_steps={NUM_STEPS}")


def refusal(rig: Rig, config: Path, run: Path, *options: object) -> str:
    """Returns the error of a start that is refused in time and leaves nothing behind on any machine."""
    begin = time.monotonic()
    done = train_on_hosts(rig, ONE_EACH, run, config, *options, code=1)
    assert time.monotonic() - begin < REFUSED_SECONDS
    assert not any(path.exists() for path in (run, *(host.path(run) for host in rig.hosts)))
    return done.stderr.removeprefix("dragoman: ").strip()


def test_a_firewall_with_one_open_port_is_found_before_the_first_step(rig: Rig, config: Path):
    h2 = rig["h2"]
    with h2.firewall(allowed_tcp=(SSH_PORT, "29500")):
        said = refusal(rig, config, rig.private / "one-port", "--set", f'cluster.port="{PORTS}"')
    assert f"h1 cannot connect to h2 ({h2.address}; port 29501): no answer." in said
    assert f"a firewall on h2 that blocks incoming connections: open the TCP ports {PORTS}" in said


def test_a_firewall_that_is_open_for_the_range_suffices(rig: Rig, config: Path):
    run = rig.private / "range"
    allowed = (SSH_PORT, ALL_OF_RANGE)
    with rig["h1"].firewall(allowed_tcp=allowed), rig["h2"].firewall(allowed_tcp=allowed):
        train_on_hosts(rig, TWO_EACH, run, config, "--set", f'cluster.port="{PORTS}"', "--set", "cluster.check=always")
    assert len(read_records(run, "train")) == NUM_STEPS


def test_packets_that_are_too_large_for_the_network_are_found(rig: Rig, config: Path):
    for name in ("h1", "h2"):
        rig[name].set_mtu(9000)
    try:
        said = refusal(rig, config, rig.private / "mtu")
    finally:
        for name in ("h1", "h2"):
            rig[name].set_mtu(1500)
    assert "h1 reaches h2" in said
    assert "larger data from h1 does not arrive there" in said
    assert "Packets of 1500 bytes pass, larger ones vanish: the MTU of the hosts (9000 on h2, 9000 on h1)" in said


def test_hosts_with_ipv6_only_train(prepared: Path, tmp_path: Path):
    if problem := rig_problem():
        pytest.skip(problem)
    config = write_config(tmp_path / "config.toml", prepared, f"training.max_steps={NUM_STEPS}")
    with Rig(folder=tmp_path / "rig", hosts=2, ipv6=True) as rig:
        by_address = ",".join(f"[{host.address}]:1" for host in rig.hosts)
        for hosts, ports in ((ONE_EACH, "0"), (by_address, f'"{PORTS}"')):
            run = rig.private / f"run-{len(hosts)}"
            done = train_on_hosts(rig, hosts, run, config, "--set", f"cluster.port={ports}")
            assert f"network eth0 ({rig['h1'].address})" in done.stderr
            assert len(read_records(run, "train")) == NUM_STEPS
            assert (run / "checkpoints" / "latest" / "model.safetensors").exists()


# Strangers

KNOCK = """
import json, socket, sys
answers = {}
for address, port in json.loads(sys.argv[1]):
    try:
        with socket.create_connection((address, port), timeout=3) as stranger:
            stranger.settimeout(8)
            stranger.sendall(b"\\0" * 4096)
            received = b""
            while chunk := stranger.recv(4096):
                received += chunk
        answers[port] = len(received)
    except TimeoutError:
        answers[port] = "silent"
    except OSError as error:
        answers[port] = type(error).__name__
print(json.dumps(answers))
"""
JOIN = """
import sys
from datetime import timedelta
from torch._C._distributed_c10d import TCPStore
try:
    store = TCPStore(sys.argv[1], int(sys.argv[2]), is_master=False, timeout=timedelta(seconds=4))
    print("joined", store.num_keys())
except RuntimeError as error:
    print("refused")
"""
FLOOD = """
import socket, sys, time
address, port = sys.argv[1], int(sys.argv[2])
kept = []
for _ in range(2000):
    try:
        kept.append(socket.create_connection((address, port), timeout=1))
    except OSError:
        pass
print("flooding", flush=True)
time.sleep(30)
"""


def test_a_third_machine_gets_nothing_from_the_ports_of_a_run(rig: Rig, config: Path):
    run, stranger = rig.private / "strangers", rig["h3"]
    many_steps = ["--set", "training.max_steps=100000", "--set", f'cluster.port="{PORTS}"']
    with training_on_hosts(rig, ONE_EACH, run, config, *many_steps) as training:
        wait_for_step(run, 3)
        ports = {host.name: host.listening_ports() for host in (rig["h1"], rig["h2"])}
        for host in (rig["h1"], rig["h2"]):
            own = {address for address, _ in ports[host.name]}
            assert own == {host.address, "127.0.0.1"}, "only the chosen interface and loopback"
        gate, *_ = sorted(port for _, port in ports["h1"] if 29500 <= port <= 29531)
        targets = [(rig["h1"].address, gate)]
        knocked = stranger.run([sys.executable, "-c", KNOCK, json.dumps(targets)], capture_output=True, text=True)
        # A challenge of 32 bytes, which says nothing, and then the end of the connection.
        assert json.loads(knocked.stdout)[str(gate)] in (32, "ConnectionResetError")
        joined = stranger.run(
            [sys.executable, "-c", JOIN, rig["h1"].address, str(gate)], capture_output=True, text=True
        )
        assert joined.stdout.strip() == "refused"
        with stranger.popen([sys.executable, "-c", FLOOD, rig["h1"].address, str(gate)], stdout=-1) as flood:
            flood.stdout.readline()
            program = host_program_of(rig["h1"])
            step = last_step(run)
            wait_for_step(run, step + 3)
            assert num_threads(program) < 200
            flood.kill()
        run_dragoman("stop", run)
        training.end()
    assert not read_records(run, "restart")


def host_program_of(host: Host) -> int:
    """Returns the process that keeps the gate."""
    names = {pid: Path(f"/proc/{pid}/cmdline").read_bytes() for pid in host.processes()}
    return next(pid for pid, line in names.items() if b"dragoman.launch.host_program" in line)


def num_threads(pid: int) -> int:
    return len(list(Path(f"/proc/{pid}/task").iterdir()))


def last_step(run: Path) -> int:
    return int(read_records(run, "train")[-1]["step"])


def test_a_second_launcher_is_refused_where_the_files_are(rig: Rig, config: Path):
    run, h1 = rig.private / "twice", rig["h1"]
    with training_on_hosts(rig, ONE_EACH, run, config, "--set", "training.max_steps=100000") as training:
        wait_for_step(run, 3)
        second = h1.run(
            dragoman_command("train", "--resume", "--run-dir", run, "--workers", 1),
            capture_output=True,
            text=True,
            env=os.environ | ONE_THREAD,
        )
        assert second.returncode == 1
        assert f"is being trained by process {host_program_of(h1)} on h1, launched from {socket.gethostname()}" in (
            second.stderr
        )
        third = run_dragoman("train", config, *hosts_options(rig, ONE_EACH), "--run-dir", run, "--resume", code=1)
        assert "is being trained by process" in third.stderr
        wait_for_step(run, last_step(run) + 2)
        run_dragoman("stop", run)
        training.end()
    assert not read_records(run, "restart")
