"""How this program is called from where the person stands, for commands they can copy."""

import os
import shutil
import sys
from pathlib import Path


def own_command() -> str:
    """`dragoman` where that is found, otherwise the way to the one that is running, e.g. `.venv/bin/dragoman`."""
    installed = Path(sys.executable).with_name("dragoman")
    found = shutil.which("dragoman")
    if not installed.exists() or (found is not None and Path(found).samefile(installed)):
        return "dragoman"
    is_below = installed.is_relative_to(Path.cwd())
    return os.path.relpath(installed) if is_below else str(installed)
