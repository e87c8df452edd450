"""Serves live pages to browsers on this machine: only GET, only known runs, nothing from the file system itself."""

import hashlib
import re
import sys
import threading
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from socketserver import TCPServer
from typing import Any
from urllib.parse import unquote, urlsplit

from dragoman.live.live_page import MAX_BUILDS, LivePage
from dragoman.live.run_page import RunPage
from dragoman.live.runs_page import ComparisonPage, RunsPage, find_runs
from dragoman.run.errors import UserError, describe_os_error
from dragoman.run.folder import RunFolder

HOST = "127.0.0.1"
OWN_NAMES = ("127.0.0.1", "localhost", "::1")
"""Names of this machine in requests. A page of the internet whose name was made to lead here has another name."""
MAX_CONNECTIONS = 16
_SLOW_SECONDS = 10.0
"""A browser that needs longer for its request is disconnected."""
_ROUTE = re.compile(r"/(?:(compare)/|runs/([^/]+)/)?(live)?")
_HEADERS = {
    "Cache-Control": "no-store",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
}


class WatchedRuns:
    """The pages of a run, or of all runs in a folder."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._slots = threading.BoundedSemaphore(MAX_BUILDS)
        self._lock = threading.Lock()
        self._pages: dict[str, RunPage] = {}
        self._run_page = RunPage(RunFolder(path), self._slots)
        self._runs_page = RunsPage(path, self._find_pages)
        self._comparison = ComparisonPage(self._find_pages, self._slots)

    def find(self, name: str | None = None, is_comparison: bool = False) -> LivePage | None:
        """Returns the page of a run by the name of its folder, the comparison, or the first page; None if unknown."""
        # Looked at again each time: what is to be watched may not exist yet.
        if RunFolder(self._path).exists or not self._find_pages():
            return None if name or is_comparison else self._run_page
        if is_comparison:
            return self._comparison
        return self._find_pages().get(name) if name else self._runs_page

    def _find_pages(self) -> dict[str, RunPage]:
        """Returns the page of each run in the folder by name; names of requests are only looked up in here."""
        runs = {run.path.name: run for run in find_runs(self._path)}
        with self._lock:
            for name in [name for name in self._pages if name not in runs]:
                self._pages.pop(name).close()
            links = [("../../", "All runs")]
            self._pages = {
                name: self._pages.get(name) or RunPage(run, self._slots, links) for name, run in runs.items()
            }
            return dict(self._pages)

    def close(self) -> None:
        """Closes the files of all runs."""
        with self._lock:
            for page in (self._run_page, *self._pages.values()):
                page.close()


class LiveServer(ThreadingHTTPServer):
    """Answers each request in a thread of its own, and refuses more requests at once than it has threads."""

    daemon_threads = True

    def __init__(self, path: Path, port: int) -> None:
        """Opens the port; 0 takes a free one."""
        self.runs = WatchedRuns(path)
        self._free_threads = threading.BoundedSemaphore(MAX_CONNECTIONS)
        try:
            super().__init__((HOST, port), _Handler)
        except (OSError, OverflowError) as error:
            why = describe_os_error(error) if isinstance(error, OSError) else "there is no such port"
            raise UserError(f"The page cannot be served on port {port}: {why}. Choose another --port.") from None

    @property
    def address(self) -> str:
        """The address of the first page."""
        return f"http://{HOST}:{self.server_address[1]}/"

    def server_bind(self) -> None:
        """Binds the port without asking a name server for this machine's name, which may take long."""
        TCPServer.server_bind(self)
        self.server_name, self.server_port = HOST, self.server_address[1]

    def server_close(self) -> None:
        """Closes the port and the files of the runs."""
        super().server_close()
        self.runs.close()

    def process_request(self, request: Any, client_address: Any) -> None:
        """Starts a thread for the request if one is free."""
        if self._free_threads.acquire(blocking=False):
            super().process_request(request, client_address)
        else:
            self.shutdown_request(request)

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        """Answers the request."""
        try:
            super().process_request_thread(request, client_address)
        finally:
            self._free_threads.release()

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Ignores browsers that hang up; names other errors in one line."""
        error = sys.exception()
        if not isinstance(error, OSError):
            print(f"A request failed: {type(error).__name__}: {error}", file=sys.stderr, flush=True)


class _Handler(BaseHTTPRequestHandler):
    """Answers one request; the base class refuses all methods but GET."""

    server: LiveServer
    server_version, sys_version = "dragoman", ""
    timeout = _SLOW_SECONDS
    error_content_type = "text/plain; charset=utf-8"
    error_message_format = "%(code)d %(message)s\n"

    def do_GET(self) -> None:
        """Sends a page or its strip."""
        if not self._is_meant_for_us():
            self.send_error(HTTPStatus.FORBIDDEN, "Only requests to this machine by its own name are answered.")
            return
        match = _ROUTE.fullmatch(urlsplit(self.path).path)
        name = unquote(match[2]) if match and match[2] else None
        page = self.server.runs.find(name, is_comparison=match[1] is not None) if match else None
        if match is None or page is None:
            self.send_error(HTTPStatus.NOT_FOUND, "There is no such page.")
        elif match[3]:
            self._send(str(page.strip().render()))
        else:
            self._send(page.page().with_strip(page.strip()))

    def _is_meant_for_us(self) -> bool:
        """Whether the request names this machine: a foreign name would be a page that wants to read ours."""
        try:
            return urlsplit(f"//{self.headers.get('Host', '')}").hostname in OWN_NAMES
        except ValueError:
            return False

    def _send(self, html: str) -> None:
        body = html.encode("utf-8", "replace")
        tag = f'"{hashlib.sha256(body).hexdigest()[:32]}"'
        is_known = self.headers.get("If-None-Match") == tag
        self.send_response(HTTPStatus.NOT_MODIFIED if is_known else HTTPStatus.OK)
        self.send_header("ETag", tag)
        self.send_header("Content-Type", "text/html; charset=utf-8")
        self.send_header("Content-Length", "0" if is_known else str(len(body)))
        self.end_headers()
        if not is_known:
            self.wfile.write(body)

    def end_headers(self) -> None:
        """Adds the headers that every answer has."""
        for name, value in _HEADERS.items():
            self.send_header(name, value)
        self.send_header("Content-Security-Policy", "frame-ancestors 'none'")
        super().end_headers()

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 the name is given
        """Writes no line for each request."""
