"""The certificate for https that the app makes for itself, which a phone needs to lend its camera."""

from __future__ import annotations

import hashlib
import ipaddress
import os
import socket
import ssl
from datetime import UTC, datetime, timedelta
from pathlib import Path

import psutil

from edge_hpcr.common.files import disk_errors

EVERYWHERE = "0.0.0.0"  # the host that means all addresses of this machine
VALID, RENEWED = timedelta(days=825), timedelta(days=30)  # browsers accept no longer ones; before the end


def own_certificate(path: Path, host: str) -> Path:
    """The self-signed certificate and its key in this file, made anew if missing, about to end or for other names."""
    names = {"localhost", "127.0.0.1", socket.gethostname(), host} - {"", EVERYWHERE}
    names |= set(own_addresses()) if host == EVERYWHERE else set()
    with disk_errors(f"the certificate {path}", "make the workspace writable"):
        if not _still_good(path, names):
            path.unlink(missing_ok=True)
            with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
                file.write(_make(sorted(names)))
        path.chmod(0o600)
    return path


def fingerprint(certificate: Path) -> str:
    """SHA-256 as browsers show it."""
    text = certificate.read_text(encoding="ascii")
    begin, end = (text.index(f"-----{edge} CERTIFICATE-----") for edge in ("BEGIN", "END"))
    der = ssl.PEM_cert_to_DER_cert(f"{text[begin:end]}-----END CERTIFICATE-----\n")
    return hashlib.sha256(der).digest().hex(":").upper()


def own_addresses() -> list[str]:
    """The addresses by which other machines of the network reach this one, the most likely one first."""
    up = {name for name, state in psutil.net_if_stats().items() if state.isup}
    found = {
        each.address
        for name, addresses in psutil.net_if_addrs().items()
        for each in addresses
        if name in up and each.family == socket.AF_INET
    }
    usable = [each for each in found if not ipaddress.ip_address(each).is_loopback]
    likely = _outgoing()
    return sorted(usable, key=lambda address: (address != likely, address))


def _outgoing() -> str:
    """The address from which this machine would reach others; nothing is sent."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(("192.0.2.1", 9))  # reserved for documentation: nobody is there
        except OSError:  # no network
            return ""
        return str(probe.getsockname()[0])


def _still_good(path: Path, names: set[str]) -> bool:
    from cryptography import x509  # here, and below: only a phone needs it

    try:
        certificate = x509.load_pem_x509_certificate(path.read_bytes())
        named = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except (OSError, ValueError, x509.ExtensionNotFound):
        return False
    held = {str(each.value) for each in named}
    return held >= names and certificate.not_valid_after_utc - datetime.now(UTC) > RENEWED


def _make(names: list[str]) -> bytes:
    """A certificate and its key in PEM."""
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec
    from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

    def alternative(name: str) -> x509.GeneralName:
        try:
            return x509.IPAddress(ipaddress.ip_address(name))
        except ValueError:
            return x509.DNSName(name.encode("idna").decode())

    key = ec.generate_private_key(ec.SECP256R1())
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "Edge HPCR")])
    now = datetime.now(UTC)
    certificate = (
        x509.CertificateBuilder(subject, subject, key.public_key(), x509.random_serial_number())
        .not_valid_before(now - timedelta(days=1))  # clocks differ
        .not_valid_after(now + VALID)
        .add_extension(x509.SubjectAlternativeName([alternative(name) for name in names]), critical=False)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
        .sign(key, hashes.SHA256())
    )
    private = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    return certificate.public_bytes(serialization.Encoding.PEM) + private
