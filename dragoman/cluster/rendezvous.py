"""How the processes of a run find each other: through a store whose address a launcher told them, or else through a
file in a folder they share. Then each knows which machine every other is on.
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

from dragoman.cluster.environment import Place
from dragoman.cluster.reach import TRY_SECONDS, interface_of, own_addresses
from dragoman.run.errors import UserError
from dragoman.run.files import read_json, write_json

MEETING_SECONDS = 120.0
DEFAULT_PORT = "29500"
INTERFACE_VARIABLES = ("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME")


@dataclass(frozen=True)
class Meeting:
    """All processes have met; ranks are packed by machine, whatever order the launcher gave them."""

    store: Store
    rank: int
    size: int
    local_rank: int
    num_local: int
    machines: tuple[str, ...] = ("",)
    """The machine of each rank, by a name no other machine has."""


def meet(place: Place, folder: Path) -> Meeting:
    """Collective: waits for all processes, and chooses the network interface that reaches them."""
    store = _store_told_of(place) if "MASTER_ADDR" in os.environ else _store_through_file(place, folder)
    machines = _exchange_machines(place, store)
    order = sorted(range(place.size), key=lambda rank: (machines.index(machines[rank]), rank))
    mine = machines[place.rank]
    local = [rank for rank in order if machines[rank] == mine]
    if not any(os.environ.get(variable) for variable in INTERFACE_VARIABLES):
        _choose_interface(place, store, machines)
    names = _distinct_names([machines[rank] for rank in order])
    return Meeting(store, order.index(place.rank), place.size, local.index(place.rank), len(local), names)


def _store_told_of(place: Place) -> Store:
    os.environ.setdefault("MASTER_PORT", DEFAULT_PORT)
    # torch's own way reads the rank from these, which only torchrun sets.
    os.environ.update(RANK=str(place.rank), WORLD_SIZE=str(place.size))
    store, _, _ = next(rendezvous("env://", timeout=timedelta(seconds=MEETING_SECONDS)))
    # An agent that starts workers again at the same port may still have the notes of those before.
    return PrefixStore(place.job, store)


def _store_through_file(place: Place, folder: Path) -> Store:
    """The first process opens a store and writes where it is; the others look until they can reach it."""
    path = folder / f".meeting-{place.job}.json"
    timeout = timedelta(seconds=MEETING_SECONDS)
    if place.rank == 0:
        store = TCPStore("0.0.0.0", 0, is_master=True, wait_for_workers=False, timeout=timeout)  # noqa: S104
        secret = secrets.token_hex(16)
        store.set("secret", secret)
        addresses = [address for _, address in own_addresses()]
        try:
            folder.mkdir(parents=True, exist_ok=True)
            write_json(path, {"addresses": addresses, "port": store.port, "secret": secret})
        except OSError as error:
            raise UserError(f"{path} cannot be written: {error.strerror}.") from None
        return store
    end = time.monotonic() + MEETING_SECONDS
    while time.monotonic() < end:
        with contextlib.suppress(OSError, ValueError, KeyError, RuntimeError):
            told = read_json(path)
            for address in told["addresses"]:
                if (found := _try_store(address, int(told["port"]), str(told["secret"]))) is not None:
                    return found
        time.sleep(0.2)
    raise UserError(
        f"Worker {place.rank} on {socket.gethostname()} did not find the first one in {MEETING_SECONDS:.0f} s: "
        f"{folder} must be a folder that all hosts share, or set MASTER_ADDR to the first host"
        f"{' (mpirun -x MASTER_ADDR=HOST)' if place.launcher == 'mpirun' else ''}."
    )


def _try_store(address: str, port: int, secret: str) -> Store | None:
    """The store at an address, if it is the right one: every machine has a 127.0.0.1."""
    try:
        with socket.create_connection((address, port), timeout=TRY_SECONDS):
            pass
        store = TCPStore(address, port, is_master=False, timeout=timedelta(seconds=MEETING_SECONDS))
        is_right = store.check(["secret"]) and store.get("secret").decode() == secret
    except (OSError, RuntimeError):
        return None
    if not is_right:
        return None
    os.environ.update(MASTER_ADDR=address, MASTER_PORT=str(port))
    return store


def _exchange_machines(place: Place, store: Store) -> list[str]:
    """Collective: what identifies the machine of each rank, in the order of ranks."""
    store.set(f"machine/{place.rank}", _machine_name())
    return [store.get(f"machine/{rank}").decode() for rank in range(place.size)]


def _machine_name() -> str:
    """The host name and its network: containers and namespaces of one machine are machines of their own."""
    network = Path("/proc/self/ns/net")
    return f"{socket.gethostname()} {network.readlink() if network.exists() else ''}"


def _distinct_names(machines: list[str]) -> tuple[str, ...]:
    """Host names, with a number behind those that several machines have."""
    names: dict[str, str] = {}
    for machine in dict.fromkeys(machines):
        host = machine.split(" ")[0]
        numbered = (f"{host}-{number}" for number in itertools.count(2))
        names[machine] = next(name for name in itertools.chain([host], numbered) if name not in names.values())
    return tuple(names[machine] for machine in machines)


def _choose_interface(place: Place, store: Store, machines: list[str]) -> None:
    """Collective: the interface through which this process reaches the first machine, or that one the others."""
    others = [rank for rank, machine in enumerate(machines) if machine != machines[0]]
    if not others:
        address = "127.0.0.1"
    elif machines[place.rank] == machines[0]:
        address = store.get("address_of_first").decode()
    else:
        with socket.create_connection((os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]))) as way:
            address = str(way.getsockname()[0])
            if place.rank == others[0]:
                store.set("address_of_first", str(way.getpeername()[0]))
    if interface := interface_of(address):
        for variable in INTERFACE_VARIABLES:
            os.environ[variable] = interface


def forget_meeting(place: Place, folder: Path) -> None:
    """Removes the file the processes met through, once all have."""
    if place.rank == 0:
        (folder / f".meeting-{place.job}.json").unlink(missing_ok=True)


def tell_all(meeting: Meeting, name: str, value: dict[str, str]) -> None:
    """Leaves a note for all other ranks."""
    meeting.store.set(name, json.dumps(value))


def wait_for_note(meeting: Meeting, name: str, seconds: float) -> dict[str, str]:
    """The note another rank leaves."""
    meeting.store.wait([name], timedelta(seconds=seconds))
    note: dict[str, str] = json.loads(meeting.store.get(name))
    meeting.store.set(f"{name}/read/{meeting.rank}", "")
    return note


def wait_until_read(meeting: Meeting, name: str, seconds: float) -> None:
    """Returns once all other ranks have read the note, or at the end of that time: the store dies with its owner."""
    others = [f"{name}/read/{rank}" for rank in range(meeting.size) if rank != meeting.rank]
    with contextlib.suppress(RuntimeError):
        meeting.store.wait(others, timedelta(seconds=seconds))
