"""The architecture holds: imports point one way, start-up stays light, pages and names are in order."""

import ast
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "dragoman"
DOCS = ROOT / "docs"
FOLDERS = sorted(path.parent for path in PACKAGE.glob("*/__init__.py"))


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
        "dragoman.training.choose_settings",
        "dragoman.launch.launcher",
        "dragoman.report.compose",
        "dragoman.cli",
    ],
)
def test_what_must_start_quickly_does_not_import_torch(module):
    program = f"import sys, {module}; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", program], check=False, cwd=ROOT).returncode == 0


def test_translation_does_not_need_the_cluster():
    program = (
        "import sys, dragoman.translation.translator; "
        "sys.exit(any(name.startswith('dragoman.cluster') for name in sys.modules))"
    )
    assert subprocess.run([sys.executable, "-c", program], check=False, cwd=ROOT).returncode == 0


def test_only_the_cluster_talks_to_torch_distributed():
    """Apart from the agent, which starts workers, and the rehearsal, which measures without sending gradients."""
    importers = {
        str(path.relative_to(PACKAGE))
        for path in PACKAGE.rglob("*.py")
        if re.search(r"^\s*(import|from) torch\.distributed", path.read_text(encoding="utf-8"), re.MULTILINE)
    }
    others = {name for name in importers if not name.startswith("cluster/")}
    assert others <= {"launch/agent.py", "training/rehearsal.py"}


def table_cells(text: str) -> set[str]:
    """Names in backticks inside the tables of a page."""
    rows = [line for line in text.splitlines() if line.startswith("|")]
    return {name for row in rows for name in re.findall(r"`([^`]+)`", row)}


@pytest.mark.parametrize("page", ["README.md", "docs/architecture.md"])
def test_every_folder_has_a_row(page):
    cells = table_cells((ROOT / page).read_text(encoding="utf-8"))
    assert {f"{folder.name}/" for folder in FOLDERS} <= cells


@pytest.mark.parametrize("page", ["README.md", "CONTRIBUTING.md", *sorted(f"docs/{p.name}" for p in DOCS.glob("*.md"))])
def test_every_module_that_a_page_names_exists(page):
    text = (ROOT / page).read_text(encoding="utf-8")
    names = {name for name in re.findall(r"`([\w/]+/[\w]+\.(?:py|toml|j2))`", text) if not name.startswith("runs/")}
    assert [
        name
        for name in sorted(names)
        if not ((ROOT / name).exists() or (PACKAGE / name.removeprefix("dragoman/")).exists())
    ] == []


def test_class_names_are_unique():
    """Two classes of one name make a reader guess; private ones may repeat."""
    found: dict[str, list[str]] = {}
    for path in PACKAGE.rglob("*.py"):
        for name in re.findall(r"^class ([A-Z]\w*)", path.read_text(encoding="utf-8"), re.MULTILINE):
            found.setdefault(name, []).append(str(path.relative_to(PACKAGE)))
    assert {name: places for name, places in found.items() if len(places) > 1} == {}


def test_docstrings_begin_plainly():
    """A docstring is a sentence with a verb, or names the thing; it does not begin with a preposition."""
    odd = []
    for path in sorted(PACKAGE.rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.FunctionDef | ast.ClassDef | ast.Module):
                text = ast.get_docstring(node) or ""
                if re.match(r"(Of|On|As|By|In|At|To) ", text):
                    odd.append(f"{path.relative_to(PACKAGE)}: {text[:60]}")
    assert odd == []


def test_longer_unit_tests_can_be_found_by_their_text():
    """tests/conftest.py reads no other files of tests/unit where only longer tests run."""
    texts = {path: path.read_text(encoding="utf-8") for path in (ROOT / "tests" / "unit").rglob("test_*.py")}
    assert [path for path, text in texts.items() if re.search(r"(?<!pytest\.)mark\.slow|import mark\b", text)] == []


def test_files_of_tests_have_names_of_their_own():
    """The folders of tests are no packages: pytest cannot tell two files of one name apart."""
    names = [path.name for path in (ROOT / "tests").rglob("test_*.py")]
    assert sorted(name for name in set(names) if names.count(name) > 1) == []
