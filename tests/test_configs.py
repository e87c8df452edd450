"""Every config file that is shipped can be loaded and names a model that exists; the page on settings is current."""

import runpy
from pathlib import Path

import pytest

from dragoman.model.shape import resolve_shape
from dragoman.run.config import load_settings

ROOT = Path(__file__).parents[1]
CONFIGS = [*sorted((ROOT / "configs").glob("*.toml")), ROOT / "dragoman" / "cli" / "demo.toml"]


def test_the_page_on_settings_is_written_from_the_settings():
    script = runpy.run_path(str(ROOT / "docs" / "write_configuration.py"))
    assert (ROOT / "docs" / "configuration.md").read_text(encoding="utf-8") == script["describe_settings"]()


@pytest.mark.parametrize("path", CONFIGS, ids=[str(path.relative_to(ROOT)) for path in CONFIGS])
def test_every_config_loads(path):
    shape = resolve_shape(load_settings(path).model, 100, 100, shares_vocabulary=True)
    assert shape.target_vocab_size == 100
