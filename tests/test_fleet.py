"""The devices of a workspace: what is kept of their reports, who is shown first, and how fast their frames may come."""

import re
import time
from pathlib import Path

import pytest
from device_parts import publish
from fleet_parts import report_of

from app.tabs.models import DEVICES_SHOWN as SHOWN
from app.tabs.models import devices_html
from edge_hpcr.common.errors import UserError
from edge_hpcr.workspace import devices as registry
from edge_hpcr.workspace.devices import SILENT_SECONDS, Report, devices, note_report
from export.publish.versions import pin, pinned


def test_what_a_device_writes_is_kept_as_one_line(tmp_path: Path):
    note_report(tmp_path / "d", "a", Report.parse(report_of("a", problem="x\n\x1b[31m<b>" + "y" * 999)))
    (device,) = devices(tmp_path / "d")
    assert device.problem.startswith("x  [31m<b>") and len(device.problem) == registry.LONGEST_TEXT


def test_there_is_an_end_to_the_list_of_devices(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(registry, "MOST_DEVICES", 3)
    for at, name in enumerate("abcadb"):
        note_report(tmp_path / "d", name, Report.parse(report_of(name)), float(at))
    assert [each.id for each in devices(tmp_path / "d")] == ["a", "b", "d"], "those heard of last"


def test_a_damaged_list_is_made_anew_by_the_next_report(tmp_path: Path):
    path = tmp_path / "devices.json"
    path.write_bytes(b"this is no list")
    with pytest.raises(UserError):
        devices(path)
    note_report(path, "cam-1", Report.parse(report_of("cam-1")))
    assert [each.id for each in devices(path)] == ["cam-1"]


def test_the_page_shows_who_wants_somebody_first_and_nothing_that_a_device_wrote_as_markup(tmp_path: Path):
    exports, path = tmp_path / "exports", tmp_path / "devices.json"
    note_report(path, "cam-1", Report.parse(report_of("cam-1", version=17)))
    silent = Report.parse(report_of("cam-2", version=None, problem="<b>no camera</b>"))
    note_report(path, "cam-2", silent, time.time() - 2 * SILENT_SECONDS)
    found = devices(path)
    html = devices_html(found, None, time.time())
    assert re.findall(r'data-device="([^"]+)"', html) == ["cam-2", "cam-1"]
    assert "&lt;b&gt;no camera" in html and "<b>no camera" not in html
    assert "No device has reported yet" in devices_html([], None, time.time())
    for version in (2, 1):
        publish(exports, version)
    pin(exports, 2, ["cam-1"])
    html = devices_html(found, pinned(exports), time.time())
    assert "v17 (stays on v2)" in html and html.count("stays on") == 1
    assert devices_html(found * SHOWN, None, time.time()).count("<tr data-device") == SHOWN
