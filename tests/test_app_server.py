"""The server behind the page: who may ask, what is answered, and that it starts and ends well."""

import base64
import gc
import http.client
import itertools
import json
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import psutil
import pytest
from browser_parts import PASSWORD, App, OwnServer, free_port, running, running_alone, wait_for
from process_parts import ROOT

from app.__main__ import commands
from app.feeder import encoded
from app.security import Credentials, read_credentials, refuse_open_address
from app.studio import Studio
from edge_hpcr.commands.cli import run
from edge_hpcr.common.errors import UserError
from edge_hpcr.live import health


@pytest.fixture(scope="module")
def app(tmp_path_factory):
    with running(tmp_path_factory.mktemp("server") / "workspace") as app:
        yield app


def ask(
    app: OwnServer | App, method: str, path: str, body: bytes | str | None = None, **headers: str
) -> tuple[int, bytes]:
    if app.token and "Authorization" not in headers:
        headers["Authorization"] = f"Bearer {app.token}"
    connection = http.client.HTTPConnection("127.0.0.1", app.port, timeout=30)
    try:
        connection.request(
            method, path, body, {name.replace("_", "-"): value for name, value in headers.items()}
        )
        answer = connection.getresponse()
        return answer.status, answer.read()
    finally:
        connection.close()


def act(app: OwnServer, **request: object) -> tuple[int, dict]:
    status, body = ask(app, "POST", "/edge/act", json.dumps(request))
    return status, json.loads(body)


def is_taken(studio: Studio) -> bool:
    """Whether somebody is labelling at this moment."""
    if studio._labelling.acquire(blocking=False):
        studio._labelling.release()
        return False
    return True


def jpeg(side: int = 64) -> bytes:
    return encoded(np.random.default_rng(0).integers(0, 255, (side, side, 3), np.uint8))[0]


# Who may ask --------------------------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["app", "guarded"])
def test_metrics_take_the_token_or_the_password_and_strangers_learn_only_whether_it_is_ready(
    kind, request, monkeypatch
):
    server = request.getfixturevalue(kind)
    basic = base64.b64encode(f"anna:{PASSWORD}".encode()).decode()
    key = f"Bearer {server.token}" if kind == "app" else f"Basic {basic}"
    assert ask(server, "GET", "/metrics", Authorization="Bearer wrong")[0] == 401
    status, body = ask(server, "GET", "/metrics", Authorization=key)
    assert status == 200 and b"\nedge_hpcr_labels " in body
    for limit in ("NEARLY_FULL", "FULL"):
        monkeypatch.setattr(health, limit, 10**18)
    wait_for(lambda: ask(server, "GET", "/healthz", Authorization=key)[0] == 503, "a look at the disk")
    assert ask(server, "GET", "/healthz", Authorization="none") == (503, b"not ready\n")
    assert b"make room" in ask(server, "GET", "/healthz", Authorization=key)[1]
    monkeypatch.undo()
    wait_for(lambda: ask(server, "GET", "/healthz", Authorization="none")[0] == 200, "another look")


@pytest.mark.slow
@pytest.mark.parametrize("path", ["/", "/edge/state", "/config", "/gradio_api/info", "/healthz"])
def test_a_name_that_points_here_by_trick_is_refused(app, path):
    assert ask(app, "GET", path, Host="evil.example")[0] == 400
    assert ask(app, "GET", path, Host="evil.example:7860")[0] == 400
    assert ask(app, "GET", path, Host=f"localhost:{app.port}")[0] in (200, 404)


@pytest.mark.parametrize(
    "origin", ["http://evil.example", "null", "http://127.0.0.1:1", "https://localhost.evil.example"]
)
@pytest.mark.parametrize(
    "path", ["/edge/act", "/edge/camera", "/gradio_api/queue/join", "/gradio_api/upload"]
)
def test_requests_from_other_sites_are_refused(app, origin, path):
    before = act(app, do="hold", held=False)[1]["state"]["seq"]
    assert ask(app, "POST", path, '{"do": "new_class", "name": "evil"}', Origin=origin)[0] == 403
    assert act(app, do="hold", held=False)[1]["state"]["seq"] == before


def test_pictures_are_not_for_other_sites_but_links_are(app):
    assert ask(app, "GET", "/edge/state", Sec_Fetch_Site="cross-site", Sec_Fetch_Mode="no-cors")[0] == 403
    assert ask(app, "GET", "/edge/state", Sec_Fetch_Site="same-site", Sec_Fetch_Mode="cors")[0] == 403
    link = {"Sec_Fetch_Site": "cross-site", "Sec_Fetch_Mode": "navigate", "Sec_Fetch_Dest": "document"}
    assert ask(app, "GET", "/", **link)[0] == 200
    assert ask(app, "POST", "/edge/act", '{"do": "undo"}', **link)[0] == 403
    own = f"http://127.0.0.1:{app.port}"
    assert ask(app, "POST", "/edge/act", '{"do": "hold"}', Origin=own, Sec_Fetch_Site="same-origin")[0] == 200


@pytest.mark.slow
@pytest.mark.parametrize(
    "path",
    [
        "/",
        "/edge/state",
        "/config",
        "/gradio_api/info",
        "/gradio_api/cancel",
        "/gradio_api/reset",
        "/openapi.json",
    ],
)
def test_everything_but_the_health_check_needs_the_password(guarded, path):
    assert ask(guarded, "GET", path)[0] == 401
    assert ask(guarded, "POST", path, "{}")[0] == 401
    assert ask(guarded, "GET", "/healthz")[0] == 200


def test_another_address_needs_a_password(tmp_path, monkeypatch):
    with pytest.raises(UserError, match=r"--host 0.0.0.0 .* needs a password"):
        refuse_open_address("0.0.0.0", None, None)
    with pytest.raises(UserError, match=r"--trusted-proxy 10.0.0.1 .* needs a password"):
        refuse_open_address("127.0.0.1", "10.0.0.1", None)
    refuse_open_address("127.0.0.1", None, None)
    secret = tmp_path / "secret"
    secret.write_text(f"{PASSWORD}\nsecond line\n")
    assert read_credentials(f"anna:{secret}") == Credentials("anna", PASSWORD)
    monkeypatch.setenv("EDGE_HPCR_AUTH", "otto:long enough:with colon")
    assert read_credentials(None) == Credentials("otto", "long enough:with colon")
    for bad in ("anna", "anna:", f":{secret}", f"anna:{tmp_path / 'missing'}"):
        with pytest.raises(UserError, match="--auth"):
            read_credentials(bad)
    secret.write_text("short\n")
    with pytest.raises(UserError, match="too short"):
        read_credentials(f"anna:{secret}")


# Files --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "how", ["/gradio_api/file={}", "/file={}", "/gradio_api/file/{}", "/edge/static/..%2f..{}"]
)
def test_files_that_the_page_does_not_offer_cannot_be_had(app, how):
    secrets = [
        app.workspace / "journal.sqlite",
        app.workspace / "settings.json",
        ROOT / "README.md",
        ROOT / "requirements.txt",
        Path("/etc/passwd"),
    ]
    for secret in secrets:
        status, body = ask(app, "GET", how.format(secret))
        assert status in (403, 404)
        assert secret.read_bytes()[:50] not in body


@pytest.mark.slow
def test_a_path_in_a_request_is_not_read_by_gradio(app, tmp_path):
    """The hole of mounted apps: a file named in a component's value is copied to where everybody may fetch it."""
    secret = tmp_path / "secret.txt"  # readable for the server, and in none of the folders that it blocks
    secret.write_text("the secret itself")
    value = {"path": str(secret), "meta": {"_type": "gradio.FileData"}}
    dependencies = json.loads(ask(app, "GET", "/config")[1])["dependencies"]
    queued = [each for each in dependencies if each["queue"] is not False and each["backend_fn"]]
    assert len(queued) > 10
    for dependency in queued:
        body = {
            "data": [value] * len(dependency["inputs"]),
            "fn_index": dependency["id"],
            "session_hash": "x",
        }
        status, _ = ask(
            app, "POST", "/gradio_api/queue/join", json.dumps(body), Content_Type="application/json"
        )
        assert status == 200
    # The answers stream until each of them has been given.
    status, stream = ask(app, "GET", "/gradio_api/queue/data?session_hash=x")
    assert status == 200
    assert stream.count(b'"msg":"process_completed"') == len(queued)
    assert b"the secret itself" not in stream
    copies = [path for path in app.server.temporary.rglob("*") if path.is_file()]
    assert not any(b"the secret itself" in path.read_bytes() for path in copies)


# Actions ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("body", "says"),
    [
        (b"", "not JSON"),
        (b"[]", "must be an object"),
        (b'{"do": "explode"}', "unknown action 'explode'"),
        (b'{"do": "label", "class": "1", "frames": [1]}', "'class' must be a whole number"),
        (b'{"do": "label", "class": true, "frames": [1]}', "'class' must be a whole number"),
        (b'{"do": "label", "class": 1, "frames": 7}', "'frames' must be a list"),
        (b'{"do": "label", "class": 1, "frames": [1, "2"]}', "'frames' must be a list of at most"),
        (b'{"do": "rename_class", "class": 1}', "'name' must be a text"),
        (b'{"do": "hold", "held": "no"}', "'held' must be true or false"),
        (b'{"do": "label", "class": 1, "frames": [99999999]}', "no longer here"),
        (b'{"do": "label", "class": 99999, "frames": []}', "no frame yet"),
        (b'{"do": "delete_class", "class": 4711}', "unknown class 4711"),
        (b'{"do": "recolour_class", "class": 1, "colour": "red"}', "write it like #1f77b4"),
        (b'{"do": "source", "source": ""}', "there is no source"),
        (b'{"do": "source", "source": "ftp://host/"}', "unknown kind of source"),
        (b'{"do": "new_class", "name": "  "}', "an empty class name"),
        (b"x" * 300_000, "more than 200,000 bytes"),
    ],
)
def test_bad_requests_are_answered_with_a_sentence(app, body, says):
    status, answer = ask(app, "POST", "/edge/act", body)
    assert status == 400
    assert says in json.loads(answer)["error"]


@pytest.mark.slow
def test_a_frame_is_labelled_as_it_was_shown(app):
    wait_for(lambda: json.loads(ask(app, "GET", "/edge/state")[1])["frame"] is not None, "a frame")
    frame = json.loads(ask(app, "GET", "/edge/state")[1])["frame"]["number"]
    shown = app.server.studio.feeder.shown(frame).image
    wait_for(lambda: app.server.studio.feeder.newest().number > frame, "another frame")
    newer = app.server.studio.feeder.newest().image
    status, answer = act(app, do="new_class", name="as shown", frames=[frame])
    assert status == 200
    assert answer["message"] == "as shown saved"
    with app.look() as workspace:
        (row,) = workspace.journal.samples(class_id=answer["class_id"])
        lost, other = (np.abs(workspace.image(row.id).astype(int) - image).mean() for image in (shown, newer))
        assert lost < min(2, other)  # by JPEG
    # The same frame with another class is a correction of the same sample.
    again = act(app, do="new_class", name="corrected", frames=[frame])[1]
    with app.look() as workspace:
        assert [each.id for each in workspace.journal.samples(class_id=again["class_id"])] == [row.id]
    assert act(app, do="undo")[1]["message"] == "undone: 1 picture corrected to corrected"


@pytest.mark.parametrize(
    ("body", "says"),
    [
        (b"no image", "cannot be used as an image"),
        (b"", "it is empty"),
        (encoded(np.zeros((4000, 4000, 3), np.uint8))[0], "pixels are more than"),
        (b"x" * 5_000_000, "more than 4,000,000 bytes"),
    ],
    ids=["text", "empty", "16 megapixels", "5 MB"],
)
def test_bad_camera_frames_are_refused(app, body, says):
    act(app, do="source", source="browser")
    status, answer = ask(app, "POST", "/edge/camera", body)
    assert status == 400
    assert says in json.loads(answer)["error"]


def test_a_camera_that_nobody_wants_is_told_so(app):
    act(app, do="source", source="workbench")
    assert json.loads(ask(app, "POST", "/edge/camera", jpeg())[1]) == {"wanted": False, "taken": False}


def test_frames_are_wanted_from_the_page_that_took_the_camera_last(app):
    for page, other in (("one", "two"), ("two", "one")):
        act(app, do="source", source="browser", page=page)
        assert json.loads(ask(app, "POST", f"/edge/camera?page={page}", jpeg())[1])["wanted"] is True
        told = json.loads(ask(app, "POST", f"/edge/camera?page={other}", jpeg())[1])
        assert told == {"wanted": False, "taken": True}


def test_a_picture_that_a_page_brings_gets_a_number_by_which_it_is_labelled(app):
    status, answer = ask(app, "POST", "/edge/picture?name=..%2F..%2Fmug.jpg&ask=1", jpeg())
    assert status == 200
    number = json.loads(answer)["number"]
    assert act(app, do="new_class", name="brought", frames=[number])[1]["samples"] == 1
    with app.look() as workspace:
        assert workspace.journal.samples(state="labelled")[-1].origin == "mug.jpg"
    assert ask(app, "POST", "/edge/picture", b"no picture")[0] == 400
    assert ask(app, "POST", "/edge/picture?room=elsewhere", jpeg())[0] == 400


@pytest.mark.parametrize(
    "path", ["/edge/newest?classes=1,x", "/edge/newest?classes=-1", "/edge/unknown?share=x", "/edge/unknown"]
)
def test_bad_questions_are_refused_in_a_sentence(app, path):
    status, answer = ask(app, "GET", path)
    assert status == 400 and json.loads(answer)["error"]


@pytest.mark.slow
def test_an_undo_does_not_overtake_the_label_before_it(app):
    studio = app.server.studio
    act(app, do="source", source="browser")
    rng = np.random.default_rng(0)
    numbers: list[int] = []
    for _ in range(12):
        studio.feeder.browser_camera.push(rng.integers(0, 255, (240, 320, 3), np.uint8))
        newest = studio.feeder.newest()
        before = newest.number if newest else None
        wait_for(
            lambda before=before: studio.feeder.newest() and studio.feeder.newest().number != before,
            "a frame",
        )
        numbers.append(studio.feeder.newest().number)
    class_id = studio.journal.create_class("overtaken")
    with ThreadPoolExecutor() as threads:
        label = threads.submit(studio.label_frames, numbers, class_id)
        wait_for(lambda: label.done() or is_taken(studio), "the label")
        assert studio.undo().message == "undone: 12 pictures labelled overtaken"
        assert label.result().samples == 12
    assert {row.name: row.labels for row in studio.journal.classes()}["overtaken"] == 0


@pytest.mark.slow
def test_a_full_disk_is_told_and_nothing_acknowledged_is_lost(tmp_path):
    with running(tmp_path / "workspace") as app:
        journal = app.server.studio.journal
        wait_for(lambda: app.server.studio.feeder.newest() is not None, "a frame")
        status, answer = act(
            app, do="new_class", name="mug", frames=[app.server.studio.feeder.newest().number]
        )
        assert status == 200
        pages = journal._rows("PRAGMA page_count")[0][0]
        journal._rows(f"PRAGMA max_page_count = {pages}")
        acknowledged = answer["seq"]
        for request in itertools.islice(itertools.cycle(("undo", "redo")), 1000):
            status, answer = act(app, do=request)
            if status != 200:
                break
            acknowledged = answer["seq"]
        assert status == 400
        assert "the disk is full; nothing was written: make room" in answer["error"]
        with app.look() as workspace:
            assert workspace.journal.last_seq == acknowledged
        journal._rows("PRAGMA max_page_count = 1000000")
        status, answer = act(app, do=request)  # the very same, now that there is room
        assert status == 200 and answer["seq"] == acknowledged + 1


# Starting and ending ------------------------------------------------------------------------------------------------


@pytest.fixture
def command(monkeypatch, capsys) -> Iterator[Callable[..., tuple[int, list[str]]]]:
    """A function that gives `python -m app` arguments which it refuses, and returns its exit code and what it says."""

    def refused(*arguments: str) -> tuple[int, list[str]]:
        capsys.readouterr()
        code = run(commands, "python -m app", arguments)
        return code, capsys.readouterr().err.splitlines()

    monkeypatch.chdir(ROOT)
    yield refused
    gc.enable()  # a start switches it off for a while


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["--host", "0.0.0.0"], "needs a password"),
        (["--phone"], "--phone lets other machines in: that needs a password"),
        (["--port", "99999"], "--port '99999' should be less than or equal to 65535"),
        (["--auth", "anna"], "user:file"),
        (["--trusted-proxy", "proxy.example", "--auth", "anna:LICENSE"], "write its address, like 127.0.0.1"),
        (["--tls", "README.md"], "no certificate and its key in PEM"),
        (["--tls-key", "README.md"], "name its certificate too"),
        (["--workplace", "W"], "no such option: --workplace"),
    ],
)
def test_wrong_options_end_with_2_and_one_line(command, arguments, says):
    code, (line,) = command(*arguments)
    assert code == 2
    assert says in line


def test_a_port_in_use_is_refused(app, command, tmp_path):
    code, (line,) = command("--workspace", str(tmp_path / "other"), "--port", str(app.port))
    assert code == 2
    assert "cannot listen on" in line


@pytest.mark.slow
def test_a_file_or_a_workspace_in_use_is_refused(app):
    """Each in a process of its own: by then a start has changed the environment that Gradio reads."""
    for workspace, says in (
        (ROOT / "README.md", "README.md is a file"),
        (app.workspace, "is in use by process"),
    ):
        done = subprocess.run(
            [sys.executable, "-m", "app", "--workspace", str(workspace), "--port", str(free_port())],
            cwd=ROOT, capture_output=True, text=True, timeout=120,
        )  # fmt: skip
        assert done.returncode == 2
        (line,) = done.stderr.splitlines()
        assert says in line


START = """
import ast, sys
from pathlib import Path
from app.server import Server

parse, parsed = ast.parse, []
ast.parse = lambda source, *rest, **options: parsed.append(sys._getframe(1).f_globals["__name__"]) or parse(source, *rest, **options)
server = Server(Path(sys.argv[1]), port=int(sys.argv[2]))
try:
    server.start()
finally:
    server.stop()
import gradio.component_meta, torch
heavy = [name for name in ("timm", "torch._dynamo", "sklearn", "scipy.optimize", "matplotlib") if name in sys.modules]
print(heavy, parsed.count("gradio.component_meta"))
"""


@pytest.mark.slow
def test_a_start_imports_and_parses_nothing_that_it_could_do_without(tmp_path):
    """Each of these once cost a start between half a second and two."""
    done = subprocess.run(
        [sys.executable, "-c", START, str(tmp_path / "workspace"), str(free_port())],
        cwd=ROOT, capture_output=True, text=True, timeout=120,
    )  # fmt: skip
    assert done.stdout.splitlines()[-1:] == ["[] 0"], done.stderr


@pytest.mark.slow
def test_matplotlib_is_loaded_before_anybody_opens_a_page_with_charts(tmp_path):
    with running_alone(tmp_path / "workspace") as alone:
        process = psutil.Process(alone.process.pid)
        wait_for(lambda: any("matplotlib" in each.path for each in process.memory_maps()), "matplotlib")


@pytest.mark.slow
def test_ctrl_c_saves_and_leaves_nothing_behind(tmp_path):
    with running_alone(tmp_path / "workspace", source="workbench:1") as alone:
        wait_for(lambda: json.loads(ask(alone, "GET", "/edge/state")[1])["frame"] is not None, "a frame")
        frame = json.loads(ask(alone, "GET", "/edge/state")[1])["frame"]["number"]
        ask(alone, "POST", "/edge/act", json.dumps({"do": "new_class", "name": "kept", "frames": [frame]}))
        pid = alone.process.pid
        assert alone.stop() == 0
    assert not list(Path(tempfile.gettempdir()).glob(f"edge-hpcr-page-{pid}-*"))
    assert "Traceback" not in alone.log.read_text()
    with alone.look() as workspace:
        assert [(row.name, row.labels) for row in workspace.journal.classes()] == [("kept", 1)]
    assert any((alone.workspace / "checkpoints").iterdir())
