"""The files for Docker: linted and compared with the package, because images are not built here."""

import re
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).parents[3]
DOCKER = ROOT / "docker"


def run_quietly(name: str, *arguments: object) -> None:
    program = Path(sys.executable).with_name(name)
    done = subprocess.run([program, *map(str, arguments)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def test_the_dockerfile_passes_its_linter():
    run_quietly("hadolint", "--no-color", DOCKER / "serve.Dockerfile")


def test_the_compose_file_fits_its_schema():
    run_quietly("check-jsonschema", "--builtin-schema", "vendor.compose-spec", DOCKER / "compose.yaml")


def test_the_container_runs_as_a_plain_user_with_a_key_from_a_secret():
    dockerfile = (DOCKER / "serve.Dockerfile").read_text(encoding="utf-8")
    assert re.search(r"^USER \d+$", dockerfile, re.MULTILINE)
    assert "HEALTHCHECK" in dockerfile
    assert "torch" not in re.sub("#.*", "", dockerfile)
    service = yaml.safe_load((DOCKER / "compose.yaml").read_text(encoding="utf-8"))["services"]["translate"]
    assert "/run/secrets/api-key" in service["command"]
    assert service["read_only"] is True
    assert "environment" not in service


def test_the_dockerfile_copies_files_that_exist():
    dockerfile = (DOCKER / "serve.Dockerfile").read_text(encoding="utf-8")
    copied = [name for line in re.findall(r"^COPY (.*) \S+$", dockerfile, re.MULTILINE) for name in line.split()]
    assert all((ROOT / name).exists() for name in copied)


@pytest.fixture(scope="module")
def needed() -> set[str]:
    """The installed packages that a server imports before its first request."""
    program = """
import sys
from importlib.metadata import packages_distributions
import dragoman.cli
from dragoman.cli import serve
from dragoman.serving import loading, server
from dragoman.translation import exported_model
import ctranslate2
names = packages_distributions()
tops = {name.partition(".")[0] for name in sys.modules}
print(*sorted({each.lower().replace("_", "-") for top in tops for each in names.get(top, ())} - {'dragoman'}))
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, cwd=ROOT)
    return set(done.stdout.split())


def test_the_image_has_all_packages_that_a_server_imports(needed):
    lines = (DOCKER / "serve-requirements.txt").read_text(encoding="utf-8").splitlines()
    listed = {line for line in lines if line and not line.startswith("#")}
    declared = set(
        re.findall(r'^    "([a-z0-9-]+)', (ROOT / "pyproject.toml").read_text(encoding="utf-8"), re.MULTILINE)
    )
    serve = {"ctranslate2", "fastapi", "prometheus-client", "uvicorn"}
    assert needed & (declared | serve) <= listed
    assert "torch" not in needed
    pinned = (ROOT / "constraints.txt").read_text(encoding="utf-8").lower().replace("_", "-")
    assert [name for name in listed if f"\n{name}==" not in pinned] == []
