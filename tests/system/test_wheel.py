"""The package as `pip install .` installs it: a wheel with all data files, which works far from the clone."""

import json
import os
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Builds a wheel from a copy of the project and unpacks it, as installing does."""
    folder = tmp_path_factory.mktemp("wheel")
    clone = folder / "clone"
    shutil.copytree(ROOT / "dragoman", clone / "dragoman", ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, clone)
    pip = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--wheel-dir", folder, clone]
    done = subprocess.run([str(word) for word in pip], capture_output=True, text=True, check=False)
    if "Could not find a version" in done.stderr:
        pytest.skip("pip cannot fetch setuptools here")
    assert done.returncode == 0, done.stderr
    with zipfile.ZipFile(next(folder.glob("dragoman-*.whl"))) as wheel:
        wheel.extractall(folder / "installed")
    return folder / "installed"


def run(installed: Path, *arguments: object) -> str:
    command = [sys.executable, "-P", "-m", "dragoman", *map(str, arguments)]
    options = {"cwd": installed.parent, "env": os.environ | {"PYTHONPATH": str(installed)}}
    return subprocess.run(command, capture_output=True, text=True, check=True, **options).stdout


def test_every_file_of_the_package_is_in_the_wheel(installed: Path):
    def files(folder: Path) -> set[str]:
        return {
            str(path.relative_to(folder))
            for path in folder.rglob("*")
            if path.is_file() and "__pycache__" not in path.parts and path.suffix != ".pyc"
        }

    assert files(ROOT / "dragoman") == files(installed / "dragoman")


def test_the_installed_package_reads_its_own_data_files(installed: Path):
    where = [sys.executable, "-P", "-c", "import dragoman; print(dragoman.__file__)"]
    options = {"cwd": installed.parent, "env": os.environ | {"PYTHONPATH": str(installed)}}
    place = subprocess.run(where, capture_output=True, text=True, check=True, **options).stdout
    assert place.startswith(str(installed))
    assert {"small", "transformer-base"} <= {row["name"] for row in json.loads(run(installed, "presets", "--json"))}
    assert json.loads(run(installed, "plan", "--device", "V100", "--link", "1000mbit", "--nodes", "2", "--json"))
    run(installed, "data", "builtin", "--out", "corpus")
    assert any((installed.parent / "corpus").iterdir())
