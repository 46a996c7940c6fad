"""A region of a source's picture: drawn once, kept with the workspace, and cut out wherever that source is looked at."""

import json
import time

import cv2
import numpy as np
import pytest
from device_parts import frame_of, manifest_of, publish, tiny_model
from hypothesis import given
from hypothesis import strategies as st
from live_parts import learning
from stream_parts import Shelf
from workspace_parts import SMALL

from edge_hpcr.common.errors import UserError
from edge_hpcr.live.feeder import Feeder
from edge_hpcr.stream import Frame
from edge_hpcr.stream.region import SMALLEST, Region
from edge_hpcr.workspace.workspace import Workspace
from export.runtime import main

RIGHT = Region(0.5, 0.0, 0.5, 1.0)
LEFT = Region(0.0, 0.0, 0.5, 1.0)


def halves(left="red", right="blue"):
    return np.hstack([frame_of(left, 48, 32), frame_of(right, 48, 32)])


def frame(image, digest=None, label=None):
    return Frame(image, "camera 0", label, digest, time.time())


# The rectangle itself -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "values",
    # Three; no number; beyond the picture; too narrow.
    [[0.1, 0.1, 0.5], [float("nan"), 0, 0.5, 0.5], [0.6, 0, 0.5, 0.5], [0.5, 0.5, 0.01, 0.5]],
    ids=str,
)
def test_a_bad_region_is_refused_in_one_line_that_shows_how_to_write_it(values):
    with pytest.raises(UserError) as refused:
        Region.of(values)
    assert "\n" not in str(refused.value) and "0.25,0.1,0.5,0.5" in str(refused.value)


@given(
    *(st.floats(0, 1 - SMALLEST), st.floats(0, 1 - SMALLEST), st.floats(SMALLEST, 1), st.floats(SMALLEST, 1)),
    *(st.integers(1, 300), st.integers(1, 300)),
)
def test_a_region_inside_the_picture_is_cut_from_any_picture(left, top, width, height, rows, columns):
    region = Region.of([left, top, min(width, 1 - left), min(height, 1 - top)])
    assert Region.of(json.loads(json.dumps(region.to_list()))) == region
    assert Region.parse(str(region)) == region
    image = np.arange(rows * columns, dtype=np.int64).reshape(rows, columns)
    part = region.cut(image)
    assert part.size
    assert abs(part.shape[0] - region.height * rows) <= 1
    assert abs(part.shape[1] - region.width * columns) <= 1
    assert abs(part[0, 0] // columns - region.top * rows) <= 1
    assert abs(part[0, 0] % columns - region.left * columns) <= 1


# With the workspace ---------------------------------------------------------------------------------------------------


def test_each_source_keeps_its_region_and_the_last_used_one_is_current(tmp_path):
    with Workspace.open(tmp_path / "w") as workspace:
        assert workspace.regions.use("camera 0") is None
        assert not workspace.layout.regions.exists()  # nothing to keep yet
        workspace.regions.put("camera 0", RIGHT)
        workspace.regions.put("camera 1", LEFT)
    with Workspace.open(tmp_path / "w") as workspace:
        regions = workspace.regions
        names = ("camera 0", "camera 1", "browser camera")
        assert [regions.of(name) for name in names] == [RIGHT, LEFT, None]
        assert regions.current() == LEFT
        assert regions.use("camera 0") == RIGHT
    with Workspace.open(tmp_path / "w", learning=False) as workspace:
        assert workspace.regions.current() == RIGHT
        workspace.regions.put("camera 0", None)
        assert workspace.regions.current() is None
        assert workspace.regions.of("camera 1") == LEFT
    assert (tmp_path / "w" / "regions.json").stat().st_mode & 0o077 == 0


# What is learned and shown --------------------------------------------------------------------------------------------


def test_without_a_page_the_region_of_the_source_is_taken_too(tmp_path):
    with Workspace.open(tmp_path / "w") as workspace:
        workspace.change_settings(**SMALL, idle_steps=0, threads=1)
        workspace.regions.put(Shelf.name, RIGHT)
        with learning(workspace) as live:
            feeder = Feeder(workspace, live)
            feeder.use(
                Shelf([frame(halves(), "a" * 64, "mug"), frame(halves("white", "green"), "b" * 64)]), True
            )
            for _ in range(3):
                feeder.turn(0.1)
            feeder.finish()
            (labelled,) = workspace.journal.samples(state="labelled")
            (queued,) = workspace.journal.samples(state="queued")
            assert (workspace.image(labelled.id) == frame_of("blue", 48, 32)).all()
            assert (workspace.image(queued.id) == frame_of("green", 48, 32)).all()


# Published, and on a device -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("taught", "options", "said"),
    [
        (RIGHT.to_list(), (), "blue"),
        (LEFT.to_list(), ("--region", "0.5,0,0.5,1"), "blue"),
        (None, ("--region", "0.5,0,0.5,1"), "blue"),
    ],
)
def test_a_device_looks_at_the_region_only(tmp_path, capsys, own_signals, taught, options, said):
    # A tiny model that says which colour a picture has, taught with this region; None: the whole picture.
    data = tiny_model().SerializeToString()
    exports, photos = tmp_path / "exports", tmp_path / "photos"
    publish(exports, 1, data, manifest_of(data, 1) | ({} if taught is None else {"region": taught}))
    photos.mkdir()
    cv2.imwrite(str(photos / "1.png"), cv2.cvtColor(halves(), cv2.COLOR_RGB2BGR))
    place = ("--models", str(exports), "--source", str(photos), "--cpu", "--device-id", "test")
    assert main([*place, *options]) == 0
    out, err = capsys.readouterr()
    best = json.loads(out)["top"][0]
    assert (best["name"], best["confidence"] > 0.9) == (said, True)
    assert ("as it was taught" in err) == (not options)
