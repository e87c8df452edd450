"""Runs of other trainers, read from what they left behind and made into run folders."""
