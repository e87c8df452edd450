"""Which interface a machine's traffic goes over: found from counters, with the chosen one where there are none."""

import pytest

from dragoman.cluster.rendezvous import INTERFACE_VARIABLES
from dragoman.monitoring.sampling.machine import InterfaceCounters
from dragoman.training.rehearsal import describe_own_interface

IDLE = InterfaceCounters(0, 0, 0, 0)
BUSY = InterfaceCounters(10**6, 10**6, 0, 0)


@pytest.fixture(autouse=True)
def nothing_chosen(monkeypatch: pytest.MonkeyPatch):
    for variable in INTERFACE_VARIABLES:
        monkeypatch.delenv(variable, raising=False)


def test_the_one_whose_counters_rose(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv(INTERFACE_VARIABLES[0], "eth7")
    found = describe_own_interface({"eth7": IDLE, "eth8": IDLE}, {"eth7": IDLE, "eth8": BUSY})
    assert found["interface"] == "eth8"


def test_the_chosen_one_where_counters_cannot_be_read(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv(INTERFACE_VARIABLES[0], "eth7")
    assert describe_own_interface({}, {}) == {
        "interface": "eth7",
        "kind": "unknown",
        "claimed_megabits_per_second": None,
    }


def test_a_tunnel_is_named_although_its_card_carries_more(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv(INTERFACE_VARIABLES[0], "tun3")
    found = describe_own_interface({"eth7": IDLE, "tun3": IDLE}, {"eth7": BUSY, "tun3": IDLE})
    assert (found["interface"], found["kind"]) == ("tun3", "vpn")


def test_loopback_is_recognised():
    assert describe_own_interface({"lo": IDLE}, {"lo": BUSY})["kind"] == "loopback"
