"""Predicts how long a run takes, finds what limits it, and forecasts its learning curves. Needs no torch."""
