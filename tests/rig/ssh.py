"""Sets up ssh for the rig: its own keys, an sshd on each host, and a client configuration that trusts only these."""

import socket
import subprocess
import time
from collections.abc import Mapping
from pathlib import Path

from dragoman.run.errors import UserError
from rig.host import Host
from rig.processes import inside, start_inside
from rig.tools import run_tool, tool

PORT = 22
PATIENCE_SECONDS = 15
CONFIG_NAME = "sshd_config"
LOG_NAME = "sshd.log"
SEPARATION_FOLDER = Path("/run/sshd")  # sshd needs it; the system creates it only if it starts sshd itself

SERVER_CONFIG = """\
ListenAddress [{address}]:{port}
HostKey {folder}/host_key
PidFile {folder}/sshd.pid
AuthorizedKeysFile {authorized_keys}
AuthenticationMethods publickey
PasswordAuthentication no
KbdInteractiveAuthentication no
PermitRootLogin prohibit-password
UsePAM no
StrictModes no
UseDNS no
PrintMotd no
PrintLastLog no
# Many workers may connect at once; by default sshd drops some of them at random.
MaxStartups 100
MaxSessions 100
Subsystem sftp internal-sftp
"""

CLIENT_CONFIG_HOST = """\
Host {name} {address} [{address}]
    HostName {address}
"""

CLIENT_CONFIG_ALL = """\
Host *
    User root
    IdentityFile {identity}
    IdentitiesOnly yes
    BatchMode yes
    UserKnownHostsFile {known_hosts}
    GlobalKnownHostsFile /dev/null
    StrictHostKeyChecking yes
"""


def create_key(path: Path, comment: str) -> str:
    """Makes a key pair without a passphrase and returns the public key."""
    run_tool("ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", comment, "-f", path)
    return path.with_name(f"{path.name}.pub").read_text(encoding="ascii")


def write_client_config(path: Path, folder: Path, addresses: dict[str, str], host_keys: dict[str, str]) -> None:
    """Writes what `ssh -F` needs to reach the hosts by name, and only them."""
    known_hosts = folder / "known_hosts"
    known_hosts.write_text("".join(f"{name},{addresses[name]} {key}" for name, key in host_keys.items()))
    hosts = [CLIENT_CONFIG_HOST.format(name=name, address=address) for name, address in addresses.items()]
    path.write_text("".join(hosts) + CLIENT_CONFIG_ALL.format(identity=folder / "identity", known_hosts=known_hosts))


def write_server_config(folder: Path, address: str, authorized_keys: Path, variables: Mapping[str, str]) -> None:
    """Writes the settings of a host's sshd; its sessions get these environment variables."""
    text = SERVER_CONFIG.format(address=address, port=PORT, folder=folder, authorized_keys=authorized_keys)
    if variables:
        text += "SetEnv " + " ".join(f'"{name}={value}"' for name, value in variables.items()) + "\n"
    (folder / CONFIG_NAME).write_text(text)


def start_server(namespace: str, keeper_pid: int, folder: Path, address: str) -> "subprocess.Popen[bytes]":
    """Starts a host's sshd with the settings, the host key and the log in the host's folder; waits for its answer."""
    SEPARATION_FOLDER.mkdir(mode=0o755, exist_ok=True)
    argv = [tool("sshd"), "-D", "-e", "-f", str(folder / CONFIG_NAME)]
    with (folder / LOG_NAME).open("wb") as log:
        server = start_inside(
            namespace,
            inside(keeper_pid, argv, Path("/")),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=log,
            start_new_session=True,  # Ctrl-C is for the rig's owner, who takes the host down in order
        )
    try:
        wait_for_server(server, folder, address)
    except BaseException:
        server.kill()
        server.wait()
        raise
    return server


def wait_for_server(server: "subprocess.Popen[bytes]", folder: Path, address: str) -> None:
    """Waits until a host's sshd answers; if it does not, the error contains its last message."""
    deadline = time.monotonic() + PATIENCE_SECONDS
    while not answers(address):
        if server.poll() is not None or time.monotonic() > deadline:
            complaint = (folder / LOG_NAME).read_text(errors="replace").strip() or "it says nothing"
            raise UserError(f"The sshd of the rig at {address} does not answer: {complaint}")
        time.sleep(0.02)


def check_reach(host: Host, peer: Host) -> None:
    """Checks that one host reaches another: both may be reachable from here and not from each other."""
    scan = [tool("ssh-keyscan"), "-T", str(PATIENCE_SECONDS), "-t", "ed25519", peer.address]
    if not host.run(scan, capture_output=True, check=False).stdout:
        raise UserError(
            f"The rig's host {host.name} does not reach {peer.name}: a firewall on this machine may drop what bridges "
            "forward; allow it, or set net.bridge.bridge-nf-call-iptables=0 with sysctl."
        )


def answers(address: str) -> bool:
    """Whether an ssh server answers at the address."""
    try:
        with socket.create_connection((address, PORT), timeout=1) as connection:
            return connection.recv(4) == b"SSH-"
    except OSError:
        return False
