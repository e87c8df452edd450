"""Runs a server until it is told to stop; what it has accepted by then is finished."""

import ipaddress
import signal
import socket
from collections.abc import Callable

import uvicorn

from dragoman.run.errors import UsageError, UserError, describe_os_error
from dragoman.serving.access import is_loopback
from dragoman.serving.app import build_app
from dragoman.serving.served_models import ServedModels
from dragoman.serving.settings import ServeSettings

_KEEP_ALIVE_SECONDS = 15
_WAITING_CONNECTIONS = 512
_MIN_KEY_LENGTH = 8


def check_access(host: str, api_key: str | None, may_be_open: bool) -> None:
    """Fails early where everybody could use the server and nobody said that this is wanted."""
    if api_key is not None and len(api_key) < _MIN_KEY_LENGTH:
        raise UsageError(f"The API key is shorter than {_MIN_KEY_LENGTH} characters: choose a longer one.")
    if api_key is None and not may_be_open and not is_loopback(host):
        raise UsageError(
            f"Other machines can reach {host}, so translating there needs a key: give --api-key-file FILE or the "
            "variable DRAGOMAN_API_KEY, or --no-auth to let everybody in."
        )


def open_socket(host: str, port: int) -> socket.socket:
    """Opens the port; 0 takes a free one."""
    try:
        family = socket.AF_INET6 if _is_version_6(host) else socket.AF_INET
        return socket.create_server((host.strip("[]"), port), family=family, backlog=_WAITING_CONNECTIONS)
    except (OSError, OverflowError) as error:
        why = describe_os_error(error) if isinstance(error, OSError) else "there is no such port"
        raise UserError(f"The server cannot listen on {host}, port {port}: {why}. Choose another --port.") from None


def serve(models: ServedModels, settings: ServeSettings, listener: socket.socket, on_start: Callable[[], None]) -> None:
    """Answers requests until SIGTERM or SIGINT; then it accepts no more and finishes those it has."""
    config = uvicorn.Config(
        build_app(models, settings),
        log_config=None,
        access_log=False,
        server_header=False,
        date_header=False,
        timeout_keep_alive=_KEEP_ALIVE_SECONDS,
        timeout_graceful_shutdown=int(settings.max_seconds) + 1,
        lifespan="on",
    )
    server = _AnnouncedServer(config, on_start)
    # uvicorn sends itself the signal again after it has stopped, which must not end the process with an error.
    before = {number: signal.signal(number, signal.SIG_IGN) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        server.run(sockets=[listener])
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


class _AnnouncedServer(uvicorn.Server):
    """Says when it is ready."""

    def __init__(self, config: uvicorn.Config, on_start: Callable[[], None]) -> None:
        super().__init__(config)
        self._on_start = on_start

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Starts to listen."""
        await super().startup(sockets)
        self._on_start()


def _is_version_6(host: str) -> bool:
    try:
        return ipaddress.ip_address(host.strip("[]")).version == 6
    except ValueError:
        return False
