import pytest

from dragoman.importing.imported_run import MAX_LISTED, NO_INTERFACE, ImportedRun
from dragoman.importing.trainers.nccl import NcclReader

NCCL_2_3 = """\
v100a:209:284 [0] NCCL INFO NET : Using interface eth0:192.0.2.11<0>
v100a:209:284 [0] NCCL INFO NET/IB : Using interface eth0 for sideband communication
v100a:209:284 [0] NCCL INFO Using internal Network Socket
NCCL version 2.3.7+cuda10.0
v100a:209:284 [0] NCCL INFO rank 0 nranks 4
v100a:210:287 [1] NCCL INFO rank 1 nranks 4
v100b:234:310 [1] NCCL INFO rank 3 nranks 4
v100b:233:307 [0] NCCL INFO comm 0x7f2194b733d0 rank 2 nranks 4
v100b:233:307 [0] NCCL INFO Ring 00 : 1 -> 2 via NET/Socket/0
"""
NCCL_2_18 = """\
node-1:91:91 [0] NCCL INFO Bootstrap : Using ens5:10.0.0.1<0>
node-1:91:91 [0] NCCL INFO NET/IB : Using [0]mlx5_0:1/RoCE [RO]; OOB ens5:10.0.0.1<0>
node-1:91:91 [0] NCCL INFO Using network IB
NCCL version 2.18.1+cuda12.1
node-1:91:91 [0] NCCL INFO comm 0x55d rank 0 nranks 2 cudaDev 0 busId 1e0 - Init COMPLETE
node-0:92:92 [0] NCCL INFO comm 0x55d rank 1 nranks 2 cudaDev 0 busId 1e0 - Init COMPLETE
node-1:91:91 [0] NCCL INFO Channel 00/0 : 1[0] -> 0[0] [receive] via NET/IB/0/GDRDMA
"""


def read(text, run=None):
    run = run or ImportedRun()
    watch = NcclReader(run)
    for line in text.splitlines():
        watch.read(line)
    watch.finish()
    return run


def test_an_old_version_over_sockets():
    run = read(NCCL_2_3)
    assert run.facts == {
        "hosts": ["v100a", "v100b"],
        "num_ranks": 4,
        "ranks_per_host": 2,
        "interface": "eth0",
        "transport": "Socket",
        "software": {"NCCL": "2.3.7", "CUDA": "10.0"},
    }
    assert run.notes == []


def test_a_new_version_over_infiniband_with_hosts_in_the_order_of_ranks():
    facts = read(NCCL_2_18).facts
    assert facts["hosts"] == ["node-1", "node-0"]
    assert (facts["interface"], facts["transport"], facts["ranks_per_host"]) == ("ens5", "IB", 1)


def test_groups_of_ranks_do_not_hide_the_whole_world():
    pair = "a:1:2 [0] NCCL INFO comm 0x1 rank 0 nranks 2\nb:1:2 [0] NCCL INFO comm 0x1 rank 1 nranks 2\n"
    facts = read(pair + NCCL_2_3 + pair).facts
    assert facts["num_ranks"] == 4
    assert facts["ranks_per_host"] == 2


def test_hosts_from_open_mpi_where_nccl_is_silent():
    run = read("[v100a:00203] WARNING: local probe\n[v100b][[12510,1],3][btl_tcp.c:559:x] recv(49) failed\n[ 1 ] x\n")
    assert run.facts == {"hosts": ["v100a", "v100b"]}


def test_missing_infiniband_is_a_note_and_no_failure():
    run = read("Another transport will be used instead, although this may result in\n")
    assert "no InfiniBand" in run.notes[0]
    assert run.failures == []


@pytest.mark.parametrize(("num_ranks", "is_missed"), [(4, True), (1, False)])
def test_a_missing_interface_is_only_missed_where_ranks_talk(num_ranks, is_missed):
    run = read("nothing", ImportedRun(facts={"num_ranks": num_ranks}))
    assert (NO_INTERFACE in run.notes) is is_missed


def test_any_number_of_hosts_is_bounded():
    run = read("\n".join(f"host{i}:1:2 [0] NCCL INFO rank {i} nranks 9999999" for i in range(5000)))
    assert len(run.facts["hosts"]) <= MAX_LISTED


def test_a_run_resumed_on_other_hosts_is_not_on_all_of_them():
    run = ImportedRun()
    watch = NcclReader(run)
    for text, interface in ((NCCL_2_3, "eth0"), (NCCL_2_3.replace("v100", "node").replace("eth0", "ib0"), "ib0")):
        watch.read("[v100a:00203] WARNING: local probe")
        run.begin_launch()
        for line in text.splitlines():
            watch.read(line)
        run.add_train(100, loss=1.0)
        run.launches[-1].end = "failed"
        assert interface in text
    run.begin_launch()  # this launch made no step
    watch.read("other:1:2 [0] NCCL INFO rank 0 nranks 8")
    watch.finish()
    assert run.facts["hosts"] == ["nodea", "nodeb"]
    assert (run.facts["interface"], run.facts["num_ranks"]) == ("ib0", 4)
    assert [launch.hosts for launch in run.launches] == [["v100a", "v100b"], ["nodea", "nodeb"], ["other"]]
