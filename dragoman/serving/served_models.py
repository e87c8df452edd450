"""The models that a server offers: one for each pair of languages."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import pycld2

from dragoman.corpus.cleaning.language import are_similar, is_same_language, language_name
from dragoman.serving.token_count import TokenCount
from dragoman.translation.translator import LineTranslator

_IS_PLAIN_TEXT = True
_MAX_CHARACTERS_READ = 2_000
"""More text does not make a language clearer."""


@dataclass(frozen=True)
class DetectedLanguage:
    """A language that a text may be in."""

    confidence: float
    """Percent of the text that is in this language; 0 if nothing is known."""
    language: str


@dataclass(frozen=True, eq=False)
class ServedModel:
    """A model for one pair of languages."""

    source: str
    target: str
    translator: LineTranslator
    tokens: TokenCount
    facts: dict[str, Any] = field(default_factory=dict)
    """What the export says about itself."""
    shown_facts: list[tuple[str, str]] = field(default_factory=list)
    """What the page shows of them, as names and values."""

    @property
    def languages(self) -> str:
        """The pair as one word, e.g. en-de."""
        return f"{self.source}-{self.target}"


class ServedModels:
    """All models of a server, in the order they were given."""

    def __init__(self, models: Sequence[ServedModel]) -> None:
        """Takes at least one model, each for another pair."""
        assert models
        self.models = list(models)
        self._by_pair = {(model.source, model.target): model for model in models}

    @cached_property
    def sources(self) -> list[str]:
        """The languages that texts may be in."""
        return list(dict.fromkeys(model.source for model in self.models))

    @cached_property
    def targets(self) -> list[str]:
        """The languages that texts can be translated into."""
        return list(dict.fromkeys(model.target for model in self.models))

    @cached_property
    def languages(self) -> list[dict[str, Any]]:
        """All languages, each with those it can be translated into."""
        codes = dict.fromkeys([*self.sources, *self.targets])
        return [{"code": code, "name": language_name(code), "targets": self.targets_of(code)} for code in codes]

    def targets_of(self, source: str) -> list[str]:
        """Returns the languages that texts in this one can be translated into."""
        return [model.target for model in self.models if model.source == source]

    def find(self, source: str, target: str) -> ServedModel | None:
        """Returns the model of a pair; None if there is none."""
        return self._by_pair.get((source, target))

    def known_code(self, code: str) -> str | None:
        """Returns the language as this server names it, "en" also for "EN" or "en_US"; None if it has no such."""
        known = [*self.sources, *self.targets]
        name = code.lower().replace("_", "-")
        names = (name, name.partition("-")[0])
        return next((each for name in names for each in known if each.lower() == name), None)

    def source_for(self, target: str, text: str) -> DetectedLanguage:
        """Returns the language that a text to be translated into `target` is in, as far as there is a choice."""
        possible = [source for source in self.sources if (source, target) in self._by_pair]
        return self.detect(text, possible or self.sources)[0]

    def detect(self, text: str, possible: Sequence[str] | None = None) -> list[DetectedLanguage]:
        """Returns the possible languages of a text, most of it first; without `possible`, any that is served.

        Of languages that are often confused, as Danish and Norwegian, the one that was found comes before the others.
        """
        codes = list(possible or dict.fromkeys([*self.sources, *self.targets]))
        found: dict[str, tuple[float, bool]] = {}
        for percent, detected in _detect(text):
            for code in codes:
                if are_similar(code, detected):
                    found[code] = max(found.get(code, (0.0, False)), (percent, is_same_language(code, detected)))
        ranked = sorted(found, key=lambda code: found[code], reverse=True)
        return [DetectedLanguage(found[code][0], code) for code in ranked] or [DetectedLanguage(0.0, codes[0])]


def _detect(text: str) -> list[tuple[float, str]]:
    """Returns the percentages and codes of the languages in a text; none for a text that cannot be judged."""
    try:
        _, _, found = pycld2.detect(text[:_MAX_CHARACTERS_READ], _IS_PLAIN_TEXT, bestEffort=True)
    except (pycld2.error, UnicodeEncodeError):
        return []
    return [(float(percent), code) for _, code, percent, _ in found if percent]
