"""Requests of these tests wait for the first page, however slow the machine is."""

import pytest

import dragoman.live.live_page as live_page


@pytest.fixture(autouse=True)
def _patient(monkeypatch):
    monkeypatch.setattr(live_page, "_FIRST_WAIT_SECONDS", 60.0)
