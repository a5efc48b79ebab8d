"""Loading of JSON files."""

import json
from pathlib import Path
from typing import Any

from captioning.utils.errors import CaptioningError


def load_json(path: Path) -> Any:
    """Load a JSON file; raise a :class:`CaptioningError` that names the file if this fails."""
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError) as error:
        raise CaptioningError(f"{path}: cannot be read ({error}); check the path") from None
    except ValueError as error:
        raise CaptioningError(f"{path}: not JSON ({error}); download or export the file again") from None
