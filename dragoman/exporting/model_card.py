"""The README.md of an export: what the model is, how good, how it was trained and how to load it.

Its front matter is the one that the Hugging Face hub reads.
"""

import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from dragoman.exporting.source import ExportSource
from dragoman.model.shape import ModelShape
from dragoman.run.files import read_json_table
from dragoman.run.line_follower import LineFollower
from dragoman.run.records import MachineSample, number_or_none, parse_sample
from dragoman.run.units import format_duration
from dragoman.translation.exported_model import ExportedScore, ExportFacts

_LICENCE_CODE = re.compile(r"[a-z0-9][a-z0-9.-]{0,40}")
_LIBRARIES = {"ctranslate2": "ctranslate2", "huggingface": "transformers", "safetensors": "safetensors"}
_SCORE_NAMES = {"bleu": "BLEU", "chrfpp": "chrF2++", "ter": "TER (lower is better)", "chrf": "chrF"}
_NUM_LAST_SAMPLES = 5

_USES = {
    "ctranslate2": """\
With dragoman: `dragoman translate THIS_FOLDER < text.txt`, or `dragoman serve THIS_FOLDER`. With CTranslate2 alone:

```python
import ctranslate2, sentencepiece

source = sentencepiece.SentencePieceProcessor("{source_tokenizer}")
target = sentencepiece.SentencePieceProcessor("{target_tokenizer}")
translator = ctranslate2.Translator(".")
found = translator.translate_batch([source.encode("A sentence.", out_type=str)], beam_size={beam_size})
print(target.decode(found[0].hypotheses[0]))
```
""",
    "huggingface": """\
```python
from transformers import AutoModelForSeq2SeqLM, AutoTokenizer

tokenizer, model = AutoTokenizer.from_pretrained("."), AutoModelForSeq2SeqLM.from_pretrained(".")
found = model.generate(**tokenizer(["A sentence."], return_tensors="pt"))
print(tokenizer.batch_decode(found, skip_special_tokens=True))
```
""",
    "safetensors": """\
The weights have the names of dragoman's own model; `config.json` holds its shape. With dragoman installed:

```python
from pathlib import Path
from dragoman.exporting.safetensors_format import load_exported_transformer

model = load_exported_transformer(Path("."))
```

Without it, `safetensors.torch.load_file("model.safetensors")` returns the weights by name.
""",
}


def write_card(source: ExportSource, facts: ExportFacts) -> str:
    """Returns the text of the model card."""
    uses = _USES[facts.format].format(
        source_tokenizer=source.tokenizer_files[0].name,
        target_tokenizer=source.tokenizer_files[-1].name,
        beam_size=facts.beam_size,
    )
    sections = {
        "Languages": _describe_languages(facts.languages),
        "Use": uses,
        "Scores": _describe_scores(facts.scores),
        "Training data": _describe_data(read_json_table(source.run.corpus_facts)),
        "How it was trained": _describe_training(source, facts),
        "Licence": facts.licence or "Not stated by those who exported this model: ask them before you use it.",
    }
    name = "-".join(facts.languages) if facts.languages else "Translation"
    body = [f"## {title}\n\n{text.strip()}\n" for title, text in sections.items()]
    return "\n".join([_front_matter(facts), f"# {name} model\n", *body])


def _front_matter(facts: ExportFacts) -> str:
    """Returns YAML; texts are quoted as JSON, which YAML reads."""
    licence = facts.licence or "unknown"
    is_code = _LICENCE_CODE.fullmatch(licence)
    values: dict[str, Any] = {
        **({"language": facts.languages} if facts.languages else {}),
        "license": licence if is_code else "other",
        **({} if is_code else {"license_name": licence}),
        "library_name": _LIBRARIES[facts.format],
        "pipeline_tag": "translation",
        "tags": ["translation", "dragoman", facts.format],
        "metrics": ["bleu", "chrf"],
    }
    lines = [f"{key}: {json.dumps(value, ensure_ascii=False)}" for key, value in values.items()]
    return "\n".join(["---", *lines, "---", ""])


def _describe_languages(languages: Sequence[str] | None) -> str:
    if languages is None:
        return "Not known: the text was prepared without language codes."
    return f"From {languages[0]} to {languages[1]}."


def _describe_scores(scores: Sequence[ExportedScore]) -> str:
    """Returns a table of the scores that were measured, and their signatures."""
    if not scores:
        return "None was measured."
    names = [name for name in _SCORE_NAMES if any(getattr(score, name) is not None for score in scores)]
    rows = [["text", "sentences", *(_SCORE_NAMES[name] for name in names)], ["---"] * (2 + len(names))]
    for score in scores:
        figures = [getattr(score, name) for name in names]
        cells = ["" if figure is None else f"{figure:.2f}" for figure in figures]
        rows.append([_cell(score.judged_on), str(score.num_sentences or ""), *cells])
    signatures = {
        f"- {_SCORE_NAMES[name]}: `{signature}`"
        for score in scores
        for name in names
        if (signature := getattr(score, "signature" if name == "bleu" else f"{name}_signature"))
    }
    table = [f"| {' | '.join(row)} |" for row in rows]
    return "\n".join([*table, "", "Signatures of sacreBLEU:", "", *sorted(signatures)])


def _cell(text: str) -> str:
    return " ".join(text.replace("|", "\\|").split())


def _describe_data(facts: dict[str, Any]) -> str:
    """Lists the corpora and their sizes; nothing about where their files are."""
    try:
        corpora = [f"- {each['name']}: {int(each['num_pairs']):,} pairs" for each in facts["corpora"]]
        num_read, num_kept = facts["cleaning"]["num_read"], facts["cleaning"]["num_kept"]
        cleaning = f"Of {int(num_read):,} pairs, cleaning kept {int(num_kept):,}."
        tokenizer = facts["tokenizer"]
        sizes = {int(tokenizer[f"num_{side}_pieces"]) for side in ("source", "target")}
        kind = "One vocabulary for both languages" if tokenizer["is_joint"] else "A vocabulary for each language"
    except (KeyError, TypeError, ValueError):
        return "Not known: the run has no figures of its corpus."
    vocabulary = f"{kind}: {' and '.join(f'{size:,}' for size in sorted(sizes))} subwords (SentencePiece)."
    return "\n".join([*corpora, "", cleaning, vocabulary])


def _describe_training(source: ExportSource, facts: ExportFacts) -> str:
    lines = [
        f"- Weights: {facts.checkpoint}; {facts.quantization or 'float32'}.",
        f"- Model: {_describe_shape(source.shape)}; {facts.num_parameters:,} parameters.",
        f"- Steps: {facts.step:,}, with {source.settings.training.global_batch_tokens:,} tokens per batch at most.",
        f"- Hardware: {_describe_hardware(source)}.",
    ]
    if (seconds := _spent_seconds(source)) is not None:
        lines.append(f"- Time of the whole run: {format_duration(seconds)}.")
    return "\n".join([*lines, f"- dragoman {facts.dragoman_version}."])


def _describe_shape(shape: ModelShape) -> str:
    return (
        f"Transformer, {shape.encoder_layers} encoder and {shape.decoder_layers} decoder layers, width {shape.width}, "
        f"feed-forward {shape.feed_forward}, {shape.heads} heads, {shape.norm}-norm, {shape.activation}, "
        f"{shape.embeddings} embeddings"
    )


def _describe_hardware(source: ExportSource) -> str:
    """Counts machines, cores and GPUs by the last sample of each machine."""
    found = [sample for path in source.run.system_files() if (sample := _last_sample(path)) is not None]
    if not found:
        return "not recorded"
    names = [gpu.name or "GPU" for sample in found for gpu in sample.gpus]
    gpus = [f"{names.count(name)} × {name}" for name in sorted(set(names))]
    num_cores = sum(len(sample.cpu.cores) for sample in found)
    machines = "1 machine" if len(found) == 1 else f"{len(found)} machines"
    return ", ".join([machines, f"{num_cores} cores", *gpus])


def _last_sample(path: Path) -> MachineSample | None:
    with LineFollower(path, _NUM_LAST_SAMPLES) as follower:
        samples = [sample for line in follower.read_lines() if (sample := parse_sample(line)) is not None]
    return samples[-1] if samples else None


def _spent_seconds(source: ExportSource) -> float | None:
    return number_or_none(read_json_table(source.run.spent).get("seconds"))
