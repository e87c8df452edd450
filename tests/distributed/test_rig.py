"""The rig provides hosts with names, addresses, ssh and links of a given rate, and leaves nothing behind."""

import ipaddress
import os
import re
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from itertools import takewhile
from pathlib import Path

import psutil
import pytest
from rig import Host, Rig, rig_problem
from rig.__main__ import main
from rig.clocks import clock_problem
from rig.filters import filter_problem
from rig.network import free_subnet, subnets_in_use
from rig.rate import bits_per_second, burst_bytes
from rig.ssh import check_reach
from rig.traces import TRACE, traces
from rig.transfer import measure_mbit_per_second

from dragoman.run.errors import UsageError, UserError

TESTS = Path(__file__).parents[1]
PROBLEM = rig_problem()
needs_rig = pytest.mark.skipif(PROBLEM is not None, reason=PROBLEM or "")
pytestmark = pytest.mark.slow  # test_hosts.py shows as well that the rig works


@pytest.fixture(scope="module")
def rig(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Rig]:
    """A rig for all tests, which leave its links up and unlimited."""
    if PROBLEM is not None:
        pytest.skip(PROBLEM)
    with Rig(folder=tmp_path_factory.mktemp("rig"), hosts=2, decoy=True) as rig:
        yield rig


def output(host: Host, *argv: object) -> str:
    return host.run(list(map(str, argv)), capture_output=True, text=True, check=True, timeout=20).stdout.strip()


def ssh(rig: Rig, *arguments: object) -> list[str]:
    return ["ssh", "-F", str(rig.ssh_config), *map(str, arguments)]


# Names and addresses


def test_hosts_have_names_and_addresses_of_their_own(rig: Rig):
    assert [host.name for host in rig.hosts] == ["h1", "h2"]
    assert rig["h2"] is rig.hosts[1]
    for host in rig.hosts:
        assert output(host, "hostname") == host.name
        assert f"inet {host.address}/" in output(host, "ip", "address", "show", "dev", host.interface)
    assert socket.gethostname() not in ("h1", "h2")


def test_hosts_find_each_other_by_name(rig: Rig):
    for host in rig.hosts:
        for peer in rig.hosts:
            assert output(host, "getent", "hosts", peer.name).split()[0] == peer.address


def test_a_host_sees_its_own_devices_in_sys(rig: Rig):
    assert "adocker0" in output(rig["h1"], "ls", "/sys/class/net").split()
    assert Path("/sys/class/net/adocker0").exists() is False


def test_the_decoy_has_the_same_address_everywhere_and_comes_first(rig: Rig):
    lists = [output(host, "ip", "-4", "-brief", "address", "show", "up") for host in rig.hosts]
    for devices in lists:
        names = [line.split()[0].partition("@")[0] for line in devices.splitlines()]
        assert names == ["lo", "adocker0", "eth0"]
        assert "172.17.0.1/16" in devices


def test_commands_on_a_host_start_in_the_callers_folder_or_the_one_asked_for(rig: Rig, tmp_path: Path):
    done = rig["h1"].run(["pwd"], cwd=tmp_path, capture_output=True, text=True)
    assert done.stdout.strip() == str(tmp_path)
    assert output(rig["h1"], "pwd") == str(Path.cwd())


# ssh


def test_ssh_reaches_every_host_from_here_by_name_and_by_address(rig: Rig):
    for destination, name in [("h1", "h1"), ("h2", "h2"), (rig["h2"].address, "h2")]:
        done = subprocess.run(ssh(rig, destination, "hostname"), capture_output=True, text=True, timeout=20)
        assert (done.stdout.strip(), done.stderr) == (name, "")


def test_ssh_reaches_a_host_from_another(rig: Rig):
    assert output(rig["h1"], *ssh(rig, "h2", "hostname")) == "h2"
    assert output(rig["h2"], *ssh(rig, "h1", "hostname")) == "h1"


def test_ssh_refuses_a_host_with_the_key_of_another(rig: Rig, tmp_path: Path):
    keys = [line.split(" ", 1) for line in (rig.folder / "known_hosts").read_text().splitlines()]
    swapped = tmp_path / "known_hosts"
    swapped.write_text(f"{keys[0][0]} {keys[1][1]}\n{keys[1][0]} {keys[0][1]}\n")
    command = ssh(rig, "-o", f"UserKnownHostsFile={swapped}", "h1", "hostname")
    done = subprocess.run(command, capture_output=True, text=True, timeout=20)
    assert done.returncode == 255
    assert "Host key verification failed" in done.stderr


def test_ssh_refuses_another_key(rig: Rig, tmp_path: Path):
    other_key = tmp_path / "other_key"
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", other_key], check=True)
    config = tmp_path / "ssh_config"
    config.write_text(rig.ssh_config.read_text().replace(str(rig.folder / "identity"), str(other_key)))
    done = subprocess.run(["ssh", "-F", config, "h1", "hostname"], capture_output=True, text=True, timeout=20)
    assert done.returncode == 255
    assert "Permission denied (publickey)" in done.stderr


def test_processes_of_an_ssh_session_live_on_the_host_and_only_there(rig: Rig):
    assert wait_until(lambda: rig["h1"].processes() == rig["h2"].processes() == [])  # sessions of other tests end
    with subprocess.Popen(ssh(rig, "h1", "sleep 20")) as session:
        assert wait_until(lambda: "sleep" in names_of(rig["h1"].processes()))
        assert rig["h2"].processes() == []
        session.terminate()
        for pid in rig["h1"].processes():
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGTERM)
    assert wait_until(lambda: rig["h1"].processes() == [])


# Files


def test_the_private_folder_is_private_and_the_rest_is_shared(rig: Rig, tmp_path: Path):
    output(rig["h1"], "touch", rig.private / "data", tmp_path / "shared")
    assert output(rig["h1"], "ls", rig.private) == "data"
    assert output(rig["h2"], "ls", rig.private) == ""
    assert list(rig.private.iterdir()) == []
    assert output(rig["h2"], "ls", tmp_path / "shared") == str(tmp_path / "shared")


# Links


@pytest.fixture
def limited_to_100_mbit(rig: Rig) -> Iterator[None]:
    for host in rig.hosts:
        host.set_rate("100mbit")
    yield
    for host in rig.hosts:
        host.set_rate(None)


@pytest.mark.usefixtures("limited_to_100_mbit")
@pytest.mark.serial
def test_a_link_has_the_rate_it_was_given_in_both_directions(rig: Rig):
    h1, h2 = rig.hosts
    sent, received = h1.bytes_sent(), h2.bytes_received()
    assert 85 < measure_mbit_per_second(h1, h2) < 105
    assert h1.bytes_sent() - sent > 10_000_000
    assert h2.bytes_received() - received > 10_000_000
    assert 85 < measure_mbit_per_second(h2, h1) < 105


@pytest.mark.serial
def test_one_limited_host_limits_what_it_receives_too(rig: Rig):
    h1, h2 = rig.hosts
    h2.set_rate("200mbit")
    try:
        assert 150 < measure_mbit_per_second(h1, h2) < 210
    finally:
        h2.set_rate(None)
    assert measure_mbit_per_second(h1, h2, seconds=0.3) > 300


def test_a_link_that_is_down_carries_nothing_and_keeps_its_connections(rig: Rig):
    host = rig["h2"]
    with serving(host) as port, connected(host, port) as connection:
        assert exchange(connection, b"one") == b"one"
        host.link_down()
        try:
            with pytest.raises(TimeoutError):
                exchange(connection, b"two")
        finally:
            host.link_up()
        connection.settimeout(10)
        assert connection.recv(100) == b"two"


def test_hosts_do_not_reach_each_other_while_a_link_is_down(rig: Rig, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("rig.ssh.PATIENCE_SECONDS", 1)
    h1, h2 = rig.hosts
    h2.link_down()
    try:
        with pytest.raises(UserError, match="h1 does not reach h2"):
            check_reach(h1, h2)
    finally:
        h2.link_up()
    assert output(h1, *ssh(rig, "h2", "hostname")) == "h2"


@pytest.mark.parametrize(
    ("rate", "bits", "burst"),
    [("500kbit", 5e5, 16_384), ("100mbit", 1e8, 125_000), ("2.5gbit", 2.5e9, 3_125_000)],
)
def test_a_rate_is_read_and_gets_a_bucket_for_10_ms(rate: str, bits: float, burst: int):
    assert bits_per_second(rate) == bits
    assert burst_bytes(rate) == burst


@pytest.mark.parametrize("rate", ["", "fast", "100", "100mbps", "0mbit", "-1gbit", "1gbit; true"])
def test_an_invalid_rate_is_refused_before_anything_is_built(rate: str, tmp_path: Path):
    with pytest.raises(UsageError, match="is not a rate"):
        Rig(folder=tmp_path / "rig", rate=rate)
    assert list(tmp_path.iterdir()) == []


# Bad networks


FILTER_PROBLEM = filter_problem() if PROBLEM is None else PROBLEM
needs_filters = pytest.mark.skipif(FILTER_PROBLEM is not None, reason=FILTER_PROBLEM or "")


@needs_filters
@pytest.mark.parametrize(("action", "error"), [("DROP", TimeoutError), ("REJECT", ConnectionRefusedError)])
def test_a_firewall_lets_only_some_ports_be_reached(rig: Rig, action: str, error: type[OSError]):
    h1, h2 = rig.hosts
    with serving(h2) as port, serving(h2) as other_port, connected(h2, port) as open_before:
        with h2.firewall(allowed_tcp=("1:22", str(port)), action=action):
            assert exchange(open_before, b"old") == b"old"
            with connected(h2, port) as connection:
                assert exchange(connection, b"new") == b"new"
            with pytest.raises(error):
                connected(h2, other_port)
            assert tries_to_connect(h1, h2, port) == "connected"
            assert tries_to_connect(h1, h2, other_port) == error.__name__
            assert tries_to_connect(h2, h2, other_port) == "connected"  # loopback
        assert tries_to_connect(h1, h2, other_port) == "connected"


@needs_filters
def test_a_firewall_can_hold_back_what_a_host_opens_itself(rig: Rig):
    h1, h2 = rig.hosts
    with serving(h1) as to_first, serving(h2) as to_second, h2.firewall(action="REJECT", chain="OUTPUT"):
        assert tries_to_connect(h2, h1, to_first) == "ConnectionRefusedError"
        assert tries_to_connect(h1, h2, to_second) == "connected"
        assert output(h2, *ssh(rig, "h1", "hostname")) == "h1"


@needs_filters
def test_a_host_can_lose_some_of_the_packets_it_receives(rig: Rig):
    host = rig["h2"]
    assert count_received(host, num_packets=200) == 200
    with host.lose_packets(0.5):
        assert 50 < count_received(host, num_packets=200) < 150
    with serving(host) as port, connected(host, port) as connection, host.lose_packets(0.2):
        connection.settimeout(20)
        assert exchange(connection, b"sent again until it arrives") == b"sent again until it arrives"


def test_packets_larger_than_the_bridge_allows_are_lost_in_silence(rig: Rig):
    """As with hosts set to 9,000 bytes at a switch that carries 1,500: small messages pass, large ones vanish."""
    for host in rig.hosts:
        host.set_mtu(9000)
    try:
        assert sends(*rig.hosts, num_bytes=1_000)
        assert not sends(*rig.hosts, num_bytes=100_000)
        # This machine's own packets are small enough, so a launcher notices nothing.
        with serving(rig["h2"]) as port, connected(rig["h2"], port) as connection:
            connection.sendall(bytes(100_000))
            assert len(receive_exactly(connection, 100_000)) == 100_000
    finally:
        for host in rig.hosts:
            host.set_mtu(1500)
    assert sends(*rig.hosts, num_bytes=100_000)


def test_an_outsider_sees_what_is_open_on_a_host(rig: Rig):
    h1, h2 = rig.hosts
    assert h1.listening_ports() == [(h1.address, 22)]
    with serving(h1) as port:
        assert sorted(h1.listening_ports()) == sorted([(h1.address, 22), (h1.address, port)])
        assert tries_to_connect(h2, h1, port) == "connected"
    assert (h1.address, port) not in h1.listening_ports()


# Hosts with IPv6 only


@needs_rig
def test_hosts_may_have_addresses_of_ipv6_only(tmp_path: Path):
    with Rig(folder=tmp_path / "rig", hosts=2, ipv6=True) as rig:
        h1, h2 = rig.hosts
        assert ipaddress.IPv6Address(h1.address).is_private
        assert "inet " not in output(h1, "ip", "address", "show", "dev", h1.interface)
        assert output(h1, "getent", "ahosts", "h2").split()[0] == h2.address
        for destination in ("h2", h2.address, f"[{h2.address}]"):
            done = subprocess.run(ssh(rig, destination, "hostname"), capture_output=True, text=True, timeout=20)
            assert (done.stdout.strip(), done.stderr) == ("h2", "")
        assert output(h1, *ssh(rig, "h2", "hostname")) == "h2"
        assert measure_mbit_per_second(h1, h2, seconds=0.3) > 100
        assert h1.listening_ports() == [(h1.address, 22)]
        if FILTER_PROBLEM is None:
            with serving(h2) as port, h2.firewall(action="REJECT"):
                assert tries_to_connect(h1, h2, port) == "ConnectionRefusedError"


# Power, sessions, disks and clocks


def test_a_host_without_power_is_silent_and_comes_back(rig: Rig):
    h2 = rig["h2"]
    sleeper = h2.popen(["sleep", "600"])
    with serving(h2) as port, connected(h2, port) as connection:
        assert exchange(connection, b"one") == b"one"
        h2.power_off()
        try:
            assert sleeper.wait(timeout=5) == -signal.SIGKILL
            assert h2.processes() == []
            with pytest.raises(TimeoutError):  # no reset, no end
                connection.recv(1)
            assert tries_to_connect(rig["h1"], h2, 22) == "TimeoutError"
        finally:
            h2.power_on()
    assert output(rig["h1"], *ssh(rig, "h2", "hostname")) == "h2"


def test_ssh_sessions_can_be_killed_without_the_server(rig: Rig):
    host = rig["h1"]
    server = host.server
    with subprocess.Popen(ssh(rig, "h1", "sleep 600"), stderr=subprocess.PIPE) as session:
        assert wait_until(lambda: "sleep" in names_of(host.processes()))
        host.kill_ssh_sessions()
        assert session.wait(timeout=5) == 255
    assert output(rig["h2"], *ssh(rig, "h1", "hostname")) == "h1"
    assert host.server is server
    for pid in host.processes():  # the command that the session ran has lost its terminal, not its life
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    assert wait_until(lambda: host.processes() == [])


@needs_rig
def test_the_disk_of_a_host_can_be_full(tmp_path: Path):
    with Rig(folder=tmp_path / "rig", hosts=2, private_size="8m") as rig:
        h1, h2 = rig.hosts
        h1.fill_disk()
        for host, code in ((h1, 1), (h2, 0)):
            done = host.run(["dd", "if=/dev/zero", f"of={rig.private}/data", "bs=1", "count=10"], capture_output=True)
            assert done.returncode == code
        h1.free_disk()
        assert h1.run(["cp", "/etc/hosts", rig.private / "data"]).returncode == 0
        assert h1.path(rig.private / "data").read_bytes() == (rig.folder / "etc_hosts").read_bytes()
        assert list(rig.private.iterdir()) == []


@needs_rig
@pytest.mark.skipif(clock_problem() is not None, reason=clock_problem() or "")
def test_the_wall_clock_of_a_host_can_be_set(tmp_path: Path):
    with Rig(folder=tmp_path / "rig", hosts=2, steppable_clocks=True) as rig:
        clocks = subprocess.Popen(
            ssh(rig, "h1", sys.executable, "-u", "-c", shlex.quote(CLOCKS)), stdout=subprocess.PIPE, text=True
        )
        with clocks:
            before = [float(value) for value in clocks.stdout.readline().split()]
            rig["h1"].step_clock(3600)
            forward = [float(value) for value in clocks.stdout.readline().split()]
            rig["h1"].step_clock(-3690)
            back = [float(value) for value in clocks.stdout.readline().split()]
            clocks.kill()
        assert abs(before[0] - time.time()) < 30
        assert forward[0] - before[0] == pytest.approx(3600, abs=30)
        assert back[0] - before[0] == pytest.approx(-90, abs=30)
        assert before[1] < forward[1] < back[1] < before[1] + 30  # the monotonic clock goes on
        assert abs(float(output(rig["h1"], "date", "+%s")) + 90 - time.time()) < 30
        assert abs(float(output(rig["h2"], "date", "+%s")) - time.time()) < 30


# Several rigs, and clean-up


@needs_rig
def test_two_rigs_are_independent(rig: Rig, tmp_path: Path):
    with Rig(folder=tmp_path / "second", hosts=1) as second:
        assert second["h1"].address not in {host.address for host in rig.hosts}
        assert second["h1"].link != rig["h1"].link
        assert output(second["h1"], "hostname") == "h1"
    assert output(rig["h1"], "hostname") == "h1"  # the end of the second did not change the first


@needs_rig
def test_nothing_is_left_after_an_error_in_the_block(tmp_path: Path):
    folder = tmp_path / "rig"

    def use_and_fail() -> None:
        with Rig(folder=folder, hosts=1, rate="1gbit", decoy=True) as rig:
            sleepers.append(rig["h1"].popen(["sleep", "600"]))
            links.append(rig["h1"].link)
            raise RuntimeError("the test fails")

    sleepers: list[subprocess.Popen[bytes]] = []
    links: list[str] = []
    with pytest.raises(RuntimeError, match="the test fails"):
        use_and_fail()
    assert sleepers[0].wait(timeout=5) == -signal.SIGKILL
    assert traces_of(os.getpid(), TRACE.fullmatch(links[0])["rig"]) == []
    assert mounts_naming(folder) == []


@needs_rig
def test_nothing_is_left_if_a_host_does_not_start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    before = traces_of(os.getpid())
    monkeypatch.setattr("rig.ssh.SERVER_CONFIG", "NoSuchSetting yes\n")
    with pytest.raises(UserError, match=r"does not answer.*NoSuchSetting"), Rig(folder=tmp_path / "rig", hosts=2):
        pass
    assert traces_of(os.getpid()) == before
    assert mounts_naming(tmp_path) == []


@needs_rig
@pytest.mark.parametrize(("ending", "code"), [("SIGTERM", 143), ("SIGINT", 0), ("SIGHUP", 129), ("end of input", 0)])
def test_the_command_removes_its_rig(ending: str, code: int):
    with held_rig() as (process, folder):
        assert traces_of(process.pid)
        assert mounts_naming(folder)
        if ending == "end of input":
            process.stdin.close()
        else:
            process.send_signal(signal.Signals[ending])
        assert process.wait(timeout=20) == code
        assert traces_of(process.pid) == []
        assert mounts_naming(folder) == []
        assert not folder.exists()


@needs_rig
def test_a_killed_rig_is_removed_by_the_next_one(tmp_path: Path):
    with held_rig() as (process, folder):
        process.kill()
        process.wait()
        assert traces_of(process.pid)
        with Rig(folder=tmp_path / "rig", hosts=1):
            assert traces_of(process.pid) == []
            assert mounts_naming(folder) == []


@needs_rig
def test_the_subnet_of_a_rig_is_not_free_for_another(rig: Rig):
    address = ipaddress.IPv4Address(rig["h1"].address)
    used = list(subnets_in_use())
    assert any(address in subnet for subnet in used if subnet.prefixlen > 0)
    assert address not in free_subnet(used)


def test_a_machine_without_a_free_subnet_is_an_error():
    with pytest.raises(UserError, match="No free subnet"):
        free_subnet([ipaddress.IPv4Network("0.0.0.0/0")])


@needs_rig
def test_a_folder_serves_one_rig_only(rig: Rig):
    with pytest.raises(UsageError, match="already used by a rig"):
        Rig(folder=rig.folder)


# Requirements


def test_without_root_the_command_says_so(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]):
    monkeypatch.setattr("os.geteuid", lambda: 1000)
    monkeypatch.setattr("sys.argv", ["rig"])
    assert main() == 1
    assert "needs root" in capsys.readouterr().err


def test_missing_programs_are_named(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("os.geteuid", lambda: 0)
    monkeypatch.setattr("rig.requirements.find_tool", lambda name: None if name in ("tc", "sshd") else f"/bin/{name}")
    assert "needs tc, sshd" in rig_problem()


def test_missing_privileges_are_named(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("os.geteuid", lambda: 0)
    monkeypatch.setattr("rig.requirements.find_tool", lambda name: "/bin/false")
    monkeypatch.setattr("rig.requirements.tool", lambda name: "/bin/false")
    assert "cannot make namespaces" in rig_problem()


# Used by the tests

ECHO = """
import socket, sys, threading
def serve(connection):
    while data := connection.recv(1 << 16):
        connection.sendall(data)
family = socket.AF_INET6 if ":" in sys.argv[1] else socket.AF_INET
server = socket.create_server((sys.argv[1], 0), family=family)
print(server.getsockname()[1], flush=True)
while True:
    threading.Thread(target=serve, args=server.accept()[:1], daemon=True).start()
"""

CLOCKS = """
import time
while True:
    print(time.time(), time.monotonic())
    time.sleep(0.3)
"""

COUNT = """
import socket, sys
server = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
server.bind((sys.argv[1], 0))
print(server.getsockname()[1], flush=True)
server.settimeout(1)
num_received = 0
try:
    while True:
        server.recv(100)
        num_received += 1
except TimeoutError:
    print(num_received)
"""

CONNECT = """
import socket, sys
try:
    socket.create_connection((sys.argv[1], int(sys.argv[2])), timeout=1)
    print("connected")
except OSError as error:
    print(type(error).__name__)
"""

SEND = """
import socket, sys
with socket.create_connection((sys.argv[1], int(sys.argv[2])), timeout=2) as connection:
    left = int(sys.argv[3])
    connection.sendall(bytes(left))
    try:
        while left:
            left -= len(connection.recv(1 << 16))
    except TimeoutError:
        pass
    print(left)
"""


@contextmanager
def serving(host: Host) -> Iterator[int]:
    """Runs a server on a host that returns what it is sent; returns its port."""
    with host.popen([sys.executable, "-c", ECHO, host.address], stdout=subprocess.PIPE, text=True) as echo:
        try:
            yield int(echo.stdout.readline())
        finally:
            echo.kill()


def connected(host: Host, port: int) -> socket.socket:
    return socket.create_connection((host.address, port), timeout=1)


def count_received(host: Host, num_packets: int) -> int:
    """Sends packets from here; returns how many arrive."""
    with host.popen([sys.executable, "-c", COUNT, host.address], stdout=subprocess.PIPE, text=True) as counter:
        port = int(counter.stdout.readline())
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sender:
            for _ in range(num_packets):
                sender.sendto(b"packet", (host.address, port))
        return int(counter.stdout.readline())


def tries_to_connect(sender: Host, receiver: Host, port: int) -> str:
    return output(sender, sys.executable, "-c", CONNECT, receiver.address, port)


def sends(sender: Host, receiver: Host, num_bytes: int) -> bool:
    """Whether data reaches another host and comes back."""
    with serving(receiver) as port:
        return output(sender, sys.executable, "-c", SEND, receiver.address, port, num_bytes) == "0"


def receive_exactly(connection: socket.socket, num_bytes: int) -> bytes:
    received = b""
    while len(received) < num_bytes and (chunk := connection.recv(num_bytes)):
        received += chunk
    return received


def exchange(connection: socket.socket, data: bytes) -> bytes:
    connection.sendall(data)
    return connection.recv(100)


def names_of(pids: list[int]) -> list[str]:
    names = []
    for pid in pids:
        with suppress(psutil.NoSuchProcess):
            names.append(psutil.Process(pid).name())
    return names


def wait_until(is_so: Callable[[], bool], seconds: float = 5) -> bool:
    deadline = time.monotonic() + seconds
    while not is_so() and time.monotonic() < deadline:
        time.sleep(0.02)
    return is_so()


@contextmanager
def held_rig() -> Iterator[tuple[subprocess.Popen[str], Path]]:
    """Runs `python -m rig`; returns its process and folder."""
    command = [sys.executable, "-m", "rig", "--hosts", "2", "--rate", "100mbit"]
    with subprocess.Popen(command, cwd=TESTS, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        usage = "".join(takewhile(lambda line: not line.startswith("Ctrl-C"), process.stdout))
        config = re.search(r"--hosts h1:2,h2:2 --ssh-config (\S+)", usage)
        assert config, "the rig did not come up"
        folder = Path(config[1]).parent
        try:
            yield process, folder
        finally:
            process.terminate()
            process.wait(timeout=20)
            shutil.rmtree(folder, ignore_errors=True)  # a killed one could not


def traces_of(owner: int, rig_name: str | None = None) -> list[str]:
    found = [trace for trace in traces() if int(trace["owner"]) == owner]
    return [trace.string for trace in found if rig_name in (None, trace["rig"])]


def mounts_naming(folder: Path) -> list[str]:
    """Returns mounts of any process that name the folder: a host's mounts exist as long as a process there."""
    lines = []
    for path in Path("/proc").glob("[0-9]*/mountinfo"):
        with suppress(OSError):
            lines += [line for line in path.read_text().splitlines() if str(folder) in line]
    return lines
