"""Errors in plain words: refusals of the system, and names that are near to a wrong one."""

import errno
import os

import pytest

from dragoman.run.errors import describe_os_error, did_you_mean, explain_os_error


@pytest.mark.parametrize(
    ("error", "sentence"),
    [
        (OSError(errno.ENOSPC, "No space", "a"), "Cannot use 'a': there is no space left on the disk."),
        (OSError(errno.EDQUOT, "Quota", "a"), "Cannot use 'a': your disk quota is used up."),
        (OSError(errno.EROFS, "Read-only", "a"), "Cannot use 'a': the file system is read-only."),
        (OSError(errno.EACCES, "Denied", "a"), "Cannot use 'a': you do not have the permission."),
        (OSError(errno.ENOTDIR, "Not", "a/b"), "Cannot use 'a/b': a part of the path is a file, not a folder."),
        (OSError(errno.EXDEV, "x", "a", None, "b"), "Cannot use 'a' and 'b': the two places are on different"),
        (OSError(errno.ENOSPC, "No space"), "A file cannot be read or written: there is no space left on the disk."),
        (OSError(errno.ENOTTY, "Not a typewriter", b"a"), "Cannot use 'a': Not a typewriter."),
        (OSError("odd"), "A file cannot be read or written: odd."),
        (OSError(), "A file cannot be read or written: OSError."),
    ],
)
def test_refusals_of_the_system_are_plain_sentences(error: OSError, sentence: str) -> None:
    assert explain_os_error(error).startswith(sentence)


@pytest.mark.parametrize("number", [*errno.errorcode])
def test_every_refusal_has_words(number: int) -> None:
    words = describe_os_error(OSError(number, os.strerror(number)))
    assert words
    assert "Errno" not in words


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("tinny", "; did you mean 'tiny'?"),
        ("base", "; did you mean 'transformer-base'?"),
        ("Tiny", "; did you mean 'tiny'?"),
        ("transformer", "; did you mean 'transformer-big' or 'transformer-base'?"),
        ("gpt", "."),
        ("", "."),
    ],
)
def test_only_near_names_are_suggested(name: str, expected: str) -> None:
    assert did_you_mean(name, ["transformer-base", "transformer-big", "small", "tiny"]) == expected
