"""Ensembles average probabilities; alignments come from the attention of all models."""

import itertools
from pathlib import Path

import pytest
import torch
from tiny_decoders import SOURCES, VOCAB_SIZE, WORDS, all_log_probabilities, build_model, penalty, to_batch

from dragoman.corpus.prepared_corpus import tokenizer_path
from dragoman.corpus.tokenizer import EOS_ID, train_tokenizer
from dragoman.exporting.opening import open_model
from dragoman.model.transformer import Transformer
from dragoman.run.errors import UsageError, UserError
from dragoman.translation.loading import load_run
from dragoman.translation.search import Sampling, SearchSettings, SourceSegment
from dragoman.translation.torch_search.ensemble import Ensemble
from dragoman.translation.torch_search.torch_backend import TorchBackend

LIMIT = 3


def search(model: Transformer | Ensemble, **options):
    segments = [SourceSegment(source[:-1], number=number) for number, source in enumerate(SOURCES)]
    limits = {"max_length_factor": 0, "max_length_extra": LIMIT}
    [(_, found)] = TorchBackend(model, VOCAB_SIZE).search_batches([segments], SearchSettings(**limits, **options))
    return found


def test_an_ensemble_finds_the_best_output_by_mean_probabilities() -> None:
    models = [build_model(seed, end_bias=0.3) for seed in (1, 2, 3)]
    for source, [found] in zip(SOURCES, search(Ensemble(models), beam_size=200), strict=True):
        table = all_log_probabilities(models, source, LIMIT)
        outputs = [(*tokens, EOS_ID) for length in range(LIMIT) for tokens in itertools.product(WORDS, repeat=length)]
        totals = {each: sum(table[each[:place]][each[place]] for place in range(len(each))) for each in outputs}
        best = max(outputs, key=lambda each: totals[each] / penalty(len(each), 0.6))
        assert found.tokens == list(best[:-1])
        assert found.log_probability == pytest.approx(totals[best])


@pytest.mark.parametrize("options", [{"beam_size": 4, "num_best": 3}, {"sampling": Sampling(), "num_best": 3}])
def test_twice_the_same_model_is_the_model(options: dict) -> None:
    model = build_model(6, end_bias=0.3)
    for mine, its in zip(search(model, **options), search(Ensemble([model, model]), **options), strict=True):
        assert [each.tokens for each in mine] == [each.tokens for each in its]
        assert [each.score for each in mine] == pytest.approx([each.score for each in its])


@pytest.mark.parametrize("options", [{"beam_size": 3, "num_best": 3}, {"sampling": Sampling(), "num_best": 2}])
def test_subwords_are_aligned_with_what_the_models_attend_to_most(options: dict) -> None:
    models = [build_model(seed, end_bias=0.3) for seed in (4, 5)]
    for source, hypotheses in zip(SOURCES, search(Ensemble(models), with_alignment=True, **options), strict=True):
        for each in hypotheses:
            target = torch.tensor([[2, *each.tokens]])
            with torch.no_grad():
                attention_TS = sum(model.attend(*to_batch([source]), target)[0] for model in models)
            words = attention_TS[: len(each.tokens), : len(source) - 1]
            assert each.aligned == words.argmax(1).tolist()


def test_alignment_changes_no_output_and_is_absent_unless_asked_for() -> None:
    model = build_model(7, end_bias=0.3)
    for [plain], [aligned] in zip(search(model), search(model, with_alignment=True), strict=True):
        assert plain.aligned is None
        assert (aligned.tokens, aligned.score) == (plain.tokens, plain.score)


def test_a_run_and_a_checkpoint_form_an_ensemble(trained_run: Path, one_thread: None) -> None:
    loaded = load_run(trained_run, ensemble=[f"{trained_run}@latest", str(trained_run)], num_workers=1)
    alone = load_run(trained_run, num_workers=1)
    assert loaded.describe().startswith("Translating with an ensemble of 3 models: the checkpoint of step ")
    assert loaded.describe().count(str(trained_run)) == 3
    assert alone.describe().startswith(f"Translating with the checkpoint of step {alone.step:,} (best")
    assert len(loaded.translator.translate(["a b c", "b"])) == 2


def test_an_average_is_named(trained_run: Path, one_thread: None) -> None:
    loaded = load_run(trained_run, "average:last:2", num_workers=1)
    assert loaded.describe().startswith("Translating with the average of 2 checkpoints (steps ")


def test_models_with_other_vocabularies_are_refused(trained_run: Path, run_copy: Path, one_thread: None) -> None:
    file = tokenizer_path(run_copy / "tokenizers", "source", is_joint=True)
    assert file.exists()
    file.write_bytes(train_tokenizer(["other text", "with other subwords"], 30))
    with pytest.raises(UserError, match="cannot form an ensemble: their source vocabularies differ"):
        load_run(trained_run, ensemble=[str(run_copy)])


def test_an_unknown_member_is_named(trained_run: Path, one_thread: None) -> None:
    with pytest.raises(UserError, match="missing-run"):
        load_run(trained_run, ensemble=["missing-run@best"])
    with pytest.raises(UserError, match="no checkpoint of step 123456"):
        load_run(trained_run, ensemble=[f"{trained_run}@123456"])


def test_an_ensemble_needs_torch(trained_run: Path) -> None:
    with pytest.raises(UsageError, match="--ensemble needs --backend torch"):
        open_model(trained_run, ensemble=[str(trained_run)], backend="ctranslate2")
