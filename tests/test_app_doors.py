"""The doors of the app: the token, the password and its guesses, what answers tell browsers, uploads, and https."""

import asyncio
import base64
import http.client
import json
import logging
import re
import shutil
import socket
import ssl
import stat
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing, suppress
from pathlib import Path

import cv2
import httpx
import numpy as np
import pytest
from browser_parts import PASSWORD, OwnServer, chromium, free_port, go_to, open_page, running, wait_for
from playwright.sync_api import expect
from process_parts import ROOT
from starlette.responses import PlainTextResponse

from app import body_limit, connections, guesses
from app.guesses import Guesses, TooManyGuesses
from app.security import Credentials, Guard, own_token
from app.tls import Certificate, own_certificate
from edge_hpcr.common.errors import UserError
from edge_hpcr.workspace.records import Body

COOKIE = re.compile(r"edge-hpcr-\d+=[\w-]{43}")


@pytest.fixture(scope="module")
def app(tmp_path_factory):
    with running(tmp_path_factory.mktemp("doors") / "workspace") as app:
        yield app


def ask(
    port: int,
    path: str,
    method: str = "GET",
    body: object = None,
    tls: ssl.SSLContext | None = None,
    **headers: str,
) -> tuple[http.client.HTTPResponse, bytes]:
    kind = http.client.HTTPSConnection if tls else http.client.HTTPConnection
    connection = kind("127.0.0.1", port, timeout=60, **({"context": tls} if tls else {}))
    with closing(connection):
        connection.request(
            method, path, body, {name.replace("_", "-"): value for name, value in headers.items()}
        )
        answer = connection.getresponse()
        return answer, answer.read()


def by_password(password: str, user: str = "anna") -> dict[str, str]:
    return {"Authorization": "Basic " + base64.b64encode(f"{user}:{password}".encode()).decode()}


def bearer(app: OwnServer) -> dict[str, str]:
    return {"Authorization": f"Bearer {app.token}"}


# The token ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("path", ["/", "/edge/state", "/config", "/gradio_api/info", "/edge/static/edge.js"])
def test_without_the_token_nothing_is_answered_but_where_it_is(app, path):
    for wrong in (path, f"{path}?token=wrong", f"{path}?token="):
        answer, body = ask(app.port, wrong)
        assert answer.status == 401 and b"open the link that <code>python -m app</code> printed" in body
        assert answer.getheader("Set-Cookie") is None
    assert ask(app.port, path, Cookie=f"edge-hpcr-{app.port}=wrong")[0].status == 401
    assert ask(app.port, path, Authorization="Bearer wrong")[0].status == 401


def test_a_stranger_on_this_machine_changes_nothing(app):
    before = app.server.studio.journal.last_seq
    request = json.dumps({"do": "new_class", "name": "evil"})
    assert ask(app.port, "/edge/act", "POST", request)[0].status == 401
    assert app.server.studio.journal.last_seq == before


def test_the_printed_link_gives_a_cookie_and_leads_to_the_clean_address(app):
    answer, _ = ask(app.port, f"/?__theme=dark&token={app.token}")
    assert (answer.status, answer.getheader("Location")) == (303, "/?__theme=dark")
    cookie = answer.getheader("Set-Cookie")
    assert COOKIE.match(cookie) and "HttpOnly" in cookie and "SameSite=Strict" in cookie
    assert (
        ask(app.port, "/edge/state", Cookie=f"other={{; {COOKIE.match(cookie)[0]}; more=1")[0].status == 200
    )
    assert ask(app.port, "/edge/state", **bearer(app))[0].status == 200


def test_the_link_leads_to_the_clean_address_on_every_visit(app):
    cookie = f"edge-hpcr-{app.port}={app.token}"
    assert ask(app.port, f"/?token={app.token}", Cookie=cookie)[0].getheader("Location") == "/"


@pytest.mark.parametrize(
    "path", ["//evil.example/", "///evil.example/", "/%5Cevil.example/", "/%0d%0aX:%20y"]
)
def test_the_link_leads_to_no_other_host(app, path):
    answer, _ = ask(app.port, f"{path}?token={app.token}")
    assert answer.status == 303 and answer.getheader("X") is None
    assert re.match(r"/[^/\\]", answer.getheader("Location"))


def test_whether_it_is_ready_is_told_to_everybody(app):
    assert ask(app.port, "/healthz")[0].status == 200


def test_the_token_is_kept_for_the_owner_alone(tmp_path):
    file = tmp_path / "token"
    token = own_token(file)
    assert len(token) == 43 and stat.S_IMODE(file.stat().st_mode) == 0o600
    file.chmod(0o644)
    assert own_token(file) == token and stat.S_IMODE(file.stat().st_mode) == 0o600
    file.write_text("short\n")
    assert own_token(file) not in (token, "short"), "one that could be guessed is replaced"


@pytest.mark.slow
def test_who_wants_none_needs_none(tmp_path):
    with running(tmp_path / "workspace", token=False) as app:
        assert app.token is None and app.server.ticket == ""
        assert ask(app.port, "/edge/state")[0].status == 200
        assert ask(app.port, "/edge/state", Host="evil.example")[0].status == 400


@pytest.mark.browser
def test_in_a_browser_the_link_opens_every_tab_and_the_policy_refuses_none(app):
    with chromium() as browser:
        page = browser.new_page()
        page.goto(app.address)
        expect(page.locator("body")).to_contain_text("Please open the link")
        said: list[str] = []
        page.on("console", lambda message: said.append(message.text))
        page.on("pageerror", lambda error: said.append(str(error)))
        page.goto(app.link)
        assert page.url == f"{app.address}/"
        expect(page.locator("#strip")).to_contain_text("labels")
        for tab in ("Teach", "Review", "Accuracy", "Memory", "Classes", "Models", "Benchmarks", "Settings"):
            go_to(page, tab)
            page.wait_for_timeout(500)
        assert [text for text in said if "Security Policy" in text or "Error" in text] == []
        page.goto("about:blank")
        page.goto(app.address)  # a bookmark
        expect(page.locator("#strip")).to_contain_text("labels")


# What every answer tells a browser ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("path", "status"),
    [("/", 200), ("/", 401), ("/edge/state", 200), ("/config", 200), ("/healthz", 200), ("/nothing", 404)],
)
def test_every_answer_carries_the_headers(app, path, status):
    answer, _ = ask(app.port, path, **({} if status == 401 else bearer(app)))
    assert answer.status == status
    assert answer.getheader("X-Content-Type-Options") == "nosniff"
    assert answer.getheader("Referrer-Policy") == "no-referrer"
    policy = answer.getheader("Content-Security-Policy")
    assert "frame-ancestors 'none'" in policy
    assert ("unsafe-eval" in policy) == (path == "/"), "where Gradio's HTML component needs it"


def test_an_answer_after_an_error_carries_them_too(app):
    body = json.dumps({"fn_index": 9999, "data": [], "session_hash": "x"})
    headers = bearer(app) | {"Content_Type": "application/json"}
    answer, said = ask(app.port, "/gradio_api/queue/join", "POST", body, **headers)
    assert answer.status == 500 and b"the program's log says what" in said
    assert "frame-ancestors 'none'" in answer.getheader("Content-Security-Policy")


# Passwords ----------------------------------------------------------------------------------------------------------


@pytest.fixture
def quick_waits(monkeypatch):
    monkeypatch.setattr(guesses, "FIRST_SECONDS", 0.02)
    monkeypatch.setattr(guesses, "LONGEST_SECONDS", 0.08)


@pytest.mark.slow
def test_wrong_guesses_wait_whatever_they_say_about_where_they_are_from(guarded, quick_waits):
    begun = time.monotonic()
    with ThreadPoolExecutor(8) as threads:
        wrong = [
            threads.submit(
                ask, guarded.port, "/edge/state", **by_password(f"guess {n}"), X_Forwarded_For=f"10.0.0.{n}"
            )
            for n in range(40)
        ]
        assert {each.result()[0].status for each in wrong} == {401}
    # The first three at once, then 0.02 and 0.04 s, then 0.08 s each.
    assert time.monotonic() - begun > 0.02 + 0.04 + 35 * 0.08
    assert ask(guarded.port, "/edge/state", **by_password(PASSWORD))[0].status == 200


@pytest.mark.slow
def test_a_right_password_makes_nobody_elses_guesses_forgotten(quick_waits):
    async def guess() -> float:
        lock = Guesses()
        for number in range(10):
            assert not await lock.look_at(f"wrong {number}", False, "anna", "10.0.0.1")
            assert await lock.look_at("right", True, "anna", "10.0.0.1")
        begun = time.monotonic()
        assert not await lock.look_at("one more", False, "anna", "10.0.0.2")
        return time.monotonic() - begun

    assert asyncio.run(guess()) > 0.08 - 0.01  # an event loop's clock is coarse


def test_the_right_password_does_not_wait_for_wrong_ones_and_too_many_of_those_are_not_looked_at(monkeypatch):
    monkeypatch.setattr(guesses, "FREE", 0)
    monkeypatch.setattr(guesses, "FIRST_SECONDS", 600.0)
    monkeypatch.setattr(guesses, "LONGEST_SECONDS", 600.0)
    monkeypatch.setattr(guesses, "MOST_WAITING", 50)
    monkeypatch.setattr(guesses, "MOST_WAITING_IN_ALL", 70)

    async def crowd() -> None:
        lock = Guesses()

        async def wait_as(address: str, count: int) -> list[asyncio.Task[bool]]:
            tasks = [
                asyncio.create_task(lock.look_at(f"{address} {n}", False, "anna", address))
                for n in range(count)
            ]
            await asyncio.sleep(0)
            return tasks

        waiting = await wait_as("2001:db8::1", 49)
        assert await lock.look_at("right", True, "anna", "2001:db8::2")
        waiting += await wait_as("2001:db8::3", 1)  # the same network
        for guess, right in (("right", True), ("wrong", False)):
            with pytest.raises(TooManyGuesses):
                await lock.look_at(guess, right, "anna", "2001:db8::4")
        assert await lock.look_at("right", True, "anna", "2001:db8:0:1::1")
        waiting += await wait_as("10.0.0.1", 20)  # now it is crowded
        with pytest.raises(TooManyGuesses):
            await lock.look_at("right", True, "anna", "10.0.0.1")
        assert await lock.look_at("right", True, "anna", "10.0.0.2")
        assert not any(task.done() for task in waiting)
        for task in waiting:
            task.cancel()
        await asyncio.gather(*waiting, return_exceptions=True)
        assert not lock._waiting

    asyncio.run(crowd())


def test_the_same_wrong_guess_again_is_no_further_guess(monkeypatch):
    monkeypatch.setattr(guesses, "FIRST_SECONDS", 60.0)
    monkeypatch.setattr(guesses, "LONGEST_SECONDS", 60.0)

    async def page_left_open() -> None:
        lock = Guesses()
        for _ in range(100):
            assert not await lock.look_at("of last week", False, "anna", "10.0.0.1")
        assert await lock.look_at("right", True, "anna", "10.0.0.1")

    asyncio.run(asyncio.wait_for(page_left_open(), 30))


def test_a_browser_that_was_let_in_before_does_not_wait_for_those_who_guess(monkeypatch):
    monkeypatch.setattr(guesses, "FIRST_SECONDS", 600.0)
    monkeypatch.setattr(guesses, "LONGEST_SECONDS", 600.0)
    guard = Guard(PlainTextResponse("inside"), Credentials("anna", PASSWORD))

    async def visit() -> None:
        transport = httpx.ASGITransport(guard)
        async with (
            httpx.AsyncClient(
                transport=transport, base_url="http://bench", auth=("anna", PASSWORD)
            ) as browser,
            httpx.AsyncClient(transport=transport, base_url="http://bench") as other,
        ):
            assert (await browser.get("/")).text == "inside"
            for number in range(guesses.FREE):
                assert (await other.get("/", auth=("anna", f"guess {number}"))).status_code == 401
            waiting = asyncio.create_task(other.get("/", auth=("anna", "one more")))
            for _ in range(20):
                assert (await browser.get("/")).text == "inside"
            # The cookie alone opens nothing.
            assert (await browser.get("/", auth=("anna", "guess 1"))).status_code == 401
            assert (await browser.get("/", auth=None)).status_code == 401
            assert not waiting.done()
            waiting.cancel()

    asyncio.run(visit())


def test_events_carry_the_users_name(guarded, app, quick_waits):
    def author_of_a_class(app: OwnServer, **headers: str) -> str | None:
        answer, _ = ask(
            app.port, "/edge/act", "POST", json.dumps({"do": "create_class", "name": "by"}), **headers
        )
        assert answer.status == 200
        *_, (_, _, kind, body) = app.server.studio.journal.stored_events()
        assert kind == "create_class"
        return Body.from_json(body).author

    assert author_of_a_class(guarded, **by_password(PASSWORD)) == "anna"
    assert author_of_a_class(app, **bearer(app)) == "local"


@pytest.mark.slow
def test_what_is_imported_carries_the_name_of_who_asked_for_it(guarded, quick_waits, tmp_path):
    for number in range(2):
        image = np.random.default_rng(number).integers(0, 255, (16, 16, 3), np.uint8)
        (tmp_path / "imported").mkdir(exist_ok=True)
        (tmp_path / "imported" / f"{number}.png").write_bytes(cv2.imencode(".png", image)[1].tobytes())
    transfers = guarded.server.studio.transfers

    def act(**request: object) -> None:
        answer = ask(guarded.port, "/edge/act", "POST", json.dumps(request), **by_password(PASSWORD))[0]
        assert answer.status == 200

    act(do="import", path=str(tmp_path))
    wait_for(lambda: transfers.state()["phase"] == "asking", "what the import found")
    act(do="take_import", number=transfers.state()["number"])
    journal = guarded.server.studio.journal
    wait_for(lambda: len(journal.find_labelled(text="imported")) == 2, "the import")
    assert {*journal.authors_of(journal.find_labelled(text="imported")).values()} == {"anna"}


# Uploads ------------------------------------------------------------------------------------------------------------

MARK = "x-mark-x"
END = f"--{MARK}--\r\n".encode()


def file_part(content: bytes, name: str = "a.png") -> bytes:
    head = f'--{MARK}\r\nContent-Disposition: form-data; name="files"; filename="{name}"\r\n\r\n'
    return head.encode() + content + b"\r\n"


def upload(app: OwnServer, body: object) -> tuple[int, bytes]:
    answer, said = ask(
        app.port,
        "/gradio_api/upload",
        "POST",
        body,
        **bearer(app),
        Content_Type=f"multipart/form-data; boundary={MARK}",
    )
    return answer.status, said


def kept(app: OwnServer) -> list[Path]:
    return [path for path in app.server.temporary.rglob("*") if path.is_file()]


def chunks(count: int, size: int = 100_000) -> Iterator[bytes]:
    """Files in one body, sent without a length."""
    for number in range(count):
        yield file_part(bytes([number]) * size)
    yield END


def test_a_picture_can_be_uploaded(app):
    status, said = upload(app, file_part(b"a picture") + END)
    (path,) = json.loads(said)
    assert status == 200 and Path(path).read_bytes() == b"a picture"
    Path(path).unlink()


def test_an_upload_is_counted_while_it_is_received_and_nothing_of_too_large_a_one_stays(app, monkeypatch):
    monkeypatch.setattr(body_limit, "LARGEST_UPLOAD", 500_000)
    assert upload(app, chunks(3))[0] == 200
    before = kept(app)
    for body in (chunks(8), b"".join(chunks(8))):
        assert upload(app, body)[0] == 413
        wait_for(lambda: kept(app) == before, "what was left to be removed")
    for path in before:
        path.unlink()


def test_uploads_together_stay_within_a_limit(app, monkeypatch):
    monkeypatch.setattr(body_limit, "LARGEST_UPLOAD", 500_000)
    monkeypatch.setattr(body_limit, "MOST_KEPT", 700_000)
    assert upload(app, b"".join(chunks(4)))[0] == 200
    status, said = upload(app, b"".join(chunks(4)))
    assert status == 413 and b"too much was uploaded" in said
    for path in kept(app):
        path.unlink()


def test_an_upload_of_many_small_files_is_refused(app):
    status, _ = upload(app, b"".join(file_part(b"", f"{n}.png") for n in range(30)) + END)
    assert status == 413
    wait_for(lambda: kept(app) == [], "what was left to be removed")


def test_nothing_stays_of_an_upload_that_breaks_off(app):
    body = file_part(b"x" * 5000)
    with socket.create_connection(("127.0.0.1", app.port)) as raw:
        head = (
            f"POST /gradio_api/upload HTTP/1.1\r\nHost: 127.0.0.1\r\nAuthorization: Bearer {app.token}\r\n"
            f"Content-Type: multipart/form-data; boundary={MARK}\r\nContent-Length: 100000\r\n\r\n"
        )
        raw.sendall(head.encode() + body)
        wait_for(lambda: len(kept(app)) == 1, "the file on its way")
    wait_for(lambda: kept(app) == [], "the file to be removed")


@pytest.mark.slow
def test_an_upload_that_falls_silent_ends(app, monkeypatch):
    monkeypatch.setattr(body_limit, "LONGEST_SILENCE", 2.0)  # long enough to see the file on a busy machine

    def silent() -> Iterator[bytes]:
        yield file_part(b"x")
        wait_for(lambda: kept(app) != [], "the file on its way")
        wait_for(lambda: kept(app) == [], "the file to be removed")
        yield END

    with suppress(BrokenPipeError, ConnectionResetError):  # it may hang up before all was sent
        assert upload(app, silent())[0] == 408
    assert kept(app) == []


def test_other_requests_are_limited_too(app, monkeypatch):
    monkeypatch.setattr(body_limit, "LARGEST_BODY", 100_000)
    answer, _ = ask(
        app.port, "/gradio_api/queue/join", "POST", json.dumps({"data": ["x" * 200_000]}), **bearer(app),
        Content_Type="application/json",
    )  # fmt: skip
    assert answer.status == 413


@pytest.mark.parametrize("path", ["/gradio_api/process_recording"])
def test_what_gradio_offers_and_the_page_does_not_use_is_closed(app, path):
    kind = f"multipart/form-data; boundary={MARK}"
    answer, _ = ask(app.port, path, "POST", file_part(b"") + END, **bearer(app), Content_Type=kind)
    assert answer.status == 404


# Slow clients -------------------------------------------------------------------------------------------------------


def slow_connection(app: OwnServer) -> socket.socket:
    """A request that does not come to its end."""
    slow = socket.create_connection(("127.0.0.1", app.port), 10)
    slow.sendall(b"GET / HTTP/1.1\r\nX: ")
    return slow


@pytest.mark.parametrize("first", [b"", b"GET /healthz HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n"])
def test_a_request_must_come_whole_within_a_time_however_it_trickles(app, monkeypatch, first):
    monkeypatch.setattr(connections, "LONGEST_WAIT", 0.3)
    with socket.create_connection(("127.0.0.1", app.port), 10) as slow:
        if first:  # the second request is as slow as another's first
            slow.sendall(first)
            assert slow.recv(12) == b"HTTP/1.1 200"
        with suppress(BrokenPipeError, ConnectionResetError):
            slow.sendall(b"GET / HTTP/1.1\r\nX: ")
            for _ in range(400):
                slow.sendall(b"x")
                time.sleep(0.05)
            pytest.fail("it was not closed")


@pytest.mark.slow
def test_an_answer_may_take_longer_than_a_request(app, monkeypatch):
    monkeypatch.setattr(connections, "LONGEST_WAIT", 0.2)
    stream = http.client.HTTPConnection("127.0.0.1", app.port, timeout=30)
    with closing(stream):
        stream.request("GET", "/gradio_api/heartbeat/x", headers=bearer(app))
        answer = stream.getresponse()
        time.sleep(0.5)
        assert answer.read(4) == b"data"
        assert not answer.isclosed()


def test_slow_connections_beyond_the_limit_make_place(app, monkeypatch):
    monkeypatch.setattr(connections, "MOST_CONNECTIONS", 20)
    with ExitStack() as slow:
        for _ in range(60):
            slow.enter_context(slow_connection(app))
        for _ in range(5):
            assert ask(app.port, "/edge/state", **bearer(app))[0].status == 200


# https --------------------------------------------------------------------------------------------------------------


def test_a_certificate_of_its_own_is_made_once_and_its_key_is_the_owners(tmp_path):
    file = tmp_path / "tls.pem"
    made = own_certificate(file, "127.0.0.1")
    content = file.read_bytes()
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert own_certificate(file, "localhost") == made and file.read_bytes() == content
    own_certificate(file, "bench.example")  # another name
    assert file.read_bytes() != content
    file.write_text("damaged")
    own_certificate(file, "127.0.0.1")
    assert re.fullmatch("(?:[0-9A-F]{2}:){31}[0-9A-F]{2}", made.fingerprint())


def test_a_file_without_certificate_or_key_is_refused_in_a_sentence(tmp_path):
    with pytest.raises(UserError, match=r"README\.md: no certificate and its key"):
        Certificate(ROOT / "README.md", ROOT / "README.md").check()
    one, other = (own_certificate(tmp_path / name, "127.0.0.1").file for name in ("one", "other"))
    with pytest.raises(UserError, match="do not belong together"):
        Certificate(one, other).check()


@pytest.mark.slow
@pytest.mark.parametrize("own", [True, False])
def test_it_speaks_https_with_the_users_certificate_or_its_own(tmp_path, own):
    given = own_certificate(tmp_path / "given.pem", "127.0.0.1").file
    with running(tmp_path / "workspace", tls="auto" if own else str(given)) as app:
        assert app.address.startswith("https://")
        trusted = ssl.create_default_context(cafile=app.workspace / "tls.pem" if own else given)
        assert ask(app.port, "/edge/state", tls=trusted, **bearer(app))[0].status == 200
        link, _ = ask(app.port, f"/?token={app.token}", tls=trusted)
        assert link.getheader("Set-Cookie").endswith("; Secure")


# Behind a proxy -----------------------------------------------------------------------------------------------------

NGINX = shutil.which("nginx") or shutil.which("nginx", path="/usr/sbin")


@pytest.fixture
def proxied(tmp_path) -> Iterator[tuple[OwnServer, int, ssl.SSLContext]]:
    """The app behind nginx with the lines of docs/app.md."""
    if NGINX is None:
        pytest.skip("nginx is not installed: `make nginx`")
    (lines,) = re.findall(r"```nginx\n(.*?)```", (ROOT / "docs/app.md").read_text(), re.S)
    certificate = own_certificate(tmp_path / "nginx.pem", "bench.example")
    with running(
        tmp_path / "workspace", credentials=Credentials("anna", PASSWORD), trusted_proxy="127.0.0.1"
    ) as app:
        port = free_port()
        changes = {
            "listen 443": f"listen 127.0.0.1:{port}",
            "127.0.0.1:7860": f"127.0.0.1:{app.port}",
            "/etc/ssl/bench.example.pem": str(certificate.file),
            "/etc/ssl/bench.example.key": str(certificate.key),
        }
        for written, here in changes.items():
            assert written in lines
            lines = lines.replace(written, here)
        places = "".join(
            f"{name}_temp_path {tmp_path};\n" for name in ("client_body", "proxy", "fastcgi", "uwsgi", "scgi")
        )
        (tmp_path / "nginx.conf").write_text(
            f"daemon off; master_process off; pid {tmp_path}/nginx.pid; error_log stderr; events {{}}\n"
            f"http {{ access_log off;\n{places}{lines} }}\n"
        )
        command = [NGINX, "-p", tmp_path, "-c", tmp_path / "nginx.conf", "-e", "stderr"]
        with subprocess.Popen(command, stderr=subprocess.PIPE) as nginx:
            try:
                wait_for(lambda: nginx.poll() is not None or _listens(port), "nginx")
                assert nginx.poll() is None, nginx.stderr.read()
                yield app, port, ssl.create_default_context(cafile=certificate.file)
            finally:
                nginx.terminate()


def _listens(port: int) -> bool:
    with closing(socket.socket()) as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


@pytest.mark.slow
@pytest.mark.skipif(sys.platform == "darwin", reason="a Mac has one address of its own")
def test_behind_nginx_a_guess_is_its_clients_whatever_he_says(proxied, caplog):
    _, port, tls = proxied
    named = {"Host": "bench.example", "Origin": "https://bench.example"}
    with caplog.at_level(logging.WARNING, "app.guesses"):
        assert (
            _from("127.0.0.2", port, tls, **by_password("wrong"), **named, X_Forwarded_For="10.9.9.9") == 401
        )
    assert "a wrong password for user 'anna' from 127.0.0.2" in caplog.text
    answer, _ = ask(port, "/edge/state", tls=tls, **by_password(PASSWORD), **named)
    assert answer.status == 200 and answer.getheader("Set-Cookie").endswith("; Secure")


def _from(address: str, port: int, tls: ssl.SSLContext, **headers: str) -> int:
    connection = http.client.HTTPSConnection(
        "127.0.0.1", port, timeout=60, context=tls, source_address=(address, 0)
    )
    with closing(connection):
        names = {name.replace("_", "-"): value for name, value in headers.items()}
        connection.request("GET", "/edge/state", headers=names)
        return connection.getresponse().status


@pytest.mark.browser
def test_behind_nginx_the_page_teaches(proxied):
    app, port, _ = proxied
    app.address = f"https://127.0.0.1:{port}"
    with chromium() as browser:
        credentials = {"username": "anna", "password": PASSWORD}
        page = open_page(browser, app, http_credentials=credentials, ignore_https_errors=True)
        page.keyboard.press("n")
        page.locator("#new-class-name").fill("mug")
        page.keyboard.press("Enter")
        expect(page.locator("#message")).to_contain_text("mug saved")
        go_to(page, "Accuracy")
        expect(page.locator("#accuracy-verdict")).not_to_be_empty()
    journal = app.server.studio.journal
    (sample,) = journal.samples(state="labelled")
    assert journal.authors_of([sample.id]) == {sample.id: "anna"}
