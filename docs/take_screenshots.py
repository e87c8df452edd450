"""Takes pictures of the first screen of a report: `python docs/take_screenshots.py runs/demo` (needs chromium)."""

import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from PIL import Image

SCREENS = {"report-light.png": "light", "report-dark.png": "dark"}
SIZE = "1280,830"
SECONDS = 60


def main() -> int:
    """Writes the light and the dark picture beside this file."""
    browser = shutil.which("chromium") or shutil.which("chromium-browser")
    if browser is None:
        print("chromium was not found: install it, e.g. with apt-get install chromium.", file=sys.stderr)
        return 1
    page = Path(sys.argv[1]) / "report.html"
    for name, theme in SCREENS.items():
        with tempfile.TemporaryDirectory() as folder:
            # The page follows the preference of the browser, so the theme is set in the page.
            themed = Path(folder) / "report.html"
            text = page.read_text(encoding="utf-8").replace("<html ", f'<html data-theme="{theme}" ', 1)
            themed.write_text(text, encoding="utf-8")
            picture = Path(__file__).parent / name
            options = ["--headless=new", "--no-sandbox", "--disable-gpu", "--hide-scrollbars", f"--window-size={SIZE}"]
            command = [
                browser,
                *options,
                f"--user-data-dir={folder}/profile",
                f"--screenshot={picture}",
                themed.as_uri(),
            ]
            subprocess.run(command, check=True, timeout=SECONDS, stderr=subprocess.DEVNULL)
            # All colours are kept: a palette loses those of thin lines or of pale tiles.
            Image.open(picture).convert("RGB").save(picture, optimize=True)
            print(picture)
    return 0


if __name__ == "__main__":
    sys.exit(main())
