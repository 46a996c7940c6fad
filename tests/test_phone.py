"""A phone as the camera: https on this machine's own addresses, a certificate that names them, and a code to scan."""

import base64
import http.client
import ipaddress
import json
import socket
import ssl
import stat
from contextlib import closing
from datetime import timedelta
from urllib.parse import urlsplit

import cv2
import numpy as np
import pytest
from browser_parts import PASSWORD, PATIENCE, chromium, film_of, photos, running
from cryptography import x509
from playwright.sync_api import expect

from app import server, tls
from app.security import Credentials
from app.tls import own_addresses, own_certificate

ELSEWHERE = "192.0.2.77"  # an address that this machine gets in the midst of a test


def names_in(certificate: x509.Certificate) -> set[str]:
    named = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    return {str(each.value) for each in named}


def test_the_certificate_names_every_address_and_is_renewed_when_they_change(tmp_path, monkeypatch):
    file = tmp_path / "tls.pem"

    def made() -> set[str]:
        assert stat.S_IMODE(own_certificate(file, "0.0.0.0").file.stat().st_mode) == 0o600
        return names_in(x509.load_pem_x509_certificate(file.read_bytes()))

    assert made() >= {"localhost", "127.0.0.1", *own_addresses()}
    content = file.read_bytes()
    made()
    assert file.read_bytes() == content  # the phone is not asked again for nothing
    monkeypatch.setattr(tls, "own_addresses", lambda: [ELSEWHERE])
    assert ELSEWHERE in made()
    assert file.read_bytes() != content


def test_a_certificate_that_is_about_to_end_is_renewed(tmp_path, monkeypatch):
    file = tmp_path / "tls.pem"
    with monkeypatch.context() as short:
        short.setattr(tls, "VALID", timedelta(days=20))
        content = own_certificate(file, "0.0.0.0").file.read_bytes()
    assert own_certificate(file, "0.0.0.0").file.read_bytes() != content


def test_its_addresses_are_those_that_others_can_reach():
    for text in own_addresses():
        address = ipaddress.ip_address(text)
        assert not (address.is_loopback or address.is_link_local or address.is_unspecified)
        with socket.socket(socket.AF_INET if address.version == 4 else socket.AF_INET6) as probe:
            probe.bind((text, 0))  # it is this machine's


@pytest.fixture(scope="module")
def app(tmp_path_factory):
    """As `--phone --auth anna:FILE` starts it."""
    path = tmp_path_factory.mktemp("phone") / "workspace"
    options = {"host": "0.0.0.0", "tls": "auto", "credentials": Credentials("anna", PASSWORD)}
    with running(path, source="", **options) as app:
        yield app


@pytest.fixture
def address():
    found = [each for each in own_addresses() if ":" not in each]
    if not found:
        pytest.skip("this machine has no network address")
    return found[0]


def ask(app, address: str, path: str, password: str | None = None) -> tuple[int, bytes]:
    """Through a real TLS connection that checks that the certificate is the app's own and names this address."""
    trusted = ssl.create_default_context(cafile=app.workspace / "tls.pem")
    headers = {}
    if password is not None:
        headers["Authorization"] = "Basic " + base64.b64encode(f"anna:{password}".encode()).decode()
    with closing(http.client.HTTPSConnection(address, app.port, timeout=120, context=trusted)) as connection:
        connection.request("GET", path, headers=headers)
        answer = connection.getresponse()
        return answer.status, answer.read()


@pytest.mark.slow
def test_the_page_is_reached_by_https_at_the_address_and_only_with_the_password(app, address):
    for path in ("/", "/edge/state", "/edge/phone"):
        assert ask(app, address, path)[0] == 401
        assert ask(app, address, path, "wrong")[0] == 401
    invitation = json.loads(ask(app, address, "/edge/phone", PASSWORD)[1])
    for offered in app.server.addresses_for_others():
        assert ask(app, urlsplit(offered).hostname, "/edge/state", PASSWORD)[0] == 200
    assert invitation["address"] == f"https://{address}:{app.port}/"
    assert invitation["fingerprint"] == app.server.certificate.fingerprint()


@pytest.mark.slow
def test_an_address_that_the_machine_gets_while_it_runs_is_named_from_then_on(app, address, monkeypatch):
    def named() -> set[str]:
        context = ssl._create_unverified_context()
        with (
            socket.create_connection((address, app.port), timeout=60) as plain,
            context.wrap_socket(plain) as secured,
        ):
            return names_in(x509.load_der_x509_certificate(secured.getpeercert(binary_form=True)))

    assert ELSEWHERE not in named()
    found = own_addresses()
    with monkeypatch.context() as moved:
        moved.setattr(tls, "own_addresses", lambda: [*found, ELSEWHERE])
        moved.setattr(server, "RENEW_SECONDS", 0.0)
        app.server.follow_addresses()
    assert named() >= {ELSEWHERE, address}
    assert ask(app, address, "/edge/state", PASSWORD)[0] == 200


@pytest.mark.browser
def test_a_phone_that_scans_the_code_is_the_camera(app, address, tmp_path):
    film = film_of(photos()["flower"], tmp_path / "flower.mjpeg")
    known = {"ignore_https_errors": True, "http_credentials": {"username": "anna", "password": PASSWORD}}
    with chromium(film) as browser:
        desk = browser.new_context(viewport={"width": 1200, "height": 850}, **known).new_page()
        desk.set_default_timeout(PATIENCE)
        desk.goto(f"https://127.0.0.1:{app.port}/")
        desk.locator("#phone summary").click()
        expect(desk.locator("#phone-warning")).to_contain_text("The phone will warn about the certificate")
        expect(desk.locator("#phone-warning")).to_contain_text("this program has made it itself")
        expect(desk.locator("#phone-content")).to_contain_text(app.server.certificate.fingerprint())
        picture = np.frombuffer(desk.locator("#phone-code").screenshot(), np.uint8)
        scanned, *_ = cv2.QRCodeDetector().detectAndDecode(cv2.imdecode(picture, cv2.IMREAD_COLOR))
        assert scanned == f"https://{address}:{app.port}/"

        phone = browser.new_context(
            viewport={"width": 380, "height": 800}, is_mobile=True, **known
        ).new_page()
        phone.set_default_timeout(PATIENCE)
        phone.goto(scanned)
        phone.locator("#source-browser").click()
        expect(phone.locator("#preview")).to_be_visible()
        expect(desk.locator("#source-state")).to_contain_text("browser camera: live")
        expect(desk.locator("#frame")).to_be_visible()  # what the phone sees, at the desk


@pytest.mark.slow
def test_a_page_for_this_machine_alone_invites_no_phone_and_says_how_to(guarded):
    answer = guarded.server.invitation()
    assert answer == {"address": ""}
