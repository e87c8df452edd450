"""Tables of TOML files: typed and frozen, read with errors that name the setting, and written."""

import json
import tomllib
from collections.abc import Sequence
from difflib import get_close_matches
from pathlib import Path
from typing import Annotated, Any, get_args, get_origin

from pydantic import BaseModel, ConfigDict, Field, ValidationError
from pydantic.fields import FieldInfo

from dragoman.run.errors import UsageError

# Strict: `true` is not 1, and "5" is not 5.
Fraction = Annotated[float, Field(ge=0, lt=1, strict=True)]
Count = Annotated[int, Field(ge=1, le=10**12, strict=True)]
CountOrZero = Annotated[int, Field(ge=0, le=2**63 - 1, strict=True)]
Positive = Annotated[float, Field(gt=0, allow_inf_nan=False, strict=True)]
NotNegative = Annotated[float, Field(ge=0, allow_inf_nan=False, strict=True)]
Switch = Annotated[bool, Field(strict=True)]


class SettingsTable(BaseModel):
    """A table of a TOML file: typed, frozen, without unknown keys."""

    model_config = ConfigDict(extra="forbid", frozen=True, use_attribute_docstrings=True)


def read_toml(path: Path) -> dict[str, Any]:
    """Reads a config file; a missing or malformed one is a UsageError."""
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise UsageError(f"There is no config file {path}.") from None
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"The config file {path} cannot be read: {error}.") from None
    except tomllib.TOMLDecodeError as error:
        raise UsageError(f"{path} is not valid TOML: {error}.") from None


def parse_value(text: str) -> Any:
    """Parses a TOML value; text that is none is returned as it is, so that words need no quotes."""
    try:
        return tomllib.loads(f"value = {text}")["value"]
    except tomllib.TOMLDecodeError:
        return text


def unknown_key(key: str, known: Sequence[str]) -> str:
    """Says that a key is unknown and names the most similar known key."""
    name = key.rpartition(".")[2]
    same_name = [candidate for candidate in known if candidate.rpartition(".")[2] == name]
    nearest = same_name or get_close_matches(key, known, n=1, cutoff=0.0)
    return f"unknown key {key!r}; did you mean {nearest[0]!r}?"


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
            return f"{key} cannot be {problem['input']!r}. What it means: {field.description}"
        case _:
            return f"{key} = {problem['input']!r}: {problem['msg'][0].lower()}{problem['msg'][1:]}."


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
