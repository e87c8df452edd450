"""Writes docs/configuration.md from the settings themselves: `python docs/write_configuration.py`."""

from pathlib import Path
from typing import Any

from pydantic.fields import FieldInfo

from dragoman.corpus.settings import CorpusSettings, FilterSettings, PrepareSettings, TokenizerSettings
from dragoman.run.config import Settings
from dragoman.run.tables import SettingsTable

PAGE = Path(__file__).with_name("configuration.md")
HEAD = """# Settings of a run

Defaults ← TOML file ← `--set section.key=value`. An unknown key is an error that names the nearest known one.
`config.toml` in the run folder has every setting spelled out. Model sizes that are not set come from the preset.
This page is written from `dragoman/run/config.py` and `dragoman/corpus/settings.py` by `docs/write_configuration.py`.
"""
PREPARE_HEAD = """# Settings of a preparation

`[prepare]` may be in the same file; `dragoman prepare FILE.toml` reads it. [corpora.md](corpora.md) explains it.
"""


def describe_settings() -> str:
    """Returns the page: one table per section."""
    sections = [_describe_section(name, field.annotation) for name, field in Settings.model_fields.items()]
    tables = {"prepare": PrepareSettings, "[prepare.corpora]": CorpusSettings}
    tables |= {"prepare.filters": FilterSettings, "prepare.tokenizer": TokenizerSettings}
    return "\n".join([HEAD, *sections, PREPARE_HEAD, *(_describe_section(*table) for table in tables.items())])


def _describe_section(name: str, section: Any) -> str:
    rows = [
        f"| `{key}` | {_default(field)} | {' '.join((field.description or '').split())} |"
        for key, field in section.model_fields.items()
    ]
    return "\n".join([f"## `[{name}]`", "", "| key | default | meaning |", "|---|---|---|", *rows, ""])


def _default(field: FieldInfo) -> str:
    if field.is_required():
        return "required"
    match field.default:
        case None:
            return "–"
        case "":
            return '`""`'
        case bool():
            return f"`{str(field.default).lower()}`"
        case tuple():
            return f"`{list(field.default)}`"
        case SettingsTable():
            return "as below"
        case _:
            return f"`{field.default}`"


if __name__ == "__main__":
    PAGE.write_text(describe_settings(), encoding="utf-8")
