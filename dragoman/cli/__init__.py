"""The command line: one file per family of commands."""

from dragoman.cli.app import main

__all__ = ["main"]
