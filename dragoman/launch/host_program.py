"""The program that runs on every host of a run: `python -m dragoman.launch.host_program SILENCE [OUTPUT]`.

It receives requests as JSON lines: it answers questions about the machine, then runs the workers of one attempt after
another. When standard input closes, or no message has come for SILENCE seconds, it ends its workers and itself, so that
a lost connection leaves no process behind and no second writer of the run.
"""

import json
import math
import os
import queue
import select
import shutil
import signal
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict
from io import FileIO
from pathlib import Path
from typing import Any, NoReturn

from dragoman import __version__
from dragoman.cluster.addresses import interface_of, own_addresses
from dragoman.cluster.heartbeat import PAUSE_SIGNAL
from dragoman.cluster.link_test import LinkListeners, check_link
from dragoman.launch.connection import LAUNCHER_GONE, AttemptSpec, Message, WorkersEnd, ports_from_json
from dragoman.launch.hosts import gather_facts
from dragoman.launch.run_claim import RunClaim
from dragoman.run.errors import UserError
from dragoman.run.files import read_json, write_all, write_text
from dragoman.run.folder import RunFolder

BEAT_SECONDS = 0.5
_IMPORTING = threading.Lock()
CHECK_PREFIX = "dragoman-check-"
"""Start of the names of folders that hold a check and may be removed."""


def main() -> None:
    """Uses standard output for messages; what workers print goes to OUTPUT, or to standard error."""
    silence_seconds = float(sys.argv[1])
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        # A job manager signals every process of a job; workers then save, and need this parent until they end.
        signal.signal(number, lambda _number, _frame: None)
    os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "ERROR")  # torch reads it once, when it is imported
    messages = os.dup(1)
    os.dup2(int(sys.argv[2]) if len(sys.argv) > 2 else 2, 1)
    if len(sys.argv) > 2:  # a program of the launcher's own machine will not be asked much first
        threading.Thread(target=_import_agent, daemon=True).start()
    HostProgram(messages, silence_seconds).serve()


class HostProgram:
    """Serves the requests of one launcher; sends messages to a file descriptor."""

    def __init__(self, messages: int, silence_seconds: float) -> None:
        self._messages = FileIO(messages, "wb")
        self._silence_seconds = silence_seconds if math.isfinite(silence_seconds) else None
        self._requests: queue.Queue[Message] = queue.Queue()
        self._lock = threading.Lock()
        self._listeners: LinkListeners | None = None
        self._claim = RunClaim()
        # Their modules import torch, so they are imported only when needed.
        self._store: Any = None  # an AttemptStore
        self._workers: Any = None  # a WorkerGroup

    def serve(self) -> NoReturn:
        """Answers requests until the launcher is gone."""
        threading.Thread(target=self._receive, daemon=True).start()
        threading.Thread(target=self._send_beats, daemon=True).start()
        while True:
            request = self._requests.get()
            try:
                answer = getattr(self, f"_do_{request['do']}", _refuse)(request)
            except UserError as error:
                answer = {"error": str(error)}
            except OSError as error:
                answer = {"error": f"{error.strerror or error}{f': {error.filename}' if error.filename else ''}."}
            self._send(answer)

    def _do_facts(self, request: Message) -> Message:
        run = RunFolder(Path(request["run"]))
        return {"facts": gather_facts(run, Path(request["prepared"]), request["token"]).to_json()}

    def _do_claim(self, request: Message) -> Message:
        """Locks the run folder for the launcher of this program; makes it where it does not exist."""
        self._claim.take(RunFolder(Path(request["run"])), request["holder"], request["is_shared"], request["seconds"])
        return {"claimed": True}

    def _do_undo(self, _request: Message) -> Message:
        """Removes what this program has made: the run has not begun."""
        self._claim.undo()
        return {"undone": True}

    def _do_write(self, request: Message) -> Message:
        """Writes small files into the run folder of a host that does not see the launcher's."""
        for name, text in request["files"].items():
            path = Path(request["run"]) / name
            path.parent.mkdir(parents=True, exist_ok=True)
            write_text(path, text)
        return {"written": len(request["files"])}

    def _do_take_measurements(self, request: Message) -> Message:
        """Returns the results of a check and removes its folder."""
        folder = Path(request["run"])
        if not folder.name.startswith(CHECK_PREFIX):
            raise UserError(f"{folder} is not the folder of a check.")
        path = folder / request["name"]
        found = read_json(path) if path.exists() else None
        shutil.rmtree(folder, ignore_errors=True)
        return {"measurements": found}

    def _do_make_folder(self, request: Message) -> Message:
        """Makes a folder to copy into, unless there is one already under the name that it will get."""
        path, final = Path(request["path"]), Path(request["as"])
        if final.is_dir() and any(final.iterdir()):
            return {"made": False}
        self._claim.note_made(path)
        path.mkdir(parents=True, exist_ok=True)
        return {"made": True}

    def _do_rename_folder(self, request: Message) -> Message:
        """Gives a folder its final name once it has been copied completely."""
        Path(request["path"]).rename(request["as"])
        return {"renamed": request["as"]}

    def _do_listen(self, request: Message) -> Message:
        """Listens at the ports that a run will use, for the other hosts to try."""
        self._stop_listening()
        listeners = LinkListeners(request["secret"], ports_from_json(request["ports"]), request["num_ports"])
        self._listeners = listeners
        return {"listening": {"ports": listeners.ports, "addresses": [address for _, address in own_addresses()]}}

    def _stop_listening(self) -> None:
        if self._listeners is not None:
            self._listeners.close()
            self._listeners = None

    def _do_reach(self, request: Message) -> Message:
        """Tries the way to every other host, all at once; returns what came of each."""
        peers = request["peers"]
        with ThreadPoolExecutor(max_workers=max(1, len(peers))) as pool:
            results = pool.map(
                lambda peer: check_link(peer["addresses"], peer["ports"], peer["secret"]), peers.values()
            )
        return {"reached": {name: asdict(result) for name, result in zip(peers, results, strict=True)}}

    def _do_get_ready(self, request: Message) -> Message:
        """Ends the checks: frees the ports, begins to import torch, and returns the interface of the chosen address."""
        self._stop_listening()
        threading.Thread(target=_import_agent, daemon=True).start()
        interface = interface_of(request["address"])
        if interface is None:
            raise UserError(f"no network interface has the address {request['address']} at which other hosts reach it.")
        return {"ready": {"interface": interface}}

    def _do_open_store(self, request: Message) -> Message:
        """Opens the store through which the workers of the next attempt find each other; returns its port."""
        self._close_store()
        stores = _import_agent().AttemptStore
        self._store = stores.open(request["address"], ports_from_json(request["ports"]), request["secret"])
        return {"store": {"port": self._store.port}}

    def _close_store(self) -> None:
        if self._store is not None:
            self._store.close()
            self._store = None

    def _do_start(self, request: Message) -> Message:
        """Runs the workers of one attempt to their end, which may take days."""
        begin = time.monotonic()  # before an import that may take seconds
        agent = _import_agent()
        spec = AttemptSpec.from_json(request["spec"])
        if spec.node_rank > 0:
            self._close_store()
            self._store = agent.AttemptStore.reach(spec.store_address, spec.store_port, spec.secret)
        self._claim.keep()
        workers = self._workers = agent.WorkerGroup(spec, begin, self._store.local_port)
        try:
            end = workers.run()
        except Exception as error:  # the agents did not find each other
            first_line = (str(error).splitlines() or [""])[0]
            end = WorkersEnd(error=f"{type(error).__name__}: {first_line}")
        finally:
            self._workers = None
            self._close_store()
        return {"ended": end.to_json()}

    def _receive(self) -> None:
        """Reads messages until the launcher is silent, closes the stream or sends something it never would."""
        buffer = b""
        try:
            while select.select([0], [], [], self._silence_seconds)[0] and (received := os.read(0, 2**16)):
                *lines, buffer = (buffer + received).split(b"\n")
                for line in lines:
                    self._take(json.loads(line))
        finally:
            self._end()

    def _take(self, message: Message) -> None:
        """Carries out orders for running workers at once; other requests wait for `serve`."""
        workers = self._workers
        match message["do"]:
            case "keepalive":
                return
            case "stop" if workers:
                workers.signal(signal.SIGTERM)
            case "pause" if workers:
                workers.signal(PAUSE_SIGNAL)
            case "kill" if workers:
                workers.signal(signal.SIGKILL)
            case "stacks" if workers:
                self._send({"stacks": {str(rank): text for rank, text in workers.stacks().items()}})
            case "stop" | "pause" | "kill" | "stacks":
                return
            case _:
                self._requests.put(message)

    def _send_beats(self) -> None:
        """Sends the heartbeats of the workers, which also shows that this host is alive."""
        while True:
            time.sleep(BEAT_SECONDS)
            workers = self._workers
            self._send({"beats": [asdict(beat) for beat in workers.beats()] if workers else []})

    def _send(self, message: Message) -> None:
        try:
            with self._lock:
                write_all(self._messages, json.dumps(message).encode() + b"\n")
        except OSError:
            self._end()

    def _end(self) -> NoReturn:
        """Ends the workers and this program at once: the launcher is gone, and a second one may already be at work."""
        if self._workers:
            self._workers.signal(signal.SIGKILL)
            self._workers.clean_up()
        self._claim.undo()
        os._exit(LAUNCHER_GONE)


def _refuse(request: Message) -> Message:
    """Answers a request that only another version of dragoman knows."""
    raise UserError(
        f"it does not know the request {request['do']!r}, because it has dragoman {__version__} and the launcher has "
        "another version: install the same on both."
    )


def _import_agent() -> Any:
    """Returns the module of the agent; the first call imports torch, which takes a second or two."""
    with _IMPORTING:  # torch ends a process in which two threads import its parts at the same time
        import dragoman.cluster.quick_torch  # noqa: F401  before the agent, which imports torch itself
        from dragoman.launch import agent

        return agent


if __name__ == "__main__":
    main()
