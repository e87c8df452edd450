"""Opens a model to translate with: a run folder, or an export of one."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from dragoman.run.errors import UsageError

if TYPE_CHECKING:
    from dragoman.translation.exported_model import LoadedExport
    from dragoman.translation.loading import LoadedRun

BackendName = Literal["torch", "ctranslate2"]


def open_model(
    run: Path,
    checkpoint: str = "best",
    beam_size: int | None = None,
    length_penalty: float | None = None,
    workers: int | None = None,
    ensemble: Sequence[str] | None = None,
    backend: BackendName | None = None,
    say: Callable[[str], None] | None = None,
) -> "LoadedRun | LoadedExport":
    """Loads a run or an export for translation; `say` receives warnings.

    What it returns has a `translator`, and a method `describe()` that says in a sentence what was loaded.
    """
    from dragoman.translation.exported_model import is_export, load_export

    if is_export(run):
        _refuse_for_export(checkpoint, ensemble, backend)
        return load_export(run, beam_size, length_penalty, say, workers)
    if backend == "ctranslate2":
        from dragoman.exporting.cached_export import ensure_export

        if ensemble:
            raise UsageError("--ensemble needs --backend torch: CTranslate2 computes with one model.")
        return load_export(ensure_export(run, checkpoint, say), beam_size, length_penalty, say, workers)
    from dragoman.translation.loading import load_run

    return load_run(run, checkpoint, beam_size, length_penalty, say, workers, tuple(ensemble or ()))


def _refuse_for_export(checkpoint: str, ensemble: Sequence[str] | None, backend: BackendName | None) -> None:
    """Refuses options that only a run folder can follow."""
    for flag, is_given in (
        ("--checkpoint", checkpoint != "best"),
        ("--ensemble", bool(ensemble)),
        ("--backend torch", backend == "torch"),
    ):
        if is_given:
            raise UsageError(f"{flag} needs a run folder; an export holds one model for CTranslate2.")
