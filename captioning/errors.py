"""The one error a user is meant to read: a line that names the thing, what is wrong with it, and the cure."""


class CaptioningError(Exception):
    """Bad input from outside (a file, a setting). The command prints it as one line and exits with 2."""
