"""Do whole runs come out as they must? The same losses on any number of workers, the same bytes after a resume.

The runs are commands of their own, as a person would type them, on the reversal task.
"""

import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dragoman.api import prepare, train
from dragoman.builtin.reversal import write_reversal_corpus
from dragoman.diagnosis.prediction import MeasuredLink, Measurements
from dragoman.launch.check import check_machines
from dragoman.launch.hosts import Placement, parse_hosts
from dragoman.run.checkpoints import MODEL_FILE
from dragoman.run.config import load_settings
from dragoman.run.errors import UserError
from dragoman.run.files import sha256
from dragoman.run.folder import RunFolder
from dragoman.run.records import TrainRecord
from dragoman.run.summary import read_records
from dragoman.run.units import format_bytes, format_rate
from dragoman.selftest.stage_result import StageResult

NUM_STEPS = 12
LARGEST_LOSS_DIFFERENCE = 1e-4
"""Relative; workers add up the same numbers in another order."""
CHECK_SECONDS = 12.0
_NUM_PAIRS = 2_000
_VOCAB_SIZE = 57
_CONFIG = """# A tiny model that reverses letters: only how it is computed matters here.
[data]
prepared = "{prepared}"

[model]
preset = "tiny"

[training]
max_steps = {num_steps}
global_batch_tokens = 1024
virtual_workers = {virtual_workers}
warmup_steps = 10
log_every = 1
precision = "fp32"

[evaluation]
evaluate_every = 1000
max_sentences = 4
beam_size = 1

[cluster]
check = "never"
"""


@dataclass(frozen=True)
class RunsOfTest:
    """The folder of the runs, and where workers are started."""

    folder: Path
    num_workers: int
    """Workers of the second run on this machine; 1 where it has only one device."""
    hosts: str | None = None
    ssh_config: Path | None = None

    @property
    def config(self) -> Path:
        """The settings of all runs."""
        return self.folder / "config.toml"

    def write_corpus(self) -> None:
        """Writes and prepares the text, and the settings."""
        corpus = write_reversal_corpus(self.folder / "corpus", num_train=_NUM_PAIRS, num_dev=50, num_test=50)
        (dev_source, dev_target), (test_source, test_target) = corpus.dev, corpus.test
        files = {
            "dev_source": dev_source,
            "dev_target": dev_target,
            "test_source": test_source,
            "test_target": test_target,
        }
        prepared = self.folder.absolute() / "prepared"
        options = files | {"cleaning": "none", "vocab_size": _VOCAB_SIZE}
        prepare(*corpus.train, prepared, options=options)
        virtual_workers = max(2, self._placement.num_workers or 0)
        text = _CONFIG.format(prepared=prepared, num_steps=NUM_STEPS, virtual_workers=virtual_workers)
        self.config.write_text(text, encoding="utf-8")

    def check_workers(self) -> StageResult:
        """Trains with one worker and with several, and compares the losses of all steps."""
        alone = self._train("one-worker")
        if self.hosts is None and self.num_workers < 2:
            return StageResult("skipped", "There is only one device here: several workers need as many devices.")
        together = self._train("several-workers", **self._placement_options)
        where = f"on {self.hosts}" if self.hosts else f"{self.num_workers} workers"
        difference = _largest_difference(_losses(alone), _losses(together))
        figures = {"largest_loss_difference": difference, "steps": NUM_STEPS}
        if not difference <= LARGEST_LOSS_DIFFERENCE:
            why = (
                f"The losses of one worker and {where} differ by up to {difference:.1e} (relative; up to "
                f"{LARGEST_LOSS_DIFFERENCE:.0e} is rounding): their sums of gradients are wrong."
            )
            return StageResult("failed", why, figures)
        why = f"One worker and {where}: the same losses over {NUM_STEPS} steps (difference {difference:.1e})."
        return StageResult("passed", why, figures)

    def check_resume(self) -> StageResult:
        """Trains half of the steps, resumes, and compares the weights with those of the whole run, bit for bit."""
        halved = self._train("resumed", max_steps=NUM_STEPS // 2)
        self._train("resumed", is_resumed=True)
        hashes = [sha256(run.checkpoint(NUM_STEPS) / MODEL_FILE) for run in (self._run("one-worker"), halved)]
        figures = {"sha256": dict(zip(("uninterrupted", "resumed"), hashes, strict=True)), "steps": NUM_STEPS}
        if hashes[0] != hashes[1]:
            why = (
                "The weights of a resumed run are not those of the uninterrupted one. On a GPU some kernels add up in "
                "an order that changes; otherwise something was not restored."
            )
            return StageResult("failed", why, figures)
        return StageResult("passed", f"A run resumed at step {NUM_STEPS // 2} ends with the same bytes.", figures)

    def check_collectives(self) -> StageResult:
        """Measures links and the sum of gradients between the workers, as `dragoman check` does."""
        placement = self._placement
        if placement.is_only_this_machine and self.num_workers < 2:
            return StageResult("skipped", "One worker exchanges nothing.")
        settings = load_settings(self.config, [])
        result = check_machines(settings, placement, CHECK_SECONDS, lambda _: None)
        if result.measured is None:
            return StageResult("failed", " ".join(result.problems) or "Nothing could be measured.")
        links = [link.to_json() for link in result.measured.links]
        figures = {"links": links, "measured": result.measured.to_json(), "problems": result.problems}
        exchange = _describe_exchange(result.measured)
        if result.problems or exchange is None:
            why = " ".join(result.problems) or "The exchange of gradients was not measured in time."
            return StageResult("warned", why, figures)
        return StageResult("passed", exchange, figures)

    @property
    def _placement(self) -> Placement:
        if self.hosts is None:
            return Placement.on_this_machine(self.num_workers)
        return Placement(parse_hosts(self.hosts), ssh_config=self.ssh_config, is_data_sent=True)

    @property
    def _placement_options(self) -> dict[str, Any]:
        if self.hosts is None:
            return {"workers": self.num_workers}
        return {"hosts": self.hosts, "ssh_config": self.ssh_config, "send_data": True}

    def _run(self, name: str) -> RunFolder:
        return RunFolder(self.folder.absolute() / name)

    def _train(self, name: str, max_steps: int = NUM_STEPS, is_resumed: bool = False, **options: Any) -> RunFolder:
        run = self._run(name)
        train(
            None if is_resumed else self.config,
            run_dir=run.path,
            settings={"training.max_steps": max_steps},
            options={"resume": is_resumed, **(options or ({} if is_resumed else {"workers": 1}))},
        )
        return run


def _losses(run: RunFolder) -> dict[int, float]:
    records = [record for record in read_records(run) if isinstance(record, TrainRecord)]
    return {record.step: float(record.loss) for record in records if record.loss is not None}


def _largest_difference(first: dict[int, float], second: dict[int, float]) -> float:
    """Returns the largest relative difference; infinite where a step is missing or not a number."""
    if set(first) != set(range(1, NUM_STEPS + 1)) or set(first) != set(second):
        raise UserError("A run of the self-test did not record all of its steps.")
    differences = [abs(second[step] - loss) / abs(loss) for step, loss in first.items()]
    return max(differences) if all(map(math.isfinite, differences)) else math.inf


def _describe_exchange(measured: Measurements) -> str | None:
    """Says how fast the workers exchange; None if that was not measured."""
    transfers = measured.all_reduce or measured.all_reduce_inside
    if not transfers:
        return None
    largest = transfers[-1]
    rate = largest.num_bytes / largest.seconds
    summed = f"Sums of {format_bytes(largest.num_bytes)} take {largest.seconds * 1e3:.1f} ms ({format_rate(rate)})"
    slowest = min(measured.links, key=_rate, default=None)
    if slowest is None:
        return f"{summed}."
    link = f"{slowest.sender} to {slowest.receiver}, {format_rate(_rate(slowest))}"
    return f"{summed}; the slowest link is {link}."


def _rate(link: MeasuredLink) -> float:
    return link.bytes_per_second
