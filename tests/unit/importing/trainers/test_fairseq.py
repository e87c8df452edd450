"""fairseq's lines of several versions and formats, as real runs wrote them."""

import math
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from trainer_logs import is_sound, of_kind, reading_with

from dragoman.importing.trainers.fairseq import FairseqReader, is_own_line

START = """\
2023-06-13 17:29:38 | INFO | fairseq.distributed_utils | initialized host gpu1 as rank 0
2023-06-13 17:29:38 | INFO | fairseq.distributed_utils | initialized host gpu1 as rank 1
2023-06-13 17:29:38 | INFO | fairseq.distributed_utils | initialized host gpu2 as rank 2
2023-06-13 17:29:41 | INFO | fairseq_cli.train | Namespace(activation_dropout=0.0, adam_betas='(0.9, 0.98)', \
adam_eps=1e-06, batch_size=None, clip_norm=5.0, decoder_layers=6, distributed_world_size=4, dropout=0.3, \
encoder_attention_heads=8, encoder_embed_dim=512, encoder_ffn_embed_dim=2048, encoder_layers=6, eval_bleu=True, \
eval_tokenized_bleu=True, fp16=True, label_smoothing=0.1, log_interval=100, lr=[0.0005], lr_scheduler='inverse_sqrt', \
max_update=300000, save_dir='/data/checkpoints', source_lang='en', target_lang='ro', update_freq=[2], \
warmup_updates=4000, weight_decay=0.01)
2023-06-13 17:29:41 | INFO | fairseq.tasks.translation | [en] dictionary: 34983 types
2023-06-13 17:29:47 | INFO | fairseq_cli.train | num. shared model params: 60,880,896 (num. trained: 60,880,896)
2023-06-13 17:29:47 | INFO | fairseq.utils | rank   0: capabilities =  8.6  ; total memory = 23.700 GB ; name = RTX 3090
2023-06-13 17:29:47 | INFO | fairseq_cli.train | training on 4 devices (GPUs/TPUs)
2023-06-13 17:29:47 | INFO | fairseq_cli.train | max tokens per device = 4096 and max sentences per device = 128
2023-06-13 17:29:55 | INFO | fairseq.data.data_utils | loaded 608319 examples from: /bin/train.en-ro.en
2023-06-13 17:29:55 | INFO | fairseq.data.data_utils | loaded 608319 examples from: /bin/train.en-ro.ro"""
TRAIN = (
    "2023-06-13 17:31:54 | INFO | train_inner | epoch 143:    185 / 282 loss=3.153, nll_loss=1.243, ppl=8.89, "
    "wps=132396, ups=2.18, wpb=60718.4, bsz=2141.4, num_updates=40200, lr=0.00015772, gnorm=0.483, clip=0, "
    "loss_scale=32768, train_wall=46, wall=119"
)
VALID = (
    "2023-06-13 17:32:41 | INFO | valid | epoch 143 | valid on 'valid' subset | loss 4.361 | nll_loss 2.644 | "
    "length 4.375 | ppl 6.25 | bleu 29.52 | wps 88225 | wpb 21176.3 | bsz 666.3 | num_updates 40297 | best_bleu 30.53"
)
DATA = Path(__file__).parents[3] / "data/fairseq"
TEXT_2017 = (DATA / "text_2017.log").read_text(encoding="utf-8").splitlines()
VALID_LOSS_2018 = (DATA / "valid_loss_2018.log").read_text(encoding="utf-8").splitlines()
BEGIN = '2023-06-13 17:32:38 | INFO | fairseq_cli.train | begin validation on "valid" subset'
SAVED = (
    "2023-06-13 17:32:53 | INFO | fairseq.checkpoint_utils | saved checkpoint /c/checkpoint143.pt "
    "(epoch 143 @ 40297 updates, score 29.52) (writing took 12.25 seconds)"
)
JSON_LINES = [
    '{"epoch": 1, "update": 0.08, "loss": "15.180", "wps": 1000, "num_updates": 11, "lr": 1.1e-07}',
    '{"epoch": 1, "valid_loss": "4", "valid_nll_loss": "3", "valid_ppl": "8", "valid_num_updates": "300"}',
]
read = reading_with(FairseqReader)


def test_a_training_line_is_converted_to_nats_and_seconds():
    (record,) = of_kind(read(TRAIN), "train")
    assert record["step"] == 40200
    assert record["loss"] == pytest.approx(3.153 * math.log(2))
    assert record["negative_log_likelihood"] == pytest.approx(1.243 * math.log(2))
    assert record["seconds_per_step"] == pytest.approx(60718.4 / 132396)
    assert record["training_seconds"] == 119
    assert record["time"] == 1686677514
    assert (record["learning_rate"], record["gradient_norm"], record["loss_scale"]) == (0.00015772, 0.483, 32768)


@pytest.mark.parametrize(
    "line",
    [
        "| epoch 001:     10 / 31621 loss=15.180, nll_loss=15.180, ppl=37113.65, wps=132197, ups=0, wpb=127729.455, "
        "bsz=256.000, num_updates=11, lr=1.1e-07, gnorm=4.208, clip=0.000, oom=0.000, loss_scale=128.000, wall=704",
        "epoch 001:  10%|█ | 100/1000 [00:30<04:30, 3.33it/s, loss=15.180, ppl=12, num_updates=11, lr=1.1e-07]",
        '2020-02-28 16:17:37 | INFO | train_inner | {"epoch": 1, "update": 0.08, "loss": "15.180", "wps": "1000", '
        '"wpb": "500", "num_updates": "11", "lr": "1.1e-07", "train_wall": "46", "wall": "400"}',
        "2020-02-28 16:17:37 | INFO | train | epoch 001 | loss 15.180 | ppl 12 | num_updates 11 | lr 1.1e-07",
        '2020-02-28 16:17:37 | INFO | train | {"epoch": 1, "train_loss": "15.180", "train_num_updates": "11", '
        '"train_lr": "1.1e-07", "train_train_wall": "46", "train_wall": "400"}',
        "| epoch 001:  10%|# | 100/1000 [00:30<04:30, 3.33it/s, loss=15.180, lr=1.1e-07, num_updates=11, ppl=12]"
        "2021-04-01 12:00:00 | INFO | fairseq_cli.train | begin save checkpoint",
        '{"epoch": 1, "update": 0.08, "loss": "15.180", "wps": 1000, "num_updates": 11, "lr": 1.1e-07}',
        '{"epoch": 1, "loss": "15.180", "nll_loss": "15.180", "ppl": "37113.65", "num_updates": 11, "lr": 1.1e-07}',
        '[2022-03-13 06:33:53,549][train_inner][INFO] - {"epoch": 1, "update": 0.08, "loss": "15.180", '
        '"num_updates": "11", "lr": "1.1e-07"}',
        "[2022-03-13 06:33:53,549][train_inner][INFO] - epoch 001:   100 / 487 loss=15.18, num_updates=11, lr=1.1e-07",
        "| epoch 001 | loss 15.180 | nll_loss 15.180 | ppl 37113.65 | wps 1.2e+06 | ups 2.9 | wpb 417527 | bsz 14128 | "
        "num_updates 11 | lr 1.1e-07 | gnorm 0.328 | clip 100% | oom 0 | loss_scale 1.000 | wall 9782",
        "0: | epoch 001 | loss 15.180 | num_updates 11 | lr 1.1e-07",
    ],
    ids=[
        "0.9",
        "tqdm",
        "json",
        "epoch",
        "json of an epoch",
        "tqdm before a message",
        "plain json",
        "plain json of an epoch",
        "hydra json",
        "hydra text",
        "2018",
        "with the rank before it",
    ],
)
def test_every_format_gives_the_step_the_loss_and_the_rate(line):
    (record,) = of_kind(read(line), "train")
    assert record["step"] == 11
    assert record["loss"] == pytest.approx(15.18 * math.log(2))
    assert record["learning_rate"] == 1.1e-07


def test_means_over_epochs_are_left_out_where_single_steps_are_logged():
    epoch = "2023-06-13 17:32:53 | INFO | train | epoch 143 | loss 3.14 | num_updates 40297 | lr 1e-05"
    assert [record["step"] for record in of_kind(read(TRAIN, epoch), "train")] == [40200]


def test_an_evaluation_has_loss_bleu_and_its_duration():
    (record,) = of_kind(read(BEGIN, VALID), "evaluation")
    assert record["step"] == 40297
    assert record["loss"] == pytest.approx(4.361 * math.log(2))
    assert (record["bleu"], record["perplexity"], record["seconds"]) == (29.52, 6.25, 3.0)


def test_an_evaluation_in_json():
    line = '2020-02-28 | INFO | valid | {"epoch": 1, "valid_loss": "4", "valid_ppl": "8", "valid_num_updates": "40300"}'
    (record,) = of_kind(read(line), "evaluation")
    assert (record["step"], record["perplexity"]) == (40300, 8)


@pytest.mark.parametrize(
    "line",
    [
        "| epoch 001 | valid on 'valid' subset | valid_loss 4 | valid_nll_loss 3 | valid_ppl 8 | num_updates 300",
        "| epoch 001 | valid on 'valid' subset | loss 4 | nll_loss 3.000 | ppl 8.00 | num_updates 300 | best_loss 4",
        '{"epoch": 1, "valid_loss": 4.0, "valid_nll_loss": 3.0, "valid_ppl": "8.00", "num_updates": 300}',
        '{"epoch": 1, "valid_loss": "4", "valid_nll_loss": "3", "valid_ppl": "8", "valid_num_updates": "300"}',
        '[2022-03-13 06:33:53,549][valid][INFO] - {"epoch": 1, "valid_loss": "4", "valid_nll_loss": "3", '
        '"valid_ppl": "8", "valid_num_updates": "300"}',
        '[2022-03-13 06:33:53,549][dev_other][INFO] - {"epoch": 1, "dev_other_loss": "4", "dev_other_nll_loss": "3", '
        '"dev_other_ppl": "8", "dev_other_num_updates": "300"}',
    ],
)
def test_every_format_of_an_evaluation(line):
    (record,) = of_kind(read(line), "evaluation")
    assert (record["step"], record["perplexity"]) == (300, 8)
    assert record["loss"] == pytest.approx(4 * math.log(2))
    assert record["negative_log_likelihood"] == pytest.approx(3 * math.log(2))


def test_text_of_2017_has_steps_by_its_epochs_and_batches():
    run = read(*TEXT_2017)
    train = of_kind(run, "train")
    assert [record["step"] for record in train] == [9 * 8223 + 2000, 9 * 8223 + 3000, 9 * 8223 + 8000, 10 * 8223 + 1000]
    assert train[0]["loss"] == pytest.approx(1.50 * math.log(2))
    assert train[0]["seconds_per_step"] == pytest.approx(908 / 962)
    (evaluation,) = of_kind(run, "evaluation")
    assert (evaluation["step"], evaluation["perplexity"]) == (10 * 8223, 3.83)
    assert evaluation["loss"] == pytest.approx(1.94 * math.log(2))
    assert run.facts["begins_midway"] is True
    assert any("steps were counted from epochs" in note for note in run.notes)


def test_steps_of_2017_are_fewer_on_several_gpus():
    run = read("| using 4 GPUs (with max tokens per GPU = 4000)", *TEXT_2017)
    assert of_kind(run, "train")[0]["step"] == (9 * 8223 + 2000) // 4


def test_epochs_of_2017_alone_have_estimated_steps():
    epoch = next(line for line in TEXT_2017 if "train loss" in line)
    (record,) = of_kind(read(epoch), "train")
    assert record["step"] == pytest.approx(10 * 8223, rel=0.001)


def test_valid_loss_of_2018_belongs_to_the_step_before_it():
    run = read(*VALID_LOSS_2018)
    assert [record["step"] for record in of_kind(run, "train")] == [24207, 24574, 24940, 25307]
    evaluations = of_kind(run, "evaluation")
    assert [record["step"] for record in evaluations] == [24207, 24574, 24940, 25307]
    assert evaluations[0]["loss"] == pytest.approx(3.68436 * math.log(2))
    assert evaluations[0]["negative_log_likelihood"] == pytest.approx(1.92702 * math.log(2))
    assert (run.facts["begins_midway"], run.facts["epochs_done"], run.facts["steps_done"]) == (True, 69, 25307)
    assert run.facts["loss_unit"] == "nats per token"


def test_evaluations_without_any_step_are_not_lost():
    valid = [line for line in VALID_LOSS_2018 if "valid_loss" in line]
    assert [record["step"] for record in of_kind(read(*valid), "evaluation")] == [66, 67, 68, 69]


def test_a_progress_bar_of_the_dev_set_is_no_evaluation():
    bar = "epoch 001 | valid on 'valid' subset:  10%|# | 10/100 [00:03<00:27, 3.33it/s]"
    assert of_kind(read(bar), "evaluation") == []


def test_a_progress_bar_that_repeats_itself_is_one_record():
    bar = "epoch 001:  10%|# | {}/1000 [00:30<04:30, 3.33it/s, loss=15.180, num_updates=100]"
    assert len(of_kind(read(*(bar.format(number) for number in range(100, 110))), "train")) == 1


def test_a_progress_bar_gets_its_time_from_the_seconds_since_the_start():
    bar = "epoch 001:  10%|# | 100/1000 [00:30<04:30, 3.33it/s, loss=15.180, num_updates=100, wall=119]"
    assert "time" not in of_kind(read(bar), "train")[0]
    start = START.split("\n")
    (record,) = of_kind(read(*start, bar), "train")
    assert record["time"] == read(*start).facts["started"] + 119


def test_evaluations_and_checkpoints_are_no_part_of_a_step():
    after = TRAIN.replace("40200", "40300").replace("wps=132396", "wps=89307.1")
    run = read(TRAIN, BEGIN, VALID, SAVED, after)
    assert of_kind(run, "train")[-1]["seconds_per_step"] == pytest.approx(60718.4 / 89307.1 - (3 + 12.25) / 100)
    assert run.facts["step_time_includes_evaluation"] is False


def test_with_log_format_none_the_scores_of_checkpoints_are_evaluations():
    config = START.replace("eval_bleu=True", "eval_bleu=True, best_checkpoint_metric='bleu'").split("\n")
    run = read(*config, BEGIN, SAVED)
    (record,) = of_kind(run, "evaluation")
    assert (record["step"], record["bleu"], run.facts["steps_done"]) == (40297, 29.52, 40297)
    assert len(of_kind(read(*config, VALID, SAVED), "evaluation")) == 1


@pytest.mark.parametrize(
    ("lines", "is_finished"),
    [
        ([TRAIN], None),
        ([TRAIN, "| done training in 24.2 seconds"], True),
        ([TRAIN.replace("num_updates=40200", "num_updates=300000")], True),
        (["| done training in 24.2 seconds", TRAIN], None),
    ],
)
def test_when_a_run_is_finished(lines, is_finished):
    run = read(*START.split("\n"), *lines)
    assert run.facts.get("is_finished") is is_finished


def test_a_run_that_stopped_early():
    stop = "| early stop since valid performance hasn't improved for last 10 runs"
    run = read(*START.split("\n"), TRAIN, stop, "| done training in 24.2 seconds")
    assert run.launches[-1].reason == "fairseq stopped early: valid performance hasn't improved for last 10 runs."


def test_launches_begin_with_a_configuration():
    end = "2023-06-13 17:40:00 | INFO | fairseq_cli.train | done training in 24.2 seconds"
    run = read(*START.split("\n"), TRAIN, end, *START.split("\n"), TRAIN.replace("40200", "40300"))
    assert [(launch.end, launch.last_step) for launch in run.launches] == [("finished", 40200), ("unknown", 40300)]


def test_the_configuration_of_another_program_is_no_launch():
    generate = "Namespace(beam=5, path='checkpoint_best.pt', lenpen=1.0, gen_subset='test')"
    run = read(*START.split("\n"), TRAIN, generate)
    assert (len(run.launches), run.facts["num_attempts"]) == (1, 1)


def test_epochs_and_the_steps_planned_for_them():
    config = START.replace("max_update=300000", "max_update=0, max_epoch=200").split("\n")
    facts = read(*config, TRAIN).facts
    assert (facts["epochs_planned"], facts["warmup_steps"]) == (200, 4000)
    assert facts["epochs_done"] == pytest.approx(142 + 185 / 282)
    assert facts["steps_planned"] == pytest.approx(200 * 40200 / facts["epochs_done"], abs=1)


@pytest.mark.parametrize(
    ("lines", "is_midway"),
    [
        ([TRAIN], True),
        ([TRAIN.replace("143:", "001:").replace("40200", "100"), TRAIN.replace("143:", "001:")], False),
        ([*START.split("\n"), TRAIN.replace("143:", "001:").replace("40200", "100")], False),
        (["| loaded checkpoint /c/c.pt (epoch 1 @ 90 updates)", TRAIN.replace("143:", "001:")], True),
    ],
)
def test_a_log_that_begins_midway(lines, is_midway):
    assert read(*lines).facts.get("begins_midway", False) is is_midway


def test_the_metric_of_the_best_checkpoint_and_other_scores():
    run = read(
        VALID.replace("length 4.375", "length 4.375 | wer 12.5 | word_ins 12.4").replace("best_bleu", "best_wer")
    )
    assert run.facts["metric"] == "wer"
    assert of_kind(run, "evaluation")[0]["other_scores"] == {"wer": 12.5}


def test_only_the_first_dev_set_is_taken():
    run = read(VALID, VALID.replace("'valid'", "'valid1'"))
    assert len(of_kind(run, "evaluation")) == 1
    assert any("'valid' only" in note for note in run.notes)


def test_facts_of_the_start():
    facts = read(*START.split("\n"), *START.split("\n"), TRAIN).facts
    assert facts["num_attempts"] == 2
    assert facts["parameters"] == 60880896
    assert facts["num_ranks"] == 4
    assert facts["hosts"] == ["gpu1", "gpu2"]
    assert facts["ranks_per_host"] == 2
    assert facts["gpus"] == ["RTX 3090"]
    assert facts["vocab_size"] == 34983
    assert facts["num_training_pairs"] == 608319
    assert facts["training_files"] == {"source": "/bin/train.en-ro.en", "target": "/bin/train.en-ro.ro"}
    assert facts["batch_sentences_per_rank"] == 128
    assert facts["batch_tokens"] == 60718
    assert (facts["precision"], facts["accumulation"], facts["bleu_kind"]) == ("fp16", 2, "tokenised")
    assert (facts["source_language"], facts["target_language"]) == ("en", "ro")


def test_settings_have_our_names_and_the_same_peak():
    settings = read(*START.split("\n")).settings
    assert settings["model"]["width"] == 512
    assert settings["model"]["feed_forward"] == 2048
    training = settings["training"]
    assert (training["schedule"], training["warmup_steps"], training["max_steps"]) == ("transformer", 4000, 300000)
    peak = training["learning_rate"] * 512**-0.5 * 4000**-0.5
    assert peak == pytest.approx(0.0005)
    assert (training["beta1"], training["beta2"], training["epsilon"]) == (0.9, 0.98, 1e-06)


def test_the_nested_configuration_of_newer_versions():
    line = (
        "2021-06-13 17:29:41 | INFO | fairseq_cli.train | {'_name': None, 'common': {'_name': None, 'fp16': False, "
        "'log_interval': 50}, 'optimization': {'max_update': 5000, 'lr': [0.001], 'update_freq': [1]}, "
        "'model': Namespace(encoder_embed_dim=256), 'lr_scheduler': {'_name': 'inverse_sqrt', 'warmup_updates': 400}}"
    )
    run = read(line)
    assert run.settings["training"]["max_steps"] == 5000
    assert run.settings["training"]["log_every"] == 50
    assert (run.settings["training"]["schedule"], run.settings["training"]["warmup_steps"]) == ("transformer", 400)
    assert run.facts["width"] == 256
    assert run.facts["precision"] == "fp32"


def test_checkpoints_restart_and_end():
    loaded = "2023-06-13 17:40:53 | INFO | fairseq.trainer | Loaded checkpoint /c/c.pt (epoch 143 @ 40100 updates)"
    run = read(
        TRAIN, SAVED, loaded, TRAIN.replace("num_updates=40200", "num_updates=40150"), "| done training in 24.2 seconds"
    )
    assert of_kind(run, "checkpoint")[0] | {"time": 0} == {
        "kind": "checkpoint", "step": 40297, "path": "/c/checkpoint143.pt", "seconds": 12.25, "time": 0,
    }  # fmt: skip
    assert [record["step"] for record in of_kind(run, "restart")] == [40100]
    assert run.facts["is_finished"] is True


def test_a_step_that_goes_back_is_a_restart():
    run = read(TRAIN, TRAIN.replace("num_updates=40200", "num_updates=100"))
    assert [record["step"] for record in of_kind(run, "restart")] == [100]


def test_nan_is_seen_and_overflows_are_counted():
    overflow = "2023-06-13 17:31:54 | INFO | fairseq.trainer | NOTE: overflow detected, setting loss scale to: 64.0"
    run = read(TRAIN, TRAIN.replace("loss=3.153", "loss=nan").replace("40200", "40300"), overflow, overflow)
    assert run.first_nan_step == 40300
    assert any(note.startswith("Updates skipped because gradients overflowed in fp16: 2.") for note in run.notes)


def test_own_lines_are_known():
    lines = (TRAIN, VALID, "| epoch 001:     10 / 31621 loss=15.180", *TEXT_2017, '{"epoch": 1, "num_updates": 3}')
    assert all(is_own_line(line) for line in lines)
    assert is_own_line("[2022-02-26 20:39:15,262][fairseq_cli.train][INFO] - Start iterating over samples")
    assert not is_own_line("Step 50/1000; acc: 3; ppl: 12; 10/10 tok/s; 24 sec")


KNOWN_LINES = [TRAIN, VALID, BEGIN, SAVED, *START.split("\n"), *TEXT_2017, *VALID_LOSS_2018, *JSON_LINES]


@given(st.lists(st.text() | st.sampled_from(KNOWN_LINES), max_size=5), st.integers(0, 300))
def test_any_lines_can_be_read(lines, cut):
    assert is_sound(read(*lines, *(line[:cut] for line in lines), *(line[cut:] for line in lines)))


def test_infinite_numbers_are_no_facts():
    lines = [line.replace("300000", "inf").replace("=0.3,", "=nan,") for line in START.split("\n")]
    run = read(*lines, TRAIN.replace("60718.4", "inf"), "| done training in inf seconds")
    assert "steps_planned" not in run.facts
    assert "dropout" not in run.settings["model"]
    assert "batch_tokens" not in run.facts


@given(st.text(alphabet="0123456789naif.e+-٣", max_size=40))
def test_any_number_can_be_read(text):
    lines = [TRAIN.replace("3.153", text), TRAIN.replace("40200", text), VALID.replace("40297", text)]
    run = read(*lines, *(line.replace("11", text).replace("300", text) for line in JSON_LINES))
    assert is_sound(run)


def test_processes_that_meet_on_this_machine_are_on_one_machine():
    begin = "2020-01-01 10:00:00 | INFO | fairseq.distributed_utils | distributed init (rank 3): tcp://{}:18630"
    namespace = next(line for line in START.splitlines() if "Namespace(" in line)
    run = read(begin.format("localhost"), namespace, TRAIN)
    assert run.facts["ranks_per_host"] == run.facts["num_ranks"] == 4
    assert "ranks_per_host" not in read(begin.format("10.0.0.1"), namespace, TRAIN).facts


def test_each_launch_has_its_own_hosts():
    again = START.replace("gpu1", "gpu7").replace("gpu2", "gpu8").splitlines()
    run = read(*START.splitlines(), TRAIN, *again, TRAIN.replace("40200", "40300"))
    assert [launch.hosts for launch in run.launches] == [["gpu1", "gpu2"], ["gpu7", "gpu8"]]


BAR = (
    "epoch 001: 100% 1821/1822 [11:40<00:00,  2.75it/s, loss=7.5, nll_loss=6.2, ppl=75.6, wps=17760, ups=2.67, "
    "wpb=6640.9, bsz=220, num_updates=1800, lr=0.0009, gnorm=0.88, train_wall=37, wall=695]"
)


def test_a_progress_bar_in_a_narrow_terminal_has_no_bar():
    (record,) = of_kind(read(BAR), "train")
    assert (record["step"], record["loss"]) == (1800, pytest.approx(7.5 * math.log(2)))
    assert record["epoch"] == pytest.approx(1821 / 1822)


def test_evaluations_whose_results_are_elsewhere_are_not_denied():
    begun = "epoch 001 | valid on 'valid' subset:  12% 1/8 [00:00<00:01,  5.45it/s]"
    assert read(BAR, begun).facts["has_unread_evaluations"] is True
    assert read(TRAIN, BEGIN).facts["has_unread_evaluations"] is True
    assert "has_unread_evaluations" not in read(TRAIN, BEGIN, VALID).facts


def test_the_settings_of_a_translating_program_are_no_launch():
    settings = START.splitlines()[3].replace("fairseq_cli.train", "fairseq_cli.interactive")
    run = read(BAR, settings.replace("0.0005", "0.25"))
    assert len(run.launches) == 1
    assert "num_ranks" not in run.facts
    assert not run.settings


def test_a_run_whose_plan_was_done_when_it_was_continued_is_finished():
    loaded = TRAIN[:19] + " | INFO | fairseq.trainer | Loaded checkpoint c/last.pt (epoch 7 @ 9875 updates)"
    end = TRAIN[:19] + " | INFO | fairseq_cli.train | done training in 0.0 seconds"
    run = read(*START.splitlines(), loaded, end)
    assert (run.facts["is_finished"], run.facts["steps_done"]) == (True, 9875)
    assert "where its plan was already done" in " ".join(run.notes)


def test_a_second_training_from_the_beginning_leaves_nothing_of_the_first():
    steps = [f"num_updates={step}" for step in (1800, 3600, 1800)]
    run = read(*(BAR.replace("num_updates=1800", step) for step in steps))
    assert [record["step"] for record in of_kind(run, "restart")] == [0]


def test_evaluations_before_the_first_step_get_steps_from_their_epochs():
    early = '{"epoch": 9, "valid_loss": 3.17, "valid_nll_loss": 1.38, "valid_ppl": "2.61"}'
    later = '{"epoch": 10, "loss": "3.180", "ppl": "2.67", "wps": 1600, "num_updates": 20000, "lr": 0.0003}'
    assert [record["step"] for record in of_kind(read(early, later), "evaluation")] == [18_000]
    assert [record["step"] for record in of_kind(read(early), "evaluation")] == [9]


def test_a_local_address_in_the_settings_means_one_machine():
    settings = START.splitlines()[3].replace("update_freq", "distributed_init_method='tcp://localhost:1', update_freq")
    assert read(settings).facts["ranks_per_host"] == 4
    assert "ranks_per_host" not in read(settings.replace("localhost", "node7")).facts
