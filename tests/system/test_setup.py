"""Setting up: which Pythons are refused, and no gigabytes of GPU libraries on a machine without GPU."""

import os
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SCRIPT = ROOT / "install_torch.py"
sys.path.insert(0, str(ROOT))
import install_torch  # noqa: E402

COMPILE_ALL = """
import pathlib, sys, warnings
warnings.simplefilter("error")
for path in pathlib.Path(sys.argv[1]).rglob("*.py"):
    compile(path.read_bytes(), str(path), "exec")
"""


def interpreter(version: str) -> str:
    """Finds another Python on this machine; the test is skipped where there is none."""
    places = [*Path.home().glob(f".pyenv/versions/{version}*/bin/python"), shutil.which(f"python{version}")]
    found = next((str(place) for place in places if place), None)
    return found or pytest.skip(f"there is no Python {version} on this machine")


def run(*words: object) -> subprocess.CompletedProcess[str]:
    return subprocess.run([str(word) for word in words], capture_output=True, text=True, check=False, cwd=ROOT)


@pytest.mark.parametrize("version", ["3.12", "3.13"])
def test_newer_pythons_understand_the_code(version: str):
    done = run(interpreter(version), "-c", COMPILE_ALL, ROOT / "dragoman")
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize("version", ["3.8", "3.9", "3.10"])
def test_older_pythons_are_refused_in_a_sentence(version: str):
    done = run(interpreter(version), SCRIPT)
    assert done.returncode == 1
    assert done.stderr.startswith(f"dragoman needs Python 3.11 or newer; this is {version}. ")
    assert done.stderr.count("\n") == 1


def write_wheel(folder: Path, version: str, requires: str) -> None:
    """Writes a package `torch` without content."""
    info = f"torch-{version}.dist-info"
    with zipfile.ZipFile(folder / f"torch-{version}-py3-none-any.whl", "w") as wheel:
        wheel.writestr(f"{info}/METADATA", f"Metadata-Version: 2.1\nName: torch\nVersion: {version}\n{requires}")
        wheel.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        wheel.writestr(f"{info}/RECORD", "")


@pytest.mark.skipif(sys.platform != "linux", reason="GPU libraries come with the builds for Linux only")
def test_the_build_that_pip_would_choose_decides(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)  # no other places to look for packages
    monkeypatch.delenv("PIP_FIND_LINKS", raising=False)
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--no-index", "--find-links", str(tmp_path)]
    pip.append("torch==2.13.0")
    write_wheel(tmp_path, "2.13.0", 'Requires-Dist: nvidia-cudnn-cu13==9.20; platform_system == "Linux"\n')
    assert install_torch.needs_gpu_libraries(pip)
    # The build for CPUs is a later version in pip's order, whatever index it comes from.
    write_wheel(tmp_path, "2.13.0+cpu", "Requires-Dist: sympy\nRequires-Dist: cuda-python; extra == 'gpu'\n")
    assert not install_torch.needs_gpu_libraries(pip)


def test_what_pip_cannot_find_is_left_to_pip(tmp_path: Path):
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--no-index", "--find-links", str(tmp_path), "torch==99"]
    assert not install_torch.needs_gpu_libraries(pip)


@pytest.mark.slow
@pytest.mark.parametrize("version", ["3.12", "3.13"])
def test_no_gpu_libraries_come_without_being_asked_for(version: str):
    if install_torch.has_gpu():
        pytest.skip("this machine has a GPU")
    python = interpreter(version)
    if not install_torch.needs_gpu_libraries([python, "-m", "pip", "install", "--quiet", "torch==2.13.0"]):
        pytest.skip("no package index can be reached, or it has the build for CPUs")
    done = run(python, SCRIPT)
    assert done.returncode == 1
    assert "which downloads 2.7 GB; this machine has no such GPU" in done.stderr
    assert "make setup TORCH_INDEX=ADDRESS" in done.stderr
    assert run(python, "-c", "import torch").returncode == 1


@pytest.mark.parametrize(
    ("variables", "expected"),
    [((), "install_torch.py  \n"), (("TORCH_INDEX=x://y", "TORCH=gpu"), "install_torch.py --index 'x://y' --gpu\n")],
)
def test_make_passes_the_choice_on(variables: tuple[str, ...], expected: str):
    done = run("make", "--dry-run", "--always-make", "setup", *variables)
    assert done.returncode == 0
    assert f".venv/bin/python {expected}" in done.stdout


def test_the_script_and_the_project_name_the_same_versions():
    project = (ROOT / "pyproject.toml").read_text()
    assert f'requires-python = ">={".".join(map(str, install_torch.OLDEST_PYTHON))}"' in project
    assert f'"{install_torch._pinned_torch()}"' in project


def test_the_readme_says_the_same():
    readme = (ROOT / "README.md").read_text()
    for words in ("2.7 GB", "0.2 GB", "make setup TORCH_INDEX=ADDRESS"):
        assert words in readme
        assert words in install_torch.NO_GPU
    assert f"pip install {install_torch._pinned_torch()} --extra-index-url ADDRESS" in readme
