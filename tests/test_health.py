"""It knows when it is not well: the learner, the source, the disk and the journal, told alike wherever somebody looks."""

import json
import re
import threading
import time
from collections import namedtuple
from contextlib import contextmanager

import numpy as np
import pytest
from starlette.applications import Starlette
from starlette.testclient import TestClient
from workspace_parts import SMALL

from app import routes as page_routes
from app.changing import ChangingClasses
from app.metrics import Requests
from app.routes import routes
from app.studio import Studio
from edge_hpcr.commands.cli import main
from edge_hpcr.live import health
from edge_hpcr.live.health import alarms
from edge_hpcr.live.status import gather
from edge_hpcr.stream import Stream
from edge_hpcr.workspace.folder import Taken, Workspace

WELL = {
    **{"phase": "idle", "events_waiting": 0, "oldest_waiting_seconds": 0.0, "source_problem": None},
    "stream": {"name": "camera 0", "phase": "live", "message": "live"},
}
AWAY = {"name": "camera 0", "phase": "reconnecting", "message": "no such camera, trying again"}
Usage = namedtuple("Usage", ["total", "used", "free"])


class Camera(Stream):
    """A camera that somebody can unplug."""

    name = "camera 0"
    live = True
    plugged = True

    def read(self, timeout):
        time.sleep(min(timeout, 0.05))

    def _doing(self):
        return ("live", "live") if self.plugged else ("reconnecting", "no such camera, trying again")

    def close(self):
        pass


@pytest.mark.parametrize(
    ("changes", "silent", "text", "stops"),
    [
        ({}, 10.0, None, False),
        ({}, 3600.0, "no sign of life for 60 min", True),
        ({"phase": "failed"}, 0.0, "learning has stopped", True),
        ({"oldest_waiting_seconds": 300.0}, 0.0, "a label has waited for 5 min", False),
        ({"events_waiting": 2000}, 0.0, "the learner is behind: 2,000", False),
        ({"stream": AWAY}, 0.0, "camera 0: no such camera, trying again", True),
        ({"stream": None, "source_problem": "no folder /gone"}, 0.0, "the source: no folder /gone", True),
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


def test_a_disk_that_is_gone_is_an_alarm_and_no_traceback(tmp_path):
    (alarm,) = alarms(tmp_path / "unmounted")
    assert alarm.stops and "cannot be read" in alarm.text


@pytest.fixture
def studio(tmp_path):
    with Workspace.open(tmp_path / "w") as workspace:
        workspace.change_settings(**SMALL, memory_bytes=40_000, threads=1, idle_steps=0)
        made = Studio(workspace)
        made.live.start()
        yield made
        made.live.stop()
        made.transfers.stop()


@contextmanager
def client(studio, author=None):
    """The routes as the guard leaves them, which names whoever has shown a token or a password."""
    application = Starlette(routes=routes(studio))

    async def guarded(scope, receive, send):
        scope.setdefault("state", {})["author"] = author
        await application(scope, receive, send)

    with TestClient(guarded, base_url="http://127.0.0.1") as opened:
        yield opened


@contextmanager
def ending(wait):
    """Whatever fails meanwhile, the thread that waits shall end."""
    try:
        yield
    finally:
        wait.set()


def until(condition):
    deadline = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_ready_is_all_that_a_stranger_learns(studio, monkeypatch):
    monkeypatch.setattr(page_routes, "HEALTH_SECONDS", 0.0)
    with client(studio) as stranger, client(studio, "anna") as known:
        for one in (stranger, known):
            answer = one.get("/healthz")
            assert (answer.status_code, answer.text) == (200, "ready\n")
        studio.live.source_problem = "no folder /secret"
        assert (stranger.get("/healthz").status_code, stranger.get("/healthz").text) == (503, "not ready\n")
        assert known.get("/healthz").text == "not ready\nthe source: no folder /secret\n"


@pytest.mark.slow
def test_a_learner_that_hangs_is_not_ready_and_everybody_is_told_alike(studio, monkeypatch, capsys):
    monkeypatch.setattr(health, "SILENT_SECONDS", 0.5)
    monkeypatch.setattr("edge_hpcr.live.status.SILENT_SECONDS", 0.5)
    monkeypatch.setattr(page_routes, "HEALTH_SECONDS", 0.0)
    path, going_on = str(studio.workspace.path), threading.Event()
    until(lambda: studio.workspace.layout.status.exists())
    with client(studio, "anna") as page, ending(going_on):
        studio.live.call(going_on.wait)
        until(lambda: page.get("/healthz").status_code == 503)
        until(lambda: main(["status", path]) == 1)
        assert "no sign of life" in page.get("/healthz").text
        until(lambda: "no sign of life" in str(page.get("/edge/state").json()["alarms"]))
        capsys.readouterr()
        assert main(["status", path, "--json"]) == 1
        said = json.loads(capsys.readouterr().out)
        assert "no sign of life" in said["alarms"][0] and said["alarms"][0] in said["problems"]
        going_on.set()
        until(lambda: page.get("/healthz").status_code == 200)
        until(lambda: main(["status", path]) == 0)


@pytest.mark.slow
def test_a_camera_that_is_away_reaches_page_status_and_health_until_it_is_back(studio, monkeypatch):
    monkeypatch.setattr(page_routes, "HEALTH_SECONDS", 0.0)
    studio.live.stream = camera = Camera()
    path = studio.workspace.path
    with client(studio) as page:
        assert page.get("/healthz").status_code == 200
        camera.plugged = False
        assert page.get("/healthz").status_code == 503
        until(lambda: gather(path)["alarms"] == ["camera 0: no such camera, trying again"])
        assert main(["status", str(path)]) == 1
        until(lambda: page.get("/edge/state").json()["alarms"] == gather(path)["alarms"])
        camera.plugged = True
        assert page.get("/healthz").status_code == 200
        until(lambda: gather(path)["alarms"] == [])


def test_a_journal_that_cannot_be_written_is_not_ready(studio, monkeypatch):
    monkeypatch.setattr(page_routes, "HEALTH_SECONDS", 0.0)
    with client(studio, "anna") as page:
        studio.journal._rows("PRAGMA query_only = ON")
        answer = page.get("/healthz")
        assert answer.status_code == 503 and "journal.sqlite: it cannot be written" in answer.text
        studio.journal._rows("PRAGMA query_only = OFF")
        assert page.get("/healthz").status_code == 200


def test_pages_that_hang_are_noticed_and_cost_one_thread_however_often_somebody_asks(studio, monkeypatch):
    monkeypatch.setattr(page_routes, "HEALTH_SECONDS", 0.0)
    monkeypatch.setattr(page_routes, "LONGEST_HEALTH", 0.05)
    asked = []
    whole = studio.reasons_not_ready
    monkeypatch.setattr(studio, "reasons_not_ready", lambda: asked.append(1) or whole())
    with client(studio, "anna") as page:
        with studio._stating:  # as a thread that never lets go
            for _ in range(5):
                answer = page.get("/healthz")
                assert answer.status_code == 503 and "the pages have had no answer" in answer.text
        assert len(asked) == 1
        until(lambda: page.get("/healthz").status_code == 200)


# Metrics --------------------------------------------------------------------------------------------------------------


def parsed(text: str) -> dict[str, float]:
    """As Prometheus reads it: every line is a comment or a name, labels perhaps, and a number; each name once."""
    values, described = {}, set()
    for line in text.splitlines():
        if line.startswith("# "):
            described.add(line.split()[2])
            continue
        match = re.fullmatch(r'([a-z_]+)((?:\{[a-z]+="[^"\\\n]*"\})?) ([0-9.e+-]+|NaN)', line)
        assert match, line
        assert re.sub("_(bucket|sum|count)$", "", match[1]) in described
        assert match[1] + match[2] not in values
        values[match[1] + match[2]] = float(match[3])
    return values


def test_prometheus_reads_labels_waits_sizes_and_times(studio):
    image = np.zeros((8, 8, 3), np.uint8)
    (sample,) = studio.workspace.take_many([Taken(image, "test")])
    with client(studio) as page:
        before = parsed(page.get("/metrics").text)
        assert before["edge_hpcr_queue_samples"] == 1 and before["edge_hpcr_labels"] == 0
        page.post("/edge/act", json={"do": "label_samples_as", "samples": [sample], "name": "mug"})
        page.post("/edge/act", json={"do": "fly"})
        assert studio.live.wait_until_caught_up(60)
        until(lambda: studio.live.status()["step"] == 1)
        answer = page.get("/metrics")
    assert answer.headers["content-type"].startswith("text/plain; version=0.0.4")
    after = parsed(answer.text)
    assert after["edge_hpcr_labels"] == after["edge_hpcr_classes"] == after["edge_hpcr_steps_total"] == 1
    assert after["edge_hpcr_events"] == 2 and after["edge_hpcr_events_waiting"] == 0
    assert after['edge_hpcr_requests_total{answer="refused"}'] == 1
    assert after['edge_hpcr_action_seconds_bucket{le="+Inf"}'] == after["edge_hpcr_action_seconds_count"] == 1
    assert after['edge_hpcr_learned_seconds{quantile="0.95"}'] > 0
    assert 0 < after["edge_hpcr_memory_bytes"] <= after["edge_hpcr_memory_budget_bytes"] == 40_000
    assert after["edge_hpcr_ready"] == 1 and after["edge_hpcr_alarms"] == 0


def test_the_times_of_actions_add_up_in_their_histogram():
    requests = Requests()
    for seconds in (0.004, 0.03, 0.25, 9.0):
        requests.time(seconds)
    values = parsed("\n".join(requests.lines()))
    assert [
        values[f'edge_hpcr_action_seconds_bucket{{le="{le}"}}'] for le in ("0.01", "0.05", "0.25", "2.5")
    ] == [*(1, 2, 3, 3)]
    assert values["edge_hpcr_action_seconds_sum"] == pytest.approx(9.284)


# What a page is sent --------------------------------------------------------------------------------------------------


def test_a_page_gets_the_classes_that_changed_and_those_that_are_gone(studio):
    journal = studio.journal
    ids = [journal.create_class(name) for name in ("mug", "pen", "cup")]
    whole = studio.state(fresh=True)
    assert whole["whole"] and [row["name"] for row in whole["classes"]] == ["mug", "pen", "cup"]
    same = studio.state(fresh=True, since=whole["version"])
    assert (same["whole"], same["classes"], same["gone"], same["version"]) == (
        False,
        [],
        [],
        whole["version"],
    )
    journal.rename_class(ids[0], "beaker")
    journal.delete_class(ids[1])
    part = studio.state(fresh=True, since=whole["version"])
    assert [row["name"] for row in part["classes"]] == ["beaker"] and part["gone"] == [ids[1]]
    journal.undo()
    again = studio.state(fresh=True, since=part["version"])
    assert [row["name"] for row in again["classes"]] == ["pen"] and again["gone"] == []


@pytest.mark.parametrize(
    "version", ["", "x", "-", "0-5", "-1", "9" * 5000, "{}-" + "9" * 5000, "{}--3", "{}-½", "{}-2.5"]
)
def test_a_page_of_another_process_or_with_nonsense_gets_everything(studio, version):
    studio.journal.create_class("mug")
    own = studio.state(fresh=True)["version"].partition("-")[0]
    answer = studio.state(since=version.replace("{}", own))
    assert answer["whole"] and len(answer["classes"]) == 1


def test_a_page_that_missed_very_many_ended_classes_gets_everything_anew(studio, monkeypatch):
    monkeypatch.setattr("app.changing.GONE_KEPT", 2)
    classes = ChangingClasses(studio.workspace)
    ids = [studio.journal.create_class(f"class {n}") for n in range(4)]
    version = classes.since("")["version"]
    for class_id in ids[:3]:
        studio.journal.delete_class(class_id)
    after = classes.since(version)
    assert after["whole"] and [row["id"] for row in after["classes"]] == ids[3:]


def test_a_label_among_2000_classes_costs_a_page_less_than_20_kilobytes(studio):
    with studio.journal.transaction():
        ids = [studio.journal.create_class(f"a part with a long name, number {n}") for n in range(2000)]
    image = np.zeros((8, 8, 3), np.uint8)
    (sample,) = studio.workspace.take_many([Taken(image, "test")])
    with client(studio) as page:
        first = page.get("/edge/state").json()
        assert len(first["classes"]) == 2000
        request = {"do": "label_samples", "samples": [sample], "class": ids[1500]}
        answer = page.post("/edge/act", params={"since": first["version"]}, json=request)
        assert answer.json()["seq"] and len(answer.content) < 20_000
        assert [row["id"] for row in answer.json()["state"]["classes"]] == [ids[1500]]
        version = answer.json()["state"]["version"]
        assert len(page.get("/edge/state", params={"since": version}).content) < 20_000
