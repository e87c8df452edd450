"""BLEU, chrF and TER by sacreBLEU, with the signatures that make them comparable.

Besides `significance` and `sacrebleu_data`, the only module that imports sacreBLEU.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, get_args

from sacrebleu.metrics.base import Metric
from sacrebleu.metrics.bleu import BLEU
from sacrebleu.metrics.chrf import CHRF
from sacrebleu.metrics.ter import TER
from sacrebleu.tokenizers.tokenizer_spm import SPM_MODELS
from sacrebleu.utils import SACREBLEU_DIR

from dragoman.corpus.cleaning.filters import split_languages
from dragoman.corpus.cleaning.language import SCRIPTS_WITHOUT_SPACES, main_script, scripts_of
from dragoman.run.config import ScoreTokenizer
from dragoman.run.errors import UsageError, UserError

# In this order: Japanese is written in kana and Han, Korean sometimes in Hangul and Han.
_TOKENIZER_OF_SCRIPT: dict[str, ScoreTokenizer] = {"Kana": "ja-mecab", "Hangul": "ko-mecab", "Han": "zh"}
_EXTRA_OF_TOKENIZER = {"ja-mecab": "ja", "ko-mecab": "ko"}
_FLORES_MODEL = Path(SACREBLEU_DIR) / "models" / Path(SPM_MODELS["flores200"]["url"]).name
_MAX_REFERENCES_READ = 1_000
_TOKENIZERS_OF_CHARACTERS = ("zh", "ja-mecab")
"""With these, TER cuts Chinese and Japanese text into characters; else it would take a sentence for one word."""

References = Sequence[Sequence[str | None]]
"""One or more sets of references, each with one for every sentence; None where a set lacks one."""


def choose_tokenizer(setting: ScoreTokenizer, languages: str | None, references: Sequence[str]) -> ScoreTokenizer:
    """Returns the tokenizer to score with; "auto" is decided by the target language, else by the references' script.

    Without spaces, 13a takes a sentence for one word, and good translations score 0. Where the tokenizer made for a
    language is not installed, single characters are counted. Nothing is downloaded.
    """
    if setting != "auto":
        return setting
    scripts = scripts_of(split_languages(languages)[1]) if languages else ()
    if not scripts:
        scripts = [main_script("\n".join(references[:_MAX_REFERENCES_READ])) or ""]
    found = _tokenizer_of(scripts)
    return found if _is_at_hand(found) else "char"


def _tokenizer_of(scripts: Sequence[str]) -> ScoreTokenizer:
    for script, tokenizer in _TOKENIZER_OF_SCRIPT.items():
        if script in scripts:
            return tokenizer
    return "13a" if set(scripts).isdisjoint(SCRIPTS_WITHOUT_SPACES) else "flores200"


def parse_tokenizer(name: str) -> ScoreTokenizer:
    """Returns the tokenizer of the option --tokenizer."""
    names: tuple[ScoreTokenizer, ...] = get_args(ScoreTokenizer)
    for known in names:
        if name == known:
            return known
    raise UsageError(f"--tokenizer is {name!r}; it can be {', '.join(names[:-1])} or {names[-1]}.")


def require_tokenizer(tokenizer: ScoreTokenizer) -> None:
    """Refuses a tokenizer whose packages or model are missing; "auto" never needs any."""
    if tokenizer != "auto":
        _build_bleu(tokenizer)


def _is_at_hand(tokenizer: ScoreTokenizer) -> bool:
    try:
        require_tokenizer(tokenizer)
    except UserError:
        return False
    return True


def _build_bleu(tokenizer: ScoreTokenizer, **options: Any) -> BLEU:
    if tokenizer == "flores200" and not _FLORES_MODEL.is_file():  # sacreBLEU would download it
        reason = f"its model is not at {_FLORES_MODEL} (sacrebleu --tokenize flores200 downloads it)"
        raise UserError(_describe_missing(tokenizer, reason))
    try:
        return BLEU(tokenize=tokenizer, **options)
    except (ImportError, RuntimeError, OSError, AssertionError):
        # Missing packages, another dictionary than MeCab's IPA, or a damaged model.
        extra = _EXTRA_OF_TOKENIZER.get(tokenizer)
        reason = f"its packages are not installed (pip install 'dragoman[{extra}]')" if extra else "it cannot be loaded"
        raise UserError(_describe_missing(tokenizer, reason)) from None


def _describe_missing(tokenizer: str, reason: str) -> str:
    return (
        f"The tokenizer {tokenizer} for BLEU cannot be used: {reason}. "
        "Install it on every host, or choose another: --set evaluation.tokenizer=char (evaluate: --tokenizer char)."
    )


@dataclass(frozen=True)
class Score:
    """BLEU and chrF of translations, 0 to 100, with the signatures of their computation."""

    bleu: float
    signature: str
    chrf: float
    chrf_signature: str


@dataclass(frozen=True)
class FullScore(Score):
    """All scores of a test set: also chrF2++ (0 to 100) and TER (0 is perfect, above 100 is possible)."""

    chrfpp: float
    chrfpp_signature: str
    ter: float
    ter_signature: str


@dataclass(frozen=True)
class SentenceScore:
    """Scores of one translation; its BLEU leaves out n-grams that are longer than the sentence."""

    bleu: float
    chrfpp: float
    ter: float


class Judge:
    """Scores translations of one test set; counts the n-grams and edits of each text only once."""

    def __init__(self, references: References, tokenizer: ScoreTokenizer) -> None:
        """Takes a tokenizer that `choose_tokenizer` returned."""
        self._num_sentences = len(references[0])
        counted = {"references": references}
        is_asian = tokenizer in _TOKENIZERS_OF_CHARACTERS
        self.metrics: dict[str, Metric] = {
            "bleu": _build_bleu(tokenizer, **counted),
            "chrf": CHRF(**counted),  # type: ignore[arg-type]
            "chrfpp": CHRF(word_order=2, **counted),  # type: ignore[arg-type]
            "ter": TER(normalized=is_asian, asian_support=is_asian, **counted),  # type: ignore[arg-type]
        }
        for metric in self.metrics.values():
            _remember_counts(metric)
        self._sentence_bleu = _build_bleu(tokenizer, effective_order=True)

    def score(self, hypotheses: Sequence[str]) -> FullScore:
        """Computes corpus BLEU (exponential smoothing), chrF2, chrF2++ and TER of detokenised text."""
        scores = {
            name: metric._aggregate_and_compute(self.counts(name, hypotheses)).score for name, metric in self._all()
        }
        # A signature is complete only after scoring, because it includes the number of references.
        signatures = {name: str(metric.get_signature()) for name, metric in self._all()}
        return FullScore(
            scores["bleu"],
            signatures["bleu"],
            scores["chrf"],
            signatures["chrf"],
            scores["chrfpp"],
            signatures["chrfpp"],
            scores["ter"],
            signatures["ter"],
        )

    def score_sentences(self, hypotheses: Sequence[str]) -> list[SentenceScore]:
        """Scores each translation on its own, as `sacrebleu --sentence-level` does."""
        columns = [
            [metric._aggregate_and_compute([counts]).score for counts in self.counts(name, hypotheses)]
            for name, metric in (
                ("bleu", self._sentence_bleu),
                ("chrfpp", self.metrics["chrfpp"]),
                ("ter", self.metrics["ter"]),
            )
        ]
        return [SentenceScore(*row) for row in zip(*columns, strict=True)]

    def counts(self, name: str, hypotheses: Sequence[str]) -> list[list[float]]:
        """Returns, for each sentence, the counts whose sums give the score of any set of sentences."""
        _check_pairs(len(hypotheses), self._num_sentences)
        counts: list[list[float]] = self.metrics[name]._extract_corpus_statistics(hypotheses, None)
        return counts

    def _all(self) -> Iterable[tuple[str, Metric]]:
        return self.metrics.items()


def _remember_counts(metric: Metric) -> None:
    """Makes a metric count a text only once, however often its scores are asked for: TER takes long."""
    count = metric._extract_corpus_statistics
    known: dict[int, tuple[Sequence[str], Any]] = {}

    def count_once(hypotheses: Sequence[str], references: Any) -> Any:
        # The text is kept beside its counts, so that no other text can get its id.
        if id(hypotheses) not in known:
            known[id(hypotheses)] = (hypotheses, count(hypotheses, references))
        return known[id(hypotheses)][1]

    metric._extract_corpus_statistics = count_once  # type: ignore[method-assign]


def score_translations(hypotheses: Sequence[str], references: Sequence[str], tokenizer: ScoreTokenizer) -> Score:
    """Computes corpus BLEU (exponential smoothing) and chrF2 of detokenised text, with one reference each.

    `tokenizer` is one that `choose_tokenizer` returned.
    """
    _check_pairs(len(hypotheses), len(references))
    bleu, chrf = _build_bleu(tokenizer), CHRF()
    bleu_score = bleu.corpus_score(hypotheses, [references]).score
    chrf_score = chrf.corpus_score(hypotheses, [references]).score
    # A signature is complete only after scoring, because it includes the number of references.
    return Score(bleu_score, str(bleu.get_signature()), chrf_score, str(chrf.get_signature()))


def bleu_counts(hypotheses: Sequence[str], references: Sequence[str], tokenizer: ScoreTokenizer) -> list[list[int]]:
    """Returns, for each sentence, the counts whose sums give the BLEU of any set of sentences.

    Length of the translation and of the reference, then matching and possible n-grams of 1 to 4 words.
    """
    _check_pairs(len(hypotheses), len(references))
    # Effective order only changes the score of one sentence, which is not used; without it sacreBLEU would warn.
    bleu = _build_bleu(tokenizer, effective_order=True)
    scores = (bleu.sentence_score(*pair) for pair in zip(hypotheses, ([each] for each in references), strict=True))
    return [[score.sys_len, score.ref_len, *score.counts, *score.totals] for score in scores]


def teacher_forced_bleu(predicted_subwords: Sequence[str], reference_subwords: Sequence[str]) -> float:
    """Computes BLEU-4 over subwords (separated by spaces) without smoothing, 0 to 1: OpenSeq2Seq's "Eval BLUE score".

    Each prediction was made given the reference before it, so this does not measure the quality of translations.
    """
    _check_pairs(len(predicted_subwords), len(reference_subwords))
    bleu = BLEU(tokenize="none", smooth_method="none", force=True)
    numbers: dict[str, int] = {}
    predicted, references = _number_subwords(predicted_subwords, numbers), _number_subwords(reference_subwords, numbers)
    return float(bleu.corpus_score(predicted, [references]).score) / 100


def _number_subwords(lines: Sequence[str], numbers: dict[str, int]) -> list[str]:
    """Replaces each subword by a number, because sacreBLEU would split one that contains U+00A0."""
    return [
        " ".join(str(numbers.setdefault(subword, len(numbers))) for subword in line.split(" ") if subword)
        for line in lines
    ]


def _check_pairs(num_hypotheses: int, num_references: int) -> None:
    if num_hypotheses != num_references:
        raise UserError(
            f"There are {num_hypotheses:,} translations but {num_references:,} references: "
            "line N of one must belong to line N of the other."
        )
    if not num_hypotheses:
        raise UserError("There is nothing to score: give at least one translation and its reference.")
