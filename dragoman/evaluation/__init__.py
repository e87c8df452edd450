"""Judging the model: scores with signatures, validation during training, comparison of two systems."""
