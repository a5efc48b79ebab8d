"""What every source of captioned pictures gives."""

import dataclasses
from pathlib import Path
from typing import Any


@dataclasses.dataclass(frozen=True)
class Record:
    """A picture, its captions, and its split (``train``, ``val`` or ``test``).

    ``details`` keeps what else the source knows of the picture; drawn scenes keep their objects there.
    """

    image: Path
    captions: tuple[str, ...]
    split: str
    details: dict[str, Any] = dataclasses.field(default_factory=dict, compare=False)
