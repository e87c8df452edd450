"""The `[prepare]` table of a config file, and the options of the command line that change it."""

from pathlib import Path
from typing import Any

import pytest

from dragoman.corpus.settings import PrepareSettings, load_prepare_settings, pair_up, parse_filters, with_weights
from dragoman.run.errors import UsageError

CONFIG = """
[data]
prepared = "prepared/mine"
[model]
preset = "tiny"
[prepare]
languages = "en-de"
cleaning = "moses"
held_out = 7
[[prepare.corpora]]
source = "a.en"
target = "a.de"
weight = 2.0
[[prepare.corpora]]
file = "b.tsv"
name = "crawl"
columns = [2, 1]
tag = "<bt>"
[[prepare.dev]]
file = "dev.tsv"
[prepare.filters]
identical = false
length_words = [2, 60]
[prepare.tokenizer]
kind = "unigram"
vocab_size = 500
"""


def load(folder: Path, text: str, **changes: Any) -> PrepareSettings:
    config = folder / "config.toml"
    config.write_text(text)
    return load_prepare_settings(config, changes)[0]


def refusal(folder: Path, text: str, **changes: Any) -> str:
    with pytest.raises(UsageError) as failure:
        load(folder, text, **changes)
    return str(failure.value)


def test_a_config_has_every_setting(tmp_path: Path) -> None:
    config = tmp_path / "config.toml"
    config.write_text(CONFIG)
    settings, prepared = load_prepare_settings(config, {})
    assert prepared == Path("prepared/mine")
    assert (settings.languages, settings.cleaning, settings.held_out) == ("en-de", "moses", 7)
    plain, crawl = settings.corpora
    assert (plain.paths, plain.weight, plain.given_or_default_name) == ((Path("a.en"), Path("a.de")), 2.0, "a")
    assert (crawl.file, crawl.given_or_default_name, crawl.columns, crawl.tag) == (
        Path("b.tsv"),
        "crawl",
        (2, 1),
        "<bt>",
    )
    assert [dev.file for dev in settings.dev] == [Path("dev.tsv")]
    assert settings.filters.model_dump(exclude_none=True) == {"identical": False, "length_words": (2, 60)}
    assert (settings.tokenizer.kind, settings.tokenizer.vocab_size) == ("unigram", 500)


@pytest.mark.parametrize("place", ["config", "option", "code"])
def test_seeds_is_accepted_as_the_old_name_of_moses(tmp_path: Path, place: str) -> None:
    match place:
        case "config":
            settings = load(tmp_path, '[prepare]\ncleaning = "seeds"\n')
        case "option":
            settings = load_prepare_settings(None, {"cleaning": "seeds"})[0]
        case _:
            settings = PrepareSettings(cleaning="seeds")  # type: ignore[arg-type]
    assert settings.cleaning == "moses"
    assert settings.model_dump(mode="json")["cleaning"] == "moses"


def test_the_command_line_adds_texts_and_replaces_the_rest(tmp_path: Path) -> None:
    settings = load(
        tmp_path, CONFIG, corpora=[{"file": Path("c.tmx")}], dev=[], languages=None, held_out=9,
        filters={"identical": True}, tokenizer={"kind": None, "vocab_size": 600},
    )  # fmt: skip
    assert [corpus.paths[0].name for corpus in settings.corpora] == ["a.en", "b.tsv", "c.tmx"]
    assert (settings.languages, settings.held_out) == ("en-de", 9)
    assert settings.filters.model_dump(exclude_none=True) == {"identical": True, "length_words": (2, 60)}
    assert (settings.tokenizer.kind, settings.tokenizer.vocab_size) == ("unigram", 600)


def test_options_without_a_config(tmp_path: Path) -> None:
    settings, prepared = load_prepare_settings(None, {"corpora": [{"file": "x.tsv"}], "filters": {}, "seed": None})
    assert settings == PrepareSettings(corpora=({"file": Path("x.tsv")},))  # type: ignore[arg-type]
    assert prepared is None


def test_files_may_be_beside_the_config(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    here, there = tmp_path / "here", tmp_path / "there"
    for folder, names in ((here, ["a.en"]), (there, ["a.en", "a.de", "dev.tsv"])):
        folder.mkdir()
        for name in names:
            (folder / name).touch()
    monkeypatch.chdir(here)
    settings = load(there, CONFIG)
    assert settings.corpora[0].paths == (Path("a.en"), there / "a.de")
    assert settings.corpora[1].file == Path("b.tsv")
    assert settings.dev[0].file == there / "dev.tsv"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("[prepare]\nheldout = 3", "unknown key 'prepare.heldout'; did you mean 'prepare.held_out'?"),
        ("[prepare.filters]\nlenght_words = false", "did you mean 'prepare.filters.length_words'?"),
        (
            '[[prepare.corpora]]\nfile = "x"\nwieght = 1.0',
            "'prepare.corpora.1.wieght'; did you mean 'prepare.corpora.weight'?",
        ),
        ("[prepare]\nheld_out = 0", "prepare.held_out = 0"),
        ('[prepare]\ncleaning = "clean"', "prepare.cleaning = 'clean'"),
        ("[prepare.filters]\nlength_words = 80", "prepare.filters.length_words cannot be 80. What it means: "),
        ('[[prepare.corpora]]\nsource = "x"', "source and target belong together"),
        ('[[prepare.corpora]]\nname = "x"', "needs either source and target, or file"),
        ('[[prepare.corpora]]\nfile = "x"\nweight = -1.0', "prepare.corpora.1.weight = -1.0"),
        ('[prepare.corpora]\nfile = "x"', "prepare.corpora = "),
        ("[prepare]\ncorpora = 5", "prepare.corpora = 5"),
        ("[prepare]\nfilters = 5", "prepare.filters = 5"),
        ("prepare = 5", "prepare must be a table"),
        ("[prepare.tokenizer]\ncharacter_coverage = 0.5", "prepare.tokenizer.character_coverage = 0.5"),
        ('[prepare]\nlanguages = "english"', "prepare.languages cannot be 'english'. What it means: "),
    ],
)
def test_a_wrong_setting_is_named(tmp_path: Path, text: str, expected: str) -> None:
    # The command passes every list and table, most of them empty.
    message = refusal(tmp_path, text, corpora=[], dev=[], filters={}, tokenizer={"kind": None})
    assert message.startswith(f"{tmp_path / 'config.toml'}: ")
    assert expected in message


def test_other_tables_of_the_config_are_ignored(tmp_path: Path) -> None:
    config = tmp_path / "config.toml"
    config.write_text("data = 5\n[model]\nno_such_key = 1\n[prepare]\nseed = 3\n")
    settings, prepared = load_prepare_settings(config, {})
    assert (settings.seed, prepared) == (3, None)


@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("length_words=1-100", (1, 100)),
        ("identical=off", False),
        ("numbers = on", True),
        ("length_ratio=4.5", 4.5),
        ("language=30", 30),
        ("length_characters=[1, 9]", [1, 9]),
    ],
)
def test_filters_on_the_command_line(option: str, value: object) -> None:
    [(name, parsed)] = parse_filters([option]).items()
    assert parsed == value
    PrepareSettings.model_validate({"filters": {name: parsed}})


@pytest.mark.parametrize(
    ("option", "expected"),
    [("identical", "takes name=value"), ("length_word=1-80", "did you mean 'length_words'?"), ("=3", "Known keys: ")],
)
def test_wrong_filters_on_the_command_line(option: str, expected: str) -> None:
    with pytest.raises(UsageError, match="--filter") as failure:
        parse_filters([option])
    assert expected in str(failure.value)


def test_weights_on_the_command_line(tmp_path: Path) -> None:
    settings = load(tmp_path, CONFIG)
    changed = with_weights(settings, ["crawl=0.25"])
    assert [corpus.weight for corpus in changed.corpora] == [2.0, 0.25]
    for option in ("crawl", "=2", "crawl=-1", "crawl=nan", "crawl=inf", "crawl=much"):
        with pytest.raises(UsageError, match="--weight takes name=number"):
            with_weights(settings, [option])
    with pytest.raises(UsageError, match="--weight news: there is no such corpus; there are a, crawl"):
        with_weights(settings, ["news=2"])


def test_unequal_numbers_of_files_are_a_usage_error() -> None:
    with pytest.raises(UsageError, match="2 source files and 1 target files"):
        pair_up([Path("a"), Path("b")], [Path("c")])
