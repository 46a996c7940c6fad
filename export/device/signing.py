"""Signed models: what a device that was given a public key (Ed25519) takes, and what it refuses.

Two signatures. That of latest.json says which version is current: it covers version, folder, the manifest's SHA-256, a
serial number that grows with every change, and whether the version may be older than what a device has run. That of a
manifest is kept beside it, for whoever starts from a version's folder or from a cache. No clock is asked: a device
remembers the serial number and the version that it took last.
"""

from __future__ import annotations

import base64
import binascii
import json
from pathlib import Path
from typing import Any

from edge_hpcr.common.errors import UserError
from edge_hpcr.common.files import read_regular, reason_of, sha256, write_atomically
from export.device.errors import BadModel, Unavailable
from export.device.manifest import (
    LARGEST_MANIFEST,
    MANIFEST,
    Latest,
    is_whole,
    parse_json,
    read_plain_file,
)

SIGNATURE = "manifest.sig"  # beside the manifest: base64 in a line
LARGEST_KEY = 10_000  # bytes of a file
_MANIFEST_HEAD, _LATEST_HEAD = b"edge-hpcr manifest 1\n", b"edge-hpcr latest 1\n"


def manifest_message(manifest: bytes) -> bytes:
    """What is signed of a manifest; the head keeps one signature from being shown as the other."""
    return _MANIFEST_HEAD + manifest


def latest_message(latest: Latest, serial: int, allows_older: bool) -> bytes:
    facts = [latest.version, latest.folder, latest.manifest_sha256, serial, allows_older]
    return _LATEST_HEAD + json.dumps(facts, separators=(",", ":")).encode()


class PublicKey:
    """Tells whether the owner of the private key has signed something."""

    def __init__(self, path: Path) -> None:
        try:
            from cryptography.exceptions import InvalidSignature
            from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
            from cryptography.hazmat.primitives.serialization import load_pem_public_key
        except ModuleNotFoundError:
            raise UserError("--public-key needs the package cryptography: pip install cryptography") from None

        def refuse(reason: str) -> UserError:
            return UserError(f"the public key {path} cannot be used: {reason}")

        data = read_regular(path, LARGEST_KEY, refuse)
        if b"PRIVATE" in data:
            raise refuse(
                "it is a private key, which belongs on no device; `export keygen` made a public one too"
            )
        try:
            key = load_pem_public_key(data)
        except ValueError:
            raise refuse("it is no key that `python -m export keygen` made") from None
        if not isinstance(key, Ed25519PublicKey):
            raise refuse("it is not of the kind Ed25519, which `python -m export keygen` makes")
        self._key, self._invalid = key, InvalidSignature
        self.fingerprint = sha256(key.public_bytes_raw())[:16]

    def has_signed(self, message: bytes, signature: str) -> bool:
        try:
            self._key.verify(base64.b64decode(signature, validate=True), message)
        except (self._invalid, binascii.Error, ValueError):
            return False
        return True


class Trust:
    """What a device with a public key may run: signed, and not older than what it took last unless the signer says so."""

    def __init__(self, key: PublicKey, cache: Path, models: str) -> None:
        self._key = key
        # Of the models' address too: two workspaces may be signed with one key and count their versions apart.
        name = sha256(f"{key.fingerprint} {models}".encode())[:16]
        self._path = cache / f"signed-{name}.json"
        self.serial, self.version = self._read()

    def check_latest(self, latest: Latest, where: str) -> None:
        """`BadModel` unless the owner of the key has made this version current, and nothing else since."""
        signed = latest.signature
        if signed is None:
            raise BadModel(f"{where}: it is not signed, and --public-key asks for a signature")
        message = latest_message(latest, signed.serial, signed.allows_older)
        if not self._key.has_signed(message, signed.latest):
            raise BadModel(f"{where}: its signature is not that of the owner of --public-key")
        if signed.serial < self.serial:
            raise BadModel(
                f"{where}: an old one (number {signed.serial}; number {self.serial} was seen): somebody repeats what was signed before"
            )
        if latest.version < self.version and not signed.allows_older:
            raise BadModel(
                f"{where}: version {latest.version} is older than {self.version}, which ran here, and its signature does not allow that"
            )

    def check_folder(self, folder: Path, version: int) -> None:
        """The same for a version's folder, or a cached one, by the signature beside its manifest."""
        if not (folder / SIGNATURE).exists():
            raise BadModel(f"{folder}: it is not signed, and --public-key asks for a signature")
        manifest = read_plain_file(folder / MANIFEST, LARGEST_MANIFEST)
        signature = read_plain_file(folder / SIGNATURE, LARGEST_KEY).decode("ascii", "replace").strip()
        if not self._key.has_signed(manifest_message(manifest), signature):
            raise BadModel(f"{folder}: its signature is not that of the owner of --public-key")
        if version < self.version:
            raise BadModel(f"{folder}: version {version} is older than {self.version}, which ran here")

    def took(self, version: int, latest: Latest | None) -> None:
        """Remember what is in use now; `Unavailable` if that cannot be written."""
        serial = (
            latest.signature.serial if latest is not None and latest.signature is not None else self.serial
        )
        if (serial, version) == (self.serial, self.version):
            return
        self.serial, self.version = serial, version
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            write_atomically(self._path, json.dumps({"serial": serial, "version": version}))
        except OSError as error:
            raise Unavailable(
                f"cannot keep in {self._path} which version runs: {reason_of(error)} (--cache names another folder)"
            ) from None

    def _read(self) -> tuple[int, int]:
        """What was taken last; a file that is there and says nothing is no reason to forget it silently."""
        if not self._path.exists():
            return 0, 0
        try:
            facts: Any = parse_json(read_plain_file(self._path, LARGEST_KEY), str(self._path))
            serial, version = facts["serial"], facts["version"]
            if is_whole(serial, 0, 2**53) and is_whole(version, 0, 2**53):
                return serial, version
        except (BadModel, KeyError, TypeError):
            pass
        raise UserError(
            f"{self._path} is damaged, which says what this device ran last: remove it to accept any signed version"
        )
