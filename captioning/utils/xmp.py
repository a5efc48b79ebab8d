"""XMP sidecar files, which photo programs such as digiKam, darktable and Immich read. The photo is never changed."""

from pathlib import Path
from xml.sax.saxutils import escape

from captioning.utils.atomic_io import atomic_write
from captioning.utils.errors import CaptioningError

_TOOLKIT = 'x:xmptk="captioning"'
_TEMPLATE = """<?xpacket begin="\ufeff" id="W5M0MpCehiHzreSzNTczkc9d"?>
<x:xmpmeta xmlns:x="adobe:ns:meta/" {toolkit}>
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

    A sidecar of captioning is replaced. One of another program may hold ratings or edits, so it raises CaptioningError.
    """
    path = sidecar_path(image_path)
    content = _TEMPLATE.format(toolkit=_TOOLKIT, description=escape(description))
    try:
        if path.exists() and _TOOLKIT not in path.read_text("utf-8", errors="replace"):
            raise CaptioningError(f"{path}: exists and is of another program; move it away to write a new one")
        with atomic_write(path) as temporary:
            temporary.write_text(content, "utf-8")
    except OSError as error:
        raise CaptioningError(
            f"{path}: cannot write the file ({error.strerror}); check free disk space and permissions"
        ) from None
    return path
