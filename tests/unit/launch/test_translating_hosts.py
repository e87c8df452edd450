"""A host that cannot translate is given up, whatever the reason; the command never waits for it without end."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from dragoman.launch import translation_hosts
from dragoman.launch.connection import StopRequestedError
from dragoman.launch.hosts import Host
from dragoman.launch.translation_hosts import TranslationHosts
from dragoman.run.errors import UserError
from dragoman.translation.files.bulk import TextPart
from dragoman.translation.files.order import LineBlock


@pytest.mark.timeout(60)
@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (OSError(24, "Too many open files"), "OSError: [Errno 24] Too many open files"),
        (UserError("a has no ssh."), "a has no ssh."),
        (StopRequestedError(), "nothing was heard from it for 30 s."),
    ],
)
def test_a_host_is_given_up_at_any_error(monkeypatch, error, reason):
    def connect(*_: object) -> None:
        raise error

    monkeypatch.setattr(translation_hosts, "TranslationConnection", connect)
    model: Any = SimpleNamespace(fingerprint=lambda: "f00d")
    order: Any = None
    said: list[str] = []
    hosts = TranslationHosts([Host("a", 1)], None, model, Path("model"), order, said.append)
    parts = [TextPart(0, LineBlock(1, ("one line",)))]
    with pytest.raises(UserError, match="No host is left to translate"):
        list(hosts.translate(parts, lambda _: None))
    hosts.close()
    assert said == [f"a is left out: {reason}"]
