"""Makes steps of Hugging Face's Seq2SeqTrainer in turns, see turns.py: `huggingface_turns.py CONFIG THREADS`."""

import json
import sys
from pathlib import Path
from typing import Any

import torch
from huggingface_text import IGNORED_LABEL, Subwords, collate, training_pairs
from huggingface_training import build_model
from transformers import Seq2SeqTrainer, Seq2SeqTrainingArguments
from turns import Turns


class WaitingTrainer(Seq2SeqTrainer):
    """Seq2SeqTrainer that waits before each step that nobody asked for."""

    turns: Turns

    def training_step(self, model: Any, inputs: dict[str, Any], *arguments: Any, **others: Any) -> Any:
        num_target_tokens = int((inputs["labels"] != IGNORED_LABEL).sum())
        self.turns.before_step(int(inputs["attention_mask"].sum()), num_target_tokens)
        return super().training_step(model, inputs, *arguments, **others)


def main() -> None:
    config = json.loads(Path(sys.argv[1]).read_text(encoding="utf-8"))
    torch.set_num_threads(int(sys.argv[2]))
    turns, subwords = Turns(), Subwords(Path(config["subwords"]))
    trainer = WaitingTrainer(
        model=build_model(subwords.size, config["model"]),
        args=Seq2SeqTrainingArguments(**config["training"]),
        train_dataset=training_pairs(subwords, Path(config["source"]), Path(config["target"])),
        data_collator=collate,
    )
    trainer.turns = turns
    trainer.train()


if __name__ == "__main__":
    main()
