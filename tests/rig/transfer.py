"""Measures the rate of a link by sending over it; the same file is the program that runs on both hosts.

`transfer.py receive ADDRESS` prints its port, then what it received; `transfer.py send ADDRESS PORT SECONDS` sends.
"""

import json
import socket
import subprocess
import sys
import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rig.host import Host

CHUNK_BYTES = 1 << 20
# Not measured: an idle link starts with a full bucket, and TCP starts slowly.
WARM_UP_SECONDS = 0.3
LONGEST_SILENCE_SECONDS = 30.0


def measure_mbit_per_second(sender: "Host", receiver: "Host", seconds: float = 1.0) -> float:
    """Returns the rate of one TCP connection from host to host, without headers."""
    argv = [sys.executable, __file__]
    pipes = {"stdout": subprocess.PIPE, "text": True}
    with receiver.popen([*argv, "receive", receiver.address], **pipes) as receiving:
        assert receiving.stdout is not None
        port = receiving.stdout.readline().strip()
        duration = str(seconds + WARM_UP_SECONDS)
        sender.run([*argv, "send", receiver.address, port, duration], check=True)
        received = json.loads(receiving.stdout.read())
    return float(received["bytes"] * 8 / received["seconds"] / 1e6)


def receive(address: str) -> None:
    """Accepts one connection and prints the bytes and seconds received after the warm-up."""
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    with socket.create_server((address, 0), family=family) as server:
        server.settimeout(LONGEST_SILENCE_SECONDS)
        print(server.getsockname()[1], flush=True)
        connection, _ = server.accept()
    with connection:
        connection.settimeout(LONGEST_SILENCE_SECONDS)
        receive_for(connection, WARM_UP_SECONDS)
        num_bytes, seconds = receive_for(connection)
    print(json.dumps({"bytes": num_bytes, "seconds": seconds}))


def receive_for(connection: socket.socket, max_seconds: float = float("inf")) -> tuple[int, float]:
    """Receives for some time or until the end; returns the bytes, and the seconds until the last of them."""
    buffer = bytearray(CHUNK_BYTES)
    begin = last = time.monotonic()
    num_bytes = 0
    while last - begin < max_seconds and (num_new := connection.recv_into(buffer)):
        num_bytes += num_new
        last = time.monotonic()
    return num_bytes, last - begin


def send(address: str, port: int, seconds: float) -> None:
    """Sends as fast as the link allows."""
    chunk = bytes(CHUNK_BYTES)
    with socket.create_connection((address, port), timeout=LONGEST_SILENCE_SECONDS) as connection:
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            connection.sendall(chunk)


if __name__ == "__main__":
    match sys.argv[1:]:
        case ["receive", address]:
            receive(address)
        case ["send", address, port, seconds]:
            send(address, int(port), float(seconds))
        case _:
            sys.exit(__doc__)
