"""`dragoman selftest --hosts` on two hosts without a shared folder."""

import json

import pytest
from host_runs import hosts_options
from program import run_dragoman
from rig import Rig

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]


def test_losses_and_links_of_hosts_are_tested(rig: Rig):
    folder = rig.private / "selftest"
    options = hosts_options(rig, "h1:1,h2:1")
    done = run_dragoman("selftest", "--device", "cpu", "--out", folder, *options, "--json", timeout=550)
    stages = json.loads(done.stdout)["stages"]
    assert stages["workers"]["state"] == "passed"
    assert "on h1:1,h2:1" in stages["workers"]["why"]
    links = stages["collectives"]["figures"]["links"]
    assert len({link["from"] for link in links}) == 2
