"""Installs the pinned torch for `make setup`; asks first where pip would fetch gigabytes of GPU libraries for nothing.

The build of torch that package registries hold for Linux is usually the one for NVIDIA GPUs; the build for CPUs is on
an index of its own. Runs before anything is installed, so it needs only Python and pip.

    python install_torch.py [--index ADDRESS] [--gpu] [--check-python]
"""

import argparse
import json
import re
import subprocess
import sys
import tempfile
from pathlib import Path

OLDEST_PYTHON = (3, 11)
CONSTRAINTS = Path(__file__).with_name("constraints.txt")
NO_GPU = """\
pip would install the build of torch for NVIDIA GPUs, which downloads 2.7 GB; this machine has no such GPU.
Nothing was installed. Choose one:
  make setup TORCH_INDEX=ADDRESS   the build for CPUs: 0.2 GB. ADDRESS is what PyTorch's installation page shows
                                   after --index-url for the package Pip and the compute platform CPU.
  make setup TORCH=gpu             the build for GPUs all the same.
"""


def main():
    """Installs torch, or ends with a message."""
    options = _parse_options()
    if sys.version_info < OLDEST_PYTHON:
        oldest, this = (".".join(map(str, version[:2])) for version in (OLDEST_PYTHON, sys.version_info))
        sys.exit(f"dragoman needs Python {oldest} or newer; this is {this}. Name another: make setup PYTHON=python3.12")
    if options.check_python:
        return
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "install", "--quiet", _pinned_torch()]
    if options.index:
        pip += ["--extra-index-url", options.index]
    if not options.gpu and not has_gpu() and needs_gpu_libraries(pip):
        sys.exit(NO_GPU)
    sys.exit(subprocess.call([*pip, "--constraint", str(CONSTRAINTS)]))


def needs_gpu_libraries(pip):
    """Whether the build of torch that pip would choose requires NVIDIA's libraries on this machine."""
    with tempfile.NamedTemporaryFile(mode="r", suffix=".json") as report:
        dry_run = [*pip, "--dry-run", "--no-deps", "--ignore-installed", "--report", report.name]
        if subprocess.call(dry_run) != 0:
            return False  # the installation will fail too, and pip says why
        (torch,) = json.load(report)["install"]
    required = [each for each in torch["metadata"].get("requires_dist", ()) if "extra ==" not in each]
    return sys.platform == "linux" and any(re.match("nvidia-|cuda-", each) for each in required)


def has_gpu():
    """Whether the driver of an NVIDIA GPU is loaded here."""
    try:
        return subprocess.run(["nvidia-smi", "-L"], capture_output=True, check=False).stdout.startswith(b"GPU")
    except OSError:
        return False


def _pinned_torch():
    lines = CONSTRAINTS.read_text(encoding="utf-8").splitlines()
    return next(line for line in lines if line.startswith("torch=="))


def _parse_options():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--index", metavar="ADDRESS", help="a further package index, e.g. the one for CPU builds")
    parser.add_argument("--gpu", action="store_true", help="install GPU libraries also where no GPU is found")
    parser.add_argument("--check-python", action="store_true", help="only check that this Python is new enough")
    return parser.parse_args()


if __name__ == "__main__":
    main()
