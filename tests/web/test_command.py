"""The server as the command starts it, and what many clients at once get from it."""

import functools
import json
import re
import signal
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from captioning import Captioner
from captioning.cli import main
from captioning.web.command import load
from tests.web.conftest import Live
from tests.web.test_uploads import SVG, large_png, zipped


def post(address: str, body: bytes) -> tuple[int, dict]:
    """The status and the answer."""
    try:
        with urllib.request.urlopen(urllib.request.Request(f"{address}/v1/captions", body), timeout=60) as answer:
            return answer.status, json.load(answer)
    except urllib.error.HTTPError as error:
        with error:
            return error.code, json.load(error)


def test_many_clients_at_once_and_hostile_ones_among_them(
    live: Live, captioners: dict[str, Captioner], pictures: list[bytes]
) -> None:
    expected = [caption.text for caption in captioners["soft"](pictures)]
    hostile = [pictures[0][:700], large_png(), SVG, zipped(), b"text", b"\xff\xd8\xff" + bytes(5_000_000)]
    numbers = list(range(len(pictures))) * 3
    bodies = [pictures[number] for number in numbers]
    begun = live.batcher.batches
    with ThreadPoolExecutor(16) as clients:
        good = clients.map(lambda body: post(live.address, body), bodies)
        bad = list(clients.map(lambda body: post(live.address, body), hostile * 2))
        good = list(good)
    assert [answer["captions"][0]["caption"] for _, answer in good] == [expected[number] for number in numbers]
    assert [status for status, _ in bad] == [400, 400, 400, 400, 400, 413] * 2
    assert all(answer["detail"] for _, answer in bad)
    assert live.batcher.batches - begun < len(bodies) / 2, "those that waited went together"
    assert live.batcher.under_way == 0


@pytest.fixture
def served(captioner: Captioner, tmp_path: Path) -> Iterator[tuple[subprocess.Popen, str]]:
    """A server of its own, and its address."""
    captioner.save(tmp_path / "tiny.safetensors")
    command = [
        sys.executable,
        "-m",
        "captioning",
        "serve",
        "--port",
        "0",
        "--model",
        str(tmp_path / "tiny.safetensors"),
    ]
    with subprocess.Popen(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        # What a shell runs in the background is deaf to interrupts, and so would be all that it starts.
        preexec_fn=functools.partial(signal.signal, signal.SIGINT, signal.SIG_DFL),
    ) as server:
        try:
            yield server, re.search(r"http://127\.0\.0\.1:\d+", server.stdout.readline())[0]
        finally:
            server.kill()


def test_the_command_serves_until_it_is_interrupted(
    served: tuple[subprocess.Popen, str], captioner: Captioner, photo: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    server, address = served
    status, answer = post(address, photo.read_bytes())
    assert status == 200
    assert answer["model"] == "tiny"
    assert answer["captions"][0]["caption"] == captioner(photo).text
    port = address.rpartition(":")[2]
    with pytest.raises(SystemExit, match="2"):
        main(["serve", "--port", port])
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith(f"captioning: error: 127.0.0.1, port {port}: cannot be served on")
    assert "choose another --port" in line
    server.send_signal(signal.SIGINT)
    assert server.wait(30) == 130
    assert server.stderr.read() == ""


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--port", "99999"), "choose another --port"),
        (("--host", "no.such.host.invalid"), "cannot be served on"),
        (("--port", "0", "--max-megabytes", "0"), "max-megabytes 0: take more than 0"),
        (("--port", "0", "--model", "none.safetensors"), "none.safetensors: no such model file"),
    ],
)
def test_what_cannot_be_served(arguments: tuple[str, ...], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="2"):
        main(["serve", *arguments])
    (line,) = capsys.readouterr().err.splitlines()
    assert message in line


def test_without_the_extra_the_command_says_how_to_get_it(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in [name for name in sys.modules if name.startswith("captioning.web.")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "uvicorn", None)
    with pytest.raises(SystemExit, match="2"):
        main(["serve"])
    (line,) = capsys.readouterr().err.splitlines()
    assert line.endswith("'serve' needs uvicorn, among others: pip install 'captioning[web]'")


def test_models_are_named_by_their_files(captioner: Captioner, tmp_path: Path) -> None:
    for folder in ("one", "two"):
        (tmp_path / folder).mkdir()
        captioner.save(tmp_path / folder / "best.safetensors")
    captioner.save(tmp_path / "other.safetensors")
    paths = [str(tmp_path / name) for name in ("one/best.safetensors", "two/best.safetensors", "other.safetensors")]
    assert list(load([*paths, paths[0]])) == [*paths[:2], "other"]
