"""The application: LibreTranslate's API, a page for people, figures for Prometheus."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import asdict
from typing import Any

from fastapi import FastAPI, Request
from fastapi.responses import JSONResponse, Response
from prometheus_client import CONTENT_TYPE_LATEST
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect

from dragoman import __version__
from dragoman.corpus.cleaning.language import language_name
from dragoman.serving.access import AsgiApp, Gate, require_key
from dragoman.serving.batching import TranslationQueue
from dragoman.serving.metrics import ServerMetrics
from dragoman.serving.pages import add_pages
from dragoman.serving.request_body import RefusedRequestError, read_parameters
from dragoman.serving.schema import (
    Detection,
    DetectRequest,
    FrontendSettings,
    Health,
    Language,
    ModelFacts,
    TranslateAnswer,
    TranslateRequest,
    describe_api,
    error_answers,
    request_body,
)
from dragoman.serving.served_models import ServedModels
from dragoman.serving.settings import ServeSettings
from dragoman.serving.translating import TranslationJob, check_sizes, plan_job

_TYPING_PAUSE_MS = 400


def build_app(models: ServedModels, settings: ServeSettings) -> AsgiApp:
    """Builds the application; its threads begin and end with it."""
    metrics = ServerMetrics(models)
    app = FastAPI(
        title="dragoman",
        version=__version__,
        description="Translation over HTTP; the addresses and fields are those of LibreTranslate.",
        docs_url=None,
        redoc_url=None,
        openapi_url=None,
        lifespan=_life_of_queue(settings, metrics),
    )
    app.openapi = lambda: describe_api(app, models, settings)  # type: ignore[method-assign]
    _add_error_answers(app)
    _add_translation(app, models, settings)
    _add_descriptions(app, models, settings, metrics)
    add_pages(app, models, settings)
    return Gate(app, settings, metrics)


def _life_of_queue(settings: ServeSettings, metrics: ServerMetrics) -> Any:
    """Returns what runs before the first and after the last request."""

    @asynccontextmanager
    async def live(app: FastAPI) -> AsyncIterator[None]:
        queue = TranslationQueue(settings.num_batches_at_once, settings.max_waiting, metrics.add_batch)
        metrics.watch_queue(lambda: queue.num_waiting)
        app.state.queue = queue
        yield
        await asyncio.to_thread(queue.close)

    return live


def _add_error_answers(app: FastAPI) -> None:
    """Gives every error the form of LibreTranslate's."""

    @app.exception_handler(RefusedRequestError)
    async def refuse(_: Request, error: RefusedRequestError) -> Response:
        return JSONResponse({"error": error.message}, error.status, error.headers)

    @app.exception_handler(HTTPException)
    async def explain(_: Request, error: HTTPException) -> Response:
        return JSONResponse({"error": error.detail}, error.status_code, error.headers)

    @app.exception_handler(ClientDisconnect)
    async def forget(_: Request, __: ClientDisconnect) -> Response:
        return Response(status_code=499)

    @app.exception_handler(Exception)
    async def fail(_: Request, error: Exception) -> Response:
        return JSONResponse({"error": f"Cannot translate text: {type(error).__name__}"}, 500)


def _add_translation(app: FastAPI, models: ServedModels, settings: ServeSettings) -> None:
    @app.post(
        "/translate",
        responses=error_answers(400, 403, 408, 413, 415, 429, 503) | {200: {"model": TranslateAnswer}},
        openapi_extra=request_body(TranslateRequest),
    )
    async def translate(request: Request) -> Response:
        """Translates one text or several."""
        wanted = await _read_in_time(request, TranslateRequest, settings)
        require_key(request, settings, wanted.api_key)
        job = plan_job(wanted, models, settings)
        return JSONResponse(await _finish_in_time(request, job, settings))

    @app.post(
        "/detect",
        responses=error_answers(400, 403, 408, 413, 415) | {200: {"model": list[Detection]}},
        openapi_extra=request_body(DetectRequest),
    )
    async def detect(request: Request) -> Response:
        """Detects the language of a text, among the languages of this server."""
        wanted = await _read_in_time(request, DetectRequest, settings)
        require_key(request, settings, wanted.api_key)
        check_sizes([wanted.q], settings)
        return JSONResponse([asdict(each) for each in models.detect(wanted.q)])


async def _read_in_time(request: Request, wanted: Any, settings: ServeSettings) -> Any:
    try:
        async with asyncio.timeout(settings.max_seconds):
            return await read_parameters(request, wanted, settings.max_body_bytes)
    except TimeoutError:
        raise RefusedRequestError(408, "The request took too long to arrive.", {"Connection": "close"}) from None


async def _finish_in_time(request: Request, job: TranslationJob, settings: ServeSettings) -> dict[str, Any]:
    """Returns the answer; a client that goes or a time that is over ends the work."""
    queue: TranslationQueue = request.app.state.queue
    pending = job.submit(queue)
    done = asyncio.wrap_future(pending.result)
    gone = asyncio.ensure_future(request.receive())
    try:
        await asyncio.wait((done, gone), timeout=settings.max_seconds, return_when=asyncio.FIRST_COMPLETED)
        if done.done():
            return job.answer(done.result())
        if gone.done():
            raise ClientDisconnect
        raise RefusedRequestError(
            503, f"The translation took longer than {settings.max_seconds:g} s: send less text, or try again later."
        )
    finally:
        gone.cancel()
        queue.cancel(pending)


def _add_descriptions(app: FastAPI, models: ServedModels, settings: ServeSettings, metrics: ServerMetrics) -> None:
    @app.get("/languages", response_model=list[Language], responses=error_answers(403))
    async def languages() -> Response:
        """Lists the languages, each with those it can be translated into."""
        return JSONResponse(models.languages)

    @app.get("/frontend/settings", response_model=FrontendSettings, responses=error_answers(403))
    async def frontend_settings() -> Response:
        """Says what a page needs to know."""
        return JSONResponse(_frontend_settings(models, settings))

    @app.get("/health", response_model=Health, responses=error_answers(403))
    async def health() -> Response:
        """Says that the server works."""
        return JSONResponse({"status": "ok"})

    @app.get("/models", response_model=list[ModelFacts], responses=error_answers(400, 403))
    async def list_models(request: Request) -> Response:
        """Lists the models with what their exports say, e.g. scores; needs the key."""
        require_key(request, settings)
        return JSONResponse(
            [
                {"source": model.source, "target": model.target, "facts": model.facts, "shown": model.shown_facts}
                for model in models.models
            ]
        )

    @app.get(
        "/metrics",
        responses=error_answers(400, 403) | {200: {"content": {"text/plain": {"schema": {"type": "string"}}}}},
        response_class=Response,
    )
    async def read_metrics(request: Request) -> Response:
        """Returns the figures of this server for Prometheus; needs the key."""
        require_key(request, settings)
        return Response(metrics.text(), headers={"Content-Type": CONTENT_TYPE_LATEST})

    @app.get("/openapi.json", include_in_schema=False)
    @app.get("/spec", include_in_schema=False)
    async def spec() -> Response:
        return JSONResponse(app.openapi())


def _frontend_settings(models: ServedModels, settings: ServeSettings) -> dict[str, Any]:
    first = models.models[0]
    return {
        "charLimit": settings.max_characters,
        "frontendTimeout": _TYPING_PAUSE_MS,
        "apiKeys": settings.api_key is not None,
        "keyRequired": settings.api_key is not None,
        "suggestions": False,
        "filesTranslation": False,
        "supportedFilesFormat": [],
        "language": {
            "source": {"code": first.source, "name": language_name(first.source)},
            "target": {"code": first.target, "name": language_name(first.target)},
        },
    }
