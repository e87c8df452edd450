"""All a report argues from: the files of a run, read once, checked and put in order."""

import tomllib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from heapq import heappop, heappush
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dragoman.model.shape import ModelShape, count_parameters, resolve_shape, shape_from_dict
from dragoman.run.errors import UserError
from dragoman.run.files import read_json
from dragoman.run.folder import RunFolder
from dragoman.run.following import observe_run
from dragoman.run.status import number_or_none
from dragoman.run.summary import Record, parse_record

Floats = NDArray[np.float64]
MAX_TRAIN_RECORDS = 100_000
"""More are thinned out: a curve needs no more points, and a report must fit into memory."""
MAX_RECORD_CHARACTERS = 1_000_000
MAX_SCORES = 1_000


@dataclass(frozen=True)
class Known:
    """What a person knows of a run that its files do not tell."""

    nodes: int | None = None
    gpus_per_node: int | None = None
    gpu: str | None = None
    link: str | None = None
    price_per_hour: float | None = None


@dataclass(frozen=True)
class Restart:
    """One time the run began again."""

    step: int
    cause: str
    repeated_steps: int
    """Made once more, because the checkpoint was older."""
    repeated_seconds: float
    silent_seconds: float | None
    """From the last sign of life to the restart; None where the records have no times."""


@dataclass(frozen=True)
class Evidence:
    """A run as its files tell it."""

    run: RunFolder
    known: Known
    config: dict[str, Any]
    imported: dict[str, Any]
    """Empty for our own runs."""
    train: list[Record]
    """Logged intervals of steps; those that were made again after a restart are there once."""
    evaluations: list[Record]
    checkpoints: list[Record]
    restarts: list[Restart]
    predictions: list[Record]
    records: list[Record] = field(repr=False)
    """All, in the order they were written."""
    state: str = "unknown"

    @cached_property
    def scores(self) -> list[Record]:
        """On test sets, as `dragoman evaluate` noted them; the last of each step and set."""
        found = {}
        for _, line in zip(range(MAX_SCORES), _lines(self.run.scores), strict=False):
            record = parse_record(line) or {}
            if number_or_none(record.get("bleu")) is not None:
                found[str(record.get("step")), str(record.get("judged_on"))] = record
        return list(found.values())

    @property
    def is_foreign(self) -> bool:
        """Whether another trainer made the run."""
        return bool(self.imported)

    @property
    def trainer(self) -> str:
        """The program that trained."""
        return str(self.imported.get("trainer", "dragoman"))

    @property
    def facts(self) -> dict[str, Any]:
        """What a foreign log tells of the run."""
        return table(self.imported.get("facts"))

    @property
    def training(self) -> dict[str, Any]:
        """The [training] settings."""
        return table(self.config.get("training"))

    @cached_property
    def shape(self) -> ModelShape | None:
        """Of the model, from a checkpoint, or from the settings and the vocabulary."""
        for step in reversed(self.run.checkpoint_steps()):
            state = read_json_or_none(self.run.checkpoint(step) / "state.json")
            try:
                shape = shape_from_dict(table(table(state).get("model")))
            except (ValueError, TypeError, ArithmeticError, UserError):
                continue
            if _is_model(shape):
                return shape
        return self._shape_from_settings()

    def _shape_from_settings(self) -> ModelShape | None:
        from pydantic import ValidationError

        from dragoman.run.config import ModelSettings

        tokenizer = table(self.manifest.get("tokenizer"))
        sizes = [number_or_none(tokenizer.get(f"num_{side}_pieces")) for side in ("source", "target")]
        if self.is_foreign or None in sizes:
            return None
        padded = [-(-int(size or 0) // 8) * 8 for size in sizes]
        try:
            settings = ModelSettings.model_validate(table(self.config.get("model")))
            shape = resolve_shape(settings, padded[0], padded[1], bool(tokenizer.get("is_joint")))
        except (ValidationError, UserError):
            return None
        return shape if _is_model(shape) else None

    @cached_property
    def parameters(self) -> int | None:
        """Trainable ones."""
        told = number_or_none(self.facts.get("parameters"))
        if told is not None and told >= 1:
            return int(told)
        return None if self.shape is None else count_parameters(self.shape)

    @cached_property
    def manifest(self) -> dict[str, Any]:
        """What is known of the prepared corpus: as the run noted it, or from the corpus itself."""
        noted = table(read_json_or_none(self.run.corpus_facts))
        prepared = table(self.config.get("data")).get("prepared")
        if noted or not isinstance(prepared, str) or self.is_foreign:
            return noted
        return table(read_json_or_none(Path(prepared) / "manifest.json"))

    @cached_property
    def num_ranks(self) -> int | None:
        """Processes that trained, as the last records say."""
        told = number_or_none(self.facts.get("num_ranks"))
        if told is None:
            rows = [record.get("work_seconds_by_rank") for record in self.train[-1:]]
            told = len(rows[0]) if rows and isinstance(rows[0], list) else None
        if told is None and self.num_nodes and self.known.gpus_per_node:
            told = self.num_nodes * self.known.gpus_per_node
        return int(told) if told and told >= 1 else None

    @property
    def num_nodes(self) -> int | None:
        """Machines that trained: as measured, as a log tells completely, as a person says, or as far as a log tells."""
        hosts = self.facts.get("hosts")
        num_hosts = len(hosts) if isinstance(hosts, list) else 0
        told = [number_or_none(self.facts.get(name)) for name in ("ranks_per_host", "num_ranks")]
        is_complete = num_hosts > 0 and None not in told and num_hosts * (told[0] or 0) == told[1]
        measured = len(self.run.system_files())
        return measured or (num_hosts if is_complete else None) or self.known.nodes or num_hosts or None

    @property
    def price_per_hour(self) -> float | None:
        """Of the whole cluster."""
        given = self.known.price_per_hour
        return number_or_none(self.training.get("price_per_hour")) if given is None else given

    @property
    def first_step(self) -> int | None:
        """The earliest that something is known of."""
        steps = [record["step"] for record in (*self.train, *self.evaluations)]
        return min(steps) if steps else None

    @property
    def last_step(self) -> int | None:
        """The last that something is known of."""
        steps = [record["step"] for record in (*self.train, *self.evaluations)]
        return max(steps) if steps else None

    @cached_property
    def step_seconds(self) -> Floats:
        """Seconds per step of every logged interval that has them."""
        return curve(self.train, "seconds_per_step")[1]


def read_evidence(run: RunFolder, known: Known | None = None) -> Evidence:
    """Reads a run folder; what is damaged or missing is left out, and said by those who miss it."""
    records = list(_read_records(run))
    imported = table(read_json_or_none(run.imported))
    kept, restarts = _without_repetitions(records)
    by_kind: dict[str, list[Record]] = {}
    for record in kept:
        by_kind.setdefault(record["kind"], []).append(record)
    return Evidence(
        run=run,
        known=known or Known(),
        config=_read_config(run),
        imported=imported,
        train=by_kind.get("train", []),
        evaluations=_one_for_each_step(by_kind.get("evaluation", [])),
        checkpoints=by_kind.get("checkpoint", []),
        restarts=restarts,
        predictions=by_kind.get("prediction", []),
        records=records,
        state=_state(run, imported),
    )


def curve(records: Sequence[Record], name: str) -> tuple[Floats, Floats]:
    """The steps and values of the records that have a figure."""
    found = [(record["step"], value) for record in records if (value := number_or_none(record.get(name))) is not None]
    steps, values = zip(*found, strict=True) if found else ((), ())
    return np.array(steps, dtype=np.float64), np.array(values, dtype=np.float64)


def table(value: Any) -> dict[str, Any]:
    """What should be a table, if it is one."""
    return value if isinstance(value, dict) else {}


def read_json_or_none(path: Path) -> Any:
    """A JSON file, if it is there and whole."""
    try:
        return read_json(path)
    except (OSError, ValueError, RecursionError):
        return None


def _read_config(run: RunFolder) -> dict[str, Any]:
    try:
        return tomllib.loads(run.config.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError):
        return {}


def _is_model(shape: ModelShape) -> bool:
    """Whether one can reckon with its sizes: the checkpoint may be a stranger's."""
    dropouts = (shape.dropout, shape.attention_dropout, shape.relu_dropout)
    sizes = [value for name, value in vars(shape).items() if not name.endswith(("dropout", "shares_vocabulary"))]
    return all(number_or_none(value) is not None for value in dropouts) and all(
        isinstance(size, int) and number_or_none(int(size)) is not None and size >= 1 for size in sizes
    )


def _state(run: RunFolder, imported: dict[str, Any]) -> str:
    if imported:
        return "finished" if table(imported.get("facts")).get("is_finished") else "stopped"
    try:
        return observe_run(run).state
    except UserError:
        return "unknown"


def _read_records(run: RunFolder) -> Iterator[Record]:
    """All records that are whole and have a step; training records are thinned out where there are too many."""
    train: list[Record] = []
    others: list[Record] = []
    ends: list[Record] = []
    stride, num_seen = 1, 0
    for number, line in enumerate(_lines(run.metrics)):
        record = parse_record(line)
        if record is None or not _is_record(record):
            continue
        record["line"] = number
        if record["kind"] != "train":
            others.append(record)
            continue
        num_seen += 1
        ends = [*ends[:1], record]
        if num_seen % stride == 0:
            train.append(record)
        if len(train) > MAX_TRAIN_RECORDS:
            train, stride = train[1::2], stride * 2
    # Where a run begins and ends is told exactly, however many records were left out.
    by_line = {record["line"]: record for record in (*train, *ends, *others[-MAX_TRAIN_RECORDS:])}
    yield from (by_line[number] for number in sorted(by_line))


def _lines(path: Path) -> Iterator[str]:
    try:
        with path.open(encoding="utf-8", errors="replace", newline="\n") as file:
            while line := file.readline(MAX_RECORD_CHARACTERS):
                yield line
    except FileNotFoundError:
        return
    except OSError as error:
        raise UserError(f"{path} cannot be read: {error.strerror}.") from None


def _is_record(record: Record) -> bool:
    step = record.get("step")
    is_step = isinstance(step, int) and not isinstance(step, bool) and 0 <= step < 2**53
    return is_step and isinstance(record.get("kind"), str)


def _without_repetitions(records: Sequence[Record]) -> tuple[list[Record], list[Restart]]:
    """What a run was made of in the end: steps after the checkpoint it went back to were made again."""
    restarts: list[Restart] = []
    lost_lines: set[int] = set()
    # Highest step first: a run of many records that crashed a thousand times must not take minutes.
    by_step: list[tuple[int, int, Record]] = []
    before = records[0] if records else {}
    for record in records:
        if record["kind"] == "restart":
            lost = []
            while by_step and -by_step[0][0] > record["step"]:
                lost.append(heappop(by_step)[2])
            lost_lines.update(each["line"] for each in lost)
            restarts.append(_restart(record, [each for each in lost if each["kind"] == "train"], before))
        heappush(by_step, (-record["step"], record["line"], record))
        before = record
    return [record for record in records if record["line"] not in lost_lines], restarts


def _restart(record: Record, lost: Sequence[Record], before: Record) -> Restart:
    times = [number_or_none(each.get("time")) for each in (before, record)]
    silent = None if None in times else max(0.0, float(times[1] or 0) - float(times[0] or 0))
    num_lost = max((each["step"] for each in lost), default=record["step"]) - record["step"]
    seconds = [value for each in lost if (value := number_or_none(each.get("seconds_per_step"))) is not None]
    cause = record.get("cause")
    return Restart(
        step=record["step"],
        cause=cause if isinstance(cause, str) else "",
        repeated_steps=num_lost,
        repeated_seconds=num_lost * (sum(seconds) / len(seconds)) if seconds else 0.0,
        silent_seconds=silent,
    )


def _one_for_each_step(evaluations: Sequence[Record]) -> list[Record]:
    """The last one of each step, in order of steps: a resumed run may judge a step again."""
    return [record for _, record in sorted({record["step"]: record for record in evaluations}.items())]
