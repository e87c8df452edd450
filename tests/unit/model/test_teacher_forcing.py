"""The forward pass with the reference fed to the decoder."""

import numpy as np
import torch
from learners import SMALL_SHAPE
from torch.nn.functional import linear

from dragoman.corpus.batching import pad_pairs
from dragoman.corpus.tokenizer import PAD_ID
from dragoman.model.teacher_forcing import evaluating, teacher_forced_predictions
from dragoman.model.transformer import Transformer


def test_predictions_are_the_most_probable_tokens_given_the_reference():
    torch.manual_seed(0)
    model = Transformer(SMALL_SHAPE).eval()
    generator = np.random.default_rng(0)
    sentences = [generator.integers(4, 12, length) for length in (1, 3, 8, 5, 5)]
    batch = pad_pairs(sentences, sentences)
    predictions = teacher_forced_predictions(model, batch, "fp32")
    for row, prediction in enumerate(predictions):
        length = int((batch.target_output[row] != PAD_ID).sum())
        source_length = int(batch.source_lengths[row])
        with torch.no_grad():
            source = torch.from_numpy(batch.source[row : row + 1, :source_length])
            target = torch.from_numpy(batch.target_input[row : row + 1, :length])
            states = model(source, torch.tensor([source_length]), target)
        assert prediction == linear(states[0], model.target_embedding).argmax(-1).tolist()


def test_every_module_gets_its_mode_back_after_evaluating():
    model = Transformer(SMALL_SHAPE)
    model.encoder.eval()
    before = [module.training for module in model.modules()]
    with evaluating(model):
        assert not any(module.training for module in model.modules())
    assert [module.training for module in model.modules()] == before
