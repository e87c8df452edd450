"""Dev BLEU over training time, ours beside a peer: `python time_to_bleu.py --corpus multi30k --peer eole`.

Both sides train at the same time, each with one thread on a core of its own; the next run swaps the cores. Checkpoints
are translated after both have ended, so evaluation costs neither side anything. Results of earlier calls are kept.
Exit code 1 if the goal is missed for any corpus that was measured.
"""

import argparse
import json
import os
import shutil
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import sacrebleu
from bleu_contestants import PEERS, TRIES, Contestant, Eole, HuggingFace, Job, Ours, Texts, find_checkpoints
from bleu_curves import GOAL, Curve, Point, describe_run, describe_summary, plot, summarise_corpus
from bleu_texts import DEV_NAMES, prepare_texts, read_lines
from multi30k import REPOSITORY
from peer_environments import peer_python
from results import RESULTS_FOLDER, describe_machine, end_with, positive_count, save_result
from side_by_side import Task, run_side_by_side

from dragoman.run.errors import UserError

NAME = "time_to_bleu"
WORK_FOLDER = RESULTS_FOLDER / NAME
NUM_WARMUP_STEPS = 2
"""First steps of a peer that are slower than the others; they do not count when its speed is measured."""
Entry = tuple[Contestant, Job]


def train_for(
    seconds: float, contestants: Sequence[Contestant], texts: Texts, seed: int, cores: Sequence[int], options: Any
) -> list[Job]:
    """Trains all contestants at the same time, with as many steps as fit into the seconds; returns the trainings."""
    trials = [
        Job(_fresh_folder(options.folder / f"{number}-{each.name}" / "trial"), *(options.trial_steps,) * 2, seed)
        for number, each in enumerate(contestants)
    ]
    _train(list(zip(contestants, trials, strict=True)), texts, cores)
    jobs = []
    for each, trial in zip(contestants, trials, strict=True):
        num_steps = max(2, round(seconds / _seconds_per_step(each, trial)))
        shutil.rmtree(trial.folder)
        folder = _fresh_folder(trial.folder.with_name("training"))
        jobs.append(Job(folder, num_steps, max(1, num_steps // options.checkpoints), seed))
        print(f"{each.name}: {num_steps:,} steps in about {seconds / 60:.1f} minutes", flush=True)
    _train(list(zip(contestants, jobs, strict=True)), texts, cores)
    return jobs


def _seconds_per_step(contestant: Contestant, trial: Job) -> float:
    """Returns the mean over a trial; ours makes its smaller batches in it too, in the same proportions."""
    seconds = contestant.seconds_by_step(trial)
    last = max(seconds)
    first = NUM_WARMUP_STEPS if NUM_WARMUP_STEPS in seconds else 0
    return (seconds[last] - seconds.get(first, 0.0)) / (last - first)


def _train(entries: Sequence[Entry], texts: Texts, cores: Sequence[int]) -> None:
    tasks = [
        Task([each.training_command(texts, job)], job.folder / "log.txt", partial(each.is_trained, job))
        for each, job in entries
    ]
    run_side_by_side(tasks, cores)


def _fresh_folder(folder: Path) -> Path:
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    return folder


def score(entries: Sequence[Entry], texts: Texts, cores: Sequence[int], only_last: bool = False) -> list[Curve]:
    """Translates the dev set with every checkpoint, each side with its own search, and scores all alike."""
    tasks, outputs = [], []
    for contestant, job in entries:
        checkpoints = find_checkpoints(contestant, job)[-1 if only_last else 0 :]
        if not checkpoints:
            raise UserError(f"{contestant.name} saved no checkpoint; its log: {job.folder / 'log.txt'}")
        found = [(each, job.folder / f"dev.{each.step}.txt") for each in checkpoints]
        commands = [contestant.translation_command(texts, job, each.step, output) for each, output in found]
        tasks.append(Task(commands, job.folder / "translations.log"))
        outputs.append(found)
    run_side_by_side(tasks, cores)
    references = read_lines(texts.dev[1])
    return [
        [Point(each.step, each.seconds, _bleu(read_lines(output), references)) for each, output in found]
        for found in outputs
    ]


def _bleu(translations: list[str], references: list[str]) -> float:
    """Returns cased BLEU with the tokenizer 13a."""
    assert len(translations) == len(references), (len(translations), len(references))
    found: float = sacrebleu.corpus_bleu(translations, [references]).score
    return found


def keep_logs_only(job: Job) -> None:
    """Deletes the checkpoints of a training, which take gigabytes."""
    for name in ("model", "run/checkpoints", "run/prepared"):
        shutil.rmtree(job.folder / name, ignore_errors=True)


def measure(peer: str, corpus: str, texts: Texts, results: dict[str, Any], options: Any) -> None:
    """Trains ours and a peer side by side, once for each seed and round, and adds what was measured to the results."""
    recipe = best_recipe(results, corpus, peer)
    contestants = [Ours(), PEERS[peer](recipe=recipe) if recipe else PEERS[peer]()]
    runs = []
    for number in range(len(options.seeds) * options.rounds):
        seed = options.seeds[number % len(options.seeds)]
        cores = options.cores if number % 2 == 0 else options.cores[::-1]
        run_options = _inside(options, f"{corpus}-{peer}-{number + 1}")
        jobs = train_for(options.max_seconds, contestants, texts, seed, cores, run_options)
        entries = list(zip(contestants, jobs, strict=True))
        ours, other = score(entries, texts, cores)
        runs.append(describe_run(ours, other) | {"seed": seed, "cores": cores, "recipe": contestants[1].recipe})
        _print_run(peer, runs[-1])
        for job in jobs:
            keep_logs_only(job)
        results.setdefault("runs", {}).setdefault(corpus, {})[peer] = runs
        _write(results, options)


def tune(peer: str, corpus: str, texts: Texts, results: dict[str, Any], options: Any) -> None:
    """Tries recipes of a peer, one on each core at a time, and notes the BLEU at the end of each."""
    tried: list[dict[str, Any]] = []
    recipes = TRIES[peer]
    for first in range(0, len(recipes), len(options.cores)):
        contestants: list[Eole | HuggingFace] = [
            PEERS[peer](recipe=each) for each in recipes[first : first + len(options.cores)]
        ]
        run_options = _inside(options, f"{corpus}-{peer}-tuning-{first // len(options.cores) + 1}")
        jobs = train_for(options.tune, contestants, texts, options.seeds[0], options.cores, run_options)
        curves = score(list(zip(contestants, jobs, strict=True)), texts, options.cores, only_last=True)
        for contestant, job, curve in zip(contestants, jobs, curves, strict=True):
            end = curve[-1]
            tried.append(
                {"recipe": contestant.recipe, "bleu": end.bleu, "steps": end.step, "training_seconds": end.seconds}
            )
            print(f"{peer} {contestant.recipe}: {end.bleu:.1f} BLEU after {end.step:,} steps", flush=True)
            keep_logs_only(job)
        results.setdefault("tuning", {}).setdefault(corpus, {})[peer] = tried
        _write(results, options)


def best_recipe(results: dict[str, Any], corpus: str, peer: str) -> dict[str, Any] | None:
    """Returns the recipe that did best when a peer was tuned on this corpus, or on the other one; None before that."""
    tuning = results.get("tuning", {})
    for tuned_on in (corpus, *tuning):
        if tried := tuning.get(tuned_on, {}).get(peer):
            best: dict[str, Any] = max(tried, key=lambda each: each["bleu"])["recipe"]
            return best
    return None


def _inside(options: argparse.Namespace, name: str) -> argparse.Namespace:
    return argparse.Namespace(**vars(options) | {"folder": WORK_FOLDER / name})


def _print_run(peer: str, run: dict[str, Any]) -> None:
    ends, share = run["final_bleu"], run["share_of_peers_time"]
    reached = "not reached" if share is None else f"reached in {share:.2f} of its time"
    print(
        f"seed {run['seed']}, cores {run['cores']}: ours {ends['ours']:.1f}, {peer} {ends['peer']:.1f} BLEU, {reached}",
        flush=True,
    )


def _write(results: dict[str, Any], options: argparse.Namespace) -> None:
    runs = results.get("runs", {})
    results["goal"] = GOAL
    results["signature"] = "nrefs:1|case:mixed|eff:no|tok:13a|smooth:exp|version:" + sacrebleu.__version__
    results["summary"] = {corpus: summarise_corpus(by_peer) for corpus, by_peer in runs.items()}
    save_result(NAME, options.machine, results)
    if runs:
        plot(RESULTS_FOLDER / f"{NAME}.svg", runs)


def _read_earlier(is_fresh: bool) -> dict[str, Any]:
    path = RESULTS_FOLDER / f"{NAME}.json"
    if is_fresh or not path.exists():
        return {}
    earlier = json.loads(path.read_text(encoding="utf-8"))
    return {key: earlier[key] for key in ("runs", "tuning") if key in earlier}


def main() -> int:
    """Measures, writes and prints the result; returns the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--corpus", choices=DEV_NAMES, nargs="+", default=list(DEV_NAMES), help="default: both")
    parser.add_argument("--peer", choices=PEERS, nargs="+", default=list(PEERS), help="default: both")
    parser.add_argument("--max-seconds", type=positive_count, default=1_200, help="training per side (default: 1200)")
    parser.add_argument("--seeds", type=positive_count, nargs="+", default=[1, 2], help="default: 1 2")
    parser.add_argument("--rounds", type=positive_count, default=1, help="runs with each seed (default: 1)")
    parser.add_argument(
        "--trial-steps", type=positive_count, default=24, help="steps to measure each side's speed with (default: 24)"
    )
    parser.add_argument("--checkpoints", type=positive_count, default=10, help="points of a curve (default: 10)")
    parser.add_argument(
        "--tune", type=positive_count, metavar="SECONDS", help="only try the peers' recipes, so long each"
    )
    parser.add_argument("--fresh", action="store_true", help="forget the results of earlier calls")
    options = parser.parse_args()
    options.cores = sorted(os.sched_getaffinity(0))[:2]
    if len(options.cores) < 2:
        raise UserError("Two sides side by side need two cores.")
    options.machine = describe_machine()
    for peer in options.peer:
        peer_python(peer)
    results = _read_earlier(options.fresh)
    for corpus in options.corpus:
        texts = prepare_texts(corpus, WORK_FOLDER / corpus)
        for peer in options.peer:
            (tune if options.tune else measure)(peer, corpus, texts, results, options)
    print(f"Written to {(RESULTS_FOLDER / NAME).relative_to(REPOSITORY)}.json and .svg")
    summaries = {} if options.tune else results["summary"]
    print(f"Goal: {GOAL}")
    for corpus, summary in summaries.items():
        print(describe_summary(corpus, summary))
    return 0 if all(each["is_reached"] for each in summaries.values()) else 1


if __name__ == "__main__":
    end_with(main)
