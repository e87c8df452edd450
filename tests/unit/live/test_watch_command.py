"""`dragoman watch --web`: which options go together, and what it shows."""

import signal
import subprocess
import sys
import urllib.request

import pytest

from dragoman.cli.runs import watch
from dragoman.run.errors import UsageError


@pytest.mark.parametrize("others", [{"log": True}, {"json": True}, {"lines": 5}])
def test_the_page_excludes_other_views(tmp_path, others):
    with pytest.raises(UsageError, match="--web is a view of its own"):
        watch(tmp_path, web=True, **others)


@pytest.mark.parametrize("others", [{"port": 8000}, {"open_page": True}])
def test_options_of_the_page_need_it(tmp_path, others):
    with pytest.raises(UsageError, match="belong to --web"):
        watch(tmp_path, **others)


def test_a_file_is_no_run(tmp_path):
    (tmp_path / "log.txt").write_text("", encoding="utf-8")
    with pytest.raises(UsageError, match="is not a folder"):
        watch(tmp_path / "log.txt", web=True)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_it_serves_until_a_signal_and_ends_well(tmp_path, number):
    command = [sys.executable, "-m", "dragoman", "watch", str(tmp_path / "later"), "--web"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        try:
            address = process.stdout.readline().split()[-1]
            assert address.startswith("http://127.0.0.1:")
            assert process.stderr.readline() == "Ctrl-C ends the page, not the run.\n"
            with urllib.request.urlopen(address, timeout=60) as answer:
                assert "There is no run in" in answer.read().decode()
            process.send_signal(number)
            assert process.wait(timeout=60) == 0
            assert process.stderr.read() == ""
        finally:
            process.kill()
