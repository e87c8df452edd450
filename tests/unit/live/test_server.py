"""The server of live pages: only GET, only known runs, only this machine's names; never a stack trace."""

import http.client
import re
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from run_folders import own_records, write_config, write_own_run, write_records

import dragoman.live.server as server_module
from dragoman.live.server import LiveServer
from dragoman.run.errors import UserError
from dragoman.run.folder import RunFolder
from dragoman.run.status import RunStatus, StatusFile


@contextmanager
def serving(path) -> Iterator[LiveServer]:
    with LiveServer(path, 0) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
        thread.start()
        try:
            yield server
        finally:
            server.shutdown()
            thread.join()


def ask(server: LiveServer, path: str = "/", method: str = "GET", **headers: str) -> tuple[int, str, dict[str, str]]:
    connection = http.client.HTTPConnection("127.0.0.1", server.server_address[1], timeout=30)
    with closing(connection):
        connection.request(method, path, headers=headers)
        answer = connection.getresponse()
        return answer.status, answer.read().decode(), dict(answer.getheaders())


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    folder = tmp_path_factory.mktemp("served") / "runs"
    for name, num_steps in (("a & <b>", 1_000), ("c", 600)):
        write_own_run(folder / name, own_records(num_steps))
    (folder / "not-a-run").mkdir()
    (folder.parent / "secret.txt").write_text("secret", encoding="utf-8")
    write_own_run(folder.parent / "outside", own_records(500))
    return folder


@pytest.fixture(scope="module")
def server(runs) -> Iterator[LiveServer]:
    with serving(runs) as server:
        yield server


def test_it_listens_on_loopback_only(server):
    assert server.server_address[0] == "127.0.0.1"
    assert server.address == f"http://127.0.0.1:{server.server_address[1]}/"


def test_a_folder_of_runs_has_a_card_for_each_run(server):
    status, html, _ = ask(server)
    assert status == 200
    assert 'href="runs/a%20%26%20%3Cb%3E/"' in html
    assert html.count('class="card ') == 2
    assert "<h2>a &amp; &lt;b&gt;</h2>" in html
    assert html.count("<polyline points=") == 2
    assert 'href="compare/"' in html


@pytest.mark.parametrize("path", ["/runs/a%20%26%20%3Cb%3E/", "/runs/c/"])
def test_each_run_has_the_page_of_its_report(server, path):
    status, html, _ = ask(server, path)
    assert status == 200
    assert html.count('class="answer"') == 11
    assert "connect-src 'self'" in html
    strip = ask(server, f"{path}live")[1]
    version = re.search(r'data-version="(\w+)"', html)[1]
    assert f'data-version="{version}"' in strip
    assert " data-ended" in strip
    assert 'href="../../"' in strip


def test_runs_are_compared(server):
    status, html, _ = ask(server, "/compare/")
    assert status == 200
    assert " against " in html
    assert "2 runs compared" in ask(server, "/compare/live")[1]


OUTSIDE = [
    *("/runs/../", "/runs/%2e%2e/", "/runs/..%2foutside/", "/../secret.txt", "/%2e%2e/secret.txt", "//etc/passwd"),
    *("/runs/not-a-run/", "/runs/c/config.toml", "/runs/c/../../", "/runs/c", "/compare", "/runs/c/live/", "/x"),
    *("/runs/c%00/", "/runs//", "/runs/c/metrics.jsonl", "http://127.0.0.1/etc/passwd", "/runs/" + "x" * 5_000 + "/"),
]


@pytest.mark.parametrize("path", OUTSIDE)
def test_nothing_but_known_pages_is_served(server, path):
    status, text, _ = ask(server, path)
    assert status == 404
    assert text == "404 There is no such page.\n"


@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.text(st.characters(min_codepoint=33, max_codepoint=126), max_size=40))
@example("runs/%ff/")
@example("[")
def test_any_path_is_answered_without_a_stack_trace(server, text):
    status, answer, _ = ask(server, f"/{text}")
    assert status in (200, 404)
    assert "Traceback" not in answer


@pytest.mark.parametrize("host", ["localhost", "localhost:8000", "127.0.0.1:1", "[::1]:8000", "LOCALHOST"])
def test_names_of_this_machine_are_answered(server, host):
    assert ask(server, "/live", Host=host)[0] == 200


@pytest.mark.parametrize(
    "host", ["evil.example", "127.0.0.1.evil.example", "localhost.evil.example:80", "", "[", "x@y"]
)
def test_foreign_names_are_refused(server, host):
    status, text, _ = ask(server, Host=host)
    assert status == 403
    assert "own name" in text


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "HEAD", "OPTIONS", "PATCH", "NONSENSE"])
def test_only_get_is_answered(server, method):
    assert ask(server, method=method)[0] == 501


@pytest.mark.parametrize("path", ["/", "/live", "/none"])
def test_every_answer_has_the_headers_that_protect_it(server, path):
    headers = ask(server, path)[2]
    assert headers["Cache-Control"] == "no-store"
    assert headers["X-Content-Type-Options"] == "nosniff"
    assert headers["X-Frame-Options"] == "DENY"
    assert headers["Content-Security-Policy"] == "frame-ancestors 'none'"
    assert headers["Referrer-Policy"] == "no-referrer"
    assert "Access-Control-Allow-Origin" not in headers


def test_what_has_not_changed_is_not_sent_again(server):
    _, text, headers = ask(server, "/live")
    status, again, _ = ask(server, "/live", **{"If-None-Match": headers["ETag"]})
    assert (status, again) == (304, "")
    assert text


def test_a_run_that_does_not_exist_yet_is_awaited(tmp_path):
    run = RunFolder(tmp_path / "later")
    with serving(run.path) as server:
        assert "There is no run in" in ask(server)[1]
        assert "Waiting for the run" in ask(server, "/live")[1]
        assert ask(server, "/compare/")[0] == 404
        write_config(run)
        server.runs.find()._looked_at = float("-inf")
        with StatusFile(run, RunStatus.starting(100, 2)):
            assert "No step has been logged yet" in ask(server)[1]
            strip = ask(server, "/live")[1]
            assert "Starting" in strip
            assert "data-ended" not in strip


def test_a_damaged_run_is_shown_with_a_note(tmp_path):
    run = write_own_run(tmp_path / "run", own_records(500))
    with serving(run.path) as server:
        page = server.runs.find()
        assert ask(server)[0] == 200
        good = page.page()
        page._builder._build = lambda: 1 / 0
        write_records(run, own_records(600))
        page._builder._next = 0.0
        page._looked_at = float("-inf")
        page.strip()
        while page._builder._is_building:
            time.sleep(0.005)
        page._looked_at = float("-inf")
        strip = ask(server, "/live")[1]
        assert "cannot be read (ZeroDivisionError). This page shows the run as it was at " in strip
        assert page.page() is good
        assert f'data-version="{good.version}"' in strip


def test_a_status_of_another_format_is_a_note(tmp_path):
    run = write_own_run(tmp_path / "run", own_records(500))
    with serving(run.path) as server:
        assert ask(server)[0] == 200
        run.status.write_text("{", encoding="utf-8")
        server.runs.find()._looked_at = float("-inf")
        status, strip, _ = ask(server, "/live")
        assert status == 200
        assert "is not valid JSON" in strip


def test_a_used_port_is_named(server, tmp_path):
    port = server.server_address[1]
    with pytest.raises(UserError, match=f"cannot be served on port {port}: .*Choose another --port"):
        LiveServer(tmp_path, port)


def test_idle_connections_do_not_take_all_threads_for_ever(tmp_path, monkeypatch):
    monkeypatch.setattr(server_module, "MAX_CONNECTIONS", 2)
    monkeypatch.setattr(server_module._Handler, "timeout", 0.2)
    with serving(tmp_path / "none") as server:
        idle = [socket.create_connection(("127.0.0.1", server.server_address[1])) for _ in range(6)]
        assert threading.active_count() < 20
        for connection in idle:
            connection.settimeout(20)
            assert connection.recv(1) == b"", "refused at once, or after the time for a request"
            connection.close()
        assert ask(server)[0] == 200
