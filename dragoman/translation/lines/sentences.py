"""Splits text into sentences, for lines that are longer than a model was trained on; nothing is lost or added.

It serves many scripts without knowing the language. Where it is unsure it does not split: an abbreviation taken for the
end of a sentence costs more than two sentences that are translated together.
"""

import re
from collections.abc import Sequence

_CLOSING = "\"'”’»›)\\]}」』）】》〉〕｣"
# These end a sentence wherever they stand: no blank follows them in Chinese and Japanese, and none of them is part of
# a number or an abbreviation.
_FULL_STOPS = "。！？｡‼⁇⁈⁉؟۔।॥։።፧។៕။།༎;"
# These need white space after them: they also stand in numbers, addresses and abbreviations.
_POINTS = ".!?…"
_END = re.compile(
    rf"[{_FULL_STOPS}][{_FULL_STOPS}{_POINTS}]*[{_CLOSING}]*\s*"
    rf"|[{_POINTS}]+[{_CLOSING}]*\s+"
    r"|(?<=[\u0370-\u03ff\u1f00-\u1fff]);\s+"  # the question mark of Greek
)
_LAST_WORD = re.compile(r"[^\s(\[{\"'“„«‚‘¿¡—–-]*$")
_OPENING = re.compile(r"[\s(\[{\"'“„«‚‘¿¡—–-]*")
_MAX_ORDINAL_DIGITS = 2
_MAX_WORD_LETTERS = 40
_MAX_INITIAL_LETTERS = 3
# English and titles, German, French to Portuguese, Dutch to Czech, Russian and Greek; in lower case, without their last
# point. Abbreviations with a point inside (z.B., U.S.) and single letters need no entry.
_COMMON_ABBREVIATIONS = """
mr mrs ms dr prof rev hon gen col sgt capt lt maj gov sen rep pres st sr jr vs etc ca cf al ed eds vol fig figs no nos
pp ch sec eq approx dept est inc ltd corp co bros ave blvd rd mt ft jan feb mar apr jun jul aug sep sept oct nov dec
hr fr frl nr str bzw usw ggf evtl inkl exkl zzgl bspw sog vgl abs art bd hrsg jh jhd tel okt dez mio mrd tsd geb gest
mme mlle mm av boul chap env sra srta ud uds dra pág núm avda sig dott ing avv pag cap ecc exmo
dhr mevr mw bijv enz resp kl osv iflg bl ul hab np tzn tj itd itp nar zm wg tzv např
гг вв ул им стр рис тов проф акад руб коп тыс млн млрд см др пр пл обл κα κλπ σελ αρ
"""
_ABBREVIATIONS = frozenset(_COMMON_ABBREVIATIONS.split())


def split_sentences(text: str) -> list[str]:
    """Splits text into sentences; joined, they are the text again: white space stays at the end of its sentence."""
    sentences: list[str] = []
    begin = 0
    has_capitals = text != text.lower()  # text without any gives no hint where a sentence begins
    for end in _END.finditer(text):
        if end.end() < len(text) and _ends_sentence(text, begin, end, has_capitals):
            sentences.append(text[begin : end.end()])
            begin = end.end()
    return [*sentences, text[begin:]] if begin < len(text) else sentences


def _ends_sentence(text: str, begin: int, end: re.Match[str], has_capitals: bool) -> bool:
    marks = end.group().rstrip()
    if marks[:1] not in _POINTS:
        return True
    following = _OPENING.match(text, end.end())
    assert following is not None, "it also matches nothing"
    if has_capitals and text[following.end() : following.end() + 1].islower():
        return False
    return marks[:1] in "!?" or not _is_abbreviation(text[max(begin, end.start() - _MAX_WORD_LETTERS) : end.start()])


def _is_abbreviation(before: str) -> bool:
    """Whether a point after this text is likely part of its last word: "Dr", "z.B", "J", or "3" as in "3. Mai"."""
    found = _LAST_WORD.search(before)
    word = found.group().casefold() if found else ""
    if word.isdecimal():
        return len(word) <= _MAX_ORDINAL_DIGITS
    are_initials = all(part.isalpha() and len(part) <= _MAX_INITIAL_LETTERS for part in word.split("."))
    return word in _ABBREVIATIONS or (are_initials and (len(word) == 1 or "." in word))


# Chinese and Japanese, whose sentences follow each other without a blank; Korean has blanks.
_SPACELESS = re.compile(r"[\u2e80-\u2fdf\u3000-\u30ff\u31c0-\u31ff\u3400-\u9fff\uf900-\ufaff\uff00-\uff9f]")


def needs_blank(left: str, right: str) -> bool:
    """Whether a blank belongs between two translated sentences."""
    return not (left and right and (_SPACELESS.match(left[-1]) or _SPACELESS.match(right[0])))


def join_sentences(texts: Sequence[str]) -> str:
    """Joins translations of neighbouring pieces of a line; empty ones are left out."""
    joined = ""
    for text in filter(None, map(str.strip, texts)):
        joined += f" {text}" if joined and needs_blank(joined, text) else text
    return joined
