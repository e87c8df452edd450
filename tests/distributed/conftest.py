"""Fixtures for tests on hosts of a rig."""

from collections.abc import Iterator

import pytest
from rig import Rig, rig_problem


@pytest.fixture(scope="module")
def rig(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Rig]:
    """Hosts h1 and h2, each with an interface that leads nowhere; tests leave links up and their rate unlimited."""
    if problem := rig_problem():
        pytest.skip(problem)
    with Rig(folder=tmp_path_factory.mktemp("rig"), hosts=2, decoy=True) as rig:
        yield rig
