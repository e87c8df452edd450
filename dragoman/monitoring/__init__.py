"""Watching a run: figures of steps, and where they are shown and kept."""
