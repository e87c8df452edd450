"""Starts and supervises the workers of a run, on one host or many; writes job files for other launchers."""
