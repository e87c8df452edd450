"""Reads the parameters of a request: JSON, a form, or the part of its address after "?"."""

import asyncio
import math
from collections.abc import AsyncIterator, Mapping
from contextlib import suppress
from email.parser import BytesParser
from email.policy import HTTP
from typing import Any, TypeVar
from urllib.parse import parse_qsl

from pydantic import BaseModel, ValidationError
from starlette.requests import Request

_FORM = "application/x-www-form-urlencoded"
_MULTIPART = "multipart/form-data"
_MAX_FIELDS = 100
_MAX_DISCARDED_BYTES = 32 * 2**20
_DISCARD_SECONDS = 2.0
_MAX_LENGTH_DIGITS = 20
_EXPECTED = {
    "q": "must be a text or a list of texts",
    "alternatives": "must be a whole number of 0 or more",
    "alignment": "must be true or false",
}

Parameters = TypeVar("Parameters", bound=BaseModel)


class RefusedRequestError(Exception):
    """A request that gets an error as its answer."""

    def __init__(self, status: int, message: str, headers: Mapping[str, str] | None = None) -> None:
        super().__init__(message)
        self.status, self.message, self.headers = status, message, dict(headers or {})


async def read_parameters(request: Request, wanted: type[Parameters], max_bytes: int) -> Parameters:
    """Returns the checked parameters of a request; a body that is too large is not read to its end."""
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    body = await _read_body(request, max_bytes)
    try:
        if kind == "application/json" or kind.endswith("+json"):
            return _with_address(wanted.model_validate_json(body, strict=True), request)
        return wanted.model_validate(_read_form(kind, body, request))
    except ValidationError as error:
        raise RefusedRequestError(400, _describe(error)) from None


async def _read_body(request: Request, max_bytes: int) -> bytes:
    stream = request.stream()
    num_announced = _announced_bytes(request)
    body = await _read_up_to(stream, max_bytes) if num_announced <= max_bytes else None
    if body is not None:
        return body
    if num_announced <= _MAX_DISCARDED_BYTES:
        await _discard(stream)
    raise RefusedRequestError(413, f"The request is larger than {max_bytes:,} bytes.", {"Connection": "close"})


def _announced_bytes(request: Request) -> float:
    length = request.headers.get("content-length", "0")
    return int(length) if length.isdecimal() and len(length) < _MAX_LENGTH_DIGITS else math.inf


async def _read_up_to(stream: AsyncIterator[bytes], max_bytes: int) -> bytes | None:
    """Returns the body; None if it is larger."""
    chunks: list[bytes] = []
    num_bytes = 0
    async for chunk in stream:
        num_bytes += len(chunk)
        if num_bytes > max_bytes:
            return None
        chunks.append(chunk)
    return b"".join(chunks)


async def _discard(stream: AsyncIterator[bytes]) -> None:
    """Reads on for a moment: a client that is still sending when the connection ends does not see the answer."""
    num_bytes = 0
    with suppress(TimeoutError):
        async with asyncio.timeout(_DISCARD_SECONDS):
            async for chunk in stream:
                num_bytes += len(chunk)
                if num_bytes > _MAX_DISCARDED_BYTES:
                    return


def _with_address(parameters: Parameters, request: Request) -> Parameters:
    """Adds the key that JSON lacks, where the address has one."""
    key = request.query_params.get("api_key")
    if key is not None and getattr(parameters, "api_key", key) is None:
        return parameters.model_copy(update={"api_key": key})
    return parameters


def _read_form(kind: str, body: bytes, request: Request) -> dict[str, str]:
    """Returns the fields of the address and of a form.

    Texts of a browser's form have Windows line breaks, which become plain ones.
    """
    try:
        fields = _read_fields(request.scope["query_string"])
        if kind in (_FORM, "") or not body:
            fields += _read_fields(body)
        elif kind == _MULTIPART:
            fields += _read_multipart(request.headers["content-type"], body)
        else:
            raise RefusedRequestError(415, f"Send application/json, {_FORM} or {_MULTIPART}.")
    except UnicodeDecodeError:
        raise RefusedRequestError(400, "Invalid request: the text is not UTF-8") from None
    except (ValueError, RecursionError):
        raise RefusedRequestError(400, "Invalid request: the form cannot be read") from None
    return {name: value.replace("\r\n", "\n") for name, value in fields}


def _read_fields(text: bytes) -> list[tuple[str, str]]:
    return parse_qsl(text.decode(), keep_blank_values=True, errors="strict", max_num_fields=_MAX_FIELDS, separator="&")


def _read_multipart(content_type: str, body: bytes) -> list[tuple[str, str]]:
    message = BytesParser(policy=HTTP).parsebytes(
        b"Content-Type: " + content_type.encode("latin-1") + b"\r\n\r\n" + body
    )
    parts: list[Any] = list(message.iter_parts()) if message.is_multipart() else []
    if not parts or len(parts) > _MAX_FIELDS or any(part.is_multipart() for part in parts):
        raise ValueError("no plain fields")
    named = [(part.get_param("name", header="content-disposition"), part) for part in parts]
    return [(name, part.get_payload(decode=True).decode()) for name, part in named if isinstance(name, str)]


def _describe(error: ValidationError) -> str:
    """Says what is wrong with the first bad parameter, in LibreTranslate's words where it has some."""
    problem = error.errors(include_url=False, include_context=False)[0]
    where = problem["loc"]
    match problem["type"], where:
        case "json_invalid", _:
            return f"Invalid JSON: {problem['msg'].removeprefix('Invalid JSON: ')}"
        case _, ():
            return "Invalid JSON format"
        case "missing", (str(name), *_):
            return f"Invalid request: missing {name} parameter"
        case "string_unicode", (str(name), *_):
            return f"Invalid request: {name} is not valid Unicode text"
        case _, ("format", *_):
            return f"{str(problem['input'])[:40]} format is not supported"
        case _, (str(name), *_):
            return f"Invalid request: {name} {_EXPECTED.get(name, 'must be a text')}"
    return "Invalid request"
