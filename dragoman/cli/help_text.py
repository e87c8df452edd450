"""How commands explain themselves: plain words instead of Python types, one example per line, no word cut.

Typer's own help names types such as list[Path], joins examples to a paragraph and shortens summaries.
"""

import re
import shutil
import textwrap
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import typer
from typer.core import TyperArgument, TyperCommand, TyperGroup, TyperOption

_MAX_WIDTH, _MIN_WIDTH = 80, 40
_MAX_NAME_WIDTH = 26
"""A longer name of an option has a line of its own."""
_PLACEHOLDERS: dict[Any, str] = {int: "N", float: "NUMBER", Path: "PATH", str: "NAME"}


class PlainCommand(TyperCommand):
    """A command whose help is written by this module."""

    def get_help(self, ctx: Any) -> str:
        """Returns what --help prints."""
        return _help_text(self, ctx)


class PlainGroup(TyperGroup):
    """A group of commands whose help is written by this module."""

    def get_help(self, ctx: Any) -> str:
        """Returns what --help prints."""
        return _help_text(self, ctx)


def add_command(app: typer.Typer, function: Callable[..., None], *examples: str, name: str | None = None) -> None:
    """Adds a command with examples of its use; its name is that of the function unless given."""
    app.command(name, cls=PlainCommand, epilog="\n".join(examples))(function)


def describe_wrong_usage(error: typer.TyperException) -> str:
    """Says what is wrong with a command line, in words without Python types."""
    message = error.format_message()
    if message.startswith("Usage:"):  # a group of commands without a command: typer raises its help
        return message
    # A value that pydantic refused for typer; only then pydantic is imported.
    cause: Any = error.__cause__
    if isinstance(error, typer.BadParameter) and hasattr(cause, "errors"):
        from dragoman.run.tables import describe_problem

        problem = cause.errors()[0]
        message = f"{_longest_name(error.param)} {problem['input']}: {describe_problem(problem)}"
    context = getattr(error, "ctx", None)
    hint = f" For help: {context.command_path} --help" if context else ""
    return f"dragoman: {message.rstrip('.')}.{hint}".replace("?.", "?")


def _help_text(command: TyperCommand | TyperGroup, context: Any) -> str:
    width = max(_MIN_WIDTH, min(_MAX_WIDTH, shutil.get_terminal_size().columns))
    parameters = command.get_params(context)
    arguments = [each for each in parameters if isinstance(each, TyperArgument)]
    options = [each for each in parameters if not isinstance(each, TyperArgument)]
    blocks = [
        _wrap(f"Usage: {context.command_path} {_usage(command, arguments)}", width, " " * 7),
        *(_wrap(f"  {' '.join(each.split())}", width, "  ") for each in (command.help or "").split("\n\n")),
        _table("Arguments", [(_longest_name(each), _explain(each)) for each in arguments], width),
        _table("Options", [(_option_names(each), _explain(each)) for each in options], width),
        _table("Commands", _summaries(command), width),
        _examples((command.epilog or "").splitlines(), width),
    ]
    return "\n\n".join(filter(None, blocks))


def _wrap(text: str, width: int, indent: str) -> str:
    # A hyphen is no place to break: --price-per-hour is one word.
    return textwrap.fill(text, width, subsequent_indent=indent, break_on_hyphens=False, break_long_words=False)


def _usage(command: TyperCommand | TyperGroup, arguments: Iterable[TyperArgument]) -> str:
    names = [_longest_name(each) + ("..." if each.nargs != 1 else "") for each in arguments]
    optional = [name if each.required else f"[{name}]" for name, each in zip(names, arguments, strict=True)]
    return " ".join(["[OPTIONS]", *optional, *(["COMMAND"] if isinstance(command, TyperGroup) else [])])


def _table(title: str, rows: Sequence[tuple[str, str]], width: int) -> str:
    """Writes names and explanations in two columns."""
    if not rows:
        return ""
    name_width = min(_MAX_NAME_WIDTH, max(len(name) for name, _ in rows))
    indent = " " * (name_width + 4)
    lines = [f"{title}:"]
    for name, text in rows:
        begin = f"  {name:<{name_width}}  " if len(name) <= name_width else f"  {name}\n{indent}"
        wrapped = _wrap(text, width - len(indent), "").replace("\n", f"\n{indent}")
        lines.append(f"{begin}{wrapped}")
    return "\n".join(lines)


def _longest_name(parameter: Any) -> str:
    """Returns the name of an argument, or the long name of an option."""
    return max(parameter.opts, key=len) if isinstance(parameter, TyperOption) else parameter.display_name_raw


def _option_names(option: Any) -> str:
    names = ", ".join(sorted(option.opts, key=len)) + "".join(f" / {name}" for name in option.secondary_opts)
    return names if option.is_flag else f"{names} {option.metavar or _placeholder(option)}"


def _placeholder(option: TyperOption) -> str:
    """Stands for a value in help, by its kind."""
    return _PLACEHOLDERS.get(option.type_descriptor.annotation, "VALUE")


def _explain(parameter: Any) -> str:
    """Returns the help of a parameter, with its default and its limits."""
    notes = [parameter.help or ""]
    default = parameter.show_default if isinstance(parameter.show_default, str) else parameter.default
    if default is not None and not isinstance(default, bool):
        notes.append(f"Default: {f'{default:g}' if isinstance(default, float) else default}.")
    if parameter.max is not None:
        notes.append(f"From {parameter.min:g} to {parameter.max:g}.")
    if parameter.required and isinstance(parameter, TyperOption):
        notes.append("Required.")
    return " ".join(notes)


def _summaries(command: TyperCommand | TyperGroup) -> list[tuple[str, str]]:
    """Lists the commands of a group with the first sentence of their help."""
    commands = command.commands if isinstance(command, TyperGroup) else {}
    return [(name, _first_sentence(each.help or "")) for name, each in commands.items()]


def _first_sentence(text: str) -> str:
    return re.split(r"(?<=[.!?])\s", " ".join(text.split()), maxsplit=1)[0]


def _examples(lines: Sequence[str], width: int) -> str:
    """Writes one example per line; one that is too long continues after a backslash, as in a shell."""
    if not lines:
        return ""
    # A no-break space keeps an option and its value on one line.
    whole = [re.sub(r"( --?[a-z-]+) (?=[^- ])", "\\1\N{NO-BREAK SPACE}", line) for line in lines]
    wrapped = [_wrap(line, width - 4, "    ").replace("\n", " \\\n  ") for line in whole]
    return "\n".join([f"Example{'s' if len(lines) > 1 else ''}:", *(f"  {text}" for text in wrapped)]).replace(
        "\N{NO-BREAK SPACE}", " "
    )
