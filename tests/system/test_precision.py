"""Half precision through the whole program, as a person would switch it on."""

from pathlib import Path

import pytest
from program import Run, read_records, train_losses


@pytest.mark.parametrize("precision", ["bf16", "fp16"])
def test_half_precision_learns_like_full_precision(dragoman: Run, config: Path, tmp_path: Path, precision: str):
    for kind in ("fp32", precision):
        dragoman("train", config, "--run-dir", tmp_path / kind, "--set", f"training.precision={kind}")
    losses, expected = train_losses(tmp_path / precision), train_losses(tmp_path / "fp32")
    assert losses[50] == pytest.approx(expected[50], rel=0.03)
    last = read_records(tmp_path / precision, "train")[-1]
    assert (last["loss_scale"] > 1) == (precision == "fp16")
