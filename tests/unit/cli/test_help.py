"""Help of every command: plain words, one example per line, nothing cut, whatever the width of the terminal."""

import re
import shlex
from collections.abc import Iterator
from pathlib import Path

import pytest
import typer
from program import call_dragoman
from typer.core import TyperCommand, TyperGroup, TyperOption

from dragoman.cli.app import app

ROOT = Path(__file__).parents[3]
PYTHON_WORDS = re.compile(r"[<>]|\b(list|dict|tuple)\[|\b(int|float|str|bool|Path|None|True|False|x)\b|\.\.\.$|…$")


def all_commands(command: TyperCommand | TyperGroup, path: str = "") -> Iterator[tuple[str, TyperCommand | TyperGroup]]:
    yield path, command
    for name, each in getattr(command, "commands", {}).items():
        yield from all_commands(each, f"{path} {name}".strip())


COMMANDS = dict(all_commands(typer.main.get_command(app)))
LEAVES = {path: command for path, command in COMMANDS.items() if not isinstance(command, TyperGroup)}


def test_a_value_that_an_option_does_not_know_is_explained_without_words_of_python() -> None:
    done = call_dragoman("export", "run", "--out", "out", "--format", "onnx", code=2)
    choices = "'ctranslate2', 'huggingface', 'safetensors'"
    assert f"dragoman: --format onnx: 'onnx' is not one of {choices}. For help:" in done.stderr


def help_of(path: str, width: int, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    monkeypatch.setenv("COLUMNS", str(width))
    return call_dragoman(*path.split(), "--help").stdout.splitlines()


def examples_in(lines: list[str]) -> list[str]:
    """Returns the examples, those continued after a backslash as one line."""
    begin = next(number for number, line in enumerate(lines) if line.startswith("Example"))
    return re.sub(r" \\\n +", " ", "\n".join(line.removeprefix("  ") for line in lines[begin + 1 :])).splitlines()


@pytest.mark.parametrize("width", [60, 80, 200])
@pytest.mark.parametrize("path", COMMANDS)
def test_no_line_is_too_long_and_no_word_is_cut(path: str, width: int, monkeypatch: pytest.MonkeyPatch):
    lines = help_of(path, width, monkeypatch)
    assert max(map(len, lines)) <= min(width, 80)
    words = set(" ".join(lines).split())
    command = COMMANDS[path]
    texts = [command.help, *(each.help for each in command.params)]
    assert set(" ".join(filter(None, texts)).split()) <= words


@pytest.mark.parametrize("path", COMMANDS)
def test_help_names_no_python_types(path: str, monkeypatch: pytest.MonkeyPatch):
    lines = help_of(path, 80, monkeypatch)
    end = next((number for number, line in enumerate(lines) if line.startswith("Example")), len(lines))
    assert not [line for line in lines[1:end] if PYTHON_WORDS.search(line)]


@pytest.mark.parametrize("path", LEAVES)
def test_examples_stand_on_lines_of_their_own_and_use_options_that_exist(path: str, monkeypatch: pytest.MonkeyPatch):
    lines = help_of(path, 80, monkeypatch)
    examples = examples_in(lines)
    assert examples == (LEAVES[path].epilog or "").splitlines()
    known = {name for each in LEAVES[path].params for name in (*each.opts, *each.secondary_opts)}
    for example in examples:
        assert f"  {example}" in lines or len(example) > 76
        words = shlex.split(example)
        assert f"dragoman {path}" in example
        assert {word for word in words if word.startswith("--")} <= known


@pytest.mark.parametrize("path", [path for path in COMMANDS if path not in LEAVES])
def test_every_command_is_listed_with_a_summary_of_one_line(path: str, monkeypatch: pytest.MonkeyPatch):
    lines = help_of(path, 80, monkeypatch)
    for name, command in COMMANDS[path].commands.items():  # type: ignore[union-attr]
        (line,) = [line for line in lines if re.match(rf"  {name}  ", line)]
        summary = line.split(maxsplit=1)[1]
        assert summary.endswith(".")
        assert " ".join((command.help or "").split()).startswith(summary)


def test_every_option_with_a_value_says_what_stands_there(monkeypatch: pytest.MonkeyPatch):
    for path, command in LEAVES.items():
        text = "\n".join(help_of(path, 80, monkeypatch))
        for option in command.params:
            if isinstance(option, TyperOption) and not option.is_flag:
                assert re.search(rf"{max(option.opts, key=len)} [A-Z\[]\S+|{max(option.opts, key=len)} N\b", text)


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("train --workers x", "dragoman: --workers x: it must be a whole number. For help: dragoman train --help"),
        ("check a.toml --seconds 1", "--seconds 1: it must be at least 5"),
        ("check a.toml --price-per-hour much", "--price-per-hour much: it must be a number."),
        ("status", "dragoman: Missing argument 'RUN'. For help: dragoman status --help"),
        ("launch a.toml", "Missing option '--for'."),
        ("trian", "No such command 'trian'. Did you mean 'train'? For help: dragoman --help"),
        ("xyz", "No such command 'xyz'. For help: dragoman --help"),
        ("data gett", "No such command 'gett'. Did you mean 'get'? For help: dragoman data --help"),
        ("presets --jsn", "No such option: --jsn"),
    ],
)
def test_wrong_usage_is_one_line_without_python_types(line: str, message: str):
    done = call_dragoman(*line.split(), code=2)
    assert done.stdout == ""
    assert message in done.stderr
    assert done.stderr.count("\n") == 1
    assert not re.search("Input should|integer|valid", done.stderr)


@pytest.mark.parametrize("path", ["", "data"])
def test_a_group_without_a_command_shows_its_help(path: str):
    assert call_dragoman(*path.split(), code=2).stderr == call_dragoman(*path.split(), "--help").stdout


def commands_of_pages() -> list[str]:
    """Returns the commands in blocks of code of the README and of the documentation."""
    pages = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
    blocks = [block for page in pages for block in re.findall(r"```\n(.*?)```", page.read_text(), re.DOTALL)]
    lines = [line for block in blocks for line in block.splitlines()]
    return [match[1] for line in lines if (match := re.match(r"(?:\.venv/bin/|mpirun \S+ \S+ )?(dragoman .*)", line))]


@pytest.mark.parametrize("line", sorted(set(commands_of_pages())))
def test_commands_in_the_documentation_use_options_that_exist(line: str):
    words = re.split(r" [|>#] ?| {2,}", line)[0].split()[1:]
    path = next((path for path in (" ".join(words[:2]), words[0]) if path in LEAVES), None)
    assert path is not None, f"no such command: {line}"
    known = {name for each in LEAVES[path].params for name in (*each.opts, *each.secondary_opts)}
    assert {word.partition("=")[0] for word in words if word.startswith("--")} <= known
