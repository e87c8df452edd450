"""fairseq's lines of several versions and formats, as real runs wrote them."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st
from trainer_logs import is_sound, of_kind, reading_with

from dragoman.importing.fairseq import FairseqReader, is_own_line

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
read = reading_with(FairseqReader)


def test_a_training_line_is_converted_to_nats_and_seconds():
    (record,) = of_kind(read(TRAIN), "train")
    assert record["step"] == 40200
    assert record["loss"] == pytest.approx(3.153 * math.log(2))
    assert record["nll_loss"] == pytest.approx(1.243 * math.log(2))
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
    ],
    ids=["0.9", "tqdm", "json", "epoch", "json of an epoch"],
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
    begin = '2023-06-13 17:32:38 | INFO | fairseq_cli.train | begin validation on "valid" subset'
    (record,) = of_kind(read(begin, VALID), "evaluation")
    assert record["step"] == 40297
    assert record["loss"] == pytest.approx(4.361 * math.log(2))
    assert (record["bleu"], record["perplexity"], record["seconds"]) == (29.52, 6.25, 3.0)


def test_an_evaluation_in_json():
    line = '2020-02-28 | INFO | valid | {"epoch": 1, "valid_loss": "4", "valid_ppl": "8", "valid_num_updates": "40300"}'
    (record,) = of_kind(read(line), "evaluation")
    assert (record["step"], record["perplexity"]) == (40300, 8)


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
    saved = (
        "2023-06-13 17:32:53 | INFO | fairseq.checkpoint_utils | saved checkpoint /c/checkpoint143.pt "
        "(epoch 143 @ 40297 updates, score 29.52) (writing took 12.25 seconds)"
    )
    loaded = "2023-06-13 17:40:53 | INFO | fairseq.trainer | Loaded checkpoint /c/c.pt (epoch 143 @ 40100 updates)"
    run = read(
        TRAIN, saved, loaded, TRAIN.replace("num_updates=40200", "num_updates=40150"), "| done training in 24.2 seconds"
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
    assert all(is_own_line(line) for line in (TRAIN, VALID, "| epoch 001:     10 / 31621 loss=15.180"))
    assert not is_own_line("Step 50/1000; acc: 3; ppl: 12; 10/10 tok/s; 24 sec")


@given(st.lists(st.text() | st.sampled_from([TRAIN, VALID, *START.split("\n")]), max_size=5), st.integers(0, 300))
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
    run = read(TRAIN.replace("3.153", text), TRAIN.replace("40200", text), VALID.replace("40297", text))
    assert is_sound(run)
