"""It knows when it is not well: the learner, the source, the disk and the journal, told alike wherever somebody looks."""

import shutil
from collections import namedtuple
from contextlib import contextmanager

import numpy as np
import pytest
from starlette.applications import Starlette
from starlette.testclient import TestClient
from workspace_parts import SMALL

from app import review
from app import routes as page_routes
from app.actions import Actions
from app.routes import routes
from app.studio import Studio
from edge_hpcr.common.errors import UserError
from edge_hpcr.live.session import learn
from edge_hpcr.live.status import alarms
from edge_hpcr.stream import Frame
from edge_hpcr.workspace.workspace import Workspace

WELL = {
    **{"phase": "idle", "events_waiting": 0, "oldest_waiting_seconds": 0.0, "source_problem": None},
    "stream": {"name": "camera 0", "phase": "live", "message": "live"},
}
AWAY = {"name": "camera 0", "phase": "reconnecting", "message": "no such camera, trying again"}
Usage = namedtuple("Usage", ["total", "used", "free"])


@pytest.mark.parametrize(
    ("changes", "silent", "text", "stops"),
    [
        ({}, 10.0, None, False),
        ({}, 3600.0, "no sign of life for 60 min", True),
        ({"phase": "failed"}, 0.0, "learning has stopped", True),
        ({"oldest_waiting_seconds": 300.0}, 0.0, "a label has waited for 5 min", False),
        ({"stream": AWAY}, 0.0, "camera 0: no such camera, trying again", True),
    ],
)
def test_each_alarm_says_what_is_wrong_and_whether_it_stops_the_work(tmp_path, changes, silent, text, stops):
    found = alarms(tmp_path, {**WELL, **changes}, silent)
    assert [text in alarm.text for alarm in found] == ([] if text is None else [True])
    assert [alarm.stops for alarm in found] == ([] if text is None else [stops])


@pytest.mark.parametrize(("free", "expected"), [(10**9, []), (10**8, [False]), (10**6, [True])])
def test_a_disk_that_is_nearly_full_is_said_before_it_is_full(tmp_path, monkeypatch, free, expected):
    monkeypatch.setattr("shutil.disk_usage", lambda _: Usage(10**12, 10**12 - free, free))
    assert [alarm.stops for alarm in alarms(tmp_path)] == expected
    assert all("make room" in alarm.text for alarm in alarms(tmp_path))


@pytest.fixture
def studio(tmp_path):
    with Workspace.open(tmp_path / "w") as workspace:
        workspace.change_settings(**SMALL, memory_bytes=40_000, threads=1, idle_steps=0)
        made = Studio(workspace)
        made.live.start()
        yield made
        made.live.stop()
        made.imports.stop()


@contextmanager
def client(studio, author=None):
    """The routes as the guard leaves them, which names whoever has shown a token or a password."""
    application = Starlette(routes=routes(studio))

    async def guarded(scope, receive, send):
        scope.setdefault("state", {})["author"] = author
        await application(scope, receive, send)

    with TestClient(guarded, base_url="http://127.0.0.1") as opened:
        yield opened


def test_ready_is_all_that_a_stranger_learns(studio, monkeypatch):
    monkeypatch.setattr(page_routes, "HEALTH_SECONDS", 0.0)
    with client(studio) as stranger, client(studio, "anna") as known:
        for one in (stranger, known):
            answer = one.get("/healthz")
            assert (answer.status_code, answer.text) == (200, "ready\n")
        studio.live.source_problem = "no folder /secret"
        assert (stranger.get("/healthz").status_code, stranger.get("/healthz").text) == (503, "not ready\n")
        assert known.get("/healthz").text == "not ready\nthe source: no folder /secret\n"


def test_a_journal_that_cannot_be_written_is_not_ready(studio, monkeypatch):
    monkeypatch.setattr(page_routes, "HEALTH_SECONDS", 0.0)
    with client(studio, "anna") as page:
        studio.journal._rows("PRAGMA query_only = ON")
        answer = page.get("/healthz")
        assert answer.status_code == 503 and "journal.sqlite: it cannot be written" in answer.text
        studio.journal._rows("PRAGMA query_only = OFF")
        assert page.get("/healthz").status_code == 200


# What a page is sent --------------------------------------------------------------------------------------------------


def test_a_label_among_2000_classes_costs_a_page_less_than_20_kilobytes(studio):
    with studio.journal.transaction():
        ids = [studio.journal.create_class(f"a part with a long name, number {n}") for n in range(2000)]
    image = np.zeros((8, 8, 3), np.uint8)
    (sample,) = studio.workspace.take_many([Frame(image, "test")])
    with client(studio) as page:
        first = page.get("/edge/state").json()
        assert len(first["classes"]) == 2000
        request = {"do": "label_samples", "samples": [sample], "class": ids[1500]}
        answer = page.post("/edge/act", params={"since": first["version"]}, json=request)
        assert answer.json()["seq"] and len(answer.content) < 20_000
        assert [row["id"] for row in answer.json()["state"]["classes"]] == [ids[1500]]
        version = answer.json()["state"]["version"]
        assert len(page.get("/edge/state", params={"since": version}).content) < 20_000


def test_a_workspace_that_is_deleted_under_the_page_acknowledges_no_label(studio):
    """Its files are open, and could be written; they would be gone with the program."""
    mug = Actions(studio).new_class("mug").class_id
    sample = studio.workspace.take(np.zeros((8, 8, 3), np.uint8), "test")
    path = studio.workspace.path
    shutil.move(path, path.with_name("elsewhere"))
    with pytest.raises(UserError, match="was deleted or replaced while it was in use: nothing more is saved"):
        Actions(studio).label_samples([sample], mug)
    with pytest.raises(UserError, match=r"journal .* is missing"):
        review.page(studio, {})
    state = studio.state(fresh=True)
    assert "cannot be read: No such file or directory" in state["alarms"][0], "every tab's strip says it"
    assert any("nothing more is saved" in reason for reason in studio.reasons_not_ready())
    shutil.move(path.with_name("elsewhere"), path)
    assert Actions(studio).label_samples([sample], mug).samples == 1, "the same file is back"


def test_a_learner_whose_workspace_is_moved_away_ends_and_nothing_is_made_anew(tmp_path):
    path = tmp_path / "w"

    @contextmanager
    def moved(live):
        shutil.move(path, tmp_path / "elsewhere")
        yield

    code = learn(path, "workbench", moved, labels="folders", changes={**SMALL, "threads": 1})
    assert code == 1 and [each.name for each in tmp_path.iterdir()] == ["elsewhere"]
