"""Writes mtdata's index of parallel text as JSON lines: python build_index.py OUT

Runs in its own process, because importing mtdata's index writes and loads a pickle, runs any mtdata*.py of the current
folder, and changes logging. Imports nothing from dragoman, so that it starts in any folder.
"""

import json
import sys
from pathlib import Path
from typing import Any

# In the order in which mtdata's parser looks for them in the ending of a file name.
_FORMATS = ("tsv", "csvwithheader", "raw", "txt", "tmx", "sgm", "wmt21xml", "hfds", "xlsx")


def find_format(ending: str) -> str:
    """Returns the format that mtdata's parser would choose for an ending such as tsv.gz."""
    found = next((name for name in _FORMATS if name in ending), ending)
    return "txt" if found == "raw" else found


def describe(entry: Any) -> dict[str, Any]:
    """Returns one mtdata entry as plain values."""
    has_many_urls = not isinstance(entry.url, str)
    urls = list(entry.url) if has_many_urls else [entry.url]
    return {
        "id": str(entry.did),
        "urls": urls,
        # The names in mtdata's cache.
        "filenames": [url.split("/")[-1] for url in urls] if has_many_urls else [entry.filename],
        "members": list(entry.in_paths or ()),
        "format": find_format(entry.in_ext or entry.ext),
        "columns": list(entry.cols or (0, 1)),
    }


def main(out: Path) -> None:
    """Writes the language codes on the first line, then one dataset per line."""
    from mtdata.index import INDEX
    from mtdata.iso.iso639_1 import ISO693_1_to_3

    with out.open("w", encoding="utf-8", newline="\n") as file:
        file.write(json.dumps({"languages": ISO693_1_to_3}) + "\n")
        for entry in INDEX.get_entries():
            if len(entry.did.langs) == 2:
                file.write(json.dumps(describe(entry), ensure_ascii=False) + "\n")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
