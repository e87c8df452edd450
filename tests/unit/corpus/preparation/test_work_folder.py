"""The folder of an unfinished preparation: for one process at a time, kept when interrupted, gone when in vain."""

from contextlib import suppress
from pathlib import Path

import pytest
from corpora import names_in

from dragoman.corpus.preparation.engine import Interrupted
from dragoman.corpus.preparation.work_dir import open_work_folder, other_leftovers, publish
from dragoman.run.errors import UserError

KEY = "0123456789abcdef"
NAME = ".out.0123456789ab.partial"


@pytest.mark.parametrize("error", [KeyboardInterrupt, OSError, Interrupted, MemoryError])
def test_interrupted_work_is_kept(tmp_path: Path, error: type[BaseException]) -> None:
    with suppress(error), open_work_folder(tmp_path / "out", KEY) as work:
        work.cleaned(3, "json").write_text("done")
        raise error
    with open_work_folder(tmp_path / "out", KEY) as work:
        assert work.cleaned(3, "json").read_text() == "done"


def test_work_on_bad_input_is_removed(tmp_path: Path) -> None:
    with pytest.raises(UserError), open_work_folder(tmp_path / "out", KEY):
        raise UserError("bad input")
    assert names_in(tmp_path) == set()


def test_one_process_at_a_time(tmp_path: Path) -> None:
    with open_work_folder(tmp_path / "out", KEY) as work:
        work.cleaned(3, "json").write_text("done")
        with pytest.raises(UserError, match="out is being prepared by another process"):
            open_work_folder(tmp_path / "out", KEY).__enter__()
        assert work.cleaned(3, "json").exists()
        with open_work_folder(tmp_path / "out", "another key"):
            assert other_leftovers(tmp_path / "out", "another key") == [tmp_path / NAME]


def test_half_written_files_of_killed_processes_are_removed(tmp_path: Path) -> None:
    with open_work_folder(tmp_path / "out", KEY) as work:
        pass
    half_written = [
        work.corpus / "train" / ".00000.source.ids.123.partial",
        work.path / "cleaned" / ".0.json.9.partial",
    ]
    for path in half_written:
        path.write_text("half")
    with open_work_folder(tmp_path / "out", KEY) as work:
        assert not any(path.exists() for path in half_written)
        (work.corpus / "manifest.json").write_text("{}")
        publish(work, tmp_path / "out")
    assert names_in(tmp_path) == {"out"}
    assert names_in(tmp_path / "out") == {"manifest.json", "train", "dev", "test"}


def test_the_output_may_be_an_empty_folder_that_exists(tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    with open_work_folder(tmp_path / "out", KEY) as work:
        publish(work, tmp_path / "out")
    assert names_in(tmp_path / "out") == {"train", "dev", "test"}
