"""The certificate for https: the user's, or one that the app makes for itself."""

from __future__ import annotations

import hashlib
import ipaddress
import os
import socket
import ssl
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import psutil

from edge_hpcr.common.errors import UserError
from edge_hpcr.common.files import WRITING, disk_errors, reason_of

if TYPE_CHECKING:  # it is only needed to make a certificate
    from cryptography import x509

AUTO = "auto"
ANY = ("0.0.0.0", "::")  # hosts that mean all addresses of this machine
ELSEWHERE = "192.0.2.1"  # reserved for documentation: nobody is there
VALID, RENEWED = timedelta(days=825), timedelta(days=30)  # browsers accept no longer ones; before the end


class Certificate(NamedTuple):
    file: Path
    key: Path  # may be the same file

    def check(self) -> Certificate:
        try:
            ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(
                self.file, self.key, password=_no_password
            )
        except (OSError, ValueError) as error:
            raise UserError(
                f"--tls {self.file}: no certificate and its key in PEM there, or they do not belong together"
                f" ({reason_of(error)}): give --tls FILE --tls-key FILE"
            ) from error
        return self

    def fingerprint(self) -> str:
        """SHA-256 as browsers show it."""
        certificate = self.file.read_text(encoding="ascii", errors="replace")
        begin = certificate.index("-----BEGIN CERTIFICATE-----")
        end = certificate.index("-----END CERTIFICATE-----")
        der = ssl.PEM_cert_to_DER_cert(certificate[begin:end] + "-----END CERTIFICATE-----\n")
        return hashlib.sha256(der).digest().hex(":").upper()


def _no_password() -> str:
    raise ValueError("the key has a password: store it without one, readable for you alone")


def own_certificate(path: Path, host: str) -> Certificate:
    """The self-signed certificate in this file, made anew if it is missing, about to end or for other names."""
    names = _names(host)
    if not path.exists() or not _still_good(path, names):
        with disk_errors(f"the certificate {path}", "make the workspace writable"):
            content = _make(names)
            temporary = path.with_name(path.name + WRITING)
            temporary.unlink(missing_ok=True)
            with os.fdopen(os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
                file.write(content)
            temporary.replace(path)
    path.chmod(0o600)
    return Certificate(path, path).check()


def _names(host: str) -> list[str]:
    """What this machine is called by itself and by others."""
    names = {"localhost", "127.0.0.1", "::1", socket.gethostname(), host}
    if host in ANY:
        names |= set(own_addresses())
    return sorted(names - {"", *ANY})


def own_addresses() -> list[str]:
    """The addresses by which other machines of the network reach this one, the most likely one first."""
    found = []
    for name, addresses in psutil.net_if_addrs().items():
        if (state := psutil.net_if_stats().get(name)) is not None and not state.isup:
            continue
        for each in addresses:
            if each.family in (socket.AF_INET, socket.AF_INET6):
                found.append(ipaddress.ip_address(each.address.partition("%")[0]))
    usable = {str(each): each.version for each in found if not (each.is_loopback or each.is_link_local)}
    likely = _outgoing()
    return sorted(usable, key=lambda address: (address != likely, usable[address], address))


def _outgoing() -> str:
    """The address from which this machine would reach others; nothing is sent."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect((ELSEWHERE, 9))
        except OSError:  # no network
            return ""
        return str(probe.getsockname()[0])


def _still_good(path: Path, names: list[str]) -> bool:
    from cryptography import x509

    try:
        certificate = x509.load_pem_x509_certificate(path.read_bytes())
        alternatives = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except (OSError, ValueError, x509.ExtensionNotFound):
        return False
    held = {str(each.value) for each in alternatives}
    return held >= set(names) and certificate.not_valid_after_utc - datetime.now(UTC) > RENEWED


def _make(names: list[str]) -> bytes:
    """A certificate and its key in PEM."""
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec
    from cryptography.x509.oid import ExtendedKeyUsageOID

    key = ec.generate_private_key(ec.SECP256R1())
    subject = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "Edge HPCR")])
    now = datetime.now(UTC)
    certificate = (
        x509.CertificateBuilder(subject, subject, key.public_key(), x509.random_serial_number())
        .not_valid_before(now - timedelta(days=1))  # clocks differ
        .not_valid_after(now + VALID)
        .add_extension(x509.SubjectAlternativeName([_alternative(name) for name in names]), critical=False)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
        .sign(key, hashes.SHA256())
    )
    private = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    return certificate.public_bytes(serialization.Encoding.PEM) + private


def _alternative(name: str) -> x509.GeneralName:
    from cryptography import x509

    try:
        return x509.IPAddress(ipaddress.ip_address(name))
    except ValueError:
        return x509.DNSName(name.encode("idna").decode())
