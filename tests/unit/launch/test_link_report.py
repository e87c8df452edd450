"""Messages about hosts that do not reach each other: which side, which port, and the likely cause."""

from dataclasses import replace

import pytest

from dragoman.cluster.link_test import LinkResult
from dragoman.launch.link_report import explain_separation, find_loss

PORTS = range(29500, 29564)
PASSED = LinkResult("passed", 29500, ("10.0.0.1",), mtu=1500, num_segments=100)
NO_ANSWER = LinkResult("connect", 29501, ("10.0.0.2", "fd00::2"), reason="no answer")
REFUSED = replace(NO_ANSWER, reason="connection refused")
NOT_PERMITTED = replace(NO_ANSWER, reason="not permitted here")
NO_ADDRESS = LinkResult("connect", 29500, reason="it has no address")
NOT_SENT = LinkResult("send", 29500, ("10.0.0.2",), mtu=9000, num_segments=40, num_retransmitted=12)
NOT_RECEIVED = replace(NOT_SENT, stage="receive")

BLOCKED_ON_B = "the likely cause is a firewall on b that blocks incoming connections: open the TCP ports 29500-29563"
MTU_WORDS = "Packets of 1500 bytes pass, larger ones vanish"


@pytest.mark.parametrize(
    ("forth", "back", "words"),
    [
        (
            NO_ANSWER,
            PASSED,
            [
                "a cannot connect to b (10.0.0.2, fd00::2; port 29501): no answer.",
                f"b reaches a, so {BLOCKED_ON_B} (cluster.port) there for a.",
            ],
        ),
        (
            PASSED,
            replace(NO_ANSWER, addresses=("10.0.0.1",)),
            ["b cannot connect to a (10.0.0.1; port 29501)", "a reaches b, so the likely cause is a firewall on a"],
        ),
        (
            NO_ANSWER,
            NO_ANSWER,
            [
                "a cannot connect to b",
                "b cannot connect to a",
                "Either both have a firewall that blocks incoming connections, or they are not in one network",
                "open the TCP ports 29500-29563 (cluster.port) on both for each other",
            ],
        ),
        (REFUSED, PASSED, ["port 29501): connection refused.", BLOCKED_ON_B]),
        (
            NOT_PERMITTED,
            PASSED,
            ["A firewall on a blocks outgoing connections: allow the TCP ports 29500-29563 (cluster.port) there."],
        ),
        (NO_ANSWER, NOT_PERMITTED, ["A firewall on b blocks outgoing connections"]),
        (NO_ADDRESS, PASSED, ["a cannot connect to b (it has no address; port 29500)"]),
        (
            NOT_SENT,
            PASSED,
            [
                "a reaches b (10.0.0.2; port 29500), but larger data from a does not arrive there.",
                "Small packets vanish too (12 of 40 were sent again): the link loses packets",
            ],
        ),
        (NOT_RECEIVED, PASSED, ["but larger data from b does not come back.", "check cables, switch and drivers"]),
        (
            replace(NOT_SENT, passing_mtu=1500),
            replace(NOT_SENT, passing_mtu=1500),
            [
                f"{MTU_WORDS}: the MTU of the hosts (9000 on a, 9000 on b) is larger than what the network",
                "ip link set dev INTERFACE mtu 1500",
            ],
        ),
        (
            replace(NOT_RECEIVED, passing_mtu=1280),
            replace(PASSED, mtu=None),
            ["Packets of 1280 bytes pass", "(9000 on a) is larger"],
        ),
    ],
    ids=[
        "b drops",
        "a drops",
        "both drop",
        "b refuses",
        "a blocks outgoing",
        "b blocks outgoing",
        "no address",
        "data to b lost",
        "data from b lost",
        "MTU of both",
        "MTU one way",
    ],
)
def test_the_sides_the_port_and_the_likely_cause_are_named(forth, back, words):
    message = explain_separation("a", ["b"], {"a": {"b": forth}, "b": {"a": back}}, PORTS)
    for each in words:
        assert each in message


def test_without_a_range_the_message_says_that_one_can_be_set():
    message = explain_separation("a", ["b"], {"a": {"b": NO_ANSWER}, "b": {"a": PASSED}}, None)
    assert "open all TCP ports, or set cluster.port to a range of ports and open these, there for a." in message


def results_of_three(*broken: tuple[str, str]) -> dict[str, dict[str, LinkResult]]:
    names = ("a", "b", "c")
    return {
        sender: {other: NO_ANSWER if (sender, other) in broken else PASSED for other in names if other != sender}
        for sender in names
    }


def test_of_three_hosts_the_one_that_none_reaches_is_named():
    results = results_of_three(("a", "c"), ("c", "a"), ("b", "c"), ("c", "b"))
    message = explain_separation("c", ["a", "b"], results, PORTS)
    assert "c reaches no other host: check its network and its firewall, for the TCP ports 29500-29563" in message
    assert message.endswith("The same holds between c and b.")
    assert "Either both" not in message


def test_of_three_hosts_one_that_blocks_incoming_connections_is_named():
    results = results_of_three(("a", "c"), ("b", "c"))
    message = explain_separation("c", ["a", "b"], results, PORTS)
    assert message.startswith("a cannot connect to c")
    assert "c reaches a, so the likely cause is a firewall on c that blocks incoming connections" in message


def test_of_three_hosts_two_that_do_not_reach_each_other_are_both_named():
    results = results_of_three(("b", "c"), ("c", "b"))
    message = explain_separation("c", ["b"], results, PORTS)
    assert "Either both have a firewall" in message
    assert "reaches no other host" not in message


def test_three_hosts_of_which_none_reaches_another_have_no_culprit():
    everything = [(one, other) for one in "abc" for other in "abc" if one != other]
    assert "Either both" in explain_separation("b", ["a"], results_of_three(*everything), PORTS)


def test_a_message_is_one_paragraph_of_whole_sentences():
    message = explain_separation("a", ["b"], {"a": {"b": NO_ANSWER}, "b": {"a": PASSED}}, PORTS)
    assert "\n" not in message
    assert "  " not in message
    assert message.endswith(".")


# Loss


@pytest.mark.parametrize(
    ("num_segments", "num_retransmitted", "is_lossy"),
    [
        (100, 0, False),
        (100, 4, False),
        (100, 5, True),
        (100, 20, True),
        (1000, 20, False),
        (1000, 50, True),
        (0, 0, False),
    ],
)
def test_a_link_that_loses_packets_is_mentioned(num_segments, num_retransmitted, is_lossy):
    """A few packets may be lost by chance."""
    lossy = replace(PASSED, num_segments=num_segments, num_retransmitted=num_retransmitted)
    warnings = find_loss({"a": {"b": lossy}, "b": {"a": PASSED}})
    assert len(warnings) == is_lossy
    if is_lossy:
        assert f"{num_retransmitted / num_segments:.0%} of the packets from a to b are lost" in warnings[0]


def test_a_link_that_failed_is_not_mentioned_twice():
    assert find_loss({"a": {"b": NOT_SENT}, "b": {"a": PASSED}}) == []
