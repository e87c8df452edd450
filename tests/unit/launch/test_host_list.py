"""The host list: lists that people write are parsed; names that ssh or a shell could misread are refused."""

import re
import socket

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from dragoman.launch.hosts import Host, Placement, parse_hosts
from dragoman.run.errors import UsageError

SAFE = re.compile(r"[A-Za-z0-9._@:\[\]-]+")


@pytest.mark.parametrize(
    ("text", "hosts"),
    [
        ("a", [Host("a")]),
        ("a:2", [Host("a", 2)]),
        ("a:2,b:3", [Host("a", 2), Host("b", 3)]),
        (" a:2 , b ", [Host("a", 2), Host("b")]),
        ("user@b:2", [Host("user@b", 2)]),
        ("_svc.train-1@gpu-07.rack_2.example.org", [Host("_svc.train-1@gpu-07.rack_2.example.org")]),
        ("10.0.0.1:4", [Host("10.0.0.1", 4)]),
        ("[fd00::1]:2,user@[fd00::2]:2", [Host("[fd00::1]", 2), Host("user@[fd00::2]", 2)]),
        ("[FD00::a:1]", [Host("[FD00::a:1]")]),
        ("me@[2001:db8::10.0.0.1]", [Host("me@[2001:db8::10.0.0.1]")]),
    ],
)
def test_host_lists_are_parsed(text, hosts):
    assert parse_hosts(text) == tuple(hosts)


@pytest.mark.parametrize(
    "text",
    [
        "-oProxyCommand=x",
        "-oProxyCommand=touch /tmp/x:2",
        "me@-oProxyCommand=x",
        "-l",
        "a b",
        "a\tb",
        "a\nb",
        "a'b",
        'a"b',
        "a;reboot",
        "a&",
        "a|b",
        "$(reboot)",
        "`reboot`",
        "a/../b",
        "a\\b",
        "a\0b",
        "a*",
        "~",
        "#a",
        "münchen",
        "",
        ",",
        "a,",
        "a,,b",
        " ",
        ":2",
        "@a",
        "a@b@c",
        "a:",
        "a:x",
        "a:0",
        "a:-1",
        "a:+1",
        "a:1.5",
        "a:2:3",
        "a:" + "9" * 5_000,
        "fd00::1",
        "[fd00::1",
        "[fd00::1]2",
        "[fd00::1]:0",
        "[fd00::1%eth0]",
        "[fd00::1::2]",
        "[1]",
        "[10.0.0.1]",
        "[::]",
        "[ff02::1]",
        "[fe80::1]",
        "[]",
        "[a;b]",
        "[fe80::1%eth0;x]",
    ],
)
def test_other_texts_are_refused(text):
    with pytest.raises(UsageError, match="--hosts"):
        parse_hosts(text)


@pytest.mark.parametrize("text", ["a,a", "a:1,b,a:2", "a,b,b,a", "me@a,me@a"])
def test_a_host_named_twice_is_refused(text):
    with pytest.raises(UsageError, match=r"names (me@)?a twice"):
        parse_hosts(text)


def test_the_error_quotes_the_wrong_name_and_gives_an_example():
    with pytest.raises(UsageError, match=r"'b;c' is not a host name .* --hosts a:2,user@b:2"):
        parse_hosts("a,b;c")


@pytest.mark.parametrize(
    ("text", "advice"),
    [
        ("fd00::1:2", "write an IPv6 address in brackets, [fd00::1:2], or [fd00::1]:2 for 2 workers on fd00::1."),
        ("a:2,me@fd00::1", "write an IPv6 address in brackets, me@[fd00::1]."),
        ("2001:db8:0:0:0:0:0:1", "write an IPv6 address in brackets, [2001:db8:0:0:0:0:0:1]."),
        ("::1", "write an IPv6 address in brackets, [::1]."),
        ("[fe80::1]:2", "a link-local address, which has a meaning on one network card only: use the name of the host"),
        ("[ff02::1]", "is not the address of one host"),
        ("[fd00::1::2]", "is not an IPv6 address; for example --hosts [fd00::1]:2"),
    ],
)
def test_how_to_write_an_ipv6_address_is_said(text, advice):
    with pytest.raises(UsageError, match=re.escape(advice)):
        parse_hosts(text)


@pytest.mark.parametrize(
    ("name", "ssh_name"),
    [("a", "a"), ("me@b", "me@b"), ("[fd00::1]", "fd00::1"), ("me@[fd00::2]", "me@fd00::2"), ("10.0.0.1", "10.0.0.1")],
)
def test_ssh_takes_ipv6_addresses_without_brackets_and_copies_with_them(name, ssh_name):
    (host,) = parse_hosts(f"{name}:2")
    assert (host.name, host.ssh_name, host.copy_name, host.text) == (name, ssh_name, name, f"{name}:2")
    assert parse_hosts(name)[0].text == name


@given(st.one_of(st.text(), st.text("ab1-_.@:[],; \n$'\\", max_size=12)))
@example("a:٣")  # digits of other scripts are digits
@example("a\n")
def test_any_text_is_parsed_into_safe_names_or_refused(text):
    try:
        hosts = parse_hosts(text)
    except UsageError:
        return
    assert hosts
    for host in hosts:
        assert SAFE.fullmatch(host.name)
        assert not host.name.startswith("-")
        assert "@-" not in host.name
        assert host.num_workers is None or host.num_workers >= 1
    assert len({host.name for host in hosts}) == len(hosts)


@given(st.lists(st.tuples(st.from_regex(r"[a-z][a-z0-9.-]{0,8}", fullmatch=True), st.integers(1, 99)), min_size=1))
def test_a_list_that_is_written_is_parsed_back(pairs):
    named = dict(pairs)
    text = ",".join(f"{name}:{num_workers}" for name, num_workers in named.items())
    assert parse_hosts(text) == tuple(Host(name, num_workers) for name, num_workers in named.items())


def test_only_this_machine_needs_no_ssh():
    assert all(Host(name).is_this_machine for name in ("localhost", "127.0.0.1", "[::1]", socket.gethostname()))
    assert not Host("elsewhere.example.org").is_this_machine
    assert not Host(f"me@{socket.gethostname()}").is_this_machine  # perhaps another user's account


def test_a_placement_counts_the_workers_it_knows_of():
    placement = Placement((Host("elsewhere.example.org"), Host("localhost", 3)))
    assert placement.num_workers == 4
    assert not placement.is_only_this_machine
    assert Placement.on_this_machine(2) == Placement((Host("localhost", 2),))
    assert Placement.on_this_machine(2).is_only_this_machine
