"""Who runs what, as the command and the Models tab show it; and models from a server that is not ours."""

import json
import re
import time
from pathlib import Path

import pytest
from device_parts import publish
from fleet_parts import make_workspace, report_of
from process_parts import started

from app.tabs.fleet import SHOWN, devices_html, trial_html
from benchmarks.fleet import figures
from edge_hpcr.commands import cli
from edge_hpcr.workspace.devices import SILENT_SECONDS, Registry, Report, devices
from export.device.http_models import HttpModels
from export.publish.staging import staged
from export.publish.versions import stage


@pytest.fixture
def workspace(tmp_path: Path) -> Path:
    """With two devices, of which one has been silent for long."""
    path = make_workspace(tmp_path / "w")
    kept = Registry(path / "devices.sqlite")
    kept.report("cam-1", Report.parse(report_of("cam-1", version=17)))
    silent = report_of(
        "cam-2", version=None, frames=0, unknown=0, problem="<b>no camera</b>", unsure_dropped=5
    )
    kept.report("cam-2", Report.parse(silent), time.time() - 2 * SILENT_SECONDS)
    kept.close()
    return path


def test_the_command_lists_devices_for_people_and_programs(
    workspace: Path, capsys: pytest.CaptureFixture[str]
):
    assert cli.main(["devices", str(workspace)]) == 0
    head, first, second = capsys.readouterr().out.splitlines()
    assert head.split()[:3] == ["device", "version", "for"]
    assert re.match(r"cam-1 +v17 +60 s +200 +5.0% +3 +\d+ s ago", first)
    assert re.match(r"cam-2 +none +.* 3, 5 lost +10 min ago, silent +<b>no camera</b>", second)
    assert cli.main(["devices", str(workspace), "--json"]) == 0
    first, second = json.loads(capsys.readouterr().out)
    assert (first["version"], first["unknown_share"], first["silent"]) == (17, 0.05, False)
    assert (second["version"], second["unknown_share"], second["silent"]) == (None, None, True)


def test_the_command_says_that_there_is_none_and_where_no_workspace_is(tmp_path: Path, capsys):
    assert cli.main(["devices", str(make_workspace(tmp_path / "w"))]) == 0
    assert "no device has reported yet" in capsys.readouterr().out
    assert cli.main(["devices", str(tmp_path / "nothing")]) == 2
    assert "no workspace at" in capsys.readouterr().err


def test_the_table_shows_who_wants_somebody_first_and_nothing_that_a_device_wrote_as_markup(workspace: Path):
    html = devices_html(devices(workspace / "devices.sqlite"), None, time.time())
    assert re.findall(r'data-device="([^"]+)"', html) == ["cam-2", "cam-1"]
    assert "&lt;b&gt;no camera" in html and "<b>no camera" not in html
    assert "No device has reported yet" in devices_html([], None, time.time())


def test_the_table_marks_a_trial_and_has_an_end(workspace: Path):
    exports = workspace / "exports"
    for version in (2, 1):
        publish(exports, version)
    stage(exports, 2, ["cam-1"])
    found = devices(workspace / "devices.sqlite")
    html = devices_html(found, staged(exports), time.time())
    assert "v17 (trial of v2)" in html and html.count("trial of") == 1
    assert "Version 2 is on trial on cam-1" in trial_html(staged(exports)) and trial_html(None) == ""
    assert devices_html(found * SHOWN, None, time.time()).count("<tr data-device") == SHOWN


@pytest.mark.slow
def test_a_device_follows_a_plain_server_of_static_files(tmp_path: Path):
    """As docs/scale.md says: object storage or a CDN need nothing of ours."""
    exports = tmp_path / "exports"
    publish(exports, 1)
    command = ("-u", "-m", "http.server", "0", "--bind", "127.0.0.1", "--directory", exports)
    with started(*command) as server:
        port = re.search(r"port (\d+)", server.stdout.readline())[1]
        models = HttpModels(f"http://127.0.0.1:{port}", tmp_path / "cache")
        for version in (1, 2):
            if version > 1:
                publish(exports, version)
            offer = models.newest()
            models.fetch(offer)
            models.accepted(offer)
            assert offer.manifest.version == version and (offer.path / "model.onnx").exists()


def test_the_figures_of_a_measurement_become_a_table():
    machine = {
        "hardware": "a machine",
        "versions": {"torch": "2", "onnxruntime": "1"},
        "load_average": {"start": [0.1], "end": [0.2]},
        "stolen_seconds": 0.0,
    }
    used = {"ms_per_request": 0.25, "share_of_a_core": 0.051}
    polls = {
        **{"devices": 200, "requests": 1000, "rounds": 2, "seconds": 5, "slowdown": 0.042},
        "answer_ms": {"p95": 4.4},
        "processor": {"server": used, "simulation": {**used, "share_of_a_core": 0.033}},
        "download": {"devices": 200, "bytes": 10_000_000, "seconds": 2.5},
    }
    kept = {
        "polls": polls | machine,
        "frames": {"frames": 40, "frames_per_second": 33.3, **machine},
        "label": {"seconds": [{}, {}], "slowest": 9.87, **machine},
    }
    page = figures(kept)
    assert "slowest of 2 new classes" in page and "9.9 s" in page and "33.3" in page and "a machine" in page
    assert "4.2%" in page and "0.25 ms, 5.1%" in page and "0.25 ms, 3.3%" in page, (
        "server and simulation apart"
    )
