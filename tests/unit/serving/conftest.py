"""What tests of serving share: tiny exports and clients of the application."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from starlette.testclient import TestClient
from tiny_exports import write_tiny_export

from dragoman.serving.app import build_app
from dragoman.serving.loading import load_models
from dragoman.serving.served_models import ServedModels
from dragoman.serving.settings import ServeSettings


@pytest.fixture(scope="session")
def export(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """From English to German; tests must not change it."""
    return write_tiny_export(tmp_path_factory.mktemp("exports") / "en-de")


@pytest.fixture(scope="session")
def models(export: Path, tmp_path_factory: pytest.TempPathFactory) -> ServedModels:
    """English to German, and back by another model."""
    back = write_tiny_export(tmp_path_factory.mktemp("exports") / "de-en", ("de", "en"), seed=1)
    return load_models([export, back], lambda folder: folder, None, None, 1, lambda _: None)


@pytest.fixture
def start(models: ServedModels) -> Iterator[Callable[..., TestClient]]:
    """Starts applications with other settings; they end with the test."""
    with ExitStack() as stack:

        def start_app(served: ServedModels = models, address: str = "http://127.0.0.1:5000", **settings) -> TestClient:
            app = build_app(served, ServeSettings(**settings))
            return stack.enter_context(TestClient(app, address, raise_server_exceptions=False))

        yield start_app


@pytest.fixture(scope="session")
def client(models: ServedModels) -> Iterator[TestClient]:
    """A server of both pairs, on this machine and without a key."""
    app = build_app(models, ServeSettings())
    with TestClient(app, "http://127.0.0.1:5000", raise_server_exceptions=False) as session:
        yield session
