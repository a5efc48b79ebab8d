"""Exception for errors that the user can fix."""


class CaptioningError(Exception):
    """Invalid input (a file or a setting). The CLI prints the message in one line and exits with status 2."""


class MissingFileError(CaptioningError, FileNotFoundError):
    """A file or directory that does not exist. Callers may also catch it as ``FileNotFoundError``."""
