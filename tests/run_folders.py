"""Made-up run folders for tests: our own with all files of a run, and logs of OpenSeq2Seq to import."""

import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from dragoman.run.folder import RunFolder
from dragoman.run.tables import dump_toml

Record = dict[str, Any]

BEGAN = 1_600_000_000.0
NUM_PARAMETERS = 60_880_896
SECONDS_PER_STEP = 2.0
NUM_STEPS, LOG_EVERY, EVALUATE_EVERY, SAVE_EVERY = 10_000, 100, 500, 2_500
SLOW_STEP = EVALUATE_EVERY + LOG_EVERY
"""Last step of an interval that begins with an evaluation and takes three times as long as the others."""
RESTART_STEP, FAULT_STEP, SILENT_SECONDS = 5_000, 5_400, 300.0
"""The run failed at FAULT_STEP, wrote nothing for SILENT_SECONDS, and resumed at RESTART_STEP."""
BYTES_PER_STEP = 365.3e6
SIGNATURE = "nrefs:1|case:mixed|eff:no|tok:13a|smooth:exp|version:2.6.0"
ATTRIBUTION = {
    "data": 0.01,
    "forward": 0.25,
    "backward": 0.45,
    "hidden_communication": 0.1,
    "exposed_communication": 1.2,
    "straggler": 0.02,
    "optimizer": 0.05,
    "evaluation": 0.0,
    "checkpoint": 0.0,
    "other": 0.02,
}
CONFIG: dict[str, dict[str, Any]] = {
    "data": {"prepared": "gone"},
    "model": {"preset": "base"},
    "training": {
        "max_steps": 20_000,
        "schedule": "transformer",
        "learning_rate": 2.0,
        "warmup_steps": 8_000,
        "label_smoothing": 0.1,
        "precision": "fp32",
    },
    "evaluation": {"beam_size": 4},
    "provenance": {"dragoman": "0.1.0", "git_commit": "abc123", "command": ["dragoman", "train", "a b.toml"]},
}
MODEL = {
    "width": 512,
    "feed_forward": 2_048,
    "heads": 8,
    "encoder_layers": 6,
    "decoder_layers": 6,
    "dropout": 0.1,
    "attention_dropout": 0.1,
    "relu_dropout": 0.1,
    "source_vocab_size": 32_768,
    "target_vocab_size": 32_768,
    "shares_vocabulary": True,
}
MANIFEST = {
    "key": "corpus-1",
    "tokenizer": {"is_joint": True, "num_source_pieces": 32_768, "num_target_pieces": 32_768},
    "cleaning": {
        "filters": [{"name": "length_words", "num_dropped": 37_000}, {"name": "empty", "num_dropped": 234}],
    },
    "splits": {
        "train": {
            "num_pairs": 4_524_868,
            "num_lines_read": 4_562_102,
            "source": {"num_bytes": 596_000_000, "num_words": 1, "num_tokens": 2, "num_piece_bytes": 3},
            "target": {"num_bytes": 687_000_000, "num_words": 1, "num_tokens": 2, "num_piece_bytes": 3},
            "inputs": [{"path": "train.en", "num_bytes": 605_000_000}],
        }
    },
}
CHECKPOINT_BYTES = {"model.safetensors": 4 * NUM_PARAMETERS, "optimizer.safetensors": 8 * NUM_PARAMETERS}


def dev_loss(step: int) -> float:
    """Returns a typical dev loss: it falls quickly at first, then ever more slowly."""
    return 1.5 + 40.0 * (step + 100) ** -0.5


def learning_rate(step: int) -> float:
    """Returns the rate of the update that completes this step, by the transformer schedule of CONFIG."""
    return 2.0 * 512**-0.5 * min(step * 8_000**-1.5, max(1, step) ** -0.5)


def train_record(step: int, **figures: Any) -> Record:
    """Returns one logged interval of four ranks that wait for the network."""
    return {
        "time": BEGAN + SECONDS_PER_STEP * step,
        "kind": "train",
        "step": step,
        "loss": dev_loss(step) + 0.2,
        "gradient_norm": 0.5,
        "learning_rate": learning_rate(step),
        "seconds_per_step": 3 * SECONDS_PER_STEP if step == SLOW_STEP else SECONDS_PER_STEP * (1 + step % 300 / 1e5),
        "wall_seconds_per_step": SECONDS_PER_STEP,
        "target_tokens_per_second": 15_000.0,
        "training_seconds": SECONDS_PER_STEP * step,
        "skipped_steps": 0,
        "attribution": ATTRIBUTION,
        "slowest": {"rank": 1, "host": "node1", "attribution": ATTRIBUTION},
        "work_seconds_by_rank": [0.8, 0.81, 0.8, 0.79],
        "predicted_seconds_per_step": 1.9,
        "prediction_error": 0.05,
        "traffic": {
            "host": "node1",
            "interface": "eth0",
            "sent_bytes_per_second": BYTES_PER_STEP / SECONDS_PER_STEP,
            "received_bytes_per_second": BYTES_PER_STEP / SECONDS_PER_STEP,
        },
        "utilisation": {"gpu": 0.99, "cpu": 0.3},
    } | figures


def evaluation_record(step: int, **figures: Any) -> Record:
    """Returns one evaluation of the dev set, with two samples."""
    sample = {"source": "A cat sleeps.", "reference": "Eine Katze schläft.", "translation": "Eine Katze schläft."}
    return {
        "time": BEGAN + SECONDS_PER_STEP * step + 1,
        "kind": "evaluation",
        "step": step,
        "loss": dev_loss(step),
        "bleu": 26.0 - 500.0 * (step + 20) ** -0.6,
        "signature": SIGNATURE,
        "chrf": 50.0,
        "teacher_forced_bleu": 0.3,
        "train_sample_loss": dev_loss(step) - 0.05,
        "seconds": 10.0,
        "samples": [sample, sample],
    } | figures


def own_records(num_steps: int = NUM_STEPS, is_evaluated: bool = True) -> list[Record]:
    """Returns all records of a run that failed 400 steps after its second checkpoint."""
    prediction = {"predicted": 1.9, "low": 1.7, "high": 2.1}
    records: list[Record] = [
        {"time": BEGAN, "kind": "prediction", "step": 0, "seconds_per_step": prediction, "basis": "a plan"}
    ]
    records += _records_between(0, min(num_steps, FAULT_STEP), is_evaluated)
    if num_steps > FAULT_STEP:
        time = BEGAN + SECONDS_PER_STEP * FAULT_STEP + SILENT_SECONDS
        cause = "rank 3 on node2 ended with signal 9"
        records.append({"time": time, "kind": "restart", "step": RESTART_STEP, "cause": cause})
        lost_seconds = SILENT_SECONDS + SECONDS_PER_STEP * (FAULT_STEP - RESTART_STEP)
        records += _records_between(RESTART_STEP, num_steps, is_evaluated, lost_seconds)
    return records


def _records_between(begin: int, end: int, is_evaluated: bool, late_seconds: float = 0.0) -> Iterable[Record]:
    for step in range(begin + LOG_EVERY, end + 1, LOG_EVERY):
        time = BEGAN + SECONDS_PER_STEP * step + late_seconds
        yield train_record(step, time=time)
        if is_evaluated and step % EVALUATE_EVERY == 0:
            yield evaluation_record(step, time=time + 1)
        if step % SAVE_EVERY == 0:
            yield {"kind": "checkpoint", "step": step, "bytes": 12 * NUM_PARAMETERS, "seconds": 1.0}


def write_records(run: RunFolder, records: Iterable[Any]) -> RunFolder:
    """Writes metrics.jsonl with any records."""
    run.path.mkdir(parents=True, exist_ok=True)
    run.metrics.write_text("".join(json.dumps(record) + "\n" for record in records), encoding="utf-8")
    return run


def write_config(run: RunFolder, **changes: dict[str, Any]) -> RunFolder:
    """Writes config.toml, with changes to the settings of some tables."""
    run.path.mkdir(parents=True, exist_ok=True)
    settings = {name: values | changes.get(name, {}) for name, values in CONFIG.items()}
    run.config.write_text(dump_toml(settings), encoding="utf-8")
    return run


def write_own_run(path: Path, records: Sequence[Any] | None = None, **changes: dict[str, Any]) -> RunFolder:
    """Writes a run of two machines with two GPUs each, with all files that a report reads."""
    run = write_config(RunFolder(path), **changes)
    write_records(run, own_records() if records is None else records)
    run.corpus_facts.write_text(json.dumps(MANIFEST), encoding="utf-8")
    for node in ("node1", "node2"):
        _write_samples(run, node)
    for step in (2_500, 5_000):
        write_checkpoint(run, step)
    return run


def write_checkpoint(run: RunFolder, step: int) -> None:
    """Writes sparse files with the sizes of a real checkpoint; they take no space."""
    folder = run.checkpoint(step)
    folder.mkdir(parents=True)
    for name, num_bytes in CHECKPOINT_BYTES.items():
        with (folder / name).open("wb") as file:
            file.truncate(num_bytes)
    (folder / "state.json").write_text(json.dumps({"step": step, "model": MODEL}), encoding="utf-8")
    (folder / "manifest.json").write_text("{}", encoding="utf-8")


def _write_samples(run: RunFolder, node: str) -> None:
    rates = dict.fromkeys(("sent_bytes_per_second", "received_bytes_per_second"), BYTES_PER_STEP / SECONDS_PER_STEP)
    samples = [
        {
            "time": BEGAN + 10.0 * number,
            "node": node,
            "cpu": {"share": 0.3, "cores": [0.3]},
            "network": {"eth0": rates | {"speed_megabits_per_second": 10_000}, "lo": rates},
            "gpus": [{"index": index, "utilisation": 0.99} for index in range(2)],
            "notes": [],
        }
        for number in range(200)
    ]
    run.system(node).write_text("".join(json.dumps(sample) + "\n" for sample in samples), encoding="utf-8")


def write_translations(
    run: RunFolder, bleu_counts: Sequence[Sequence[int]], sources: Sequence[str] = (), tokenizer: str = "13a"
) -> None:
    """Writes translations.jsonl with made-up sentences that have these counts."""
    signature = SIGNATURE.replace("tok:13a", f"tok:{tokenizer}")
    rows: list[dict[str, Any]] = [{"step": NUM_STEPS, "bleu": 20.0, "signature": signature}]
    for number, counts in enumerate(bleu_counts):
        source = sources[number] if sources else f"sentence {number}"
        rows.append({"source": source, "reference": "r", "translation": "t", "bleu_counts": list(counts)})
    run.translations.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")


OPENSEQ2SEQ_START = """\
*** Using horovod
*** Starting training from scratch
*** Training config:
{'batch_size_per_gpu': 256,
 'dtype': 'mixed',
 'encoder_params': {'encoder_layers': 6, 'filter_size': 2048, 'hidden_size': 512, 'num_heads': 8},
 'decoder_params': {'filter_size': 2048, 'hidden_size': 512, 'num_hidden_layers': 6},
 'eval_steps': 4001,
 'loss_scaling': 'Backoff',
 'lr_policy': <function transformer_policy at 0x7f4899ef1ae8>,
 'lr_policy_params': {'d_model': 512, 'learning_rate': 2.0, 'warmup_steps': 8000},
 'max_steps': 300000,
 'print_loss_steps': 100,
 'save_checkpoint_steps': 299998,
 'use_horovod': True}
*** Total trainable parameters: 60880896
v100a:1:2 [0] NCCL INFO rank 0 nranks 4
v100a:3:4 [1] NCCL INFO rank 1 nranks 4
v100b:1:2 [0] NCCL INFO rank 2 nranks 4
v100b:3:4 [1] NCCL INFO rank 3 nranks 4
"""


def openseq2seq_log(num_steps: int = 10_000, sample: str = "▁Ein ▁Satz") -> str:
    """Returns a log of OpenSeq2Seq, evaluated every 1,000 steps."""
    lines = [OPENSEQ2SEQ_START]
    for step in range(0, num_steps + 1, 100):
        lines.append(f"*** Global step {step}: ***     Train loss: {dev_loss(step) + 0.2:.4f} \n")
        if step:
            lines.append("time per step = 0:00:1.94\n")
        lines.append(f"***     Train Source[0]:     <s> ▁A ▁sentence\n***     Train Target[0]:     <s> {sample}\n")
        lines.append(f"***     Train Prediction[0]: <s> {sample}\n")
        if step and step % 1_000 == 0:
            lines.append("*** Running evaluation on a validation set:\n")
            lines.append(f"***     *****EVAL Source[0]:     <s> {sample}\n***     *****EVAL Target[0]:     <s> x\n")
            lines.append(f"***     *****EVAL Prediction[0]: <s> {sample}\n")
            lines.append(f"***     Validation loss: {dev_loss(step):.4f} \n***     Eval BLUE score: 0.3571\n")
    return "".join(lines)
