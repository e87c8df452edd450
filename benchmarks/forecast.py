"""Compares forecasts of real learning curves with what was measured later: `python benchmarks/forecast.py`.

Every curve is cut at 30, 50 and 70 % of its steps. The report's forecast of 10, 50 and 100 % more steps and of the end
is compared with the evaluation that was made there. The only tuned constant of the intervals, FORMULA_ERROR, is chosen
for each curve without it and its relatives (runs of the same repository and corpus), so the stated coverage is that of
curves that were not used to set the widths. Exit code 1 if the 90 % intervals hold less than 85 % or more than 98 % of
the losses or of the BLEU scores.

The curves: curves/ (`learning_curves.py` trains them again), the real logs in ../shared/logs where they are available,
and those of --curves: a JSON list of {"source", "file", "family", "steps", "loss", "bleu", "rates": [[step, rate], …]}.
Where the formula of the learning rate is not known, rates after the cut are those that the report assumes. "Unchanged"
is the forecast that the last value stays.
"""

import argparse
import json
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from statistics import fmean, median
from typing import Any

import numpy as np
from learning_curves import CURVES_FOLDER
from multi30k import REPOSITORY
from results import describe_machine, end_with, save_result

from dragoman.diagnosis.forecast import Forecast, forecast
from dragoman.diagnosis.learning_curve import FORMULA_ERROR, RateOfStep
from dragoman.importing.importer import import_run
from dragoman.report.evidence import Floats, read_evidence
from dragoman.report.findings import Findings
from dragoman.report.learning_rates import continue_records
from dragoman.run.folder import RunFolder

LOGS = REPOSITORY.parent / "shared" / "logs"
LOGS_WITH_CURVES = ("nohup_2x2_v100_mixed.out.xz", "joeynmt", "marian", "tensorboard_sockeye")
CUTS = (0.3, 0.5, 0.7)
NEAREST = "+10%"
HORIZONS = {NEAREST: 1.1, "+50%": 1.5, "+100%": 2.0}
"""Steps that are forecast, in multiples of those seen, as in the report's table."""
NOMINAL, LEAST_COVERAGE, MOST_COVERAGE = 0.9, 0.85, 0.98
ERRORS = tuple(round(0.2 + 0.05 * i, 2) for i in range(9))
"""Values of FORMULA_ERROR to choose from."""


@dataclass(frozen=True)
class Curve:
    """A figure of a run over its steps."""

    run: str
    family: str
    """Runs of one repository and corpus: they are not independent of each other."""
    figure: str
    steps: Floats
    values: Floats
    rate_known_at: Callable[[float], RateOfStep]
    """Learning rates as a report knows them that is made at a step."""
    lowest: float = 0.0


@dataclass(frozen=True)
class Case:
    """A later value of a curve, forecast from its beginning."""

    run: str
    family: str
    figure: str
    cut: float
    horizon: str
    num_points: int
    unchanged: float
    """The last known value: the forecast that it stays."""
    measured: float
    forecast: float
    is_sound: bool
    is_useful: bool
    """As the report calls the forecast; it shows no others."""
    intervals: dict[float, tuple[float, float]]
    """Lowest and highest value by FORMULA_ERROR."""

    def is_covered(self, error: float = FORMULA_ERROR) -> bool:
        """Whether the value lies in the interval."""
        low, high = self.intervals[error]
        return low <= self.measured <= high

    def half_width(self, error: float = FORMULA_ERROR) -> float:
        """Half the width of the interval."""
        low, high = self.intervals[error]
        return (high - low) / 2


def read_curves(more_curves: Path | None) -> Iterator[Curve]:
    """Yields all curves that are available."""
    for entry in json.loads(more_curves.read_text(encoding="utf-8")) if more_curves else ():
        yield from _listed_curves(entry)
    for folder in sorted(CURVES_FOLDER.iterdir()):
        yield from _own_curves(folder.name, folder.name.partition("_")[0], Findings(read_evidence(RunFolder(folder))))
    for name in LOGS_WITH_CURVES if LOGS.exists() else ():
        with tempfile.TemporaryDirectory() as folder_name:
            run = RunFolder(Path(folder_name) / "run")
            import_run([LOGS / name], run)
            yield from _own_curves(name, name, Findings(read_evidence(run)))


def _listed_curves(entry: dict[str, Any]) -> Iterator[Curve]:
    steps = np.array(entry["steps"], dtype=np.float64)
    rate_steps, rates = np.array(entry["rates"], dtype=np.float64).T

    def rate_known_at(step: float) -> RateOfStep:
        # The file leaves out rates between two equal ones.
        known = np.unique([*rate_steps[rate_steps <= step], *np.linspace(min(step, rate_steps[0]), step, 10)])
        return continue_records(known, np.interp(known, rate_steps, rates))[0]

    for figure in ("loss", "bleu"):
        values = np.array(entry.get(figure, []), dtype=np.float64)
        is_known = np.isfinite(values)
        if is_known.any():
            run = f"{entry['source']}: {entry['file']}"
            yield Curve(run, entry["family"], figure, steps[is_known], values[is_known], rate_known_at)


def _own_curves(run: str, family: str, findings: Findings) -> Iterator[Curve]:
    rate = findings.rates.rate
    for figure, (steps, values) in {"loss": findings.dev_loss, "bleu": findings.bleu}.items():
        is_trained = steps > 0
        lowest = findings.lowest_loss if figure == "loss" else 0.0
        yield Curve(run, family, figure, steps[is_trained], values[is_trained], lambda _: rate, lowest)


def cut_curve(curve: Curve, cut: float) -> Iterator[Case]:
    """Forecasts later values of a curve from its beginning; yields nothing if that is too short."""
    is_seen = curve.steps <= cut * curve.steps[-1]
    seen = curve.steps[is_seen].tolist(), curve.values[is_seen].tolist()
    found = forecast(curve.figure, *seen, curve.rate_known_at(seen[0][-1]), curve.lowest) if seen[0] else None
    if found is None:
        return
    places = {len(curve.steps) - 1: "end"}
    for name, factor in HORIZONS.items():
        if factor * seen[0][-1] <= curve.steps[-1]:
            places[int(np.argmin(np.abs(curve.steps - factor * seen[0][-1])))] = name
    for place, horizon in places.items():
        if curve.steps[place] > seen[0][-1]:
            yield _case(curve, cut, horizon, place, found)


def _case(curve: Curve, cut: float, horizon: str, place: int, found: Forecast) -> Case:
    more = int(curve.steps[place]) - found.last_step
    prospects = {e: replace(found, fit=replace(found.fit, formula_error=e)).after(more) for e in ERRORS}
    usual = prospects[FORMULA_ERROR]
    return Case(
        curve.run,
        curve.family,
        curve.figure,
        cut,
        horizon,
        int(np.sum(curve.steps <= found.last_step)),
        found.last_value,
        float(curve.values[place]),
        usual.then,
        usual.is_sound,
        usual.is_useful,
        {error: (each.low, each.high) for error, each in prospects.items()},
    )


def choose_error(cases: list[Case]) -> float:
    """Returns the smallest constant with which the intervals of these cases hold as often as they state."""
    # The noise of evaluations, not the formula, decides about the near ones; unsound forecasts are not shown.
    decisive = [case for case in cases if case.is_sound and case.horizon != NEAREST]
    groups = [[case for case in decisive if case.figure == figure] for figure in ("loss", "bleu")]
    wide_enough = (e for e in ERRORS if all(fmean(case.is_covered(e) for case in group) >= NOMINAL for group in groups))
    return next(wide_enough, ERRORS[-1])


def summarise(cases: list[Case], errors: dict[str, float]) -> dict[str, Any]:
    """Returns coverage, widths and errors of cases; `errors` are the constants that were chosen without a family."""
    misses = sorted(abs(case.unchanged - case.measured) for case in cases)
    return {
        "cases": len(cases),
        "coverage": fmean(case.is_covered(errors[case.family]) for case in cases),
        "median_half_width": median(case.half_width(errors[case.family]) for case in cases),
        "half_width_if_unchanged": misses[int(NOMINAL * (len(misses) - 1))],
        "median_error": median(abs(case.forecast - case.measured) for case in cases),
        "median_error_if_unchanged": median(misses),
    }


def describe(cases: list[Case]) -> dict[str, Any]:
    """Returns figures by kind of curve and horizon, and all cases."""
    families = sorted({case.family for case in cases})
    errors = {family: choose_error([case for case in cases if case.family != family]) for family in families}
    groups: dict[str, Any] = {}
    for figure in ("loss", "bleu"):
        all_cases = [case for case in cases if case.figure == figure]
        of_figure = [case for case in all_cases if case.is_sound]
        useful = [case for case in all_cases if case.is_useful]
        by_horizon = {name: [c for c in of_figure if c.horizon == name] for name in (*HORIZONS, "end")}
        by_cut = {f"from {cut:.0%}": [c for c in of_figure if c.cut == cut] for cut in CUTS}
        groups[figure] = {
            name: summarise(found, errors)
            for name, found in {
                "sound": of_figure,
                "useful": useful,
                "unsound": [case for case in all_cases if not case.is_sound],
                **by_horizon,
                **by_cut,
            }.items()
            if found
        }
    return {
        "workload": "real curves, cut at 30, 50 and 70 % of their steps",
        "runs": len({case.run for case in cases}),
        "families": len(families),
        "stated_interval": NOMINAL,
        "formula_error": FORMULA_ERROR,
        "formula_error_by_all": choose_error(cases),
        "formula_error_without_family": errors,
        "by_figure": groups,
        "cases": [_to_json(case, errors[case.family]) for case in cases],
    }


def _to_json(case: Case, error: float) -> dict[str, Any]:
    low, high = case.intervals[error]
    return asdict(case) | {"intervals": None, "low": low, "high": high, "is_covered": case.is_covered(error)}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--curves", type=Path, help="JSON file with further curves")
    arguments = parser.parse_args()
    machine = describe_machine()
    cases = [case for curve in read_curves(arguments.curves) for cut in CUTS for case in cut_curve(curve, cut)]
    figures = describe(cases)
    chosen = sorted(set(figures["formula_error_without_family"].values()))
    print(f"{figures['runs']} runs of {figures['families']} families; FORMULA_ERROR chosen without each: {chosen}")
    print("figure  horizon    cases  in interval  half-width (unchanged)  median error (unchanged)")
    for figure, groups in figures["by_figure"].items():
        for name, each in groups.items():
            print(
                f"{figure:<7} {name:<10} {each['cases']:5} {each['coverage']:12.0%} {each['median_half_width']:11.3f} "
                f"({each['half_width_if_unchanged']:.3f}) {each['median_error']:14.3f} "
                f"({each['median_error_if_unchanged']:.3f})"
            )
    path = save_result("forecast", machine, figures)
    print(f"Written to {path}")
    coverages = [groups["sound"]["coverage"] for groups in figures["by_figure"].values()]
    return 0 if all(LEAST_COVERAGE <= coverage <= MOST_COVERAGE for coverage in coverages) else 1


if __name__ == "__main__":
    end_with(main)
