"""Options that name a test set, for the commands that judge translations."""

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from dragoman.cli.output import warn
from dragoman.run.errors import UsageError, UserError

if TYPE_CHECKING:
    from dragoman.evaluation.evaluation_set import EvaluationSet
    from dragoman.evaluation.judged_model import JudgedModel

Source = Annotated[Path | None, typer.Option(metavar="FILE", help="Text to translate. Default: the prepared test set.")]
References = Annotated[
    list[Path] | None,
    typer.Option(
        "--reference",
        metavar="FILE",
        help="Its human translation, plain text. Repeat it for several; a .tsv file has one in each column.",
    ),
]
SacrebleuSet = Annotated[
    str | None,
    typer.Option(
        "--test-set", help="A test set that sacreBLEU has downloaded, e.g. wmt14; `sacrebleu --list` lists all."
    ),
]
Languages = Annotated[
    str | None, typer.Option(metavar="PAIR", help="Languages of --test-set, e.g. en-de. Default: those of the run.")
]
TokenizerName = Annotated[
    str | None,
    typer.Option(
        help="How BLEU cuts text into words, e.g. 13a, char, zh or ja-mecab; auto: by the language. "
        "Default: as in the run's config."
    ),
]


@dataclass(frozen=True)
class AskedTestSet:
    """What a command line says about the test set."""

    source: Path | None
    references: tuple[Path, ...]
    name: str | None
    languages: str | None

    def require_output(self, path: Path | None, *inputs: Path | None) -> None:
        """Fails before long work if a result cannot be written to a file, or would replace one that is read."""
        from dragoman.run.files import require_writable

        if path is None:
            return
        require_writable(path)
        for each in (self.source, *self.references, *inputs):
            if each is not None and each.exists() and path.exists() and path.samefile(each):
                raise UserError(f"{path} would be replaced, but it is also read; name another file for the output.")

    def read(self, model: "JudgedModel | None" = None) -> "EvaluationSet":
        """Reads the test set; where nothing was said, that of the model's corpus."""
        from dragoman.evaluation.evaluation_set import read_files, read_sacrebleu_set

        if self.name is not None:
            if self.source or self.references:
                raise UsageError("Give either --test-set, or --source and --reference.")
            return read_sacrebleu_set(self.name, self.languages or (model.languages if model else None), warn)
        if self.languages is not None:
            raise UsageError("--languages belongs to --test-set; give both or neither.")
        if model is None and not self.references:
            raise UsageError("Give the references of the translations with --reference, or a --test-set.")
        if model is not None and (self.source is None) != (not self.references):
            raise UsageError("Give --source and --reference together, or neither of them.")
        if not self.references:
            assert model is not None
            return model.read_test_set(warn)
        return read_files(self.source, self.references, warn)
