"""What a piece of work tells when it is done, kept in the work folder: where the record exists, the piece is done."""

from pathlib import Path
from typing import Self

from pydantic import BaseModel, ConfigDict

from dragoman.run.files import write_text


class Finished(BaseModel):
    """The record of a finished piece of work, written after everything else of it."""

    model_config = ConfigDict(extra="forbid")

    def save(self, path: Path) -> None:
        """Writes the record."""
        write_text(path, self.model_dump_json(), is_durable=False)

    @classmethod
    def load(cls, path: Path) -> Self:
        """Reads the record that an earlier run of the same preparation wrote."""
        return cls.model_validate_json(path.read_bytes())
