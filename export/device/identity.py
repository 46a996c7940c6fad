"""Who a device is, the secret that it shares with a server of models, and where either of them may listen."""

import base64
import hmac
import os
import re
import secrets
import socket
from ipaddress import ip_address
from pathlib import Path

from edge_hpcr.common.errors import UserError
from edge_hpcr.common.files import reason_of, write_atomically
from edge_hpcr.common.listener import MOST_OPEN, Listener

ID = re.compile(r"[A-Za-z0-9._-]{1,64}")
FILE = "device-id"
# Never an option: that can be read by everybody on the machine, in the list of processes.
VARIABLE = "EDGE_HPCR_TOKEN"
DEFAULT_PORT = 8081  # of a server of models
NEEDED = f"give a token (--token FILE or {VARIABLE})"


def device_id(given: str | None, cache: Path) -> str:
    """What was given, else what is kept in the cache, else a new one: the host's name with a few random letters behind it.

    The letters, because whole shelves of boards are called `raspberrypi`. Where nothing can be kept, it is the host's
    name alone, which is the same again after the next start.
    """
    if given is not None:
        if ID.fullmatch(given) is None:
            raise UserError(f"--device-id {given[:70]!r}: 1 to 64 letters, digits, dots, _ and - are allowed")
        return given
    host = re.sub(r"[^A-Za-z0-9._-]+", "-", socket.gethostname().partition(".")[0])[:50] or "device"
    try:
        if (cache / FILE).exists():
            kept = (cache / FILE).read_text(encoding="ascii", errors="replace").strip()
            if ID.fullmatch(kept):
                return kept
        made = f"{host}-{secrets.token_hex(3)}"
        cache.mkdir(parents=True, exist_ok=True)
        write_atomically(cache / FILE, made + "\n")
    except OSError:
        return host
    return made


def read_token(path: Path | None) -> str | None:
    """The token in the file, else in EDGE_HPCR_TOKEN, else None; what is said of a wrong one does not repeat it."""
    try:
        token = os.environ.get(VARIABLE) if path is None else path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"cannot read the token file {path}: {reason_of(error)}") from None
    if token is not None and re.fullmatch(r"[!-~]{16,4096}", token := token.strip()) is None:
        raise UserError(
            f"{path or VARIABLE}: a token is one word of 16 to 4,096 ASCII letters, digits and signs; "
            "python -c 'import secrets; print(secrets.token_urlsafe(32))' makes a good one"
        )
    return token


def shows_token(authorization: str | None, token: str | None) -> bool:
    """Whether a request came with the token, as a bearer's or as the password of a browser; anybody does if there is none."""
    if token is None:
        return True
    scheme, _, given = (authorization or "").partition(" ")
    secret = given.strip().encode("utf-8", "replace")
    if scheme.lower() == "basic":
        try:
            secret = base64.b64decode(secret, validate=True).partition(b":")[2]
        except ValueError:
            return False
    return scheme.lower() in ("basic", "bearer") and hmac.compare_digest(secret, token.encode())


def parse_place(text: str, option: str) -> tuple[str, int]:
    """Host and port: `8090` is on this machine only, `:8090` on all addresses.

    >>> parse_place("8090", "--http"), parse_place(":8090", "--http")
    (('127.0.0.1', 8090), ('0.0.0.0', 8090))
    """
    host, colon, port = text.rpartition(":")
    number = int(port) if re.fullmatch(r"[0-9]{1,5}", port) else 65536
    if number > 65535 or (host.count(":") and not re.fullmatch(r"\[[^\[\]]+\]", host)):
        raise UserError(f"{option} {text[:60]!r}: write PORT, :PORT or HOST:PORT, a port from 0 to 65535")
    return host.strip("[]") or ("0.0.0.0" if colon else "127.0.0.1"), number


def listen(host: str, port: int, has_token: bool, option: str, most: int = MOST_OPEN) -> Listener:
    """A socket there; a `UserError` if it cannot be had, or is open to the network while nobody needs a token."""
    try:
        *_, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
    except (OSError, UnicodeError) as error:
        raise UserError(f"{option} {host}: {reason_of(error)}") from None
    if not has_token and not is_local(str(address[0])):
        raise UserError(f"{option} {host} is open to the network: {NEEDED}")
    try:
        listening = Listener(host, port, most)
        listening.listen()
    except OSError as error:
        raise UserError(f"cannot listen on {address[0]} port {port}: {error.strerror}") from None
    return listening


def is_local(address: str) -> bool:
    """Whether only this machine reaches it."""
    return ip_address(address.partition("%")[0]).is_loopback


def url_of(host: str, listening: socket.socket) -> str:
    return f"http://{f'[{host}]' if ':' in host else host}:{listening.getsockname()[1]}"
