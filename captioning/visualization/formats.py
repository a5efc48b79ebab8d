"""Names of the overlay formats. This module is imported without Pillow and torch, for early checks."""

from collections.abc import Iterable

from captioning.utils.errors import CaptioningError

FORMATS = ("html", "png", "gif", "frames", "npz")  # in this order; a gallery image links to the first that is written


def check_formats(names: Iterable[str]) -> None:
    for name in names:
        if name not in FORMATS:
            raise CaptioningError(f"unknown overlay format '{name}'; choose from {', '.join(FORMATS)}")
