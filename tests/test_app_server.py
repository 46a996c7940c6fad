"""The server behind the page: who may ask, what is answered, and that it starts and ends well."""

import base64
import json
import signal
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx
import numpy as np
import pytest
from browser_parts import PASSWORD, OwnServer, running, wait_for
from journeys.parts import run as run_module
from journeys.parts import running_app
from process_parts import ROOT, free_port
from workspace_parts import SMALL

from app.__main__ import commands
from app.page_feeder import encoded
from app.studio import Studio
from edge_hpcr.commands.cli import run
from edge_hpcr.live import status as live_status
from edge_hpcr.workspace.workspace import Workspace


@pytest.fixture(scope="module")
def app(tmp_path_factory):
    with running(tmp_path_factory.mktemp("server") / "workspace") as app:
        yield app


def ask(
    app: OwnServer, method: str, path: str, body: bytes | str | None = None, **headers: str
) -> tuple[int, bytes]:
    if app.token:
        headers.setdefault("Authorization", f"Bearer {app.token}")
    answer = httpx.request(
        method, app.address + path, content=body, headers=headers, timeout=30, trust_env=False
    )
    return answer.status_code, answer.content


def act(app: OwnServer, **request: object) -> tuple[int, dict]:
    status, body = ask(app, "POST", "/edge/act", json.dumps(request))
    return status, json.loads(body)


def is_taken(studio: Studio) -> bool:
    """Whether somebody is labelling at this moment."""
    if studio._acting.acquire(blocking=False):
        studio._acting.release()
        return False
    return True


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
        monkeypatch.setattr(live_status, limit, 10**18)
    wait_for(lambda: ask(server, "GET", "/healthz", Authorization=key)[0] == 503, "a look at the disk")
    assert ask(server, "GET", "/healthz", Authorization="none") == (503, b"not ready\n")
    assert b"make room" in ask(server, "GET", "/healthz", Authorization=key)[1]
    monkeypatch.undo()
    wait_for(lambda: ask(server, "GET", "/healthz", Authorization="none")[0] == 200, "another look")


# Actions ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("body", "says"),
    [
        (b"", "not JSON"),
        (
            b'{"do": "label", "class": 1, "frames": [1, "2"]}',
            "'frames' is refused: Input should be a valid integer",
        ),
        (b'{"do": "label", "class": 1, "frames": [99999999]}', "no longer here"),
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


def test_a_camera_frame_that_is_too_large_is_refused(app):
    act(app, do="source", source="browser")
    too_many_pixels = encoded(np.zeros((4000, 4000, 3), np.uint8))[0]
    for body, says in ((too_many_pixels, "pixels are more than"), (b"x" * 5_000_000, "more than 4,000,000")):
        status, answer = ask(app, "POST", "/edge/camera", body)
        assert status == 400 and says in json.loads(answer)["error"]


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
        label = threads.submit(act, app, do="label", frames=numbers, **{"class": class_id})
        wait_for(lambda: label.done() or is_taken(studio), "the label")
        assert act(app, do="undo")[1]["message"] == "undone: 12 pictures labelled overtaken"
        assert label.result()[1]["samples"] == 12
    assert {row.name: row.labels for row in studio.journal.classes()}["overtaken"] == 0


# Starting and ending ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["--host", "0.0.0.0"], "needs a password"),
        (["--phone"], "--phone lets other machines in: that needs a password"),
    ],
)
def test_wrong_options_end_with_2_and_one_line(arguments, says, monkeypatch, capsys):
    monkeypatch.chdir(ROOT)
    assert run(commands, "python -m app", arguments) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert says in line


@pytest.mark.slow
def test_a_port_or_a_workspace_in_use_is_refused(app, tmp_path):
    for workspace, port, says in (
        (tmp_path / "other", app.port, "cannot listen on"),
        (app.workspace, free_port(), "is in use by process"),
    ):
        done = run_module("app", "--workspace", workspace, "--port", port, status=2)
        (line,) = done.stderr.splitlines()
        assert says in line


@pytest.mark.slow
def test_ctrl_c_saves_and_leaves_nothing_behind(tmp_path):
    with Workspace.open(tmp_path / "workspace") as made:
        made.change_settings(source="workbench:1", **SMALL)
    with running_app(tmp_path / "workspace") as alone:
        wait_for(lambda: alone.state()["frame"] is not None, "a frame")
        alone.act("new_class", name="kept", frames=[alone.state()["frame"]["number"]])
        pid = alone.process.pid
        alone.process.send_signal(signal.SIGINT)
        assert alone.process.wait(timeout=60) == 0
    assert not list(Path(tempfile.gettempdir()).glob(f"edge-hpcr-page-{pid}-*"))
    said = alone.log.read_text()
    assert "Traceback" not in said
    assert alone.token not in said and str(alone.workspace / "token") in said, "a log is read by others"
    assert alone.labels() == {"kept": 1}
    assert any((alone.workspace / "checkpoints").iterdir())
