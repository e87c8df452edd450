"""Knows the tags of curves: which figure each trainer means by its tag, in which unit, and whose tags they are."""

import re
from collections.abc import Collection

SPLIT_FOLDERS = ("train", "train_inner", "valid", "eval")
"""Folders in which trainers keep the curves of one split: the name of the folder belongs to the tag."""
OTHER_SCORE = "other_scores."
"""Begins the name of a score that dragoman has no name for; the trainer's own name follows."""

FAIRSEQ, JOEYNMT, OPENNMT, HUGGING_FACE = "fairseq", "JoeyNMT", "OpenNMT-py or Eole", "HF Trainer"
EOLE, OPENSEQ2SEQ, TENSOR2TENSOR, LIGHTNING = "Eole", "OpenSeq2Seq", "Tensor2Tensor", "PyTorch Lightning"

LOSS_UNITS = {
    FAIRSEQ: "nats per token (converted from base 2)",
    HUGGING_FACE: "nats per token",
    OPENNMT: "nats per token",
    EOLE: "nats per token",
    OPENSEQ2SEQ: "nats per token",
    TENSOR2TENSOR: "nats per token",
}
"""Units of the loss that a trainer writes to its curves; JoeyNMT's depends on its settings."""

KNOWN_TAGS = {
    "train_loss": ("train", "loss"),
    "eval_loss": ("evaluation", "loss"),
    "eval_bleu_score": ("evaluation", "bleu"),
    "eval_teacher_forced_bleu": ("evaluation", "teacher_forced_bleu"),
    "learning_rate": ("train", "learning_rate"),
    "loss_optimization/global_gradient_norm": ("train", "gradient_norm"),
    "loss_optimization/loss_scale": ("train", "loss_scale"),
    "global_step/sec": ("train", "steps_per_second"),
    "target_tokens_per_second": ("train", "target_tokens_per_second"),
    "seconds_per_step": ("train", "seconds_per_step"),
    "train/loss": ("train", "loss"),
    "eval/loss": ("evaluation", "loss"),
    "eval/runtime": ("evaluation", "seconds"),
    "train/train_runtime": ("end", "train_runtime"),
    "train/train_batch_loss": ("train", "loss"),
    "train/batch_loss": ("train", "loss"),
    "valid/valid_score": ("evaluation", OTHER_SCORE + "score"),
    "train_inner/loss": ("train", "loss"),
    "valid/loss": ("evaluation", "loss"),
    "progress/xent": ("train", "loss"),
    "valid/xent": ("evaluation", "loss"),
    "progress/ppl": ("train", "perplexity"),
    "progress/lr": ("train", "learning_rate"),
    "progress/tgtper": ("train", "target_tokens_per_second"),
    "losses/training": ("train", "loss"),
}
"""Tags that are certain, or whose words do not tell what they are."""

_DEV_WORDS = {"valid", "validation", "val", "eval", "evaluation", "dev", "test"}
_SPLIT_WORDS = _DEV_WORDS | {"train", "training", "loss", "bleu"}
_IGNORED_WORDS = {"best", "min", "max", "samples", "flos", "runtime", "predicted", "prediction", "wall", "patience"}
# The first match counts: "loss_scale" stands before "loss".
_FIGURE_WORDS = (
    (re.compile(r"approx bleu"), "teacher_forced_bleu"),
    (re.compile(r"bleu"), "bleu"),
    (re.compile(r"chrf"), "chrf"),
    (re.compile(r"\bter\b"), "ter"),
    (re.compile(r"\b(?:rouge\w*|meteor|comet\w*|gleu|bertscore\w*|gen len|wer|cer)\b"), OTHER_SCORE),
    # The loss of Eole's further heads, which predict later tokens.
    (re.compile(r"\bmtp\b"), ""),
    (re.compile(r"neg log perplexity"), "negative_log_perplexity"),
    (re.compile(r"\bppl\b|perplexity"), "perplexity"),
    (re.compile(r"accuracy (?:per sequence|top5)"), ""),
    (re.compile(r"\bacc\b|accuracy"), "accuracy"),
    (re.compile(r"loss scale"), "loss_scale"),
    (re.compile(r"grad(?:ient)? norm|\bgnorm\b|global norm"), "gradient_norm"),
    (re.compile(r"\blr\b|learning ?rate|learn rate"), "learning_rate"),
    (re.compile(r"\bups\b|steps? (?:per )?sec(?:ond)?\b"), "steps_per_second"),
    (re.compile(r"\bwps\b|\btgtper\b|(?:tokens|words) per sec"), "target_tokens_per_second"),
    (re.compile(r"nll loss"), "negative_log_likelihood"),
    (re.compile(r"loss\b|\bxent\b|\bnll\b|\bcost\b|cross entropy"), "loss"),
)
_EVALUATION_ONLY = ("bleu", "chrf", "ter", "teacher_forced_bleu", "negative_log_perplexity", OTHER_SCORE)
_EVALUATED = ("loss", "negative_log_likelihood", "perplexity", "accuracy", *_EVALUATION_ONLY)


def figure_of(tag: str) -> tuple[str, str] | None:
    """Returns the kind of record and the name of the figure for a tag or a column; None if it is not used."""
    if known := KNOWN_TAGS.get(tag.lower()):
        return known
    words = _words_of(tag)
    name = next((name for pattern, name in _FIGURE_WORDS if pattern.search(words)), "")
    split = set(words.split())
    if not name or split & _IGNORED_WORDS:
        return None
    is_dev = bool(split & _DEV_WORDS) or name in _EVALUATION_ONLY
    if is_dev and name not in _EVALUATED:
        return None
    if name == OTHER_SCORE:
        name += tag.rpartition("/")[2]
    return ("evaluation" if is_dev else "train"), name


def names_split(folder: str) -> bool:
    """Whether the name of a folder says only which curves are in it, as "valid" or "loss_dev" do."""
    words = set(_words_of(folder).split())
    return folder in SPLIT_FOLDERS or (bool(words) and words <= _SPLIT_WORDS)


def trainer_of(tags: Collection[str]) -> str | None:
    """Returns the trainer that wrote these tags; None if others could have written them too."""
    known = {tag.lower() for tag in tags}
    names = {tag.rpartition("/")[2] for tag in known}
    if any(tag.startswith("train_inner/") for tag in known) or {"wps", "ups", "wpb", "bsz"} <= names:
        return FAIRSEQ
    if (
        known & {"train/train_batch_loss", "valid/valid_loss", "valid/valid_ppl"}
        or {
            "train/batch_loss",
            "train/batch_acc",
        }
        <= known
    ):
        return JOEYNMT
    if known & {"progress/xent", "progress/ppl"}:
        return EOLE if "progress/attention_entropy" in known else OPENNMT
    if known & {"train/train_runtime", "train/total_flos", "eval/samples_per_second"}:
        return HUGGING_FACE
    if {"train/loss", "train/learning_rate", "train/epoch"} <= known:
        return HUGGING_FACE
    if any(tag.startswith("metrics-") for tag in known) or "losses/training" in known:
        return TENSOR2TENSOR
    if "loss_optimization/global_gradient_norm" in known and "seconds_per_step" not in known:
        return OPENSEQ2SEQ
    return LIGHTNING if "hp_metric" in known else None


def _words_of(tag: str) -> str:
    # Split "TrainLoss" into the same words as "train/loss".
    spaced = re.sub(r"(?<=[a-z])(?=[A-Z])", " ", tag[:200])
    return re.sub(r"[^a-z0-9]+", " ", spaced.lower()).strip()
