"""Errors a person can act on: one or two sentences, shown without a traceback."""


class UserError(Exception):
    """The work failed for a reason the user can act on; exit code 1."""

    exit_code = 1


class UsageError(UserError):
    """The command or its settings are wrong; exit code 2."""

    exit_code = 2
