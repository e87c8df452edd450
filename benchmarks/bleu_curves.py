"""What follows from curves of BLEU over training time: when one reaches the other's end, verdicts, and the plot."""

from collections.abc import Iterable
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import fmean
from typing import Any

SHARE_BOUND, GAIN_BOUND = 0.5, 0.5
GOAL = "the best peer's final BLEU in <= 0.5 of its time, an end >= 0.5 BLEU higher"


@dataclass(frozen=True)
class Point:
    """BLEU of one checkpoint."""

    step: int
    seconds: float
    bleu: float


Curve = list[Point]


def seconds_to_bleu(curve: Curve, target: float) -> float | None:
    """Returns when a curve first reaches a BLEU, on the line between two checkpoints; None if it does not."""
    before = Point(0, 0.0, 0.0)
    for point in curve:
        if point.bleu >= target:
            share = (target - before.bleu) / (point.bleu - before.bleu) if point.bleu > before.bleu else 1.0
            return before.seconds + share * (point.seconds - before.seconds)
        before = point
    return None


def describe_run(ours: Curve, peer: Curve) -> dict[str, Any]:
    """Returns the figures of one pair of trainings side by side."""
    end = peer[-1]
    seconds = seconds_to_bleu(ours, end.bleu)
    return {
        "ours": [asdict(point) for point in ours],
        "peer": [asdict(point) for point in peer],
        "final_bleu": {"ours": ours[-1].bleu, "peer": end.bleu},
        "best_bleu": {"ours": max(point.bleu for point in ours), "peer": max(point.bleu for point in peer)},
        "training_seconds": {"ours": ours[-1].seconds, "peer": end.seconds},
        "seconds_to_peers_end": seconds,
        "share_of_peers_time": None if seconds is None else seconds / end.seconds,
        "difference_of_ends": ours[-1].bleu - end.bleu,
    }


def summarise_corpus(runs_by_peer: dict[str, list[dict[str, Any]]]) -> dict[str, Any]:
    """Compares with the peer whose mean final BLEU is the highest; means are over seeds and rounds."""
    ends = {peer: fmean(run["final_bleu"]["peer"] for run in runs) for peer, runs in runs_by_peer.items()}
    best = max(ends, key=lambda peer: ends[peer])
    shares = [run["share_of_peers_time"] for run in runs_by_peer[best]]
    # The end of a peer may not be reached in every run; then there is no mean time.
    share = None if None in shares else fmean(shares)
    gain = fmean(run["difference_of_ends"] for run in runs_by_peer[best])
    return {
        "final_bleu_by_peer": ends,
        "best_peer": best,
        "share_of_its_time": share,
        "difference_of_ends": gain,
        "is_reached": share is not None and share <= SHARE_BOUND and gain >= GAIN_BOUND,
    }


def describe_summary(corpus: str, summary: dict[str, Any]) -> str:
    """Returns the result of one corpus in a line."""
    share = summary["share_of_its_time"]
    time = "not always reached" if share is None else f"reached in {share:.2f} of its time"
    return (
        f"{corpus}: the end of {summary['best_peer']} ({summary['final_bleu_by_peer'][summary['best_peer']]:.1f} BLEU) "
        f"is {time}; our end is {summary['difference_of_ends']:+.1f} BLEU from it; "
        f"goal {'reached' if summary['is_reached'] else 'missed'}"
    )


def plot(path: Path, runs_by_corpus: dict[str, dict[str, list[dict[str, Any]]]]) -> None:
    """Draws one panel for each corpus, one line for each training."""
    import matplotlib as mpl

    mpl.use("svg")
    mpl.rcParams["svg.hashsalt"] = "dragoman"  # the same file for the same figures
    import matplotlib.pyplot as plt

    figure, panels = plt.subplots(1, len(runs_by_corpus), figsize=(6 * len(runs_by_corpus), 4.5), squeeze=False)
    for axes, (corpus, runs_by_peer) in zip(panels[0], runs_by_corpus.items(), strict=True):
        for name, color, curves in _lines(runs_by_peer):
            for number, curve in enumerate(curves):
                minutes, scores = [each["seconds"] / 60 for each in curve], [each["bleu"] for each in curve]
                label = None if number else name
                axes.plot(minutes, scores, color=color, marker="o", markersize=3, linewidth=1.3, label=label)
        axes.set(title=corpus, xlabel="minutes of training on one core", ylabel="BLEU on the dev set, beam 5")
        axes.grid(alpha=0.3)
        axes.legend()
    figure.savefig(path, bbox_inches="tight", metadata={"Date": None})
    plt.close(figure)


def _lines(runs_by_peer: dict[str, list[dict[str, Any]]]) -> Iterable[tuple[str, str, list[list[dict[str, Any]]]]]:
    """Yields name, color and curves; ours ran beside each peer."""
    yield "ours", "C0", [run["ours"] for runs in runs_by_peer.values() for run in runs]
    for number, (peer, runs) in enumerate(runs_by_peer.items(), start=1):
        yield peer, f"C{number}", [run["peer"] for run in runs]
