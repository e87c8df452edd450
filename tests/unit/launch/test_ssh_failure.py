"""What to do when ssh fails: from the words of a real ssh where a server on loopback can cause them."""

import os
import shutil
import socket
import subprocess
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from dragoman.launch.ssh_failure import explain_ssh_failure

SSHD = shutil.which("sshd", path=f"{os.environ['PATH']}:/usr/sbin:/sbin")
needs_sshd = pytest.mark.skipif(SSHD is None or os.geteuid() != 0, reason="needs root and openssh-server")
SERVER = """\
ListenAddress 127.0.0.1:{port}
HostKey {folder}/host_key
PidFile none
AuthorizedKeysFile {folder}/identity.pub
PasswordAuthentication no
KbdInteractiveAuthentication no
UsePAM no
StrictModes no
"""
CLIENT = """\
Host server
    HostName 127.0.0.1
    Port {port}
Host *
    User root
    IdentitiesOnly yes
    IdentityFile {folder}/{identity}
    UserKnownHostsFile "{folder}/known hosts"
    GlobalKnownHostsFile /dev/null
{more}
"""


@dataclass(frozen=True)
class Server:
    """An ssh server on loopback, and clients that are set up well or badly."""

    folder: Path
    port: int

    def trust(self, key: str) -> None:
        """Writes the host key that clients expect."""
        public = " ".join((self.folder / f"{key}.pub").read_text(encoding="ascii").split()[:2])
        (self.folder / "known hosts").write_text(f"[127.0.0.1]:{self.port} {public}\n", encoding="ascii")

    def client(self, identity: str = "identity", more: str = "") -> Path:
        """Writes a client's config."""
        path = self.folder / "ssh config"
        text = CLIENT.format(port=self.port, folder=self.folder, identity=identity, more=more)
        path.write_text(text, encoding="ascii")
        return path

    def explain(self, config: Path, host: str = "server") -> str:
        """Connects as the launcher does, and explains the failure."""
        command = ["ssh", "-T", "-F", str(config), "-o", "BatchMode=yes", "-o", "ConnectTimeout=3", "--", host, "true"]
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
        assert done.returncode == 255, done
        return explain_ssh_failure(host, done.stderr, config)


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return int(listener.getsockname()[1])


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    folder = tmp_path_factory.mktemp("ssh")
    for key in ("host_key", "other_host_key", "identity", "stranger", *(f"key{number}" for number in range(8))):
        subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", folder / key], check=True)
    server = Server(folder, free_port())
    (folder / "sshd_config").write_text(SERVER.format(port=server.port, folder=folder), encoding="ascii")
    Path("/run/sshd").mkdir(mode=0o755, exist_ok=True)
    with subprocess.Popen([SSHD, "-D", "-e", "-f", folder / "sshd_config"], stderr=subprocess.DEVNULL) as process:
        try:
            end = time.monotonic() + 15
            while time.monotonic() < end:
                with socket.socket() as probe:
                    if probe.connect_ex(("127.0.0.1", server.port)) == 0:
                        break
                time.sleep(0.05)
            yield server
        finally:
            process.terminate()


@needs_sshd
def test_a_key_that_the_host_does_not_accept_is_copied(server):
    server.trust("host_key")
    config = server.client(identity="stranger")
    assert server.explain(config) == (
        "ssh failed: Permission denied (publickey). Copy your key to the host "
        f"(ssh-copy-id -F '{config}' server); a key with a passphrase must also be loaded here (ssh-add)."
    )


@needs_sshd
def test_a_key_that_others_may_read_is_protected(server):
    server.trust("host_key")
    key = server.folder / "identity"
    key.chmod(0o644)
    try:
        assert server.explain(server.client()) == (
            f"ssh failed: it ignores the key {key}, which others may read. Protect it (chmod 600 {key})."
        )
    finally:
        key.chmod(0o600)


@needs_sshd
@pytest.mark.parametrize(("more", "option"), [("", ""), ("    StrictHostKeyChecking yes", "StrictHostKeyChecking=ask")])
def test_a_host_key_that_is_not_known_is_looked_at_and_accepted(server, more, option):
    (server.folder / "known hosts").unlink(missing_ok=True)
    config = server.client(more=more)
    by_hand = f"ssh -F '{config}' {f'-o {option} ' if option else ''}server"
    assert server.explain(config) == (
        "ssh failed: its host key is not known here. Connect once by hand, compare the fingerprint with that of the "
        f"host and accept it ({by_hand})."
    )


@needs_sshd
def test_a_changed_host_key_is_forgotten_only_if_that_is_expected(server):
    server.trust("other_host_key")
    config = server.client()
    text = server.explain(config)
    assert "Only if you expect that" in text
    forget = f"ssh-keygen -f '{server.folder}/known hosts' -R '[127.0.0.1]:{server.port}'"
    assert f"forget the old key ({forget}) and accept the new one (ssh -F '{config}' server)." in text


@needs_sshd
def test_too_many_keys_are_narrowed_down(server):
    server.trust("host_key")
    more = "\n".join(f"    IdentityFile {server.folder}/key{number}" for number in range(8))
    config = server.client(identity="stranger", more=more)
    assert server.explain(config) == (
        "ssh failed: it offered too many keys that the host does not accept. Name the right one for this host in "
        f"{config} (IdentityFile ~/.ssh/KEY and IdentitiesOnly yes)."
    )


@needs_sshd
def test_a_server_that_does_not_run_is_started(server):
    port = free_port()
    config = server.client()
    config.write_text(config.read_text(encoding="ascii").replace(f"Port {server.port}", f"Port {port}"))
    assert server.explain(config) == (
        f"ssh failed: 127.0.0.1 refuses connections on port {port}. Start sshd there (systemctl start ssh), "
        "or set its port in the ssh config."
    )


@needs_sshd
@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ("Hostt x", "Bad configuration option: hostt"),
        ("Port many", "Bad port 'many'"),
        ('User "me', "invalid quotes"),
    ],
)
def test_a_wrong_line_of_the_config_is_named(server, line, reason):
    config = server.folder / "bad"
    config.write_text(f"Host *\n{line}\n", encoding="ascii")
    assert server.explain(config) == (
        f"ssh failed: the ssh config {config} has a mistake in line 2 ({reason}). Correct it."
    )


@needs_sshd
def test_a_name_without_address_is_checked(server):
    config = server.client()
    assert server.explain(config, "nowhere.invalid") == (
        "ssh failed: the name nowhere.invalid has no address. Check its spelling, or add it to "
        f"{config} (HostName) or /etc/hosts."
    )


@needs_sshd
def test_any_other_failure_is_shown_in_the_words_of_ssh(server):
    server.trust("host_key")
    config = server.client(more="    Ciphers aes128-cbc")
    text = server.explain(config)
    assert text.startswith(f"ssh failed: Unable to negotiate with 127.0.0.1 port {server.port}: no matching cipher")
    assert text.endswith(f"(ssh -F '{config}' -v server shows more).")


# Words that no server on loopback can cause, as OpenSSH 9.2 printed them


@pytest.mark.parametrize(
    ("output", "start"),
    [
        (
            "ssh: connect to host fd00::dead port 22: Connection timed out",
            "fd00::dead does not answer on port 22 (connection timed out). Check that it is up",
        ),
        ("ssh: connect to host a port 2222: No route to host", "a does not answer on port 2222 (no route to host)."),
        ("ssh: connect to host a port 22: Network is unreachable\r", "a does not answer on port 22 (network is"),
        (
            "Connection timed out during banner exchange\r\nConnection to 10.255.255.1 port 22 timed out",
            "10.255.255.1 does not answer on port 22 (timed out).",
        ),
        (
            "ssh: Could not resolve hostname jump: Name or service not known\r\n"
            "kex_exchange_identification: Connection closed by remote host\r\n"
            "Connection closed by UNKNOWN port 65535",
            "the name jump has no address.",
        ),
        ("me@a: Permission denied (publickey,password).", "Permission denied (publickey,password). Copy your key"),
        ("Timeout, server a not responding.", "Timeout, server a not responding (ssh -v me@a shows more)."),
        ("", "it gave no reason (ssh -v me@a shows more)."),
        (" \n\t\n", "it gave no reason"),
        ("\x1b[2JWelcome!\nConnection closed by a port 22\n\n", "Connection closed by a port 22 (ssh -v"),
        ("/etc/profile: line 3: oops: command not found", "/etc/profile: line 3: oops: command not found (ssh"),
    ],
)
def test_other_words_of_ssh(output, start):
    assert explain_ssh_failure("me@a", output, None).startswith(f"ssh failed: {start}")


def test_lines_that_were_joined_are_understood_too():
    joined = "Offending ED25519 key in /root/.ssh/known_hosts:7 Host key for a has changed and you have requested "
    text = explain_ssh_failure("me@a", joined + "strict checking. Host key verification failed.", None)
    assert "forget the old key (ssh-keygen -f /root/.ssh/known_hosts -R a) and accept the new one (ssh me@a)." in text


@pytest.mark.parametrize(
    ("host", "scan"),
    [("me@a", "ssh-keyscan -H a"), ("me@fd00::1", "ssh-keyscan -H fd00::1"), ("a", "ssh-keyscan -H a")],
)
def test_without_a_config_a_key_can_be_added_after_comparing_it(host, scan):
    text = explain_ssh_failure(host, "Host key verification failed.\r\n", None)
    assert text.endswith(f"accept it (ssh {host}), or add it after comparing ({scan} >> ~/.ssh/known_hosts).")


def test_a_host_without_a_changed_name_is_forgotten_by_its_own():
    text = explain_ssh_failure("me@a", "@    WARNING: REMOTE HOST IDENTIFICATION HAS CHANGED!     @", None)
    assert "(ssh-keygen -R a)" in text
