"""Who is let in and how much they may send: the token, the password and its guesses, other sites, files, https, a proxy."""

import asyncio
import base64
import http.client
import json
import re
import shutil
import socket
import ssl
import stat
import struct
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, closing, suppress
from pathlib import Path
from types import SimpleNamespace

import httpx
import psutil
import pytest
from browser_parts import PASSWORD, OwnServer, chromium, running, wait_for
from journeys.parts import FILLED, STILL, go_to, running_app, started
from playwright.sync_api import expect
from process_parts import ROOT, free_port
from starlette.responses import PlainTextResponse
from workspace_parts import SMALL

from app import security
from app.security import (
    Credentials,
    LoginThrottle,
    own_token,
    read_credentials,
    refuse_open_address,
)
from app.tls import own_certificate
from edge_hpcr.common.errors import UserError
from edge_hpcr.common.listener import Listener
from edge_hpcr.workspace.workspace import Workspace


@pytest.fixture(scope="module")
def app(tmp_path_factory):
    with running(tmp_path_factory.mktemp("security") / "workspace") as app:
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
    options = {"context": tls} if tls else {}
    with closing(kind("127.0.0.1", port, timeout=60, **options)) as connection:
        connection.request(
            method, path, body, {name.replace("_", "-"): text for name, text in headers.items()}
        )
        answer = connection.getresponse()
        return answer, answer.read()


def by_password(password: str, user: str = "anna") -> dict[str, str]:
    return {"Authorization": "Basic " + base64.b64encode(f"{user}:{password}".encode()).decode()}


def bearer(app: OwnServer) -> dict[str, str]:
    return {"Authorization": f"Bearer {app.token}"}


# The token ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("path", ["/", "/edge/state", "/config", "/gradio_api/info"])
def test_without_the_token_nothing_is_answered_but_where_it_is(app, path):
    for wrong in (path, f"{path}?token=wrong", f"{path}?token="):
        answer, body = ask(app.port, wrong)
        assert answer.status == 401 and b"python -m app" in body and answer.getheader("Set-Cookie") is None
    assert ask(app.port, path, Cookie=f"edge-hpcr-{app.port}=wrong")[0].status == 401
    assert ask(app.port, path, Authorization="Bearer wrong")[0].status == 401
    assert ask(app.port, "/healthz")[0].status == 200, "whether it is ready is told to everybody"


def test_the_printed_link_gives_a_cookie_and_leads_to_the_clean_address(app):
    answer, _ = ask(app.port, f"/?__theme=dark&token={app.token}")
    assert (answer.status, answer.getheader("Location")) == (303, "/?__theme=dark")
    cookie = answer.getheader("Set-Cookie")
    assert "HttpOnly" in cookie and "SameSite=Strict" in cookie
    assert ask(app.port, "/edge/state", Cookie=f"other={{; {cookie.partition(';')[0]}")[0].status == 200
    assert ask(app.port, "/edge/state", **bearer(app))[0].status == 200


@pytest.mark.parametrize("path", ["//evil.example/", "/%5Cevil.example/", "/%0d%0aX:%20y"])
def test_the_link_leads_to_no_other_host(app, path):
    answer, _ = ask(app.port, f"{path}?token={app.token}")
    assert answer.status == 303 and answer.getheader("X") is None
    assert re.match(r"/[^/\\]", answer.getheader("Location"))


def test_the_token_is_kept_for_the_owner_alone(tmp_path):
    file = tmp_path / "token"
    token = own_token(file)
    file.chmod(0o644)
    assert own_token(file) == token and stat.S_IMODE(file.stat().st_mode) == 0o600
    file.write_text("short\n")
    assert own_token(file) not in (token, "short"), "one that could be guessed is replaced"


@pytest.mark.browser
@pytest.mark.slow
def test_the_link_opens_every_tab_no_policy_refuses_one_and_nothing_leaves_this_host(tmp_path, monkeypatch):
    # A proxy that is not there: who asks it for another host fails, and so does the start.
    for name in ("HTTP_PROXY", "HTTPS_PROXY", "http_proxy", "https_proxy"):
        monkeypatch.setenv(name, "http://127.0.0.1:9")
    monkeypatch.setenv("no_proxy", "127.0.0.1,localhost")
    with running_app(tmp_path / "workspace") as app, chromium() as browser:
        page = browser.new_page()
        page.goto(app.address)
        expect(page.locator("body")).to_contain_text("Please open the link")
        said, asked = list[str](), list[str]()
        page.on("console", lambda message: said.append(message.text))
        page.on("pageerror", lambda error: said.append(str(error)))
        page.on("request", lambda request: asked.append(request.url))
        page.goto(app.link)
        assert page.url == f"{app.address}/"
        expect(page.locator("#strip")).to_contain_text("labels")
        for tab in FILLED:
            go_to(page, tab)
            page.evaluate(STILL)
        assert [text for text in said if "Security Policy" in text or "Error" in text] == []
        assert any("/edge/state" in url for url in asked)
        assert [url for url in asked if not url.startswith((app.address, "data:", "blob:"))] == []
        page.goto("about:blank")
        page.goto(app.address)  # a bookmark
        expect(page.locator("#strip")).to_contain_text("labels")
        # And the server itself talks to nobody else.
        connections = psutil.Process(app.process.pid).net_connections(kind="inet")
        others = [c.raddr.ip for c in connections if c.raddr and c.raddr.ip not in ("127.0.0.1", "::1")]
        assert others == []


# Other sites, and what answers tell a browser -----------------------------------------------------------------------


def test_a_name_that_points_here_by_trick_is_refused(app):
    assert ask(app.port, "/edge/state", Host="evil.example:7860", **bearer(app))[0].status == 400
    assert ask(app.port, "/edge/state", Host=f"localhost:{app.port}", **bearer(app))[0].status == 200


@pytest.mark.parametrize("origin", ["http://evil.example", "null"])
@pytest.mark.parametrize("path", ["/edge/act", "/gradio_api/queue/join"])
def test_requests_from_other_sites_are_refused(app, origin, path):
    before = app.server.studio.journal.last_seq
    body = '{"do": "new_class", "name": "evil"}'
    assert ask(app.port, path, "POST", body, Origin=origin, **bearer(app))[0].status == 403
    assert app.server.studio.journal.last_seq == before


def test_pictures_are_not_for_other_sites_but_links_are(app):
    def status(path: str, method: str = "GET", **headers: str) -> int:
        return ask(
            app.port, path, method, '{"do": "hold"}' if method == "POST" else None, **headers, **bearer(app)
        )[0].status

    assert status("/edge/state", Sec_Fetch_Site="cross-site", Sec_Fetch_Mode="no-cors") == 403
    link = {"Sec_Fetch_Site": "cross-site", "Sec_Fetch_Mode": "navigate", "Sec_Fetch_Dest": "document"}
    assert status("/", **link) == 200
    assert status("/edge/act", "POST", **link) == 403
    own = {"Origin": f"http://127.0.0.1:{app.port}", "Sec_Fetch_Site": "same-origin"}
    assert status("/edge/act", "POST", **own) == 200


@pytest.mark.parametrize(("path", "status"), [("/", 200), ("/", 401), ("/nothing", 404)])
def test_every_answer_carries_the_headers(app, path, status):
    answer, _ = ask(app.port, path, **({} if status == 401 else bearer(app)))
    assert answer.status == status
    assert answer.getheader("X-Content-Type-Options") == "nosniff"
    policy = answer.getheader("Content-Security-Policy")
    assert "frame-ancestors 'none'" in policy
    assert ("unsafe-eval" in policy) == (path == "/"), "where Gradio's HTML component needs it"


# Files --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "how", ["/gradio_api/file={}", "/file={}", "/gradio_api/file/{}", "/edge/static/..%2f..{}"]
)
def test_files_that_the_page_does_not_offer_cannot_be_had(app, how):
    own = [app.workspace / "journal.sqlite", app.workspace / "settings.json"]
    for secret in [*own, ROOT / "requirements.txt", Path("/etc/passwd")]:
        answer, body = ask(app.port, how.format(secret), **bearer(app))
        assert answer.status in (403, 404) and secret.read_bytes()[:50] not in body


@pytest.mark.slow
def test_a_path_in_a_request_is_not_read_by_gradio(app, tmp_path):
    """The hole of mounted apps: a file named in a component's value is copied to where everybody may fetch it."""
    secret = tmp_path / "secret.txt"  # readable for the server, and in none of the folders that it blocks
    secret.write_text("the secret itself")
    value = {"path": str(secret), "meta": {"_type": "gradio.FileData"}}
    dependencies = json.loads(ask(app.port, "/config", **bearer(app))[1])["dependencies"]
    queued = [each for each in dependencies if each["queue"] is not False and each["backend_fn"]]
    assert len(queued) > 10
    for dependency in queued:
        data = [value] * len(dependency["inputs"])
        body = json.dumps({"data": data, "fn_index": dependency["id"], "session_hash": "x"})
        kind = {"Content_Type": "application/json"}
        assert ask(app.port, "/gradio_api/queue/join", "POST", body, **kind, **bearer(app))[0].status == 200
    # The answers stream until each of them has been given.
    _, stream = ask(app.port, "/gradio_api/queue/data?session_hash=x", **bearer(app))
    assert stream.count(b'"msg":"process_completed"') == len(queued)
    copies = [path for path in app.server.temporary.rglob("*") if path.is_file()]
    assert not any(b"the secret itself" in each for each in (stream, *(path.read_bytes() for path in copies)))


def test_a_body_is_limited_while_it_is_received(app, monkeypatch):
    for limit in ("LARGEST_BODY", "LARGEST_UPLOAD"):
        monkeypatch.setattr(security, limit, 100_000)

    def chunks() -> Iterator[bytes]:
        """Sent without a length."""
        yield from [b"x" * 100_000] * 2

    assert ask(app.port, "/gradio_api/queue/join", "POST", b"x" * 200_000, **bearer(app))[0].status == 413
    assert ask(app.port, "/gradio_api/queue/join", "POST", chunks(), **bearer(app))[0].status == 413
    form = {"Content_Type": "multipart/form-data; boundary=x"}
    file = b'--x\r\nContent-Disposition: form-data; name="files"; filename="1.png"\r\n\r\n' + bytes(200_000)
    answer, body = ask(app.port, "/edge/import", "POST", file, **form, **bearer(app))
    assert answer.status == 413 and "were sent at once" in json.loads(body)["error"]
    for closed in ("upload", "process_recording"):
        assert ask(app.port, f"/gradio_api/{closed}", "POST", chunks(), **bearer(app))[0].status == 404


# Connections --------------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_connections_that_say_nothing_hold_up_no_label(tmp_path):
    """By https, where each of them could cost a handshake."""
    secret, port, path = tmp_path / "secret", free_port(), tmp_path / "workspace"
    secret.write_text(PASSWORD)
    with Workspace.open(path) as made:
        made.change_settings(**SMALL)
    known = by_password(PASSWORD)
    options = ("--workspace", path, "--port", port, "--auth", f"anna:{secret}", "--phone")
    tls = None

    def answers() -> bool:
        nonlocal tls
        with suppress(OSError):
            tls = ssl.create_default_context(cafile=path / "tls.pem")
            return ask(port, "/healthz", tls=tls)[0].status == 200
        return False

    log = tmp_path / "log"
    with started("app", *options, log=log) as process, ExitStack() as ended:
        wait_for(answers, "the app")
        handles = psutil.Process(process.pid)
        handles.rlimit(psutil.RLIMIT_NOFILE, (handles.num_fds() + 150,) * 2)
        for _ in range(300):
            ended.enter_context(socket.create_connection(("127.0.0.1", port)))
        answer, body = ask(port, "/edge/act", "POST", '{"do": "new_class", "name": "mug"}', tls, **known)
        assert answer.status == 200 and json.loads(body)["class_id"] == 1
        assert "Too many open files" not in log.read_text()


def test_connections_that_speak_are_let_in_up_to_a_number():
    with ExitStack() as ended, Listener("127.0.0.1", 0, most_open=2) as listener:
        listener.setblocking(False)
        listener.listen()
        address = listener.getsockname()
        callers = [ended.enter_context(socket.create_connection(address)) for _ in range(3)]

        def let_in() -> list[socket.socket]:
            found = []
            with suppress(BlockingIOError):
                while True:
                    found.append(ended.enter_context(listener.accept()[0]))
            return found

        assert let_in() == []
        for caller in callers:
            caller.sendall(b"x")
        inside = let_in()
        assert len(inside) == 2
        for connection in inside:
            connection.close()
        ended.enter_context(socket.create_connection(address)).sendall(b"x")
        assert len([*let_in(), *let_in()]) == 1, "who has left makes room"


def test_a_caller_who_hangs_up_leaves_no_traceback(app, caplog):
    known = (
        f"Host: 127.0.0.1:{app.port}\r\nAuthorization: Bearer {app.token}\r\nContent-Length: 500\r\n\r\n{{"
    )
    for path in ("/edge/act", "/edge/import", "/gradio_api/queue/join"):
        with socket.create_connection(("127.0.0.1", app.port)) as raw:
            raw.sendall(f"POST {path} HTTP/1.1\r\n{known}".encode())
            raw.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))  # a reset
    assert ask(app.port, "/edge/state", **bearer(app))[0].status == 200
    assert [record.message for record in caplog.records if record.exc_info] == []


# The password -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("path", ["/", "/edge/state", "/metrics"])
def test_everything_but_the_health_check_needs_the_password(guarded, path):
    assert ask(guarded.port, path)[0].status == 401
    assert ask(guarded.port, path, "POST", "{}")[0].status == 401
    assert ask(guarded.port, "/healthz")[0].status == 200


def test_another_address_needs_a_password_of_some_length(tmp_path, monkeypatch):
    with pytest.raises(UserError):
        refuse_open_address("0.0.0.0", None)
    refuse_open_address("127.0.0.1", None)
    secret = tmp_path / "secret"
    secret.write_text(f"{PASSWORD}\nsecond line\n")
    assert read_credentials(f"anna:{secret}") == Credentials("anna", PASSWORD)
    monkeypatch.setenv("EDGE_HPCR_AUTH", "otto:long enough:with colon")
    assert read_credentials(None) == Credentials("otto", "long enough:with colon")
    for bad in ("anna", "anna:", f":{secret}", f"anna:{tmp_path / 'missing'}"):
        with pytest.raises(UserError):
            read_credentials(bad)
    secret.write_text("short\n")
    with pytest.raises(UserError):
        read_credentials(f"anna:{secret}")


def test_wrong_passwords_wait_longer_each_time(monkeypatch):
    slept: list[float] = []

    async def noted(seconds: float) -> None:
        slept.append(seconds)

    monkeypatch.setattr(security, "asyncio", SimpleNamespace(Lock=asyncio.Lock, sleep=noted))

    async def guess() -> None:
        throttle = LoginThrottle()
        for _ in range(8):
            assert not await throttle.answer(False)
            assert await throttle.answer(True), "at once"

    asyncio.run(guess())
    assert slept == [0.1, 0.2, 0.4, 0.8, 1.6, 2.0, 2.0, 2.0]


def test_guesses_wait_for_each_other_and_a_browser_that_was_let_in_before_waits_for_none():
    guard = security.Guard(PlainTextResponse("inside"), Credentials("anna", PASSWORD))

    async def visit() -> None:
        transport = httpx.ASGITransport(guard)
        async with httpx.AsyncClient(transport=transport, base_url="http://bench") as browser:
            assert (await browser.get("/", auth=("anna", PASSWORD))).text == "inside"
            cookies = {**browser.cookies}
            browser.cookies.clear()
            async with guard._throttle._line:  # as if a wrong one waited
                stranger = asyncio.create_task(browser.get("/", auth=("anna", PASSWORD)))
                known = {"auth": ("anna", PASSWORD), "cookies": cookies}
                async with httpx.AsyncClient(transport=transport, base_url="http://bench", **known) as again:
                    assert (await again.get("/")).text == "inside"
                    assert (await again.get("/", auth=None)).status_code == 401, (
                        "a cookie alone opens nothing"
                    )
                assert not stranger.done(), "or many guesses at once would be as fast as one"
            assert (await stranger).text == "inside"

    asyncio.run(visit())


# Behind a proxy -----------------------------------------------------------------------------------------------------

NGINX = shutil.which("nginx") or shutil.which("nginx", path="/usr/sbin")


@pytest.mark.slow
@pytest.mark.skipif(NGINX is None, reason="nginx is not installed: `make nginx`")
@pytest.mark.skipif(sys.platform == "darwin", reason="a Mac has one address of its own")
def test_behind_nginx_a_guess_is_its_clients_and_the_cookie_is_for_https(tmp_path, caplog):
    """With the lines of docs/app.md."""
    (lines,) = re.findall(r"```nginx\n(.*?)```", (ROOT / "docs/app.md").read_text(), re.S)
    certificate = own_certificate(tmp_path / "nginx.pem", "bench.example")
    trusted = ssl.create_default_context(cafile=certificate)
    anna = Credentials("anna", PASSWORD)
    with running(tmp_path / "workspace", credentials=anna) as app:
        port = free_port()
        changes = {
            "listen 443": f"listen 127.0.0.1:{port}",
            "127.0.0.1:7860": f"127.0.0.1:{app.port}",
            "/etc/ssl/bench.example.pem": str(certificate),
            "/etc/ssl/bench.example.key": str(certificate),
        }
        for written, here in changes.items():
            assert written in lines
            lines = lines.replace(written, here)
        kinds = ("client_body", "proxy", "fastcgi", "uwsgi", "scgi")
        places = "".join(f"{name}_temp_path {tmp_path};\n" for name in kinds)
        (tmp_path / "nginx.conf").write_text(
            f"daemon off; master_process off; pid {tmp_path}/nginx.pid; error_log stderr; events {{}}\n"
            f"http {{ access_log off;\n{places}{lines} }}\n"
        )
        command = [NGINX, "-p", tmp_path, "-c", tmp_path / "nginx.conf", "-e", "stderr"]
        with subprocess.Popen(command, stderr=subprocess.PIPE) as nginx:
            try:
                wait_for(lambda: nginx.poll() is not None or _listens(port), "nginx")
                assert nginx.poll() is None, nginx.stderr.read()
                named = {"Host": "bench.example", "Origin": "https://bench.example"}
                wrong = {**by_password("wrong"), **named}
                assert ask(port, "/edge/state", tls=trusted, **wrong)[0].status == 401
                assert "from 127.0.0.1" in caplog.text
                answer, _ = ask(port, "/edge/state", tls=trusted, **by_password(PASSWORD), **named)
                assert answer.status == 200 and answer.getheader("Set-Cookie").endswith("; Secure")
            finally:
                nginx.terminate()


def _listens(port: int) -> bool:
    with closing(socket.socket()) as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0
