"""The command `serve`: translation over HTTP."""

import os
import re
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated, Literal

import typer

from dragoman.cli.help_text import add_command
from dragoman.cli.model_options import BeamSize, Checkpoint
from dragoman.cli.output import say, warn
from dragoman.run.errors import UsageError, UserError, describe_os_error

KEY_VARIABLE = "DRAGOMAN_API_KEY"
Quantization = Literal["int8", "int8_float32", "float16"]
_MAX_KEY_BYTES = 4096


def add_serve_command(app: typer.Typer) -> None:
    """Adds the command of this file to the command line."""
    add_command(
        app,
        serve,
        "dragoman serve runs/demo",
        "dragoman serve exports/en-de exports/de-en --port 8080",
        "dragoman serve exports/en-de --host 0.0.0.0 --api-key-file key.txt",
    )


def serve(
    models: Annotated[
        list[Path], typer.Argument(metavar="RUN|EXPORT", help="Run folders or exports, one for each pair of languages.")
    ],
    host: Annotated[
        str, typer.Option(metavar="ADDRESS", help="Where to listen; 0.0.0.0 is open to other machines.")
    ] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65_535, help="Port to listen on; 0 takes a free one.")] = 5_000,
    api_key: Annotated[
        str | None, typer.Option(metavar="KEY", help="Key that clients must send. Other users here can see it.")
    ] = None,
    api_key_file: Annotated[
        Path | None, typer.Option(metavar="FILE", help=f"File with the key. Default: the variable {KEY_VARIABLE}.")
    ] = None,
    no_auth: Annotated[bool, typer.Option("--no-auth", help="Let everybody in who can reach the server.")] = False,
    checkpoint: Checkpoint = "best",
    quantization: Annotated[
        Quantization | None,
        typer.Option(help="Precision of weights when a run is exported. Default: float32."),
    ] = None,
    beam_size: BeamSize = None,
    languages: Annotated[
        str | None, typer.Option(metavar="PAIR", help="Languages of models that do not name theirs, e.g. en-de.")
    ] = None,
    workers: Annotated[
        int | None, typer.Option(min=1, help="Batches translated at once. Default: one per physical core.")
    ] = None,
    max_characters: Annotated[int, typer.Option(min=1, help="Most characters of a request.")] = 50_000,
    max_waiting: Annotated[int, typer.Option(min=1, help="Lines that may wait before requests are refused.")] = 2_000,
    timeout: Annotated[float, typer.Option(min=0.1, metavar="SECONDS", help="Longest time of a request.")] = 60.0,
) -> None:
    """Serve translation over HTTP, with a page for people.

    The API is LibreTranslate's; the page is at /. A run is exported for CTranslate2 first. SIGTERM or Ctrl-C ends the
    server after what it has accepted is done.
    """
    from dragoman.corpus.cleaning.filters import split_languages
    from dragoman.corpus.settings import LANGUAGE_PAIR
    from dragoman.run.processes import num_physical_cores

    if no_auth and (api_key or api_key_file):
        raise UsageError("--no-auth lets everybody in, so it cannot be combined with a key.")
    if languages is not None and not re.fullmatch(LANGUAGE_PAIR, languages):
        raise UsageError(f"--languages {languages}: give the codes of source and target, e.g. en-de.")
    key = None if no_auth else _read_key(api_key, api_key_file)
    num_threads = workers or num_physical_cores()

    def open_export(folder: Path) -> Path:
        return _open_export(folder, checkpoint, quantization)

    _require_packages()
    from dragoman.serving.access import is_loopback
    from dragoman.serving.loading import load_models
    from dragoman.serving.server import check_access, open_socket
    from dragoman.serving.server import serve as serve_models
    from dragoman.serving.settings import ServeSettings

    check_access(host, key, no_auth)
    settings = ServeSettings(
        api_key=key,
        is_local=is_loopback(host),
        max_characters=max_characters,
        max_waiting=max_waiting,
        max_seconds=timeout,
        num_threads=num_threads,
    )
    with open_socket(host, port) as listener:
        pair = None if languages is None else split_languages(languages)
        served = load_models(models, open_export, pair, beam_size, num_threads, warn)
        address = _address(host, listener.getsockname()[1])
        serve_models(served, settings, listener, lambda: say(f"Translate at {address}"))
    warn("The server has stopped; all accepted requests were answered.")


def _require_packages() -> None:
    """Refuses to go on where the optional packages of a server are missing."""
    missing = [each for each in ("ctranslate2", "fastapi", "prometheus_client", "uvicorn") if find_spec(each) is None]
    if missing:
        raise UserError(
            f"Serving needs packages that are not installed ({', '.join(missing)}): pip install 'dragoman[serve]'."
        )


def _read_key(api_key: str | None, api_key_file: Path | None) -> str | None:
    """Returns the key from the command line, a file or the environment."""
    if api_key is not None and api_key_file is not None:
        raise UsageError("Give the key with --api-key or with --api-key-file, not with both.")
    if api_key_file is not None:
        try:
            with api_key_file.open("rb") as file:
                api_key = file.read(_MAX_KEY_BYTES).decode().strip()
        except OSError as error:
            raise UserError(f"The key file {api_key_file} cannot be read: {describe_os_error(error)}.") from None
        except UnicodeDecodeError:
            raise UserError(f"The key file {api_key_file} is not text.") from None
        if not api_key:
            raise UserError(f"The key file {api_key_file} is empty.")
    return api_key if api_key is not None else os.environ.get(KEY_VARIABLE) or None


def _open_export(folder: Path, checkpoint: str, quantization: Quantization | None) -> Path:
    """Returns the export itself, or the one that a run keeps for itself."""
    from dragoman.translation.exported_model import is_export

    if is_export(folder):
        return folder
    from dragoman.run.folder import open_run

    open_run(folder)  # fails early, before a process is started
    from concurrent.futures import ProcessPoolExecutor
    from concurrent.futures.process import BrokenProcessPool
    from multiprocessing import get_context

    # In a process of its own: the server does not keep torch and a second copy of the weights in its memory.
    try:
        with ProcessPoolExecutor(1, get_context("spawn")) as pool:
            return pool.submit(_export, folder, checkpoint, quantization).result()
    except BrokenProcessPool:
        raise UserError("The process that exported it was killed: perhaps memory was short.") from None


def _export(run: Path, checkpoint: str, quantization: Quantization | None) -> Path:
    from dragoman.exporting.cached_export import ensure_export

    return ensure_export(run, checkpoint, warn, quantization)


def _address(host: str, port: int) -> str:
    name = "127.0.0.1" if host in ("0.0.0.0", "") else host  # noqa: S104 - only shown
    return f"http://[{name.strip('[]')}]:{port}/" if ":" in name else f"http://{name}:{port}/"
