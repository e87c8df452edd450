"""Whatever is wrong with what a person gives: one or two sentences that name it, exit code 1 or 2, nothing lost."""

import json
import shutil
from pathlib import Path

import pytest
from program import Run

LINES = [f"this is line number {number} of the text" for number in range(60)]


def write_text(path: Path, lines: list[str]) -> Path:
    path.write_bytes("".join(f"{line}\n" for line in lines).encode())
    return path


@pytest.fixture
def files(tmp_path: Path) -> tuple[Path, Path]:
    source = write_text(tmp_path / "my.en", LINES)
    return source, write_text(tmp_path / "my.de", [line[::-1] for line in LINES])


def prepare(dragoman: Run, files: tuple[Path, Path], *more: object, code: int = 0) -> str:
    """Runs `dragoman prepare` on two files and returns what it said on standard error."""
    out = files[0].parent / "prepared"
    done = dragoman("prepare", "--source", files[0], "--target", files[1], "--out", out, "--json", *more, code=code)
    assert out.exists() == (code == 0)
    assert not list(files[0].parent.glob(".prepared*"))
    assert done.stderr.count("dragoman: ") == (code != 0)
    return done.stderr


def test_unequal_line_counts_are_both_named(dragoman: Run, files: tuple[Path, Path]):
    write_text(files[1], LINES[:-7])
    message = prepare(dragoman, files, code=1)
    assert "my.en has 60 lines" in message
    assert "my.de has 53" in message


def test_an_empty_file(dragoman: Run, files: tuple[Path, Path]):
    files[1].write_bytes(b"")
    assert "my.de is empty" in prepare(dragoman, files, code=1)


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        (b"caf\xe9 noir\n", ["line 61", "not UTF-8", "byte offset 3", "0xe9"]),
        (b"nul \x00 byte\n", ["line 61", "NUL", "byte offset 4"]),
        (b"a " * 524_288 + b"\n", ["line 61", "1,048,576 bytes"]),
    ],
)
def test_bytes_that_are_no_text(dragoman: Run, files: tuple[Path, Path], line: bytes, expected: list[str]):
    files[0].write_bytes(files[0].read_bytes() + line)
    files[1].write_bytes(files[1].read_bytes() + b"ordinary\n")
    message = prepare(dragoman, files, code=1)
    assert all(part in message for part in ["my.en", *expected])


def test_crlf_bom_and_line_separators_are_read_as_people_mean_them(dragoman: Run, files: tuple[Path, Path]):
    text = files[0].read_bytes().replace(b"line number 5 of", "line\u2028number 5 of".encode())
    files[0].write_bytes(b"\xef\xbb\xbf" + text.replace(b"\n", b"\r\n"))
    out = files[0].parent / "prepared"
    done = dragoman("prepare", "--source", files[0], "--target", files[1], "--out", out, "--json")
    assert "CRLF" in done.stderr
    assert "byte order mark" in done.stderr
    manifest = json.loads(done.stdout)
    assert sum(split["num_pairs"] for split in manifest["splits"].values()) == 60


def test_an_empty_side_is_left_out_and_counted(dragoman: Run, files: tuple[Path, Path]):
    write_text(files[1], ["", "  ", *(line[::-1] for line in LINES[2:])])
    prepare(dragoman, files)
    out = files[0].parent / "prepared"
    [record] = [
        each
        for each in json.loads((out / "manifest.json").read_text())["cleaning"]["filters"]
        if each["name"] == "empty"
    ]
    assert record["num_dropped"] == 2
    assert record["examples"][0]["place"] == f"{files[0]}, line 1"
    assert "a side without text | 2 |" in (out / "cleaning.md").read_text()


def test_text_of_which_cleaning_leaves_nothing(dragoman: Run, files: tuple[Path, Path]):
    write_text(files[1], LINES)
    message = prepare(dragoman, files, code=1)
    assert "Cleaning dropped all 60 pairs (identical 60)" in message
    assert "--filter identical=off" in message
    prepare(dragoman, files, "--filter", "identical=off")


def test_a_vocabulary_larger_than_the_text_supports(dragoman: Run, files: tuple[Path, Path]):
    message = prepare(dragoman, files, "--vocab-size", 8000, code=1)
    assert "8000" in message
    assert "--vocab-size" in message


def test_an_output_folder_in_the_way(dragoman: Run, files: tuple[Path, Path]):
    out = files[0].parent / "prepared"
    out.mkdir()
    (out / "precious.txt").write_text("mine")
    done = dragoman("prepare", "--source", files[0], "--target", files[1], "--out", out, code=1)
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
def test_training_that_cannot_begin(
    dragoman: Run, config: Path, tmp_path: Path, change: list[str], code: int, expected: str
):
    done = dragoman("train", config, "--run-dir", tmp_path / "run", *change, code=code)
    assert expected in done.stderr
    assert len(done.stderr.strip().splitlines()) == 1
    assert not (tmp_path / "run").exists()


@pytest.fixture(scope="module")
def finished_run(dragoman: Run, prepared: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("finished")
    (folder / "config.toml").write_text(f'[data]\nprepared = "{prepared}"\n[model]\npreset = "tiny"\n')
    dragoman(
        "train", folder / "config.toml", "--run-dir", folder / "run", "--set", "training.max_steps=2",
        "--set", "evaluation.max_sentences=2", "--set", "training.global_batch_tokens=1000",
    )  # fmt: skip
    return folder / "run"


@pytest.fixture
def run(finished_run: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(finished_run, tmp_path / "run", symlinks=True))


def test_a_run_folder_that_already_exists(dragoman: Run, run: Path):
    before = sorted(run.rglob("*"))
    done = dragoman("train", run / "config.toml", "--run-dir", run, code=1)
    assert "already holds a run" in done.stderr
    assert "--resume" in done.stderr
    assert sorted(run.rglob("*")) == before


@pytest.mark.parametrize("command", ["translate", "evaluate"])
def test_no_run_and_no_checkpoint(dragoman: Run, run: Path, tmp_path: Path, command: str):
    assert "There is no run folder" in dragoman(command, tmp_path / "nowhere", code=1, input="").stderr
    shutil.rmtree(run / "checkpoints")
    assert "has no checkpoint yet" in dragoman(command, run, code=1, input="").stderr
    done = dragoman("train", "--resume", "--run-dir", run, code=1)
    assert "no checkpoint to resume" in done.stderr


@pytest.mark.parametrize("damage", ["missing", "truncated", "garbage"])
def test_a_half_written_checkpoint(dragoman: Run, run: Path, damage: str):
    for weights in run.glob("checkpoints/step-*/model.safetensors"):
        content = weights.read_bytes()
        match damage:
            case "missing":
                weights.unlink()
            case "truncated":
                weights.write_bytes(content[: len(content) // 2])
            case "garbage":
                weights.write_bytes(b"\x80\x04cos\nsystem\n")
    done = dragoman("translate", run, code=1, input="A line.\n")
    assert "model.safetensors" in done.stderr
    assert len(done.stderr.strip().splitlines()) == 1
    assert "no checkpoint to resume" in dragoman("train", "--resume", "--run-dir", run, code=1).stderr


@pytest.mark.slow
def test_a_checkpoint_of_another_model_size(dragoman: Run, run: Path):
    config = run / "config.toml"
    config.write_text(config.read_text().replace('preset = "tiny"', 'preset = "small"'))
    assert "is from another model" in dragoman("translate", run, code=1, input="A line.\n").stderr
    done = dragoman("train", "--resume", "--run-dir", run, "--set", "training.max_steps=3", code=1)
    assert "is from another model" in done.stderr
    assert "width: 128, 256" in done.stderr


def test_settings_that_decide_the_order_of_sentences_cannot_change_on_resume(dragoman: Run, run: Path):
    done = dragoman("train", "--resume", "--run-dir", run, "--set", "training.seed=9", code=2)
    assert "must keep training.seed = 1" in done.stderr


def test_source_and_reference_of_different_lengths(dragoman: Run, run: Path, tmp_path: Path):
    source, reference = write_text(tmp_path / "a", LINES[:3]), write_text(tmp_path / "b", LINES[:2])
    done = dragoman("evaluate", run, "--source", source, "--reference", reference, code=1)
    assert "a has 3 lines but" in done.stderr


def test_no_space_for_the_run(dragoman: Run, config: Path):
    # /dev/full's neighbour: a folder nothing can be created in, for root too.
    done = dragoman("train", config, "--run-dir", "/proc/dragoman-run", code=1)
    assert "cannot be written" in done.stderr
