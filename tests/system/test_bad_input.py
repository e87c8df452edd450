"""Wrong input ends with one short message that names the problem, exit code 1 or 2, and no data lost."""

import json
import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest
from program import Run, call_dragoman, dragoman_command

PROJECT = Path(__file__).parents[2]

LINES = [f"this is line number {number} of the text" for number in range(60)]


def write_text(path: Path, lines: list[str]) -> Path:
    path.write_bytes("".join(f"{line}\n" for line in lines).encode())
    return path


@pytest.fixture
def files(tmp_path: Path) -> tuple[Path, Path]:
    source = write_text(tmp_path / "my.en", LINES)
    return source, write_text(tmp_path / "my.de", [line[::-1] for line in LINES])


def prepare(files: tuple[Path, Path], *more: object, code: int = 0) -> str:
    """Runs `dragoman prepare` on two files and returns its standard error."""
    out = files[0].parent / "prepared"
    done = call_dragoman(
        "prepare", "--source", files[0], "--target", files[1], "--out", out, "--json", *more, code=code
    )
    assert out.exists() == (code == 0)
    assert not list(files[0].parent.glob(".prepared*"))
    assert done.stderr.count("dragoman: ") == (code != 0)
    return done.stderr


def test_unequal_line_counts_are_both_named(files: tuple[Path, Path]):
    write_text(files[1], LINES[:-7])
    message = prepare(files, code=1)
    assert "my.en has 60 lines" in message
    assert "my.de has 53" in message


def test_an_empty_file(files: tuple[Path, Path]):
    files[1].write_bytes(b"")
    assert "my.de is empty" in prepare(files, code=1)


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        (b"caf\xe9 noir\n", ["line 61", "not UTF-8", "byte offset 3", "0xe9"]),
        (b"nul \x00 byte\n", ["line 61", "NUL", "byte offset 4"]),
        (b"a " * 524_288 + b"\n", ["line 61", "1,048,576 bytes"]),
    ],
)
def test_bytes_that_are_no_text(files: tuple[Path, Path], line: bytes, expected: list[str]):
    files[0].write_bytes(files[0].read_bytes() + line)
    files[1].write_bytes(files[1].read_bytes() + b"ordinary\n")
    message = prepare(files, code=1)
    assert all(part in message for part in ["my.en", *expected])


def test_crlf_bom_and_line_separators_are_read_as_meant(files: tuple[Path, Path]):
    text = files[0].read_bytes().replace(b"line number 5 of", "line\u2028number 5 of".encode())
    files[0].write_bytes(b"\xef\xbb\xbf" + text.replace(b"\n", b"\r\n"))
    out = files[0].parent / "prepared"
    done = call_dragoman("prepare", "--source", files[0], "--target", files[1], "--out", out, "--json")
    assert "CRLF" in done.stderr
    assert "byte order mark" in done.stderr
    manifest = json.loads(done.stdout)
    assert sum(split["num_pairs"] for split in manifest["splits"].values()) == 60


def test_an_empty_side_is_left_out_and_counted(files: tuple[Path, Path]):
    write_text(files[1], ["", "  ", *(line[::-1] for line in LINES[2:])])
    prepare(files)
    out = files[0].parent / "prepared"
    [record] = [
        each
        for each in json.loads((out / "manifest.json").read_text())["cleaning"]["filters"]
        if each["name"] == "empty"
    ]
    assert record["num_dropped"] == 2
    assert record["examples"][0]["place"] == f"{files[0]}, line 1"
    assert "a side without text | 2 |" in (out / "cleaning.md").read_text()


def test_text_of_which_cleaning_leaves_nothing(files: tuple[Path, Path]):
    write_text(files[1], LINES)
    message = prepare(files, code=1)
    assert "Cleaning dropped all 60 pairs (identical 60)" in message
    assert "--filter identical=off" in message
    prepare(files, "--filter", "identical=off")


def test_a_vocabulary_larger_than_the_text_supports(files: tuple[Path, Path]):
    message = prepare(files, "--vocab-size", 8000, code=1)
    assert "8000" in message
    assert "--vocab-size" in message


def test_an_output_folder_in_the_way(files: tuple[Path, Path]):
    out = files[0].parent / "prepared"
    out.mkdir()
    (out / "precious.txt").write_text("mine")
    done = call_dragoman("prepare", "--source", files[0], "--target", files[1], "--out", out, code=1)
    assert "exists already" in done.stderr
    assert (out / "precious.txt").read_text() == "mine"


@pytest.mark.parametrize(
    ("change", "code", "expected"),
    [
        (["--set", "training.max_step=5"], 2, "did you mean 'training.max_steps'?"),
        (["--set", "training.max_steps=many"], 2, "training.max_steps"),
        (["--set", "model.preset=tinny"], 2, "did you mean 'tiny'"),
        (["--workers", "5"], 2, "5 workers cannot share 4 virtual workers"),
        (["--set", "data.prepared=nowhere"], 1, "nowhere"),
        (["--resume"], 1, "nothing to resume"),
    ],
)
def test_training_that_cannot_begin(config: Path, tmp_path: Path, change: list[str], code: int, expected: str):
    done = call_dragoman("train", config, "--run-dir", tmp_path / "run", *change, code=code)
    assert expected in done.stderr
    assert len(done.stderr.strip().splitlines()) == 1
    assert not (tmp_path / "run").exists()


def test_a_run_folder_that_already_exists(run_copy: Path):
    before = sorted(run_copy.rglob("*"))
    done = call_dragoman("train", run_copy / "config.toml", "--run-dir", run_copy, code=1)
    assert "already holds a run" in done.stderr
    assert "--resume" in done.stderr
    assert sorted(run_copy.rglob("*")) == before


@pytest.mark.parametrize("command", ["translate", "evaluate"])
def test_no_run_and_no_checkpoint(run_copy: Path, tmp_path: Path, command: str):
    assert "There is no run folder" in call_dragoman(command, tmp_path / "nowhere", code=1).stderr
    shutil.rmtree(run_copy / "checkpoints")
    assert "has no checkpoint yet" in call_dragoman(command, run_copy, code=1).stderr
    done = call_dragoman("train", "--resume", "--run-dir", run_copy, code=1)
    assert "no checkpoint to resume" in done.stderr


@pytest.mark.parametrize("damage", ["missing", "truncated", "garbage"])
def test_a_half_written_checkpoint(run_copy: Path, damage: str):
    for weights in run_copy.glob("checkpoints/step-*/model.safetensors"):
        content = weights.read_bytes()
        match damage:
            case "missing":
                weights.unlink()
            case "truncated":
                weights.write_bytes(content[: len(content) // 2])
            case "garbage":
                weights.write_bytes(b"\x80\x04cos\nsystem\n")
    done = call_dragoman("translate", run_copy, code=1)
    assert "model.safetensors" in done.stderr
    assert len(done.stderr.strip().splitlines()) == 1
    assert "no checkpoint to resume" in call_dragoman("train", "--resume", "--run-dir", run_copy, code=1).stderr


@pytest.mark.slow
def test_a_checkpoint_of_another_model_size(dragoman: Run, run_copy: Path):
    config = run_copy / "config.toml"
    config.write_text(config.read_text().replace('preset = "tiny"', 'preset = "small"'))
    assert "is from another model" in dragoman("translate", run_copy, code=1, input="A line.\n").stderr
    done = dragoman("train", "--resume", "--run-dir", run_copy, "--set", "training.max_steps=52", code=1)
    assert "is from another model" in done.stderr
    assert "encoder_layers: 2, 3; decoder_layers: 2, 3" in done.stderr


def test_settings_that_decide_the_order_of_sentences_cannot_change_on_resume(run_copy: Path):
    done = call_dragoman("train", "--resume", "--run-dir", run_copy, "--set", "training.seed=9", code=2)
    assert "must keep training.seed = 1" in done.stderr


def test_source_and_reference_of_different_lengths(trained_run: Path, tmp_path: Path):
    source, reference = write_text(tmp_path / "a", LINES[:3]), write_text(tmp_path / "b", LINES[:2])
    done = call_dragoman("evaluate", trained_run, "--source", source, "--reference", reference, code=1)
    assert "a has 3 lines but" in done.stderr


# Nothing can be created in /proc and /sys, not even by root.
@pytest.mark.parametrize("place", ["/proc/x", "/sys/x", "FILE/x", "FILE", "x" * 300])
@pytest.mark.parametrize(
    "command", ["train CONFIG --run-dir", "demo --run-dir", "report RUN --output", "data builtin --out"]
)
def test_a_folder_that_cannot_be_created(config: Path, trained_run: Path, tmp_path: Path, command: str, place: str):
    (tmp_path / "file").write_text("mine")
    before = sorted(tmp_path.rglob("*"))
    names = {"CONFIG": str(config), "RUN": str(trained_run)}
    words = [names.get(word, word) for word in command.split()]
    done = call_dragoman(*words, place.replace("FILE", str(tmp_path / "file")), code=1)
    assert re.search("cannot be written|Cannot use|is not a run folder", done.stderr)
    assert "unexpected" not in done.stderr
    assert "Errno" not in done.stderr
    assert len(done.stderr.strip().splitlines()) == 1
    assert sorted(tmp_path.rglob("*")) == before


@pytest.mark.parametrize(
    ("output", "reason"),
    [("nowhere/x", "there is no folder "), (".", "it is a folder, not a file")],
)
def test_evaluate_checks_its_output_first(trained_run: Path, tmp_path: Path, output: str, reason: str):
    done = call_dragoman("evaluate", trained_run, "--output", tmp_path / output, code=1)
    assert f"cannot be written: {reason}" in done.stderr
    assert len(done.stderr.strip().splitlines()) == 1


@pytest.mark.parametrize("command", ["presets", "presets --json", "plan", "--help", "--version", "data list"])
def test_output_to_a_full_disk_is_one_message(command: str):
    with Path("/dev/full").open("w") as full:
        done = subprocess.run(
            dragoman_command(*command.split()), stdout=full, stderr=subprocess.PIPE, text=True, check=False
        )
    assert done.returncode == 1
    assert re.fullmatch(r"dragoman: .* cannot be .*written: there is no space left on the disk\.\n", done.stderr)


def test_errors_to_a_full_disk_keep_their_exit_code():
    with Path("/dev/full").open("w") as full:
        done = subprocess.run(dragoman_command("train", "nowhere.toml"), stderr=full, check=False)
    assert done.returncode == 2


@pytest.mark.parametrize("encoding", ["ascii", "latin-1"])
@pytest.mark.parametrize("command", ["plan", "plan --json", "data list"])
def test_a_terminal_without_unicode_still_gets_everything(encoding: str, command: str):
    done = subprocess.run(
        dragoman_command(*command.split()),
        env=os.environ | {"PYTHONIOENCODING": encoding},
        capture_output=True,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, b"")
    text = done.stdout.decode(encoding)
    assert "json" not in command or json.loads(text)


def test_a_current_folder_that_was_deleted(tmp_path: Path):
    script = 'rmdir "$PWD"; exec "$@"'
    words = ["bash", "-c", script, "-", *dragoman_command("plan")]
    done = subprocess.run(
        words, cwd=tmp_path, env=os.environ | {"PYTHONPATH": str(PROJECT)}, capture_output=True, text=True, check=False
    )
    assert done.returncode == 1
    assert done.stderr == "dragoman: The current folder does not exist any more: change to another folder.\n"


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (MemoryError(), "There is not enough memory for this."),
        (ImportError("libtorch_cpu.so: failed to map segment from shared object"), "There is not enough memory"),
        (
            RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried to allocate 9 bytes"),
            "There is not enough",
        ),
        (ModuleNotFoundError("No module named 'torch'", name="torch"), "The Python package torch is not installed"),
        (RecursionError("maximum recursion depth exceeded"), "The input is nested too deeply"),
        (OSError(5, "Input/output error", "corpus"), "Cannot use 'corpus': the disk reports an input/output error."),
        (OSError(28, "No space left on device"), "A file cannot be read or written: there is no space left"),
        (UnicodeEncodeError("ascii", "ü", 0, 1, "ordinal not in range"), "The output uses the encoding ascii"),
    ],
)
def test_what_no_command_expects_is_explained_too(
    error: Exception, words: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
):
    def fail(*_: object) -> None:
        raise error

    monkeypatch.setattr("dragoman.model.shape.preset_names", fail)
    assert words in call_dragoman("presets", code=1).stderr
