"""The command `evaluate`."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from dragoman.cli.help_text import add_command
from dragoman.cli.model_options import Backend, BeamSize, Checkpoint, Ensemble, LengthPenalty, Workers, open_model
from dragoman.cli.output import Json, print_json, say, warn
from dragoman.cli.test_set_options import AskedTestSet, Languages, References, SacrebleuSet, Source, TokenizerName
from dragoman.run.errors import UsageError
from dragoman.run.interruption import signals_as_keyboard_interrupt

if TYPE_CHECKING:
    from dragoman.evaluation.comet import CometJudge
    from dragoman.evaluation.final_evaluation import FinalEvaluation

NUM_WORST = 10


def add_evaluate_command(app: typer.Typer) -> None:
    """Adds the command of this file to the command line."""
    add_command(
        app,
        evaluate,
        "dragoman evaluate runs/demo --source test.en --reference test.de --json",
        "dragoman evaluate runs/demo --test-set wmt14 --sentence-scores scores.tsv",
        "dragoman evaluate --hypotheses out.de --reference a.de --reference b.de",
    )


@signals_as_keyboard_interrupt()
def evaluate(
    run: Annotated[
        Path | None, typer.Argument(metavar="RUN", help="A run folder, e.g. runs/demo, or an export.")
    ] = None,
    source: Source = None,
    reference: References = None,
    test_set: SacrebleuSet = None,
    languages: Languages = None,
    hypotheses: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Score these translations; no run is needed.")
    ] = None,
    output: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Also write the translations to this file.")
    ] = None,
    sentence_scores: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Also write the scores of each sentence, as a .tsv table.")
    ] = None,
    worst: Annotated[int, typer.Option(min=0, help="Show so many of the worst sentences.")] = NUM_WORST,
    metric: Annotated[
        list[str] | None, typer.Option(help="A metric besides BLEU, chrF and TER: comet. It needs --comet-model.")
    ] = None,
    comet_model: Annotated[
        str | None,
        typer.Option(metavar="PATH", help="COMET checkpoint, or name of a model in the cache. Nothing is downloaded."),
    ] = None,
    checkpoint: Checkpoint = "best",
    tokenizer: TokenizerName = None,
    beam_size: BeamSize = None,
    length_penalty: LengthPenalty = None,
    workers: Workers = None,
    ensemble: Ensemble = None,
    backend: Backend = None,
    json: Json = False,
) -> None:
    """Translate a test set and score it: BLEU, chrF2++, TER.

    The scores are sacreBLEU's of real beam-search output, with their signatures. Test sentences that are also in the
    training data are counted.
    """
    from dragoman.evaluation.final_evaluation import evaluate_model, evaluate_translations
    from dragoman.evaluation.judged_model import describe_model
    from dragoman.evaluation.scores import parse_tokenizer
    from dragoman.run.files import write_text

    score_tokenizer = parse_tokenizer(tokenizer) if tokenizer else None
    asked = AskedTestSet(source, tuple(reference or ()), test_set, languages)
    asked.require_output(output, hypotheses)
    asked.require_output(sentence_scores, hypotheses, output)
    comet = _load_comet(metric or [], comet_model)
    if run is None:
        if hypotheses is None:
            raise UsageError("Give a run or an export to translate with, or translations with --hypotheses.")
        if output is not None:
            raise UsageError("--output needs a run: with --hypotheses, nothing is translated.")
        result = evaluate_translations(hypotheses, asked.read(), warn, score_tokenizer, comet)
    else:
        if hypotheses is not None:
            raise UsageError("Give either a run to translate with or --hypotheses, not both.")
        loaded = open_model(run, checkpoint, beam_size, length_penalty, workers, ensemble, backend, warn)
        model = describe_model(run, loaded)
        result = evaluate_model(model, asked.read(model), warn, output, score_tokenizer, comet)
    if sentence_scores is not None:
        write_text(sentence_scores, result.table())
    _print(result, worst, json)


def _load_comet(metrics: list[str], model: str | None) -> "CometJudge | None":
    """Loads COMET if it was asked for, before the long work."""
    if unknown := [name for name in metrics if name != "comet"]:
        raise UsageError(f"--metric is {unknown[0]!r}; it can be comet. BLEU, chrF2++ and TER are always computed.")
    if not metrics and model is None:
        return None
    if not metrics or model is None:
        raise UsageError("COMET needs both --metric comet and --comet-model PATH.")
    from dragoman.evaluation.comet import CometJudge

    return CometJudge(model)


def _print(result: "FinalEvaluation", num_worst: int, is_json: bool) -> None:
    """Prints the worst sentences, then the scores, so that these are seen first in a terminal."""
    if is_json:
        print_json(result.figures(num_worst))
        return
    if worst := result.worst(num_worst):
        say(f"The {f'{len(worst)} worst sentences' if len(worst) > 1 else 'worst sentence'}, by chrF2++:\n")
        say("\n\n".join(each.describe() for each in worst) + "\n")
    say(result.summary())
