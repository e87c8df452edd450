"""Test sets that sacreBLEU knows by name, such as wmt14, where they are on this machine; downloads nothing."""

from pathlib import Path
from typing import Any

from sacrebleu.dataset import DATASETS
from sacrebleu.dataset.wmt_xml import WMTXMLDataset
from sacrebleu.utils import SACREBLEU_DIR

from dragoman.run.errors import UsageError, UserError, did_you_mean

_MAX_PAIRS_NAMED = 12


def find_files(name: str, languages: str | None) -> tuple[str, Path, list[Path]]:
    """Returns the language pair of a test set, its source and its references; all must be in sacreBLEU's folder."""
    if name not in DATASETS:
        raise UsageError(
            f"There is no test set {name!r}{did_you_mean(name, DATASETS)} The command `sacrebleu --list` lists all."
        )
    dataset: Any = DATASETS[name]
    pair = _choose_pair(dataset, languages)
    source, *references = [
        Path(dataset._get_txt_file_path(pair, field)) for field in ("src", *_references(dataset, pair))
    ]
    missing = next((path for path in (source, *references) if not path.is_file()), None)
    if missing or not references:
        raise UserError(
            f"The test set {name} ({pair}) is not on this machine: {missing or source.parent} is missing. "
            f"This downloads it to {SACREBLEU_DIR}: sacrebleu --download {name} -l {pair}"
        )
    return pair, source, references


def _choose_pair(dataset: Any, languages: str | None) -> str:
    """Returns the pair that was asked for, or the only one."""
    pairs: list[str] = sorted(dataset.langpairs)
    if languages is None and len(pairs) == 1:
        return pairs[0]
    if languages in pairs:
        return languages
    shown = ", ".join(pairs[:_MAX_PAIRS_NAMED]) + (" …" if len(pairs) > _MAX_PAIRS_NAMED else "")
    if languages is None:
        raise UsageError(f"--test-set {dataset.name} needs --languages, one of: {shown}.")
    raise UsageError(f"The test set {dataset.name} has no {languages}; it has: {shown}.")


def _references(dataset: Any, pair: str) -> list[str]:
    """Returns the names of the references that sacreBLEU scores with; asks it nothing that may start a download."""
    is_xml = isinstance(dataset, WMTXMLDataset)
    fields = dataset._get_langpair_allowed_refs(pair) if is_xml else dataset.fieldnames(pair)
    return [field for field in fields if field.startswith("ref")]
