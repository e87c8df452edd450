"""Half precision through the whole program."""

from pathlib import Path

import pytest
from program import Run, read_records, train_losses


@pytest.mark.slow
def test_half_precision_learns_like_full_precision(dragoman: Run, config: Path, tmp_path: Path):
    for precision in ("fp32", "bf16", "fp16"):
        dragoman(
            "train", config, "--run-dir", tmp_path / precision, "--set", f"training.precision={precision}",
            "--set", "training.max_steps=25",
        )  # fmt: skip
    expected = train_losses(tmp_path / "fp32")
    assert expected[25] < expected[1] - 0.5
    for precision in ("bf16", "fp16"):
        assert train_losses(tmp_path / precision)[25] == pytest.approx(expected[25], rel=0.03)
        last = read_records(tmp_path / precision, "train")[-1]
        assert (last["loss_scale"] > 1) == (precision == "fp16")
