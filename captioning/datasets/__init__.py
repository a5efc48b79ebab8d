"""Sources of captioned pictures, one file each, all giving the same records."""

import os
from pathlib import Path

from captioning.datasets import coco, flickr8k, flickr30k, karpathy, own
from captioning.datasets.records import Record
from captioning.errors import CaptioningError

# In this order: Karpathy's JSON often lies beside a set's own files, and its splits are the ones that papers report.
SOURCES = (karpathy, flickr8k, flickr30k, coco, own)


def locate(root: Path) -> Path:
    """A relative name is looked for here first, then below ``$CAPTIONING_DATA``, the folder of all sets."""
    sets = os.environ.get("CAPTIONING_DATA")
    return Path(sets) / root if sets and not root.exists() and (Path(sets) / root).exists() else root


def read(root: Path) -> list[Record]:
    """The records of a folder (or of a file of captions), whichever of the layouts it has."""
    if not root.exists():
        raise CaptioningError(f"{root}: no such folder of captioned pictures; check data.root and CAPTIONING_DATA")
    for source in SOURCES:
        if source.is_here(root):
            return source.read(root)
    layouts = "; ".join(source.LAYOUT for source in SOURCES)
    raise CaptioningError(f"{root}: no captions found; looked for {layouts}; see data/README.md")
