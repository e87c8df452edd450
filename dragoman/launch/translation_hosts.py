"""Translates the parts of a file on hosts reached over ssh.

On each host runs `python -m dragoman.launch.translation_hosts SILENCE [OUTPUT]`, as the host program of training does.
The model is sent to a folder of the same name on each host that does not see it, and removed there at the end. A host
that dies loses only the part it was translating: the others take it over. Each host checks that it runs the same code.
"""

import hashlib
import os
import queue
import shutil
import sys
import threading
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from dragoman.launch.connection import Connection, HostError, Keepalive, Message, StopRequestedError
from dragoman.launch.host_connections import send_folder
from dragoman.launch.host_program import HostProgram
from dragoman.launch.hosts import Host, HostFacts, gather_facts
from dragoman.run.errors import UserError, describe_fault
from dragoman.run.folder import RunFolder
from dragoman.translation.files.bulk import LoadedModel, TextPart, TranslatedPart
from dragoman.translation.files.order import LineBlock, TranslationOrder
from dragoman.translation.model_choice import ModelChoice
from dragoman.translation.notices import Say

TRANSLATION_MODULE = "dragoman.launch.translation_hosts"
MODEL_PREFIX = "model-"
"""Start of the names of folders that hold a copy of a model and may be removed."""
HOST_TIMEOUT_SECONDS = 30.0
"""A host that is silent for this long is given up."""
LONGEST_PART_SECONDS = 24 * 3600.0
LOAD_SECONDS = 600.0
PARTS_PER_HOST = 2


# On a host


def main() -> None:
    """Uses standard output for messages; what is printed otherwise goes to OUTPUT, or to standard error."""
    messages = os.dup(1)
    os.dup2(int(sys.argv[2]) if len(sys.argv) > 2 else 2, 1)
    TranslationProgram(messages, float(sys.argv[1])).serve()


class TranslationProgram(HostProgram):
    """Translates parts for one launcher, with one model."""

    _model: LoadedModel | None = None

    def _do_find_model(self, request: Message) -> Message:
        """Says whether the model of a launcher is here already: on a shared disk, or from an interrupted command."""
        try:
            is_here = ModelChoice.from_json(request["model"]).fingerprint() == request["fingerprint"]
        except (UserError, OSError):
            is_here = False
        return {"is_here": is_here}

    def _do_load_model(self, request: Message) -> Message:
        self._model = LoadedModel(ModelChoice.from_json(request["model"]), request["num_workers"])
        return {"loaded": True}

    def _do_translate(self, request: Message) -> Message:
        assert self._model is not None, "a launcher loads the model first"
        block = LineBlock(request["first_number"], tuple(request["lines"]))
        done = self._model.translate(TextPart(request["index"], block), TranslationOrder.from_json(request["order"]))
        return {"translated": asdict(done)}

    def _do_remove_model(self, request: Message) -> Message:
        """Removes a copy of the model, and the folder above it if nothing else is in it."""
        folder = Path(request["path"])
        if not folder.name.startswith(MODEL_PREFIX):
            raise UserError(f"{folder} is not the copy of a model.")
        shutil.rmtree(folder, ignore_errors=True)
        if folder.parent.is_dir() and not any(folder.parent.iterdir()):
            folder.parent.rmdir()
        return {"removed": True}


class TranslationConnection(Connection):
    """A connection to a host whose program translates."""

    module = TRANSLATION_MODULE


# On the launcher's machine


@dataclass(frozen=True)
class _Lost:
    """A host that is given up."""

    host: Host
    reason: str


@contextmanager
def open_hosts(
    hosts: Sequence[Host],
    ssh_config: Path | None,
    model: ModelChoice,
    order: TranslationOrder,
    work: Path,
    say: Say,
) -> Iterator["TranslationHosts"]:
    """Copies the model into the work folder, and connects to the hosts; all that runs there ends with the block."""
    fingerprint = model.fingerprint()
    copy = work / f"{MODEL_PREFIX}{hashlib.sha256(fingerprint.encode()).hexdigest()[:12]}"
    shutil.rmtree(copy, ignore_errors=True)  # an interrupted command may have left half of it
    pool = TranslationHosts(hosts, ssh_config, model.copy_to(copy), copy, order, say)
    try:
        yield pool
    finally:
        pool.close()
        shutil.rmtree(copy, ignore_errors=True)
        if work.is_dir() and not any(work.iterdir()):
            work.rmdir()


class TranslationHosts:
    """Hosts that take parts from one queue."""

    def __init__(
        self,
        hosts: Sequence[Host],
        ssh_config: Path | None,
        model: ModelChoice,
        folder: Path,
        order: TranslationOrder,
        say: Say,
    ) -> None:
        """Takes a model whose files are all in `folder`."""
        self._hosts, self._ssh_config, self._say = hosts, ssh_config, say
        self._model, self._folder, self._order = model, folder, order
        self._fingerprint = model.fingerprint()
        self._parts: queue.Queue[TextPart | None] = queue.Queue()
        self._events: queue.Queue[TranslatedPart | _Lost] = queue.Queue()
        self._keepalive = Keepalive()
        self._is_over = threading.Event()
        self._threads: list[threading.Thread] = []

    def translate(self, parts: Iterable[TextPart], progress: Callable[[int], None]) -> Generator[TranslatedPart]:
        """Yields each part once a host has translated it; a UserError if no host is left."""
        for host in self._hosts:
            thread = threading.Thread(target=self._serve_host, args=(host,), daemon=True)
            self._threads.append(thread)
            thread.start()
        waiting, num_hosts, sizes = iter(parts), len(self._hosts), dict[int, int]()
        while True:
            while len(sizes) < PARTS_PER_HOST * num_hosts and (part := next(waiting, None)) is not None:
                sizes[part.index] = len(part.block.lines)
                self._parts.put(part)
            if not sizes:
                self._finish()
                return
            event = self._events.get()
            if isinstance(event, _Lost):
                num_hosts -= 1
                self._give_up(event, num_hosts)
            else:
                progress(sizes.pop(event.index))
                yield event

    def _finish(self) -> None:
        """Lets the hosts remove the model after their last part."""
        for _ in self._threads:
            self._parts.put(None)
        for thread in self._threads:
            thread.join(HOST_TIMEOUT_SECONDS)

    def close(self) -> None:
        """Ends what still runs on the hosts; the model stays there for the same command again."""
        self._is_over.set()
        self._finish()
        self._keepalive.stop()

    def _give_up(self, lost: _Lost, num_left: int) -> None:
        self._say(f"{lost.host.name} is left out: {lost.reason}")
        if num_left == 0:
            raise UserError("No host is left to translate. The same command continues where it stopped.")

    def _serve_host(self, host: Host) -> None:
        """Gives a host one part after another; the part of a host that fails goes back to the queue."""
        connection: Connection | None = None
        part: TextPart | None = None
        try:
            connection = TranslationConnection(host, self._ssh_config, self._show, HOST_TIMEOUT_SECONDS)
            self._keepalive.add(connection)
            is_sent = self._get_ready(connection)
            while (part := self._parts.get()) is not None and not self._is_over.is_set():
                self._events.put(self._translate(connection, part))
                part = None
            if is_sent:
                self._ask(connection, {"do": "remove_model", "path": str(self._folder)}, "removed")
        except Exception as error:  # whatever it is: others would wait for this host without end
            if part is not None:
                self._parts.put(part)
            if not self._is_over.is_set():
                is_silent = isinstance(error, StopRequestedError)
                silence = f"nothing was heard from it for {HOST_TIMEOUT_SECONDS:.0f} s."
                self._events.put(_Lost(host, silence if is_silent else describe_fault(error)))
        finally:
            if connection is not None:
                self._keepalive.remove(connection)
                connection.close()

    def _get_ready(self, connection: Connection) -> bool:
        """Checks a host, sends it the model if it lacks it, and lets it load it; returns whether it was sent."""
        self._check(connection)
        model = {"model": self._model.to_json()}
        find = {"do": "find_model", "fingerprint": self._fingerprint} | model
        is_here = self._ask(connection, find, "is_here")
        if not is_here:
            self._ask(connection, {"do": "remove_model", "path": str(self._folder)}, "removed")
            send_folder(connection, self._folder, self._ssh_config, self._is_over.is_set)
        load = {"do": "load_model", "num_workers": connection.host.num_workers} | model
        self._ask(connection, load, "loaded", LOAD_SECONDS)
        return not is_here

    def _check(self, connection: Connection) -> None:
        """Refuses a host with other code or another torch: its translations could differ."""
        run, name = RunFolder(self._folder), connection.host.name
        here = gather_facts(run, self._folder, "")
        request = {"do": "facts", "run": str(run.path), "prepared": str(run.path), "token": ""}
        there = HostFacts.from_json(name, self._ask(connection, request, "facts"), here)
        if there.torch != here.torch:
            raise HostError(
                connection.host,
                f"{name} has torch {there.torch}, this machine has {here.torch}: install the same on both.",
            )

    def _translate(self, connection: Connection, part: TextPart) -> TranslatedPart:
        block = {"first_number": part.block.first_number, "lines": list(part.block.lines)}
        request = {"do": "translate", "index": part.index, "order": self._order.to_json()} | block
        done = self._ask(connection, request, "translated", LONGEST_PART_SECONDS)
        return TranslatedPart(done["index"], done["text"], tuple(done["notices"]))

    def _ask(self, connection: Connection, request: Message, answer: str, timeout: float = 60.0) -> Any:
        return connection.ask(
            request, answer, timeout, lambda: connection.seconds_silent > HOST_TIMEOUT_SECONDS or self._is_over.is_set()
        )

    def _show(self, name: str, line: str) -> None:
        self._say(f"[{name}] {line}")


if __name__ == "__main__":
    main()
