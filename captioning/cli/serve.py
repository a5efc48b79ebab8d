"""``captioning serve``: the web page and the REST API."""

import argparse

from captioning.models.pretrained import PRETRAINED
from captioning.utils.errors import CaptioningError

DESCRIPTION = "Serve a page that captions photos, and a REST API. The server stores no uploads."


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--host", default="127.0.0.1", help="address to listen on (default %(default)s, this machine only)"
    )
    parser.add_argument("--port", type=int, default=8000, help="port; 0 selects a free one (default %(default)s)")
    parser.add_argument(
        "--model",
        nargs="+",
        default=PRETRAINED,
        metavar="MODEL",
        help=f"pretrained models or .safetensors files (default {' '.join(PRETRAINED)})",
    )
    parser.add_argument(
        "--max-request-mb", type=float, default=20, metavar="N", help="maximum size of a request (default 20)"
    )
    parser.add_argument(
        "--max-image-megapixels", type=float, default=50, metavar="N", help="maximum size of an image (default 50)"
    )


def run(options: argparse.Namespace) -> None:
    try:
        from captioning.serving.run import serve
        from captioning.serving.uploads import UploadLimits
    except ModuleNotFoundError as error:
        raise CaptioningError(f"'serve' requires {error.name}: pip install 'captioning[web]'") from None
    serve(options.model, options.host, options.port, UploadLimits(options.max_request_mb, options.max_image_megapixels))
