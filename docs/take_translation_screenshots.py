"""Takes pictures of the page of a server: `python docs/take_translation_screenshots.py EXPORT` (needs chromium)."""

import subprocess
import sys
import tempfile
from pathlib import Path

from PIL import Image

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "tests" / "browser"))

from chromium import Browser, started_browser  # noqa: E402 - found only now

SCREENS = {"translate-light.png": "light", "translate-dark.png": "dark"}
TEXT = "A man in a red shirt is riding a bicycle.\nTwo dogs are playing in the snow."
WORD = "#target span[data-word='2']"


def take_picture(browser: Browser, address: str, scheme: str, picture: Path) -> None:
    """Types a text, points at a word of the translation, and saves what is seen."""
    browser.open_tab()
    browser.emulate(scheme=scheme)
    browser.open(address, width=1280, height=760)
    browser.evaluate("document.getElementById('source').focus()")
    browser.ask("Input.insertText", text=TEXT)
    browser.wait_for(f"Boolean(document.querySelector(\"{WORD}\")) && !document.querySelector('#target.old')")
    place = browser.evaluate(f'document.querySelector("{WORD}").getBoundingClientRect().toJSON()')
    browser.ask("Input.dispatchMouseEvent", type="mouseMoved", x=place["left"] + 5, y=place["top"] + 5)
    browser.wait_for("document.querySelectorAll('.marked').length >= 2")
    browser.save_screenshot(picture)
    Image.open(picture).convert("RGB").save(picture, optimize=True)
    print(picture)


def main() -> int:
    """Writes the light and the dark picture beside this file."""
    command = [sys.executable, "-m", "dragoman", "serve", sys.argv[1], "--port", "0"]
    with (
        tempfile.TemporaryDirectory() as folder,
        subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as server,
    ):
        address = server.stdout.readline().split()[-1]
        with started_browser(Path(folder) / "profile") as browser:
            for name, scheme in SCREENS.items():
                take_picture(browser, address, scheme, Path(__file__).parent / name)
        server.terminate()
    return 0


if __name__ == "__main__":
    sys.exit(main())
