"""Trains a Marian model from scratch with Hugging Face's Seq2SeqTrainer: `huggingface_training.py CONFIG CLOCK`.

Runs in its own environment. CONFIG is JSON: files, sizes of the model, and arguments of the trainer.
"""

import json
import sys
from pathlib import Path
from typing import Any

from huggingface_text import EOS, PAD, Subwords, collate, training_pairs
from training_clock import TrainingClock
from transformers import (
    MarianConfig,
    MarianMTModel,
    Seq2SeqTrainer,
    Seq2SeqTrainingArguments,
    TrainerCallback,
    set_seed,
)


class WatchedTrainer(Seq2SeqTrainer):
    """Seq2SeqTrainer, except that the clock stands still while it saves."""

    clock: TrainingClock

    def _save_checkpoint(self, *arguments: Any, **others: Any) -> None:
        with self.clock.paused():
            super()._save_checkpoint(*arguments, **others)


class ClockCallback(TrainerCallback):
    """Starts the clock with the first step and notes the end of every step."""

    def __init__(self, clock: TrainingClock) -> None:
        self._clock = clock

    def on_step_begin(self, *_: Any, **__: Any) -> None:
        self._clock.start()

    def on_step_end(self, _: Any, state: Any, *__: Any, **___: Any) -> None:
        self._clock.finished(state.global_step)


def build_model(vocab_size: int, sizes: dict[str, Any]) -> MarianMTModel:
    """Returns a Marian model with random weights."""
    config = MarianConfig(
        vocab_size=vocab_size, pad_token_id=PAD, eos_token_id=EOS, decoder_start_token_id=PAD, forced_eos_token_id=EOS,
        share_encoder_decoder_embeddings=True, tie_word_embeddings=True, **sizes
    )  # fmt: skip
    return MarianMTModel(config)


def main() -> None:
    config, clock = json.loads(Path(sys.argv[1]).read_text(encoding="utf-8")), TrainingClock(Path(sys.argv[2]))
    subwords = Subwords(Path(config["subwords"]))
    set_seed(config["training"]["seed"])
    trainer = WatchedTrainer(
        model=build_model(subwords.size, config["model"]),
        args=Seq2SeqTrainingArguments(**config["training"]),
        train_dataset=training_pairs(subwords, Path(config["source"]), Path(config["target"])),
        data_collator=collate,
        callbacks=[ClockCallback(clock)],
    )
    trainer.clock = clock
    trainer.train()


if __name__ == "__main__":
    main()
