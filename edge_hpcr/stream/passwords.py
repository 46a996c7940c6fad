"""Passwords of cameras: from a file or a variable, and whether a camera refuses them.

On the command line everybody on the machine can read one, in the list of processes.
"""

import base64
import hashlib
import os
import re
import secrets
import socket
import ssl
from pathlib import Path
from urllib.parse import quote, unquote, urlsplit

from edge_hpcr.common.errors import UserError
from edge_hpcr.common.files import read_regular

VARIABLE = "EDGE_HPCR_CAMERA_PASSWORD"
LARGEST = 4096
_SECURE = ("rtsps", "https")


def with_password(source: str, path: Path | None) -> str:
    """The camera's address with the user and password of the file, else of EDGE_HPCR_CAMERA_PASSWORD, in it.

    Either holds `user:password`, or the password alone if the address names the user.
    """
    where = f"--camera-password {path}" if path is not None else VARIABLE
    if path is not None:
        data = read_regular(path, LARGEST, lambda reason: UserError(f"{where}: {reason}"))
        secret = data.decode("utf-8", "replace").strip("\r\n")
    elif VARIABLE in os.environ:
        secret = os.environ[VARIABLE]
    else:
        return source
    scheme, separator, rest = source.partition("://")
    if not separator:
        if path is None:
            return source  # the variable may be meant for another start
        raise UserError(
            f"{where}: it is for the address of a camera (rtsp:// or http://), and not for {source[:60]!r}"
        )
    before, at, place = rest.partition("/")[0].rpartition("@")
    host = rest[len(before) + len(at) :]
    if ":" in before:
        raise UserError(f"{where}: the camera's address holds a password already: leave one of them out")
    user, colon, password = (before, ":", quote(secret, safe="")) if at else secret.partition(":")
    if not at:
        user, password = quote(user, safe=""), quote(password, safe="")
    if not (user and colon and secret and place):
        raise UserError(
            f"{where}: write user:password into it, or the password alone and the user as {scheme}://USER@HOST"
        )
    return f"{scheme}://{user}:{password}@{host}"


def refusal(url: str, seconds: float) -> str | None:
    """Why a camera cannot be opened, if that is its password; FFmpeg does not say.

    Asks as a player would: DESCRIBE of an RTSP camera, GET of an HTTP one, and again with what the address holds.
    """
    scheme, _, rest = url.partition("://")
    before, at, _ = rest.partition("/")[0].rpartition("@")
    bare = f"{scheme}://{rest[len(before) + len(at) :]}"
    user, _, password = (unquote(each) for each in before.partition(":"))
    try:
        status, wants = _ask(bare, None, seconds)
        if status == 401 and at:
            status, _ = _ask(bare, _authorization(wants, user, password, bare), seconds)
    except (OSError, ValueError):
        return None
    if status not in (401, 403):
        return None
    if not at:
        return "the camera wants a user name and a password"
    return "the camera refuses the user name or the password"


def _ask(url: str, authorization: str | None, seconds: float) -> tuple[int, str]:
    """Status and WWW-Authenticate of one request."""
    parts = urlsplit(url)
    is_rtsp = parts.scheme.lower().startswith("rtsp")
    secure = parts.scheme.lower() in _SECURE
    port = parts.port or {"rtsp": 554, "rtsps": 322, "http": 80, "https": 443}[parts.scheme.lower()]
    if is_rtsp:
        lines = [f"DESCRIBE {url} RTSP/1.0", "CSeq: 1", "Accept: application/sdp"]
    else:
        lines = [f"GET {_path(url)} HTTP/1.0", f"Host: {parts.hostname}"]
    lines += [f"Authorization: {authorization}"] if authorization else []
    with socket.create_connection((parts.hostname or "", port), seconds) as plain:
        connection = plain
        if secure:
            # As FFmpeg does: cameras sign their certificates themselves.
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
            context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
            connection = context.wrap_socket(plain, server_hostname=parts.hostname)
        connection.sendall(("\r\n".join(lines) + "\r\n\r\n").encode())
        head = b""
        while b"\r\n\r\n" not in head and len(head) < 65_536 and (block := connection.recv(4096)):
            head += block
    text = head.partition(b"\r\n\r\n")[0].decode("latin-1")
    match = re.match(r"(?:RTSP|HTTP)/\d\.\d (\d{3})", text)
    wants = re.findall(r"(?im)^WWW-Authenticate:\s*(.+?)\r?$", text)
    # Digest before Basic, as FFmpeg prefers it.
    return int(match[1]) if match else 0, max(
        wants, key=lambda each: each.lower().startswith("digest"), default=""
    )


def _path(url: str) -> str:
    parts = urlsplit(url)
    return (parts.path or "/") + (f"?{parts.query}" if parts.query else "")


def _authorization(wants: str, user: str, password: str, url: str) -> str:
    if not wants.lower().startswith("digest"):
        return "Basic " + base64.b64encode(f"{user}:{password}".encode()).decode()
    asked = dict(re.findall(r'(\w+)="?([^",]*)"?', wants.partition(" ")[2]))
    method, place = ("DESCRIBE", url) if url.lower().startswith("rtsp") else ("GET", _path(url))
    realm, nonce = asked.get("realm", ""), asked.get("nonce", "")
    one, two = _md5(f"{user}:{realm}:{password}"), _md5(f"{method}:{place}")
    facts = {"username": user, "realm": realm, "nonce": nonce, "uri": place}
    if "auth" in asked.get("qop", ""):
        facts |= {"cnonce": secrets.token_hex(8), "nc": "00000001", "qop": "auth"}
        facts["response"] = _md5(f"{one}:{nonce}:00000001:{facts['cnonce']}:auth:{two}")
    else:
        facts["response"] = _md5(f"{one}:{nonce}:{two}")
    if "opaque" in asked:
        facts["opaque"] = asked["opaque"]
    plain = ("nc", "qop")  # which are written without quotes
    return "Digest " + ", ".join(
        f"{name}={value}" if name in plain else f'{name}="{value}"' for name, value in facts.items()
    )


def _md5(text: str) -> str:
    return hashlib.md5(text.encode(), usedforsecurity=False).hexdigest()
