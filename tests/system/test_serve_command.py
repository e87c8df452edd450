"""`dragoman serve` as a person starts it: clients, signals, ports, keys, models that cannot be loaded."""

import json
import os
import signal
import socket
import subprocess
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil
import pytest
from libretranslatepy import LibreTranslateAPI
from program import call_dragoman, dragoman_command
from tiny_exports import write_tiny_export

KEY = "a key for tests"
ENVIRONMENT = {name: value for name, value in os.environ.items() if name != "DRAGOMAN_API_KEY"}


class Server:
    """A server that runs; what it says on standard error is read once it has ended."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self.process = process
        line = process.stdout.readline()
        assert line.startswith("Translate at http://"), line + process.stderr.read()
        self.address = line.split()[-1]

    def post(self, path: str, **fields: object) -> dict:
        body = json.dumps(fields).encode()
        request = urllib.request.Request(self.address + path, body, {"Content-Type": "application/json"})
        with urllib.request.urlopen(request, timeout=60) as answer:
            return json.loads(answer.read())

    def stop(self, number: signal.Signals = signal.SIGTERM) -> str:
        self.process.send_signal(number)
        _, said = self.process.communicate(timeout=60)
        assert self.process.returncode == 0, said
        return said


@contextmanager
def served(*arguments: object, environment: dict[str, str] | None = None) -> Iterator[Server]:
    command = dragoman_command("serve", *arguments, "--port", 0)
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    with subprocess.Popen(command, env=ENVIRONMENT | (environment or {}), **pipes) as process:
        try:
            yield Server(process)
        finally:
            process.kill()


@pytest.fixture(scope="module")
def export(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_export(tmp_path_factory.mktemp("serve") / "en-de")


def test_libretranslates_client_works_unchanged_and_the_server_ends_cleanly(export, tmp_path):
    with served(export, tmp_path / "missing", environment={"DRAGOMAN_API_KEY": KEY}) as server:
        client = LibreTranslateAPI(server.address, api_key=KEY)
        assert client.languages()[0] == {"code": "en", "name": "English", "targets": ["de"]}
        assert isinstance(client.translate("the cat", "en", "de"), str)
        assert client.detect("This is a sentence in English, which is easy to see.")[0]["language"] == "en"
        with pytest.raises(urllib.error.HTTPError) as refusal:
            LibreTranslateAPI(server.address, api_key="wrong").translate("the cat", "en", "de")
        assert refusal.value.code == 403
        assert not any("torch" in each.path for each in psutil.Process(server.process.pid).memory_maps())
        said = server.stop(signal.SIGINT)
    assert f"{tmp_path / 'missing'} is not served: There is no" in said
    assert "Traceback" not in said


def test_sigterm_finishes_what_was_accepted(export):
    with served(export, "--workers", 1) as server:
        answers: list[dict] = []
        text = "the cat sat on a mat\n" * 200

        def ask() -> None:
            answers.append(server.post("translate", q=text, source="en", target="de", alternatives=5))

        threads = [threading.Thread(target=ask) for _ in range(2)]
        for thread in threads:
            thread.start()
        while b"dragoman_waiting_lines 0.0" in urllib.request.urlopen(server.address + "metrics").read():
            assert not answers, "the text is too short for this test"
            time.sleep(0.005)
        server.process.send_signal(signal.SIGTERM)
        for thread in threads:
            thread.join(timeout=60)
        assert [answer["translatedText"].count("\n") for answer in answers] == [200, 200]
        assert server.process.wait(timeout=60) == 0


def test_a_client_that_sends_nonsense_or_nothing_does_not_disturb_others(export):
    with served(export) as server:
        host, port = server.address.removeprefix("http://").rstrip("/").split(":")
        for nonsense in (
            b"\x00\xff\r\n\r\n",
            b"GET / HTTP/9\r\n\r\n",
            b"POST /translate HTTP/1.1\r\nHost: localhost\r\n",
        ):
            with socket.create_connection((host, int(port))) as connection:
                connection.sendall(nonsense)
        large = b"POST /translate HTTP/1.1\r\nHost: localhost\r\nContent-Length: 10485760\r\n\r\n"
        with socket.create_connection((host, int(port)), timeout=30) as connection:
            connection.sendall(large)
            assert connection.recv(100).startswith(b"HTTP/1.1 413")
        with pytest.raises(urllib.error.HTTPError) as refusal:  # also a client that sends all before it reads
            server.post("translate", q="x" * 10 * 2**20, source="en", target="de")
        assert refusal.value.code == 413
        assert server.post("translate", q="the cat", source="en", target="de")["translatedText"]
        server.stop()


def test_wrong_usage_is_explained_in_a_sentence(export, tmp_path, monkeypatch):
    monkeypatch.delenv("DRAGOMAN_API_KEY", raising=False)
    done = call_dragoman("serve", export, "--host", "0.0.0.0", "--port", 0, code=2)
    assert "needs a key: give --api-key-file FILE" in done.stderr
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        done = call_dragoman("serve", export, "--port", port, code=1)
    assert f"cannot listen on 127.0.0.1, port {port}" in done.stderr
    done = call_dragoman("serve", tmp_path, "--port", 0, code=1)
    assert f"{tmp_path} is not served: " in done.stderr
    assert done.stderr.count("\n") == 2
    done = call_dragoman("serve", export, "--api-key-file", tmp_path / "none", code=1)
    assert "cannot be read: there is no such file" in done.stderr
    for wrong in ("en", "en-", "en-zh-Hant"):
        done = call_dragoman("serve", export, "--languages", wrong, code=2)
        assert f"--languages {wrong}: give the codes" in done.stderr
    done = call_dragoman("serve", export, "--no-auth", "--api-key", KEY, code=2)
    assert "--no-auth" in done.stderr


@pytest.mark.slow
def test_a_run_is_exported_by_itself_and_served(run_copy):
    with served(run_copy, "--quantization", "int8", "--languages", "en-de") as server:
        answer = server.post("translate", q="The dog sleeps.", source="auto", target="de")
        assert answer["detectedLanguage"]["language"] == "en"
        said = server.stop()
    assert "Exporting" in said
    with served(run_copy, "--quantization", "int8", "--languages", "en-de") as server:
        assert "Exporting" not in server.stop()
