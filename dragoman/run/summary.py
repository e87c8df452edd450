"""A run in figures, from its files alone: what `--json` prints after training."""

import json
from typing import Any

from dragoman.run.errors import UserError
from dragoman.run.folder import RunFolder


def read_records(run: RunFolder) -> list[dict[str, Any]]:
    """All records of metrics.jsonl; a line cut off by a kill is passed over."""
    try:
        lines = run.metrics.read_text(encoding="utf-8").split("\n")
    except OSError as error:
        raise UserError(f"{run.metrics} cannot be read: {error.strerror}.") from None
    records = []
    for line in lines:
        try:
            record = json.loads(line)
        except ValueError:
            continue
        if isinstance(record, dict):
            records.append(record)
    return records


def summarise_run(run: RunFolder) -> dict[str, Any]:
    """The last record of each kind, and where the weights are."""
    last = {record.get("kind"): record for record in read_records(run)}
    links = {name: run.checkpoints / name for name in ("latest", "best")}
    return {
        "run": str(run.path),
        "step": last["checkpoint"]["step"] if "checkpoint" in last else None,
        "train": last.get("train"),
        "evaluation": last.get("evaluation"),
        "checkpoints": {name: str(link.resolve()) for name, link in links.items() if link.exists()},
    }
