"""`dragoman train --source … --target …`: two text files to a judged translator, every choice made and explained."""

import sys
from collections.abc import Callable, Sequence
from pathlib import Path

from dragoman.corpus.prepare import PrepareRequest, prepare_corpus
from dragoman.corpus.prepared import PreparedCorpus
from dragoman.run.files import write_text
from dragoman.run.folder import RunFolder
from dragoman.training.recipe import CorpusSize, Machine, choose_settings, describe_choices, settings_for
from dragoman.training.start import require_free_folder, start_run

Say = Callable[[str], None]


def train_on_own_text(
    run: RunFolder, source: Sequence[Path], target: Sequence[Path], overrides: list[str], num_workers: int, say: Say
) -> None:
    """Prepares, chooses settings and says why, trains, and judges the result on the held-out test lines."""
    from dragoman.cluster.launch import num_cores
    from dragoman.cluster.world import num_gpus
    from dragoman.evaluation.judgement import evaluate_run
    from dragoman.translation.loading import load_run

    require_free_folder(run)
    request = PrepareRequest(list(source), list(target), run.prepared)
    corpus = prepare_with_progress(request, say)
    machine = Machine(num_cores(), num_gpus())
    tables, reasons = choose_settings(CorpusSize.of(corpus), machine, run.prepared.resolve())
    for reason in reasons:
        say(reason)
    settings = settings_for(tables, overrides)
    write_text(run.chosen_config, describe_choices(tables, reasons))
    say(f"These settings, to copy and edit: {run.chosen_config}\nRun folder: {run.path}")
    start_run(run, settings, num_workers)
    say(f"On the {corpus.manifest.splits['test'].num_pairs:,} held-out test pairs:")
    say(evaluate_run(load_run(run.path), None, None, say).summary())
    say(f"Translate with: dragoman translate {run.path} FILE")


def prepare_with_progress(request: PrepareRequest, say: Say) -> PreparedCorpus:
    """Prepares a corpus with a bar for each stage in a terminal, and only the notices elsewhere."""
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    console = Console(file=sys.stderr)
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as bars:
        tasks = {}

        def show(stage: str, num_done: int, num_total: int | None) -> None:
            if stage not in tasks:
                tasks[stage] = bars.add_task(stage, total=num_total)
            bars.update(tasks[stage], completed=num_done, total=num_total)

        return prepare_corpus(request, say, show)
