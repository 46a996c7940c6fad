"""The private key that signs what a workspace publishes (Ed25519), and the public one that devices are given.

The private key lies where nobody serves it: never in an exports folder. The workspace's setting `publish_key` names it.
"""

from __future__ import annotations

import base64
import os
from pathlib import Path

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    PublicFormat,
    load_pem_private_key,
)

from edge_hpcr.common.errors import UserError
from edge_hpcr.common.files import flush_to_disk, read_regular, reason_of, write_atomically
from edge_hpcr.workspace.layout import Layout
from edge_hpcr.workspace.settings import Settings
from export.device.manifest import LATEST, MANIFEST, Latest, Signature
from export.device.signing import LARGEST_KEY, SIGNATURE, latest_message, manifest_message


def make_keys(private: Path, public: Path) -> None:
    """Write a new pair of keys; the private one for its owner only."""
    _refuse_in_exports(private)
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


def _refuse_in_exports(path: Path) -> None:
    """A private key in an exports folder would be given to whoever asks a file server for it."""
    for folder in path.resolve().parents:
        if (folder / LATEST).exists() or (folder.name == "exports" and Layout(folder.parent).is_workspace()):
            raise UserError(
                f"{path}: {folder} holds published models, which are given out: keep the private key elsewhere"
            )


class PrivateKey:
    """Signs what is published."""

    def __init__(self, path: Path) -> None:
        def refuse(reason: str) -> UserError:
            return UserError(f"the private key {path} cannot be used: {reason}")

        _refuse_in_exports(path)
        try:
            key = load_pem_private_key(read_regular(path, LARGEST_KEY, refuse), None)
        except (ValueError, TypeError):  # the latter: it is encrypted
            raise refuse("it is no key that `python -m export keygen` made") from None
        if not isinstance(key, Ed25519PrivateKey):
            raise refuse("it is not of the kind Ed25519, which `python -m export keygen` makes")
        self._key = key

    def _sign(self, message: bytes) -> str:
        return base64.b64encode(self._key.sign(message)).decode()

    def sign_folder(self, folder: Path) -> None:
        """Put the signature beside the manifest of a version."""
        write_atomically(
            folder / SIGNATURE, self._sign(manifest_message((folder / MANIFEST).read_bytes())) + "\n"
        )

    def signature_of(self, latest: Latest, manifest: bytes, serial: int, allows_older: bool) -> Signature:
        return Signature(
            serial,
            allows_older,
            self._sign(manifest_message(manifest)),
            self._sign(latest_message(latest, serial, allows_older)),
        )


def key_of(exports: Path) -> PrivateKey | None:
    """The key that the workspace of this exports folder names; None if it names none."""
    settings = Layout(exports.parent).settings
    if not settings.exists():
        return None
    named = Settings.load(settings).publish_key
    return PrivateKey(Path(named)) if named else None
