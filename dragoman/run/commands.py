"""Commands that are printed for a person to type: they work as they are, whatever the names of folders."""

import math
import os
import shlex
import shutil
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any


def own_command(program: str = "dragoman") -> str:
    """Returns the name of a program of this installation if it is on PATH, otherwise the path to call."""
    installed = Path(sys.executable).with_name(program)
    found = shutil.which(program)
    if not installed.exists() or (found is not None and Path(found).samefile(installed)):
        return program
    is_below = installed.is_relative_to(Path.cwd())
    return shlex.quote(os.path.relpath(installed) if is_below else str(installed))


def shell_path(path: Path) -> str:
    """Writes a path for a shell: quoted where needed, and never like an option."""
    text = str(path)
    return shlex.quote(f"./{text}" if text.startswith("-") else text)


def command_for(arguments: str, run: Path) -> str:
    """Returns a command about a run; its folder is the last argument."""
    return f"{own_command()} {arguments} {shell_path(run)}"


def resume_command(run: Path, training: Mapping[str, Any] | None = None, seconds: float = 0.0) -> str:
    """Returns the command that continues a run.

    Budgets in the settings of [training] that these seconds of training have used up are raised: otherwise the run
    would stop again at once.
    """
    return " ".join([command_for("train --resume --run-dir", run), *_raise_budgets(training or {}, seconds)])


def _raise_budgets(training: Mapping[str, Any], seconds: float) -> list[str]:
    hours = seconds / 3600
    used = {"max_hours": hours, "max_cost": hours * (training.get("price_per_hour") or 0.0)}
    limits = {name: training[name] for name in used if training.get(name) is not None}
    return [
        f"--set training.{name}={_round_up(max(2 * limit, 1.5 * used[name]))}"
        for name, limit in limits.items()
        if used[name] >= limit
    ]


def _round_up(value: float) -> str:
    """Rounds up to two digits: 2.04 is written 2.1."""
    unit = 10.0 ** (math.floor(math.log10(value)) - 1)
    return f"{math.ceil(value / unit - 1e-9) * unit:.6g}"
