"""Measures false alarms and power of the overfitting test on simulated curves: `python benchmarks/overfitting.py`.

*False alarms*: curves that fall or are flat, with noise of many kinds, above all noise that neighbouring evaluations
share. The test states 5 %; exit code 1 if it is certainly more in any cell (one-sided binomial test, corrected for the
number of cells), or more than 5 % over all cells of a kind of noise. *Power*: curves whose dev loss rises from its
minimum by 1 to 5 %. The noise of real curves (--curves, as in forecast.py; second halves) is given in the same unit.
"""

import argparse
import json
from collections.abc import Callable
from pathlib import Path
from statistics import fmean
from typing import Any

import numpy as np
from results import describe_machine, end_with, positive_count, save_result

from dragoman.diagnosis.overfitting import STATED_ALARMS, Floats, find_overfitting

NUM_EVALUATIONS = (5, 8, 12, 20, 30, 50, 100, 200)
NOISE_SHARE = 0.002
"""Standard deviation of the noise as a share of the loss, as in the noisier half of real runs."""
LEAST_SURE = 0.01
"""Probability below which too many false alarms are not chance, over all cells together."""
TESTS = ("rise", "gap")
Random = np.random.Generator
Noise = Callable[[Random, int], Floats]


def _falling(progress: Floats) -> Floats:
    """A power law, as with an inverse square root schedule."""
    return np.asarray(1.5 + 0.25 * progress**-0.5)


def _cosine(progress: Floats) -> Floats:
    """A loss that falls with the rate and is level at the end."""
    return np.asarray(1.6 + 0.5 * progress**-0.3 * (0.4 + 0.6 * np.cos(np.pi * progress / 2) ** 2) - 0.2)


def _plateau(progress: Floats) -> Floats:
    """A loss that falls for a third of the run and then stays the same."""
    return np.maximum(_falling(progress), _falling(np.array([1 / 3])))


SHAPES: dict[str, Callable[[Floats], Floats]] = {
    "falling": _falling,
    "cosine": _cosine,
    "plateau": _plateau,
    "flat": lambda progress: 0 * progress + 1.9,
}


def shared(correlation: float, degrees: float | None = None) -> Noise:
    """Noise whose neighbours are correlated (AR(1)); with few degrees of freedom it has heavy tails."""

    def draw(random: Random, count: int) -> Floats:
        new = random.standard_normal(count) if degrees is None else random.standard_t(degrees, count) / 3**0.5
        found = new.copy()
        for i in range(1, count):
            found[i] = correlation * found[i - 1] + (1 - correlation**2) ** 0.5 * new[i]
        return found

    return draw


def walking(size: float, white: float) -> Noise:
    """A random walk with steps of a size, and independent noise."""
    return lambda random, count: np.cumsum(size * random.standard_normal(count)) + white * random.standard_normal(count)


def _shrinking(random: Random, count: int) -> Floats:
    return shared(0.6)(random, count) * np.linspace(3, 0.5, count)


def _dev_set(random: Random, count: int) -> Floats:
    """An error of the dev set that all evaluations share, and noise whose neighbours are correlated."""
    return 5 * random.standard_normal() + shared(0.8)(random, count)


def _rounded(random: Random, count: int) -> Floats:
    """Independent noise of a log with two digits."""
    return np.round(shared(0.0)(random, count) * NOISE_SHARE * 1.9, 2) / (NOISE_SHARE * 1.9)


NOISES: dict[str, Noise] = {
    "independent": shared(0.0),
    **{f"shared, {c}": shared(c) for c in (0.3, 0.6, 0.8, 0.9, 0.95)},
    "random walk": walking(1.0, 0.0),
    "small random walk and independent": walking(0.3, 1.0),
    "heavy tails": shared(0.0, 3),
    "heavy tails, shared, 0.7": shared(0.7, 3),
    "shrinking": _shrinking,
    "error of the dev set": _dev_set,
    "rounded": _rounded,
}
RISE_SHARES = (0.01, 0.02, 0.03, 0.05)
RISE_NOISES = {"independent": shared(0.0), "shared, 0.6": shared(0.6), "random walk": walking(0.3, 0.5)}


def overfitted(progress: Floats, rise: float) -> Floats:
    """A loss that rises over the last third of the run by a share of its minimum."""
    lowest = _falling(np.array([2 / 3]))
    return np.asarray(np.maximum(_falling(progress), lowest) * (1 + rise * np.clip(3 * progress - 2, 0, 1)))


def settled(progress: Floats, rise: float) -> Floats:
    """A loss that rose in the middle of the run and stays there."""
    lowest = _falling(np.array([0.4]))
    return np.asarray(np.maximum(_falling(progress), lowest) * (1 + rise * np.clip((progress - 0.4) / 0.17, 0, 1)))


def share_found(curve: Floats, noise: Noise, share: float, repetitions: int, seed: int) -> tuple[float, float]:
    """Returns how often a curve is called overfitting, and how often memorising with a training loss 0.2 below it."""
    overfitting = memorising = 0
    for repetition in range(repetitions):
        random = np.random.default_rng([seed, repetition])
        dev = curve + share * 1.9 * noise(random, len(curve))
        train = curve - 0.2 + share * 1.9 * noise(random, len(curve))
        found = find_overfitting(range(1, len(curve) + 1), dev.tolist(), train.tolist())
        assert found is not None
        overfitting += found.is_overfitting
        memorising += found.is_memorising
    return overfitting / repetitions, memorising / repetitions


def measure_false_alarms(repetitions: int) -> list[dict[str, Any]]:
    """Returns a row for each shape, noise and number of evaluations."""
    rows: list[dict[str, Any]] = []
    for name, noise in NOISES.items():
        for shape, formula in SHAPES.items():
            for count in NUM_EVALUATIONS:
                curve = formula(np.arange(1, count + 1) / count)
                rise, gap = share_found(curve, noise, NOISE_SHARE, repetitions, len(rows))
                rows.append({"noise": name, "shape": shape, "evaluations": count, "rise": rise, "gap": gap})
    return rows


def measure_power(repetitions: int) -> list[dict[str, Any]]:
    """Returns a row for each rise, noise and number of evaluations."""
    rows: list[dict[str, Any]] = []
    for kind, formula in {"last third": overfitted, "settled": settled}.items():
        for rise in RISE_SHARES:
            for name, noise in RISE_NOISES.items():
                for share in (NOISE_SHARE / 2, NOISE_SHARE):
                    for count in (12, 20, 30, 60, 200):
                        curve = formula(np.arange(1, count + 1) / count, rise)
                        found, _ = share_found(curve, noise, share, repetitions, len(rows))
                        row = {"rise": rise, "noise": name, "noise_share": share, "evaluations": count, "found": found}
                        rows.append({"kind": kind} | row)
    return rows


def real_noise(curves: Path) -> dict[str, float]:
    """Returns quartiles of the noise of real losses, as a share of the loss, and of the correlation of changes."""
    noises, correlations = [], []
    for entry in json.loads(curves.read_text(encoding="utf-8")):
        losses = np.array(entry.get("loss", []))
        late = losses[len(losses) // 2 :]
        if len(late) >= 5:
            noises.append(float(np.sqrt(np.mean(np.diff(late, 2) ** 2) / 6) / late.mean()))
            correlations.append(float(np.corrcoef(np.diff(late)[1:], np.diff(late)[:-1])[0, 1]))
    kinds = {"noise_share": noises, "correlation_of_changes": correlations}
    return {f"{name}_{q:.0%}": float(np.quantile(each, q)) for name, each in kinds.items() for q in (0.25, 0.5, 0.75)}


def surely_too_many(share: float, repetitions: int, num_cells: int) -> bool:
    """Whether so many false alarms cannot be chance if 5 % is true."""
    from scipy.special import bdtrc

    return bool(bdtrc(round(share * repetitions) - 1, repetitions, STATED_ALARMS) < LEAST_SURE / num_cells)


def summarise_alarms(alarms: list[dict[str, Any]]) -> dict[str, dict[str, float]]:
    """Prints and returns mean and worst share of false alarms by kind of noise."""
    print("false alarms: mean and worst cell        rise                gap")
    summary = {}
    for name in NOISES:
        rows = [row for row in alarms if row["noise"] == name]
        found = {test: fmean(row[test] for row in rows) for test in TESTS}
        summary[name] = found | {f"worst_{test}": max(row[test] for row in rows) for test in TESTS}
        shown = "    ".join(f"{found[test]:6.1%} {summary[name][f'worst_{test}']:6.1%}" for test in TESTS)
        print(f"{name:<36} {shown}")
    return summary


def print_power(power: list[dict[str, Any]]) -> None:
    """Prints how often overfitting is found, mean over kinds of noise."""
    for kind, rise, share in sorted({(row["kind"], row["rise"], row["noise_share"]) for row in power}):
        rows = [row for row in power if (row["kind"], row["rise"], row["noise_share"]) == (kind, rise, share)]
        shown = ", ".join(
            f"{count}: {fmean(row['found'] for row in rows if row['evaluations'] == count):.0%}"
            for count in sorted({row["evaluations"] for row in rows})
        )
        print(f"{kind}, rise of {rise:.0%}, noise {share:.1%} of the loss, found by evaluations: {shown}")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repetitions", type=positive_count, default=1_000, help="curves per cell (1000)")
    parser.add_argument("--curves", type=Path, help="JSON file with real curves, to state their noise")
    arguments = parser.parse_args()
    repetitions = arguments.repetitions
    machine = describe_machine()
    alarms, power = measure_false_alarms(repetitions), measure_power(max(1, repetitions // 5))
    summary = summarise_alarms(alarms)
    print_power(power)
    num_tests = len(TESTS) * len(alarms)
    too_many = [row for row in alarms if any(surely_too_many(row[test], repetitions, num_tests) for test in TESTS)]
    figures = {
        "repetitions": repetitions,
        "noise_share": NOISE_SHARE,
        "real_noise": real_noise(arguments.curves) if arguments.curves else None,
        "by_noise": summary,
        "cells_with_too_many": too_many,
        "false_alarms": alarms,
        "power": power,
    }
    path = save_result("overfitting", machine, figures)
    print(f"{len(too_many)} of {len(alarms)} cells have too many false alarms. Written to {path}")
    is_good = not too_many and all(each[test] <= STATED_ALARMS for each in summary.values() for test in TESTS)
    return 0 if is_good else 1


if __name__ == "__main__":
    end_with(main)
