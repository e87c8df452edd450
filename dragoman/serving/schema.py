"""The parameters and answers of the API, as Python types; the OpenAPI document is made from them."""

from typing import Annotated, Any, Literal

from fastapi import FastAPI
from fastapi.openapi.utils import get_openapi
from pydantic import BaseModel, BeforeValidator, ConfigDict, Field

from dragoman.serving.served_models import ServedModels
from dragoman.serving.settings import ServeSettings

_API_KEY = "The key of this server, where it needs one; also accepted as `Authorization: Bearer KEY`."


def _whole_number(value: object) -> object:
    """Returns 3.0 as 3: JSON does not tell them apart."""
    return int(value) if isinstance(value, float) and value.is_integer() else value


class TranslateRequest(BaseModel):
    """What to translate."""

    model_config = ConfigDict(json_schema_extra={"example": {"q": "A dog runs.", "source": "en", "target": "de"}})

    q: str | list[str] = Field(description="A text, or a list of texts. Line breaks are kept.")
    source: str = Field(description="Language code of the text, or auto.")
    target: str = Field(description="Language code to translate into.")
    format: Literal["text", "html", ""] | None = Field(
        default="text", description="html: only the text between tags. Empty: text."
    )
    alternatives: Annotated[Annotated[int, Field(ge=0)] | None, BeforeValidator(_whole_number)] = Field(
        default=0, description="How many other translations to return."
    )
    alignment: bool | None = Field(default=False, description="Whether to return which words belong together.")
    api_key: str | None = Field(default=None, description=_API_KEY)


class DetectRequest(BaseModel):
    """A text whose language is wanted."""

    q: str = Field(description="A text.")
    api_key: str | None = Field(default=None, description=_API_KEY)


class Detection(BaseModel):
    """A language that a text may be in."""

    confidence: float = Field(ge=0, le=100, description="Percent; 0 if nothing is known.")
    language: str


WordPairs = list[list[list[int]]]


class TranslateAnswer(BaseModel):
    """Translations: of one text, or a list of them if a list was sent."""

    translatedText: str | list[str]  # noqa: N815 - the names of LibreTranslate
    detectedLanguage: Detection | list[Detection] | None = Field(default=None, description="Only for the source auto.")  # noqa: N815
    alternatives: list[str] | list[list[str]] | None = Field(default=None, description="Only where asked for.")
    alignment: WordPairs | list[WordPairs] | None = Field(
        default=None,
        description="Only where asked for, and for the format text: for each line pairs of a source and a target "
        "word, each a part between blanks, counted from 0.",
    )


class Language(BaseModel):
    """A language, and those it can be translated into."""

    code: str
    name: str
    targets: list[str]


class NamedLanguage(BaseModel):
    """A language code and its English name."""

    code: str
    name: str


class LanguageChoice(BaseModel):
    """The languages that a page shows first."""

    source: NamedLanguage
    target: NamedLanguage


class FrontendSettings(BaseModel):
    """What a page needs to know about the server."""

    charLimit: int  # noqa: N815
    frontendTimeout: int = Field(description="Milliseconds to wait after the last key.")  # noqa: N815
    apiKeys: bool  # noqa: N815
    keyRequired: bool  # noqa: N815
    suggestions: bool
    filesTranslation: bool  # noqa: N815
    supportedFilesFormat: list[str]  # noqa: N815
    language: LanguageChoice


class Health(BaseModel):
    """Whether the server works."""

    status: Literal["ok"]


class ModelFacts(BaseModel):
    """A model of this server and what its export says about it."""

    source: str
    target: str
    facts: dict[str, Any]
    shown: list[list[str]] = Field(description="Names and values for people.")


class ApiError(BaseModel):
    """Why there is no answer."""

    error: str


_FORMS = ("application/x-www-form-urlencoded", "multipart/form-data")
_REASONS = {
    400: "The request is wrong; also: a key is needed.",
    403: "The key is wrong, or the request comes from a page of another site.",
    408: "The request took too long to arrive.",
    413: "The request is too large.",
    415: "The body is neither JSON nor a form.",
    429: "Too many requests wait; Retry-After says when to try again.",
    503: "The translation took too long.",
}


def error_answers(*codes: int) -> dict[int | str, dict[str, Any]]:
    """Describes the errors of an address."""
    return {code: {"model": ApiError, "description": _REASONS[code]} for code in codes}


def request_body(parameters: type[BaseModel]) -> dict[str, Any]:
    """Describes a body that may be JSON or a form; `describe_api` fills in the form."""
    name = f"#/components/schemas/{parameters.__name__}"
    content = {"application/json": {"schema": {"$ref": name}}} | {
        kind: {"schema": {"$ref": f"{name}Form"}} for kind in _FORMS
    }
    return {"requestBody": {"required": True, "content": content}}


def describe_api(app: FastAPI, models: ServedModels, settings: ServeSettings) -> dict[str, Any]:
    """Returns the OpenAPI document, with the languages and limits of this server."""
    known: dict[str, Any] | None = app.openapi_schema
    if known is not None:
        return known
    document = get_openapi(title=app.title, version=app.version, description=app.description, routes=app.routes)
    for parameters in (TranslateRequest, DetectRequest):
        name = parameters.__name__
        schema, form = parameters.model_json_schema(), parameters.model_json_schema()
        _set_limits(schema["properties"], models, settings)
        _set_limits(form["properties"], models, settings)
        form["properties"] = {each: _form_field(field) for each, field in form["properties"].items()}
        document["components"]["schemas"] |= {name: schema, f"{name}Form": form}
    app.openapi_schema = document
    return document


def _set_limits(fields: dict[str, Any], models: ServedModels, settings: ServeSettings) -> None:
    if "source" in fields:
        fields["source"]["enum"] = ["auto", *models.sources]
        fields["target"]["enum"] = models.targets
        fields["alternatives"]["anyOf"][0]["maximum"] = settings.max_alternatives
        text, texts = fields["q"]["anyOf"]
        texts["maxItems"] = settings.max_texts
    else:
        text = fields["q"]
    text["maxLength"] = settings.max_characters


def _form_field(field: dict[str, Any]) -> dict[str, Any]:
    """Returns a field as a form can send it: one text or number, never null or a list."""
    if "anyOf" not in field:
        return field
    rest = {name: value for name, value in field.items() if name not in ("anyOf", "default")}
    return dict(field["anyOf"][0], **rest)
