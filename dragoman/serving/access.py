"""Who may use a server: the API key, names of this machine, pages of other sites; and the headers of every answer."""

import hmac
import ipaddress
import time
from collections.abc import Awaitable, Callable, MutableMapping
from contextlib import suppress
from typing import Any
from urllib.parse import urlsplit

from starlette.datastructures import Headers, MutableHeaders
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from dragoman.serving.metrics import ServerMetrics
from dragoman.serving.request_body import RefusedRequestError
from dragoman.serving.settings import ServeSettings

Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
AsgiApp = Callable[[MutableMapping[str, Any], Receive, Send], Awaitable[None]]

_HEADERS = {
    "Cache-Control": "no-store",
    "Content-Security-Policy": "default-src 'none'; frame-ancestors 'none'",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
}
PAGE_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
_OPEN_HEADERS = {
    "Access-Control-Allow-Origin": "*",
    "Access-Control-Allow-Headers": "Authorization, Content-Type",
    "Access-Control-Allow-Methods": "GET, POST",
    "Access-Control-Expose-Headers": "Retry-After",
    "Access-Control-Max-Age": "86400",
}
_DISCONNECTED = 499
"""The status that nginx logs for a client that has gone; it is only counted, never sent."""


def require_key(request: Request, settings: ServeSettings, sent: str | None = None) -> None:
    """Refuses a request without the right key; `sent` is the one among its parameters."""
    if settings.api_key is None:
        return
    key = sent or request.query_params.get("api_key") or _authorization(request.headers)
    if not key:
        raise RefusedRequestError(400, "Please contact the server operator to get an API key")
    # Surrogates cannot be encoded otherwise; they are in no key.
    if not hmac.compare_digest(key.encode("utf-8", "replace"), settings.api_key.encode()):
        raise RefusedRequestError(403, "Invalid API key")


def _authorization(headers: Headers) -> str:
    """Returns the key of a header "Authorization: Bearer KEY", also without its first word."""
    value = headers.get("authorization", "").strip()
    with suppress(UnicodeDecodeError):
        value = value.encode("latin-1").decode()  # most clients send UTF-8, which arrives as Latin-1
    scheme, _, rest = value.partition(" ")
    return rest.strip() if scheme.lower() == "bearer" else value


def is_loopback(name: str) -> bool:
    """Whether a name or an address always means the machine itself."""
    try:
        return ipaddress.ip_address(name.strip("[]")).is_loopback
    except ValueError:
        return name.lower().rstrip(".") == "localhost"


def refuse_strangers(headers: Headers, settings: ServeSettings) -> str | None:
    """Says why a request is refused because of where it comes from; None if it is not.

    A server without a key must not answer pages of other sites, which the browser of a user would let in: neither
    under a foreign name that was made to lead to this machine, nor by a request across sites. A person who follows a
    link gets in: the page that has the link sees nothing of the answer, and browsers send forms with an origin. Where
    there is a key, only its owners get in.
    """
    if settings.api_key is not None:
        return None
    host = _host_name(headers.get("host", ""))
    if settings.is_local and not is_loopback(host):
        return "Only requests to this machine by its own name are answered."
    origin = headers.get("origin")
    is_foreign = origin is not None and _host_and_port(origin) != headers.get("host", "").lower()
    is_link = headers.get("sec-fetch-mode") == "navigate" and headers.get("sec-fetch-dest") == "document"
    if is_foreign or (headers.get("sec-fetch-site") in ("cross-site", "same-site") and not is_link):
        return "Pages of other sites may use this server only if it has an API key."
    return None


def _host_and_port(origin: str) -> str | None:
    """Returns host and port of an origin; None if it has none, e.g. for "null"."""
    try:
        return urlsplit(origin).netloc.lower() or None
    except ValueError:
        return None


def _host_name(host: str) -> str:
    try:
        return urlsplit(f"//{host}").hostname or ""
    except ValueError:
        return ""


class Gate:
    """Stands before the whole application: refuses strangers, adds headers, counts and times the answers."""

    def __init__(self, app: AsgiApp, settings: ServeSettings, metrics: ServerMetrics) -> None:
        self._app, self._settings, self._metrics = app, settings, metrics

    async def __call__(self, scope: MutableMapping[str, Any], receive: Receive, send: Send) -> None:
        """Handles one request."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        begin = time.perf_counter()
        status = _DISCONNECTED
        if scope["method"] == "HEAD":
            scope = {**scope, "method": "GET"}  # uvicorn leaves out the body of the answer

        async def send_with_headers(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                self._add_headers(MutableHeaders(scope=message))
            await send(message)

        try:
            await self._choose(scope)(scope, receive, send_with_headers)
        finally:
            path = _path_of_route(scope)
            self._metrics.requests.labels(path, str(status)).inc()
            self._metrics.seconds.labels(path).observe(time.perf_counter() - begin)

    def _choose(self, scope: MutableMapping[str, Any]) -> AsgiApp:
        headers = Headers(scope=scope)
        reason = refuse_strangers(headers, self._settings)
        if reason is not None:
            return JSONResponse({"error": reason}, 403)
        if scope["method"] == "OPTIONS" and self._settings.api_key is not None and "origin" in headers:
            return Response(status_code=204)
        return self._app

    def _add_headers(self, headers: MutableHeaders) -> None:
        for name, value in _HEADERS.items():
            headers.setdefault(name, value)
        if self._settings.api_key is not None:
            headers.update(_OPEN_HEADERS)
        else:
            headers["Cross-Origin-Resource-Policy"] = "same-origin"


def _path_of_route(scope: MutableMapping[str, Any]) -> str:
    """Returns the path of a known address; all others count as one, or a stranger could fill the memory."""
    return str(getattr(scope.get("route"), "path", "other"))
