"""What `translate` refuses before it loads a model."""

from pathlib import Path

import pytest

from dragoman.cli.translate import translate
from dragoman.run.errors import UserError


@pytest.mark.parametrize(("out", "reason"), [(".", "it is a folder"), ("no/where.de", "there is no folder")])
def test_an_output_that_cannot_be_written_is_refused_first(tmp_path: Path, out: str, reason: str) -> None:
    with pytest.raises(UserError, match=reason):
        translate(tmp_path / "no-run", tmp_path / "no-text", out=tmp_path / out)
