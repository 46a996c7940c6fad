"""Signed models (Ed25519): keys, what a trainer signs, and what a device that was given the public key takes.

Two signatures. That of latest.json says which version is current: it covers version, folder, the manifest's SHA-256, a
serial number that grows with every change, and whether the version may be older than what a device has run. That of a
manifest is kept beside it, for whoever starts from a version's folder or from a cache. No clock is asked: a device
remembers the serial number and the version that it took last.
"""

import base64
import json
import os
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from edge_hpcr.common.errors import UserError
from edge_hpcr.common.files import flush_to_disk, read_regular, reason_of, sha256, write_atomically
from export.device import BadModel, Unavailable
from export.device.manifest import (
    LARGEST_MANIFEST,
    MANIFEST,
    Latest,
    Signature,
    Whole,
    parse_json,
    read,
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


def make_keys(private: Path, public: Path) -> None:
    """Write a new pair of keys; the private one for its owner only."""
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
    from cryptography.hazmat.primitives.serialization import (
        Encoding,
        NoEncryption,
        PrivateFormat,
        PublicFormat,
    )

    key = Ed25519PrivateKey.generate()
    secret = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    shared = key.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)
    for path, data, mode in ((private, secret, 0o600), (public, shared, 0o644)):
        try:
            # Exclusively: who loses a private key cannot publish for its devices any more.
            with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode), "wb") as file:
                file.write(data)
            flush_to_disk(path)
        except FileExistsError:
            raise UserError(
                f"{path} is there already, and keys are not overwritten: name another file"
            ) from None
        except OSError as error:
            raise UserError(f"cannot write the key {path}: {reason_of(error)}") from None


class PrivateKey:
    """Signs what a trainer publishes. It belongs nowhere else, and not into the exports folder, which is given out."""

    def __init__(self, path: Path) -> None:
        from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
        from cryptography.hazmat.primitives.serialization import load_pem_private_key

        def refuse(reason: str) -> UserError:
            return UserError(f"the private key {path} cannot be used: {reason}")

        try:
            key = load_pem_private_key(read_regular(path, LARGEST_KEY, refuse), None)
        except (ValueError, TypeError):  # the latter: it is encrypted
            raise refuse("it is no key that `python -m export keygen` made") from None
        if not isinstance(key, Ed25519PrivateKey):
            raise refuse("it is not of the kind Ed25519, which `python -m export keygen` makes")
        self._key = key

    def _sign(self, message: bytes) -> str:
        return base64.b64encode(self._key.sign(message)).decode()

    def signed(self, folder: Path, latest: Latest, serial: int, allows_older: bool) -> Latest:
        """A latest.json with both signatures; that of the manifest is put beside it, too."""
        manifest = self._sign(manifest_message((folder / MANIFEST).read_bytes()))
        write_atomically(folder / SIGNATURE, manifest + "\n")
        current = self._sign(latest_message(latest, serial, allows_older))
        return replace(latest, signature=Signature(serial, allows_older, manifest, current))


@dataclass(frozen=True)
class _Taken:
    """What a device took last."""

    serial: Whole
    version: Whole


class Trust:
    """What a device with a public key may run: signed by the owner of the private key, and not older than what it took
    last unless the signer says so.
    """

    def __init__(self, public_key: Path, cache: Path, models: str) -> None:
        # Here, because most devices have no key, and it takes a while on a small one.
        from cryptography.exceptions import InvalidSignature
        from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
        from cryptography.hazmat.primitives.serialization import load_pem_public_key

        def refuse(reason: str) -> UserError:
            return UserError(f"the public key {public_key} cannot be used: {reason}")

        data, key = read_regular(public_key, LARGEST_KEY, refuse), None
        with suppress(ValueError):
            key = load_pem_public_key(data)
        if not isinstance(key, Ed25519PublicKey):
            raise refuse(
                "it is no public key that `python -m export keygen` made (a private one belongs on no device)"
            )
        self._key, self._invalid = key, InvalidSignature
        # Of the models' address too: two workspaces may be signed with one key and count their versions apart.
        name = sha256(f"{sha256(key.public_bytes_raw())[:16]} {models}".encode())[:16]
        self._path = cache / f"signed-{name}.json"
        self.taken = _Taken(0, 0)
        if self._path.exists():
            try:
                self.taken = read(_Taken, parse_json(read_plain_file(self._path, LARGEST_KEY), ""), "")
            except BadModel:
                # No reason to forget it silently.
                raise UserError(
                    f"{self._path} is damaged, which says what this device ran last: remove it to accept any signed version"
                ) from None

    def _check(self, message: bytes, signature: str, where: str) -> None:
        """`BadModel` unless the owner of the key has signed the message."""
        try:
            self._key.verify(base64.b64decode(signature, validate=True), message)
        except (self._invalid, ValueError):
            raise BadModel(f"{where}: its signature is not that of the owner of --public-key") from None

    def check_latest(self, latest: Latest, where: str) -> None:
        """`BadModel` unless the owner of the key has made this version current, and nothing else since."""
        signed = latest.signature
        if signed is None:
            raise BadModel(f"{where}: it is not signed, and --public-key asks for a signature")
        self._check(latest_message(latest, signed.serial, signed.allows_older), signed.latest, where)
        if signed.serial < self.taken.serial:
            raise BadModel(
                f"{where}: an old one (number {signed.serial}; number {self.taken.serial} was seen): this repeats what was signed before"
            )
        if latest.version < self.taken.version and not signed.allows_older:
            raise BadModel(
                f"{where}: version {latest.version} is older than {self.taken.version}, which ran here, and its signature does not allow that"
            )

    def check_folder(self, folder: Path, version: int) -> None:
        """The same for a version's folder, or a cached one, by the signature beside its manifest."""
        if not (folder / SIGNATURE).exists():
            raise BadModel(f"{folder}: it is not signed, and --public-key asks for a signature")
        manifest = read_plain_file(folder / MANIFEST, LARGEST_MANIFEST)
        signature = read_plain_file(folder / SIGNATURE, LARGEST_KEY).decode("ascii", "replace").strip()
        self._check(manifest_message(manifest), signature, str(folder))
        if version < self.taken.version:
            raise BadModel(f"{folder}: version {version} is older than {self.taken.version}, which ran here")

    def took(self, version: int, latest: Latest | None) -> None:
        """Remember what is in use now; `Unavailable` if that cannot be written."""
        serial = latest.signature.serial if latest is not None and latest.signature else self.taken.serial
        now = _Taken(serial, version)
        if now == self.taken:
            return
        self.taken = now
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            write_atomically(self._path, json.dumps(asdict(now)))
        except OSError as error:
            raise Unavailable(
                f"cannot keep in {self._path} which version runs: {reason_of(error)} (--cache names another folder)"
            ) from None
