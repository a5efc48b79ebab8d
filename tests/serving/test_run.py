"""The command ``captioning serve``, and a server under concurrent requests."""

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
from captioning.cli.main import main
from captioning.serving.run import load_captioners
from tests.serving.conftest import LiveServer
from tests.serving.test_uploads import SVG, large_png, zip_archive


def post(url: str, body: bytes) -> tuple[int, dict]:
    """Send an image and return the status and the JSON response."""
    try:
        with urllib.request.urlopen(urllib.request.Request(f"{url}/v1/captions", body), timeout=60) as response:
            return response.status, json.load(response)
    except urllib.error.HTTPError as error:
        with error:
            return error.code, json.load(error)


def test_concurrent_clients_with_valid_and_invalid_images(
    live_server: LiveServer, captioners: dict[str, Captioner], images: list[bytes]
) -> None:
    expected = [caption.text for caption in captioners["soft"](images)]
    invalid = [images[0][:700], large_png(), SVG, zip_archive(), b"text", b"\xff\xd8\xff" + bytes(5_000_000)]
    indices = list(range(len(images))) * 3
    bodies = [images[index] for index in indices]
    num_batches_before = live_server.batcher.num_batches
    with ThreadPoolExecutor(16) as clients:
        valid_responses = clients.map(lambda body: post(live_server.url, body), bodies)
        invalid_responses = list(clients.map(lambda body: post(live_server.url, body), invalid * 2))
        valid_responses = list(valid_responses)
    assert [response["captions"][0]["caption"] for _, response in valid_responses] == [expected[i] for i in indices]
    assert [status for status, _ in invalid_responses] == [400, 400, 400, 400, 400, 413] * 2
    assert all(response["detail"] for _, response in invalid_responses)
    assert live_server.batcher.num_batches - num_batches_before < len(bodies) / 2, "queued requests share batches"
    assert live_server.batcher.num_pending == 0


@pytest.fixture
def server_process(captioner: Captioner, tmp_path: Path) -> Iterator[tuple[subprocess.Popen, str]]:
    """A server in its own process, and its URL."""
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
        # Background jobs of a shell ignore SIGINT, and child processes inherit this.
        preexec_fn=functools.partial(signal.signal, signal.SIGINT, signal.SIG_DFL),
    ) as process:
        try:
            yield process, re.search(r"http://127\.0\.0\.1:\d+", process.stdout.readline())[0]
        finally:
            process.kill()


def test_command_serves_until_interrupted(
    server_process: tuple[subprocess.Popen, str], captioner: Captioner, photo: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    process, url = server_process
    status, response = post(url, photo.read_bytes())
    assert status == 200
    assert response["model"] == "tiny"
    assert response["captions"][0]["caption"] == captioner(photo).text
    port = url.rpartition(":")[2]
    with pytest.raises(SystemExit, match="2"):
        main(["serve", "--port", port])
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith(f"captioning: error: cannot listen on 127.0.0.1, port {port} (")
    assert "choose another --host or --port" in line
    process.send_signal(signal.SIGINT)
    assert process.wait(30) == 130
    log_line, last_line = process.stderr.read().splitlines()
    assert re.fullmatch(r"[\d-]+ [\d:,]+ 127\.0\.0\.1 POST /v1/captions 200 \d+\.\d{3} s", log_line)
    assert last_line == "captioning: interrupted"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--port", "99999"), "choose another --host or --port"),
        (("--host", "no.such.host.invalid"), "cannot listen on no.such.host.invalid"),
        (("--port", "0", "--max-request-mb", "0"), "--max-request-mb must be in (0, 10000], got 0"),
        (("--port", "0", "--model", "none.safetensors"), "none.safetensors: model file not found"),
    ],
)
def test_invalid_arguments(arguments: tuple[str, ...], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="2"):
        main(["serve", *arguments])
    (line,) = capsys.readouterr().err.splitlines()
    assert message in line


def test_missing_extra_is_reported(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    for name in [name for name in sys.modules if name.startswith("captioning.serving.")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "uvicorn", None)
    with pytest.raises(SystemExit, match="2"):
        main(["serve"])
    (line,) = capsys.readouterr().err.splitlines()
    assert line.endswith("'serve' requires uvicorn: pip install 'captioning[web]'")


def test_models_are_named_by_file(captioner: Captioner, tmp_path: Path) -> None:
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
        captioner.save(tmp_path / name / "best.safetensors")
    captioner.save(tmp_path / "other.safetensors")
    paths = [str(tmp_path / name) for name in ("one/best.safetensors", "two/best.safetensors", "other.safetensors")]
    assert list(load_captioners([*paths, paths[0]])) == [*paths[:2], "other"]
