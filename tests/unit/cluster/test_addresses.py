"""Listening at an address, IPv4 or IPv6, at the first free port of a range; and the addresses this machine has."""

import errno
import socket
from contextlib import ExitStack

import pytest
from free_ports import free_port, free_range

from dragoman.cluster import addresses
from dragoman.cluster.addresses import (
    ALL_ADDRESSES,
    address_of,
    format_ports,
    interface_of,
    is_ipv6,
    is_loopback,
    listen,
    own_address_towards,
    own_addresses,
)
from dragoman.run.errors import UserError

FAR_AWAY = "192.0.2.1"  # for documentation only: no machine has it


def reaches(address: str, port: int) -> bool:
    try:
        with socket.create_connection((address, port), timeout=10):
            return True
    except OSError:
        return False


# Listening


@pytest.mark.parametrize("address", ["127.0.0.1", "::1"])
def test_it_listens_at_one_address_only(address):
    with listen(address, None) as listening:
        host, port, *_ = listening.getsockname()
        assert host == address
        assert reaches(address, port)
        assert not reaches("127.0.0.2", port)


def test_it_listens_at_every_address_of_both_kinds():
    with listen(ALL_ADDRESSES, None) as listening:
        port = listening.getsockname()[1]
        assert reaches("127.0.0.1", port)
        assert reaches("127.0.0.2", port)
        assert reaches("::1", port)


def test_without_ipv6_it_listens_at_every_ipv4_address(monkeypatch):
    monkeypatch.setattr(addresses.socket, "has_dualstack_ipv6", lambda: False)
    with listen(ALL_ADDRESSES, None) as listening:
        assert listening.family == socket.AF_INET
        assert reaches("127.0.0.2", listening.getsockname()[1])


@pytest.mark.parametrize("address", ["127.0.0.1", "::1", ALL_ADDRESSES])
def test_ports_of_the_range_that_are_taken_are_skipped(address):
    ports = free_range(4)
    with ExitStack() as stack:
        stack.enter_context(socket.create_server((address or "", ports[1]), family=_family(address)))
        opened = [stack.enter_context(listen(address, ports)).getsockname()[1] for _ in range(3)]
    assert opened == [ports[0], ports[2], ports[3]]


def _family(address: str) -> socket.AddressFamily:
    return socket.AF_INET6 if is_ipv6(address) else socket.AF_INET


def test_an_exhausted_range_is_named():
    ports = free_range(2)
    with listen("127.0.0.1", ports), listen("127.0.0.1", ports), pytest.raises(UserError) as raised:
        listen("127.0.0.1", ports)
    assert str(raised.value).startswith(f"All 2 ports of cluster.port between {ports[0]} and {ports[1]} that could be ")
    assert "give a larger range" in str(raised.value)


def test_a_port_that_only_root_may_use_is_skipped(monkeypatch):
    ports = free_range(2)
    create_server = socket.create_server

    def refuse_first(address: tuple[str, int], **options: object) -> socket.socket:
        if address[1] == ports[0]:
            raise PermissionError(errno.EACCES, "Permission denied")
        return create_server(address, **options)

    monkeypatch.setattr(addresses.socket, "create_server", refuse_first)
    with listen("127.0.0.1", ports) as listening:
        assert listening.getsockname()[1] == ports[1]


def test_an_address_of_another_machine_is_an_error():
    with pytest.raises(OSError, match="assign requested address"):
        listen(FAR_AWAY, free_range(2))


def test_a_port_can_be_used_again_at_once():
    """Workers listen where the check before them listened."""
    ports = range(port := free_port(), port + 1)
    for _ in range(3):
        with listen("127.0.0.1", ports) as listening:
            assert reaches("127.0.0.1", port)
            listening.accept()[0].close()


# Addresses of this machine


def test_an_interface_is_found_by_its_address():
    for name, address in own_addresses():
        assert interface_of(address) in {other for other, same in own_addresses() if same == address}, name
    assert interface_of(FAR_AWAY) is None


def test_an_address_is_found_by_its_interface():
    assert address_of("lo") == "127.0.0.1"
    assert address_of("no-such-interface") is None


class Entry:
    """One address of an interface, as psutil tells it."""

    def __init__(self, address: str) -> None:
        self.address = address
        self.family = _family(address)


class State:
    """Whether an interface is up, as psutil tells it."""

    def __init__(self, isup: bool) -> None:
        self.isup = isup


def test_ipv4_comes_before_ipv6_and_loopback_last(monkeypatch):
    found = {
        "lo": [Entry("127.0.0.1"), Entry("::1")],
        "eth0": [Entry("fd00::1"), Entry("10.0.0.1"), Entry("fe80::1%eth0")],
        "eth1": [Entry("10.0.1.1")],
        "down0": [Entry("10.0.2.1")],
    }
    monkeypatch.setattr(addresses.psutil, "net_if_addrs", lambda: found)
    monkeypatch.setattr(addresses.psutil, "net_if_stats", lambda: {name: State(name != "down0") for name in found})
    assert own_addresses() == [
        ("eth0", "10.0.0.1"),
        ("eth1", "10.0.1.1"),
        ("eth0", "fd00::1"),
        ("lo", "127.0.0.1"),
        ("lo", "::1"),
    ]
    assert address_of("eth0") == "10.0.0.1"
    assert interface_of("fd00::1") == "eth0"


def test_the_own_address_depends_on_where_packets_go():
    assert own_address_towards(["127.0.0.1"]) == "127.0.0.1"
    assert own_address_towards(["::1"]) == "::1"
    assert own_address_towards([]) is None


def test_an_address_without_a_route_is_skipped():
    broadcast = "255.255.255.255"  # not permitted for ordinary sockets
    assert own_address_towards([broadcast]) is None
    assert own_address_towards([broadcast, "127.0.0.1"]) == "127.0.0.1"


@pytest.mark.parametrize(
    ("address", "is_own", "is_six"),
    [
        ("127.0.0.1", True, False),
        ("127.9.9.9", True, False),
        ("::1", True, True),
        ("10.0.0.1", False, False),
        ("fd00::1", False, True),
    ],
)
def test_loopback_and_ipv6_are_known_by_the_address(address, is_own, is_six):
    assert (is_loopback(address), is_ipv6(address)) == (is_own, is_six)


def test_a_range_of_ports_is_written_with_its_last_port():
    assert format_ports(range(29500, 29564)) == "29500-29563"
    assert format_ports(range(29500, 29501)) == "29500-29500"
