"""Questions 7, 8 and 9: the training set, and the files of a checkpoint."""

from pathlib import Path
from typing import Any

from dragoman.report.evidence import table
from dragoman.report.findings import Findings
from dragoman.report.parts import Answer, Table
from dragoman.run.folder import RunFolder
from dragoman.run.status import number_or_none
from dragoman.run.units import format_bytes

TRAINING_SET = "How big is the training set, in MB and lines?"
CHECKPOINT_FILES = "What files make up a checkpoint?"
CHECKPOINT_SIZE = "How big is it?"

PURPOSES = {
    "model.safetensors": "the weights: all that a translator needs, with the tokenizer and config.toml",
    "optimizer.safetensors": "Adam's two moments of every weight, for continuing",
    "state.json": "step, place in the data, learning-rate and loss-scale state, for continuing exactly",
    "manifest.json": "sizes and SHA-256 of the other files: whether the checkpoint is whole",
}
OPENSEQ2SEQ_FILES = [
    ("checkpoint", "an index file: which steps there are, and which is the latest"),
    ("model.ckpt-STEP.data-00000-of-00001", "the values of all variables: weights and the optimizer's moments"),
    ("model.ckpt-STEP.index", "where in it each variable lies"),
    ("model.ckpt-STEP.meta", "the graph"),
]
BYTES_PER_PARAMETER = {"mixed": 14, "fp32": 12}
"""Of an OpenSeq2Seq checkpoint: two moments and the weight in fp32, and in mixed precision one more in half."""
MAX_FILTERS = 12


def answer_training_set(findings: Findings) -> Answer:
    """Raw, cleaned and in pieces; the vocabulary; what cleaning removed."""
    manifest = findings.evidence.manifest
    train = table(table(manifest.get("splits")).get("train"))
    if not train:
        return _training_set_by_log(findings)
    sides = {side: table(train.get(side)) for side in ("source", "target")}
    pairs, read = _count(train.get("num_pairs")), _count(train.get("num_lines_read"))
    sizes = [_count(side.get("num_bytes")) for side in sides.values()]
    answer = (
        f"{format_bytes(sum(sizes))} in {pairs:,} pairs of lines: {format_bytes(sizes[0])} of source and "
        f"{format_bytes(sizes[1])} of target text."
    )
    tokenizer = table(manifest.get("tokenizer"))
    pieces = [_count(tokenizer.get(f"num_{side}_pieces")) for side in sides]
    shared = "one vocabulary for both sides" if tokenizer.get("is_joint") else "a vocabulary for each side"
    sentences = [
        f"{read:,} pairs were read; {read - pairs:,} ({(read - pairs) / read if read else 0:.1%}) were left out or "
        "held back for dev and test.",
        f"Pieces: {pieces[0]:,} source and {pieces[1]:,} target ({shared}).",
    ]
    rows = [
        (
            side,
            f"{pairs:,}",
            format_bytes(_count(figures.get("num_bytes"))),
            f"{_count(figures.get('num_words')):,}",
            f"{_count(figures.get('num_tokens')):,}",
            format_bytes(_count(figures.get("num_piece_bytes"))),
            f"{_count(figures.get('num_unknown')):,}",
        )
        for side, figures in sides.items()
    ]
    columns = ("side", "lines", "text", "words", "pieces", "as a file of pieces", "unknown pieces")
    tables = [
        Table("Training text after cleaning", columns, rows, tuple(range(1, 7))),
        *_inputs(train),
        *_cleaning(manifest),
    ]
    return Answer(TRAINING_SET, answer, sentences, 1.0, tables=tables)


def _inputs(train: dict[str, Any]) -> list[Table]:
    inputs = train.get("inputs")
    rows = [
        (str(each.get("path")), format_bytes(_count(each.get("num_bytes"))))
        for each in map(table, inputs if isinstance(inputs, list) else [])
    ]
    return [Table("Files as they were given", ("file", "size"), rows, (1,))] if rows else []


def _cleaning(manifest: dict[str, Any]) -> list[Table]:
    """What each filter dropped, the most first."""
    filters = table(manifest.get("cleaning")).get("filters")
    entries = [table(entry) for entry in filters] if isinstance(filters, list) else []
    dropped = sorted(((_count(entry.get("num_dropped")), str(entry.get("name"))) for entry in entries), reverse=True)
    rows = [(name, f"{number:,}") for number, name in dropped if number][:MAX_FILTERS]
    return [Table("What cleaning removed", ("filter", "pairs"), rows, (1,))] if rows else []


def _training_set_by_log(findings: Findings) -> Answer:
    facts = findings.evidence.facts
    pairs, files = number_or_none(facts.get("num_training_pairs")), table(facts.get("training_files"))
    vocab = number_or_none(facts.get("vocab_size"))
    sentences = [f"Its {side} file: {name}" for side, name in files.items()]
    if vocab:
        sentences.append(f"Vocabulary: {vocab:,.0f} pieces.")
    missing = ["The size of its files: run wc -lc on them."]
    known = [Path(name) for name in files.values() if isinstance(name, str) and _is_file(name)]
    if known:
        sizes = [(path, path.stat().st_size) for path in known]
        answer = f"{format_bytes(sum(size for _, size in sizes))}, by its files."
        rows = [(str(path), format_bytes(size)) for path, size in sizes]
        return Answer(TRAINING_SET, answer, sentences, 0.8, tables=[Table("Files", ("file", "size"), rows, (1,))])
    if pairs:
        return Answer(TRAINING_SET, f"{pairs:,.0f} pairs of lines.", sentences, 0.9, missing=missing)
    where = "The log names the files but not their size." if files else "The files do not tell."
    return Answer(TRAINING_SET, where, sentences, 0.0, missing=missing)


def _is_file(name: str) -> bool:
    try:
        return Path(name).is_file()
    except (OSError, ValueError):
        return False


def answer_checkpoint_files(findings: Findings) -> Answer:
    """The files, what each is for, and how large it is."""
    files = newest_checkpoint(findings.evidence.run)
    if files:
        rows = [(path.name, PURPOSES.get(path.name, ""), format_bytes(size)) for path, size in files]
        names = ", ".join(path.name for path, _ in files)
        folder = files[0][0].parent
        sentences = [
            f"The newest checkpoint is {folder.name}; {len(findings.evidence.run.checkpoint_steps())} are kept.",
            "latest and best are links to the newest one and to the best by evaluation.",
        ]
        tables = [Table(f"Files of {folder.name}", ("file", "what it is for", "size"), rows, (2,))]
        return Answer(CHECKPOINT_FILES, f"A folder with {names}.", sentences, 1.0, tables=tables)
    if findings.evidence.trainer == "OpenSeq2Seq":
        answer = "An index file named checkpoint, and for each saved step .data-00000-of-00001, .index and .meta."
        sentences = ["Whether any was saved is another question: see the warnings."]
        tables = [Table("Files of a TensorFlow checkpoint", ("file", "what it is for"), OPENSEQ2SEQ_FILES)]
        return Answer(CHECKPOINT_FILES, answer, sentences, 0.8, tables=tables)
    paths = [path for record in findings.evidence.checkpoints if isinstance(path := record.get("path"), str)]
    if paths:
        sentences = [f"The last that the log names: {paths[-1]}", f"It names {len(paths):,} in all."]
        missing = ["What is in them and how large they are: list that folder."]
        return Answer(
            CHECKPOINT_FILES, "The log names checkpoints, not what is in them.", sentences, 0.3, missing=missing
        )
    why = "The log does not say." if findings.evidence.is_foreign else "No checkpoint of this run is there any more."
    return Answer(CHECKPOINT_FILES, why, missing=["List the folder that the trainer saves to."])


def answer_checkpoint_size(findings: Findings) -> Answer:
    """Bytes in all and for each parameter."""
    parameters = findings.evidence.parameters
    files = newest_checkpoint(findings.evidence.run)
    recorded = [number_or_none(record.get("bytes")) for record in findings.evidence.checkpoints]
    size = float(sum(size for _, size in files)) if files else next((b for b in reversed(recorded) if b), None)
    if size:
        each = f", {size / parameters:.1f} bytes for each of {parameters:,} parameters" if parameters else ""
        sentences = [
            "Weights and two moments of Adam, 4 bytes each, make 12 bytes a parameter; the weights alone are a third."
        ]
        kept = len(findings.evidence.run.checkpoint_steps())
        if kept > 1:
            sentences.append(f"{kept} checkpoints are kept: {format_bytes(kept * size)} in all.")
        return Answer(CHECKPOINT_SIZE, f"{format_bytes(size)}{each}.", sentences, 1.0)
    precision = str(findings.evidence.facts.get("precision", ""))
    if findings.evidence.trainer == "OpenSeq2Seq" and parameters and precision in BYTES_PER_PARAMETER:
        each_bytes = BYTES_PER_PARAMETER[precision]
        answer = (
            f"About {format_bytes(each_bytes * parameters)}: {each_bytes} bytes for each of {parameters:,} parameters."
        )
        sentences = [f"By the rule for this trainer in {precision} precision; no file was there to be measured."]
        return Answer(CHECKPOINT_SIZE, answer, sentences, 0.7, missing=["Measure it: du -ch on the files of one step."])
    return Answer(CHECKPOINT_SIZE, "That is not known.", missing=["Measure it: du -ch on the files of one step."])


def newest_checkpoint(run: RunFolder) -> list[tuple[Path, int]]:
    """The files of the newest checkpoint that is there, with their sizes."""
    for step in reversed(run.checkpoint_steps()):
        try:
            files = sorted(path for path in run.checkpoint(step).iterdir() if path.is_file())
            return [(path, path.stat().st_size) for path in files]
        except OSError:
            continue
    return []


def _count(value: Any) -> int:
    number = number_or_none(value)
    return int(number) if number is not None else 0
