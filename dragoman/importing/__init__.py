"""Logs of other trainers, read into a run folder."""
