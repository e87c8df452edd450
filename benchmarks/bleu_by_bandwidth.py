"""Joins speed and quality of the strategies: tables, the frontier, the time to a BLEU over each link, its plot."""

from pathlib import Path
from statistics import fmean, median
from typing import Any

from compared_strategies import AUTO, EVERY_STEP, EXACT, RATES, STRATEGIES, name_of
from synchronisation_speed import predicted_seconds

LINKS = tuple(name_of(rate) for rate in RATES)
UNLIMITED = name_of(None)
MEGABITS = {name_of(rate): float(rate.removesuffix("mbit")) for rate in RATES if rate}
CLEARLY_SLOW = 5
"""A link is slow if an exact step waits this many times as long as it computes."""
TARGET_SHARE = 0.95
"""BLEU to reach, as a share of what exact sums reach in the end."""
SPEED_BOUND, BLEU_BOUND, TIME_BOUND = 0.9, 0.5, 4.0
MEDIAN_ERROR_BOUND, WORST_ERROR_BOUND = 0.05, 0.15

Cells = dict[tuple[str, str], dict[str, Any]]
"""Measured figures by strategy and link."""


def summarise_all(results: dict[str, Any], target_bleu: float | None) -> dict[str, Any]:
    """Returns everything that follows from the measurements made so far."""
    speed, runs = results.get("speed", {}), longest_runs(results)
    cells = {(each["strategy"], each["link"]): each for each in speed.get("cells", {}).values()}
    target = target_bleu or default_target(runs)
    times = times_to_bleu(cells, runs, target) if target else {}
    return {
        "slow_links": slow_links(cells),
        "share_of_unlimited_speed": shares_of_unlimited(cells),
        "prediction_errors": prediction_errors(cells, speed.get("checks", {})),
        "bleu_at_equal_tokens": bleu_at_equal_tokens(runs),
        "target_bleu": target,
        "seconds_to_bleu": times,
        "gain_in_bleu_by_bandwidth": gains(times),
        "frontier": {link: frontier(link, cells, runs) for link in slow_links(cells)},
    }


def longest_runs(results: dict[str, Any]) -> list[dict[str, Any]]:
    """Returns the runs with the most steps; shorter ones are trials."""
    runs = list(results.get("quality", {}).get("runs", {}).values())
    return [each for each in runs if each["steps"] == max(other["steps"] for other in runs)]


# Speed


def slow_links(cells: Cells) -> list[str]:
    """Returns the links where an exact step waits at least five times as long as it computes."""
    free = cells.get((EVERY_STEP, UNLIMITED))
    if free is None:
        return []
    computing = free["seconds_per_step"]
    seconds = {link: cells[EVERY_STEP, link]["seconds_per_step"] for link in LINKS if (EVERY_STEP, link) in cells}
    return [link for link, each in seconds.items() if each - computing >= CLEARLY_SLOW * computing]


def shares_of_unlimited(cells: Cells) -> dict[str, dict[str, float]]:
    """Returns target tokens per second, as a share of exact sums on an unlimited link, by strategy and link."""
    free = cells.get((EVERY_STEP, UNLIMITED))
    if free is None:
        return {}
    found: dict[str, dict[str, float]] = {}
    for (strategy, link), cell in cells.items():
        share = cell["target_tokens_per_second"] / free["target_tokens_per_second"]
        found.setdefault(strategy, {})[link] = share
    return found


def prediction_errors(cells: Cells, checks: dict[str, Any]) -> dict[str, Any]:
    """Returns predicted / measured − 1 of each cell, with median and worst."""
    errors = {}
    for (strategy, link), cell in cells.items():
        predicted = predicted_seconds(checks.get(link), cell)
        if predicted is not None:
            errors[f"{link}/{strategy}"] = predicted / cell["seconds_per_step"] - 1
    sizes = [abs(each) for each in errors.values()]
    return {"each": errors, "median": median(sizes) if sizes else None, "worst": max(sizes, default=None)}


# Quality


def last_bleu(runs: list[dict[str, Any]], label: str, corpus: str = "multi30k") -> dict[int, float]:
    """Returns the last BLEU of a strategy by seed."""
    return {
        each["seed"]: each["evaluations"][-1]["bleu"]
        for each in runs
        if (each["label"], each["corpus"]) == (label, corpus)
    }


def bleu_at_equal_tokens(runs: list[dict[str, Any]]) -> dict[str, dict[str, Any]]:
    """Returns the last BLEU of each strategy and its distance from exact sums, over seeds that both have."""
    found: dict[str, dict[str, Any]] = {}
    for corpus in sorted({each["corpus"] for each in runs}):
        exact = last_bleu(runs, EVERY_STEP, corpus)
        for label in dict.fromkeys(each["label"] for each in runs if each["corpus"] == corpus):
            own = last_bleu(runs, label, corpus)
            both = sorted(set(own) & set(exact))
            found.setdefault(corpus, {})[label] = {
                "bleu": fmean(own.values()),
                "bleu_by_seed": own,
                "difference": fmean(own[seed] - exact[seed] for seed in both) if both else None,
            }
    return found


def default_target(runs: list[dict[str, Any]]) -> float | None:
    """Returns a BLEU that exact sums reach well before the end."""
    exact = last_bleu(runs, EVERY_STEP)
    return round(TARGET_SHARE * fmean(exact.values()), 1) if exact else None


def steps_to_bleu(evaluations: list[dict[str, Any]], target: float) -> float | None:
    """Returns the step at which a curve reaches a BLEU, on the line between two evaluations; None if it does not."""
    previous_step, previous_bleu = 0, 0.0
    for each in evaluations:
        if each["bleu"] >= target:
            share = (target - previous_bleu) / max(each["bleu"] - previous_bleu, 1e-9)
            return float(previous_step + share * (each["step"] - previous_step))
        previous_step, previous_bleu = each["step"], each["bleu"]
    return None


# Both


def curve_of(cell: dict[str, Any]) -> str:
    """Returns the label of the runs that show the quality of a cell."""
    strategy = cell["strategy"]
    if strategy == AUTO:
        strategy = (cell.get("synchronisation") or {}).get("strategy", EVERY_STEP)
        return AUTO if strategy in ("local", "diloco") else curve_of(cell | {"strategy": strategy})
    return EVERY_STEP if strategy in EXACT else str(strategy)


def times_to_bleu(cells: Cells, runs: list[dict[str, Any]], target: float) -> dict[str, dict[str, float]]:
    """Returns the seconds to a BLEU, without evaluations, by strategy and link; the mean over seeds."""
    found: dict[str, dict[str, float]] = {}
    for (strategy, link), cell in cells.items():
        together = cells.get((EVERY_STEP, link))
        seconds = [
            run_seconds(each, cell, together, target)
            for each in runs
            if (each["label"], each["corpus"]) == (curve_of(cell), "multi30k")
        ]
        reached = [each for each in seconds if each is not None]
        if reached and len(reached) == len(seconds):
            found.setdefault(strategy, {})[link] = fmean(reached)
    return found


def run_seconds(
    run: dict[str, Any], cell: dict[str, Any], together: dict[str, Any] | None, target: float
) -> float | None:
    """Returns the seconds of a run to a BLEU: its first steps are exact ones, where replicas begin together."""
    num_steps = steps_to_bleu(run["evaluations"], target)
    if num_steps is None:
        return None
    num_exact = min(num_steps, run["together_steps"])
    exact_seconds = (together or cell)["seconds_per_step"]
    return float(num_exact * exact_seconds + (num_steps - num_exact) * cell["seconds_per_step"])


def gains(times: dict[str, dict[str, float]]) -> dict[str, float]:
    """Returns how many times sooner auto reaches the BLEU than exact sums do, by link."""
    exact, auto = times.get(EVERY_STEP, {}), times.get(AUTO, {})
    return {link: exact[link] / auto[link] for link in exact if link in auto}


def frontier(link: str, cells: Cells, runs: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Lists strategies by speed, with their BLEU; `is_best` where none is both faster and better."""
    points = []
    for strategy in STRATEGIES:
        cell = cells.get((strategy, link))
        scores = last_bleu(runs, curve_of(cell)) if cell else {}
        if cell and scores:
            speed = cell["target_tokens_per_second"]
            points.append({"strategy": strategy, "target_tokens_per_second": speed, "bleu": fmean(scores.values())})
    for each in points:
        each["is_best"] = not any(
            other["target_tokens_per_second"] > each["target_tokens_per_second"] and other["bleu"] > each["bleu"]
            for other in points
        )
    return sorted(points, key=lambda each: -each["target_tokens_per_second"])


def find_misses(results: dict[str, Any]) -> list[str]:
    """Returns the bounds that what was measured so far does not meet."""
    summary, misses = results["summary"], []
    errors = summary["prediction_errors"]
    if (errors["median"] or 0) > MEDIAN_ERROR_BOUND or (errors["worst"] or 0) > WORST_ERROR_BOUND:
        misses.append(f"predictions are wrong by {errors['median']:.1%} (median) and {errors['worst']:.1%} (worst)")
    for link in summary["slow_links"]:
        share = summary["share_of_unlimited_speed"].get(AUTO, {}).get(link, 1.0)
        if share < SPEED_BOUND:
            misses.append(f"auto reaches {share:.2f} of the unlimited tokens per second at {link}")
        gain = summary["gain_in_bleu_by_bandwidth"].get(link, TIME_BOUND)
        if gain < TIME_BOUND:
            misses.append(f"the time to BLEU falls only by a factor of {gain:.1f} at {link}")
    for corpus, scores in summary["bleu_at_equal_tokens"].items():
        difference = scores.get(AUTO, {}).get("difference")
        if difference is not None and difference < -BLEU_BOUND:
            misses.append(f"auto loses {-difference:.2f} BLEU at equal tokens on {corpus}")
    free = results.get("speed", {}).get("cells", {}).get(f"{UNLIMITED}/{AUTO}")
    if free and curve_of(free) != EVERY_STEP:
        misses.append(f"auto takes {free['synchronisation']['strategy']} on an unlimited link")
    if not results.get("kills", {}).get("is_bit_identical", True):
        misses.append("a run that was killed does not end with the same bytes")
    return misses


# Tables


def table_lines(header: list[str], rows: list[list[str]]) -> list[str]:
    """Returns a Markdown table."""
    ruler = ["---", *["---:"] * (len(header) - 1)]
    return [f"| {' | '.join(row)} |" for row in (header, ruler, *rows)]


def markdown(results: dict[str, Any]) -> dict[str, list[str]]:
    """Returns every table by its name: the marker in docs/slow-networks.md."""
    speed, summary = results.get("speed", {}), results["summary"]
    cells = {(each["strategy"], each["link"]): each for each in speed.get("cells", {}).values()}
    checks = speed.get("checks", {})
    links = [link for link in LINKS if any(link == other for _, other in cells)]

    def rows_of(show: Any) -> list[list[str]]:
        return [
            [name, *(show(cells[name, link]) if (name, link) in cells else "" for link in links)]
            for name in STRATEGIES
            if any((name, link) in cells for link in links)
        ]

    def seconds(cell: dict[str, Any]) -> str:
        predicted = predicted_seconds(checks.get(cell["link"]), cell)
        beside = f" ({predicted:.2f})" if predicted is not None else ""
        return f"{cell['seconds_per_step']:.2f}{beside}"

    times = summary["seconds_to_bleu"]
    return {
        "speed table": table_lines(
            ["target tokens/s", *links], rows_of(lambda cell: f"{cell['target_tokens_per_second']:,.0f}")
        ),
        "seconds table": table_lines(["seconds per step (predicted)", *links], rows_of(seconds)),
        "bytes table": table_lines(
            ["MB per host and step", *links], rows_of(lambda cell: f"{cell['bytes_per_host_and_step'] / 1e6:.2f}")
        ),
        "quality table": quality_table(summary["bleu_at_equal_tokens"]),
        "time table": table_lines(
            [f"minutes to BLEU {summary['target_bleu']}", *links],
            rows_of(lambda cell: minutes(times.get(cell["strategy"], {}).get(cell["link"]))) if times else [],
        ),
        "frontier table": frontier_table(summary["frontier"]),
        "paper table": paper_table(results.get("paper", {})),
    }


def minutes(seconds: float | None) -> str:
    """Returns a cell of the table of times."""
    return "not reached" if seconds is None else f"{seconds / 60:.1f}"


def quality_table(scores: dict[str, dict[str, Any]]) -> list[str]:
    """Returns the table of BLEU at equal tokens."""
    rows = []
    for corpus, by_label in scores.items():
        for label, each in by_label.items():
            difference = "" if each["difference"] is None else f"{each['difference']:+.2f}"
            seeds = " ".join(f"{bleu:.1f}" for bleu in each["bleu_by_seed"].values())
            rows.append([f"{label}, {corpus}", f"{each['bleu']:.2f}", difference, seeds])
    return table_lines(["strategy, corpus", "dev BLEU", "against every_step", "by seed"], rows)


def frontier_table(by_link: dict[str, list[dict[str, Any]]]) -> list[str]:
    """Returns the table of speed and BLEU over slow links."""
    rows = [
        [
            f"{link}, {each['strategy']}",
            f"{each['target_tokens_per_second']:,.0f}",
            f"{each['bleu']:.2f}",
            "yes" if each["is_best"] else "no",
        ]
        for link, points in by_link.items()
        for each in points
    ]
    return table_lines(["link, strategy", "target tokens/s", "dev BLEU", "none is faster and better"], rows)


def paper_table(jobs: dict[str, Any]) -> list[str]:
    """Returns the table of what `dragoman plan` says."""
    planned = {name: job["strategies"] or [] for name, job in jobs.items() if name != "machine"}
    found: dict[str, dict[str, str]] = {}
    for name, strategies in planned.items():
        for each in strategies:
            often = f", {each['interval']} steps" if each["interval"] > 1 else ""
            figures = f"{each['seconds_per_step']:.2f} s, {each['megabytes_per_host_and_step']:.1f} MB"
            found.setdefault(f"{each['strategy']}{often}", {})[name] = figures
    rows = [[strategy, *(by_job.get(name, "") for name in planned)] for strategy, by_job in found.items()]
    return table_lines(["seconds per step, MB per machine and step", *planned], rows)


def draw(summary: dict[str, Any], path: Path) -> None:
    """Draws the time to BLEU over the rate of the link, a line for each strategy."""
    import matplotlib as mpl

    mpl.use("Agg")
    mpl.rcParams["svg.hashsalt"] = "dragoman"  # the same figures give the same file
    from matplotlib import pyplot as plt
    from matplotlib.ticker import LogLocator, StrMethodFormatter

    places = MEGABITS | {UNLIMITED: 3 * max(MEGABITS.values())}
    figure, axes = plt.subplots(figsize=(7, 4.5))
    for (strategy, times), marker in zip(summary["seconds_to_bleu"].items(), "osv^Dx*", strict=False):
        links = sorted(times, key=lambda link: places[link])
        is_main = strategy in (EVERY_STEP, AUTO)
        axes.plot(
            [places[link] for link in links],
            [times[link] / 60 for link in links],
            marker=marker,
            linewidth=2.5 if is_main else 1.2,
            label=strategy,
        )
    axes.set(
        xscale="log",
        yscale="log",
        xlabel="link between the two hosts, Mbit/s",
        ylabel=f"minutes to BLEU {summary['target_bleu']}, dev",
    )
    axes.set_xticks(list(places.values()), [*(f"{each:.0f}" for each in MEGABITS.values()), UNLIMITED])
    axes.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    axes.yaxis.set_major_formatter(StrMethodFormatter("{x:g}"))
    axes.minorticks_off()
    axes.grid(alpha=0.3)
    axes.legend()
    figure.savefig(path, bbox_inches="tight", metadata={"Date": None})
    plt.close(figure)
