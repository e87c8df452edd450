"""Event files of several trainers, whole, cut off and damaged."""

import math
import struct
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tensorboard.compat.proto.event_pb2 import Event
from tensorboard.compat.proto.summary_pb2 import Summary
from tensorboard.compat.proto.tensor_pb2 import TensorProto
from tensorboard.summary.writer.record_writer import RecordWriter
from trainer_logs import is_sound, of_kind

from dragoman.importing.curves.tensorboard import read_events
from dragoman.importing.imported_run import ImportedRun

BEGAN = 1.6e9


def event(step: int, tag: str, value: float, seconds: float = 0.0) -> Event:
    return Event(
        wall_time=BEGAN + seconds, step=step, summary=Summary(value=[Summary.Value(tag=tag, simple_value=value)])
    )


def write(path: Path, *events: Event, began: float = BEGAN) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("wb") as file:
        writer = RecordWriter(file)
        for each in (Event(wall_time=began, file_version="brain.Event:2"), *events):
            writer.write(each.SerializeToString())
    return path


def read(*paths: Path) -> ImportedRun:
    run = ImportedRun()
    read_events(paths, run)
    return run


@pytest.fixture
def path(tmp_path) -> Path:
    return tmp_path / "events.out.tfevents.1"


def test_figures_of_one_step_are_one_record(path):
    run = read(
        write(
            path,
            event(100, "train_loss", 3.0),
            event(100, "learning_rate", 0.5),
            event(200, "train_loss", 2.5, seconds=50),
            event(200, "Loss_Optimization/global_gradient_norm", 0.25, seconds=51),
            event(200, "eval_loss", 2.75, seconds=60),
        )
    )
    assert of_kind(run, "train") == [
        {"kind": "train", "step": 100, "loss": 3.0, "learning_rate": 0.5, "time": BEGAN},
        {"kind": "train", "step": 200, "loss": 2.5, "gradient_norm": 0.25, "time": BEGAN + 50, "seconds_per_step": 0.5},
    ]
    assert of_kind(run, "evaluation") == [{"kind": "evaluation", "step": 200, "loss": 2.75, "time": BEGAN + 60}]
    assert run.facts["started"] == BEGAN


def test_steps_per_second_are_better_than_the_clock(path):
    events = [event(100, "train_loss", 3.0), event(200, "train_loss", 2.5, 50), event(200, "global_step/sec", 4.0, 50)]
    first, second = of_kind(read(write(path, *events)), "train")
    assert "seconds_per_step" not in first
    assert second["seconds_per_step"] == 0.25


def test_openseq2seqs_bleu_is_teacher_forced(path):
    run = read(write(path, event(100, "Eval_BLEU_Score", 0.375)))
    assert of_kind(run, "evaluation")[0]["teacher_forced_bleu"] == 0.375
    assert run.facts["bleu_kind"] == "teacher_forced"


def test_dragomans_bleu_of_the_same_tag_is_a_real_one(path):
    assert of_kind(read(write(path, event(100, "Eval_BLEU_Score", 26.5))), "evaluation")[0]["bleu"] == 26.5


def test_another_bleu_up_to_one_is_a_share(path):
    run = read(write(path, event(100, "eval/bleu", 0.25), event(200, "eval/bleu", 0.5)))
    assert [record["bleu"] for record in of_kind(run, "evaluation")] == [25, 50]
    assert any("multiplied by 100" in note for note in run.notes)


@pytest.mark.parametrize(
    "tensor",
    [
        TensorProto(dtype=1, float_val=[2.5]),
        TensorProto(dtype=2, double_val=[2.5]),
        TensorProto(dtype=1, tensor_content=struct.pack("<f", 2.5)),
        TensorProto(dtype=2, tensor_content=struct.pack("<d", 2.5)),
    ],
)
def test_scalars_may_be_tensors(path, tensor):
    value = Summary.Value(tag="train/loss", tensor=tensor)
    run = read(write(path, Event(wall_time=BEGAN, step=1, summary=Summary(value=[value]))))
    assert of_kind(run, "train")[0]["loss"] == 2.5


def test_other_tensors_and_pictures_are_passed_over(path):
    values = [
        Summary.Value(tag="train/loss", tensor=TensorProto(dtype=1, float_val=[1, 2])),
        Summary.Value(tag="train/loss", tensor=TensorProto(dtype=7, string_val=[b"text"])),
        Summary.Value(tag="train/loss", image=Summary.Image(encoded_image_string=b"x" * 2**21)),
    ]
    events = [Event(wall_time=BEGAN, step=1, summary=Summary(value=[value])) for value in values]
    run = read(write(path, *events, event(2, "train/loss", 2.5)))
    assert [record["step"] for record in run.records] == [2]


def test_fairseqs_folders_are_part_of_the_tag_and_its_losses_have_base_2(tmp_path):
    write(tmp_path / "train_inner/events.out.tfevents.1", event(100, "loss", 4.0), event(100, "gnorm", 0.5))
    write(tmp_path / "train/events.out.tfevents.2", event(500, "loss", 9.0))
    write(tmp_path / "valid/events.out.tfevents.3", event(500, "loss", 3.0), event(500, "ppl", 8.0))
    run = read(*sorted(tmp_path.rglob("*tfevents*")))
    (train,) = of_kind(run, "train")
    assert (train["step"], train["gradient_norm"]) == (100, 0.5)
    assert train["loss"] == pytest.approx(4 * math.log(2))
    (evaluation,) = of_kind(run, "evaluation")
    assert evaluation["loss"] == pytest.approx(3 * math.log(2))
    assert evaluation["perplexity"] == 8
    assert "base 2" in run.facts["loss_unit"]
    assert any("'train_inner/loss' was used" in note for note in run.notes)


def test_opennmts_perplexity_becomes_a_loss(path):
    run = read(write(path, event(100, "progress/ppl", math.e), event(100, "progress/lr", 1.0)))
    assert of_kind(run, "train")[0]["loss"] == pytest.approx(1)
    assert any("logarithm" in note for note in run.notes)


def test_after_a_restart_the_later_points_count(tmp_path):
    first = write(
        tmp_path / "events.out.tfevents.1", *(event(step, "train_loss", 5.0, step) for step in (100, 200, 300))
    )
    again = (event(step, "train_loss", 4.0, 1000 + step) for step in (200, 250))
    second = write(tmp_path / "events.out.tfevents.2", *again)
    run = read(first, second)
    assert [(record["step"], record["loss"]) for record in of_kind(run, "train")] == [(100, 5), (200, 4), (250, 4)]
    assert [record["step"] for record in of_kind(run, "restart")] == [200]
    assert "seconds_per_step" not in of_kind(run, "train")[1]
    assert run.facts["num_attempts"] == 2


def test_a_file_that_is_cut_off_anywhere_is_read_as_far_as_it_goes(path):
    whole = write(path, *(event(step, "train_loss", 1.0) for step in range(3))).read_bytes()
    num_check_bytes = 4
    for length in range(len(whole) - num_check_bytes):
        path.write_bytes(whole[:length])
        assert len(read(path).records) <= 2
    path.write_bytes(whole)
    assert len(read(path).records) == 3


@given(st.data())
def test_a_damaged_file_never_fails(tmp_path_factory, data):
    path = tmp_path_factory.mktemp("events") / "events.out.tfevents.1"
    content = bytearray(write(path, *(event(step, "train_loss", 1.0) for step in range(3))).read_bytes())
    for place in data.draw(st.lists(st.integers(0, len(content) - 1), max_size=4)):
        content[place] = data.draw(st.integers(0, 255))
    path.write_bytes(bytes(content) + data.draw(st.binary(max_size=40)))
    assert is_sound(read(path))


@given(st.binary(max_size=200))
def test_a_record_may_hold_anything(tmp_path_factory, content):
    path = tmp_path_factory.mktemp("events") / "events.out.tfevents.1"
    with path.open("wb") as file:
        RecordWriter(file).write(content)
    assert is_sound(read(path))


def test_a_missing_file_and_no_file_leave_an_empty_run(tmp_path):
    assert read(tmp_path / "events.out.tfevents.1").is_empty
    assert read().is_empty


def test_the_start_is_the_time_of_the_first_event_of_any_kind(path):
    run = read(write(path, event(100, "train_loss", 3.0, seconds=500)))
    assert run.facts["started"] == BEGAN


def test_a_run_that_was_continued_in_another_folder_is_one_run(tmp_path):
    first = write(tmp_path / "Jan01_host/events.out.tfevents.1", *(event(s, "train/loss", 5.0, s) for s in (100, 200)))
    later = (event(s, "train/loss", 4.0, 1000 + s) for s in (200, 300))
    again = write(tmp_path / "Jan02_host/events.out.tfevents.2", *later, began=BEGAN + 1000)
    run = read(again, first)
    assert [record["loss"] for record in of_kind(run, "train")] == [5, 4, 4]


@pytest.mark.parametrize(
    ("tags", "trainer", "unit"),
    [
        (["train/loss", "train/learning_rate", "train/epoch", "train/grad_norm"], "HF Trainer", "nats per token"),
        (["train/loss", "eval/loss", "eval/samples_per_second"], "HF Trainer", "nats per token"),
        (["train/train_batch_loss"], "JoeyNMT", "unknown"),
        (["train/batch_loss", "train/batch_acc"], "JoeyNMT", "unknown"),
        (["progress/xent", "progress/ppl", "progress/tgtper"], "OpenNMT-py or Eole", "nats per token"),
        (["progress/xent", "progress/attention_entropy"], "Eole", "nats per token"),
        (["train_inner/loss", "train_inner/wps"], "fairseq", "nats per token (converted from base 2)"),
        (["Train_Loss", "Loss_Optimization/global_gradient_norm"], "OpenSeq2Seq", "nats per token"),
        (["loss", "metrics-translate_ende/accuracy"], "Tensor2Tensor", "nats per token"),
        (["train_loss_step", "hp_metric"], "PyTorch Lightning", "unknown"),
        (["train_loss"], "TensorBoard", "unknown"),
    ],
)
def test_trainers_are_known_by_their_tags(path, tags, trainer, unit):
    run = read(write(path, *(event(100, tag, 2.0) for tag in tags)))
    assert (run.trainer, run.facts["loss_unit"]) == (trainer, unit)


def test_joeynmts_dev_loss_is_the_logarithm_of_its_perplexity(path):
    tags = {"train/train_batch_loss": 60.0, "valid/valid_loss": 150_000.0, "valid/valid_ppl": math.e**2}
    run = read(write(path, *(event(100, tag, value) for tag, value in (tags | {"valid/valid_score": 12.5}).items())))
    (evaluation,) = of_kind(run, "evaluation")
    assert evaluation["loss"] == pytest.approx(2, rel=1e-6)
    assert evaluation["other_scores"] == {"score": 12.5}
    assert of_kind(run, "train")[0]["loss"] == 60
    assert run.facts["loss_unit"] == "unknown"
    assert any("do not compare" in note for note in run.notes)


@pytest.mark.parametrize(("loss", "expected"), [(2.0, 2.0), (2 / math.log(2), 2.0), (70.0, 2.0)])
def test_a_perplexity_shows_the_unit_of_the_loss_beside_it(path, loss, expected):
    events = [event(100, "dev/loss", loss), event(100, "dev/ppl", math.e**2)]
    run = read(write(path, *events))
    assert of_kind(run, "evaluation")[0]["loss"] == pytest.approx(expected, rel=1e-6)
    assert run.facts["loss_unit"] == "nats per token"


def test_tensor2tensors_evaluations(tmp_path):
    write(tmp_path / "events.out.tfevents.1", event(100, "loss", 4.0), event(100, "global_step/sec", 2.0))
    tags = {"approx_bleu_score": 0.25, "neg_log_perplexity": -1.5, "accuracy": 0.5, "accuracy_per_sequence": 0.1}
    events = [event(100, f"metrics-translate_ende_wmt32k/targets/{tag}", value) for tag, value in tags.items()]
    write(tmp_path / "eval/events.out.tfevents.2", event(100, "loss", 1.6), *events)
    run = read(*sorted(tmp_path.rglob("*tfevents*")))
    (evaluation,) = of_kind(run, "evaluation")
    assert (evaluation["loss"], evaluation["teacher_forced_bleu"], evaluation["accuracy"]) == (1.5, 0.25, 0.5)
    assert of_kind(run, "train")[0]["loss"] == 4


def test_the_end_of_a_run_of_the_hf_trainer(path):
    events = [event(step, "train/loss", 2.0, step) for step in (100, 200)]
    at_the_end = {"train/train_runtime": 250.0, "train/train_loss": 3.0, "train/train_steps_per_second": 1.0}
    run = read(write(path, *events, *(event(237, tag, value, 250) for tag, value in at_the_end.items())))
    assert (run.facts["is_finished"], run.facts["steps_done"]) == (True, 237)
    assert [record.get("seconds_per_step") for record in of_kind(run, "train")] == [None, 1]
    assert not any("several curves" in note for note in run.notes)


def test_nan_in_every_kind_of_curve(path):
    events = [event(100, "train/loss", 2.0), event(200, "train/loss", math.nan), event(200, "eval/loss", math.nan)]
    run = read(write(path, *events, event(300, "train/loss", math.nan)))
    assert (run.first_nan_step, run.last_finite_step) == (200, 100)


def test_a_loss_of_0_beside_a_gradient_that_is_nan(path):
    events = [event(100, "train/loss", 2.0), event(200, "train/loss", 0.0), event(200, "train/grad_norm", math.nan)]
    assert read(write(path, *events)).first_nan_step == 200


def test_further_scores_keep_their_names(path):
    run = read(write(path, event(100, "eval/rouge1", 0.5), event(100, "eval/ter", 60.0), event(100, "eval/loss", 2.0)))
    (evaluation,) = of_kind(run, "evaluation")
    assert (evaluation["other_scores"], evaluation["ter"]) == ({"rouge1": 0.5}, 60)


def test_the_dev_loss_of_eole_is_not_that_of_its_further_heads():
    run = ImportedRun()
    read_events([next((Path(__file__).parents[3] / "data/eole").glob("events*"))], run)
    (evaluation,) = [record for record in run.records if record["kind"] == "evaluation"]
    assert evaluation["loss"] == pytest.approx(6.9173, abs=1e-4)
    assert evaluation["accuracy"] == pytest.approx(0.192, abs=1e-3)
