"""Readers of the logs of other trainers, one family of files for each."""
