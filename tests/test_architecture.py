"""The plan of the house holds: imports point one way, start-up stays light, README's map names every room."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "dragoman"
FOLDERS = sorted(path.parent for path in PACKAGE.rglob("__init__.py") if path.parent != PACKAGE)
MODULES = sorted(
    path for pattern in ("*.py", "*/*.py") for path in PACKAGE.glob(pattern) if not path.name.startswith("__")
)


def relative(path: Path) -> str:
    return str(path.relative_to(PACKAGE))


def test_imports_point_one_way():
    linter = Path(sys.executable).with_name("lint-imports")
    result = subprocess.run([linter, "--no-cache"], cwd=ROOT, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stdout + result.stderr


@pytest.mark.parametrize(
    "module",
    [
        "dragoman.run.config",
        "dragoman.model.shape",
        "dragoman.corpus.prepared_corpus",
        "dragoman.training.own_text_settings",
        "dragoman.cli",
    ],
)
def test_what_must_start_quickly_does_not_import_torch(module):
    program = f"import sys, {module}; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", program], check=False, cwd=ROOT).returncode == 0


def file_map() -> str:
    """The block of README.md that lists files: the one that names cli.py."""
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    blocks = [block for block in re.findall(r"```.*?\n(.*?)```", text, re.DOTALL) if "cli.py" in block]
    assert blocks, "README.md has no block that maps the files of dragoman/"
    return blocks[0]


def is_named(name: str, text: str) -> bool:
    """Whether the map has the name as a word of its own, with or without .py."""
    return re.search(rf"(?<![\w/]){re.escape(name)}(?:\.py)?(?![\w/])", text) is not None


def test_every_folder_is_on_readmes_map():
    text = file_map()
    assert [relative(folder) for folder in FOLDERS if not re.search(rf"\b{folder.name}/", text)] == []


def test_every_module_is_on_readmes_map():
    """What lies deeper than one folder is covered by its folder's line."""
    text = file_map()
    assert [relative(module) for module in MODULES if not is_named(module.stem, text)] == []
