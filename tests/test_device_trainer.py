"""A device and the trainer's own server together: models, reports, frames for the queue, trials, signatures."""

import signal
from pathlib import Path

import pytest
from device_parts import publish
from fleet_parts import TOKEN, make_workspace, running
from test_device_runtime import add, running_device
from test_device_swap import until

from edge_hpcr.workspace.devices import devices
from edge_hpcr.workspace.folder import Workspace
from edge_hpcr.workspace.layout import Layout
from edge_hpcr.workspace.settings import Settings
from export.device.hot_swap import HotSwap
from export.device.http_models import HttpModels
from export.device.model_source import Loading
from export.device.signing import PublicKey, Trust
from export.publish.keys import make_keys
from export.publish.versions import release, rollback, sign_versions, stage


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
        url = f"http://127.0.0.1:{server.server_address[1]}"
        places = ("--models", url, "--send-unsure", url, "--token", tmp_path / "token", "--report", 0.2)
        source = ("--source", tmp_path / "images", "--watch", "--cache", tmp_path / "cache")
        with running_device(*places, *source, "--device-id", "shelf-3") as process:
            process.stdout.readline()

            def arrived() -> bool:
                with Workspace.open(workspace, learning=False) as opened:
                    known = devices(workspace / "devices.sqlite")
                    return bool(opened.journal.queued()) and bool(known) and known[0].frames == 1

            until(arrived)
            process.send_signal(signal.SIGTERM)
            assert process.wait(60) == 0
    (device,) = devices(workspace / "devices.sqlite")
    assert (device.id, device.version, device.unknown_share) == ("shelf-3", 1, 1.0)
    with Workspace.open(workspace, learning=False) as opened:
        assert len(opened.journal.queued()) == 1


def test_a_trial_is_taken_and_given_back_by_a_device_that_asks_for_signatures(
    workspace: Path, tmp_path: Path
):
    exports, settings = workspace / "exports", Layout(workspace).settings
    publish(exports, 2)
    make_keys(tmp_path / "key.pem", tmp_path / "key.pub")
    Settings.load(settings).replace(publish_key=str(tmp_path / "key.pem")).save(settings)
    rollback(exports, 1)
    sign_versions(exports)

    def device(name: str, url: str) -> HotSwap:
        trust = Trust(PublicKey(tmp_path / "key.pub"), tmp_path / name, url)
        source = HttpModels(url, tmp_path / name, TOKEN, device=name, trust=trust)
        swap = HotSwap(source, Loading("cpu", 1), print)
        swap.first()
        return swap

    with running(workspace) as server:
        url = f"http://127.0.0.1:{server.server_address[1]}"
        tried, other = device("cam-1", url), device("cam-2", url)

        def versions() -> list[int]:
            for each in (tried, other):
                each.look()
            return [each.classifier.info.version for each in (tried, other)]

        assert versions() == [1, 1]
        stage(exports, 2, ["cam-1"])
        assert versions() == [2, 1]
        rollback(exports)
        assert versions() == [1, 1], "the signer allows the older one"
        stage(exports, 2, ["cam-2"])
        assert versions() == [1, 2]
        release(exports)
        assert versions() == [2, 2]
