"""Explains why hosts cannot work together: which one does not reach which, at which port, and what is likely wrong."""

from collections.abc import Mapping, Sequence

from dragoman.cluster.addresses import format_ports
from dragoman.cluster.link_test import LinkResult

Results = Mapping[str, Mapping[str, LinkResult]]
"""What came of testing the way from each host (by name) to each other one."""
_LOSS_SHARE = 0.05
_FEWEST_RETRANSMITTED = 5
"""Fewer packets that were sent again may be chance."""


def explain_separation(host: str, apart: Sequence[str], results: Results, ports: range | None) -> str:
    """Returns what keeps a host from working with others, and what to do, for the first of them in full."""
    other = apart[0]
    failed = [pair for pair in ((host, other), (other, host)) if not _result(results, *pair).has_passed]
    sentences = [_describe(sender, receiver, _result(results, sender, receiver)) for sender, receiver in failed]
    also = f" The same holds between {host} and {', '.join(apart[1:])}." if apart[1:] else ""
    return f"{' '.join(sentences)} {_likely_cause(failed, results, ports)}{also}"


def _result(results: Results, sender: str, receiver: str) -> LinkResult:
    return results[sender][receiver]


def _describe(sender: str, receiver: str, result: LinkResult) -> str:
    where = f"{', '.join(result.addresses) or 'it has no address'}; port {result.port}"
    match result.stage:
        case "connect":
            return f"{sender} cannot connect to {receiver} ({where}): {result.reason}."
        case "send":
            return f"{sender} reaches {receiver} ({where}), but larger data from {sender} does not arrive there."
        case _:
            return f"{sender} reaches {receiver} ({where}), but larger data from {receiver} does not come back."


def _likely_cause(failed: Sequence[tuple[str, str]], results: Results, ports: range | None) -> str:
    sender, receiver = failed[0]
    first = _result(results, sender, receiver)
    if first.stage != "connect":
        return _explain_lost_data(sender, receiver, first, _result(results, receiver, sender))
    refusing = next((pair for pair in failed if "not permitted" in _result(results, *pair).reason), None)
    if refusing is not None:
        return f"A firewall on {refusing[0]} blocks outgoing connections: allow {_port_words(ports)} there."
    if len(failed) == 2:
        if blocked := _blocked_host(sender, receiver, results):
            return f"{blocked} reaches no other host: check its network and its firewall, for {_port_words(ports)}."
        return (
            "Either both have a firewall that blocks incoming connections, or they are not in one network: "
            f"open {_port_words(ports)} on both for each other."
        )
    backwards = _result(results, receiver, sender)
    reaches = f"{receiver} reaches {sender}, so" if backwards.stage != "connect" else "So"
    return (
        f"{reaches} the likely cause is a firewall on {receiver} that blocks incoming connections: "
        f"open {_port_words(ports)} there for {sender}."
    )


def _blocked_host(sender: str, receiver: str, results: Results) -> str | None:
    """Returns the one of two hosts that no third host can connect to, while the other one is reached by a third."""
    thirds = [name for name in results if name not in (sender, receiver)]
    alone = [
        name
        for name in (sender, receiver)
        if thirds and all(results[third][name].stage == "connect" for third in thirds if name in results[third])
    ]
    return alone[0] if len(alone) == 1 else None


def _port_words(ports: range | None) -> str:
    if ports is None:
        return "all TCP ports, or set cluster.port to a range of ports and open these,"
    return f"the TCP ports {format_ports(ports)} (cluster.port)"


def _explain_lost_data(sender: str, receiver: str, result: LinkResult, backwards: LinkResult) -> str:
    if result.passing_mtu is not None:
        other = f", {backwards.mtu} on {receiver}" if backwards.mtu else ""
        return (
            f"Packets of {result.passing_mtu} bytes pass, larger ones vanish: the MTU of the hosts ({result.mtu} on "
            f"{sender}{other}) is larger than what the network between them carries. Set it to 1500 on both "
            "(ip link set dev INTERFACE mtu 1500), or raise it on every switch between them."
        )
    return (
        f"Small packets vanish too ({result.num_retransmitted} of {result.num_segments} were sent again): the link "
        "loses packets; check cables, switch and drivers."
    )


def find_loss(results: Results) -> list[str]:
    """Returns a warning for each pair of hosts between which packets are lost, although the test has passed."""
    warnings = []
    for sender, of_sender in results.items():
        for receiver, result in of_sender.items():
            is_lossy = result.num_retransmitted >= max(_FEWEST_RETRANSMITTED, _LOSS_SHARE * result.num_segments)
            if result.has_passed and is_lossy:
                warnings.append(
                    f"About {result.num_retransmitted / result.num_segments:.0%} of the packets from {sender} to "
                    f"{receiver} are lost and sent again, which slows every step down: check cables and switch."
                )
    return warnings
