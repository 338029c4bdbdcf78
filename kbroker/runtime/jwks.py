"""Where the keys come from that sign tokens: a file, or an address of the web. Called beside the loop; it waits."""

from __future__ import annotations

import ssl
import urllib.request
from urllib.parse import unquote, urlsplit

FETCH_S = 10.0
MOST_BYTES = 1 << 20


def fetch(url: str) -> bytes:
    """What is there, a megabyte at most. Raises: OSError, ValueError."""
    if url.startswith("file:"):
        with open(unquote(urlsplit(url).path), "rb") as file:
            data = file.read(MOST_BYTES + 1)
    else:
        opener = urllib.request.build_opener(urllib.request.HTTPSHandler(context=ssl.create_default_context()))
        with opener.open(url, timeout=FETCH_S) as answer:
            data = answer.read(MOST_BYTES + 1)
    if len(data) > MOST_BYTES:
        raise ValueError(f"more than {MOST_BYTES} bytes")
    return bytes(data)
