"""XMP sidecar files, which photo programs such as digiKam, darktable and Immich read. The photo is never changed."""

import hashlib
import re
import xml.etree.ElementTree as ElementTree
from pathlib import Path
from xml.sax.saxutils import escape, quoteattr, unescape

from captioning.utils.atomic_io import atomic_write
from captioning.utils.errors import CaptioningError

_RDF, _DC = "http://www.w3.org/1999/02/22-rdf-syntax-ns#", "http://purl.org/dc/elements/1.1/"
_PROPERTIES = f"""<rdf:Description xmlns:rdf="{_RDF}" rdf:about={{about}} xmlns:dc="{_DC}">
      <dc:description>
        <rdf:Alt>
          <rdf:li xml:lang="x-default">{{description}}</rdf:li>
        </rdf:Alt>
      </dc:description>
    </rdf:Description>
"""
_TEMPLATE = f"""<?xpacket begin="\ufeff" id="W5M0MpCehiHzreSzNTczkc9d"?>
<x:xmpmeta xmlns:x="adobe:ns:meta/" x:xmptk="captioning {{checksum}}">
  <rdf:RDF xmlns:rdf="{_RDF}">
    {{properties}}  </rdf:RDF>
</x:xmpmeta>
<?xpacket end="w"?>
"""


def sidecar_path(image_path: Path) -> Path:
    """``photo.jpg`` -> ``photo.jpg.xmp``, so that photos that differ in their suffix only have different sidecars."""
    return image_path.with_name(image_path.name + ".xmp")


def write_sidecar(image_path: Path, description: str) -> Path:
    """Write the description of an image as ``dc:description`` and return the path of the sidecar.

    A sidecar of captioning is replaced. The description is added to a sidecar of another program, whose other content
    does not change. A description that another program or the user wrote is kept, and raises CaptioningError.
    """
    path = sidecar_path(image_path)
    content = _render(description)
    try:
        # Some programs name the sidecar photo.xmp; a second one would contradict it.
        for existing in (path, image_path.with_suffix(".xmp")):
            if existing.exists():
                path, old = existing, existing.read_text("utf-8", errors="replace")
                content = content if _is_unchanged(old) else _add_description(old, description, path)
                break
        with atomic_write(path) as temporary:
            temporary.write_text(content, "utf-8")
    except OSError as error:
        raise CaptioningError(
            f"{path}: cannot write the file ({error.strerror}); check free disk space and permissions"
        ) from None
    return path


def _render(description: str) -> str:
    text = escape(description)
    properties = _PROPERTIES.format(about='""', description=text)
    return _TEMPLATE.format(checksum=hashlib.sha256(text.encode()).hexdigest()[:16], properties=properties)


def _is_unchanged(content: str) -> bool:
    """Whether a sidecar is exactly as captioning wrote it."""
    match = re.search(r'<rdf:li xml:lang="x-default">(.*?)</rdf:li>', content, re.DOTALL)
    return match is not None and content == _render(unescape(match[1]))


def _add_description(content: str, description: str, path: Path) -> str:
    """Insert the description into a sidecar of another program, as text, so that the rest stays as it is."""
    try:
        elements = list(ElementTree.fromstring(content).iter())
    except ElementTree.ParseError:
        elements = []
    end = content.rfind("</rdf:RDF>")
    if end < 0 or not elements:
        raise CaptioningError(f"{path}: exists and is not XMP that captioning can extend; it is kept")
    if any(element.tag == f"{{{_DC}}}description" or f"{{{_DC}}}description" in element.attrib for element in elements):
        raise CaptioningError(f"{path}: contains a description that another program or the user wrote; it is kept")
    about = next((value for element in elements if (value := element.get(f"{{{_RDF}}}about"))), "")
    properties = _PROPERTIES.format(about=quoteattr(about), description=escape(description))
    end = len(content[:end].rstrip())  # before the indentation of the closing tag
    return f"{content[:end]}\n    {properties.rstrip()}{content[end:]}"
