"""Tables of TOML files: typed and frozen, read with errors that name the setting, and written."""

import json
import re
import tomllib
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, get_args, get_origin

from pydantic import BaseModel, ConfigDict, Field, ValidationError
from pydantic.fields import FieldInfo

from dragoman.run.errors import MAX_SUGGESTIONS, UsageError, describe_os_error, name_choices, similar_names
from dragoman.run.input_files import is_read_once, open_input

if TYPE_CHECKING:
    from pydantic_core import ErrorDetails

# Strict: `true` is not 1, and "5" is not 5.
Fraction = Annotated[float, Field(ge=0, lt=1, strict=True)]
Count = Annotated[int, Field(ge=1, le=10**12, strict=True)]
CountOrZero = Annotated[int, Field(ge=0, le=2**63 - 1, strict=True)]
Positive = Annotated[float, Field(gt=0, allow_inf_nan=False, strict=True)]
NotNegative = Annotated[float, Field(ge=0, allow_inf_nan=False, strict=True)]
Switch = Annotated[bool, Field(strict=True)]


_REQUIREMENTS = {
    "int_type": "it must be a whole number",
    "int_parsing": "it must be a whole number",
    "int_from_float": "it must be a whole number",
    "int_parsing_size": "it must be a smaller number",
    "float_type": "it must be a number",
    "float_parsing": "it must be a number",
    "finite_number": "it must be a finite number",
    "bool_type": "it must be true or false",
    "bool_parsing": "it must be true or false",
    "string_type": "it must be text",
    "path_type": "it must be the path of a file or folder",
    "tuple_type": "it must be a list, written [a, b]",
    "list_type": "it must be a list, written [a, b]",
    "model_type": "it must be a table of keys and values",
    "dict_type": "it must be a table of keys and values",
    "too_short": "it needs at least {min_length} items",
    "too_long": "it can have at most {max_length} items",
    "literal_error": "it must be {expected}",
    "greater_than": "it must be more than {gt}",
    "greater_than_equal": "it must be at least {ge:,}",
    "less_than": "it must be less than {lt}",
    "less_than_equal": "it must be at most {le:,}",
}
"""What a value must be, by pydantic's name of the mistake; its own words are those of Python (tuple, dictionary)."""
_MAX_SHOWN = 80
"""Longest value, in characters, that an error shows whole."""
_MAX_PIPE_BYTES = 2**20
"""Longest config that is read from a pipe, which may have no end."""


class SettingsTable(BaseModel):
    """A table of a TOML file: typed, frozen, without unknown keys."""

    model_config = ConfigDict(extra="forbid", frozen=True, use_attribute_docstrings=True, defer_build=True)


def read_toml(path: Path) -> dict[str, Any]:
    """Reads a config file; a missing or malformed one is a UsageError."""
    try:
        return tomllib.loads(_read_config(path).decode())
    except FileNotFoundError:
        raise UsageError(f"There is no config file {path}.") from None
    except OSError as error:
        raise UsageError(f"The config file {path} cannot be read: {describe_os_error(error)}.") from None
    except UnicodeDecodeError as error:
        raise UsageError(f"The config file {path} cannot be read: byte {error.start + 1} is not UTF-8.") from None
    except tomllib.TOMLDecodeError as error:
        raise UsageError(f"{path} is not valid TOML: {error}.") from None
    except RecursionError:
        raise UsageError(f"{path} is not a config file: its values are nested too deeply.") from None


def _read_config(path: Path) -> bytes:
    if not is_read_once(path):
        return path.read_bytes()
    with open_input(path) as pipe:  # refuses devices
        content = pipe.read(_MAX_PIPE_BYTES + 1)
    if len(content) > _MAX_PIPE_BYTES:
        raise UsageError(f"{path} is not a config file: it is longer than {_MAX_PIPE_BYTES // 2**20} MiB.")
    return content


def parse_value(text: str) -> Any:
    """Parses a TOML value; text that is none is returned as it is, so that words need no quotes."""
    try:
        return tomllib.loads(f"value = {text}")["value"]
    except (tomllib.TOMLDecodeError, RecursionError):
        return text


def unknown_key(key: str, known: Sequence[str]) -> str:
    """Says that a key is unknown and names similar known keys, or all keys of its table if none is similar."""
    plain = re.sub(r"\.\d+(?=\.)", "", key)  # items of a list are numbered
    if near := _similar_keys(plain, known):
        return f"unknown key {key!r}; did you mean {name_choices(near)}?"
    table = plain.rpartition(".")[0]
    siblings = [_last_part(each) for each in known if each.rpartition(".")[0] == table]
    others = siblings or sorted({each.partition(".")[0] for each in known})
    return f"unknown key {key!r}. Known keys{f' of {table}' if siblings and table else ''}: {', '.join(others)}."


def _similar_keys(key: str, known: Sequence[str]) -> list[str]:
    """Returns keys with a similar last part, those of the same table if there are any; or the key that has no parts."""
    table = key.rpartition(".")[0]
    names = similar_names(_last_part(key), dict.fromkeys(map(_last_part, known)))
    near = sorted((each for each in known if _last_part(each) in names), key=lambda each: names.index(_last_part(each)))
    if not near and table in known and not any(each.startswith(f"{table}.") for each in known):
        return [table]
    return ([each for each in near if each.rpartition(".")[0] == table] or near)[:MAX_SUGGESTIONS]


def _last_part(key: str) -> str:
    return key.rpartition(".")[2]


def first_problem(error: ValidationError, model: type[BaseModel], prefix: str = "") -> str:
    """Describes the first wrong setting in one message that names it."""
    problem = error.errors()[0]
    key, field = _locate(problem["loc"], model)
    key = ".".join(part for part in (prefix, key) if part)
    match problem["type"]:
        case "extra_forbidden":
            known = [".".join(part for part in (prefix, candidate) if part) for candidate in known_keys(model)]
            return unknown_key(key, known)
        case "missing":
            return f"the setting {key} is missing."
        case "value_error":
            message = f"{problem['ctx']['error']}."
            return message if key in message else f"{key}: {message}"
        case kind if field and field.description and (len(error.errors()) > 1 or kind == "string_pattern_mismatch"):
            # Several types were tried, or only a regular expression could be quoted: the meaning helps more.
            return f"{key} cannot be {_show_value(problem['input'])}. What it means: {field.description}"
        case _:
            return f"{key} = {_show_value(problem['input'])}: {describe_problem(problem)}."


def describe_problem(problem: "ErrorDetails") -> str:
    """Says what a value must be, in words of TOML and not of Python."""
    template = _REQUIREMENTS.get(problem["type"])
    if template:
        return template.format(**problem.get("ctx", {}))
    return re.sub("^Input should", "it must", problem["msg"].removeprefix("Value error, "))


def _show_value(value: Any) -> str:
    """Writes a value as in a TOML file, shortened if it is long; text in the single quotes of all messages."""
    try:
        text = repr(value) if isinstance(value, str) else _value(value)
    except TypeError:  # dates, which TOML has and settings do not
        text = str(value)
    return text if len(text) <= _MAX_SHOWN else f"{text[:_MAX_SHOWN]} …"


def known_keys(model: type[BaseModel]) -> list[str]:
    """Lists every key of a model and of the tables inside it, joined by dots."""
    keys = []
    for name, field in model.model_fields.items():
        table = _table_in(field.annotation)
        keys += [name] + [f"{name}.{key}" for key in (known_keys(table) if table else [])]
    return keys


def _locate(location: tuple[int | str, ...], model: type[BaseModel]) -> tuple[str, FieldInfo | None]:
    """The dotted key of a location in a validation error, without the names of types that pydantic adds."""
    parts: list[str] = []
    field: FieldInfo | None = None
    table: type[BaseModel] | None = model
    for part in location:
        if isinstance(part, int):
            parts.append(str(part + 1))  # an item of a list, counted from 1
        elif table is None:
            if field is not None and get_origin(field.annotation) is dict:
                parts.append(part)
            break
        else:
            parts.append(str(part))
            field = table.model_fields.get(str(part))
            table = _table_in(field.annotation) if field else None
    return ".".join(parts), field


def _table_in(annotation: Any) -> type[BaseModel] | None:
    """Finds the model inside an annotation such as Model, Model | None or tuple[Model, ...]."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation
    return next((table for part in get_args(annotation) if (table := _table_in(part))), None)


def dump_toml(tables: dict[str, dict[str, Any]]) -> str:
    """Writes tables as TOML; None values are left out, since TOML has no null."""
    blocks = []
    for name, table in tables.items():
        lines = [f"{key} = {_value(value)}" for key, value in table.items() if value is not None]
        blocks.append("\n".join([f"[{name}]", *lines]))
    return "\n\n".join(blocks) + "\n"


def _value(value: Any) -> str:
    match value:
        case bool():
            return "true" if value else "false"
        case int() | float():
            return repr(value)
        case str():
            # TOML has the same escapes as JSON; only DEL must be escaped in addition.
            return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
        case list() | tuple():
            return "[" + ", ".join(_value(item) for item in value) + "]"
        case dict():
            # Quoted, because keys may hold any character.
            return "{" + ", ".join(f"{_value(str(key))} = {_value(item)}" for key, item in value.items()) + "}"
        case _:
            raise TypeError(f"cannot write {type(value).__name__} as TOML")
