"""The OpenAPI document is true: requests made from it are answered as it says, and never with status 500."""

import pytest
from hypothesis import HealthCheck, given, settings
from starlette.testclient import TestClient

from dragoman.serving.app import build_app
from dragoman.serving.loading import load_models
from dragoman.serving.settings import ServeSettings


@pytest.fixture(scope="module")
def app(export):
    # One pair, so that every source fits every target of the document; few characters, so that limits are met.
    models = load_models([export], lambda folder: folder, None, None, 1, lambda _: None)
    app = build_app(models, ServeSettings(is_local=False, max_characters=200, max_texts=20))
    with TestClient(app, "http://127.0.0.1:5000"):
        yield app


@pytest.fixture
def document(app):
    import schemathesis  # takes seconds

    return schemathesis.openapi.from_asgi("/openapi.json", app)


def call(case) -> None:
    from schemathesis.specs.openapi import checks

    # A wrong method is refused with 405, which schemathesis wants with an Allow header on OPTIONS.
    case.call_and_validate(excluded_checks=[checks.unsupported_method])


@pytest.mark.slow
@pytest.mark.parametrize("mode", ["positive", "negative"])
@pytest.mark.parametrize("path", ["/translate", "/detect"])
def test_requests_made_from_the_document_are_answered_as_it_says(document, path, mode):
    from schemathesis import GenerationMode

    cases = document[path]["POST"].as_strategy(generation_mode=GenerationMode(mode))

    @settings(max_examples=25, suppress_health_check=list(HealthCheck))
    @given(cases)
    def check(case):
        call(case)

    check()


@pytest.mark.slow
def test_answers_are_as_the_document_says(document):
    for path in ("/languages", "/frontend/settings", "/health", "/models", "/metrics"):
        call(document[path]["GET"].Case())


def test_the_document_has_the_languages_and_limits_of_the_server(app):
    client = TestClient(app, "http://127.0.0.1:5000")
    document = client.get("/openapi.json").json()
    assert document == client.get("/spec").json()
    fields = document["components"]["schemas"]["TranslateRequest"]["properties"]
    assert fields["source"]["enum"] == ["auto", "en"]
    assert fields["target"]["enum"] == ["de"]
    assert fields["q"]["anyOf"][0]["maxLength"] == 200
    assert {"/translate", "/detect", "/languages", "/frontend/settings", "/health", "/metrics"} <= set(
        document["paths"]
    )
