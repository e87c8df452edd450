"""One worker of cost_exponents.py, in a process of its own: `cost_contestant.py CASE RANK STORE`; CASE is JSON.

Each line on standard input is a number of steps to make; the answer is one line of JSON: processor time and memory.
"""

import json
import sys
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch
import torch.distributed as dist
from cost_case import Case

from dragoman.cluster.gradient_sum import GradientSum
from dragoman.cluster.world import World
from dragoman.corpus.batching import MicroBatch, pad_pairs, share_of_rank
from dragoman.corpus.tokenizer import NUM_SPECIAL_IDS
from dragoman.model.shape import load_preset
from dragoman.model.transformer import Transformer
from dragoman.run.config import TrainingSettings
from dragoman.training.learner import Learner, LossScale, build_optimizer, set_learning_rate
from dragoman.training.worker import keep_freed_memory


def build_batches(case: Case, rank: int) -> dict[int, MicroBatch]:
    """Returns this rank's share of random sentences; cost does not depend on what they say."""
    random = np.random.default_rng(1)
    shape = (case.slices, 2, case.sentences // case.slices, case.length - 1)  # an end mark comes after each
    ids = random.integers(NUM_SPECIAL_IDS, case.vocabulary, shape)
    return {
        number: pad_pairs(list(ids[number, 0]), list(ids[number, 1]))
        for number in share_of_rank(case.slices, rank, case.workers)
    }


def build_learner(case: Case, rank: int) -> Learner:
    """Returns what a worker learns with."""
    shape = replace(
        load_preset("small"),
        encoder_layers=case.depth,
        decoder_layers=case.depth,
        source_vocab_size=case.vocabulary,
        target_vocab_size=case.vocabulary,
    )
    settings = TrainingSettings(virtual_workers=case.slices)
    torch.manual_seed(1)
    model = Transformer(shape)
    optimizer = build_optimizer(model, settings)
    set_learning_rate(optimizer, 1e-4)
    gradients = GradientSum(model.parameters(), World(rank, case.workers, rank, machines=("here",) * case.workers))
    return Learner(model, optimizer, gradients, LossScale.start("fp32"), settings)


def memory_figure(name: str) -> int:
    """Returns a figure of this process in bytes: VmRSS now, VmHWM at most."""
    lines = Path("/proc/self/status").read_text(encoding="utf-8").splitlines()
    return next(int(line.split()[1]) * 1_024 for line in lines if line.startswith(f"{name}:"))


def main() -> None:
    """Answers requests until standard input ends."""
    case, rank = Case(**json.loads(sys.argv[1])), int(sys.argv[2])
    torch.set_num_threads(1)
    keep_freed_memory()
    if case.workers > 1:
        store = dist.FileStore(sys.argv[3], case.workers)
        dist.init_process_group("gloo", store=store, rank=rank, world_size=case.workers)
    before = memory_figure("VmRSS")
    learner, batches = build_learner(case, rank), build_batches(case, rank)
    num_tokens = case.sentences * case.length
    step = 0
    for line in iter(sys.stdin.readline, ""):
        begin, num_steps = time.process_time(), int(line)
        for _ in range(num_steps):
            learner.learn(step, batches, num_tokens)
            step += 1
        seconds = (time.process_time() - begin) / num_steps
        print(json.dumps({"seconds": seconds, "bytes": memory_figure("VmHWM") - before}), flush=True)


if __name__ == "__main__":
    main()
