"""XMP sidecar files, which photo programs such as digiKam, darktable and Immich read. The photo is never changed."""

import hashlib
import re
from pathlib import Path
from xml.sax.saxutils import escape, unescape

from captioning.utils.atomic_io import atomic_write
from captioning.utils.errors import CaptioningError

_TEMPLATE = """<?xpacket begin="\ufeff" id="W5M0MpCehiHzreSzNTczkc9d"?>
<x:xmpmeta xmlns:x="adobe:ns:meta/" x:xmptk="captioning {checksum}">
  <rdf:RDF xmlns:rdf="http://www.w3.org/1999/02/22-rdf-syntax-ns#">
    <rdf:Description rdf:about="" xmlns:dc="http://purl.org/dc/elements/1.1/">
      <dc:description>
        <rdf:Alt>
          <rdf:li xml:lang="x-default">{description}</rdf:li>
        </rdf:Alt>
      </dc:description>
    </rdf:Description>
  </rdf:RDF>
</x:xmpmeta>
<?xpacket end="w"?>
"""


def sidecar_path(image_path: Path) -> Path:
    """``photo.jpg`` -> ``photo.jpg.xmp``, so that photos that differ in their suffix only have different sidecars."""
    return image_path.with_name(image_path.name + ".xmp")


def write_sidecar(image_path: Path, description: str) -> Path:
    """Write the description of an image as ``dc:description`` and return the path of the sidecar.

    A sidecar of captioning is replaced. One that another program or the user changed may hold ratings or a corrected
    caption, so it raises CaptioningError.
    """
    path = sidecar_path(image_path)
    try:
        # Some programs name the sidecar photo.xmp; a second one would contradict it.
        for existing in (path, image_path.with_suffix(".xmp")):
            if existing.exists() and not _is_unchanged(existing.read_text("utf-8", errors="replace")):
                raise CaptioningError(f"{existing}: exists and was written or edited by another program; it is kept")
        with atomic_write(path) as temporary:
            temporary.write_text(_render(description), "utf-8")
    except OSError as error:
        raise CaptioningError(
            f"{path}: cannot write the file ({error.strerror}); check free disk space and permissions"
        ) from None
    return path


def _render(description: str) -> str:
    text = escape(description)
    return _TEMPLATE.format(checksum=hashlib.sha256(text.encode()).hexdigest()[:16], description=text)


def _is_unchanged(content: str) -> bool:
    """Whether a sidecar is exactly as captioning wrote it."""
    match = re.search(r'<rdf:li xml:lang="x-default">(.*?)</rdf:li>', content, re.DOTALL)
    return match is not None and content == _render(unescape(match[1]))
