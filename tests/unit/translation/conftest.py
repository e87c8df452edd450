"""What tests of translation share: a tiny model that nobody trained, and translators with it."""

import pytest
import torch

from dragoman.corpus.tokenizer import Tokenizer, train_tokenizer
from dragoman.model.shape import ModelShape
from dragoman.model.transformer import Transformer
from dragoman.translation.search import SearchSettings
from dragoman.translation.torch_search.torch_backend import TorchBackend
from dragoman.translation.translator import LineTranslator

SENTENCE = "the cat sat on a mat and saw two small dogs near an old green house by the river"
WORDS = SENTENCE.split()
LINES = [" ".join(WORDS[begin:end]) for begin in range(6) for end in range(begin + 1, len(WORDS), 3)]


@pytest.fixture(autouse=True, scope="module")
def one_thread():
    """On a busy machine, threads that wait for each other over such small products take ten times as long."""
    num_threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(num_threads)


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return Tokenizer(train_tokenizer([SENTENCE, *LINES], 60))


@pytest.fixture(scope="module")
def model(tokenizer: Tokenizer) -> Transformer:
    torch.manual_seed(0)
    size = tokenizer.vocab_size
    # Double precision: float noise between batches never decides which of two near-equal translations wins.
    return Transformer(ModelShape(32, 64, 2, 1, 1, 0.1, 0.1, 0.1, size, size)).double()


@pytest.fixture
def build(model: Transformer, tokenizer: Tokenizer):
    def build_translator(num_workers: int = 1, **options) -> LineTranslator:
        search = SearchSettings(beam_size=2, max_length_extra=3)
        backend = TorchBackend(model, tokenizer.num_subwords, num_workers)
        return LineTranslator(backend, tokenizer, tokenizer, search, **options)

    return build_translator
