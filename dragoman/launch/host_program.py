"""What runs on every host of a run, told what to do in JSON lines: `python -m … SILENCE [OUTPUT]`.

It answers questions about the machine, then runs the workers of one attempt after another. It lives as long as its
launcher: when standard input closes, or nothing has been heard for SILENCE seconds, it ends its workers and itself, so
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
from pathlib import Path
from typing import Any, NoReturn

from dragoman.cluster.heartbeat import PAUSE_SIGNAL
from dragoman.cluster.reach import Listener, free_port, interface_of, own_addresses, reachable_address
from dragoman.launch.connection import AttemptSpec
from dragoman.launch.hosts import gather_facts
from dragoman.run.errors import UserError
from dragoman.run.files import read_json, write_text
from dragoman.run.folder import RunFolder

BEAT_SECONDS = 0.5
CHECK_PREFIX = "dragoman-check-"
"""How the names of folders begin that hold a check and nothing to keep."""
Message = dict[str, Any]


def main() -> None:
    """Takes standard output for the conversation; what workers print goes to OUTPUT, or to standard error."""
    silence_seconds = float(sys.argv[1])
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        # A job manager signals every process of a job; workers save then, and must not lose this parent meanwhile.
        signal.signal(number, lambda _number, _frame: None)
    os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "ERROR")  # before torch is imported, which reads it once
    conversation = os.dup(1)
    os.dup2(int(sys.argv[2]) if len(sys.argv) > 2 else 2, 1)
    HostProgram(conversation, silence_seconds).serve()


class HostProgram:
    """One host's side of the conversation."""

    def __init__(self, conversation: int, silence_seconds: float) -> None:
        self._conversation = conversation
        self._patience = silence_seconds if math.isfinite(silence_seconds) else None
        self._requests: queue.Queue[Message] = queue.Queue()
        self._lock = threading.Lock()
        self._listener: Listener | None = None
        self._workers: Any = None  # a WorkerGroup; its module is imported when workers are wanted, with torch

    def serve(self) -> NoReturn:
        """Answers requests until the launcher has gone."""
        threading.Thread(target=self._listen, daemon=True).start()
        threading.Thread(target=self._tell_beats, daemon=True).start()
        while True:
            request = self._requests.get()
            try:
                self._say(getattr(self, f"_do_{request['do']}")(request))
            except UserError as error:
                self._say({"error": str(error)})
            except OSError as error:
                self._say({"error": f"{error.strerror or error}{f': {error.filename}' if error.filename else ''}."})

    def _do_facts(self, request: Message) -> Message:
        run = RunFolder(Path(request["run"]))
        return {"facts": gather_facts(run, Path(request["prepared"]), request["token"]).to_json()}

    def _do_write(self, request: Message) -> Message:
        """Puts small files of the run where this host does not see the launcher's."""
        for name, text in request["files"].items():
            path = Path(request["run"]) / name
            path.parent.mkdir(parents=True, exist_ok=True)
            write_text(path, text)
        return {"written": len(request["files"])}

    def _do_take_measurements(self, request: Message) -> Message:
        """What a check measured here; its folder, which was made for it alone, goes."""
        folder = Path(request["run"])
        if not folder.name.startswith(CHECK_PREFIX):
            raise UserError(f"{folder} is not the folder of a check.")
        path = folder / request["name"]
        found = read_json(path) if path.exists() else None
        shutil.rmtree(folder, ignore_errors=True)
        return {"measurements": found}

    def _do_make_folder(self, request: Message) -> Message:
        Path(request["path"]).mkdir(parents=True, exist_ok=True)
        return {"made": request["path"]}

    def _do_adopt(self, request: Message) -> Message:
        """Gives a folder that was copied whole its name."""
        Path(request["path"]).rename(request["as"])
        return {"adopted": request["as"]}

    def _do_listen(self, request: Message) -> Message:
        self._stop_listening()
        self._listener = Listener(request["secret"], request["port"])
        return {"listening": {"port": self._listener.port, "addresses": [address for _, address in own_addresses()]}}

    def _stop_listening(self) -> None:
        if self._listener is not None:
            self._listener.close()
            self._listener = None

    def _do_reach(self, request: Message) -> Message:
        """Tries every peer; for each that answered, at which address."""
        found = {
            name: reachable_address(peer["addresses"], peer["port"], peer["secret"])
            for name, peer in request["peers"].items()
        }
        return {"reached": {name: address for name, address in found.items() if address is not None}}

    def _do_settle(self, request: Message) -> Message:
        """The check is over: frees the port, tells the interface of the address that was chosen, and gets ready."""
        self._stop_listening()
        threading.Thread(target=_import_agent, daemon=True).start()
        interface = interface_of(request["address"])
        if interface is None:
            raise UserError(f"no network interface has the address {request['address']} at which its peers reach it.")
        return {"settled": {"interface": interface}}

    def _do_port(self, _request: Message) -> Message:
        return {"port": free_port()}

    def _do_start(self, request: Message) -> Message:
        """Runs the workers of one attempt to their end, which may take days."""
        from dragoman.launch.agent import WorkerGroup

        workers = self._workers = WorkerGroup(AttemptSpec.from_json(request["spec"]))
        try:
            failures, last_beat = workers.run()
        except Exception as error:  # the agents did not find each other
            first_line = (str(error).splitlines() or [""])[0]
            return {"ended": {"failures": [], "last_beat": None, "error": f"{type(error).__name__}: {first_line}"}}
        finally:
            self._workers = None
        told = [failure.to_json() for failure in failures]
        return {"ended": {"failures": told, "last_beat": last_beat.to_json(), "error": None}}

    def _listen(self) -> None:
        """Hears the launcher, until it is silent or says what it never would: then it is no longer there."""
        buffer = b""
        try:
            while select.select([0], [], [], self._patience)[0] and (received := os.read(0, 2**16)):
                *lines, buffer = (buffer + received).split(b"\n")
                for line in lines:
                    self._hear(json.loads(line))
        finally:
            self._end()

    def _hear(self, message: Message) -> None:
        workers = self._workers
        match message["do"]:
            case "beat":
                return
            case "stop" if workers:
                workers.signal(signal.SIGTERM)
            case "pause" if workers:
                workers.signal(PAUSE_SIGNAL)
            case "kill" if workers:
                workers.signal(signal.SIGKILL)
            case "stacks" if workers:
                self._say({"stacks": {str(rank): text for rank, text in workers.stacks().items()}})
            case "stop" | "pause" | "kill" | "stacks":
                return
            case _:
                self._requests.put(message)

    def _tell_beats(self) -> None:
        """Says what the workers do, and with that, that this host lives."""
        while True:
            time.sleep(BEAT_SECONDS)
            workers = self._workers
            self._say({"beats": [beat.to_json() for beat in workers.beats()] if workers else []})

    def _say(self, message: Message) -> None:
        try:
            with self._lock:
                os.write(self._conversation, json.dumps(message).encode() + b"\n")
        except OSError:
            self._end()

    def _end(self) -> NoReturn:
        """The launcher has gone: the workers too, now; a second launcher may already be at work."""
        if self._workers:
            self._workers.signal(signal.SIGKILL)
            self._workers.clean_up()
        os._exit(1)


def _import_agent() -> None:
    """Torch takes two seconds to import: in the background, while the other checks go on."""
    import dragoman.launch.agent  # noqa: F401


if __name__ == "__main__":
    main()
