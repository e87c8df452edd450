"""Writing TOML: tables of values, which is all that settings are (the standard library only reads it)."""

import json
from typing import Any


def dump_toml(tables: dict[str, dict[str, Any]]) -> str:
    """One `[table]` after the other; None values are left out, since TOML has no word for them."""
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
            # JSON's escapes are TOML's, but for DEL, which TOML wants escaped too.
            return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
        case list() | tuple():
            return "[" + ", ".join(_value(item) for item in value) + "]"
        case dict():
            # Keys are quoted, because they may be anything.
            return "{" + ", ".join(f"{_value(str(key))} = {_value(item)}" for key, item in value.items()) + "}"
        case _:
            raise TypeError(f"cannot write {type(value).__name__} as TOML")
