"""An SVG of matplotlib made fit for a page: short, without fonts of its own, its colours variables of the page."""

import re
from collections.abc import Mapping


def tidy_svg(svg: str, key: str, colours: Mapping[str, str]) -> str:
    """What matplotlib drew, without what a page has already or must not have: names, fonts, rules for all elements."""
    svg = svg[svg.index("<svg") :]
    svg = svg[svg.index(">") + 1 :]
    svg = re.sub(r"<style.*?</style>|<!--.*?-->", "", svg, flags=re.DOTALL)
    used = set(re.findall(r'url\(#(\w+)\)|href="#(\w+)"', svg))
    names = {name for pair in used for name in pair if name}
    svg = re.sub(r"<[^>]*>", lambda match: _tidy_tag(match[0], key, names, colours), svg)
    svg = re.sub(r">\s+<", "><", svg)
    previous = ""
    while previous != svg:
        previous, svg = svg, re.sub(r"<(g|defs)></\1>|<(g|defs)/>", "", svg)
    return svg.strip()


def _tidy_tag(tag: str, key: str, names: set[str], colours: Mapping[str, str]) -> str:
    prefix = re.sub(r"[^A-Za-z0-9-]", "-", key)
    tag = re.sub(r' id="([^"]*)"', lambda match: f' id="{prefix}-{match[1]}"' if match[1] in names else "", tag)
    tag = re.sub(r'(url\(|href=")#(\w+)', rf"\g<1>#{prefix}-\2", tag).replace("xlink:href", "href")
    tag = re.sub(r"font-(size|family|weight|style): [^;\"]*;? ?", "", tag)
    tag = re.sub(r' transform="rotate\(-?0 [^"]*"', "", tag)
    tag = re.sub(r' (d|x|y|width|height)="([^"]*)"', _round_numbers, tag)
    tag = re.sub(r' (fill|stroke)="(#[0-9a-f]{6})"', r' style="\1: \2"', tag)
    return re.sub(r"#[0-9a-f]{6}", lambda match: colours.get(match[0], match[0]), tag)


def _round_numbers(attribute: re.Match[str]) -> str:
    name, numbers = attribute.groups()
    # Markers and hatches are so small that a tenth shows; there are few of them.
    digits = 1 if len(numbers) > 400 or name != "d" else 2
    rounded = re.sub(r"-?\d+\.\d+", lambda match: f"{float(match[0]):.{digits}f}".removesuffix(".0"), numbers)
    return f' {name}="{" ".join(rounded.split())}"'
