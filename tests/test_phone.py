"""A phone as the camera: https on this machine's own addresses, a certificate that names them, and a code to scan."""

import base64
import http.client
import json
import ssl
import stat
from contextlib import closing
from urllib.parse import urlsplit

import cv2
import numpy as np
import pytest
from browser_parts import PASSWORD, PATIENCE, chromium, film_of, photos, running
from cryptography import x509
from playwright.sync_api import expect

from app import tls
from app.security import Credentials
from app.tls import own_addresses, own_certificate

ELSEWHERE = "192.0.2.77"  # an address that this machine gets in the midst of a test


def names_in(certificate: x509.Certificate) -> set[str]:
    named = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    return {str(each.value) for each in named}


def test_the_certificate_names_every_address_and_is_renewed_when_they_change(tmp_path, monkeypatch):
    file = tmp_path / "tls.pem"

    def made() -> set[str]:
        assert stat.S_IMODE(own_certificate(file, "0.0.0.0").stat().st_mode) == 0o600
        return names_in(x509.load_pem_x509_certificate(file.read_bytes()))

    assert made() >= {"localhost", "127.0.0.1", *own_addresses()}
    content = file.read_bytes()
    made()
    assert file.read_bytes() == content  # the phone is not asked again for nothing
    monkeypatch.setattr(tls, "own_addresses", lambda: [ELSEWHERE])
    assert ELSEWHERE in made()
    assert file.read_bytes() != content


@pytest.fixture(scope="module")
def app(tmp_path_factory):
    """As `--phone --auth anna:FILE` starts it."""
    path = tmp_path_factory.mktemp("phone") / "workspace"
    options = {"host": "0.0.0.0", "phone": True, "credentials": Credentials("anna", PASSWORD)}
    with running(path, source="", **options) as app:
        yield app


@pytest.fixture
def address():
    if not (found := own_addresses()):
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
    for offered in app.server.phone_addresses:
        assert ask(app, urlsplit(offered).hostname, "/edge/state", PASSWORD)[0] == 200
    assert invitation["address"] == f"https://{address}:{app.port}/"
    assert invitation["fingerprint"] == tls.fingerprint(app.server.certificate)


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
        expect(desk.locator("#phone-content")).to_contain_text(tls.fingerprint(app.server.certificate))
        desk.wait_for_function("document.querySelector('#phone-code').complete")
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
