"""Reads what a Marian log says about devices, data and the size of the model."""

import re

from dragoman.importing.imported_run import ImportedRun
from dragoman.importing.log_text import COUNT, parse_count
from dragoman.importing.trainers.marian_config import list_of, num_updates

_MAX_DEVICES = 1_000
_MIN_MEGABYTES = 4
"""Less memory, which Marian rounds down to whole megabytes, says too little about the number of parameters."""
_TAGS = ("[training] ", "[data] ", "[comm] ", "[memory] ")
_PROCESSES = re.compile(r"processed as (\d{1,6}) process\(es\) x (\d{1,6}) devices", re.ASCII)
_DEVICES = re.compile(
    r"\[training\] Using (\d{1,6}) \w{1,10}(?:, distributed over (\d{1,6}) MPI processes)?(?!\w)", re.ASCII
)
_MEMORY = re.compile(r"\[memory\] (?:Extending|Reserving) .{1,60}device ([a-z]{3}\d{1,4})", re.ASCII)
_RESERVED = re.compile(r"\[memory\] Reserving (\d{1,9}) MB, device", re.ASCII)
_PARAMETERS = re.compile(rf"(?:[Tt]otal|[Nn]umber of)(?: \w{{1,20}})? parameters:? ({COUNT})", re.ASCII)


class FactReader:
    """Reads lines about what the run consists of."""

    def __init__(self, run: ImportedRun) -> None:
        self._run = run
        self._devices: set[str] = set()
        """Devices of the newest launch."""
        self._trained_devices: set[str] | None = None
        """Devices of the last launch that made a step."""
        self._reserved_megabytes: int | None = None

    def read(self, text: str) -> None:
        """Reads the text of a line after its time."""
        if not text.startswith(_TAGS):
            if " parameters" in text and (match := _PARAMETERS.search(text)):
                self._run.facts["parameters"] = parse_count(match[1])
        elif text.startswith("[memory] "):
            self._read_memory(text)
        elif not self._read_devices(text):
            self._read_data(text)

    def begin_launch(self) -> None:
        """Begins a launch, which may use other devices than those before it."""
        self._devices = set()

    def note_training(self) -> None:
        """Notes that the newest launch made a step."""
        self._trained_devices = self._devices

    def finish(self) -> None:
        """Adds the facts that need all lines."""
        self._add_devices()
        self._add_parameters()

    def _read_devices(self, text: str) -> bool:
        facts = self._run.facts
        if match := _PROCESSES.search(text):
            facts["num_ranks"], facts["ranks_per_host"] = int(match[1]) * int(match[2]), int(match[2])
        elif match := _DEVICES.match(text):
            num_processes = int(match[2] or 1)
            facts["num_ranks"], facts["ranks_per_host"] = int(match[1]), int(match[1]) // max(1, num_processes)
        return match is not None

    def _read_data(self, text: str) -> None:
        facts = self._run.facts
        if text.startswith("[data] Setting vocabulary size for input "):
            facts["vocab_size"] = parse_count(text.rpartition(" to ")[2])
        elif text.startswith("[data] Done reading "):
            facts["num_training_pairs"] = parse_count(text.removeprefix("[data] Done reading ").partition(" ")[0])
        elif text.startswith("[comm] Using NCCL "):
            facts["software"] = facts.get("software", {}) | {"nccl": text.split(" ", 4)[3][:20]}

    def _read_memory(self, text: str) -> None:
        match = _MEMORY.match(text)
        if match and len(self._devices) < _MAX_DEVICES:
            self._devices.add(match[1])
        reserved = _RESERVED.match(text)
        if reserved and self._reserved_megabytes is None:
            self._reserved_megabytes = int(reserved[1])

    def _add_devices(self) -> None:
        """Adds the number of devices, from the lines about memory or the configuration where no line says it."""
        run, config = self._run, self._run.printed_config
        num_threads = num_updates(config.get("cpu-threads")) or 0
        listed = " ".join(list_of(config.get("devices"))).split()
        used = self._devices if self._trained_devices is None else self._trained_devices
        # Marian also keeps averaged weights in main memory, which is no device that trains.
        gpus = {device for device in used if not device.startswith("cpu")}
        if "num_ranks" not in run.facts and (used or num_threads or listed):
            run.facts["num_ranks"] = len(gpus or used) or num_threads or len(listed)
        if num_threads or (used and not gpus):
            run.note("Marian trained on the CPU, not on a GPU.")

    def _add_parameters(self) -> None:
        """Estimates the parameters from the first memory that Marian reserves, which is for them."""
        run, megabytes = self._run, self._reserved_megabytes
        if "parameters" in run.facts or megabytes is None or megabytes < _MIN_MEGABYTES:
            return
        num_bytes = 2 if run.facts.get("precision") == "mixed" else 4
        run.facts["parameters"] = round(round((megabytes + 0.5) * 2**20 / num_bytes), -5)
        run.facts["are_parameters_estimated"] = True
        run.note("The number of parameters is estimated from the memory that Marian reserved for them.")
