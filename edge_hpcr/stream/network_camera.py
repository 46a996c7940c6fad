"""A camera in the network: RTSP, or motion JPEG over HTTP, by its address.

The address may hold a password, so only `shown_address` of it ever leaves this file.
"""

from urllib.parse import urlsplit

from edge_hpcr.common.errors import UserError
from edge_hpcr.stream.captures import open_ffmpeg, refuse_undecodable
from edge_hpcr.stream.reopen import Patience, ReopeningCamera

SCHEMES = ("rtsp", "http", "https")


class NetworkCamera(ReopeningCamera):
    """An rtsp://, http:// or https:// address. One that does not answer is tried again for ever."""

    def __init__(self, url: str, patience: Patience | None = None) -> None:
        patience = patience or Patience()
        name = shown_address(url)
        refuse_undecodable(url, name)
        super().__init__(name, lambda: open_ffmpeg(url, patience.library_seconds), patience)


def shown_address(url: str) -> str:
    """The address without whatever may be secret: user, password, query, and `name=value` parts of the path.

    >>> shown_address("rtsp://admin:p@ss/word@10.0.0.7:554/cam/1?token=abc")
    'rtsp://10.0.0.7:554/cam/1?…'
    """
    scheme, _, rest = url.partition("://")
    scheme = scheme.lower()
    # A password with an unescaped @, / or # must not be taken for a host or a path: all before the last @ goes.
    rest = rest.rpartition("@")[2]
    try:
        parts = urlsplit(f"{scheme}://{rest}")
        host, port = parts.hostname, parts.port
    except ValueError:
        host = None
    if scheme not in SCHEMES or not host or not url.isprintable() or " " in url:
        choices = ", ".join(f"{each}://" for each in SCHEMES)
        raise UserError(
            f"the camera's address is not understood: write it as {choices} and then HOST:PORT/PATH "
            "(special characters in a password as %40 for @, %2F for /)"
        )
    path = "/".join("…" if "=" in part else part for part in parts.path.split("/"))
    host = f"[{host}]" if ":" in host else host
    hidden = "?…" if parts.query or parts.fragment else ""
    return f"{scheme}://{host}{f':{port}' if port is not None else ''}{path}{hidden}"
