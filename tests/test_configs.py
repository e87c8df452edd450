"""Every config file that is shipped can be loaded and names a model that exists."""

from pathlib import Path

import pytest

from dragoman.model.presets import resolve_shape
from dragoman.run.config import load_settings

ROOT = Path(__file__).parents[1]
CONFIGS = sorted((ROOT / "configs").rglob("*.toml"))


def test_there_are_configs():
    assert CONFIGS


@pytest.mark.parametrize("path", CONFIGS, ids=[str(path.relative_to(ROOT)) for path in CONFIGS])
def test_every_config_loads(path):
    settings = load_settings(path)
    resolve_shape(settings.model, source_vocab_size=100, target_vocab_size=100, shares_vocabulary=True)
