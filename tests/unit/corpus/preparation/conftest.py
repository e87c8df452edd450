"""Fixtures for tests of the stages of a preparation."""

import pytest


@pytest.fixture
def small_shards(monkeypatch: pytest.MonkeyPatch) -> None:
    """Makes blocks of about ten pairs and shards of about thirty, so that little text makes many of both."""
    monkeypatch.setattr("dragoman.corpus.formats.blocks.BLOCK_BYTES", 500)
    monkeypatch.setattr("dragoman.corpus.preparation.shuffle_stage.SHARD_TEXT_BYTES", 1500)


@pytest.fixture(autouse=True)
def _no_fsync(monkeypatch: pytest.MonkeyPatch) -> None:
    """Does not force files to disk, which takes 40 % of the time of a small preparation."""
    monkeypatch.setattr("os.fsync", lambda _: None)
