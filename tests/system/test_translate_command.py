"""`dragoman translate` and `evaluate` as a person types them: pipes, terminals, signals, several processes."""

import codecs
import gzip
import json
import os
import pty
import re
import select
import signal
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil
import pytest
import torch
from program import Run, call_dragoman, dragoman_command, wait_until

from dragoman.translation.model_choice import ModelChoice

LINE = "The old teacher reads a long book."
SEARCH = ("--beam-size", 1)


@pytest.fixture(scope="module")
def many_lines(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """300 lines: more than one batch."""
    path = tmp_path_factory.mktemp("text") / "many.en"
    path.write_text("".join(f"The dog sees the house {number}.\n" for number in range(300)))
    return path


@contextmanager
def started(*arguments: object, **streams: object) -> Iterator[subprocess.Popen[str]]:
    """The command under way; ended with the block if it still runs."""
    with subprocess.Popen(dragoman_command(*arguments), text=True, **streams) as process:
        try:
            yield process
        finally:
            process.kill()


def test_an_empty_input_is_no_error_and_the_checkpoint_is_named(dragoman: Run, trained_run: Path):
    done = dragoman("translate", trained_run, input="")
    assert done.stdout == ""
    [said] = done.stderr.splitlines()
    assert said.startswith("Translating with the checkpoint of step 50 (best): BLEU ")
    assert "nrefs:1" in said


def test_bad_lines_and_unknown_characters(trained_run: Path, tmp_path: Path):
    text = tmp_path / "bad.en"
    text.write_bytes(b"The dog sleeps.\ncaf\xe9\n" + "The ☃ sleeps.\n".encode())
    done = call_dragoman("translate", trained_run, text, *SEARCH, code=1)
    assert done.stdout.count("\n") == 1
    assert f"{text}, line 2 is not UTF-8" in done.stderr
    done = call_dragoman("translate", trained_run, text, *SEARCH, "--skip-bad-lines", 1)
    assert done.stdout.split("\n")[1] == ""
    assert done.stdout.count("\n") == 3
    assert "Skipped lines: 1;" in done.stderr
    assert "☃ U+2603 (line 3)" in done.stderr


def test_references_that_the_model_cannot_write(run_copy: Path, tmp_path: Path):
    source, reference = tmp_path / "a.en", tmp_path / "a.de"
    source.write_text(f"{LINE}\n")
    reference.write_text("Der Lehrer liest 漢.\n")
    done = call_dragoman("evaluate", run_copy, "--source", source, "--reference", reference, *SEARCH, "--json")
    assert "1 character on 1 line of the references is not in the model's vocabulary: 漢 U+6F22 (line 1)" in done.stderr
    assert json.loads(done.stdout)["sentences"] == 1


@pytest.mark.parametrize("command", ["translate", "evaluate"])
@pytest.mark.parametrize(
    ("options", "expected"),
    [
        (("--beam-size", 10_000), "The beam size must be between 1 and 1,000, not 10,000."),
        (("--beam-size", 0), "The beam size must be between 1 and 1,000, not 0."),
        (("--length-penalty", "inf"), "The length penalty must be between 0 and 100, not inf."),
        (("--length-penalty", "nan"), "The length penalty must be between 0 and 100, not nan."),
    ],
)
def test_impossible_settings_of_the_search(trained_run: Path, command: str, options: tuple[object, ...], expected: str):
    assert expected in call_dragoman(command, trained_run, *options, code=2).stderr


def test_several_processes_write_what_one_writes(trained_run: Path, many_lines: Path):
    alone = call_dragoman("translate", trained_run, many_lines, "--workers", 1)
    assert alone.stdout.count("\n") == 300
    assert call_dragoman("translate", trained_run, many_lines, "--workers", 3).stdout == alone.stdout
    assert call_dragoman("translate", trained_run, many_lines).stdout == alone.stdout


def test_a_gpu_gets_one_process(trained_run: Path, many_lines: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("dragoman.translation.loading.choose_device", lambda: torch.device("meta"))
    done = call_dragoman("translate", trained_run, many_lines, "--workers", 2, code=2)
    assert "--workers must be 1 on a GPU" in done.stderr


def test_lines_of_a_pipe_are_answered_as_they_come(trained_run: Path):
    """Also: a reader that leaves ends the command without a word, and with code 1."""
    with started(
        "translate", trained_run, *SEARCH, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as process:
        for line in (LINE, "", LINE):
            print(line, file=process.stdin, flush=True)
            assert process.stdout.readline().endswith("\n")
        process.stdout.close()
        print(LINE, file=process.stdin, flush=True)
        process.stdin.close()
        assert process.wait(120) == 1
        assert process.stderr.read().count("\n") == 1  # the checkpoint


def test_formats_columns_and_compressed_files(trained_run: Path, tmp_path: Path):
    text, table, records = tmp_path / "a.en", tmp_path / "a.tsv", tmp_path / "a.jsonl"
    text.write_text(f"{LINE}\n\n{LINE}\n")
    table.write_text(f"1\t{LINE}\n\n2\t{LINE}\n")
    records.write_text(json.dumps({"id": 1, "text": LINE}) + "\n\n" + json.dumps({"id": 2, "text": LINE}) + "\n")
    [plain, empty, _] = call_dragoman("translate", trained_run, text, *SEARCH).stdout.splitlines()
    assert empty == ""
    out = tmp_path / "out.tsv.gz"
    done = call_dragoman("translate", trained_run, table, "--column", 2, *SEARCH, "--out", out, "--json")
    assert json.loads(done.stdout)["num_lines"] == 3
    assert gzip.decompress(out.read_bytes()).decode() == f"1\t{LINE}\t{plain}\n\n2\t{LINE}\t{plain}\n"
    done = call_dragoman("translate", trained_run, records, "--n-best", 2, "--scores", "--align")
    [first, empty, _] = done.stdout.splitlines()
    assert empty == ""
    found = json.loads(first)
    assert found["id"] == 1
    assert found["n_best"][0]["translation"] == found["translation"]
    assert len(found["n_best"]) == 2
    assert found["score"] < 0
    assert all(re.fullmatch(r"\d+-\d+", pair) for pair in found["alignment"].split())


def test_demands_are_met(trained_run: Path, tmp_path: Path):
    text = tmp_path / "a.en"
    text.write_text(f"{LINE}\n")
    last = call_dragoman("translate", trained_run, text).stdout.split()[-1]
    begun = call_dragoman("translate", trained_run, text, "--prefix", "Das Haus", "--require", "Lehrer").stdout
    assert begun.startswith("Das Haus")
    assert "Lehrer" in begun
    assert last not in call_dragoman("translate", trained_run, text, "--forbid", last).stdout.split()
    drawn = [call_dragoman("translate", trained_run, text, "--sample", "--seed", seed).stdout for seed in (1, 1, 2)]
    assert drawn[0] == drawn[1]
    assert drawn[0] != drawn[2]
    short = call_dragoman("translate", trained_run, text, "--max-length", 1).stdout
    assert len(short.split()) <= 1


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        (("--json",), "--json needs --out FILE."),
        (("--hosts", "a"), "--hosts needs --out FILE."),
        (("--engine", "ray"), "--engine ray needs --out FILE."),
        (("--top-k", 3), "--top-k needs --sample."),
        (("--format", "xml"), "--format must be text, tsv or jsonl, not 'xml'."),
        (("--column", 2, "--field", "a"), "--column belongs to TSV and --field to JSON lines; give one of them."),
        (("--beam-size", 2, "--n-best", 3), "--n-best 3 needs a beam of this size or more: --beam-size 3."),
        (("--forbid", " "), "A forbidden word must not be empty."),
        (("--require", "漢"), "The model cannot write '漢', which '漢' contains."),
    ],
)
def test_contradictions(trained_run: Path, many_lines: Path, options: tuple[object, ...], expected: str):
    assert expected in call_dragoman("translate", trained_run, many_lines, *options, code=2).stderr


def test_a_copied_model_is_the_same_model(run_copy: Path, tmp_path: Path):
    def model(checkpoint: str, *ensemble: str, **search: int) -> ModelChoice:
        return ModelChoice(str(run_copy), checkpoint, ensemble, **search).pinned()

    chosen = model("best", f"{run_copy}@49")
    copy = chosen.copy_to(tmp_path / "copy")
    assert copy.fingerprint() == chosen.fingerprint() == model("50", f"{run_copy}@49").fingerprint()
    assert not list((tmp_path / "copy").rglob("optimizer*"))
    assert copy.load(None, 1).translate([LINE]) == chosen.load(None, 1).translate([LINE])
    others = [model("best"), model("49", f"{run_copy}@49"), model("average:last:2"), model("best", beam_size=3)]
    assert len({each.fingerprint() for each in [chosen, *others]}) == 5


@pytest.mark.slow
def test_a_killed_command_continues_to_the_same_output(trained_run: Path, tmp_path: Path):
    text, out, whole = tmp_path / "long.en", tmp_path / "out.de", tmp_path / "whole.de"
    text.write_text("".join(f"The dog sees the house {number}.\n" for number in range(12_000)))
    options = [trained_run, text, *SEARCH, "--max-length", 6]
    with started("translate", *options, "--out", out, stderr=subprocess.DEVNULL) as process:
        wait_until(lambda: list(tmp_path.glob(".out.de.partial/parts-*/*/0*")), "the first part")
        process.send_signal(signal.SIGKILL)
    assert not out.exists()
    done = call_dragoman("translate", *options, "--out", out, "--json")
    assert 0 < json.loads(done.stdout)["num_lines_reused"] < 12_000
    call_dragoman("translate", *options, "--out", whole)
    assert out.read_bytes() == whole.read_bytes()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["long.en", "out.de", "whole.de"]


@pytest.mark.slow
def test_a_full_disk_is_a_plain_sentence(dragoman: Run, trained_run: Path):
    with Path("/dev/full").open("w") as full:
        done = subprocess.run(
            dragoman_command("translate", trained_run, *SEARCH),
            input=LINE + "\n", stdout=full, stderr=subprocess.PIPE, text=True, timeout=120, check=False,
        )  # fmt: skip
    assert done.returncode == 1
    assert "no space left" in done.stderr.lower()
    assert "unexpected" not in done.stderr
    assert "Traceback" not in done.stderr
    assert "Exception ignored" not in done.stderr


@pytest.mark.parametrize(
    ("command", "number"),
    [
        ("translate", signal.SIGINT),
        pytest.param("translate", signal.SIGTERM, marks=pytest.mark.slow),
        pytest.param("evaluate", signal.SIGINT, marks=pytest.mark.slow),
        pytest.param("evaluate", signal.SIGTERM, marks=pytest.mark.slow),
    ],
)
def test_a_signal_ends_all_processes(trained_run: Path, tmp_path: Path, command: str, number: signal.Signals):
    text = tmp_path / "long.en"
    text.write_text(f"{LINE} {LINE} {LINE}\n" * 20_000)
    files = [text] if command == "translate" else ["--source", text, "--reference", text]
    with (tmp_path / "out").open("w") as output, (tmp_path / "err").open("w+") as errors:
        with started(command, trained_run, *files, "--workers", 2, stdout=output, stderr=errors) as process:
            parent = psutil.Process(process.pid)
            wait_until(lambda: len(parent.children()) == 2, "two processes that translate")
            children = parent.children()
            process.send_signal(number)
            assert process.wait(60) == 1
            wait_until(lambda: not any(child.is_running() for child in children), "the end of all processes", 20)
        errors.seek(0)
        said = errors.read()
    assert said.endswith("dragoman: Stopped by Ctrl-C or a signal.\n")
    assert "Traceback" not in said


class Terminal:
    """A pseudo-terminal in which the command runs."""

    def __init__(self) -> None:
        self._ours, self.theirs = pty.openpty()
        self.shown = ""
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")  # a read may end inside a character

    def type(self, text: str) -> None:
        os.write(self._ours, text.encode())

    def wait_for(self, text: str, seconds: float = 120) -> None:
        """Reads what is shown until it contains a text, and forgets what came before."""
        end = time.monotonic() + seconds
        while text not in self.shown:
            assert time.monotonic() < end, f"{text!r} was not shown: {self.shown!r}"
            if select.select([self._ours], [], [], 0.1)[0]:
                self.shown += self._decoder.decode(os.read(self._ours, 65_536))
        self.shown = self.shown.partition(text)[2]


@pytest.fixture
def terminal() -> Iterator[Terminal]:
    terminal = Terminal()
    yield terminal
    os.close(terminal.theirs)
    os.close(terminal._ours)


def test_typing_in_a_terminal(trained_run: Path, terminal: Terminal):
    streams = dict.fromkeys(("stdin", "stdout", "stderr"), terminal.theirs)
    with started("translate", trained_run, *SEARCH, **streams, start_new_session=True) as process:
        terminal.wait_for("Type a sentence and press Enter; Ctrl-D ends.")
        terminal.wait_for("> ")
        for line in ("The dog sleeps.", "The ☃ sleeps."):
            terminal.type(f"{line}\n")
            terminal.wait_for(f"{line}\r\n")
            terminal.wait_for("\r\n")  # the translation
            if "☃" in line:
                terminal.wait_for("U+2603 (line 2)")
            terminal.wait_for("> ")
        terminal.type("\x04")
        assert process.wait(60) == 0


@pytest.mark.slow
def test_the_prompt_stays_out_of_an_output_file(trained_run: Path, terminal: Terminal, tmp_path: Path):
    output = tmp_path / "out.de"
    with (
        output.open("w") as file,
        started(
            "translate", trained_run, *SEARCH, stdin=terminal.theirs, stdout=file, stderr=terminal.theirs
        ) as process,
    ):
        terminal.wait_for("Type a sentence and press Enter; Ctrl-D ends.")
        terminal.type("The dog sleeps.\n")
        wait_until(lambda: output.read_text().count("\n") == 1, "the translation")
        terminal.type("\x04")
        assert process.wait(60) == 0
    assert "Type" not in output.read_text()
    assert ">" not in output.read_text()
