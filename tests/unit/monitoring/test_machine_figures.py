"""What a record says of the machines, from figures by their TensorBoard names."""

import pytest

from dragoman.monitoring.watcher import machine_figures


def traffic(node: str, interface: str, sent: float, received: float) -> dict[str, float]:
    place = f"system/{node}/network/{interface}"
    return {f"{place}/sent_MB_per_s": sent, f"{place}/received_MB_per_s": received}


def test_nothing_sampled_says_nothing():
    assert machine_figures({}) == {}
    assert machine_figures({"system/a/memory_GB": 3.0}) == {}


def test_the_interface_that_carried_most_between_machines_is_named():
    figures = machine_figures(
        traffic("a", "lo", 900, 900)
        | traffic("a", "eth0", 1, 2)
        | traffic("b", "eth1", 12.5, 11)
        | traffic("b", "eth2", 0, 20)
    )
    assert figures["traffic"] == {
        "host": "b",
        "interface": "eth1",
        "sent_bytes_per_second": pytest.approx(12.5e6),
        "received_bytes_per_second": pytest.approx(11e6),
    }


def test_on_one_machine_loopback_is_the_way():
    figures = machine_figures(traffic("a", "lo", 300, 300) | traffic("a", "eth0", 1, 1))
    assert figures["traffic"]["interface"] == "lo"


def test_loopback_is_nobodys_way_between_machines():
    assert "traffic" not in machine_figures(traffic("a", "lo", 9, 9) | traffic("b", "lo", 9, 9))


def test_one_direction_alone_leaves_the_other_at_zero():
    figures = machine_figures({"system/a/network/eth0/sent_MB_per_s": 2.0})
    assert figures["traffic"]["sent_bytes_per_second"] == pytest.approx(2e6)
    assert figures["traffic"]["received_bytes_per_second"] == 0


def test_utilisation_is_the_mean_over_machines_and_devices():
    figures = machine_figures(
        {
            "system/a/cpu": 0.2,
            "system/b/cpu": 0.6,
            "system/a/gpu0/utilisation": 1.0,
            "system/a/gpu1/utilisation": 0.5,
            "system/a/gpu0/memory_GB": 7.0,
        }
    )
    assert figures == {"utilisation": {"cpu": pytest.approx(0.4), "gpu": pytest.approx(0.75)}}


def test_a_machine_without_gpus_has_no_figure_for_them():
    assert machine_figures({"system/a/cpu": 0.25}) == {"utilisation": {"cpu": 0.25}}
