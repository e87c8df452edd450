"""Tables of TensorBoard, Weights & Biases and users, with unreadable rows."""

import gzip
from contextlib import suppress
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from trainer_logs import is_sound, of_kind

from dragoman.importing.curves.csv_tables import read_csv_curves, runs_in
from dragoman.importing.curves.table_layout import is_table
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


WANDB = (
    '"global_step","run a - train/loss","run a - train/loss__MIN","run a - train/loss__MAX","run b - train/loss"\n'
    '"100","3.5","3.0","4.0","9.5"\n"200","","","","9.25"\n'
)


def test_an_export_of_one_run_of_weights_and_biases(tmp_path):
    rows = [",".join(line.split(",")[:4]) for line in WANDB.splitlines()]
    run = read(table(tmp_path, "\n".join(rows)))
    assert [(record["step"], record["loss"]) for record in of_kind(run, "train")] == [(100, 3.5)]


def test_runs_in_columns_are_listed_and_read_one_by_one(tmp_path):
    path = table(tmp_path, WANDB)
    assert runs_in(path) == ["run a", "run b"]
    with pytest.raises(UserError, match=r"curves\.csv holds 2 runs \(run a, run b\)"):
        read(path)
    losses = {}
    for name in runs_in(path):
        run = ImportedRun()
        read_csv_curves([path], run, name)
        losses[name] = [(record["step"], record["loss"]) for record in of_kind(run, "train")]
    assert losses == {"run a": [(100, 3.5)], "run b": [(100, 9.5), (200, 9.25)]}


def test_runs_in_rows_are_listed_and_read_one_by_one(tmp_path):
    path = table(tmp_path, "run,step,loss\na,100,3.5\nb,100,9.5\na,200,3.25\nb,200,9.25\n")
    assert runs_in(path) == ["a", "b"]
    with pytest.raises(UserError, match="holds 2 runs"):
        read(path)
    run = ImportedRun()
    read_csv_curves([path], run, "b")
    assert [record["loss"] for record in of_kind(run, "train")] == [9.5, 9.25]
    assert runs_in(table(tmp_path, "run,step,loss\na,100,3.5\n", "one.csv")) == ["a"]
    assert runs_in(table(tmp_path, "step,loss\n100,3.5\n", "none.csv")) == [""]


def test_columns_of_no_run_are_of_all_runs(tmp_path):
    path = table(tmp_path, "step,lr,run a - train/loss\n100,0.5,3.5\n")
    assert of_kind(read(path), "train")[0]["learning_rate"] == 0.5


@pytest.mark.parametrize(
    ("text", "step"),
    [
        ('step,loss\n"12,000",3.5\n', 12_000),
        ("step,loss\n12 000,3.5\n", 12_000),
        ("step;loss\n12.000;3,5\n", 12_000),
        ("step;loss\n12000;3,5\n", 12_000),
        ("step\tloss\n12,000\t3.5\n", 12_000),
        ("step,loss\n12000.0,3.5\n", 12_000),
    ],
)
def test_thousands_separators(tmp_path, text, step):
    (record,) = of_kind(read(table(tmp_path, text)), "train")
    assert (record["step"], record["loss"]) == (step, 3.5)


def test_a_table_of_epochs_has_no_time_per_step(tmp_path):
    text = "epoch,train_loss,val_loss,timestamp\n1,3.5,3.6,1600000000\n2,3.0,3.2,1600001000\n"
    run = read(table(tmp_path, text))
    assert [record["step"] for record in of_kind(run, "train")] == [1, 2]
    assert not any("seconds_per_step" in record for record in run.records)
    assert any("has no steps: the steps on this page are epochs" in note for note in run.notes)


def test_parts_of_epochs_stay_apart(tmp_path):
    run = read(table(tmp_path, "epoch,loss\n0.25,3.5\n0.5,3.25\n1.0,3.0\n"))
    assert [record["step"] for record in of_kind(run, "train")] == [25, 50, 100]


def test_bad_rows_are_left_out_and_counted(tmp_path):
    text = 'step,loss\n100,3.5\nx,3.5\n300,abc\n,\n400,3.0\n"500,3.0\n-1,2.0\n\n600\n'
    run = read(table(tmp_path, text))
    assert [record["step"] for record in of_kind(run, "train")] == [100, 400]
    assert any("5 rows" in note for note in run.notes)


@pytest.mark.parametrize("text", ["nan", "NaN", "NAN", "inf", "Infinity", "-inf"])
def test_nan_is_seen(tmp_path, text):
    run = read(table(tmp_path, f"step,loss\n100,3.5\n200,{text}\n300,{text}\n"))
    assert (run.first_nan_step, run.last_finite_step) == (200, 100)


@pytest.mark.parametrize("text", ["", "  ", "-", "N/A", "None", "null"])
def test_an_empty_cell_is_not_nan(tmp_path, text):
    run = read(table(tmp_path, f"step,loss,lr\n100,3.5,1\n200,{text},1\n"))
    assert run.first_nan_step is None
    assert not any("could not be read" in note for note in run.notes)


def test_a_table_that_writes_nan_where_it_has_no_figure(tmp_path):
    rows = "100,3.5,nan,nan\n200,nan,3.6,10\n300,3.4,nan,nan\n400,nan,3.5,11\n"
    run = read(table(tmp_path, "step,train_loss,eval_loss,bleu\n" + rows))
    assert run.first_nan_step is None
    assert not run.failures
    assert [record["step"] for record in of_kind(run, "train")] == [100, 300]
    assert [record["step"] for record in of_kind(run, "evaluation")] == [200, 400]


def test_a_dev_loss_that_becomes_nan_is_reported(tmp_path):
    rows = "100,3.5,3.6\n200,3.4,nan\n300,3.3,nan\n"
    run = read(table(tmp_path, "step,train_loss,eval_loss\n" + rows))
    assert [failure.step for failure in run.failures] == [200]


def test_gradients_that_are_nan_to_the_end(tmp_path):
    rows = "100,3.5,1.0\n200,3.4,nan\n300,3.4,nan\n400,3.4,nan\n"
    assert read(table(tmp_path, "step,train_loss,grad_norm\n" + rows)).first_nan_step == 200
    rows = "100,3.5,nan\n200,3.4,1.0\n300,3.4,nan\n"
    assert read(table(tmp_path, "step,train_loss,grad_norm\n" + rows)).first_nan_step is None


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


NOTEBOOK = (
    " [11540/11540 1:40:08, Epoch 2/2]\n"
    "Epoch\tTraining Loss\tValidation Loss\tBleu\n1\tNo log\t1.89\t20.12\n2\t2.1\t1.70\t23.4\n"
)
CARD = """# opus-mt, a fine-tuned model

| Training Loss | Epoch | Step | Validation Loss | Bleu  |
|:-------------:|:-----:|:----:|:---------------:|:-----:|
| No log        | 1.0   | 1    | 1.89            | 20.12 |
| 2.1           | 2.0   | 2    | 1.70            | 23.4  |
"""


@pytest.mark.parametrize("text", [NOTEBOOK, CARD])
def test_tables_of_notebooks_and_model_cards(tmp_path, text):
    path = table(tmp_path, text, "copied.txt")
    assert is_table(path)
    found = of_kind(read(path), "evaluation")
    assert [(each["step"], each["loss"], each["bleu"]) for each in found] == [(1, 1.89, 20.12), (2, 1.7, 23.4)]


def test_error_rates_of_a_model_card_are_scores(tmp_path):
    path = table(tmp_path, CARD.replace("Bleu ", "Wer  "), "README.md")
    assert [each["other_scores"] for each in of_kind(read(path), "evaluation")] == [{"Wer": 20.12}, {"Wer": 23.4}]


def test_the_table_of_a_long_model_card_with_text_after_it(tmp_path):
    head = "---\nlicense: mit\n" + "- name: a\n" * 90 + "---\n"
    path = table(tmp_path, f"{head}{CARD}\n### Framework versions\n\n- Transformers 4.26.0\n", "README.md")
    assert is_table(path)
    run = read(path)
    assert [each["step"] for each in of_kind(run, "evaluation")] == [1, 2]
    assert not any("could not be read" in note for note in run.notes)


@pytest.mark.parametrize(
    "text", ["", "Epoch 1, loss 3\n", "step,time\n1,2\n", "| step |\n", "the first step, the loss\n1,2\n"]
)
def test_other_texts_are_no_tables(tmp_path, text):
    assert not is_table(table(tmp_path, text, "notes.txt"))
