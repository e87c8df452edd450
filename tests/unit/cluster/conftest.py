"""Processes for tests of several ranks."""

import multiprocessing
from multiprocessing.context import ForkServerContext

import pytest


@pytest.fixture(scope="session")
def processes() -> ForkServerContext:
    """Starts processes that have already imported torch; it is imported once for all of them."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["dragoman.cluster.probe"])
    return context
