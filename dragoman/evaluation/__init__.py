"""Evaluation: scores with signatures, validation during training, the final evaluation on a test set."""
