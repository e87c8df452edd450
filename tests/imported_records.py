"""Records of imported runs, for tests of the report."""

from typing import Any

BEGAN = 1_600_000_000.0


def train(step: int, **figures: Any) -> dict[str, Any]:
    record = {"kind": "train", "step": step, "loss": 3.0, "seconds_per_step": 1.0, "time": BEGAN + step} | figures
    return {name: value for name, value in record.items() if value is not None}


def evaluation(step: int, **figures: Any) -> dict[str, Any]:
    return {"kind": "evaluation", "step": step, "time": BEGAN + step} | figures


def curve_of(bleus: list[float | None], losses: list[float] | None = None, every: int = 1_000) -> list[dict[str, Any]]:
    """Records with an evaluation every so many steps."""
    records: list[dict[str, Any]] = []
    for number, bleu in enumerate(bleus, 1):
        loss = losses[number - 1] if losses else 2.0 + 3.0 / number
        scores = {"loss": loss} if bleu is None else {"loss": loss, "bleu": bleu}
        records += [train(every * number), evaluation(every * number, **scores)]
    return records


RISING = [26 - 25 * number**-0.4 for number in range(1, 31)]
