"""Pages for people: one that translates, one that describes the API; all they load comes from this server."""

import json
from functools import cache
from importlib.resources import files

from fastapi import FastAPI, Request
from fastapi.responses import Response
from jinja2 import Environment, PackageLoader, StrictUndefined

from dragoman import __version__
from dragoman.serving.access import PAGE_POLICY
from dragoman.serving.served_models import ServedModels
from dragoman.serving.settings import ServeSettings

_FILES = {"page.css": "text/css", "page.js": "text/javascript"}


@cache
def _environment() -> Environment:
    return Environment(
        loader=PackageLoader("dragoman.serving", ""),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )


def add_pages(app: FastAPI, models: ServedModels, settings: ServeSettings) -> None:
    """Adds the pages and their files to the application."""
    needs_key = settings.api_key is not None

    @app.get("/", include_in_schema=False)
    async def translation_page() -> Response:
        return _page("page.html.j2", version=__version__, needs_key=needs_key)

    @app.get("/docs", include_in_schema=False)
    async def api_page(request: Request) -> Response:
        first = models.models[0]
        example = {"q": "A dog runs.", "source": first.source, "target": first.target}
        address = str(request.base_url).rstrip("/")
        return _page(
            "api.html.j2", api=app.openapi(), needs_key=needs_key, example=json.dumps(example), address=address
        )

    @app.get("/page.css", include_in_schema=False)
    @app.get("/page.js", include_in_schema=False)
    async def page_file(request: Request) -> Response:
        name = request.url.path.rpartition("/")[2]
        return Response(_read(name), media_type=_FILES[name])


def _page(name: str, **values: object) -> Response:
    text = _environment().get_template(name).render(values)
    return Response(text, media_type="text/html", headers={"Content-Security-Policy": PAGE_POLICY})


@cache
def _read(name: str) -> bytes:
    return files("dragoman.serving").joinpath(name).read_bytes()
