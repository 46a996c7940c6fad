"""Which sources may be used: files below certain folders only, addresses of the public internet only."""

import ipaddress
import os
import socket
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

from edge_hpcr.common.errors import UserError
from edge_hpcr.common.text import as_text

SOURCES_UNDER = "files and folders as a source only below this one; may be given several times"


@dataclass(frozen=True)
class Rules:
    """Limits for sources. Without any, every file and every address is allowed: whoever starts a program is trusted.

    >>> Rules(under=(Path("/srv/pictures"),)).check_path(Path("/etc"))
    Traceback (most recent call last):
    edge_hpcr.common.errors.UserError: /etc is not below /srv/pictures: other places are not allowed as a source here
    """

    under: tuple[Path, ...] = ()  # files and folders lie below one of these; none: anywhere
    private: bool = True  # whether an address may be this machine's, or one of its own network's

    def check_path(self, path: Path) -> None:
        """Refuse a file or folder elsewhere; links are followed first."""
        try:
            real = Path(os.path.realpath(path))
        except (OSError, ValueError):  # a name that no file can have is refused where it is opened
            return
        if self.under and not any(real.is_relative_to(os.path.realpath(place)) for place in self.under):
            places = " or ".join(map(as_text, self.under))
            raise UserError(
                f"{as_text(path)} is not below {places}: other places are not allowed as a source here"
            )

    def check_address(self, url: str) -> None:
        """Refuse an address that leads to this machine or its network; one that cannot be looked up passes."""
        if self.private:
            return
        if urlsplit(url).scheme.lower().startswith("rtsp"):  # FFmpeg follows it anywhere, whatever it is told
            raise UserError(
                "an RTSP camera may send its reader on to any address: start the app with --allow-private-sources to "
                "allow such cameras"
            )
        for host in _hosts(url):
            try:
                found = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)
            except (OSError, UnicodeError):
                continue
            if not all(_is_public(str(address[0])) for *_, address in found):
                raise UserError(
                    f"{host} is an address of this machine or its network: start the app with "
                    "--allow-private-sources to allow such a camera"
                )


def checked_folders(folders: list[Path] | None) -> tuple[Path, ...]:
    """The folders of `--sources-under`: one that is missing would be a slip that forbids everything."""
    for folder in folders or ():
        if not folder.is_dir():
            raise UserError(f"--sources-under {as_text(folder)}: there is no such folder")
    return tuple(folders or ())


def _hosts(url: str) -> set[str]:
    """The host that the address names, and the one that a more careless reader of it would see."""
    scheme, _, rest = url.partition("://")
    readings = (url, f"{scheme}://{rest.rpartition('@')[2]}")
    return {host for reading in readings if (host := urlsplit(reading).hostname)}


def _is_public(address: str) -> bool:
    found = ipaddress.ip_address(address.partition("%")[0])
    if isinstance(found, ipaddress.IPv6Address) and found.ipv4_mapped is not None:
        found = found.ipv4_mapped
    return found.is_global and not found.is_multicast
