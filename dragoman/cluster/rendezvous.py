"""How the processes of a run find each other: through a store whose address the launcher gave them, or through a file
in a folder they share. Afterwards each process knows which machine every other one runs on.
"""

import contextlib
import itertools
import json
import os
import secrets
import socket
import time
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path

from torch._C._distributed_c10d import PrefixStore, Store, TCPStore
from torch.distributed.rendezvous import rendezvous

from dragoman.cluster.addresses import (
    ALL_ADDRESSES,
    LOOPBACK,
    address_of,
    interface_of,
    own_address_towards,
    own_addresses,
)
from dragoman.cluster.environment import ADDRESS_VARIABLE, PORTS_VARIABLE, RankInfo
from dragoman.cluster.guarded_store import StoreGate, StorePassage, open_local_store
from dragoman.run.errors import UserError, describe_os_error
from dragoman.run.files import read_json, write_json
from dragoman.run.processes import own_cores

RENDEZVOUS_SECONDS = 120.0
POLL_SECONDS = 0.2
DEFAULT_PORT = "29500"
_kept_open: list[StoreGate | StorePassage] = []
"""Ways to the store, which are needed as long as this process lives."""
INTERFACE_VARIABLES = ("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME")


@dataclass(frozen=True)
class Rendezvous:
    """The store all processes are connected to, and this process's rank; ranks of one machine are neighbours."""

    store: Store
    rank: int
    size: int
    local_rank: int
    num_sharing_cores: int
    """Ranks, this one included, that may use cores which this one may use too."""
    machines: tuple[str, ...] = ("",)
    """The machine of each rank, by a name no other machine has."""
    address: str = LOOPBACK
    """Where the other ranks reach this one."""
    ports: range | None = None
    """Where this rank may listen; None for any free port."""


def join_rendezvous(rank_info: RankInfo, folder: Path) -> Rendezvous:
    """Collective: waits for all processes and chooses the address at which they reach this one."""
    if "MASTER_ADDR" in os.environ:
        store, towards_first = _store_at_address(rank_info), [os.environ["MASTER_ADDR"]]
    else:
        store, towards_first = _store_through_file(rank_info, folder)
    machines, num_sharing_cores = _exchange_machines(rank_info, store)
    order = sorted(range(rank_info.size), key=lambda rank: (machines.index(machines[rank]), rank))
    local = [rank for rank in order if machines[rank] == machines[rank_info.rank]]
    address = _given_address() or _find_address(rank_info, store, machines, towards_first)
    if interface := interface_of(address):
        for variable in INTERFACE_VARIABLES:  # for NCCL, which cannot be given an address
            os.environ.setdefault(variable, interface)
    return Rendezvous(
        store,
        order.index(rank_info.rank),
        rank_info.size,
        local.index(rank_info.rank),
        num_sharing_cores,
        _distinct_names([machines[rank] for rank in order]),
        address,
        parse_ports(os.environ.get(PORTS_VARIABLE, "")),
    )


def _store_at_address(rank_info: RankInfo) -> Store:
    os.environ.setdefault("MASTER_PORT", DEFAULT_PORT)
    # torch reads the rank from these, which only torchrun sets.
    os.environ.update(RANK=str(rank_info.rank), WORLD_SIZE=str(rank_info.size))
    store, _, _ = next(rendezvous("env://", timeout=timedelta(seconds=RENDEZVOUS_SECONDS)))
    # The store of an agent that restarts workers at the same port may still hold values of earlier workers.
    return PrefixStore(rank_info.job, store)


def _store_through_file(rank_info: RankInfo, folder: Path) -> tuple[Store, list[str]]:
    """Rank 0 opens a store and writes its address to a file; the others read the file until they can connect.

    Also returns the addresses at which rank 0 may be reached.
    """
    path = _rendezvous_file(rank_info, folder)
    return _open_store(path) if rank_info.rank == 0 else _find_store(rank_info, path)


def _rendezvous_file(rank_info: RankInfo, folder: Path) -> Path:
    return folder / f".meeting-{rank_info.job}.json"


def _open_store(path: Path) -> tuple[Store, list[str]]:
    store = open_local_store(RENDEZVOUS_SECONDS)
    secret = secrets.token_hex(16)
    # The gate is open on every interface: which one reaches the others is not known yet.
    gate = StoreGate(ALL_ADDRESSES, None, secret, store.port)
    _kept_open.append(gate)
    addresses = [address for _, address in own_addresses()]
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        mask = os.umask(0o077)  # the secret is for the owner of the run only
        try:
            write_json(path, {"addresses": addresses, "port": gate.port, "secret": secret})
        finally:
            os.umask(mask)
    except OSError as error:
        raise UserError(f"{path} cannot be written: {describe_os_error(error)}.") from None
    return store, addresses


def _find_store(rank_info: RankInfo, path: Path) -> tuple[Store, list[str]]:
    end = time.monotonic() + RENDEZVOUS_SECONDS
    while time.monotonic() < end:
        with contextlib.suppress(OSError, ValueError, KeyError, RuntimeError):
            written = read_json(path)
            found = _try_gate(written["addresses"], int(written["port"]), str(written["secret"]))
            if found is not None:
                return found
        time.sleep(POLL_SECONDS)
    raise UserError(
        f"Worker {rank_info.rank} on {socket.gethostname()} did not find worker 0 in {RENDEZVOUS_SECONDS:.0f} s: "
        f"{path.parent} must be a folder that all hosts share, or set MASTER_ADDR to the first host"
        f"{' (mpirun -x MASTER_ADDR=HOST)' if rank_info.launcher == 'mpirun' else ''}."
    )


def _try_gate(addresses: list[str], port: int, secret: str) -> tuple[Store, list[str]] | None:
    """Connects to the store behind a gate; None if the gate does not answer at any of its addresses."""
    passage = StorePassage(addresses, port, secret)
    if (address := passage.find_gate()) is None:
        passage.close()
        return None
    _kept_open.append(passage)
    store = TCPStore(LOOPBACK, passage.port, is_master=False, timeout=timedelta(seconds=RENDEZVOUS_SECONDS))
    return store, [address]


def remove_rendezvous_file(rank_info: RankInfo, folder: Path) -> None:
    """Removes the file through which the processes found each other; call it when all are connected."""
    if rank_info.rank == 0:
        _rendezvous_file(rank_info, folder).unlink(missing_ok=True)


def _exchange_machines(rank_info: RankInfo, store: Store) -> tuple[list[str], int]:
    """Collective: returns an identifier of the machine of each rank, and how many ranks share cores with this one."""
    cores = own_cores()
    store.set(f"machine/{rank_info.rank}", json.dumps([_machine_id(), sorted(cores)]))
    answers = [json.loads(store.get(f"machine/{rank}")) for rank in range(rank_info.size)]
    sharing = [machine for machine, of_rank in answers if machine == _machine_id() and not cores.isdisjoint(of_rank)]
    return [str(machine) for machine, _ in answers], len(sharing)


def _machine_id() -> str:
    """Returns the host name and its network namespace: containers on one machine count as machines of their own."""
    network = Path("/proc/self/ns/net")
    return f"{socket.gethostname()} {network.readlink() if network.exists() else ''}"


def _distinct_names(machines: list[str]) -> tuple[str, ...]:
    """Returns host names, with a number appended where several machines have the same one."""
    names: dict[str, str] = {}
    for machine in dict.fromkeys(machines):
        host = machine.split(" ")[0]
        numbered = (f"{host}-{number}" for number in itertools.count(2))
        names[machine] = next(name for name in itertools.chain([host], numbered) if name not in names.values())
    return tuple(names[machine] for machine in machines)


def _given_address() -> str | None:
    """Returns the address that our launcher found, or that of the interface a person has chosen."""
    interfaces = (os.environ.get(variable) for variable in INTERFACE_VARIABLES)
    chosen = next(filter(None, interfaces), None)
    return os.environ.get(ADDRESS_VARIABLE) or (address_of(chosen) if chosen else None)


def _find_address(rank_info: RankInfo, store: Store, machines: list[str], towards_first: list[str]) -> str:
    """Collective: returns the address through which this process and the first machine reach each other."""
    others = [rank for rank, machine in enumerate(machines) if machine != machines[0]]
    if not others:
        return LOOPBACK
    if machines[rank_info.rank] == machines[0]:
        return store.get("address_of_first").decode()
    resolved = [str(info[4][0]) for name in towards_first for info in socket.getaddrinfo(name, None)]
    # A name may have addresses of both kinds, and this machine a way to one kind only.
    reached = next((address for address in resolved if own_address_towards([address])), resolved[0])
    if rank_info.rank == others[0]:
        store.set("address_of_first", reached)
    return own_address_towards([reached]) or LOOPBACK


def parse_ports(text: str) -> range | None:
    """Reads a range of ports that `format_ports` wrote; None where there is none."""
    first, _, last = text.partition("-")
    return range(int(first), int(last) + 1) if last else None


def publish_value(rendezvous: Rendezvous, key: str, value: dict[str, str]) -> None:
    """Makes a value readable for all other ranks."""
    rendezvous.store.set(key, json.dumps(value))


def wait_for_value(rendezvous: Rendezvous, key: str, seconds: float) -> dict[str, str]:
    """Waits for the value another rank publishes."""
    rendezvous.store.wait([key], timedelta(seconds=seconds))
    value: dict[str, str] = json.loads(rendezvous.store.get(key))
    rendezvous.store.set(f"{key}/read/{rendezvous.rank}", "")
    return value


def wait_until_read(rendezvous: Rendezvous, key: str, seconds: float) -> None:
    """Waits at most `seconds` until all other ranks have read the value: the store ends with the rank that owns it."""
    readers = [f"{key}/read/{rank}" for rank in range(rendezvous.size) if rank != rendezvous.rank]
    with contextlib.suppress(RuntimeError):
        rendezvous.store.wait(readers, timedelta(seconds=seconds))
