"""COMET, a neural metric, where its package and a model are on this machine; downloads nothing."""

import math
import os
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from dragoman.run.errors import UserError

_CHECKPOINT = Path("checkpoints/model.ckpt")
"""Where a folder of COMET has its weights."""
_BATCH_SIZE = 16


@dataclass(frozen=True)
class CometScore:
    """COMET of all translations and of each; for most models 0 to 1, more is better."""

    comet: float
    comet_signature: str
    sentences: list[float]

    def figures(self) -> dict[str, Any]:
        """Returns the values that --json prints."""
        return {"comet": self.comet, "comet_signature": self.comet_signature}


class CometJudge:
    """A loaded COMET model."""

    def __init__(self, model: str) -> None:
        """Loads a checkpoint file, a folder of COMET, or a model that is in Hugging Face's cache by its name."""
        # Read when these packages are imported: the model's tokenizer must not be fetched either.
        os.environ |= {"HF_HUB_OFFLINE": "1", "TRANSFORMERS_OFFLINE": "1"}
        try:
            import comet
        except ImportError:
            raise UserError("COMET is not installed here: pip install 'dragoman[comet]'") from None
        self._checkpoint = _find_checkpoint(model)
        self._name = model
        try:
            self._model = comet.load_from_checkpoint(str(self._checkpoint), local_files_only=True)
        except Exception as error:  # of any kind: COMET, Lightning, transformers and pickle all take part
            raise UserError(
                f"COMET cannot load {self._checkpoint} ({type(error).__name__}: {error}). A model may also need the "
                "tokenizer of its base model in Hugging Face's cache."
            ) from None

    def score(self, sources: Sequence[str], translations: Sequence[str], references: Sequence[str]) -> CometScore:
        """Scores translations against one reference each."""
        import torch

        rows = zip(sources, translations, references, strict=True)
        samples = [{"src": source, "mt": translation, "ref": reference} for source, translation, reference in rows]
        found = self._model.predict(
            samples, batch_size=_BATCH_SIZE, gpus=int(torch.cuda.is_available()), progress_bar=False
        )
        score, sentences = float(found.system_score), [float(each) for each in found.scores]
        if not all(map(math.isfinite, (score, *sentences))):
            raise UserError(
                f"COMET with {self._name} gives no number for some sentences; its checkpoint may be damaged."
            )
        return CometScore(score, f"nrefs:1|model:{self._name}|version:{_comet_version()}", sentences)


def _find_checkpoint(model: str) -> Path:
    path = Path(model)
    if path.is_file():
        return path
    folder = path if path.is_dir() else _find_in_cache(model)
    if folder is None or not (folder / _CHECKPOINT).is_file():
        place = f"{folder / _CHECKPOINT} is missing" if folder else "there is no such path, and it is not in the cache"
        raise UserError(
            f"The COMET model {model} is not on this machine: {place}. To download one: "
            """python -c "from comet import download_model; print(download_model('Unbabel/wmt22-comet-da'))\""""
        )
    return folder / _CHECKPOINT


def _find_in_cache(name: str) -> Path | None:
    """Finds a model in Hugging Face's cache. COMET's own function would try another server if it is not there."""
    try:
        from huggingface_hub import snapshot_download

        return Path(snapshot_download(repo_id=name, local_files_only=True))
    except Exception:  # a name that is none, a missing or a broken cache
        return None


def _comet_version() -> str:
    try:
        return version("unbabel-comet")
    except PackageNotFoundError:
        return "unknown"
