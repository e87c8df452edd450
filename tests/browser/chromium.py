"""Chromium for tests, controlled over a pair of pipes."""

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

import pytest

BROWSER = shutil.which("chromium") or shutil.which("chromium-browser")
LONGEST_SECONDS = 60
MARKS = [
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

    def open(self, address: str, width: int = 1280, height: int = 900) -> None:
        self.ask("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=False)
        self.events.clear()
        self.ask("Page.navigate", url=address)
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
    arguments += ["--disable-quic", "--disable-component-update", "--disable-sync"]
    arguments += [
        "--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE 127.0.0.1",
        f"--user-data-dir={folder}",
        "--remote-debugging-pipe",
    ]
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
