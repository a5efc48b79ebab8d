import xml.etree.ElementTree as ElementTree
from pathlib import Path

import pytest

from captioning.utils.errors import CaptioningError
from captioning.utils.xmp import write_sidecar

RDF = "{http://www.w3.org/1999/02/22-rdf-syntax-ns#}"
DC = "{http://purl.org/dc/elements/1.1/}"


def description(path: Path) -> str | None:
    item = ElementTree.parse(path).getroot().find(f"{RDF}RDF/{RDF}Description/{DC}description/{RDF}Alt/{RDF}li")
    assert item is not None
    return item.text


def test_the_sidecar_holds_the_description(tmp_path: Path) -> None:
    path = write_sidecar(tmp_path / "photo.jpg", "a dog & a <cat> — größer")
    assert path == tmp_path / "photo.jpg.xmp"
    assert description(path) == "a dog & a <cat> — größer"
    write_sidecar(tmp_path / "photo.jpg", "a cat")
    assert description(path) == "a cat"


OTHER = """<?xml version="1.0" encoding="UTF-8"?>
<x:xmpmeta xmlns:x="adobe:ns:meta/" x:xmptk="XMP Core 4.4.0-Exiv2">
 <rdf:RDF xmlns:rdf="http://www.w3.org/1999/02/22-rdf-syntax-ns#">
  <rdf:Description rdf:about="uuid:1" xmlns:xmp="http://ns.adobe.com/xap/1.0/" xmp:Rating="4"/>
 </rdf:RDF>
</x:xmpmeta>
"""


@pytest.mark.parametrize("name", ["photo.jpg.xmp", "photo.xmp"])
def test_the_sidecar_of_another_program_is_extended(tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_text(OTHER)
    assert write_sidecar(tmp_path / "photo.jpg", "a dog & a cat") == tmp_path / name
    assert [path.name for path in tmp_path.iterdir()] == [name]
    content = (tmp_path / name).read_text()
    assert all(line in content for line in OTHER.splitlines()), "the rest stays as it is"
    rating, description = ElementTree.fromstring(content).findall(f"{RDF}RDF/{RDF}Description")
    assert rating.get(f"{RDF}about") == description.get(f"{RDF}about") == "uuid:1", "both describe the same image"
    assert description.findtext(f"{DC}description/{RDF}Alt/{RDF}li") == "a dog & a cat"
    with pytest.raises(CaptioningError, match=r"xmp: contains a description that another program or the user wrote"):
        write_sidecar(tmp_path / "photo.jpg", "a horse")
    assert (tmp_path / name).read_text() == content


@pytest.mark.parametrize(
    "content",
    [
        OTHER.replace("xmp:Rating", "xmlns:dc='http://purl.org/dc/elements/1.1/' dc:description='Rome' xmp:Rating"),
        '<x:xmpmeta xmlns:x="adobe:ns:meta/"/>',
        OTHER[:-20],
        "not XML </rdf:RDF>",
    ],
)
def test_a_sidecar_that_cannot_be_extended_is_kept(tmp_path: Path, content: str) -> None:
    path = tmp_path / "photo.jpg.xmp"
    path.write_text(content)
    with pytest.raises(CaptioningError, match=r"photo\.jpg\.xmp: .*; it is kept"):
        write_sidecar(tmp_path / "photo.jpg", "a cat")
    assert path.read_text() == content


def test_a_directory_that_is_not_writable_is_one_line(tmp_path: Path) -> None:
    with pytest.raises(CaptioningError, match="cannot write the file"):
        write_sidecar(tmp_path / "none" / "photo.jpg", "a cat")
