"""``captioning serve``: loads the models, opens the port and runs the server until Ctrl-C."""

import logging
import socket
import sys
import warnings
from collections.abc import Sequence
from pathlib import Path

import uvicorn
from PIL import Image

from captioning.captioner import Captioner
from captioning.serving.app import create_app
from captioning.serving.middleware import logger as request_logger
from captioning.serving.uploads import UploadLimits
from captioning.utils.errors import CaptioningError

_MAX_CONNECTIONS = 128  # each may hold a request body in memory


def serve(models: Sequence[str], host: str, port: int, limits: UploadLimits) -> None:
    """Serve the page and the REST API until interrupted.

    Args:
        models: names of pretrained models or paths of model files; a request that names no model uses the first.
        host: address to bind to.
        port: port to bind to; 0 selects a free one.
        limits: maximum size, number of images and duration of a request.
    """
    with _open_socket(host, port) as listener:  # before the models are loaded, which takes seconds
        captioners = load_captioners(models)
        app = create_app(captioners, limits, host=host)
        warnings.simplefilter("ignore", Image.DecompressionBombWarning)  # limits.max_pixels applies instead
        logging.basicConfig(level=logging.WARNING, format="%(asctime)s %(message)s", stream=sys.stderr)
        request_logger.setLevel(logging.INFO)
        config = uvicorn.Config(
            app,
            log_level="warning",
            access_log=False,  # the application logs requests with their duration
            server_header=False,
            limit_concurrency=_MAX_CONNECTIONS,
            timeout_graceful_shutdown=10,
        )
        name = f"[{host}]" if ":" in host else host
        print(f"captioning: http://{name}:{listener.getsockname()[1]} (press Ctrl-C to stop)", flush=True)
        uvicorn.Server(config).run(sockets=[listener])


def load_captioners(models: Sequence[str]) -> dict[str, Captioner]:
    """Load captioners, keyed by file stem, or by path where two files have the same stem."""
    unique = list(dict.fromkeys(models))
    stems = [Path(model).stem for model in unique]
    return {
        stem if stems.count(stem) == 1 else model: Captioner.from_pretrained(model)
        for stem, model in zip(stems, unique, strict=True)
    }


def _open_socket(host: str, port: int) -> socket.socket:
    try:
        if not 0 <= port <= 65535:
            raise OSError("ports range from 0 to 65535")
        return socket.create_server((host, port), family=socket.AF_INET6 if ":" in host else socket.AF_INET)
    except (OSError, UnicodeError) as error:  # UnicodeError: the host is not a valid name
        raise CaptioningError(
            f"cannot listen on {host}, port {port} ({error}); choose another --host or --port (0 selects a free port)"
        ) from None
