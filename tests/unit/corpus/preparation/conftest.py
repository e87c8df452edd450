"""Fixtures for tests of the stages of a preparation."""

import pytest


@pytest.fixture
def small_shards(monkeypatch: pytest.MonkeyPatch) -> None:
    """Makes blocks of about ten pairs and shards of about thirty, so that little text makes many of both."""
    monkeypatch.setattr("dragoman.corpus.formats.blocks.BLOCK_BYTES", 500)
    monkeypatch.setattr("dragoman.corpus.preparation.shuffle_stage.SHARD_TEXT_BYTES", 1500)
