"""Decides which filters are on and with which thresholds, from the preset, its changes and the languages."""

from dataclasses import dataclass
from typing import Any

from dragoman.corpus.cleaning.language import has_known_script, is_known_language
from dragoman.corpus.settings import Cleaning, PrepareSettings
from dragoman.run.errors import UsageError

# Other codes of languages that have a two-letter code: ISO 639-3, ISO 639-2/B, members of macrolanguages, and withdrawn
# codes.
_OTHER_CODES = """
af:afr am:amh ar:ara,arb as:asm ay:aym,ayr az:aze,azj ba:bak be:bel bg:bul bh:bih bn:ben bo:bod,tib br:bre bs:bos
ca:cat co:cos cs:ces,cze cy:cym,wel da:dan de:deu,ger dv:div dz:dzo ee:ewe el:ell,gre en:eng eo:epo es:spa
et:est,ekk eu:eus,baq fa:fas,per,pes fi:fin fj:fij fo:fao fr:fra,fre fy:fry ga:gle gd:gla gl:glg gn:grn,gug gu:guj
gv:glv ha:hau he:heb,iw hi:hin hr:hrv ht:hat hu:hun hy:hye,arm ia:ina id:ind,in ie:ile ig:ibo ik:ipk is:isl,ice
it:ita iu:iku ja:jpn jv:jav,jw ka:kat,geo kk:kaz kl:kal km:khm kn:kan ko:kor ks:kas ku:kur,kmr ky:kir la:lat lb:ltz
lg:lug ln:lin lo:lao lt:lit lv:lav,lvs mg:mlg,plt mi:mri,mao mk:mkd,mac ml:mal mn:mon,khk mr:mar ms:msa,may,zsm
mt:mlt my:mya,bur na:nau nb:nob ne:nep,npi nl:nld,dut nn:nno no:nor nr:nbl ny:nya oc:oci om:orm,gaz or:ori,ory os:oss
pa:pan pl:pol ps:pus,pbt pt:por qu:que,quy rm:roh rn:run ro:ron,rum,mo ru:rus rw:kin sa:san sd:snd sg:sag sh:hbs
si:sin sk:slk,slo sl:slv sm:smo sn:sna so:som sq:sqi,alb,als sr:srp ss:ssw st:sot su:sun sv:swe sw:swa,swh ta:tam
te:tel tg:tgk th:tha ti:tir tk:tuk tl:tgl,fil tn:tsn to:ton tr:tur ts:tso tt:tat tw:twi ug:uig uk:ukr ur:urd
uz:uzb,uzn ve:ven vi:vie vo:vol wo:wol xh:xho yi:yid,ydd,ji yo:yor za:zha zh:zho,chi,cmn zu:zul
"""
_CODE_OF = {
    other: code for code, others in (entry.split(":") for entry in _OTHER_CODES.split()) for other in others.split(",")
}


def language_code(name: str) -> str:
    """Returns the same code for all names of a language: "deu", "de_AT" and "DE" are "de"."""
    primary = name.replace("_", "-").split("-")[0].lower()
    return _CODE_OF.get(primary, primary)


def split_languages(languages: str) -> tuple[str, str]:
    """Returns the codes of source and target: "eng-deu" is ("en", "de"), and so is "en_GB-de"."""
    source, _, target = languages.rpartition("-")
    return language_code(source), language_code(target)


_NONE: dict[str, Any] = {"empty": True}
_MOSES = _NONE | {"length_words": (1, 80), "length_ratio": 9.0}
_STANDARD = _MOSES | {
    "length_characters": (1, 2000),
    "control_characters": True,
    "identical": True,
    "duplicates": True,
    "overlap": True,
    "script": 0.5,
    "language": 25,
}
_STRICT = _STANDARD | {"numbers": True, "near_duplicates": True, "length_ratio": 4.0}
_PRESETS: dict[Cleaning, dict[str, Any]] = {
    "none": _NONE,
    "moses": _MOSES,
    "standard": _STANDARD,
    "strict": _STRICT,
}


@dataclass(frozen=True)
class Rules:
    """Every filter with its threshold; False or None is off."""

    empty: bool = False
    reserved_characters: bool = True
    control_characters: bool = False
    length_words: tuple[int, int] | None = None
    length_characters: tuple[int, int] | None = None
    length_ratio: float | None = None
    identical: bool = False
    script: float | None = None
    language: int | None = None
    numbers: bool = False
    duplicates: bool = False
    near_duplicates: bool = False
    overlap: bool = False
    held_out: bool = True
    normalise: bool = True
    languages: tuple[str, str] | None = None
    """Codes of source and target; `script` and `language` can be on only if they are given."""

    def is_on(self, name: str) -> bool:
        """Whether the filter drops pairs."""
        return getattr(self, name) not in (None, False)


def resolve_rules(settings: PrepareSettings) -> Rules:
    """Returns the filters that the preset, its changes and the languages result in.

    `moses` is the rule of Moses' clean-corpus-n with 1 and 80: a pair is dropped if a side has fewer than 1 or more
    than 80 words (text between white space), or one side has more than 9 times the words of the other (its
    characters, where most letters are in a script without spaces).
    """
    changes = settings.filters.model_dump(exclude_none=True)
    _check_ranges(changes)
    languages = split_languages(settings.languages) if settings.languages else None
    # A filter that is only turned on gets the threshold of "standard".
    thresholds = _PRESETS[settings.cleaning] | {
        name: _STANDARD.get(name, True) if value is True else value for name, value in changes.items()
    }
    if languages is None:
        _check_languages_not_needed(changes)
    # A filter that can check neither side is off, and the report says so.
    if not any(map(has_known_script, languages or ())):
        thresholds["script"] = None
    if not any(map(is_known_language, languages or ())):
        thresholds["language"] = None
    # A filter that is off is False in the settings, but None among thresholds; a share of 0 drops nothing either.
    on = {name: value for name, value in thresholds.items() if value}
    return Rules(**on, normalise=settings.normalise, languages=languages)


def _check_languages_not_needed(changes: dict[str, Any]) -> None:
    for name in ("script", "language"):
        if changes.get(name):
            raise UsageError(
                f"The filter prepare.filters.{name} needs the languages; give them, e.g. --languages en-de."
            )


def _check_ranges(changes: dict[str, Any]) -> None:
    for name in ("length_words", "length_characters"):
        least, most = changes[name] if isinstance(changes.get(name), tuple) else (0, 0)
        if least > most:
            raise UsageError(
                f"prepare.filters.{name} is [{least}, {most}], but the smaller number comes first; "
                f"write [{most}, {least}]."
            )
