"""Between the source and the page: no frame of a folder is lost, and labels that a folder brings are written soon."""

import cv2
import numpy as np
import pytest
from browser_parts import wait_for
from workspace_parts import SMALL

from app import page_feeder
from app.page_feeder import FRAMES_KEPT, PageFeeder
from edge_hpcr.common.errors import UserError
from edge_hpcr.live.live_learner import LiveLearner
from edge_hpcr.workspace.workspace import Workspace


@pytest.fixture
def feeder(tmp_path):
    with Workspace.open(tmp_path / "workspace") as workspace:
        workspace.change_settings(**SMALL)
        live = LiveLearner(workspace)
        live.start()
        feeder = PageFeeder(workspace, live)
        feeder.start()
        yield feeder
        feeder.stop()
        live.stop()


def pictures(folder, count, seed=0):
    rng = np.random.default_rng(seed)
    folder.mkdir(parents=True, exist_ok=True)
    for number in range(count):
        cv2.imwrite(str(folder / f"{number}.png"), rng.integers(0, 255, (24, 24, 3), np.uint8))


@pytest.mark.slow
def test_a_folder_waits_while_its_picture_is_held(feeder, tmp_path):
    pictures(tmp_path / "photos" / "mug", 12)
    feeder.choose(str(tmp_path / "photos"), "folders")
    for _ in range(4):
        wait_for(lambda: feeder.newest() is not None or feeder.ended, "a frame")
        feeder.hold(True)
        feeder.stopping.wait(0.3)
        feeder.hold(False)
    wait_for(lambda: feeder.ended, "the folder's end")
    assert feeder.workspace.journal.counts().labels == 12


@pytest.mark.slow
def test_a_held_picture_stays_however_many_frames_pass(feeder, monkeypatch):
    feeder.choose("browser")
    camera = feeder.browser_camera

    def show() -> int:
        before = feeder._newest.number if feeder._newest else 0
        camera.push(np.full((8, 8, 3), 7, np.uint8))
        wait_for(lambda: feeder._newest is not None and feeder._newest.number > before, "a frame")
        return feeder._newest.number

    first, second = show(), show()
    feeder.hold(True, first)
    assert feeder.newest().number == first  # the one that was named, although a newer one had come
    feeder._shown.clear()
    assert feeder.shown(first).number == first
    feeder.hold(False)
    assert feeder.newest().number == second
    assert feeder.shown(first).number == first  # somebody may still be typing a name for it
    monkeypatch.setattr(page_feeder, "KEPT", 3)
    for _ in range(3):
        feeder.hold(True, show())
        feeder.hold(False)
    with pytest.raises(UserError, match="no longer here"):
        feeder.shown(first)
    assert FRAMES_KEPT >= 100
