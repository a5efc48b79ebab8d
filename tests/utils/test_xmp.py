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


def test_the_sidecar_of_another_program_is_kept(tmp_path: Path) -> None:
    path = tmp_path / "photo.jpg.xmp"
    path.write_text('<x:xmpmeta xmlns:x="adobe:ns:meta/" x:xmptk="XMP Core 4.4.0"/>')
    before = path.read_bytes()
    with pytest.raises(CaptioningError, match=r"photo\.jpg\.xmp: exists and was written or edited by another program"):
        write_sidecar(tmp_path / "photo.jpg", "a cat")
    assert path.read_bytes() == before


def test_a_directory_that_is_not_writable_is_one_line(tmp_path: Path) -> None:
    with pytest.raises(CaptioningError, match="cannot write the file"):
        write_sidecar(tmp_path / "none" / "photo.jpg", "a cat")
