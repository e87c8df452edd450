"""Questions 7, 8 and 9: the training set, and the files of a checkpoint."""

from pathlib import Path

from dragoman.report.content import Answer, Table
from dragoman.report.findings import Findings
from dragoman.report.run_tables import CorpusFacts, SplitFacts
from dragoman.run.folder import RunFolder
from dragoman.run.units import counted, format_bytes

_TRAINING_SET = "How big is the training set, in MB and lines?"
_CHECKPOINT_FILES = "What files make up a checkpoint?"
_CHECKPOINT_SIZE = "How big is it?"

_PURPOSES = {
    "model.safetensors": "the weights; with the tokenizer and config.toml, all that translation needs",
    "optimizer.safetensors": "Adam's two moments of every weight, to resume training",
    "state.json": "step, position in the data, learning-rate and loss-scale state, to resume exactly",
    "manifest.json": "sizes and SHA-256 of the other files, to check that the checkpoint is complete",
}
_OPENSEQ2SEQ_FILES = [
    ("checkpoint", "an index file: the saved steps, and which is the latest"),
    ("model.ckpt-STEP.data-00000-of-00001", "the values of all variables: weights and the optimizer's moments"),
    ("model.ckpt-STEP.index", "the position of each variable in it"),
    ("model.ckpt-STEP.meta", "the graph"),
]
_OTHER_FILES = {
    "Marian": (
        "The weights in MODEL.npz, and beside it files with the state of the training and the settings.",
        "MODEL.npz and its companions",
        [
            ("MODEL.npz", "the weights; MODEL.iterN.npz and MODEL.npz.best-METRIC.npz are older or better ones"),
            ("MODEL.npz.optimizer.npz", "Adam's two moments of every weight, to continue training"),
            ("MODEL.npz.progress.yml", "step, epoch and scores so far, to continue training"),
            ("MODEL.npz.decoder.yml", "the settings for translating"),
            ("MODEL.npz.yml", "all settings"),
        ],
    ),
    "fairseq": (
        "One file, checkpoint*.pt, which holds everything.",
        "One file: checkpoint*.pt",
        [
            (
                "checkpoint*.pt",
                "the weights, Adam's two moments of every weight, the settings, and the place in the data",
            ),
            ("checkpoint_last.pt", "a copy of the newest one, from which training continues"),
            ("checkpoint_best.pt", "a copy of the best one by the dev set"),
        ],
    ),
}
"""Files of a checkpoint by trainer: the answer, the answer in a few words, and each file with its purpose."""
BYTES_PER_PARAMETER = {"mixed": 14, "fp32": 12}
"""Size of an OpenSeq2Seq checkpoint: weight and two moments in fp32; mixed precision adds a weight in fp16."""
_MAX_FILTERS = 12


def answer_training_set(findings: Findings) -> Answer:
    """Size of the text before and after cleaning and in subwords; the vocabulary; what cleaning removed."""
    corpus = findings.evidence.corpus
    train = corpus.splits.train
    if train is None:
        return _training_set_by_log(findings)
    source, target, tokenizer = train.source, train.target, corpus.tokenizer
    shared = "one vocabulary for both sides" if tokenizer.is_joint else "a vocabulary for each side"
    num_removed = train.num_lines_read - train.num_pairs
    share = num_removed / train.num_lines_read if train.num_lines_read else 0.0
    return Answer(
        _TRAINING_SET,
        f"{format_bytes(source.num_bytes + target.num_bytes)} in {train.num_pairs:,} pairs of lines: "
        f"{format_bytes(source.num_bytes)} of source and {format_bytes(target.num_bytes)} of target text.",
        [
            f"{train.num_lines_read:,} pairs were read; {num_removed:,} ({share:.1%}) were removed or held out for dev "
            "and test.",
            f"Vocabulary: {tokenizer.num_source_pieces or 0:,} source and {tokenizer.num_target_pieces or 0:,} target "
            f"subwords ({shared}).",
        ],
        confidence=1.0,
        tables=[_text_table(train), *_input_tables(train), *_cleaning_tables(corpus)],
        short=f"{format_bytes(source.num_bytes + target.num_bytes)}, {train.num_pairs:,} pairs",
    )


def _text_table(train: SplitFacts) -> Table:
    rows = [
        (
            name,
            f"{train.num_pairs:,}",
            format_bytes(side.num_bytes),
            f"{side.num_words:,}",
            f"{side.num_tokens:,}",
            format_bytes(side.num_piece_bytes),
            f"{side.num_unknown:,}",
        )
        for name, side in (("source", train.source), ("target", train.target))
    ]
    columns = ("side", "lines", "text", "words", "subwords", "as a file of subwords", "unknown subwords")
    return Table("Training text after cleaning", columns, rows, tuple(range(1, 7)))


def _input_tables(train: SplitFacts) -> list[Table]:
    rows = [(each.path, format_bytes(each.num_bytes)) for each in train.inputs]
    return [Table("Input files", ("file", "size"), rows, (1,))] if rows else []


def _cleaning_tables(corpus: CorpusFacts) -> list[Table]:
    """Pairs that did not reach training, by filter, the most first."""
    filters = sorted(corpus.cleaning.filters, key=lambda each: (each.num_dropped, each.name), reverse=True)
    names = {"held_out": "sentence held out for dev or test"}
    rows = [(names.get(each.name, each.name), f"{each.num_dropped:,}") for each in filters if each.num_dropped]
    rows = rows[:_MAX_FILTERS]
    return [Table("Pairs left out of training", ("filter", "pairs"), rows, (1,))] if rows else []


def _training_set_by_log(findings: Findings) -> Answer:
    facts = findings.evidence.facts
    files = facts.training_files or {}
    evidence = [f"The {side} file: {name}" for side, name in files.items()]
    if facts.vocab_size:
        evidence.append(f"Vocabulary: {facts.vocab_size:,.0f} subwords.")
    missing = ["The size of the files: run wc -lc on them."]
    sizes = [(name, Path(name).stat().st_size) for name in files.values() if _is_file(name)]
    if sizes:
        total = format_bytes(sum(size for _, size in sizes))
        rows = [(name, format_bytes(size)) for name, size in sizes]
        tables = [Table("Files", ("file", "size"), rows, (1,))]
        return Answer(_TRAINING_SET, f"{total}, the size of its files.", evidence, 0.8, tables=tables, short=total)
    if facts.num_training_pairs:
        pairs = f"{facts.num_training_pairs:,.0f} pairs"
        return Answer(_TRAINING_SET, f"{pairs} of lines.", evidence, 0.9, missing=missing, short=pairs)
    answer = "Not known: the log names the files but not their size." if files else "Not known."
    return Answer(_TRAINING_SET, answer, evidence, 0.0, missing=missing, short="Not known")


def _is_file(name: str) -> bool:
    try:
        return Path(name).is_file()
    except (OSError, ValueError):
        return False


def answer_checkpoint_files(findings: Findings) -> Answer:
    """The files, their purpose, and their size."""
    evidence = findings.evidence
    files = newest_checkpoint(evidence.run)
    if files:
        rows = [(path.name, _PURPOSES.get(path.name, ""), format_bytes(size)) for path, size in files]
        names = ", ".join(path.name for path, _ in files)
        folder = files[0][0].parent
        said = [
            f"{folder.name} is the newest of {counted(len(evidence.run.checkpoint_steps()), 'checkpoint')} kept.",
            "latest and best are links to the newest checkpoint and to the best by evaluation.",
        ]
        tables = [Table(f"Files of {folder.name}", ("file", "purpose", "size"), rows, (2,))]
        short = f"A folder with {counted(len(files), 'file')}"
        return Answer(_CHECKPOINT_FILES, f"A folder with {names}.", said, 1.0, tables=tables, short=short)
    if evidence.trainer == "OpenSeq2Seq":
        answer = "An index file named checkpoint, and for each saved step .data-00000-of-00001, .index and .meta."
        said = ["The log does not show whether any was saved: see the warnings."]
        tables = [Table("Files of a TensorFlow checkpoint", ("file", "purpose"), _OPENSEQ2SEQ_FILES)]
        return Answer(_CHECKPOINT_FILES, answer, said, 0.8, tables=tables, short="An index and 3 files per step")
    paths = [record.path for record in evidence.checkpoints if record.path is not None]
    if evidence.trainer in _OTHER_FILES:
        answer, short, purposes = _OTHER_FILES[evidence.trainer]
        said = [
            f"The last checkpoint in the log: {paths[-1]}" if paths else "The log does not show whether any was saved."
        ]
        tables = [Table(f"Files of a {evidence.trainer} checkpoint", ("file", "purpose"), purposes)]
        return Answer(_CHECKPOINT_FILES, answer, said, 0.8, tables=tables, short=short)
    if paths:
        answer = "Not known: the log names the checkpoints but not their files."
        said = [f"The last checkpoint in the log: {paths[-1]}", f"Checkpoints named in the log: {len(paths):,}."]
        missing = ["Their files and sizes: list that folder."]
        short = f"{counted(len(paths), 'checkpoint')} named, files not known"
        return Answer(_CHECKPOINT_FILES, answer, said, 0.3, missing=missing, short=short)
    answer = "Not known: the log does not say." if evidence.is_imported else "No checkpoint of this run is left."
    short = "Not known" if evidence.is_imported else "None left"
    return Answer(_CHECKPOINT_FILES, answer, missing=["List the folder that the trainer saves to."], short=short)


def answer_checkpoint_size(findings: Findings) -> Answer:
    """Total size, and bytes per parameter."""
    evidence, parameters = findings.evidence, findings.evidence.parameters
    size = _checkpoint_bytes(findings)
    if size:
        each = f", {size / parameters:.1f} bytes for each of {parameters:,} parameters" if parameters else ""
        said = [
            "Weights and Adam's two moments, 4 bytes each, make 12 bytes per parameter; the weights alone are a third."
        ]
        num_kept = len(evidence.run.checkpoint_steps())
        if num_kept > 1:
            said.append(f"{num_kept} checkpoints are kept: {format_bytes(num_kept * size)} in total.")
        return Answer(_CHECKPOINT_SIZE, f"{format_bytes(size)}{each}.", said, 1.0, short=format_bytes(size))
    missing = ["Measure it: du -ch on the files of one step."]
    each_bytes = BYTES_PER_PARAMETER.get(evidence.facts.precision or "")
    if evidence.trainer == "OpenSeq2Seq" and parameters and each_bytes:
        short = f"About {format_bytes(each_bytes * parameters)}"
        answer = f"{short}: {each_bytes} bytes for each of {parameters:,} parameters."
        said = [f"This is the rule for this trainer in {evidence.facts.precision} precision; no file was measured."]
        return Answer(_CHECKPOINT_SIZE, answer, said, 0.7, missing=missing, short=short)
    return Answer(_CHECKPOINT_SIZE, "Not known.", missing=missing, short="Not known")


def _checkpoint_bytes(findings: Findings) -> float | None:
    files = newest_checkpoint(findings.evidence.run)
    if files:
        return float(sum(size for _, size in files))
    return next((record.bytes for record in reversed(findings.evidence.checkpoints) if record.bytes), None)


def newest_checkpoint(run: RunFolder) -> list[tuple[Path, int]]:
    """Files of the newest checkpoint that can be read, with their sizes."""
    for step in reversed(run.checkpoint_steps()):
        try:
            files = sorted(path for path in run.checkpoint(step).iterdir() if path.is_file())
            return [(path, path.stat().st_size) for path in files]
        except OSError:
            continue
    return []
