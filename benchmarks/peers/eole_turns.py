"""Makes steps of `eole train --config CONFIG` in turns, see turns.py: `eole_turns.py CONFIG THREADS`."""

import sys
from collections.abc import Iterator
from typing import Any

import torch
from eole.bin.main import main as eole_main
from eole.models.model_saver import TrainingModelSaver
from eole.trainer import Trainer
from turns import Turns


def take_turns(turns: Turns) -> None:
    """Keeps Eole's loop waiting before each step that nobody asked for; leaves out its checkpoints."""
    original = Trainer._accum_batches

    def batches(trainer: Trainer, iterator: Iterator[Any]) -> Iterator[Any]:
        padding = trainer.train_loss.padding_idx
        for made, normalization in original(trainer, iterator):
            num_source_tokens = sum(int(batch["srclen"].sum()) for batch in made)
            num_target_tokens = sum(int(batch["tgt"][:, 1:].ne(padding).sum()) for batch in made)
            turns.before_step(num_source_tokens, num_target_tokens)
            yield made, normalization

    Trainer._accum_batches = batches
    TrainingModelSaver.save = lambda *_, **__: None


if __name__ == "__main__":
    config, num_threads = sys.argv[1], int(sys.argv[2])
    torch.set_num_threads(num_threads)
    take_turns(Turns())
    sys.argv = ["eole", "train", "--config", config]
    eole_main()
