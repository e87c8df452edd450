"""Compares forecasts of real learning curves with their actual ends: `python benchmarks/forecast.py`.

Every curve is cut at 50 % and at 70 % of its steps; the report's forecast of its end, for loss and for BLEU separately,
is compared with the value that was measured there. Exit code 1 if fewer than 80 % of the ends lie in the stated 90 %
interval. The curves are those of benchmarks/curves/ (`learning_curves.py` trains them again) and, if available, the
public log of a run on 4 GPUs. Two simple forecasts are given for comparison: the last value stays, and the last third
of the curve continues in a straight line over the logarithm of the steps.
"""

import argparse
import tempfile
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import fmean, median
from typing import Any

import numpy as np
from learning_curves import CURVES_FOLDER
from multi30k import REPOSITORY
from results import describe_machine, end_with, save_result

from dragoman.diagnosis.forecast import forecast
from dragoman.importing.importer import import_run
from dragoman.report.evidence import read_evidence
from dragoman.report.findings import Findings
from dragoman.run.errors import UserError
from dragoman.run.folder import RunFolder

PUBLIC_LOG = REPOSITORY.parent / "shared" / "logs" / "nohup_2x2_v100_mixed.out.xz"
CUTS = (0.5, 0.7)
LEAST_COVERAGE = 0.8
LATE_SHARE = 1 / 3


@dataclass(frozen=True)
class Case:
    """The end of a curve, forecast from its beginning."""

    curve: str
    figure: str
    cut: float
    num_points: int
    last_seen: float
    measured: float
    forecast: float
    low: float
    high: float
    unchanged: float
    """Forecast that the last value stays."""
    straight: float
    """Forecast that the last third of the known curve continues in a straight line over the logarithm of the steps."""

    @property
    def is_covered(self) -> bool:
        """Whether the end lies in the stated interval."""
        return self.low <= self.measured <= self.high

    def error(self, guess: str) -> float:
        """Absolute error of a forecast."""
        return abs(getattr(self, guess) - self.measured)


def read_curves() -> Iterator[tuple[str, Findings]]:
    """Yields all curves that are available."""
    for folder in sorted(CURVES_FOLDER.iterdir()) if CURVES_FOLDER.is_dir() else []:
        yield folder.name, Findings(read_evidence(RunFolder(folder)))
    if PUBLIC_LOG.exists():
        with tempfile.TemporaryDirectory() as folder:
            run = RunFolder(Path(folder) / "run")
            import_run([PUBLIC_LOG], run)
            findings = Findings(read_evidence(run))
            _ = findings.rates, findings.bleu  # read before the folder is removed
            yield PUBLIC_LOG.name, findings


def cut_curve(name: str, findings: Findings, figure: str, cut: float) -> Case | None:
    """Forecasts the end of a curve from its beginning; None if that is too short."""
    steps, values = findings.bleu if figure == "bleu" else findings.dev_loss
    is_trained = steps > 0
    steps, values = steps[is_trained], values[is_trained]
    is_seen = steps <= cut * steps[-1]
    seen_steps, seen = steps[is_seen].tolist(), values[is_seen].tolist()
    bound = 0.0 if figure == "bleu" else findings.lowest_loss
    found = forecast(figure, seen_steps, seen, findings.rates.rate, bound)
    if found is None:
        return None
    expected = found.fit.predict([float(steps[-1])])
    return Case(
        name,
        figure,
        cut,
        len(seen),
        seen[-1],
        float(values[-1]),
        float(expected.value[0]),
        float(expected.low[0]),
        float(expected.high[0]),
        seen[-1],
        _straight_line(seen_steps, seen, float(steps[-1])),
    )


def _straight_line(steps: list[float], values: list[float], at: float) -> float:
    num_late = max(3, round(LATE_SHARE * len(steps)))
    slope, begin = np.polyfit(np.log(steps[-num_late:]), values[-num_late:], 1)
    return float(begin + slope * np.log(at))


def describe(cases: list[Case]) -> dict[str, Any]:
    """Returns figures by kind of curve, and all cases."""
    groups = {figure: [case for case in cases if case.figure == figure] for figure in ("loss", "bleu")}
    return {
        "workload": "real curves, cut at 50 % and 70 % of their steps",
        "stated_interval": 0.9,
        "coverage": fmean(case.is_covered for case in cases),
        "least_coverage": LEAST_COVERAGE,
        "by_figure": {
            figure: {
                "cases": len(found),
                "coverage": fmean(case.is_covered for case in found),
                "median_half_width": median((case.high - case.low) / 2 for case in found),
                "median_error": {
                    guess: median(case.error(guess) for case in found)
                    for guess in ("forecast", "unchanged", "straight")
                },
            }
            for figure, found in groups.items()
            if found
        },
        "cases": [asdict(case) | {"is_covered": case.is_covered} for case in cases],
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.parse_args()
    machine = describe_machine()
    cases = []
    for name, findings in read_curves():
        found = [cut_curve(name, findings, figure, cut) for figure in ("loss", "bleu") for cut in CUTS]
        cases += [case for case in found if case is not None]
    if not cases:
        raise UserError(f"There are no curves in {CURVES_FOLDER}. Train some with benchmarks/learning_curves.py.")
    for case in cases:
        miss = "" if case.is_covered else "  outside"
        print(
            f"{case.curve:<28} {case.figure:<5} at {case.cut:.0%}: {case.last_seen:8.3f} seen, {case.forecast:8.3f} "
            f"({case.low:.3f} to {case.high:.3f}) forecast, {case.measured:8.3f} measured{miss}"
        )
    figures = describe(cases)
    for figure, summary in figures["by_figure"].items():
        errors = ", ".join(f"{guess} {error:.3f}" for guess, error in summary["median_error"].items())
        print(f"{figure}: {summary['coverage']:.0%} of {summary['cases']} in the interval; median error: {errors}")
    path = save_result("forecast", machine, figures)
    print(f"{figures['coverage']:.0%} of {len(cases)} ends lie in the stated 90 % interval. Written to {path}")
    return 0 if figures["coverage"] >= LEAST_COVERAGE else 1


if __name__ == "__main__":
    end_with(main)
