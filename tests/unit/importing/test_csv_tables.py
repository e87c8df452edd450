"""Tables of TensorBoard, Weights & Biases and users, with unreadable rows."""

import gzip
from contextlib import suppress
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from trainer_logs import is_sound, of_kind

from dragoman.importing.csv_tables import read_csv_curves
from dragoman.importing.imported_run import ImportedRun
from dragoman.run.errors import UserError


def read(*paths: Path) -> ImportedRun:
    run = ImportedRun()
    read_csv_curves(paths, run)
    return run


def table(folder: Path, text: str, name: str = "curves.csv") -> Path:
    path = folder / name
    path.write_text(text, encoding="utf-8")
    return path


def test_exports_of_tensorboard_are_named_by_their_files(tmp_path):
    head = "Wall time,Step,Value\n"
    run = read(
        table(tmp_path, head + "1600000000.0,100,3.5\n1600000050.0,200,3.0\n", "run-.-tag-train_loss.csv"),
        table(tmp_path, head + "1600000000.0,100,0.5\n", "learning_rate.csv"),
        table(tmp_path, head + "1600000060.0,200,0.375\n", "run-.-tag-Eval_BLEU_Score.csv"),
    )
    assert of_kind(run, "train") == [
        {"kind": "train", "step": 100, "loss": 3.5, "learning_rate": 0.5, "time": 1.6e9},
        {"kind": "train", "step": 200, "loss": 3.0, "time": 1.6e9 + 50, "seconds_per_step": 0.5},
    ]
    assert of_kind(run, "evaluation")[0]["teacher_forced_bleu"] == 0.375
    assert run.trainer == "CSV"


def test_an_export_of_fairseq_keeps_its_folder(tmp_path):
    run = read(table(tmp_path, "Wall time,Step,Value\n1600000000.0,100,3.5\n", "run-valid-tag-loss.csv"))
    assert of_kind(run, "evaluation")[0]["loss"] == 3.5


@pytest.mark.parametrize("delimiter", [",", ";", "\t"])
@pytest.mark.parametrize("step", ["step", "Iteration", "updates", "global_step"])
def test_tables_with_a_column_of_steps(tmp_path, delimiter, step):
    text = f"epoch,{step},train_loss,val_loss,bleu,lr\n1,100,3.5,,,0.5\n1,200,3.25,3.75,12.5,0.25\n"
    run = read(table(tmp_path, text.replace(",", delimiter)))
    assert [(record["step"], record["loss"]) for record in of_kind(run, "train")] == [(100, 3.5), (200, 3.25)]
    assert of_kind(run, "evaluation") == [{"kind": "evaluation", "step": 200, "loss": 3.75, "bleu": 12.5}]
    assert of_kind(run, "train")[1]["learning_rate"] == 0.25


def test_decimal_commas(tmp_path):
    assert of_kind(read(table(tmp_path, "step;loss\n100;3,5\n")), "train")[0]["loss"] == 3.5


def test_exports_of_weights_and_biases(tmp_path):
    text = (
        '"train/global_step","run a - train/loss","run a - train/loss__MIN","run a - train/loss__MAX",'
        '"run b - train/loss"\n'
        '"100","3.5","3.0","4.0","9.5"\n"200","","","","9.25"\n'
    )
    run = read(table(tmp_path, text))
    assert [(record["step"], record["loss"]) for record in of_kind(run, "train")] == [(100, 3.5)]
    assert any("several columns" in note for note in run.notes)


def test_bad_rows_are_left_out_and_counted(tmp_path):
    text = 'step,loss\n100,3.5\nx,3.5\n300,abc\n,\n400,3.0\n"500,3.0\n-1,2.0\n\n600\n'
    run = read(table(tmp_path, text))
    assert [record["step"] for record in of_kind(run, "train")] == [100, 400]
    assert any("5 rows" in note for note in run.notes)


def test_nan_is_seen(tmp_path):
    assert read(table(tmp_path, "step,loss\n100,3.5\n200,NaN\n")).first_nan_step == 200


def test_a_byte_order_mark_windows_lines_and_a_packed_table(tmp_path):
    path = tmp_path / "curves.csv.gz"
    path.write_bytes(gzip.compress("\ufeffstep,loss\r\n100,3.5\r\n".encode()))
    assert of_kind(read(path), "train")[0]["loss"] == 3.5


@pytest.mark.parametrize(
    ("text", "problem"), [("", "steps"), ("a,b\n1,2\n", "steps"), ("step,colour\n1,2\n", "no known column")]
)
def test_other_tables_are_refused_by_name(tmp_path, text, problem):
    with pytest.raises(UserError, match=rf"curves\.csv.*{problem}"):
        read(table(tmp_path, text))


def test_a_missing_table_is_refused_by_name(tmp_path):
    with pytest.raises(UserError, match=r"gone\.csv"):
        read(tmp_path / "gone.csv")


@given(st.text(), st.lists(st.text(alphabet='0123456789.,;e-+"naif\n\t ٣', max_size=30)))
def test_any_table_is_read_or_refused(tmp_path_factory, head, rows):
    folder = tmp_path_factory.mktemp("tables")
    assert is_sound(read(table(folder, "step,loss,bleu\n" + "\n".join(rows))))
    with suppress(UserError):
        read(table(folder, head + "\n".join(rows)))
