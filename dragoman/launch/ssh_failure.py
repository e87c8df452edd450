"""Explains why ssh could not connect to a host, and what to type then. OpenSSH's own words decide which case it is."""

import re
import shlex
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class _Target:
    """The host as ssh takes it, and the config file that ssh was given."""

    name: str
    ssh_config: Path | None

    @property
    def host(self) -> str:
        """The host without the name of a user."""
        return self.name.rpartition("@")[2]

    def command(self, program: str, *options: str) -> str:
        """Returns a command about the host, with the same config file."""
        config = ["-F", str(self.ssh_config)] if self.ssh_config else []
        return shlex.join([program, *config, *options, self.name])


def explain_ssh_failure(host: str, output: str, ssh_config: Path | None) -> str:
    """Returns what went wrong and what to do, from what ssh printed; its last line where the case is not known."""
    # Terminals obey control characters, which a server may send.
    printable = ("".join(filter(str.isprintable, line)).strip() for line in output.splitlines())
    lines = [line for line in printable if line] or ["it gave no reason"]
    target = _Target(host, ssh_config)
    for pattern, explain in _CASES:
        if match := re.search(pattern, "\n".join(lines)):
            return f"ssh failed: {explain(match, target)}"
    return f"ssh failed: {lines[-1].rstrip('.')} ({target.command('ssh', '-v')} shows more)."


def _explain_changed_key(match: re.Match[str], target: _Target) -> str:
    file = re.search(r'Offending .*? key in (.+?):\d+|ssh-keygen -f "(.+?)"', match.string)
    name = re.search(r"Host key for (\S+) has changed", match.string)
    options = ["-f", file[1] or file[2]] if file else []
    forget = shlex.join(["ssh-keygen", *options, "-R", name[1] if name else target.host])
    return (
        "its host key has changed, so another machine may be answering. Only if you expect that, for example after a "
        f"new installation, forget the old key ({forget}) and accept the new one ({target.command('ssh')})."
    )


def _explain_unknown_key(match: re.Match[str], target: _Target) -> str:
    is_strict = "strict checking" in match.string
    by_hand = target.command("ssh", *(["-o", "StrictHostKeyChecking=ask"] if is_strict else []))
    scan = f"{shlex.join(['ssh-keyscan', '-H', target.host])} >> ~/.ssh/known_hosts"
    # A config file may give the host another address and its key another place.
    or_scan = "" if target.ssh_config else f", or add it after comparing ({scan})"
    return (
        "its host key is not known here. Connect once by hand, compare the fingerprint with that of the host and "
        f"accept it ({by_hand}){or_scan}."
    )


def _explain_denied(match: re.Match[str], target: _Target) -> str:
    if key := re.search(r'Load key "(.+?)": bad permissions', match.string):
        return (
            f"it ignores the key {key[1]}, which others may read. Protect it ({shlex.join(['chmod', '600', key[1]])})."
        )
    return (
        f"{match[0]}. Copy your key to the host ({target.command('ssh-copy-id')}); "
        "a key with a passphrase must also be loaded here (ssh-add)."
    )


def _explain_many_keys(_match: re.Match[str], target: _Target) -> str:
    return (
        "it offered too many keys that the host does not accept. Name the right one for this host in "
        f"{target.ssh_config or '~/.ssh/config'} (IdentityFile ~/.ssh/KEY and IdentitiesOnly yes)."
    )


def _explain_unknown_name(match: re.Match[str], target: _Target) -> str:
    return (
        f"the name {match[1]} has no address. Check its spelling, or add it to "
        f"{target.ssh_config or '~/.ssh/config'} (HostName) or /etc/hosts."
    )


def _explain_refused(match: re.Match[str], _target: _Target) -> str:
    return (
        f"{match[1]} refuses connections on port {match[2]}. Start sshd there (systemctl start ssh), "
        "or set its port in the ssh config."
    )


def _explain_silence(match: re.Match[str], _target: _Target) -> str:
    return (
        f"{match[1]} does not answer on port {match[2]} ({match[3].lower()}). Check that it is up and in reach of this "
        "machine, and that no firewall on it or on the way blocks the port."
    )


def _explain_bad_config(match: re.Match[str], _target: _Target) -> str:
    return f"the ssh config {match[1]} has a mistake in line {match[2]} ({match[3]}). Correct it."


_CASES: tuple[tuple[str, Callable[[re.Match[str], _Target], str]], ...] = (
    (r"IDENTIFICATION HAS CHANGED|Host key for \S+ has changed", _explain_changed_key),
    (r"Host key verification failed|No \S+ host key is known", _explain_unknown_key),
    (r"Too many authentication failures", _explain_many_keys),
    (r"Permission denied \([a-z,-]+\)", _explain_denied),
    (r"Could not resolve hostname (\S+?):", _explain_unknown_name),
    (r"connect to host (\S+) port (\d+): Connection refused", _explain_refused),
    (
        r"connect to host (\S+) port (\d+): (Connection timed out|No route to host|Network is unreachable)",
        _explain_silence,
    ),
    (r"Connection to (\S+) port (\d+) (timed out)", _explain_silence),
    (r"(.+?):? line (\d+): (.+?)\.?\s+.*?: terminating, \d+ bad configuration", _explain_bad_config),
)
"""OpenSSH's words for each case, more precise ones first, and who explains it."""
