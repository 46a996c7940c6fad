"""What devices send to the server of models: who may, what is stored, and what a flood comes to."""

import json
import socket
import sqlite3
import time
from datetime import UTC, datetime
from pathlib import Path

import pytest
from device_parts import publish
from fleet_parts import TOKEN, ask, make_workspace, picture, report_of, running, send_frame

from app.review import source_of
from edge_hpcr.common.errors import UserError
from edge_hpcr.workspace import devices as registry
from edge_hpcr.workspace.devices import Registry, Report, devices
from edge_hpcr.workspace.folder import Workspace
from edge_hpcr.workspace.label_queue import UNKNOWN
from edge_hpcr.workspace.sample_files import decode
from export.device.manifest import Latest
from export.publish import intake, serve
from export.publish.intake import Rates, TooMany
from export.publish.tokens import Tokens, parse_tokens
from export.publish.versions import stage

OTHER = "another-token-of-good-length"


@pytest.fixture
def workspace(tmp_path: Path) -> Path:
    return make_workspace(tmp_path / "w")


@pytest.fixture
def server(workspace: Path):
    with running(workspace) as server:
        yield server


def queued(workspace: Path) -> list:
    with Workspace.open(workspace, learning=False) as opened:
        return opened.journal.queued()


# Reports --------------------------------------------------------------------------------------------------------------


def test_a_report_is_kept_with_the_trainers_time(server, workspace: Path):
    before = time.time()
    reply, body = ask(server, "/devices/cam-1/report", "POST", report_of("cam-1"))
    assert (reply.status, body) == (204, b"")
    (device,) = devices(workspace / "devices.sqlite")
    assert (device.id, device.version, device.frames, device.unknown_share) == ("cam-1", 1, 200, 0.05)
    assert before <= device.last_seen <= time.time()
    assert device.last_seen - device.since == pytest.approx(60), "by its own clock it has run it for a minute"


@pytest.mark.parametrize(
    ("clock", "age"),
    [
        ({"now": 3.0, "since": 1.0, "started": 0.0}, 2.0),  # 1970
        ({"now": 1.9e9, "since": 30.0, "started": 10.0}, 0.0),  # set right meanwhile
        ({"now": 10.0, "since": 1.9e9, "started": 1.9e9}, 0.0),  # set back
    ],
)
def test_a_clock_that_is_wrong_does_not_matter(server, workspace: Path, clock: dict, age: float):
    assert ask(server, "/devices/cam-1/report", "POST", report_of("cam-1", **clock))[0].status == 204
    (device,) = devices(workspace / "devices.sqlite")
    assert not device.is_silent(time.time())
    assert device.last_seen - device.since == pytest.approx(age, abs=1e-3)


def test_since_when_a_version_runs_stays_until_another_comes(tmp_path: Path):
    kept = Registry(tmp_path / "devices.sqlite")
    for at, version in ((100.0, 1), (200.0, 1), (300.0, 2), (400.0, None)):
        kept.report("cam-1", Report.parse(report_of("cam-1", version=version, since=0.0, now=0.0)), at)
        (device,) = devices(kept.path)
        assert (device.version, device.since, device.first_seen) == (version, at if at != 200 else 100, 100)
    kept.close()


@pytest.mark.parametrize(
    ("body", "complaint"),
    [
        (b"{", "not valid JSON"),
        (b"[]", "report"),
        (b'{"device": "cam-1"}', "version"),
        (report_of("cam-2"), "another one than cam-1"),
        (report_of("cam-1", frames=-1), "frames"),
        (report_of("cam-1", frames="many"), "frames"),
        (report_of("cam-1", version=2**60), "version"),
        (report_of("cam-1").replace(b"1060.0", b"NaN"), "not valid JSON"),
        (b"\xff\xfe", "not valid JSON"),
        (b"[" * 9000, "not valid JSON"),
    ],
)
def test_a_report_that_is_wrong_is_refused_in_a_line(server, workspace: Path, body: bytes, complaint: str):
    reply, said = ask(server, "/devices/cam-1/report", "POST", body)
    assert reply.status == 400
    assert complaint in said.decode() and said.count(b"\n") == 1
    assert devices(workspace / "devices.sqlite") == []


def test_a_report_has_a_largest_size_and_a_length(server):
    assert ask(server, "/devices/cam-1/report", "POST", b" " * 10_001)[0].status == 413
    with socket.create_connection(("127.0.0.1", server.server_address[1]), 10) as raw:
        raw.sendall(
            f"POST /devices/a/report HTTP/1.1\r\nAuthorization: Bearer {TOKEN}\r\n"
            "Transfer-Encoding: chunked\r\n\r\n".encode()
        )
        assert raw.recv(100).startswith(b"HTTP/1.1 411")


def test_what_a_device_writes_is_shown_as_one_line(server, workspace: Path):
    ask(server, "/devices/a/report", "POST", report_of("a", problem="x\n\x1b[31m<b>" + "y" * 999))
    (device,) = devices(workspace / "devices.sqlite")
    assert device.problem.startswith("x  [31m<b>") and len(device.problem) == registry.LONGEST_TEXT


def test_there_is_an_end_to_the_list_of_devices(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(registry, "MOST_DEVICES", 3)
    kept = Registry(tmp_path / "devices.sqlite")
    for at, name in enumerate("abcadb"):
        kept.report(name, Report.parse(report_of(name)), float(at))
    assert [each.id for each in devices(kept.path)] == ["a", "b", "d"], "those heard of last"
    kept.close()


def test_a_damaged_list_is_made_anew_by_the_next_report(tmp_path: Path):
    path = tmp_path / "devices.sqlite"
    path.write_bytes(b"this is no database, and long enough to be looked at" * 100)
    with pytest.raises(UserError, match="the next report"):
        devices(path)
    kept = Registry(path)
    kept.report("cam-1", Report.parse(report_of("cam-1")))
    kept.close()
    assert [each.id for each in devices(path)] == ["cam-1"]


def test_a_list_of_a_newer_version_is_left_alone(tmp_path: Path):
    path = tmp_path / "devices.sqlite"
    with sqlite3.connect(path) as db:
        db.execute("PRAGMA user_version = 99")
    db.close()
    kept = Registry(path)
    for act in (lambda: kept.report("a", Report.parse(report_of("a"))), lambda: devices(path)):
        with pytest.raises(UserError, match="format 99"):
            act()
    kept.close()


# Frames ---------------------------------------------------------------------------------------------------------------


def test_a_frame_goes_into_the_queue_once_with_its_device_as_the_source(server, workspace: Path):
    data = picture()
    assert send_frame(server, "cam-1", "17", data, Answer="blue%20m%C3%BCg")[0].status == 201
    assert send_frame(server, "cam-1", "17", data)[0].status == 200
    assert send_frame(server, "cam-2", "17", picture(1), Reason="unsure")[0].status == 201
    first, second = sorted(queued(workspace), key=lambda row: row.id)
    assert (first.origin, first.priority) == ("device cam-1, unknown: blue müg", UNKNOWN)
    assert (second.origin, second.priority) == ("device cam-2, unsure", 1.0)
    with Workspace.open(workspace) as opened:
        assert opened.report == [] and opened.image(first.id).shape == (48, 48, 3)


def test_a_frame_says_when_its_device_saw_it_unless_its_clock_cannot_be_right(server, workspace: Path):
    now = time.time()
    seen = {
        "an-hour-ago": now - 3600,
        "in-1970": 12.5,
        "in-the-future": now + 86_400,
        "never": float("nan"),
        "at-the-end": float("inf"),
    }
    for number, (name, at) in enumerate(seen.items()):
        assert send_frame(server, name, "1", picture(number), Captured_At=str(at))[0].status == 201
    said = {row.origin for row in queued(workspace)}
    when = datetime.fromtimestamp(now - 3600, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
    assert said == {
        f"device an-hour-ago, unknown at {when}",
        *(f"device {name}, unknown" for name in list(seen)[1:]),
    }
    assert {source_of(origin) for origin in said} == {f"device {name}" for name in seen}


def test_a_time_that_is_none_is_refused(server, workspace: Path):
    reply, said = send_frame(server, "cam-1", "1", picture(), Captured_At="yesterday")
    assert (reply.status, said) == (400, b"Captured-At: a Unix time, in seconds\n")
    assert queued(workspace) == []


def test_a_frame_that_was_labelled_or_dismissed_is_not_queued_again(server, workspace: Path):
    send_frame(server, "cam-1", "1", picture())
    with Workspace.open(workspace) as opened:
        opened.journal.dismiss([row.id for row in opened.journal.queued()])
    assert send_frame(server, "cam-1", "1", picture())[0].status == 200
    assert queued(workspace) == []


def test_frames_come_while_another_process_learns_there(server, workspace: Path):
    with Workspace.open(workspace) as learning:
        assert send_frame(server, "cam-1", "1", picture())[0].status == 201
        assert learning.journal.counts().queued == 1
        own = learning.take(learning.image(learning.journal.queued()[0].id), "camera 0")
        assert len({row.id for row in learning.journal.queued()}) == 2 and own


def test_a_journal_that_was_replaced_gets_the_next_frames(server, workspace: Path):
    send_frame(server, "cam-1", "1", picture())
    for part in workspace.glob("journal.sqlite*"):
        part.unlink()
    (workspace / "journal.backup.sqlite").unlink(missing_ok=True)
    for image in (workspace / "images").glob("*/*"):
        image.unlink()
    Workspace.open(workspace).close()
    assert send_frame(server, "cam-1", "2", picture(2))[0].status == 201
    assert [row.origin for row in queued(workspace)] == ["device cam-1, unknown"]


@pytest.mark.parametrize(
    "data", [b"", b"GIF89a but no picture", b"\xff\xd8\xff damaged", picture()[:300], picture(kind=".bmp")]
)
def test_what_is_no_picture_is_refused(server, workspace: Path, data: bytes):
    assert send_frame(server, "cam-1", "1", data)[0].status == 415
    assert queued(workspace) == []


def test_a_frame_has_a_largest_size_and_the_answer_arrives(server):
    reply, said = send_frame(server, "cam-1", "1", b"\xff" * (intake.LARGEST_FRAME + 1))
    assert (reply.status, said) == (413, b"at most 5,000,000 bytes are taken\n")


def test_a_reason_that_is_none_is_refused(server):
    assert send_frame(server, "cam-1", "1", picture(), Reason="bored")[0].status == 400


@pytest.mark.parametrize("path", ["/devices/a b/report", "/devices/a/frames/", "/devices/a/frames/b/c", "/"])
def test_other_places_take_nothing(server, path: str):
    with socket.create_connection(("127.0.0.1", server.server_address[1]), 10) as raw:
        raw.sendall(
            f"POST {path.replace(' ', '%20')} HTTP/1.1\r\nAuthorization: Bearer {TOKEN}\r\nContent-Length: 0\r\n\r\n".encode()
        )
        assert raw.recv(100).startswith(b"HTTP/1.1 405")


def test_half_a_frame_is_no_frame(server, workspace: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(serve, "BODY_SECONDS", 0.3)
    monkeypatch.setattr(serve.ExportsServer, "longest_wait", 0.2)
    with socket.create_connection(("127.0.0.1", server.server_address[1]), 20) as raw:
        raw.sendall(
            f"POST /devices/a/frames/1 HTTP/1.1\r\nAuthorization: Bearer {TOKEN}\r\n"
            "Content-Length: 1000\r\n\r\nhalf".encode()
        )
        assert raw.recv(100) == b"", "it is closed, and nothing was acknowledged"
    assert queued(workspace) == []


# A flood --------------------------------------------------------------------------------------------------------------


def test_one_device_may_send_some_at_once_and_then_two_a_second():
    now = [0.0]
    rates = Rates(lambda: now[0])
    for _ in range(intake.DEVICE_BURST):
        rates.check("a")
    with pytest.raises(TooMany) as refused:
        rates.check("a")
    assert refused.value.seconds == pytest.approx(1 / intake.DEVICE_RATE)
    rates.check("b")
    now[0] += 1 / intake.DEVICE_RATE
    rates.check("a")
    with pytest.raises(TooMany):
        rates.check("a")


def test_all_devices_together_have_a_rate_too_and_the_books_have_an_end(monkeypatch: pytest.MonkeyPatch):
    now = [0.0]
    rates = Rates(lambda: now[0])
    for number in range(intake.BURST):
        rates.check(f"device-{number}")
    with pytest.raises(TooMany):
        rates.check("one more")
    monkeypatch.setattr(intake, "MOST_BUCKETS", 50)
    for number in range(500):
        now[0] += 1.0
        rates.check(f"later-{number}")
    assert len(rates._devices) <= 50


def test_a_flood_is_told_when_to_come_again(server, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(intake, "DEVICE_RATE", 0.001)
    monkeypatch.setattr(intake, "DEVICE_BURST", 3)
    for number in range(3):
        assert send_frame(server, "cam-1", number, b"no picture")[0].status == 415
    reply, said = send_frame(server, "cam-1", "4", picture())
    assert reply.status == 429 and 900 < int(reply.getheader("Retry-After")) <= 1000, said
    assert send_frame(server, "cam-2", "4", picture())[0].status == 201, "others are not held up"


def test_frames_of_devices_fill_a_share_of_the_queue_and_not_all_of_it(tmp_path: Path):
    workspace = make_workspace(tmp_path / "w", queue_samples=8)
    with running(workspace) as server:
        codes = [send_frame(server, "cam-1", number, picture(number))[0].status for number in range(3)]
        assert codes == [201, 201, 507], "a quarter for one device"
        codes = [send_frame(server, f"cam-1{n}", 1, picture(10 + n))[0].status for n in range(3)]
        assert codes == [201, 201, 507], "half of it for all"
        with Workspace.open(workspace) as opened:
            opened.journal.dismiss([row.id for row in opened.journal.queued()][:3])
        assert send_frame(server, "cam-2", "9", picture(99))[0].status == 201, "there is room again"


def test_a_full_queue_of_the_trainers_own_makes_room_and_a_full_disk_does_not(tmp_path: Path):
    workspace = make_workspace(tmp_path / "w", queue_samples=4)
    with running(workspace) as server:
        with Workspace.open(workspace) as opened:
            for number in range(4):
                opened.take(decode(picture(number)), "camera 0", priority=0.1)
        assert send_frame(server, "cam-1", "1", picture(1))[0].status == 201
        rows = queued(workspace)
        assert len(rows) <= 4 and "device cam-1, unknown" in [row.origin for row in rows]
        with Workspace.open(workspace) as opened:
            opened.change_settings(disk_bytes=1)
        reply, said = send_frame(server, "cam-1", "2", picture(2))
        assert reply.status == 507 and b"disk budget" in said


# Tokens ---------------------------------------------------------------------------------------------------------------


def test_a_token_that_is_removed_from_the_file_is_refused_without_a_restart(workspace: Path, tmp_path: Path):
    file = tmp_path / "tokens"
    file.write_text(f"# all\n{TOKEN}\n\ncam-1: {OTHER}\n")
    with running(workspace, file) as server:

        def status(token: str, device: str = "cam-1") -> int:
            return ask(server, f"/devices/{device}/report", "POST", report_of(device), token)[0].status

        assert (status(TOKEN), status(OTHER)) == (204, 204)
        file.write_text(f"cam-1: {OTHER}\n")
        assert (status(TOKEN), status(OTHER)) == (401, 204)
        file.unlink()
        assert (status(TOKEN), status(OTHER)) == (401, 401), "a file that is gone lets nobody in"
        file.write_text(f"{TOKEN}\n")
        assert (status(TOKEN), status(OTHER)) == (204, 401)
        file.write_text("short\n")
        assert (status(TOKEN), status("short")) == (401, 401)


def test_the_token_of_one_device_is_not_for_another(workspace: Path, tmp_path: Path):
    publish(workspace / "exports", 1)
    file = tmp_path / "tokens"
    file.write_text(f"cam-1: {OTHER}\n")
    with running(workspace, file) as server:
        assert ask(server, "/devices/cam-2/report", "POST", report_of("cam-2"), OTHER)[0].status == 403
        assert send_frame(server, "cam-2", "1", picture(), token=OTHER)[0].status == 403
        assert ask(server, "/latest.json", token=OTHER, Device_Id="cam-2")[0].status == 403
        assert ask(server, "/latest.json", token=OTHER, Device_Id="cam-1")[0].status == 200
        assert ask(server, "/latest.json", token=OTHER)[0].status == 200
    assert devices(workspace / "devices.sqlite") == []


def test_a_file_of_tokens_says_which_line_is_wrong():
    assert parse_tokens(f"{TOKEN}\n", "f") == parse_tokens(f"  {TOKEN}  \r\n# x\n", "f")
    assert list(parse_tokens(f"a.b-c_1: {TOKEN}", "f").values()) == ["a.b-c_1"]
    assert list(parse_tokens("with:colon-and-long-enough", "f").values()) == [None]
    for text, complaint in (
        (f"\na/b: {TOKEN}", "line 2: before the colon"),
        ("a: short", "line 1: a token has"),
    ):
        with pytest.raises(UserError, match=complaint):
            parse_tokens(text, "f")


def test_without_a_token_there_are_reports_and_no_frames(workspace: Path):
    with running(workspace, None) as server:
        assert ask(server, "/devices/a/report", "POST", report_of("a"), token=None)[0].status == 204
        assert send_frame(server, "a", "1", picture())[0].status == 403


def test_a_page_in_a_browser_cannot_speak_for_a_device(workspace: Path):
    with running(workspace, None) as server:
        refused = ask(
            server, "/devices/a/report", "POST", report_of("a"), token=None, Origin="http://evil.example"
        )
        assert refused[0].status == 403
    assert devices(workspace / "devices.sqlite") == []


def test_a_wrong_token_gets_its_answer_though_a_picture_came_with_it(server, workspace: Path):
    assert send_frame(server, "a", "1", picture(side=400), token="wrong-" + TOKEN)[0].status == 401
    assert queued(workspace) == []


def test_health_needs_no_token(server):
    assert ask(server, "/healthz", token=None)[0].status == 200


# Versions by device ---------------------------------------------------------------------------------------------------


def test_a_staged_version_is_for_its_devices_only(server, workspace: Path):
    exports = workspace / "exports"
    for version in (2, 1):
        publish(exports, version)
    stage(exports, 2, ["cam-1"])

    def offered(**headers: str) -> int:
        reply, body = ask(server, "/latest.json", **headers)
        assert reply.status == 200 and "Device-Id" in reply.getheader("Vary")
        return Latest.parse(body, "").version

    assert (offered(), offered(Device_Id="cam-2"), offered(Device_Id="cam-1")) == (1, 1, 2)
    etag = ask(server, "/latest.json", Device_Id="cam-1")[0].getheader("ETag")
    assert ask(server, "/latest.json", Device_Id="cam-1", If_None_Match=etag)[0].status == 304
    assert ask(server, "/latest.json", Device_Id="cam-2", If_None_Match=etag)[0].status == 200
    stage(exports, 2, ["cam-2"])
    assert (offered(Device_Id="cam-1"), offered(Device_Id="cam-2")) == (1, 2)
    (exports / "staged.json").write_text(json.dumps({"format": 1, "version": 2}))
    assert offered(Device_Id="cam-2") == 1, "a damaged one stages nothing"
    assert ask(server, "/latest.json", Device_Id="no/id")[0].status == 400


def test_tokens_of_the_environment_are_one_for_all(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("EDGE_HPCR_TOKEN", TOKEN)
    tokens = Tokens.read(None)
    assert tokens.are_wanted and tokens.owner(TOKEN) == (True, None) and not tokens.owner(OTHER)[0]


def test_a_length_and_pieces_together_are_refused(server):
    with socket.create_connection(("127.0.0.1", server.server_address[1]), 10) as raw:
        raw.sendall(
            f"POST /devices/a/report HTTP/1.1\r\nAuthorization: Bearer {TOKEN}\r\nContent-Length: 4\r\n"
            "Transfer-Encoding: chunked\r\n\r\n0\r\n\r\n".encode()
        )
        assert raw.recv(100).startswith(b"HTTP/1.1 411")
