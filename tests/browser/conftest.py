"""One browser for the tests of a file, with a new tab for each test."""

from collections.abc import Iterator

import pytest
from chromium import Browser, started_browser


@pytest.fixture(scope="module")
def one_browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    with started_browser(tmp_path_factory.mktemp("browser") / "profile") as browser:
        yield browser


@pytest.fixture
def browser(one_browser: Browser) -> Browser:
    one_browser.open_tab()
    return one_browser
