"""Lines that cannot be read: counted and remembered as far as the user allows it, then the reason to stop."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from dragoman.run.errors import UserError


class Unreadable(Exception):  # noqa: N818 - it is a finding about a line; whether it becomes an error is up to BadLines
    """Why one line cannot be read ("has a NUL byte ..."), and what the user can do about it ("correct it")."""

    def __init__(self, reason: str, advice: str = "correct or delete it") -> None:
        super().__init__(reason)
        self.reason, self.advice = reason, advice


AddBadLine = Callable[[Path, int, Unreadable], None]
"""(file, line number, what is wrong): how readers of formats report a line."""


@dataclass(frozen=True)
class BadLine:
    """A line, row or unit that was skipped."""

    path: Path
    number: int
    reason: str
    what: str = "line"

    @property
    def sentence(self) -> str:
        """For the list of skipped lines."""
        return f"{self.path}, {self.what} {self.number:,}: {self.reason}."


class BadLines:
    """Keeps the bad lines of all texts that are read together, and raises when there are more than allowed."""

    def __init__(self, allowed: int) -> None:
        self.allowed = allowed
        self.records: list[BadLine] = []

    def add(
        self, path: Path, number: int, reason: str, advice: str = "correct or delete it", what: str = "line"
    ) -> None:
        """Notes a bad line."""
        if len(self.records) < self.allowed:
            self.records.append(BadLine(path, number, reason, what))
            return
        place = f"{path}, {what} {number:,} {reason}"
        if self.allowed == 0:
            raise UserError(f"{place}; {advice}, or continue past it with --skip-bad-lines N.")
        raise UserError(
            f"{place}, and {self.allowed:,} bad lines, as many as were allowed, came before it; "
            f"{advice}, or allow more with --skip-bad-lines."
        )
