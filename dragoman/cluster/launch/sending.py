"""Copying the prepared corpus to a host that lacks it, over ssh; it appears there whole or not at all."""

import shlex
import shutil
import subprocess
from pathlib import Path

from dragoman.cluster.launch.connection import Connection, ssh_command
from dragoman.run.errors import UserError


def send_folder(connection: Connection, folder: Path, ssh_config: Path | None) -> None:
    """Makes `folder` appear on the host at the same path: with rsync, which continues a cut copy, else with scp."""
    name, folder = connection.host.name, folder.absolute()
    aside = folder.with_name(f".{folder.name}.partial")
    connection.ask({"do": "make_folder", "path": str(aside)}, "made")
    if shutil.which("rsync"):
        shell = shlex.join(ssh_command(ssh_config))
        # --protect-args: no shell on the other side reads the path.
        command = [
            "rsync",
            "--archive",
            "--partial",
            "--protect-args",
            "-e",
            shell,
            "--",
            f"{folder}/",
            f"{name}:{aside}/",
        ]
    else:
        config = ["-F", str(ssh_config)] if ssh_config else []
        files = [str(path) for path in sorted(folder.iterdir())]
        command = ["scp", "-q", "-r", "-p", *config, "-o", "BatchMode=yes", "--", *files, f"{name}:{aside}/"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        reason = (done.stderr.strip().splitlines() or [f"{command[0]} ended with code {done.returncode}"])[-1]
        raise UserError(f"The data could not be copied to {name}: {reason}")
    connection.ask({"do": "adopt", "path": str(aside), "as": str(folder)}, "adopted")
