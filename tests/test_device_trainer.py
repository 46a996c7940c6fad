"""A device and the trainer's own server together: models, reports, frames for the queue, signatures."""

import signal
from pathlib import Path

import pytest
from device_parts import add, publish, running_device
from fleet_parts import TOKEN, make_workspace, running
from process_parts import until

from edge_hpcr.workspace.devices import devices
from edge_hpcr.workspace.workspace import Workspace


@pytest.fixture
def workspace(tmp_path: Path) -> Path:
    publish(make_workspace(tmp_path / "w") / "exports", 1)
    return tmp_path / "w"


@pytest.mark.slow
def test_an_unknown_frame_of_a_device_waits_in_the_trainers_queue_and_the_trainer_knows_the_device(
    workspace: Path, tmp_path: Path
):
    (tmp_path / "images").mkdir()
    add(tmp_path / "images", "0.png", "black")  # as far from every class as can be
    (tmp_path / "token").write_text(TOKEN)
    with running(workspace) as server:
        url = server.url
        places = ("--models", url, "--send-unsure", url, "--token", tmp_path / "token", "--report", 0.2)
        source = ("--source", f"watch:{tmp_path / 'images'}", "--cache", tmp_path / "cache")
        with running_device(*places, *source, "--device-id", "shelf-3") as process:
            process.stdout.readline()

            def arrived() -> bool:
                with Workspace.open(workspace, learning=False) as opened:
                    known = devices(workspace / "devices.json")
                    return bool(opened.journal.queued()) and bool(known) and known[0].frames == 1

            until(arrived)
            process.send_signal(signal.SIGTERM)
            assert process.wait(60) == 0
    (device,) = devices(workspace / "devices.json")
    assert (device.id, device.version, device.unknown_share) == ("shelf-3", 1, 1.0)
    with Workspace.open(workspace, learning=False) as opened:
        assert len(opened.journal.queued()) == 1
