"""Exporting: models for other programs, checked against the original; models of others as runs."""
