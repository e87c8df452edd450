"""Settings: what is wrong is named, what is right survives being written and read again."""

import os
import tomllib
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from dragoman.run.config import Settings, build_settings, dump_settings, known_settings, load_settings
from dragoman.run.errors import UsageError


def build(*overrides: str, **sections: Any) -> Settings:
    return build_settings({"data": {"prepared": "corpus"}} | sections, overrides)


def write_config(folder: Path, text: str) -> Path:
    path = folder / "run.toml"
    path.write_text(text, encoding="utf-8")
    return path


@pytest.mark.parametrize(
    ("section", "wrong", "meant"),
    [
        ("training", "max_step", "training.max_steps"),
        ("training", "learning_rat", "training.learning_rate"),
        ("training", "warm_up_steps", "training.warmup_steps"),
        ("evaluation", "beamsize", "evaluation.beam_size"),
        ("checkpoints", "keep_lst", "checkpoints.keep_last"),
        ("training", "evaluate_every", "evaluation.evaluate_every"),
        ("model", "seed", "training.seed"),
        ("evaluation", "max_tokens", "data.max_tokens"),
    ],
)
def test_an_unknown_key_is_answered_with_the_nearest_known_one(section, wrong, meant):
    expected = f"unknown key '{section}.{wrong}'; did you mean '{meant}'"
    with pytest.raises(UsageError, match=expected):
        build(**{section: {wrong: 1}})
    with pytest.raises(UsageError, match=expected):
        build(f"{section}.{wrong}=1")


def test_an_unknown_section_is_answered_with_the_nearest_known_one():
    with pytest.raises(UsageError, match="unknown key 'trainig'; did you mean 'training'"):
        build(trainig={"max_steps": 5})
    with pytest.raises(UsageError, match=r"unknown key 'trainig.max_steps'; did you mean 'training.max_steps'"):
        build("trainig.max_steps=5")


@given(st.text(max_size=20), st.text(max_size=20))
def test_any_key_at_all_gets_an_answer(section, name):
    override = f"{section}.{name}=1"
    if f"{section.strip()}.{name}".partition("=")[0].strip() in known_settings():
        return
    with pytest.raises(UsageError):
        build(override)


@pytest.mark.parametrize(
    ("override", "section", "key", "value"),
    [
        ("training.max_steps=500", "training", "max_steps", 500),
        ("training.max_steps=1_000", "training", "max_steps", 1_000),
        (" training.max_steps = 500 ", "training", "max_steps", 500),
        ("training.learning_rate=3e-4", "training", "learning_rate", 3e-4),
        ("training.learning_rate=2", "training", "learning_rate", 2.0),
        ("model.preset=transformer-base", "model", "preset", "transformer-base"),
        ('model.preset="tiny"', "model", "preset", "tiny"),
        ("evaluation.evaluate_at_start=true", "evaluation", "evaluate_at_start", True),
        ("data.prepared=/data/en=de/v1", "data", "prepared", Path("/data/en=de/v1")),
        ("data.prepared=../Übersetzung mit Leerzeichen", "data", "prepared", Path("../Übersetzung mit Leerzeichen")),
        ("data.prepared=C:#1", "data", "prepared", Path("C:#1")),
        ("checkpoints.best_by=bleu", "checkpoints", "best_by", "bleu"),
    ],
)
def test_overrides_are_read_as_toml_or_else_as_text(override, section, key, value):
    assert getattr(getattr(build(override), section), key) == value


def test_lists_can_be_set():
    built = build("training.boundaries=[10, 20]", "training.multipliers=[0.5, 0.1]")
    assert built.training.boundaries == (10, 20)
    assert built.training.multipliers == (0.5, 0.1)


def test_overrides_win_over_the_file_and_later_ones_over_earlier(tmp_path):
    path = write_config(tmp_path, '[data]\nprepared = "a"\n[training]\nmax_steps = 1\nseed = 7\n')
    built = load_settings(path, ["training.max_steps=2", "training.max_steps=3", "model.width=64"])
    assert (built.training.max_steps, built.training.seed, built.model.width) == (3, 7, 64)


@pytest.mark.parametrize(
    "override", ["training.max_steps", "max_steps=5", "=5", "training.=5", ".max_steps=5", "", "."]
)
def test_malformed_overrides_are_answered_with_an_example(override):
    with pytest.raises(UsageError, match=r"--set takes section.key=value.*--set training.max_steps=500"):
        build(override)


def test_an_override_into_something_that_is_no_table_is_named():
    with pytest.raises(UsageError, match="'training' is not a table"):
        build("training.max_steps=5", training=3)


@pytest.mark.parametrize(
    ("override", "words"),
    [
        ("training.max_steps=many", r"training.max_steps = 'many': .*whole number"),
        ("training.max_steps=1.5", r"training.max_steps = 1.5: .*whole number"),
        ("training.max_steps=-1", r"training.max_steps = -1: .*at least 1"),
        ("training.max_steps=0", r"training.max_steps = 0: .*at least 1"),
        ("training.global_batch_tokens=100000000000000000000", r"training.global_batch_tokens = 10+: .*at most"),
        ("evaluation.beam_size=10000", r"evaluation.beam_size = 10000: .*at most 1,000"),
        ("evaluation.length_penalty=inf", r"evaluation.length_penalty = inf: .*"),
        ("evaluation.tokenizer=14a", r"evaluation.tokenizer = '14a': .*'char'"),
        ("evaluation.metric=ter", r"evaluation.metric = 'ter': .*'chrf'"),
        ("training.virtual_workers=0", r"training.virtual_workers = 0: "),
        ("training.learning_rate=nan", r"training.learning_rate = nan: "),
        ("training.learning_rate=0", r"training.learning_rate = 0: .*more than 0"),
        ("training.max_hours=inf", r"training.max_hours = inf: .*finite"),
        ("training.clip_norm=nan", r"training.clip_norm = nan: "),
        ("training.precision=fp8", r"training.precision = 'fp8': .*'fp32', 'bf16' or 'fp16'"),
        ("training.schedule=linear", r"training.schedule = 'linear': .*'transformer'"),
        ("training.boundaries=[10, 0]", r"training.boundaries.2 = 0: "),
        ("model.dropout=1", r"model.dropout = 1: .*less than 1"),
        ("model.preset=5", r"model.preset = 5: .*text"),
        ("data.max_tokens=1", r"data.max_tokens = 1: "),
        ("checkpoints.keep_last=0", r"checkpoints.keep_last = 0: "),
        ("evaluation.evaluate_at_start=perhaps", r"evaluation.evaluate_at_start = 'perhaps': .*true or false"),
    ],
)
def test_a_value_of_the_wrong_kind_is_named_with_its_key(override, words):
    with pytest.raises(UsageError, match=words):
        build(override)


@pytest.mark.parametrize("override", ["training.max_steps=true", "training.learning_rate=true", "training.seed=false"])
def test_a_truth_value_is_no_number(override):
    """`max_steps = true` would otherwise train one step without a word."""
    with pytest.raises(UsageError, match=r"true|True|false|False"):
        build(override)


@pytest.mark.parametrize(
    ("training", "words"),
    [
        ({"max_cost": 5.0}, "training.max_cost needs training.price_per_hour"),
        ({"global_batch_tokens": 3}, "training.global_batch_tokens must be at least training.virtual_workers"),
        ({"warmup_steps": 0}, "needs training.warmup_steps of at least 1"),
        ({"boundaries": [5]}, "training.boundaries and training.multipliers must have the same length"),
        ({"boundaries": [5, 5], "multipliers": [1, 1]}, "training.boundaries must increase"),
        ({"boundaries": [9, 5], "multipliers": [1, 1]}, "training.boundaries must increase"),
        ({"schedule": "piecewise_constant"}, "piecewise_constant needs training.boundaries"),
    ],
)
def test_settings_that_contradict_each_other_are_named(training, words):
    with pytest.raises(UsageError, match=words):
        build(training=training)


def test_settings_that_complete_each_other_are_taken():
    assert build(training={"max_cost": 5.0, "price_per_hour": 1.0}).training.max_cost == 5
    assert build(training={"schedule": "fixed", "warmup_steps": 0}).training.warmup_steps == 0
    piecewise = {"schedule": "piecewise_constant", "boundaries": [1, 2], "multipliers": [0.1, 0.01]}
    assert build(training=piecewise).training.boundaries == (1, 2)


def test_missing_settings_are_named():
    with pytest.raises(UsageError, match="the setting data is missing"):
        build_settings({})
    with pytest.raises(UsageError, match=r"the setting data.prepared is missing"):
        build_settings({"data": {}})


def test_errors_name_the_file(tmp_path):
    with pytest.raises(UsageError, match=r"nowhere.toml"):
        load_settings(tmp_path / "nowhere.toml")
    with pytest.raises(UsageError, match=r"run.toml is not valid TOML: .*line 1"):
        load_settings(write_config(tmp_path, "[data\n"))
    with pytest.raises(UsageError, match=r"run.toml: unknown key"):
        load_settings(write_config(tmp_path, '[data]\nprepared = "x"\nmax_token = 5\n'))
    (tmp_path / "run.toml").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(UsageError, match=r"run.toml cannot be read"):
        load_settings(tmp_path / "run.toml")
    with pytest.raises(UsageError, match="cannot be read"):
        load_settings(tmp_path)


def test_defaults_are_the_seeds():
    training = build().training
    assert (training.learning_rate, training.warmup_steps, training.schedule) == (2.0, 8_000, "transformer")
    assert (training.beta1, training.beta2, training.epsilon, training.label_smoothing) == (0.9, 0.997, 1e-9, 0.1)


def test_settings_cannot_be_changed_afterwards():
    with pytest.raises(ValidationError):
        build().training.max_steps = 5


def test_known_settings_are_the_fields_of_all_sections():
    keys = known_settings()
    assert len(keys) == len(set(keys))
    assert {"data.prepared", "model.preset", "training.max_steps", "checkpoints.best_by"} <= set(keys)


positive = st.floats(1e-12, 1e12)
paths = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), min_size=1, max_size=30)
training_values = st.fixed_dictionaries(
    {},
    optional={
        "seed": st.integers(0, 2**62),
        "max_steps": st.integers(1, 10**9),
        "max_hours": positive,
        "price_per_hour": positive,
        "learning_rate": positive,
        "precision": st.sampled_from(["fp32", "bf16", "fp16"]),
        "label_smoothing": st.floats(0, 1, exclude_max=True),
        "clip_norm": st.floats(0, 1e300),
        "epsilon": st.floats(5e-324, 1.0),
        "global_batch_tokens": st.integers(100, 10**8),
        "virtual_workers": st.integers(1, 100),
        "warmup_steps": st.integers(1, 10**6),
    },
)


@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    paths,
    training_values,
    st.lists(st.tuples(st.integers(1, 10**6), positive), unique_by=lambda pair: pair[0], max_size=4),
    st.sampled_from(["loss", "bleu", "chrf", None]),
)
def test_written_settings_are_read_back_the_same(tmp_path, prepared, training, steps, best_by):
    boundaries = [boundary for boundary, _ in sorted(steps)]
    values = training | {"boundaries": boundaries, "multipliers": [factor for _, factor in sorted(steps)]}
    prepared = os.path.normpath(tmp_path / prepared)  # a run's config is read with an absolute path
    before = build_settings({"data": {"prepared": prepared}, "training": values, "checkpoints": {"best_by": best_by}})
    provenance = {"command": ["dragoman", prepared], "git_commit": None, "python": "3.11"}
    after = load_settings(write_config(tmp_path, dump_settings(before, provenance)))
    assert after == before


def test_unset_keys_are_left_out_and_defaults_spelled_out():
    text = dump_settings(build())
    assert "max_hours" not in text
    assert "learning_rate = 2.0" in text
    assert "[provenance]" not in text


def test_the_prepared_folder_is_looked_for_here_and_then_beside_the_config(tmp_path, monkeypatch):
    elsewhere, here = tmp_path / "elsewhere", tmp_path / "here"
    (elsewhere / "mine").mkdir(parents=True)
    here.mkdir()
    config = elsewhere / "config.toml"
    config.write_text('[data]\nprepared = "mine"\n')
    monkeypatch.chdir(here)
    assert load_settings(config).data.prepared == elsewhere / "mine"
    (here / "mine").mkdir()
    assert load_settings(config).data.prepared == Path("mine")


def test_the_config_of_a_run_names_the_prepared_folder_relative_to_itself(tmp_path, monkeypatch):
    run = tmp_path / "runs" / "x"
    for folder in (run, tmp_path / "here" / "prepared"):
        folder.mkdir(parents=True)
    (run / "config.toml").write_text('[data]\nprepared = "../../prepared"\n[provenance]\n')
    monkeypatch.chdir(tmp_path / "here" / "prepared")
    (tmp_path / "link").symlink_to(run)
    for path in (run / "config.toml", Path("../../runs/x/config.toml"), tmp_path / "link" / "config.toml"):
        assert load_settings(path).data.prepared == tmp_path / "prepared"
    assert load_settings(run / "config.toml", ["data.prepared=../prepared"]).data.prepared == Path("../prepared")


@pytest.mark.parametrize("data", ["", "data = 3\n", "[data]\n", "[data]\nprepared = 3\n"])
def test_a_damaged_config_of_a_run_is_refused_in_words(tmp_path, data):
    with pytest.raises(UsageError, match=r"data"):
        load_settings(write_config(tmp_path, f"{data}[provenance]\n"))


@pytest.mark.parametrize(
    ("text", "stored", "ports"),
    [
        ("0", 0, None),
        ("1024", 1024, range(1024, 1088)),
        ("29500", 29500, range(29500, 29564)),
        ("65472", 65472, range(65472, 65536)),
        ("29500-29531", "29500-29531", range(29500, 29532)),
        ('"29500:29501"', "29500:29501", range(29500, 29502)),
        ("29500 - 29531", "29500 - 29531", range(29500, 29532)),
        ("1024-65535", "1024-65535", range(1024, 65536)),
    ],
)
def test_ports_are_a_range_and_stored_as_given(text, stored, ports):
    settings = build_settings({"data": {"prepared": "x"}}, [f"cluster.port={text}"])
    assert settings.cluster.port == stored
    assert settings.cluster.port_range == ports
    again = build_settings(tomllib.loads(dump_settings(settings)))
    assert again.cluster == settings.cluster


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("80", "is the range 80 to 143, but ports must lie between 1024 and 65535"),
        ("65473", "is the range 65473 to 65536, but ports must lie between 1024 and 65535"),
        ("1000-2000", "ports must lie between 1024 and 65535"),
        ("29500-99999", "ports must lie between 1024 and 65535"),
        ("29531-29500", "must be a range of at least 2 ports, the lower one first"),
        ("29500-29500", "must be a range of at least 2 ports"),
        ("-1", "is not a range of ports; for example 29500"),
        ("many", "is not a range of ports; for example 29500"),
        ("29500-", "is not a range of ports"),
        ("1-2-3", "is not a range of ports"),
        ('""', "is not a range of ports"),
        ("9" * 30, "is not a range of ports"),
        ("true", "must be a port or a range of ports"),
        ("29500.5", "must be a port or a range of ports"),
        ("[29500, 29531]", "must be a port or a range of ports"),
    ],
)
def test_wrong_ports_are_refused_by_name(text, words):
    with pytest.raises(UsageError) as refused:
        build_settings({"data": {"prepared": "x"}}, [f"cluster.port={text}"], where="--set")
    assert str(refused.value).startswith("--set: cluster.port ")
    assert words in str(refused.value)
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ('checkpoints.average="first:3"', 'must be "best:N" or "last:N"'),
        ('checkpoints.average="best:0"', 'must be "best:N" or "last:N"'),
        ("checkpoints.ema_decay=1.0", "checkpoints.ema_decay"),
        ('training.freeze=["embeddings","encoder","decoder"]', "must leave at least one part"),
        ('training.freeze=["head"]', "training.freeze"),
        ("evaluation.patience=-1", "evaluation.patience"),
    ],
)
def test_settings_of_better_models_are_checked(override, message):
    with pytest.raises(UsageError, match=message):
        build_settings({"data": {"prepared": "p"}}, [override])


def test_two_kinds_of_averages_are_refused():
    both = ["checkpoints.ema_decay=0.9", 'checkpoints.average="last:3"']
    with pytest.raises(UsageError, match="cannot be used together"):
        build_settings({"data": {"prepared": "p"}}, both)


def test_a_run_to_start_from_is_found_beside_the_config(tmp_path, monkeypatch):
    (tmp_path / "old").mkdir()
    (tmp_path / "c.toml").write_text('[data]\nprepared = "p"\n[training]\nstart_from = "old@latest"\n')
    monkeypatch.chdir("/")
    assert load_settings(tmp_path / "c.toml").training.start_from == str(tmp_path / "old@latest")
