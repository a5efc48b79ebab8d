"""Download of an image from an http(s) URL, with limits of size and time."""

import time

from captioning.utils.errors import CaptioningError

MAX_DOWNLOAD_MB = 50
TIMEOUT_SECONDS = 20.0

_CHUNK_SIZE = 1 << 16


def is_url(source: object) -> bool:
    return isinstance(source, str) and source.lower().startswith(("http://", "https://"))


def download(url: str, max_mb: float = MAX_DOWNLOAD_MB, timeout: float = TIMEOUT_SECONDS) -> bytes:
    """Return the content of a URL.

    Args:
        url: an http or https address. Redirects are followed.
        max_mb: maximum size in megabytes.
        timeout: maximum total time in seconds.

    Raises:
        CaptioningError: the server cannot be reached or returns an error, or a limit is exceeded.
    """
    import http.client  # with the two others 15 ms, which most commands do not need
    import urllib.error
    import urllib.request

    deadline = time.monotonic() + timeout
    content = bytearray()
    try:
        # Some servers reject the default user agent of urllib.
        request = urllib.request.Request(url, headers={"User-Agent": "captioning", "Accept": "image/*"})
        with urllib.request.urlopen(request, timeout=timeout) as response:
            while chunk := response.read1(_CHUNK_SIZE):
                content += chunk
                if len(content) > max_mb * 1e6:
                    raise CaptioningError(f"{url}: larger than {max_mb:g} MB; download and downscale the image first")
                if time.monotonic() > deadline:
                    raise TimeoutError
    except urllib.error.HTTPError as error:
        raise CaptioningError(f"{url}: the server returned {error.code} {error.reason}; check the URL") from None
    except (OSError, ValueError, http.client.HTTPException) as error:
        reason = getattr(error, "reason", error)  # URLError wraps the errors of the socket
        if isinstance(reason, TimeoutError):
            reason = f"not within {timeout:g} seconds"
        raise CaptioningError(f"{url}: cannot be downloaded ({reason}); check the URL and the network") from None
    return bytes(content)
