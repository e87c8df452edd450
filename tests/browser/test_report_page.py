"""The page of a report in a real browser: no errors, no requests, values under the pointer, light, dark and print."""

import base64
import json
import os
import select
import shutil
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import matplotlib.image
import pytest
from sample_report import hostile_report, sample_comparison, sample_report

from dragoman.report.rendering import render_page

BROWSER = shutil.which("chromium") or shutil.which("chromium-browser")
LONGEST_SECONDS = 60
HOVER_TEXT = "document.querySelector('.hover')?.innerText"
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(BROWSER is None, reason="needs the browser chromium, which is not installed"),
]


class Browser:
    """Chromium, controlled over a pair of pipes with the protocol of its developer tools; one tab at a time."""

    def __init__(self, reading: int, writing: int) -> None:
        self.reading, self.writing = reading, writing
        self.received, self.num_sent, self.session, self.tab = b"", 0, "", ""
        self.events: list[dict[str, Any]] = []
        self.ends_at = time.monotonic() + LONGEST_SECONDS

    def open_tab(self) -> None:
        """Opens an empty tab with default settings, and closes the one before."""
        self.ends_at = time.monotonic() + LONGEST_SECONDS
        before, self.session = self.tab, ""
        self.tab = self.ask("Target.createTarget", url="about:blank")["targetId"]
        if before:
            self.ask("Target.closeTarget", targetId=before)
        self.session = self.ask("Target.attachToTarget", targetId=self.tab, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.ask(f"{domain}.enable")

    def ask(self, method: str, **parameters: Any) -> dict[str, Any]:
        self.num_sent += 1
        message = {"id": self.num_sent, "method": method, "params": parameters}
        if self.session:
            message["sessionId"] = self.session
        os.write(self.writing, json.dumps(message).encode() + b"\0")
        while (answer := self.receive()).get("id") != self.num_sent:
            self.events.append(answer)
        assert "error" not in answer, answer
        return answer["result"]

    def receive(self) -> dict[str, Any]:
        while b"\0" not in self.received:
            is_ready, _, _ = select.select([self.reading], [], [], max(0.0, self.ends_at - time.monotonic()))
            assert is_ready, "the browser takes too long"
            chunk = os.read(self.reading, 1 << 20)
            assert chunk, "the browser ended"
            self.received += chunk
        message, self.received = self.received.split(b"\0", 1)
        return json.loads(message)

    def open(self, path: Path, width: int = 1280, height: int = 900) -> None:
        self.ask("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=False)
        self.events.clear()
        self.ask("Page.navigate", url=path.as_uri())
        while not any(event.get("method") == "Page.loadEventFired" for event in self.events):
            self.events.append(self.receive())

    def evaluate(self, expression: str) -> Any:
        return self.ask("Runtime.evaluate", expression=expression, returnByValue=True)["result"].get("value")

    def wait_for(self, expression: str) -> Any:
        """Evaluates until the value is true: events of a page are handled some time after they were sent."""
        while not (value := self.evaluate(expression)):
            assert time.monotonic() < self.ends_at, expression
            time.sleep(0.02)
        return value

    def complaints(self) -> list[dict[str, Any]]:
        bad = ("Log.entryAdded", "Runtime.exceptionThrown", "Runtime.consoleAPICalled", "Page.javascriptDialogOpening")
        return [event for event in self.events if event.get("method") in bad]

    def requests(self) -> list[str]:
        sent = (event for event in self.events if event.get("method") == "Network.requestWillBeSent")
        return [event["params"]["request"]["url"] for event in sent]

    def emulate(self, media: str = "", scheme: str = "light") -> None:
        features = [{"name": "prefers-color-scheme", "value": scheme}]
        self.ask("Emulation.setEmulatedMedia", media=media, features=features)

    def save_screenshot(self, path: Path) -> None:
        path.write_bytes(base64.b64decode(self.ask("Page.captureScreenshot", format="png")["data"]))


@contextmanager
def started_browser(folder: Path) -> Iterator[Browser]:
    """Starts Chromium with its own profile and without any host; it expects its pipes as file descriptors 3 and 4."""
    to_browser, from_browser = os.pipe(), os.pipe()
    arguments = ["--headless=new", "--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-background-networking"]
    arguments += ["--host-resolver-rules=MAP * ~NOTFOUND", f"--user-data-dir={folder}", "--remote-debugging-pipe"]
    shell = ["bash", "-c", f'exec "$@" 3<&{to_browser[0]} 4>&{from_browser[1]}', "bash", str(BROWSER), *arguments]
    quiet = {"stdin": subprocess.DEVNULL, "stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    process = subprocess.Popen(shell, pass_fds=(to_browser[0], from_browser[1]), **quiet)
    os.close(to_browser[0])
    os.close(from_browser[1])
    try:
        browser = Browser(from_browser[0], to_browser[1])
        yield browser
        browser.session = ""
        browser.ask("Browser.close")
        process.wait(timeout=20)
    finally:
        process.kill()
        process.wait()
        os.close(to_browser[1])
        os.close(from_browser[0])


@pytest.fixture(scope="module")
def pages(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("pages")
    reports = {"sample": sample_report(), "comparison": sample_comparison(), "hostile": hostile_report()}
    for name, report in reports.items():
        (folder / f"{name}.html").write_text(render_page(report), encoding="utf-8")
    return {name: folder / f"{name}.html" for name in reports}


@pytest.fixture(scope="module")
def one_browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    with started_browser(tmp_path_factory.mktemp("browser") / "profile") as browser:
        yield browser


@pytest.fixture
def browser(one_browser: Browser) -> Browser:
    one_browser.open_tab()
    return one_browser


@pytest.mark.parametrize("name", ["sample", "comparison", "hostile"])
@pytest.mark.parametrize("width", [1280, 375])
def test_a_page_has_no_errors_makes_no_request_and_fits_the_screen(browser, pages, name, width):
    browser.open(pages[name], width)
    assert browser.evaluate("document.documentElement.scrollWidth") <= width
    assert browser.evaluate("document.querySelectorAll('figure svg').length") > 0
    assert browser.complaints() == []
    assert [url for url in browser.requests() if url not in (pages[name].as_uri(), "data:,")] == []


def test_hostile_text_makes_no_element(browser, pages):
    browser.open(pages["hostile"])
    assert browser.evaluate("document.querySelectorAll('img, [onerror]').length") == 0
    assert browser.evaluate("document.querySelectorAll('script').length") == 2
    assert browser.evaluate("document.body.textContent.includes('<script>alert(1)</script>')") is True


def chart_centre(browser: Browser, key: str) -> tuple[float, float]:
    chart = f"document.querySelector('figure[data-chart={key}] svg')"
    browser.evaluate(f"document.documentElement.style.scrollBehavior = 'auto'; {chart}.scrollIntoView()")
    box = browser.evaluate(f"JSON.stringify({chart}.getBoundingClientRect())")
    size = json.loads(box)
    return size["x"] + size["width"] / 2, size["y"] + size["height"] / 2


def test_values_under_the_pointer(browser, pages):
    browser.open(pages["sample"])
    x, y = chart_centre(browser, "bleu")
    browser.ask("Input.dispatchMouseEvent", type="mouseMoved", x=x, y=y)
    text = browser.wait_for(HOVER_TEXT)
    assert "step: 60,000" in text
    assert "newstest2013\n24.4" in text
    assert "newstest2014\n25.6" in text
    browser.ask("Input.dispatchMouseEvent", type="mouseMoved", x=2, y=2)
    browser.wait_for("document.querySelector('.hover') === null")


def test_values_by_keyboard(browser, pages):
    browser.open(pages["sample"])
    browser.evaluate("document.querySelector('figure[data-chart=bleu] svg').focus()")
    for _ in range(2):
        browser.ask("Input.dispatchKeyEvent", type="keyDown", key="ArrowRight")
    browser.wait_for(f"({HOVER_TEXT} || '').includes('step: 20,000')")


def test_hostile_names_are_shown_as_text_under_the_pointer(browser, pages):
    browser.open(pages["hostile"])
    x, y = chart_centre(browser, "evil")
    browser.ask("Input.dispatchMouseEvent", type="mouseMoved", x=x - 100, y=y)
    assert "<img src=x onerror=alert(2)>" in browser.wait_for(HOVER_TEXT)
    assert browser.complaints() == []


def paper_and_ink(browser: Browser) -> tuple[str, str]:
    return tuple(browser.evaluate(f"getComputedStyle(document.body).{name}") for name in ("backgroundColor", "color"))


def test_dark_where_preferred_or_chosen_and_light_in_print(browser, pages):
    browser.open(pages["sample"])
    light = paper_and_ink(browser)
    browser.emulate(scheme="dark")
    dark = paper_and_ink(browser)
    assert light[0] == "rgb(255, 255, 255)"
    assert dark[0] != light[0]
    assert dark[1] != light[1]
    browser.evaluate("document.getElementById('theme').click()")
    assert paper_and_ink(browser) == light
    browser.evaluate("document.getElementById('theme').click()")
    assert paper_and_ink(browser) == dark
    browser.emulate(media="print", scheme="dark")
    assert paper_and_ink(browser) == light


def test_print_shows_folded_text(browser, pages):
    browser.open(pages["sample"])
    assert browser.evaluate("document.querySelectorAll('details[open]').length") == 0
    browser.evaluate(
        "addEventListener('beforeprint', () => { window.opened = document.querySelectorAll('details[open]').length })"
    )
    pdf = base64.b64decode(browser.ask("Page.printToPDF")["data"])
    assert pdf.startswith(b"%PDF")
    assert browser.evaluate("window.opened") == 1
    browser.wait_for("document.querySelectorAll('details[open]').length === 0")


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_the_page_is_drawn_in_the_right_colours(browser, pages, tmp_path, scheme):
    browser.emulate(scheme=scheme)
    browser.open(pages["sample"])
    chart_centre(browser, "forecast")
    browser.save_screenshot(tmp_path / "page.png")
    picture = matplotlib.image.imread(tmp_path / "page.png")[..., :3]
    paper = picture[5, 5]
    share_drawn = (abs(picture - paper).max(axis=2) > 0.1).mean()
    assert (paper.mean() > 0.5) == (scheme == "light")
    assert 0.01 < share_drawn < 0.5
