"""The command `compare`: whether one system translates better than another, or only by chance."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from dragoman.cli.help_text import add_command
from dragoman.cli.model_options import Backend, BeamSize, LengthPenalty, Workers, open_model
from dragoman.cli.output import Json, print_json, say, warn
from dragoman.cli.test_set_options import AskedTestSet, Languages, References, SacrebleuSet, Source, TokenizerName
from dragoman.run.errors import UsageError, UserError
from dragoman.run.interruption import signals_as_keyboard_interrupt

if TYPE_CHECKING:
    from dragoman.evaluation.evaluation_set import EvaluationSet
    from dragoman.evaluation.judged_model import JudgedModel
    from dragoman.evaluation.significance import ComparedSystem, SystemComparison
    from dragoman.run.config import ScoreTokenizer
    from dragoman.translation.exported_model import LoadedExport
    from dragoman.translation.loading import LoadedRun

MAX_SYSTEMS = 20
MAX_SEED = 2**32 - 1


def add_compare_command(app: typer.Typer) -> None:
    """Adds the command of this file to the command line."""
    add_command(
        app,
        compare,
        "dragoman compare runs/a runs/b",
        "dragoman compare runs/a@latest runs/a@average:best:5 --test-set wmt14",
        "dragoman compare a.de b.de --reference test.de --out a-and-b.html",
    )


@signals_as_keyboard_interrupt()
def compare(
    systems: Annotated[
        list[str],
        typer.Argument(
            metavar="SYSTEM",
            help="Two or more: run folders, RUN@CHECKPOINT, exports, or files of translations. "
            "The first is the baseline.",
        ),
    ],
    source: Source = None,
    reference: References = None,
    test_set: SacrebleuSet = None,
    languages: Languages = None,
    test: Annotated[
        Literal["bootstrap", "randomisation", "both"],
        typer.Option(help="Paired bootstrap resampling, paired approximate randomisation, or both."),
    ] = "both",
    samples: Annotated[
        int | None,
        typer.Option(min=1, help="Samples of a test. Default: 1000 for bootstrap, 10000 for randomisation."),
    ] = None,
    seed: Annotated[int, typer.Option(min=1, max=MAX_SEED, help="Seed of the samples.")] = 12345,
    out: Annotated[Path, typer.Option(metavar="FILE", help="Page with the differences sentence by sentence.")] = Path(
        "comparison.html"
    ),
    tokenizer: TokenizerName = None,
    beam_size: BeamSize = None,
    length_penalty: LengthPenalty = None,
    workers: Workers = None,
    backend: Backend = None,
    json: Json = False,
) -> None:
    """Test whether one system is better, or only by chance.

    The tests are sacreBLEU's, by BLEU, chrF2++ and TER. A page shows the differences sentence by sentence.
    """
    from dragoman.evaluation.difference_page import render_difference_page
    from dragoman.evaluation.scores import Judge, choose_tokenizer, parse_tokenizer
    from dragoman.evaluation.significance import TESTS, compare_systems
    from dragoman.run.files import write_text

    score_tokenizer = parse_tokenizer(tokenizer) if tokenizer else None
    asked = AskedTestSet(source, tuple(reference or ()), test_set, languages)
    gathered = _Gathered(asked)
    given = _parse_systems(systems)
    asked.require_output(out, *(system.path for system in given))
    for system in given:
        if system.which is not None:
            loaded = open_model(system.path, system.which, beam_size, length_penalty, workers, None, backend, warn)
            gathered.add_model(system, loaded)
    for system in given:
        if system.which is None:
            gathered.add_file(system)
    judged_on = gathered.test_set()
    references = [line[0] for line in judged_on.references_by_line]
    judge = Judge(
        judged_on.references,
        choose_tokenizer(score_tokenizer or gathered.tokenizer, gathered.languages or judged_on.languages, references),
    )
    tests = TESTS if test == "both" else (test,)
    comparison = compare_systems([gathered.systems[each] for each in given], judge, tests, samples, seed)
    write_text(out, render_difference_page(comparison, judged_on, judge, gathered.notes))
    _print(comparison, judged_on, gathered.notes, out, json)


@dataclass(frozen=True)
class _GivenSystem:
    """One system as the command line names it."""

    name: str
    path: Path
    which: str | None
    """The checkpoint; None for a file of translations."""


def _parse_systems(names: Sequence[str]) -> list[_GivenSystem]:
    if len(names) < 2:
        raise UsageError("Give at least two systems to compare; the first is the baseline.")
    if len(names) > MAX_SYSTEMS:
        raise UsageError(f"These are {len(names)} systems: at most {MAX_SYSTEMS} can be compared.")
    if repeated := next((name for name in names if names.count(name) > 1), None):
        raise UsageError(f"{repeated} is given twice.")
    return [_parse_system(name) for name in names]


def _parse_system(name: str) -> _GivenSystem:
    """Reads RUN, RUN@CHECKPOINT, or the name of an export or a file; a name that exists is taken as it is."""
    path = Path(name)
    if path.is_dir():
        return _GivenSystem(name, path, "best")
    folder, _, which = name.rpartition("@")
    if folder and which and not path.exists() and Path(folder).is_dir():
        return _GivenSystem(name, Path(folder), which)
    if not path.exists():
        raise UserError(f"There is no run folder, export or file {name}.")
    return _GivenSystem(name, path, None)


class _Gathered:
    """Translations of all systems, and what they are judged on."""

    def __init__(self, asked: AskedTestSet) -> None:
        self._asked = asked
        self._test_set: EvaluationSet | None = None
        self.systems: dict[_GivenSystem, ComparedSystem] = {}
        self.notes: list[str] = []
        self.tokenizer: ScoreTokenizer = "auto"
        self.languages: str | None = None

    def test_set(self, model: "JudgedModel | None" = None) -> "EvaluationSet":
        """Returns what was asked for, else the test set of the first model."""
        if self._test_set is None:
            self._test_set = self._asked.read(model)
        return self._test_set

    def add_model(self, system: _GivenSystem, loaded: "LoadedRun | LoadedExport") -> None:
        """Translates the test set."""
        from dragoman.evaluation.final_evaluation import translate_set
        from dragoman.evaluation.judged_model import describe_model
        from dragoman.evaluation.significance import ComparedSystem

        model = describe_model(system.path, loaded)
        test_set = self.test_set(model)
        if not self.systems:
            self.tokenizer, self.languages = model.tokenizer, model.languages
        warn(f"Translating with {system.name}: {model.description}.")
        self.systems[system] = ComparedSystem(system.name, translate_set(model.translator, test_set))
        self.notes.append(f"{system.name}: {model.find_overlap(test_set)[1]}")

    def add_file(self, system: _GivenSystem) -> None:
        """Reads translations that any program wrote."""
        from dragoman.evaluation.evaluation_set import read_lines
        from dragoman.evaluation.significance import ComparedSystem

        lines = read_lines(system.path, warn)
        self.test_set().require_lines_of(system.path, lines)
        self.systems[system] = ComparedSystem(system.name, lines)


def _print(
    comparison: "SystemComparison", test_set: "EvaluationSet", notes: Sequence[str], page: Path, is_json: bool
) -> None:
    facts = {"test_set": test_set.name, "sentences": test_set.num_sentences, "references": len(test_set.references)}
    if is_json:
        print_json(facts | comparison.figures() | {"notes": notes, "page": str(page)})
        return
    say(comparison.table())
    for line in (*notes, *comparison.describe_signatures()):
        say(line)
    say("")
    for verdict in comparison.verdicts():
        say(verdict)
    say(f"Sentence by sentence: {page}")
