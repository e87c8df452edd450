"""Measures the bytes of a step and the cost of a slow link: `python link_speed.py`, as root.

Two hosts with real links of a given rate (the rig of the tests) train with 1 and with 2 workers each. Compared are the
bytes counted at the hosts' interfaces with those of a ring all-reduce, and the seconds per step with those predicted
from the link's rate. Exit code 1 if the bytes are not those of the ring.
"""

import argparse
import sys
import tempfile
from dataclasses import asdict
from pathlib import Path
from typing import Any

from multi30k import REPOSITORY
from results import describe_machine, end_with, positive_count, save_result

from dragoman.builtin import write_builtin_corpus
from dragoman.corpus.preparation.prepare import prepare_corpus
from dragoman.corpus.settings import PrepareSettings, TokenizerSettings
from dragoman.run.errors import UserError

sys.path.append(str(REPOSITORY / "tests"))  # where the rig is
from link_measurement import LinkRun, Window, measure_links, write_link_config
from rig import Rig, rig_problem

HOST_LISTS = ("h1:1,h2:1", "h1:2,h2:2")
RATES = ("1gbit", "100mbit")
MAX_OVERHEAD_SHARE = 0.05
BASE_PARAMETERS = 60_880_896
"""Parameters of the preset transformer-base."""
SEEN_SECONDS_PER_STEP = 29.65
"""Measured in a public OpenSeq2Seq run of transformer-base on 2 hosts × 2 GPUs over 100 Mbit/s."""


def prepare_builtin(folder: Path) -> Path:
    """Prepares a few pairs of the built-in corpus; translation quality does not matter here."""
    corpus = write_builtin_corpus(folder / "corpus", num_train=1_000, num_dev=20, num_test=20)
    settings = PrepareSettings.of_files(
        [corpus.train.source],
        [corpus.train.target],
        dev=([corpus.dev.source], [corpus.dev.target]),
        tokenizer=TokenizerSettings(vocab_size=500),
    )
    prepare_corpus(settings, folder / "prepared", say=lambda _: None)
    return folder / "prepared"


def measure(folder: Path, num_steps: int) -> list[LinkRun]:
    """Makes one run for each host list, at all rates."""
    config = write_link_config(folder / "config.toml", prepare_builtin(folder))
    windows = dict.fromkeys((None, *RATES), num_steps)
    with Rig(folder=folder / "rig", hosts=2) as rig:
        return [
            measure_links(rig, hosts, config, folder / f"run-{number}", windows)
            for number, hosts in enumerate(HOST_LISTS)
        ]


def overhead_share(run: LinkRun, window: Window) -> float:
    """Share by which the busiest link carried more than the ring's bytes: headers, control messages, records."""
    return max(window.bytes_sent_per_step.values()) / run.ring_bytes - 1


def predicted_seconds(run: LinkRun, window: Window) -> float:
    """Predicts an unlimited step plus the bytes at the link's rate; the only bucket is sent after backward."""
    computing = run.window(None).seconds_per_step
    return computing if window.rate is None else computing + run.ring_seconds(window.rate)


def base_seconds_per_step() -> float:
    """Seconds for the gradients of transformer-base on 2 hosts × 2 workers at 100 Mbit/s."""
    return LinkRun(num_workers=4, gradient_bytes=4 * BASE_PARAMETERS, windows=()).ring_seconds("100mbit")


def describe_window(run: LinkRun, window: Window) -> dict[str, Any]:
    """Returns all figures of one rate."""
    return asdict(window) | {
        "seconds_per_step": window.seconds_per_step,
        "overhead_share": overhead_share(run, window),
        "predicted_seconds_per_step": predicted_seconds(run, window),
    }


def describe(runs: list[LinkRun]) -> dict[str, Any]:
    """Returns all figures of the result file."""
    return {
        "workload": "gradients of about a million parameters, fp32, 2 hosts on this machine, `dragoman train --hosts`",
        "max_overhead_share": MAX_OVERHEAD_SHARE,
        "runs": [
            {
                "workers": run.num_workers,
                "gradient_bytes": run.gradient_bytes,
                "ring_bytes": run.ring_bytes,
                "windows": [describe_window(run, window) for window in run.windows],
            }
            for run in runs
        ],
        "transformer_base_at_100mbit": {
            "gradient_bytes": 4 * BASE_PARAMETERS,
            "predicted_seconds_per_step": base_seconds_per_step(),
            "seen_seconds_per_step": SEEN_SECONDS_PER_STEP,
        },
    }


def print_run(run: LinkRun) -> None:
    """Prints a line per rate."""
    print(
        f"{run.num_workers} workers on 2 hosts, {run.gradient_bytes / 1e6:.2f} MB of gradients: "
        f"a ring sends {run.ring_bytes / 1e6:.2f} MB per step over each link"
    )
    for window in run.windows:
        print(
            f"  {window.rate or 'unlimited':>9}: {max(window.bytes_sent_per_step.values()) / 1e6:.2f} MB sent "
            f"({overhead_share(run, window):+.1%}), {window.seconds_per_step:.3f} s per step, "
            f"predicted {predicted_seconds(run, window):.3f} s"
        )


def main() -> int:
    """Measures, writes and prints; returns the exit code."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=positive_count, default=20, help="measured steps at each rate (default: 20)")
    options = parser.parse_args()
    if problem := rig_problem():
        raise UserError(problem)
    machine = describe_machine()
    with tempfile.TemporaryDirectory(prefix="dragoman-benchmark-") as folder:
        runs = measure(Path(folder), options.steps)
    path = save_result("link_speed", machine, describe(runs))
    for run in runs:
        print_run(run)
    print(
        f"transformer-base ({4 * BASE_PARAMETERS / 1e6:.1f} MB of gradients), 2 hosts × 2 workers at 100 Mbit/s: "
        f"{base_seconds_per_step():.1f} s per step by the same arithmetic, {SEEN_SECONDS_PER_STEP} s were measured"
    )
    print(f"Written to {path.relative_to(REPOSITORY)}")
    overheads = [overhead_share(run, window) for run in runs for window in run.windows]
    return 0 if max(map(abs, overheads)) <= MAX_OVERHEAD_SHARE else 1


if __name__ == "__main__":
    end_with(main)
