"""Who may use a server: keys, names of the machine, pages of other sites."""

import re

import pytest

from dragoman.run.errors import UsageError, UserError
from dragoman.serving.access import is_loopback
from dragoman.serving.server import check_access, open_socket

KEY = "correct horse battery"
WANTED = {"q": "the cat", "source": "en", "target": "de"}


@pytest.fixture
def locked(start):
    return start(api_key=KEY, is_local=False, address="http://translate.example")


@pytest.mark.parametrize(
    "request_with_key",
    [
        lambda client: client.post("/translate", json=WANTED | {"api_key": KEY}),
        lambda client: client.post("/translate", data=WANTED | {"api_key": KEY}),
        lambda client: client.post("/translate", json=WANTED, params={"api_key": KEY}),
        lambda client: client.post("/translate", data=WANTED, params={"api_key": KEY}),
        lambda client: client.post("/translate", json=WANTED, headers={"Authorization": f"Bearer {KEY}"}),
        lambda client: client.post("/translate", json=WANTED, headers={"Authorization": KEY}),
        lambda client: client.post("/detect", data={"q": "a", "api_key": KEY}),
        lambda client: client.get("/metrics", headers={"Authorization": f"Bearer {KEY}"}),
        lambda client: client.get("/models", params={"api_key": KEY}),
    ],
)
def test_the_key_is_accepted_wherever_clients_put_it(locked, request_with_key):
    assert request_with_key(locked).status_code == 200


def test_a_key_with_any_characters_is_accepted(start):
    key = 'kéy ü:"x&=+%/ß'
    client = start(api_key=key, is_local=False)
    for value in (f"Bearer {key}".encode(), f"Bearer {key}".encode("latin-1")):
        assert client.post("/translate", json=WANTED, headers={b"Authorization": value}).status_code == 200
    assert client.post("/translate", json=WANTED, params={"api_key": key}).status_code == 200


@pytest.mark.parametrize("key", ["wrong", KEY + "x", KEY[:-1], "é", "\u20ac" * 10])
def test_a_wrong_key_is_refused(locked, key):
    answer = locked.post("/translate", json=WANTED | {"api_key": key})
    assert (answer.status_code, answer.json()) == (403, {"error": "Invalid API key"})


@pytest.mark.parametrize("path", ["/translate", "/detect", "/metrics", "/models"])
def test_without_a_key_nothing_is_translated_or_told(locked, path):
    answer = locked.post(path, json=WANTED) if path in ("/translate", "/detect") else locked.get(path)
    assert answer.status_code == 400
    assert "API key" in answer.json()["error"]


@pytest.mark.parametrize("path", ["/", "/languages", "/frontend/settings", "/health", "/docs", "/openapi.json"])
def test_what_clients_ask_before_they_have_a_key_is_open(locked, path):
    assert locked.get(path).status_code == 200


def test_pages_of_other_sites_may_use_a_key_but_no_cookies(locked):
    answer = locked.post("/translate", json=WANTED | {"api_key": KEY}, headers={"Origin": "https://else.example"})
    assert answer.status_code == 200
    assert answer.headers["Access-Control-Allow-Origin"] == "*"
    assert "Access-Control-Allow-Credentials" not in answer.headers
    question = locked.options("/translate", headers={"Origin": "https://else.example"})
    assert question.status_code == 204
    assert "Authorization" in question.headers["Access-Control-Allow-Headers"]


@pytest.mark.parametrize("host", ["evil.example", "127.0.0.1.evil.example", "10.0.0.1:5000", "[", ""])
def test_a_foreign_name_is_refused_on_this_machine(client, host):
    answer = client.get("/languages", headers={"Host": host})
    assert answer.status_code == 403
    assert "by its own name" in answer.json()["error"]


@pytest.mark.parametrize("host", ["127.0.0.1:5000", "localhost", "LOCALHOST:80", "[::1]:5000", "127.1.2.3"])
def test_names_of_this_machine_are_accepted(client, host):
    assert client.get("/languages", headers={"Host": host}).status_code == 200


@pytest.mark.parametrize(
    "headers",
    [{"Origin": "https://evil.example"}, {"Origin": "null"}, {"Origin": "http://["}, {"Sec-Fetch-Site": "cross-site"}],
)
def test_without_a_key_pages_of_other_sites_are_refused(client, headers):
    answer = client.post("/translate", data=WANTED, headers=headers)
    assert answer.status_code == 403
    assert "Access-Control-Allow-Origin" not in answer.headers


def test_a_link_of_another_site_leads_to_the_page_but_a_form_or_frame_does_not(client):
    link = {"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "navigate", "Sec-Fetch-Dest": "document"}
    assert client.get("/", headers=link).status_code == 200
    assert client.get("/", headers=link | {"Sec-Fetch-Dest": "iframe"}).status_code == 403
    assert client.post("/translate", data=WANTED, headers=link | {"Origin": "null"}).status_code == 403


def test_the_own_page_is_not_another_site(client):
    headers = {"Origin": "http://127.0.0.1:5000", "Sec-Fetch-Site": "same-origin"}
    assert client.post("/translate", json=WANTED, headers=headers).status_code == 200


@pytest.mark.parametrize("path", ["/", "/docs", "/page.js", "/page.css", "/languages", "/nothing"])
def test_every_answer_has_the_headers_that_protect_it(client, path):
    headers = client.get(path).headers
    assert headers["X-Content-Type-Options"] == "nosniff"
    assert headers["X-Frame-Options"] == "DENY"
    assert headers["Content-Security-Policy"].startswith("default-src 'none'")
    assert "unsafe" not in headers["Content-Security-Policy"]


@pytest.mark.parametrize("path", ["/", "/docs"])
def test_pages_load_nothing_from_elsewhere(client, path):
    answer = client.get(path)
    assert answer.status_code == 200
    assert "//" not in answer.text.replace("http://127.0.0.1:5000", "")
    assert not re.search("<script>|style=| on[a-z]+=", answer.text)


@pytest.mark.parametrize("name", ["127.0.0.1", "127.9.9.9", "::1", "[::1]", "localhost"])
def test_names_that_always_mean_this_machine(name):
    assert is_loopback(name)


@pytest.mark.parametrize("name", ["0.0.0.0", "::", "10.1.2.3", "localhost.evil.example", ""])
def test_names_that_may_mean_others(name):
    assert not is_loopback(name)


def test_beyond_this_machine_a_key_is_required():
    for host in ("0.0.0.0", "::", "192.168.1.5", ""):
        with pytest.raises(UsageError, match="--api-key-file"):
            check_access(host, None, may_be_open=False)
        check_access(host, None, may_be_open=True)
        check_access(host, KEY, may_be_open=False)
    check_access("127.0.0.1", None, may_be_open=False)


def test_a_short_key_is_refused():
    with pytest.raises(UsageError, match="shorter than 8"):
        check_access("127.0.0.1", "secret", may_be_open=False)


def test_a_port_in_use_is_named():
    with open_socket("127.0.0.1", 0) as listener:
        port = listener.getsockname()[1]
        with pytest.raises(UserError, match=f"port {port}: .*Choose another --port"):
            open_socket("127.0.0.1", port)


def test_an_address_of_another_machine_is_refused():
    with pytest.raises(UserError, match=r"192\.0\.2\.1"):
        open_socket("192.0.2.1", 0)
