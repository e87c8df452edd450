"""One contestant of training_speed.py, in its own process: `training_contestant.py NAME PREPARED PRECISION THREADS`.

Each line on standard input is a number of steps to make; the answer is one line of JSON on standard output.
Between turns the process waits in `readline` and uses no CPU.
"""

import json
import sys
import time
from collections.abc import Callable
from pathlib import Path

import torch
from reference_transformer import ReferenceTransformer, copy_weights, reference_step

from dragoman.cluster.world import World
from dragoman.corpus.batching import MicroBatch, StepPlan
from dragoman.corpus.mixture import Mixture
from dragoman.corpus.prepared_corpus import PreparedCorpus
from dragoman.run.config import Settings, build_settings
from dragoman.run.schedule import build_schedule
from dragoman.training.learner import build_learner, build_stream, set_learning_rate
from dragoman.training.worker import keep_freed_memory

GLOBAL_BATCH_TOKENS = 4_096
MATMUL_SIZE = 2_048

# Makes one step (number, plan, batch) and returns its loss summed over target tokens.
Step = Callable[[int, StepPlan, MicroBatch], float]


def benchmark_settings(prepared: Path, precision: str = "fp32") -> Settings:
    """Preset small (dropout 0.1 everywhere), label smoothing 0.1, Adam; one virtual worker has the whole batch."""
    return build_settings(
        {
            "data": {"prepared": str(prepared)},
            "model": {"preset": "small"},
            "training": {
                "global_batch_tokens": GLOBAL_BATCH_TOKENS,
                "virtual_workers": 1,
                "warmup_steps": 400,
                "precision": precision,
            },
        }
    )


def our_step(settings: Settings, corpus: PreparedCorpus) -> Step:
    """Makes an update like `training/trainer.py`."""
    learner = build_learner(settings, corpus, World())
    schedule = build_schedule(settings.training, learner.model.shape.width)

    def step(number: int, plan: StepPlan, batch: MicroBatch) -> float:
        set_learning_rate(learner.optimizer, schedule(number))
        return float(learner.learn(number, {0: batch}, plan.num_target_tokens).loss_sums.smoothed)

    return step


def plain_step(settings: Settings, corpus: PreparedCorpus) -> Step:
    """Makes an update of the nn.Transformer loop, from the same initial weights."""
    ours = build_learner(settings, corpus, World()).model
    model = ReferenceTransformer(ours.shape)
    copy_weights(ours, model)
    training = settings.training
    optimizer = torch.optim.Adam(model.parameters(), betas=(training.beta1, training.beta2), eps=training.epsilon)
    schedule = build_schedule(training, ours.shape.width)

    def step(number: int, plan: StepPlan, batch: MicroBatch) -> float:
        set_learning_rate(optimizer, schedule(number))
        loss = reference_step(model, optimizer, batch, training.label_smoothing)
        return float(loss) * plan.num_target_tokens

    return step


def trainer_turns(step: Step, settings: Settings, corpus: PreparedCorpus) -> Callable[[int], dict[str, float]]:
    """Trains in turns; times reading and padding batches too, as in a run."""
    stream = build_stream(settings, corpus, Mixture.build(corpus.train_corpora, settings.data))
    num_done = 0

    def turn(num_steps: int) -> dict[str, float]:
        nonlocal num_done
        num_target_tokens, num_source_tokens, loss = 0, 0, 0.0
        begin = time.perf_counter()
        for _ in range(num_steps):
            plan = stream.next_step()
            loss += step(num_done, plan, stream.micro_batch(plan.micro_batches[0]))
            num_target_tokens += plan.num_target_tokens
            num_source_tokens += plan.num_tokens - plan.num_target_tokens
            num_done += 1
        return {
            "seconds": time.perf_counter() - begin,
            "target_tokens": num_target_tokens,
            "source_tokens": num_source_tokens,
            "loss": loss / num_target_tokens,
        }

    return turn


def matmul_turns(precision: str) -> Callable[[int], dict[str, float]]:
    """Multiplies square matrices in turns, to measure the machine's current peak."""
    left, right = torch.randn(2, MATMUL_SIZE, MATMUL_SIZE).to(torch.bfloat16 if precision == "bf16" else torch.float32)
    product = torch.empty_like(left)

    def turn(num_products: int) -> dict[str, float]:
        seconds = []
        for _ in range(num_products):
            begin = time.perf_counter()
            torch.mm(left, right, out=product)
            seconds.append(time.perf_counter() - begin)
        # The fastest one, because the peak is measured.
        return {"seconds": sum(seconds), "gflop_per_second": 2 * MATMUL_SIZE**3 / min(seconds) / 1e9}

    return turn


def build_turns(name: str, prepared: Path, precision: str) -> Callable[[int], dict[str, float]]:
    """Builds the contestant of this name."""
    if name == "matmul":
        return matmul_turns(precision)
    settings, corpus = benchmark_settings(prepared, precision), PreparedCorpus.open(prepared)
    if name == "ours":
        keep_freed_memory()  # as the worker does; the reference runs in another process without it
        return trainer_turns(our_step(settings, corpus), settings, corpus)
    assert name == "reference", name
    return trainer_turns(plain_step(settings, corpus), settings, corpus)


def main() -> None:
    """Answers requests until standard input ends."""
    name, prepared, precision, num_threads = sys.argv[1], Path(sys.argv[2]), sys.argv[3], int(sys.argv[4])
    torch.set_num_threads(num_threads)
    turn = build_turns(name, prepared, precision)
    for line in iter(sys.stdin.readline, ""):
        print(json.dumps(turn(int(line))), flush=True)


if __name__ == "__main__":
    main()
