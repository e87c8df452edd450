"""Zip and tar archives with logs: whole, cut, hostile."""

import io
import os
import tarfile
import zipfile
from contextlib import suppress

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from dragoman.importing.files import archives
from dragoman.importing.files.archives import unpack_archives
from dragoman.run.errors import UserError

TEXT = b"".join(b"line %d %s\n" % (number, os.urandom(9).hex().encode()) for number in range(5_000))


def zipped(compression=zipfile.ZIP_DEFLATED, **files: bytes) -> bytes:
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w", compression) as archive:
        for name, content in files.items():
            archive.writestr(name.replace("__", "/"), content)
    return packed.getvalue()


def tarred(mode: str, **files: bytes) -> bytes:
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode=mode) as archive:
        for name, content in files.items():
            info = tarfile.TarInfo(name.replace("__", "/"))
            info.size = len(content)
            archive.addfile(info, io.BytesIO(content))
    return packed.getvalue()


def files_of(path):
    """Returns the name and content of each file, and whether the archive is cut."""
    with unpack_archives([path]) as unpacked:
        (root,) = unpacked.paths
        found = sorted(root.rglob("*")) if root.is_dir() else [root]
        contents = {unpacked.rename(str(file)): file.read_bytes() for file in found if file.is_file()}
        return contents, bool(unpacked.cut)


FILES = {"a__train_log": b"one\n", "b__train_log": b"two\n"}


@pytest.mark.parametrize("packed", [zipped(**FILES), *(tarred(mode, **FILES) for mode in ("w", "w:gz", "w:xz"))])
def test_the_files_of_an_archive_have_names_inside_it(tmp_path, packed):
    path = tmp_path / "runs.packed"
    path.write_bytes(packed)
    expected = {f"{path}/a/train_log": b"one\n", f"{path}/b/train_log": b"two\n"}
    assert files_of(path) == (expected, False)


def test_one_file_in_an_archive_is_that_file(tmp_path):
    path = tmp_path / "log.zip"
    path.write_bytes(zipped(output=b"one\n"))
    with unpack_archives([path]) as unpacked:
        assert unpacked.paths[0].is_file()


def test_nothing_is_left_behind_and_other_paths_are_kept(tmp_path):
    (tmp_path / "a.zip").write_bytes(zipped(log=b"one\n"))
    (tmp_path / "b.log").write_bytes(b"two\n")
    with unpack_archives([tmp_path / "a.zip", tmp_path / "b.log", tmp_path]) as unpacked:
        assert unpacked.paths[1:] == [tmp_path / "b.log", tmp_path]
        inside = unpacked.paths[0]
    assert not inside.exists()


@pytest.mark.parametrize("kept", [0.3, 0.6, 0.98])
@pytest.mark.parametrize(
    "packed", [zipped(a=TEXT, b=TEXT), zipped(zipfile.ZIP_STORED, a=TEXT, b=TEXT), tarred("w:gz", a=TEXT, b=TEXT)]
)
def test_a_cut_archive_is_read_up_to_the_cut(tmp_path, packed, kept):
    path = tmp_path / "cut"
    path.write_bytes(packed[: int(kept * len(packed))])
    contents, is_cut = files_of(path)
    assert is_cut
    assert 0.5 * kept * len(TEXT) < sum(map(len, contents.values())) < 2 * len(TEXT)
    assert all(TEXT.startswith(content) for content in contents.values())


def test_names_that_lead_out_of_the_archive_are_left_out(tmp_path):
    path = tmp_path / "x.zip"
    path.write_bytes(zipped(**{"..__..__evil": b"x", "__etc__evil": b"x", "good": b"fine"}))
    contents, _ = files_of(path)
    assert list(contents.values()) == [b"fine"]


def test_bombs_and_passwords_are_refused(tmp_path, monkeypatch):
    path = tmp_path / "bomb.zip"
    path.write_bytes(zipped(log=bytes(80 * 2**20)))
    with pytest.raises(UserError, match=r"bomb.zip expands to more than 64 MiB"):
        files_of(path)
    path.write_bytes(zipped(log=TEXT))
    monkeypatch.setattr(archives, "MAX_UNPACKED_BYTES", 10_000)
    with pytest.raises(UserError, match="more than"):
        files_of(path)
    content = bytearray(zipped(log=b"x"))
    for magic, place in ((b"PK\x01\x02", 8), (b"PK\x03\x04", 6)):
        content[content.index(magic) + place] |= 1
    path.write_bytes(content)
    with pytest.raises(UserError, match="password"):
        files_of(path)


@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(st.sampled_from([zipped(a=TEXT[:999], b=b"x"), tarred("w", a=TEXT[:999])]), st.integers(0, 1_500), st.binary())
def test_no_damage_crashes(tmp_path, packed, place, garbage):
    path = tmp_path / "damaged"
    path.write_bytes(packed[:place] + garbage + packed[place + len(garbage) :])
    with suppress(UserError):
        files_of(path)
