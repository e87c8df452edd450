"""The table of sentences keeps its shape whatever the text holds; the worst sentences come first."""

from hypothesis import given
from hypothesis import strategies as st

from dragoman.evaluation.evaluation_set import EvaluationSet
from dragoman.evaluation.scores import Judge, SentenceScore
from dragoman.evaluation.sentence_scores import join_sentences, worst_sentences, write_table

SOURCES = ["eins", "zwei", "drei"]
REFERENCES = ["one small cat", "two small cats", "three small cats"]
TRANSLATIONS = ["one small cat", "a dog", "three cats"]


def judged(sources=SOURCES, references=(REFERENCES,), translations=TRANSLATIONS):
    scores = Judge(references, "13a").score_sentences(translations)
    return join_sentences(EvaluationSet("test", sources, references), translations, scores)


def test_the_table_has_titles_texts_and_scores():
    table = write_table(judged(), 1).splitlines()
    assert table[0].split("\t") == ["line", "source", "reference", "translation", "bleu", "chrfpp", "ter"]
    assert table[1].split("\t") == ["1", "eins", "one small cat", "one small cat", "100.00", "100.00", "0.00"]


def test_several_references_and_comet_have_columns_of_their_own():
    table = write_table(judged(references=[REFERENCES, ["x", None, "z"]]), 2, [0.5, 0.25, 1.0]).splitlines()
    assert table[0].split("\t")[2:5] == ["reference_1", "reference_2", "translation"]
    assert table[2].split("\t")[2:4] == ["two small cats", ""]
    assert [line.split("\t")[-1] for line in table] == ["comet", "0.5000", "0.2500", "1.0000"]


@given(st.lists(st.tuples(st.text(), st.text(), st.text()), min_size=1, max_size=5))
def test_text_cannot_add_cells_or_lines(rows):
    sources, references, translations = zip(*rows, strict=True)
    sentences = join_sentences(
        EvaluationSet("test", list(sources), [list(references)]), translations, [SentenceScore(0, 0, 0)] * len(rows)
    )
    table = write_table(sentences, 1)
    assert len(table.splitlines()) == table.count("\n") == len(rows) + 1
    assert {line.count("\t") for line in table.splitlines()} == {6}


def test_the_worst_sentences_come_first():
    worst = worst_sentences(judged(), 2)
    assert [each.line for each in worst] == [2, 3]
    assert worst[0].describe().splitlines()[1:] == [
        "  source       zwei",
        "  reference    two small cats",
        "  translation  a dog",
    ]
    assert worst_sentences(judged(), 0) == []


def test_a_line_without_source_is_described_without_it():
    assert "source" not in judged(sources=None)[0].describe()
    assert judged(sources=None)[0].figures()["source"] is None
