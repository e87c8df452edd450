"""Problems a person can do something about: one or two sentences, shown without a traceback."""


class UserError(Exception):
    """Work failed for a reason the user can act on; the command ends with exit code 1."""

    exit_code = 1


class UsageError(UserError):
    """The command or its settings are wrong; the command ends with exit code 2."""

    exit_code = 2
