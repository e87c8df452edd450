"""The page of `dragoman serve` in a real browser."""

import json
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from chromium import MARKS, Browser
from program import dragoman_command
from tiny_exports import write_tiny_export

pytestmark = MARKS
KEY = "a key for tests"
TRANSLATION = "document.getElementById('target').textContent.slice(0, -1)"
IS_DONE = f"{TRANSLATION} && !document.querySelector('#target.old')"
MARKED = "[...document.querySelectorAll('{} .marked')].map((word) => word.textContent)"


@contextmanager
def served(*arguments: object) -> Iterator[str]:
    command = dragoman_command("serve", *arguments, "--port", 0, "--workers", 1)
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        try:
            line = process.stdout.readline()
            assert "http://127.0.0.1:" in line, line + process.stderr.read()
            yield line.split()[-1]
            process.send_signal(signal.SIGTERM)
            assert process.wait(timeout=60) == 0
        finally:
            process.kill()


@pytest.fixture(scope="module")
def exports(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    folder = tmp_path_factory.mktemp("served")
    return [write_tiny_export(folder / "en-de"), write_tiny_export(folder / "de-fr", ("de", "fr"), seed=1)]


@pytest.fixture(scope="module")
def address(exports) -> Iterator[str]:
    with served(*exports) as address:
        yield address


def type_text(browser: Browser, text: str, place: str = "source") -> None:
    browser.evaluate(f"document.getElementById('{place}').focus()")
    browser.ask("Input.insertText", text=text)


def press(browser: Browser, key: str) -> None:
    for kind in ("rawKeyDown", "keyUp"):
        browser.ask(
            "Input.dispatchKeyEvent", type=kind, key=key, code=key, windowsVirtualKeyCode={"Tab": 9}.get(key, 39)
        )


def point_at(browser: Browser, selector: str) -> None:
    box = f"document.querySelector('{selector}').getBoundingClientRect().toJSON()"
    place = browser.evaluate(box)
    x, y = place["left"] + place["width"] / 2, place["top"] + place["height"] / 2
    browser.ask("Input.dispatchMouseEvent", type="mouseMoved", x=x, y=y)


def test_text_is_translated_as_one_stops_typing(browser, address):
    browser.open(address)
    for letter in "the cat":
        type_text(browser, letter)
    browser.wait_for(IS_DONE)
    assert browser.evaluate("document.querySelectorAll('#alternatives li').length") >= 1
    assert len([url for url in browser.requests() if url.endswith("/translate")]) < len("the cat")
    assert browser.evaluate("document.getElementById('source').lang") == "en"
    assert "12.3" in browser.evaluate("document.getElementById('facts').textContent")
    assert browser.evaluate("document.querySelector('#facts b')") is None
    assert all(url.startswith(address) for url in browser.requests())
    assert browser.complaints() == []


def test_words_that_belong_together_are_marked_both_ways_by_mouse_and_keyboard(browser, address):
    browser.open(address)
    type_text(browser, "the cat sat\n\non a mat")
    browser.wait_for(IS_DONE)
    point_at(browser, "#target span")
    browser.wait_for(f"{MARKED.format('#target')}.length === 1 && {MARKED.format('#mirror')}.length >= 1")
    point_at(browser, "#mirror span")
    browser.wait_for(f"{MARKED.format('#mirror')}.join() === 'the'")
    point_at(browser, "h1")
    browser.wait_for(f"{MARKED.format('body')}.length === 0")
    browser.evaluate("document.getElementById('target').focus()")
    press(browser, "ArrowRight")
    first = browser.wait_for(f"{MARKED.format('#target')}.join()")
    assert first == browser.evaluate("document.querySelector('#target span').textContent")
    assert browser.complaints() == []


def test_the_keyboard_reaches_everything_in_order(browser, address):
    browser.open(address)
    browser.wait_for("document.querySelectorAll('#pair option').length === 2")
    type_text(browser, "the cat")
    browser.wait_for(IS_DONE)
    reached = []
    for _ in range(5):
        press(browser, "Tab")
        reached.append(browser.evaluate("document.activeElement.id || document.activeElement.tagName"))
    assert reached[:2] == ["copy", "target"]
    assert "SUMMARY" in reached


def test_another_pair_translates_again_with_another_model(browser, address):
    browser.open(address)
    type_text(browser, "the cat")
    browser.wait_for(IS_DONE)
    before = browser.evaluate(TRANSLATION)
    browser.evaluate(
        "const p = document.getElementById('pair'); p.value = 'de fr'; p.dispatchEvent(new Event('change'))"
    )
    browser.wait_for(f"{TRANSLATION} !== {json.dumps(before)}")
    assert browser.evaluate("document.getElementById('target').lang") == "fr"


def test_markup_in_text_stays_text_and_empty_text_clears(browser, address):
    browser.open(address)
    type_text(browser, "<img src=x onerror=alert(1)> the cat")
    browser.wait_for(IS_DONE)
    assert browser.evaluate("document.querySelectorAll('img').length") == 0
    browser.evaluate("const s = document.getElementById('source'); s.value = ''; s.dispatchEvent(new Event('input'))")
    browser.wait_for(f"{TRANSLATION} === '' && document.getElementById('others').hidden")
    assert browser.complaints() == []


def test_copy_puts_the_translation_on_the_clipboard(browser, address):
    browser.open(address)
    type_text(browser, "the cat")
    browser.wait_for(IS_DONE)
    browser.evaluate(
        "Object.defineProperty(navigator, 'clipboard', {value: {writeText: async (text) => { window.copied = text; }}})"
    )
    browser.evaluate("document.getElementById('copy').click()")
    browser.wait_for(f"window.copied === {TRANSLATION} && document.getElementById('copy').textContent === 'Copied'")


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [320, 1280])
def test_the_page_fits_a_phone_and_both_schemes(browser, address, scheme, width):
    browser.emulate(scheme=scheme)
    browser.open(address, width=width, height=700)
    type_text(browser, "the cat sat on a mat " * 8)
    browser.wait_for(IS_DONE)
    assert browser.evaluate("document.documentElement.scrollWidth") <= width
    is_dark = browser.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(20, 23, 26)"
    assert is_dark == (scheme == "dark")
    style = "getComputedStyle(document.getElementById('{}'))[name]"
    names = "['width', 'fontSize', 'lineHeight', 'paddingLeft']"
    assert browser.evaluate(f"{names}.every((name) => {style.format('source')} === {style.format('mirror')})")


def test_a_server_with_a_key_asks_for_it(browser, exports, tmp_path):
    (tmp_path / "key").write_text(KEY)
    with served(exports[0], "--api-key-file", tmp_path / "key") as address:
        browser.open(address)
        type_text(browser, "the cat")
        browser.wait_for("document.getElementById('message').textContent.includes('API key')")
        type_text(browser, KEY, "key")
        browser.evaluate("document.getElementById('source').focus()")
        browser.wait_for(IS_DONE)
        browser.wait_for("!document.getElementById('facts').hidden")


def test_the_page_of_the_api_needs_nothing_from_elsewhere(browser, address):
    browser.open(address + "docs")
    assert "POST /translate" in browser.evaluate("document.body.textContent")
    assert all(url.startswith(address) for url in browser.requests())
    assert browser.complaints() == []
