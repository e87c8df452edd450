"""What Python programs use: load a translator, prepare, train, evaluate. Nothing here prints or exits.

Errors are `UserError` (`UsageError` for wrong arguments), with the sentence that the command line would print.
`prepare`, `train` and `evaluate` run in a process of their own: they take signals, start workers and set the number of
threads, which a caller's program must not feel.
"""

import json
import os
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, get_args

from dragoman.exporting.opening import BackendName, open_model
from dragoman.run.errors import UsageError, UserError
from dragoman.run.folder import RunFolder
from dragoman.run.processes import CONSOLE_VARIABLE
from dragoman.run.status import read_status
from dragoman.translation.lines.usual_length import usual_subwords
from dragoman.translation.translator import LineTranslator, SourceLine, Translation

__all__ = ["PreparedText", "TestScores", "TrainedRun", "Translation", "Translator", "evaluate", "prepare", "train"]

Paths = str | Path | Sequence[str | Path]
Say = Callable[[str], None]


class Translator:
    """A trained model that translates lines of text; safe to use from one thread at a time."""

    def __init__(self, translator: LineTranslator) -> None:
        """Takes what `Translator.load` has opened."""
        self._translator = translator

    @classmethod
    def load(
        cls,
        path: str | Path,
        *,
        checkpoint: str = "best",
        backend: BackendName | None = None,
        beam_size: int | None = None,
        length_penalty: float | None = None,
        workers: int = 1,
        ensemble: Sequence[str] = (),
        say: Say | None = None,
    ) -> "Translator":
        """Loads a run folder, or a folder that `dragoman export` wrote.

        `checkpoint` is best, latest, a step, average:best:N or average:last:N. With more than one worker, large inputs
        are translated by processes forked from this one. `ensemble` names more models, each RUN or RUN@CHECKPOINT.
        `say` receives notices about odd lines.
        """
        if backend not in (None, *get_args(BackendName)):
            raise UsageError(f"backend can be {' or '.join(map(repr, get_args(BackendName)))}, not {backend!r}.")
        if workers < 1:
            raise UsageError(f"workers must be 1 or more, not {workers}.")
        if isinstance(ensemble, str):
            raise UsageError("ensemble takes a list of models, not one text: write [ensemble].")
        opened = open_model(Path(path), checkpoint, beam_size, length_penalty, workers, ensemble, backend, say)
        return cls(opened.translator.by_sentences(usual_subwords(Path(path))))

    def translate(self, texts: Sequence[str]) -> list[str]:
        """Returns the translations in the order of the texts; blank ones stay blank."""
        return [best[0].text for best in self.translate_n_best(texts, 1)]

    def translate_n_best(
        self, texts: Sequence[str], num_best: int, *, alignment: bool = False
    ) -> list[list[Translation]]:
        """Returns up to `num_best` translations of each text, best first, with scores and, if asked, alignments."""
        lines = [SourceLine(text) for text in _check_texts(texts)]
        own = self._translator.settings
        beam_size = max(own.beam_size, num_best)
        settings = replace(own, beam_size=beam_size, num_best=num_best, with_alignment=alignment)
        return list(self._translator.translate_lines(lines, settings=settings))


def _check_texts(texts: Sequence[str]) -> Iterator[str]:
    """Yields the texts; refuses what is none, e.g. the NaN that a table has for a missing one."""
    if isinstance(texts, str):
        raise UsageError("translate takes a list of texts, not one text: write [text].")
    for number, text in enumerate(texts, 1):
        if not isinstance(text, str):
            raise UsageError(f"Text {number:,} is no text, but of the type {type(text).__name__}.")
        try:
            text.encode()
        except UnicodeEncodeError as error:
            half = f"\\u{ord(text[error.start]):04x}"
            raise UsageError(f"Text {number:,} has half a character ({half}) at offset {error.start}.") from None
        yield text


@dataclass(frozen=True)
class PreparedText:
    """A folder that training reads."""

    folder: Path
    num_pairs: int
    """Training pairs."""
    figures: dict[str, Any]
    """Everything that `dragoman prepare --json` prints."""


@dataclass(frozen=True)
class TrainedRun:
    """A run folder after training."""

    folder: Path
    is_finished: bool
    """False where a budget or a signal ended it early."""
    step: int
    figures: dict[str, Any]
    """Everything that `dragoman train --json` prints."""


@dataclass(frozen=True)
class TestScores:
    """Scores of a model on a test set, with the signatures that make them comparable."""

    __test__ = False  # pytest would take the name for a class of tests
    bleu: float
    bleu_signature: str
    chrf: float
    chrf_signature: str
    figures: dict[str, Any]
    """Everything that `dragoman evaluate --json` prints."""


def prepare(
    source: Paths,
    target: Paths,
    out: str | Path,
    *,
    languages: str | None = None,
    options: Mapping[str, object] | None = None,
    say: Say | None = None,
) -> PreparedText:
    """Turns parallel text into a folder for training.

    `options` are further options of `dragoman prepare` by name, e.g. {"vocab_size": 8000, "separate": True}.
    """
    words = ["prepare", "--out", str(out), *_repeat("--source", source), *_repeat("--target", target)]
    figures = _run([*words, *_option("--languages", languages), *_options(options), "--json"], say)
    return PreparedText(Path(figures["out"]), int(figures["splits"]["train"]["num_pairs"]), figures)


def train(
    config: str | Path | None = None,
    *,
    source: Paths = (),
    target: Paths = (),
    run_dir: str | Path,
    settings: Mapping[str, object] | None = None,
    options: Mapping[str, object] | None = None,
    say: Say | None = None,
) -> TrainedRun:
    """Trains from a config file or from two texts, in a folder of its own; returns when training has ended.

    `settings` are settings by name, e.g. {"training.max_steps": 500}; `options` are further options of `dragoman train`
    by name, e.g. {"workers": 2, "resume": True}. KeyboardInterrupt asks the run to save and end.
    """
    words = ["train", *([str(config)] if config is not None else []), "--run-dir", str(run_dir)]
    words += [*_repeat("--source", source), *_repeat("--target", target), *_options(options)]
    for name, value in (settings or {}).items():
        words += ["--set", f"{name}={json.dumps(value) if not isinstance(value, Path) else value}"]
    figures = _run([*words, "--json"], say)
    status = read_status(RunFolder(Path(run_dir)))
    is_finished = status is not None and status.state == "finished"
    return TrainedRun(Path(run_dir), is_finished, int(figures["step"] or 0), figures)


def evaluate(
    model: str | Path,
    source: str | Path | None = None,
    references: Paths = (),
    *,
    checkpoint: str = "best",
    options: Mapping[str, object] | None = None,
    say: Say | None = None,
) -> TestScores:
    """Scores a run or an export on a test set; on the prepared test set of the run if no files are given.

    `options` are further options of `dragoman evaluate` by name, e.g. {"beam_size": 8}.
    """
    words = ["evaluate", str(model), "--checkpoint", checkpoint, *_option("--source", source)]
    figures = _run([*words, *_repeat("--reference", references), *_options(options), "--json"], say)
    return TestScores(
        figures["bleu"], figures["signature"], figures["chrf"], figures["chrf_signature"], figures=figures
    )


# Commands as processes


def _run(words: Sequence[str], say: Say | None) -> dict[str, Any]:
    """Runs a command; returns the JSON it prints, and passes on its other lines."""
    process = subprocess.Popen(
        [sys.executable, "-P", "-m", "dragoman", *words],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        encoding="utf-8",
        errors="replace",
        env=os.environ | {CONSOLE_VARIABLE: "stderr", "PYTHONIOENCODING": "utf-8"},
    )
    messages: list[str] = []
    assert process.stdout is not None
    reader = threading.Thread(target=_pass_on, args=(process.stderr, messages, say), daemon=True)
    reader.start()
    try:
        output = process.stdout.read()
        code = process.wait()
    except BaseException:
        process.terminate()  # the command saves and ends its workers
        process.wait()
        raise
    finally:
        reader.join()
    if code != 0:
        raise _error(code, messages)
    figures: dict[str, Any] = json.loads(output)
    return figures


def _pass_on(lines: Any, messages: list[str], say: Say | None) -> None:
    for line in lines:
        messages.append(line.rstrip("\n"))
        del messages[:-1000]  # only the last ones can explain an error
        if say is not None:
            say(messages[-1])


def _error(code: int, messages: Sequence[str]) -> UserError:
    """Returns the error that a command has printed."""
    prefix = "dragoman: "
    sentences = [message.removeprefix(prefix) for message in messages if message.startswith(prefix)]
    text = sentences[-1] if sentences else f"The command ended with code {code}. {' '.join(messages[-3:])}"
    return UsageError(text) if code == UsageError.exit_code else UserError(text)


def _repeat(option: str, paths: Paths) -> list[str]:
    several = [paths] if isinstance(paths, str | Path) else paths
    return [word for path in several for word in (option, str(path))]


def _option(option: str, value: object) -> list[str]:
    return [] if value is None else [option, str(value)]


def _options(values: Mapping[str, object] | None) -> list[str]:
    """Returns options as words: True is a switch that is on, a list repeats its option."""
    words: list[str] = []
    for name, value in (values or {}).items():
        option = f"--{name.replace('_', '-')}"
        if value is True:
            words.append(option)
        elif value not in (False, None):
            several = value if isinstance(value, list | tuple) else [value]
            words += [word for each in several for word in (option, str(each))]
    return words
