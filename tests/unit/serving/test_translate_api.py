"""LibreTranslate's API: shapes of answers, errors in its form, and input that is wrong or strange."""

import asyncio
import json
import re
import threading
import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dragoman.serving.app import build_app
from dragoman.serving.served_models import ServedModel, ServedModels
from dragoman.serving.settings import ServeSettings

JSON = {"Content-Type": "application/json"}


def translate(client, q="the cat", code=200, **fields):
    answer = client.post("/translate", json={"q": q, "source": "en", "target": "de"} | fields)
    assert answer.status_code == code, answer.text
    return answer.json()


def own_translation(models, text: str) -> str:
    return models.find("en", "de").translator.translate([text])[0]


def test_a_text_and_a_list_of_texts(client, models):
    expected = [own_translation(models, text) for text in ("the cat", "two dogs")]
    assert translate(client) == {"translatedText": expected[0]}
    assert translate(client, ["the cat", "two dogs"]) == {"translatedText": expected}
    assert translate(client, []) == {"translatedText": []}


def test_forms_of_all_kinds_and_the_address_work_like_json(client, models):
    fields = {"q": "the cat", "source": "en", "target": "de", "alternatives": "1", "format": "text"}
    expected = translate(client, alternatives=1)
    assert client.post("/translate", data=fields).json() == expected
    assert client.post("/translate", files={name: (None, value) for name, value in fields.items()}).json() == expected
    assert client.post("/translate", params=fields).json() == expected


@pytest.mark.parametrize("kind", ["", None])
def test_an_empty_format_is_text_as_for_libretranslate(client, kind):
    assert translate(client, q="a <b> c", format=kind) == translate(client, q="a <b> c")


@pytest.mark.parametrize(
    ("odd", "plain"), [("the\u00a0cat  sat", "the cat sat"), ("\u202ethe cat\u00ad sat", "the cat sat")]
)
def test_odd_blanks_and_invisible_marks_do_not_change_a_translation(client, odd, plain):
    assert translate(client, q=odd) == translate(client, q=plain)
    assert translate(client, q=f"<p>{odd}</p>", format="html") == translate(client, q=f"<p>{plain}</p>", format="html")


def test_lines_indentation_and_empty_lines_are_kept(client, models):
    cat, dogs = own_translation(models, "the cat"), own_translation(models, "two dogs")
    assert translate(client, "the cat\n\n  two dogs\r\n")["translatedText"] == f"{cat}\n\n  {dogs}\r\n"
    assert translate(client, "\n" * 10_000)["translatedText"] == "\n" * 10_000


def test_alternatives_differ_from_the_translation_and_from_each_other(client):
    answer = translate(client, alternatives=3)
    assert 1 <= len(answer["alternatives"]) <= 3
    assert len({answer["translatedText"], *answer["alternatives"]}) == 1 + len(answer["alternatives"])
    lists = translate(client, ["the cat", "1"], alternatives=3)
    assert lists["alternatives"] == [answer["alternatives"], []]


def test_auto_detects_the_language_and_says_so(client):
    text = "Das ist ein Satz in deutscher Sprache, den man gut erkennen kann."
    answer = translate(client, text, source="auto", target="en")
    assert answer["detectedLanguage"]["language"] == "de"
    answer = translate(client, [text, "x"], source="auto", target="en")
    assert [each["language"] for each in answer["detectedLanguage"]] == ["de", "de"]


@pytest.mark.parametrize(
    ("text", "language"),
    [
        ("Jeg vet ikke hvorfor hun ikke vil komme hit i kveld, men vi får håpe det går bra.", "nb"),
        ("Jeg ved ikke, hvorfor hun ikke vil komme herhen i aften, men vi må håbe, at det går godt.", "da"),
    ],
)
@pytest.mark.parametrize("order", [("nb", "da"), ("da", "nb")])
def test_of_languages_that_are_confused_the_one_that_was_found_comes_first(text, language, order):
    models = ServedModels([ServedModel(code, "en", None, None) for code in order])
    assert models.source_for("en", text).language == language


def test_detect_lists_languages_of_this_server(client):
    answer = client.post("/detect", data={"q": "This is a sentence in the English language."}).json()
    assert answer[0]["language"] == "en"
    assert 50 < answer[0]["confidence"] <= 100
    unclear = client.post("/detect", json={"q": "\u0000 123"}).json()
    assert unclear == [{"confidence": 0.0, "language": "en"}]


def test_alignment_pairs_words_line_by_line(client):
    answer = translate(client, "the cat\n\ntwo dogs", alignment=True)
    lines = answer["translatedText"].split("\n")
    assert [bool(pairs) for pairs in answer["alignment"]] == [True, False, True]
    for source, target, pairs in zip(("the cat", "", "two dogs"), lines, answer["alignment"], strict=True):
        assert all(s < len(source.split()) and t < len(target.split()) for s, t in pairs)


def test_html_keeps_its_tags(client):
    answer = translate(client, "<p>the <b>cat</b></p><script>x < y</script>", format="html", alternatives=2)
    assert answer["translatedText"].startswith("<p>")
    assert answer["translatedText"].count("<b>") == 1
    assert answer["translatedText"].endswith("</p><script>x < y</script>")
    assert answer["alternatives"] == []


def test_deep_html_is_translated(client):
    assert translate(client, "<div>" * 9_000, format="html")["translatedText"] == "<div>" * 9_000


def test_languages_settings_health_and_models(client):
    languages = client.get("/languages").json()
    assert {"code": "en", "name": "English", "targets": ["de"]} in languages
    settings = client.get("/frontend/settings").json()
    assert settings["language"]["target"] == {"code": "de", "name": "German"}
    assert settings["keyRequired"] is False
    assert client.get("/health").json() == {"status": "ok"}
    assert client.get("/models").json()[0]["facts"]["scores"][0]["bleu"] == 12.34


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"source": "xx"}, "xx is not supported"),
        ({"target": "xx"}, "xx is not supported"),
        ({"target": "en"}, "English (en) is not available as a target language from English (en)"),
        ({"format": "pdf"}, "pdf format is not supported"),
        ({"q": 5}, "Invalid request: q must be a text or a list of texts"),
        ({"q": ["a", None]}, "Invalid request: q must be a text or a list of texts"),
        ({"q": None}, "Invalid request: q must be"),
        ({"source": ["en"]}, "Invalid request: source must be a text"),
        ({"alternatives": -1}, "Invalid request: alternatives must be a whole number"),
        ({"alternatives": "many"}, "Invalid request: alternatives must be a whole number"),
        ({"alternatives": 1_000}, "exceed the limit of 10"),
        ({"q": ["a"] * 1_001}, "exceed the limit of 1,000"),
        ({"q": "a" * 50_001}, "exceed the limit of 50,000"),
    ],
)
def test_wrong_parameters_are_explained(client, fields, words):
    assert words in translate(client, code=400, **fields)["error"]


@pytest.mark.parametrize("name", ["q", "source", "target"])
def test_missing_parameters_are_named_as_libretranslate_does(client, name):
    fields = {"q": "a", "source": "en", "target": "de"}
    del fields[name]
    for answer in (client.post("/translate", json=fields), client.post("/translate", data=fields)):
        assert answer.status_code == 400
        assert answer.json() == {"error": f"Invalid request: missing {name} parameter"}


@pytest.mark.parametrize("path", ["/translate", "/detect"])
def test_an_address_that_cannot_be_read_is_refused(client, path):
    for query in ("q=%ff&source=en&target=de", "&".join(["a=b"] * 200)):
        answer = client.post(f"{path}?{query}")
        assert answer.status_code == 400
        assert answer.json()["error"].startswith("Invalid request: the ")


@pytest.mark.parametrize(
    ("body", "kind", "code"),
    [
        (b"{", "application/json", 400),
        (b"", "application/json", 400),
        (b"[]", "application/json", 400),
        (b'"q"', "application/json", 400),
        (b'{"q": "\xff", "source": "en", "target": "de"}', "application/json", 400),
        (b'{"q": "\\ud800", "source": "en", "target": "de"}', "application/json", 400),
        (b"[" * 100_000, "application/json", 400),
        (b"q=%ff&source=en&target=de", "application/x-www-form-urlencoded", 400),
        (b"q=\xff", "application/x-www-form-urlencoded", 400),
        (b"&".join(b"a=b" for _ in range(200)), "application/x-www-form-urlencoded", 400),
        (b"nothing", "multipart/form-data; boundary=x", 400),
        (b"--x\r\n\r\n--x--", "multipart/form-data; boundary=x", 400),
        (b"--x\r\n", "multipart/form-data", 400),
        (b"text", "text/plain", 415),
    ],
)
@pytest.mark.parametrize("path", ["/translate", "/detect"])
def test_bodies_that_cannot_be_read_are_refused(client, body, kind, code, path):
    answer = client.post(path, content=body, headers={"Content-Type": kind})
    assert answer.status_code == code
    assert answer.json()["error"]


def test_a_large_body_is_refused_before_it_is_read(client):
    num_read = 0

    def endless():
        nonlocal num_read
        while True:
            num_read += 1
            yield b"x" * 65_536

    for length in (str(10 * 2**20), "9" * 5_000, "x"):
        answer = client.post("/translate", content=b"", headers=JSON | {"Content-Length": length})
        assert answer.status_code == 413
        assert "larger than" in answer.json()["error"]

    async def post_endless() -> list[dict]:
        sent, chunks = [], endless()

        async def receive():
            return {"type": "http.request", "body": next(chunks), "more_body": True}

        async def send(message):
            sent.append(message)

        headers = [(b"host", b"127.0.0.1"), (b"content-type", b"application/json")]
        scope = {"type": "http", "method": "POST", "path": "/translate", "query_string": b"", "headers": headers}
        await client.app(scope | {"http_version": "1.1", "scheme": "http", "server": None}, receive, send)
        return sent

    assert asyncio.run(post_endless())[0]["status"] == 413
    assert num_read * 65_536 < 40 * 2**20


@pytest.mark.parametrize(
    "text", ["😀", "🇩🇪👩‍👩‍👧", "שלום עולם", "مرحبا\u200f", "a\x00\x07\x1bb", "\u202etxet", "ꦗꦮ", "\ufeff", "𒀀" * 500]
)
@pytest.mark.parametrize("form", ["text", "html"])
def test_strange_characters_get_an_answer(client, text, form):
    assert isinstance(translate(client, text, format=form, alternatives=2)["translatedText"], str)


@settings(max_examples=50)
@given(st.text(), st.sampled_from(["text", "html"]))
def test_any_text_gets_an_answer(client, text, form):
    answer = client.post("/translate", data={"q": text, "source": "auto", "target": "de", "format": form})
    assert answer.status_code == 200, answer.text
    assert answer.json()["translatedText"].count("\n") >= 0


@settings(max_examples=30)
@given(
    st.recursive(
        st.none() | st.booleans() | st.floats() | st.text(),
        lambda each: st.lists(each) | st.dictionaries(st.text(), each),
        max_leaves=5,
    )
)
def test_any_json_gets_an_answer_or_a_refusal(client, value):
    answer = client.post("/translate", content=json.dumps({"q": value, "source": "en", "target": "de"}), headers=JSON)
    assert answer.status_code in (200, 400), answer.text


def test_codes_of_regions_and_in_capitals_mean_the_language(client):
    expected = translate(client)
    assert translate(client, source="en-US", target="DE") == expected
    assert translate(client, source="en_GB", target="de-DE") == expected


def test_head_is_answered_like_get(client):
    for path in ("/", "/health", "/languages"):
        assert client.head(path).status_code == 200
    assert client.head("/translate").status_code == 405


def test_each_sentence_of_a_line_is_translated(client, models):
    backend_lines = []
    translator = models.find("en", "de").translator
    count = translator.on_found
    try:
        translator.on_found = lambda batch, found: backend_lines.extend(batch)
        translate(client, "The cat sat. The dog ran.")
    finally:
        translator.on_found = count
    assert len(backend_lines) == 2


def test_unknown_addresses_and_methods_are_errors_of_the_same_form(client):
    assert client.get("/nothing").json() == {"error": "Not Found"}
    answer = client.get("/translate")
    assert (answer.status_code, answer.json()) == (405, {"error": "Method Not Allowed"})


def tokens_of_text(text: str, side: str) -> float:
    return float(re.search(rf'dragoman_tokens_total{{languages="en-de",side="{side}"}} (\S+)', text)[1])


def num_tokens(client, side: str) -> float:
    return tokens_of_text(client.get("/metrics").text, side)


def test_metrics_count_requests_batches_and_tokens(start):
    client = start()
    translate(client)
    client.get("/secret-name")
    text = client.get("/metrics").text
    assert 'dragoman_requests_total{path="/translate",status="200"} 1.0' in text
    assert 'dragoman_batch_lines_count{languages="en-de"} 1.0' in text
    assert 'dragoman_tokens_total{languages="en-de",side="source"}' in text
    translate(client, "the cat sat")
    assert num_tokens(client, "source") > tokens_of_text(text, "source") > 0
    assert num_tokens(client, "target") > tokens_of_text(text, "target") > 0
    assert "dragoman_waiting_lines 0.0" in text
    assert "secret-name" not in text


class Hold:
    """Makes a model wait until the test lets it go on."""

    def __init__(self, models, monkeypatch) -> None:
        self.has_begun, self.may_go_on = threading.Semaphore(0), threading.Event()
        translator = models.find("en", "de").translator
        translate_lines = translator.translate_lines
        self.lines: list[str] = []

        def wait_and_translate(lines, **options):
            self.has_begun.release()
            assert self.may_go_on.wait(20)
            self.lines += [line.text for line in lines]
            return translate_lines(lines, **options)

        monkeypatch.setattr(translator, "translate_lines", wait_and_translate)


@pytest.fixture
def hold(models, monkeypatch):
    hold = Hold(models, monkeypatch)
    yield hold
    hold.may_go_on.set()


def in_thread(action):
    thread = threading.Thread(target=action)
    thread.start()
    return thread


NUM_BATCHES_AT_ONCE = ServeSettings().num_batches_at_once


def test_a_full_queue_answers_429_with_retry_after(start, hold):
    client = start(max_waiting=1)
    threads = []
    for _ in range(NUM_BATCHES_AT_ONCE):
        threads.append(in_thread(lambda: translate(client)))
        assert hold.has_begun.acquire(timeout=20)
    threads.append(in_thread(lambda: translate(client)))
    deadline = time.monotonic() + 20
    while "dragoman_waiting_lines 1.0" not in client.get("/metrics").text:
        assert time.monotonic() < deadline
        time.sleep(0.01)
    answer = client.post("/translate", json={"q": "too much", "source": "en", "target": "de"})
    hold.may_go_on.set()
    assert answer.status_code == 429
    assert int(answer.headers["Retry-After"]) >= 1
    assert answer.json()["error"].startswith("Slowdown:")
    for thread in threads:
        thread.join()


def test_a_request_that_takes_too_long_ends(start, hold):
    client = start(max_seconds=0.1)
    answer = client.post("/translate", json={"q": "the cat", "source": "en", "target": "de"})
    hold.may_go_on.set()
    assert answer.status_code == 503
    assert "longer than 0.1 s" in answer.json()["error"]


def test_lines_of_a_client_that_has_gone_are_dropped(models, hold):
    async def check() -> None:
        app = build_app(models, ServeSettings())
        body = json.dumps({"q": "the cat", "source": "en", "target": "de"}).encode()
        gone_body = body.replace(b"cat", b"dogs")
        headers = [(b"host", b"localhost"), (b"content-type", b"application/json")]
        scope = {"type": "http", "method": "POST", "path": "/translate", "query_string": b"", "headers": headers}
        scope |= {"http_version": "1.1", "scheme": "http", "server": None}
        sent: list[dict] = []

        async def send(message):
            sent.append(message)

        def receiver(content, is_gone):
            messages = [{"type": "http.request", "body": content}]

            async def receive():
                if messages:
                    return messages.pop(0)
                await is_gone.wait()
                return {"type": "http.disconnect"}

            return receive

        stays, goes = asyncio.Event(), asyncio.Event()
        async with app._app.router.lifespan_context(app._app):
            staying = []
            for _ in range(NUM_BATCHES_AT_ONCE):
                staying.append(asyncio.create_task(app(dict(scope), receiver(body, stays), send)))
                assert await asyncio.to_thread(hold.has_begun.acquire, timeout=20)
            going = asyncio.create_task(app(dict(scope), receiver(gone_body, goes), send))
            queue = app._app.state.queue
            while queue.num_waiting == 0:
                await asyncio.sleep(0.01)
            goes.set()
            await going
            assert queue.num_waiting == 0
            hold.may_go_on.set()
            await asyncio.gather(*staying)
        assert hold.lines == ["the cat"] * NUM_BATCHES_AT_ONCE

    asyncio.run(asyncio.wait_for(check(), 60))


def test_a_fault_of_the_model_is_an_answer_and_the_next_request_works(client, models, monkeypatch):
    translator = models.find("en", "de").translator
    with monkeypatch.context() as patch:

        def fail(*_, **__):
            raise RuntimeError("secret details")

        patch.setattr(translator, "translate_lines", fail)
        assert translate(client, code=500) == {"error": "Cannot translate text: RuntimeError"}
    translate(client)
