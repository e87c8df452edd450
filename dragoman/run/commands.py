"""Commands that are printed for a person to type: they work as they are, whatever the names of folders."""

import math
import os
import shlex
import shutil
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

_SOON = 1.25
_LEAST_HOURS = 0.1
"""What a continued run gets at least: starting its workers takes a part of the budget too."""


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


def resume_command(run: Path, used_up: Mapping[str, Any] | None = None, seconds: float = 0.0) -> str:
    """Returns the command that continues a run.

    Where a budget ended the run, `used_up` are its [training] settings and `seconds` is what it took: the command
    raises the budget, because otherwise the run would stop again at once.
    """
    return " ".join([command_for("train --resume --run-dir", run), *_raise_budgets(used_up or {}, seconds)])


def _raise_budgets(training: Mapping[str, Any], seconds: float) -> list[str]:
    """Doubles the budget that ends first, and any other that would end the continued run soon."""
    price = training.get("price_per_hour")
    prices = {"max_hours": 1.0} | ({"max_cost": price} if price else {})
    hours = {name: training[name] / price for name, price in prices.items() if training.get(name)}
    first = min(hours.values(), default=0.0)
    least = seconds / 3600 + _LEAST_HOURS
    wanted = max(2 * first, least)
    soon = [name for name in hours if hours[name] <= max(_SOON * first, least)]
    return [f"--set training.{name}={_round_up(wanted * prices[name])}" for name in soon]


def _round_up(value: float) -> str:
    """Rounds up to two digits: 2.04 is written 2.1."""
    unit = 10.0 ** (math.floor(math.log10(value)) - 1)
    return f"{math.ceil(value / unit - 1e-9) * unit:.6g}"
