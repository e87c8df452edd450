"""Errors a person can act on: one or two sentences, shown without a traceback."""

import errno
import os
import re
from collections.abc import Iterable
from difflib import SequenceMatcher

_MIN_SIMILARITY = 0.75
"""Less similar names are not suggested: they would mislead, as beam_size does for batch_size (0.74)."""
_TIE = 0.05
"""Names are suggested together if their similarities differ by no more than this."""
MAX_SUGGESTIONS = 3


class UserError(Exception):
    """The work failed for a reason the user can act on; exit code 1."""

    exit_code = 1


class UsageError(UserError):
    """The command or its settings are wrong; exit code 2."""

    exit_code = 2


def describe_fault(error: Exception) -> str:
    """Describes any error inside a message; one that the user cannot act on is named by its kind."""
    return str(error) if isinstance(error, UserError) else f"{type(error).__name__}: {error}"


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """Ends a sentence about an unknown name: "; did you mean 'tiny'?", or "." if no known name is near."""
    near = similar_names(name, known)
    return f"; did you mean {name_choices(near)}?" if near else "."


def name_choices(names: Iterable[str]) -> str:
    """Joins names to choose from: 'a' or 'b'."""
    return " or ".join(map(repr, names))


def similar_names(name: str, known: Iterable[str]) -> list[str]:
    """Returns the known names that a slip turns into this one, or that have the same words and more.

    Upper and lower case make no difference: users write v100.
    """
    near = {each: _similarity(name.lower(), each.lower()) for each in known}
    least = max(_MIN_SIMILARITY, max(near.values(), default=0) - _TIE)
    return sorted((each for each in near if near[each] >= least), key=lambda each: -near[each])[:MAX_SUGGESTIONS]


def _similarity(one: str, other: str) -> float:
    ratio = SequenceMatcher(None, one, other).ratio()
    words, other_words = (set(re.findall(r"[^\W_]+", text)) for text in (one, other))
    has_same_words = bool(words and other_words) and (words <= other_words or other_words <= words)
    return max(ratio, 0.8) if has_same_words else ratio


FULL_DISK = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
"""Reasons why no more can be written: the disk, the quota, or the limit of the size of a file."""

_REASONS = {
    errno.ENOSPC: "there is no space left on the disk",
    errno.EDQUOT: "your disk quota is used up",
    errno.EFBIG: "the file would be larger than the system allows",
    errno.EROFS: "the file system is read-only",
    errno.EACCES: "you do not have the permission",
    errno.EPERM: "the system does not permit it",
    errno.ENOENT: "there is no such file or folder",
    errno.ENOTDIR: "a part of the path is a file, not a folder",
    errno.EISDIR: "it is a folder, not a file",
    errno.EEXIST: "a file with this name is in the way",
    errno.ENOTEMPTY: "the folder is not empty",
    errno.ENAMETOOLONG: "the name is too long",
    errno.ELOOP: "its links point at each other",
    errno.EMFILE: "too many files are open; raise the limit with ulimit -n",
    errno.ENFILE: "too many files are open on this machine",
    errno.ENOMEM: "there is not enough memory",
    errno.EIO: "the disk reports an input/output error",
    errno.ESTALE: "the network file system no longer knows the file",
    errno.ETXTBSY: "the file is in use",
    errno.EXDEV: "the two places are on different file systems",
}


def describe_os_error(error: OSError) -> str:
    """Describes in plain words why the system refused, without a full stop."""
    return _REASONS.get(error.errno or 0) or error.strerror or str(error) or type(error).__name__


def explain_os_error(error: OSError) -> str:
    """Says which file could not be used, if the error names it, and why."""
    names = [repr(os.fsdecode(name)) for name in (error.filename, error.filename2) if isinstance(name, str | bytes)]
    where = f"Cannot use {' and '.join(names)}: " if names else "A file cannot be read or written: "
    return f"{where}{describe_os_error(error)}."
