"""From a run folder to a translator: config, tokenizers and weights are all it takes."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from dragoman.cluster.world import choose_device
from dragoman.corpus.prepared import tokenizer_path
from dragoman.corpus.tokenizer import Tokenizer
from dragoman.model.presets import resolve_shape
from dragoman.model.transformer import Transformer
from dragoman.model.weights import load_weights
from dragoman.run.checkpoints import MODEL_FILE, find_checkpoint
from dragoman.run.config import Settings, load_settings
from dragoman.run.folder import checkpoint_step, open_run
from dragoman.translation.beam_search import SearchSettings
from dragoman.translation.translator import Translator


@dataclass(frozen=True)
class LoadedRun:
    """A trained translator and where it came from."""

    translator: Translator
    settings: Settings
    checkpoint: Path

    @property
    def step(self) -> int:
        """The step the weights are of."""
        return checkpoint_step(self.checkpoint)


def load_run(
    path: Path,
    which: str = "best",
    beam_size: int | None = None,
    length_penalty: float | None = None,
    say: Callable[[str], None] | None = None,
) -> LoadedRun:
    """Loads a run's best, latest or numbered checkpoint, ready to translate; search as in its config unless given."""
    run = open_run(path)
    settings = load_settings(run.config)
    checkpoint = find_checkpoint(run, which)
    is_joint = tokenizer_path(run.tokenizers, "source", is_joint=True).exists()
    source, target = (Tokenizer.load(tokenizer_path(run.tokenizers, side, is_joint)) for side in ("source", "target"))
    model = Transformer(resolve_shape(settings.model, source.vocab_size, target.vocab_size, is_joint))
    load_weights(model, checkpoint / MODEL_FILE)
    search = SearchSettings(
        beam_size=settings.evaluation.beam_size if beam_size is None else beam_size,
        length_penalty=settings.evaluation.length_penalty if length_penalty is None else length_penalty,
    )
    translator = Translator(
        model.to(choose_device()), source, target, search, max_source_tokens=settings.data.max_tokens, say=say
    )
    return LoadedRun(translator, settings, checkpoint)
