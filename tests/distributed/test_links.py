"""A step sends over each host's link the bytes computed for it, and a slow link adds the time computed for it."""

from pathlib import Path

import pytest
from host_runs import ONE_EACH, TWO_EACH
from link_measurement import LinkRun, measure_links, write_link_config
from rig import Rig

pytestmark = [pytest.mark.slow, pytest.mark.serial]

SLOW = "100mbit"


@pytest.fixture(scope="module", params=[ONE_EACH, TWO_EACH])
def link_run(
    request: pytest.FixtureRequest, rig: Rig, prepared: Path, tmp_path_factory: pytest.TempPathFactory
) -> LinkRun:
    folder = tmp_path_factory.mktemp("links")
    config = write_link_config(folder / "config.toml", prepared)
    return measure_links(rig, request.param, config, folder / "run", {None: 20, SLOW: 10})


def test_a_step_sends_what_a_ring_over_packed_ranks_sends(link_run: LinkRun):
    """Headers, votes and records are the rest: less than 1 % when this was written.

    When the counters are read, a slow link may still hold its queue of 256 kB: half a percent of ten steps.
    """
    assert 2e6 < link_run.gradient_bytes < 8e6
    for window in link_run.windows:
        shares = {host: sent / link_run.ring_bytes for host, sent in window.bytes_sent_per_step.items()}
        assert all(0.99 < share < 1.05 for share in shares.values()), shares


def test_a_slow_link_adds_the_seconds_that_follow_from_its_rate(link_run: LinkRun):
    on_the_link = link_run.ring_seconds(SLOW)
    assert link_run.window(SLOW).seconds_per_step > on_the_link
    # Other processes use this machine too: its fastest steps are those that were not disturbed.
    added = min(link_run.window(SLOW).step_seconds) - min(link_run.window(None).step_seconds)
    assert added == pytest.approx(on_the_link, rel=0.3)
