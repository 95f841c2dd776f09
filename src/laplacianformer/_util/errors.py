"""Errors in what a user gave. The command line prints one as a single line and ends with exit code 2."""


class InputError(ValueError):
    """A wrong recipe, a missing folder, a full disk: the message says what was given, what was expected, what to do."""
