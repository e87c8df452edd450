"""Readers of curves without a log: TensorBoard event files and tables."""
