"""Runs with an artificial bottleneck, and the verdict on each; used by prediction.py."""

import json
import os
import subprocess
import sys
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from held_back import CONTROL_GROUPS
from multi30k import REPOSITORY

from dragoman.diagnosis.verdict import Verdict, verdict_of_run
from dragoman.run.config import build_settings, dump_settings
from dragoman.run.errors import UserError
from dragoman.run.folder import RunFolder

sys.path.append(str(REPOSITORY / "tests"))  # for host_runs
from host_runs import ONE_THREAD

TIMEOUT_SECONDS = 180
MODEL = {"preset": "small", "width": 128, "feed_forward": 512, "encoder_layers": 2, "decoder_layers": 2}
TRAINING = {"max_steps": 40, "log_every": 5, "global_batch_tokens": 2_048, "virtual_workers": 2, "warmup_steps": 100}


@dataclass(frozen=True)
class Case:
    """One way to slow a run down."""

    name: str
    bottleneck: str
    """The right verdict."""
    cause: str = "none"
    amount: float = 0.0
    num_workers: int = 2
    overrides: tuple[str, ...] = ()


CASES = (
    Case("computing, one worker", "compute", num_workers=1),
    Case("computing, two workers", "compute"),
    Case("computing, larger model", "compute", overrides=("model.width=256", "model.feed_forward=1024")),
    Case(
        "computing, larger batch", "compute", overrides=("training.global_batch_tokens=4096", "training.max_steps=30")
    ),
    Case("slow data on all ranks", "input", "data", 0.2),
    Case("very slow data on all ranks", "input", "data", 0.5),
    Case("slow data, one worker", "input", "data", 0.2, num_workers=1),
    Case("slow data on one rank", "input", "data-rank1", 0.3),
    Case("one rank throttled to 30 %", "straggler", "throttle", 30),
    Case("one rank throttled to 50 %", "straggler", "throttle", 50),
    Case("one rank throttled to 60 %", "straggler", "throttle", 60),
    Case("one rank shares its core with a loop", "straggler", "load", 1),
    Case("one rank shares its core with two loops", "straggler", "load", 2),
    Case("evaluation every 5 steps", "overhead", overrides=("evaluation.evaluate_every=5",)),
    Case("evaluation every 10 steps", "overhead", overrides=("evaluation.evaluate_every=10",)),
    Case(
        "evaluation every 10 steps, one worker", "overhead", num_workers=1, overrides=("evaluation.evaluate_every=10",)
    ),
    Case("batches of 64 tokens", "overhead", overrides=("training.global_batch_tokens=64", "training.max_steps=200")),
    Case("batches of 128 tokens", "overhead", overrides=("training.global_batch_tokens=128", "training.max_steps=200")),
    Case(
        "batches of 64 tokens, one worker",
        "overhead",
        num_workers=1,
        overrides=("training.global_batch_tokens=64", "training.max_steps=200"),
    ),
)


@dataclass(frozen=True)
class Judged:
    """A case, and the verdict of dragoman on it."""

    case: Case
    verdict: Verdict

    @property
    def is_right(self) -> bool:
        """Whether the true cause was found."""
        return self.verdict.bottleneck == self.case.bottleneck


def run_case(case: Case, prepared: Path, folder: Path) -> Judged:
    """Trains a case and returns the verdict on it."""
    folder.mkdir()
    config = folder / "config.toml"
    values = {
        "data": {"prepared": str(prepared)},
        "model": MODEL,
        "training": TRAINING,
        "evaluation": {"evaluate_every": 10_000, "max_sentences": 40},
        "checkpoints": {"save_every": 10_000},
    }
    config.write_text(dump_settings(build_settings(values, list(case.overrides))), encoding="utf-8")
    run = RunFolder(folder / "run")
    command = [
        sys.executable,
        *("-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(case.num_workers)),
        str(Path(__file__).with_name("held_back.py")),
        *(case.cause, str(case.amount), "train", str(config), "--run-dir", str(run.path)),
    ]
    done = subprocess.run(
        command, env=os.environ | ONE_THREAD, capture_output=True, text=True, timeout=TIMEOUT_SECONDS, check=False
    )
    remove_control_groups()
    if done.returncode:
        raise UserError(f"{case.name}: training failed: {done.stderr[-500:]}")
    return Judged(case, verdict_of_run(run))


def remove_control_groups() -> None:
    """Removes the control groups of throttled ranks, which cannot do it while they are members."""
    for group in (*CONTROL_GROUPS.glob("dragoman-*"), *CONTROL_GROUPS.glob("cpu/dragoman-*")):
        with suppress(OSError):
            group.rmdir()


def describe_judged(judged: Judged) -> dict[str, object]:
    """Returns all figures of one case."""
    return {
        "case": judged.case.name,
        "true": judged.case.bottleneck,
        "is_right": judged.is_right,
        "verdict": json.loads(json.dumps(judged.verdict.to_json())),
    }
