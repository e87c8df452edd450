"""The contestants of time_to_bleu.py: how each is trained, what its checkpoints are, and how each translates."""

import json
import math
import os
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from peer_environments import PEERS_FOLDER, peer_python

from dragoman.run.files import write_text
from dragoman.run.folder import RunFolder
from dragoman.run.status import read_status

BEAM_SIZE = 5
BATCH_TOKENS = 4_096
VOCAB_SIZE = 8_000
LAYERS, WIDTH, FEED_FORWARD, HEADS = 3, 256, 1_024, 4
SENTENCES_PER_STEP = 500
"""More than a batch of BATCH_TOKENS has."""
WARMUP_SHARE = 0.1
"""Steps of a peer's warm-up as a share of all: the 4,000 of its recipe are more than a whole run here."""


@dataclass(frozen=True)
class Texts:
    """Files of a corpus: as they are for ours, unpacked for the peers, and the peers' SentencePiece model."""

    packed: tuple[Path, Path]
    train: tuple[Path, Path]
    dev: tuple[Path, Path]
    subwords: Path
    num_pairs: int
    pairs_per_batch: int
    """Pairs that have about BATCH_TOKENS tokens, for a trainer that counts pairs."""


@dataclass(frozen=True)
class Checkpoint:
    """A saved model and the seconds of training before it."""

    step: int
    seconds: float
    path: Path


@dataclass(frozen=True)
class Job:
    """One training: its length and where it goes."""

    folder: Path
    num_steps: int
    save_every: int
    seed: int


class Contestant(Protocol):
    """A trainer."""

    name: str
    recipe: dict[str, Any]

    def training_command(self, texts: Texts, job: Job) -> list[str]:
        """Writes what the training needs and returns its command."""

    def is_trained(self, job: Job) -> bool:
        """Whether the training has ended, even if its command still does something else."""

    def seconds_by_step(self, job: Job) -> dict[int, float]:
        """Returns the seconds spent on training alone when a step was done, where they are known."""

    def checkpoint(self, job: Job, step: int) -> Path:
        """Returns where the checkpoint of a step is."""

    def translation_command(self, texts: Texts, job: Job, step: int, output: Path) -> list[str]:
        """Returns the command that translates the dev set with the checkpoint of a step."""


def find_checkpoints(contestant: Contestant, job: Job) -> list[Checkpoint]:
    """Lists the checkpoints of a finished training."""
    seconds = contestant.seconds_by_step(job)
    steps = sorted({*range(job.save_every, job.num_steps + 1, job.save_every), job.num_steps} & set(seconds))
    paths = {step: contestant.checkpoint(job, step) for step in steps}
    return [Checkpoint(step, seconds[step], path) for step, path in paths.items() if path.exists()]


def environment_of_one_core() -> dict[str, str]:
    """Returns the variables of a process that computes with one thread."""
    return os.environ | {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1", "TOKENIZERS_PARALLELISM": "false"}


@dataclass(frozen=True)
class Ours:
    """`dragoman train --source --target` with the settings that it chooses by itself."""

    name: str = "ours"
    recipe: dict[str, Any] = field(default_factory=dict)
    """Settings to change, to try a recipe."""

    def training_command(self, texts: Texts, job: Job) -> list[str]:
        settings = {
            "training.max_steps": job.num_steps,
            "training.seed": job.seed,
            "training.log_every": job.save_every,
            "checkpoints.save_every": job.save_every,
            "checkpoints.keep_last": 1_000,
            # Its own evaluations are not counted, but the other side is alone on the machine meanwhile.
            "evaluation.max_sentences": 100,
        } | self.recipe
        command = [sys.executable, "-m", "dragoman", "train", "--workers", "1", "--no-check"]
        command += ["--source", str(texts.packed[0]), "--target", str(texts.packed[1]), "--languages", "en-de"]
        command += ["--run-dir", str(job.folder / "run")]
        return command + [part for key, value in settings.items() for part in ("--set", f"{key}={json.dumps(value)}")]

    def is_trained(self, job: Job) -> bool:
        # Scoring the test lines that it held out comes afterwards and takes minutes.
        status = read_status(RunFolder(job.folder / "run"))
        return status is not None and status.state == "finished"

    def seconds_by_step(self, job: Job) -> dict[int, float]:
        found: dict[int, float] = {}
        step, seconds = 0, 0.0
        for line in RunFolder(job.folder / "run").metrics.read_text(encoding="utf-8").splitlines():
            record = json.loads(line)
            if record["kind"] == "train":
                seconds += (record["step"] - step) * record["seconds_per_step"]
                step = record["step"]
                found[step] = seconds
        return found

    def checkpoint(self, job: Job, step: int) -> Path:
        return RunFolder(job.folder / "run").checkpoint(step)

    def translation_command(self, texts: Texts, job: Job, step: int, output: Path) -> list[str]:
        command = [sys.executable, "-m", "dragoman", "translate", str(job.folder / "run"), str(texts.dev[0])]
        return [*command, "--checkpoint", str(step), "--beam-size", str(BEAM_SIZE), "--out", str(output)]


class _Peer:
    """A trainer in an environment of its own, whose seconds are noted by peers/training_clock.py."""

    def is_trained(self, job: Job) -> bool:
        return False  # its command does nothing else

    def seconds_by_step(self, job: Job) -> dict[int, float]:
        lines = (job.folder / "clock.jsonl").read_text(encoding="utf-8").splitlines()
        found: dict[int, float] = {}
        for step, seconds in map(json.loads, lines):
            found.setdefault(step, seconds)
        return found


@dataclass(frozen=True)
class Eole(_Peer):
    """Eole with its recipe recipes/wmt17/wmt17_ende_spm.yaml, in the size of our preset small."""

    name: str = "eole"
    recipe: dict[str, Any] = field(default_factory=lambda: {"decay_method": "noam", "peak": 1e-3, "precision": "fp32"})

    def training_command(self, texts: Texts, job: Job) -> list[str]:
        config = job.folder / "config.yaml"
        write_text(config, json.dumps(self.settings(texts, job), indent=1))  # JSON is YAML too
        script = PEERS_FOLDER / "eole_training.py"
        return [str(peer_python(self.name)), str(script), str(config), str(job.folder / "clock.jsonl")]

    def settings(self, texts: Texts, job: Job) -> dict[str, Any]:
        """Returns Eole's configuration."""
        warmup = max(1, round(WARMUP_SHARE * job.num_steps))
        decay, peak, precision = (self.recipe[name] for name in ("decay_method", "peak", "precision"))
        vocabulary = str(texts.subwords.with_suffix(".eole"))
        return {
            "save_data": str(job.folder / "data"),
            "overwrite": True,
            "seed": job.seed,
            "report_every": 10,
            "src_vocab": vocabulary,
            "tgt_vocab": vocabulary,
            "src_vocab_size": VOCAB_SIZE,
            "tgt_vocab_size": VOCAB_SIZE,
            "vocab_size_multiple": 8,
            "share_vocab": True,
            "n_sample": 0,
            "data": {"corpus_1": {"path_src": str(texts.train[0]), "path_tgt": str(texts.train[1])}},
            "transforms": ["sentencepiece", "filtertoolong"],
            "transforms_configs": {
                "sentencepiece": {
                    "src_subword_model": str(texts.subwords),
                    "tgt_subword_model": str(texts.subwords),
                },
                "filtertoolong": {"src_seq_length": 256, "tgt_seq_length": 256},
            },
            "training": {
                "model_path": str(job.folder / "model"),
                "keep_checkpoint": 1_000,
                "save_checkpoint_steps": job.save_every,
                "train_steps": job.num_steps,
                "world_size": 1,
                "gpu_ranks": [],
                "batch_type": "tokens",
                "batch_size": BATCH_TOKENS,
                "batch_size_multiple": 1,
                "accum_count": [1],
                "accum_steps": [0],
                "compute_dtype": precision,
                "optim": "adamw",
                "use_amp": precision != "fp32",
                # The peak of "noam" is this times width^-0.5 times warm-up^-0.5.
                "learning_rate": peak * math.sqrt(WIDTH * warmup) if decay == "noam" else peak,
                "warmup_steps": warmup,
                "decay_method": decay,
                "adam_beta2": 0.998,
                # 262,144 in the recipe, but Eole drops what it meets twice in a batch, so a pair must be there only
                # once; and what a run does not need would only make it begin later.
                "bucket_size": min(262_144, texts.num_pairs, max(8_192, SENTENCES_PER_STEP * job.num_steps)),
                "num_workers": 0,  # its core is the only one
                "prefetch_factor": 400,
                "dropout_steps": [0],
                "dropout": [0.1],
                "attention_dropout": [0.1],
                "max_grad_norm": 0,
                "label_smoothing": 0.1,
                "param_init_method": "xavier_uniform",
                "normalization": "tokens",
            },
            "model": {
                "architecture": "transformer",
                "hidden_size": WIDTH,
                "share_decoder_embeddings": True,
                "share_embeddings": True,
                "layers": LAYERS,
                "heads": HEADS,
                "transformer_ff": FEED_FORWARD,
                "embeddings": {"word_vec_size": WIDTH, "position_encoding_type": "SinusoidalInterleaved"},
            },
        }

    def checkpoint(self, job: Job, step: int) -> Path:
        return job.folder / "model" / f"step_{step}"

    def translation_command(self, texts: Texts, job: Job, step: int, output: Path) -> list[str]:
        command = [str(peer_python(self.name)), "-m", "eole.bin.main", "predict"]
        command += ["--model_path", str(self.checkpoint(job, step)), "--src", str(texts.dev[0])]
        command += ["--output", str(output), "--beam_size", str(BEAM_SIZE)]
        return [*command, "--batch_type", "tokens", "--batch_size", str(BATCH_TOKENS), "--world_size", "0"]


@dataclass(frozen=True)
class HuggingFace(_Peer):
    """Seq2SeqTrainer with a Marian model in the size of our preset small."""

    name: str = "huggingface"
    recipe: dict[str, Any] = field(
        default_factory=lambda: {"schedule": "linear", "peak": 1e-3, "batches": 1, "precision": "fp32"}
    )
    """`batches`: into how many smaller ones a batch of BATCH_TOKENS is cut, each with an update of its own."""

    def training_command(self, texts: Texts, job: Job) -> list[str]:
        config = job.folder / "config.json"
        write_text(config, json.dumps(self.settings(texts, job), indent=1))
        script = PEERS_FOLDER / "huggingface_training.py"
        return [str(peer_python(self.name)), str(script), str(config), str(job.folder / "clock.jsonl")]

    def settings(self, texts: Texts, job: Job) -> dict[str, Any]:
        """Returns the configuration of peers/huggingface_training.py."""
        sides = ("encoder", "decoder")
        return {
            "subwords": str(texts.subwords),
            "source": str(texts.train[0]),
            "target": str(texts.train[1]),
            "model": {
                "d_model": WIDTH,
                **{f"{side}_layers": LAYERS for side in sides},
                **{f"{side}_ffn_dim": FEED_FORWARD for side in sides},
                **{f"{side}_attention_heads": HEADS for side in sides},
                "dropout": 0.1,
                "activation_function": "relu",
                "scale_embedding": True,
                "max_position_embeddings": 512,
            },
            "training": {
                "output_dir": str(job.folder / "model"),
                "seed": job.seed,
                "max_steps": job.num_steps,
                "per_device_train_batch_size": max(1, texts.pairs_per_batch // self.recipe["batches"]),
                "train_sampling_strategy": "group_by_length",
                "learning_rate": self.recipe["peak"],
                "lr_scheduler_type": self.recipe["schedule"],
                "warmup_steps": max(1, round(WARMUP_SHARE * job.num_steps)),
                "label_smoothing_factor": 0.1,
                "optim": "adamw_torch",
                "save_strategy": "steps",
                "save_steps": job.save_every,
                "save_only_model": True,
                "logging_steps": 10,
                "report_to": [],
                "use_cpu": True,
                "bf16": self.recipe["precision"] == "bf16",
                "disable_tqdm": True,
            },
        }

    def checkpoint(self, job: Job, step: int) -> Path:
        return job.folder / "model" / f"checkpoint-{step}"

    def translation_command(self, texts: Texts, job: Job, step: int, output: Path) -> list[str]:
        script = PEERS_FOLDER / "huggingface_translation.py"
        paths = [texts.subwords, self.checkpoint(job, step), texts.dev[0], output]
        return [str(peer_python(self.name)), str(script), *map(str, paths)]


PEERS: dict[str, type[Eole] | type[HuggingFace]] = {"eole": Eole, "huggingface": HuggingFace}
TRIES: dict[str, list[dict[str, Any]]] = {
    "eole": [
        *({"decay_method": "noam", "peak": peak, "precision": "bf16"} for peak in (2e-3, 4e-3)),
        *({"decay_method": "cosine", "peak": peak, "precision": "bf16"} for peak in (1e-3, 2e-3)),
    ],
    "huggingface": [
        {"schedule": "linear", "peak": 1e-3, "batches": 1, "precision": "bf16"},
        *({"schedule": "linear", "peak": peak, "batches": 4, "precision": "bf16"} for peak in (5e-4, 1e-3, 2e-3)),
    ],
}
"""Recipes that `--tune` compares; the best at its end is used from then on. Ours chooses its precision by itself, the
peers are told which one is fast on CPUs with hardware for it."""
