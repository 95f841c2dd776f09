"""What a user gave and can't be used. The command line prints it as one line and ends with code 2."""


class InputError(ValueError):
    """A wrong recipe, a missing folder, a full disk: the message says what was given, expected, and what to do."""
