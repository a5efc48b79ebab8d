"""``captioning serve``: models loaded, a port taken, the server run until Ctrl-C."""

import socket
import warnings
from collections.abc import Sequence
from pathlib import Path

import uvicorn
from PIL import Image

from captioning.captioner import Captioner
from captioning.errors import CaptioningError
from captioning.web.server import make_app
from captioning.web.uploads import Limits

_MOST_CONNECTIONS = 128  # each may hold a body in memory


def serve(models: Sequence[str], host: str, port: int, limits: Limits) -> None:
    """Serve the page and the API until interrupted.

    Args:
        models: names of shipped models or files; the first captions if a request does not say.
        host: to bind to.
        port: to bind to; 0 for any that is free.
        limits: of what a request may bring.
    """
    with _bind(host, port) as listener:  # before the models, which take seconds to load
        captioners = load(models)
        app = make_app(captioners, limits, host=host)
        warnings.simplefilter("ignore", Image.DecompressionBombWarning)  # the limits say what is too much
        config = uvicorn.Config(
            app,
            log_level="warning",
            access_log=False,
            server_header=False,
            limit_concurrency=_MOST_CONNECTIONS,
            timeout_graceful_shutdown=10,
        )
        name = f"[{host}]" if ":" in host else host
        print(f"captioning: http://{name}:{listener.getsockname()[1]} (Ctrl-C ends it)", flush=True)
        uvicorn.Server(config).run(sockets=[listener])


def load(models: Sequence[str]) -> dict[str, Captioner]:
    """Captioners by the name of their file, or by its path where two files have the same name."""
    stems = [Path(model).stem for model in dict.fromkeys(models)]
    return {
        stem if stems.count(stem) == 1 else model: Captioner.load(model)
        for stem, model in zip(stems, dict.fromkeys(models), strict=True)
    }


def _bind(host: str, port: int) -> socket.socket:
    try:
        if not 0 <= port <= 65535:
            raise OSError("there are ports from 0 to 65535")
        return socket.create_server((host, port), family=socket.AF_INET6 if ":" in host else socket.AF_INET)
    except (OSError, UnicodeError) as error:  # the latter of a host that cannot be a name
        raise CaptioningError(
            f"{host}, port {port}: cannot be served on ({error}); choose another --port, or 0 for any that is free"
        ) from None
