"""The name of a device in its lines, reports and topics: given, or made once and kept in the cache folder."""

import re
import secrets
import socket
from pathlib import Path

from edge_hpcr.common.errors import UserError
from edge_hpcr.common.files import write_atomically

ID = re.compile(r"[A-Za-z0-9._-]{1,64}")
FILE = "device-id"


def device_id(given: str | None, cache: Path | None) -> str:
    """What was given, else what is kept, else a new one: the host's name with a few random letters behind it.

    The letters, because whole shelves of boards are called `raspberrypi`. Where nothing can be kept, it is the host's
    name alone, which is the same again after the next start.
    """
    if given is not None:
        if ID.fullmatch(given) is None:
            raise UserError(f"--device-id {given[:70]!r}: 1 to 64 letters, digits, dots, _ and - are allowed")
        return given
    host = re.sub(r"[^A-Za-z0-9._-]+", "-", socket.gethostname().partition(".")[0])[:50] or "device"
    if cache is None:
        return host
    try:
        kept = (cache / FILE).read_text(encoding="ascii", errors="replace").strip()[:100]
    except OSError:
        kept = ""
    if ID.fullmatch(kept):
        return kept
    made = f"{host}-{secrets.token_hex(3)}"
    try:
        cache.mkdir(parents=True, exist_ok=True)
        write_atomically(cache / FILE, made + "\n")
    except OSError:
        return host
    return made
