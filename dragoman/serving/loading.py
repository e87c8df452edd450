"""Loads the models of a server; one that cannot be loaded does not keep the others from being served."""

from collections.abc import Callable, Iterable
from pathlib import Path

from dragoman.corpus.cleaning.language import language_name
from dragoman.run.errors import UsageError, UserError, describe_fault
from dragoman.serving.served_models import ServedModel, ServedModels
from dragoman.serving.token_count import TokenCount
from dragoman.translation.exported_model import ExportFacts, facts_as_json, load_export
from dragoman.translation.lines.usual_length import usual_subwords


def load_models(
    folders: Iterable[Path],
    open_export: Callable[[Path], Path],
    languages: tuple[str, str] | None,
    beam_size: int | None,
    num_workers: int,
    say: Callable[[str], None],
) -> ServedModels:
    """Loads all models that can be loaded and says why others cannot; fails only if none is left.

    `open_export` turns what the user named into the folder of an export; `languages` are those of models that do not
    name theirs.
    """
    models: list[ServedModel] = []
    for folder in folders:
        try:
            model = _load_model(folder, open_export(folder), languages, beam_size, num_workers)
            _refuse_second(model, models)
        except Exception as error:  # whatever is wrong with it, the others are served
            say(f"{folder} is not served: {describe_fault(error)}")
            continue
        models.append(model)
        say(f"Serving {folder}: {_describe(model)}")
    if not models:
        raise UserError("None of the models can be served.")
    return ServedModels(models)


def _load_model(
    folder: Path, export: Path, languages: tuple[str, str] | None, beam_size: int | None, num_workers: int
) -> ServedModel:
    loaded = load_export(export, beam_size, num_workers=num_workers)
    pair = loaded.facts.languages or languages
    if pair is None:
        raise UserError("It does not say which languages it translates: add --languages, e.g. --languages en-de.")
    translator, tokens = loaded.translator.by_sentences(None if usual_subwords(folder) is None else 1), TokenCount()
    translator.on_found = tokens.add
    facts, rows = facts_as_json(loaded.facts), describe_facts(loaded.facts)
    return ServedModel(pair[0], pair[1], translator, tokens, facts, rows)


def _refuse_second(model: ServedModel, others: Iterable[ServedModel]) -> None:
    if any(model.languages == other.languages for other in others):
        raise UsageError(f"Another model for {model.languages} is served already.")


def _describe(model: ServedModel) -> str:
    return f"{language_name(model.source)} ({model.source}) to {language_name(model.target)} ({model.target})."


def describe_facts(facts: ExportFacts) -> list[tuple[str, str]]:
    """Returns what the page shows about a model, as names and values."""
    rows = [("Weights", facts.checkpoint), ("Parameters", f"{facts.num_parameters:,}")]
    rows.append(("Precision", facts.quantization or "float32"))
    for score in facts.scores:
        rows.append(("BLEU", _describe_score(score.bleu, score.judged_on, score.signature)))
        if score.chrf is not None:
            signature = score.chrf_signature or ""
            name = "chrF2++" if "nw:2" in signature else "chrF2"  # whether words count besides characters
            rows.append((name, _describe_score(score.chrf, score.judged_on, signature)))
    if facts.licence:
        rows.append(("Licence", facts.licence))
    return [*rows, ("Exported", f"{facts.created[:10]}, dragoman {facts.dragoman_version}")]


def _describe_score(figure: float, judged_on: str, signature: str | None) -> str:
    return f"{figure:.1f} on {judged_on}" + (f" ({signature})" if signature else "")
