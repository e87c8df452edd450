"""`dragoman watch --web` in a real browser: the page follows a run without being loaded again."""

import json
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from chromium import MARKS, Browser
from run_folders import evaluation_record, own_records, train_record, write_config, write_own_run, write_records

from dragoman.run.folder import RunFolder
from dragoman.run.status import RunStatus, StatusFile

pytestmark = MARKS
TOLD = "document.querySelector('#live .told')?.textContent"


@contextmanager
def served(path) -> Iterator[tuple[str, subprocess.Popen]]:
    """Starts `dragoman watch PATH --web`; pages are built as often as they change."""
    program = (
        "import sys, dragoman.live.live_page as live_page; live_page.LARGEST_SHARE = 1.0; "
        "from dragoman.cli import main; main()"
    )
    command = [sys.executable, "-c", program, "watch", str(path), "--web"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        try:
            line = process.stdout.readline()
            assert "http://127.0.0.1:" in line, line + process.stderr.read()
            yield line.split()[-1], process
        finally:
            process.kill()


@contextmanager
def running(run: RunFolder, step: int) -> Iterator[StatusFile]:
    with StatusFile(run, RunStatus.starting(20_000, 4)) as status:
        status.update(state="running", step=step)
        yield status


def append(run: RunFolder, *records: dict) -> None:
    with run.metrics.open("a", encoding="utf-8") as file:
        file.writelines(json.dumps(record) + "\n" for record in records)


def text_of(selector: str) -> str:
    return f"(document.querySelector('{selector}')?.textContent || '')"


def no_errors(browser: Browser) -> bool:
    return browser.complaints() == []


def test_a_page_follows_its_run_and_keeps_what_is_open_scrolled_and_focused(browser, tmp_path):
    run = write_own_run(tmp_path / "base", own_records(3_000))
    with running(run, 3_000) as status, served(run.path) as (address, _):
        browser.open(address, 1280, 800)
        browser.wait_for(
            f"{text_of('#live')}.includes('step 3,000 of 20,000') && {text_of('.tiles')}.includes('3,000')"
        )
        browser.evaluate("window.isSamePage = true; document.documentElement.style.scrollBehavior = 'auto'")
        browser.evaluate("document.querySelectorAll('main details').forEach((fold) => { fold.open = true })")
        num_open = browser.evaluate("document.querySelectorAll('details[open]').length")
        assert num_open > 0
        browser.evaluate("document.querySelector('#q3').scrollIntoView(); document.querySelector('#q3 svg').focus()")
        top = "Math.round(document.querySelector('#q3').getBoundingClientRect().top)"
        before = browser.evaluate(top)

        sample = {"source": "A dog sleeps.", "reference": "Ein Hund schläft.", "translation": "Ein Hund schnarcht."}
        append(run, train_record(3_100), evaluation_record(3_100, bleu=23.45, samples=[sample]))
        status.update(step=3_100)
        browser.wait_for(f"{text_of('.tiles')}.includes('3,100') && {text_of('main')}.includes('schnarcht')")
        assert browser.evaluate("window.isSamePage") is True, "the page was not loaded again"
        assert browser.evaluate("document.querySelectorAll('details[open]').length") == num_open
        assert abs(browser.evaluate(top) - before) <= 1
        assert browser.evaluate("document.activeElement.closest('section')?.id") == "q3"
        assert no_errors(browser)

        status.update(state="finished", step=3_100)
        browser.wait_for(f"{TOLD} === 'no longer changing'")
        assert "finished at step 3,100" in browser.evaluate(text_of("#live"))


def test_values_under_the_pointer_are_those_of_the_new_chart(browser, tmp_path):
    run = write_own_run(tmp_path / "base", own_records(1_000))
    with running(run, 1_000) as status, served(run.path) as (address, _):
        browser.open(address)
        browser.wait_for(f"{text_of('.tiles')}.includes('1,000')")
        append(run, train_record(1_100))
        status.update(step=1_100)
        browser.wait_for(f"{text_of('.tiles')}.includes('1,100')")
        browser.evaluate("document.querySelector('#q10 svg').focus()")
        browser.ask("Input.dispatchKeyEvent", type="keyDown", key="End")
        browser.ask("Input.dispatchKeyEvent", type="keyDown", key="End")
        browser.wait_for("document.querySelector('.hover')?.innerText.includes('step: 1,100')")


def test_a_run_that_does_not_exist_yet_appears(browser, tmp_path):
    run = RunFolder(tmp_path / "later")
    with served(run.path) as (address, _):
        browser.open(address)
        browser.wait_for(f"{text_of('h1')} === 'later' && {text_of('.summary')}.includes('no run in')")
        write_config(run)
        run.log.write_text("Starting 4 workers\n", encoding="utf-8")
        with running(run, 0):
            browser.wait_for(f"{text_of('pre')}.includes('Starting 4 workers')")
            write_records(run, own_records(500))
            browser.wait_for(f"{text_of('.tiles')}.includes('500')")
        assert no_errors(browser)


@pytest.mark.parametrize("width", [1280, 320])
def test_runs_of_a_folder_have_cards_and_a_comparison(browser, tmp_path, width):
    for name, num_steps in (("a <b>", 1_000), ("c&d", 2_000)):
        write_own_run(tmp_path / "runs" / name, own_records(num_steps))
    with running(RunFolder(tmp_path / "runs" / "c&d"), 2_000), served(tmp_path / "runs") as (address, _):
        browser.open(address, width)
        browser.wait_for("document.querySelectorAll('.card svg polyline').length === 2")
        assert browser.evaluate(
            "[...document.querySelectorAll('.card h2')].map((h) => h.textContent).sort().join()"
        ) == ("a <b>,c&d")
        assert browser.evaluate("document.documentElement.scrollWidth") <= width
        write_own_run(tmp_path / "runs" / "new", own_records(500))
        browser.wait_for("document.querySelectorAll('.card').length === 3")
        browser.evaluate("[...document.querySelectorAll('.card')].find((c) => c.textContent.includes('c&d')).click()")
        browser.wait_for(f"{text_of('h1')} === 'c&d' && {text_of('.tiles')}.includes('2,000')")
        assert browser.evaluate("document.querySelector('#live a').href") == address
        assert no_errors(browser)
        browser.open(f"{address}compare/", width)
        browser.wait_for("document.querySelectorAll('figure svg').length > 0")
        assert no_errors(browser)
        foreign = [url for url in browser.requests() if not url.startswith((address, "data:"))]
        assert foreign == []


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_ctrl_c_and_sigterm_end_it(tmp_path, number):
    with served(tmp_path / "none") as (_, process):
        time.sleep(0.2)
        process.send_signal(number)
        assert process.wait(timeout=20) == 0
        assert process.stderr.read() == "Ctrl-C ends the page, not the run.\n"


def test_a_page_says_when_its_server_has_ended(browser, tmp_path):
    with served(tmp_path / "none") as (address, process):
        browser.open(address)
        browser.wait_for(f"{TOLD}?.startsWith('updated')")
        process.send_signal(signal.SIGTERM)
        assert process.wait(timeout=20) == 0
        browser.wait_for(f"{TOLD}?.includes('does not answer')")
