"""Watching a run: figures of steps and machines, where they are written, and the live view."""
