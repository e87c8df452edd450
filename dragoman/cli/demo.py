"""`dragoman demo`: trains and evaluates a translator on the corpus inside the package."""

from importlib.resources import as_file, files
from typing import Any

from dragoman.builtin import BuiltinCorpus, write_builtin_corpus
from dragoman.cli.final_scores import try_to_score
from dragoman.corpus.preparation.prepare import Say, prepare_corpus
from dragoman.corpus.settings import PrepareSettings, TokenizerSettings
from dragoman.evaluation.final_evaluation import FinalEvaluation, evaluate_run
from dragoman.launch.hosts import Placement
from dragoman.launch.launcher import launch_run, write_end_report
from dragoman.run.commands import own_command, shell_path
from dragoman.run.config import Settings, load_settings
from dragoman.run.folder import RunFolder
from dragoman.run.progress import progress_bars
from dragoman.training.run_setup import create_run, require_free_folder
from dragoman.translation.loading import load_run

NUM_TRAINING_PAIRS = 40_000
VOCAB_SIZE = 2_000
NUM_SHOWN = 5


def run_demo(run: RunFolder, num_workers: int | None, overrides: list[str], say: Say) -> dict[str, Any]:
    """Writes the corpus, prepares it, trains, evaluates, and suggests what to try next; returns the scores."""
    require_free_folder(run)
    placement = Placement.on_this_machine(num_workers)
    corpus: BuiltinCorpus

    def make_ready() -> bool:
        nonlocal corpus
        say(f"1. Writing {NUM_TRAINING_PAIRS:,} English-German sentence pairs to {run.corpus}")
        corpus = write_builtin_corpus(run.corpus, NUM_TRAINING_PAIRS)
        say(f"2. Preparing them in {run.prepared}")
        with progress_bars() as show:
            prepare_corpus(prepare_settings(corpus), run.prepared, say, show)
        say("3. Training")
        create_run(run, demo_settings(run, overrides), placement.num_workers)
        return False

    if not launch_run(run, placement, make_ready):
        return {}
    say("4. Evaluating on sentences never seen in training")
    scores = try_to_score(run, lambda: _evaluate(run, corpus, say))
    say(f"\n{suggest_next_commands(run)}")
    return scores or {"test": None, "test_compositional": None}


def _evaluate(run: RunFolder, corpus: BuiltinCorpus, say: Say) -> dict[str, Any]:
    """Shows translations and scores of both test sets; returns the scores."""
    loaded = load_run(run.path, say=say)
    result = evaluate_run(loaded, corpus.test.source, corpus.test.target, say)
    novel = evaluate_run(loaded, corpus.test_compositional.source, corpus.test_compositional.target, say)
    say(f"\n{show_translations(result)}\n")
    say(f"BLEU {result.score.bleu:.1f} on the test set ({result.score.signature})")
    say(f"BLEU {novel.score.bleu:.1f} on word combinations never seen together in training")
    write_end_report(run, loaded.settings)  # again, now with the scores of the test sets
    return {"test": result.figures(), "test_compositional": novel.figures()}


def prepare_settings(corpus: BuiltinCorpus) -> PrepareSettings:
    """Returns settings for the built-in corpus with its own dev and test sets."""
    return PrepareSettings.of_files(
        [corpus.train.source],
        [corpus.train.target],
        dev=([corpus.dev.source], [corpus.dev.target]),
        test=([corpus.test.source], [corpus.test.target]),
        languages="en-de",
        tokenizer=TokenizerSettings(vocab_size=VOCAB_SIZE),
    )


def demo_settings(run: RunFolder, overrides: list[str]) -> Settings:
    """Reads demo.toml, with the folder that this demo prepared."""
    with as_file(files("dragoman.cli").joinpath("demo.toml")) as path:
        return load_settings(path, [f"data.prepared={run.prepared}", *overrides])


def show_translations(result: FinalEvaluation) -> str:
    """Lists a few sentences with their references and translations."""
    rows = zip(result.sources, result.references, result.translations, strict=True)
    return "\n".join(
        f"  English    {source}\n  reference  {reference}\n  dragoman   {translation}\n"
        for source, reference, translation in list(rows)[:NUM_SHOWN]
    ).rstrip("\n")


def suggest_next_commands(run: RunFolder) -> str:
    """Says where the results are, and lists commands to try next."""
    dragoman, folder = own_command(), shell_path(run.path)
    source, reference, events = map(shell_path, (run.corpus / "test.en", run.corpus / "test.de", run.tensorboard))
    return (
        f"The report, with answers to common questions about the run: {run.report('html')}\n"
        f"The run folder is {run.path}: config.toml, log.txt, metrics.jsonl, tensorboard/, checkpoints/.\n"
        "Try next:\n"
        f"  {dragoman} report {folder} --open\n"
        f"  echo 'The old teacher reads a long book.' | {dragoman} translate {folder}\n"
        f"  {dragoman} evaluate {folder} --source {source} --reference {reference}\n"
        f"  {own_command('tensorboard')} --logdir {events}\n"
        f"  {dragoman} train --source my.en --target my.de"
    )
