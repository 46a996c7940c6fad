"""A region of a source's picture: drawn once, kept with the workspace, and cut out wherever that source is looked at."""

import json
import time

import cv2
import numpy as np
import pytest
from device_parts import frame_of, manifest_of, metadata_of, publish, tiny_model
from hypothesis import given
from hypothesis import strategies as st
from test_feeder import Shelf
from workspace_parts import SMALL

from app.feeder import Feeder as PageFeeder
from edge_hpcr.common.errors import UserError
from edge_hpcr.live.feeder import Feeder
from edge_hpcr.live.live_learner import LiveLearner
from edge_hpcr.stream import Frame
from edge_hpcr.stream.region import SMALLEST, Region
from edge_hpcr.workspace.backup import back_up, restore
from edge_hpcr.workspace.folder import Workspace
from export.device.errors import BadModel
from export.device.model import Classifier
from export.device.runtime import main

RIGHT = Region(0.5, 0.0, 0.5, 1.0)
LEFT = Region(0.0, 0.0, 0.5, 1.0)
BAD = {  # what is given, and what the sentence must say
    "none": (None, "four numbers"),
    "three numbers": ([0.1, 0.1, 0.5], "four numbers"),
    "a text": ([0.1, 0.1, 0.5, "0.5"], "four numbers"),
    "not a number": ([float("nan"), 0, 0.5, 0.5], "four numbers"),
    "endless": ([0, 0, float("inf"), 0.5], "four numbers"),
    "a truth": ([True, 0, 0.5, 0.5], "four numbers"),
    "left of it": ([-0.1, 0, 0.5, 0.5], "reaches out of the picture"),
    "right of it": ([0.6, 0, 0.5, 0.5], "reaches out of the picture"),
    "below it": ([0, 0.6, 0.5, 0.5], "reaches out of the picture"),
    "too narrow": ([0.5, 0.5, 0.01, 0.5], "too small"),
    "turned round": ([0.5, 0.5, 0.2, -0.2], "too small"),
}


def halves(left="red", right="blue"):
    return np.hstack([frame_of(left, 48, 32), frame_of(right, 48, 32)])


def frame(image, digest=None, label=None):
    return Frame(image, "camera 0", label, digest, time.time())


# The rectangle itself -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("values", "wrong"), BAD.values(), ids=BAD)
def test_a_bad_region_is_refused_in_one_line(values, wrong):
    with pytest.raises(UserError, match=wrong) as refused:
        Region.of(values)
    assert "\n" not in str(refused.value)
    assert "0.25,0.1,0.5,0.5" in str(refused.value)  # which shows how to write it


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


def test_another_part_of_a_file_is_another_sample():
    whole = frame(halves(), digest="f" * 64)
    parts = [RIGHT.of_frame(whole), LEFT.of_frame(whole)]
    assert len({each.digest for each in (whole, *parts)}) == 3
    assert RIGHT.of_frame(frame(halves())).digest is None
    assert (parts[0].image == frame_of("blue", 48, 32)).all()
    assert parts[0].whole is whole.image


# With the workspace ---------------------------------------------------------------------------------------------------


def test_each_source_keeps_its_region_and_the_last_used_one_is_current(tmp_path):
    with Workspace.open(tmp_path / "w") as workspace:
        assert workspace.regions.use("camera 0") is None
        assert not workspace.layout.regions.exists()  # nothing to keep yet
        workspace.regions.put("camera 0", RIGHT)
        workspace.regions.put("camera 1", LEFT)
    with Workspace.open(tmp_path / "w") as workspace:
        regions = workspace.regions
        assert (regions.of("camera 0"), regions.of("camera 1"), regions.of("browser camera")) == (
            RIGHT,
            LEFT,
            None,
        )
        assert regions.current() == LEFT
        assert regions.use("camera 0") == RIGHT
    with Workspace.open(tmp_path / "w", learning=False) as workspace:
        assert workspace.regions.current() == RIGHT
        workspace.regions.put("camera 0", None)
        assert workspace.regions.current() is None
        assert workspace.regions.of("camera 1") == LEFT
    assert (tmp_path / "w" / "regions.json").stat().st_mode & 0o077 == 0


@pytest.mark.parametrize(
    ("content", "wrong"),
    [
        ("{", "are damaged"),
        ("[]", "are damaged"),
        (
            '{"format": 99, "version": "9.0", "regions": {}}',
            r"format 99.*use the version that wrote it \(9.0\)",
        ),
        ('{"format": 1, "regions": {"camera 0": [0, 0, 2, 2]}}', "reaches out of the picture"),
        ('{"format": 1, "regions": 5}', "regions.json"),
    ],
)
def test_a_bad_file_of_regions_is_named_in_one_line(tmp_path, content, wrong):
    with Workspace.open(tmp_path / "w") as workspace:
        workspace.layout.regions.write_text(content)
        with pytest.raises(UserError, match=wrong) as refused:
            workspace.regions.of("camera 0")
        assert "\n" not in str(refused.value) and "regions.json" in str(refused.value)


def test_a_backup_brings_the_regions_along(tmp_path):
    with Workspace.open(tmp_path / "w") as workspace:
        workspace.regions.put("camera 0", RIGHT)
    back_up(tmp_path / "w", tmp_path / "b.zip")
    restore(tmp_path / "b.zip", tmp_path / "copy")
    with Workspace.open(tmp_path / "copy") as workspace:
        assert workspace.regions.of("camera 0") == RIGHT


# What is learned and shown --------------------------------------------------------------------------------------------


@pytest.fixture
def page_feeder(tmp_path):
    with Workspace.open(tmp_path / "w") as workspace:
        workspace.change_settings(**SMALL, idle_steps=0, threads=1, gate_per_second=1000.0)
        live = LiveLearner(workspace)
        live.start()
        feeder = PageFeeder(workspace, live)  # not started: the test takes its turns
        yield feeder
        feeder.stop()
        live.stop()


def shown(feeder, image):
    feeder.browser_camera.push(image)
    feeder.turn(1.0)
    return feeder.newest()


def test_the_page_shows_the_whole_picture_and_takes_the_part(page_feeder):
    feeder = page_feeder
    feeder.choose("browser")
    before = shown(feeder, halves())
    feeder.set_region(RIGHT)
    after = feeder.newest()
    assert (after.image == frame_of("blue", 48, 32)).all()  # of the frame that was there already
    picture = cv2.imdecode(np.frombuffer(after.picture, np.uint8), cv2.IMREAD_COLOR)
    assert picture.shape == (48, 64, 3)
    assert (feeder.workspace.image(after.sample_id) == frame_of("blue", 48, 32)).all()
    with pytest.raises(UserError, match="no longer here"):
        feeder.shown(before.number)  # a label must not mean the whole picture any more
    brought = feeder.bring(halves("green", "white"), "browser camera")
    assert (brought.image == frame_of("white", 48, 32)).all()
    file = feeder.bring(halves(), "holiday.jpg")  # a file is another source
    assert file.image.shape == (48, 64, 3)
    feeder.set_region(None)
    assert feeder.newest().image.shape == (48, 64, 3)
    assert feeder.find(file.number) is file
    assert feeder.find(brought.number) is None


def test_a_source_that_comes_back_has_its_region_and_others_have_none(page_feeder, tmp_path):
    feeder = page_feeder
    folder = tmp_path / "photos"
    folder.mkdir()
    cv2.imwrite(str(folder / "1.png"), cv2.cvtColor(halves(), cv2.COLOR_RGB2BGR))
    with pytest.raises(UserError, match="choose a source first"):
        feeder.set_region(RIGHT)
    feeder.choose("browser")
    feeder.set_region(LEFT)
    feeder.choose(str(folder))
    assert feeder.region is None
    feeder.turn(1.0)
    assert feeder.newest().image.shape == (48, 64, 3)
    feeder.turn(1.0)
    assert feeder.ended
    feeder.set_region(RIGHT)  # on its last picture, which no further one follows
    assert (feeder.newest().image == frame_of("blue", 48, 32)).all()
    feeder.choose("browser")
    assert feeder.region == LEFT


def test_without_a_page_the_region_of_the_source_is_taken_too(tmp_path):
    with Workspace.open(tmp_path / "w") as workspace:
        workspace.change_settings(**SMALL, idle_steps=0, threads=1)
        workspace.regions.put(Shelf.name, RIGHT)
        live = LiveLearner(workspace)
        live.start()
        try:
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
        finally:
            live.stop()


# Published, and on a device -------------------------------------------------------------------------------------------


def exports_with(folder, version, region):
    """A tiny model that says which colour a picture has, taught with this region; None: the whole picture."""
    noted = {} if region is None else {"region": json.dumps(region)}
    data = tiny_model(version, metadata=metadata_of(version) | noted).SerializeToString()
    facts = manifest_of(data, version) | ({} if region is None else {"region": region})
    publish(folder, version, data, facts)
    return folder


@pytest.fixture
def photos(tmp_path):
    folder = tmp_path / "photos"
    folder.mkdir()
    cv2.imwrite(str(folder / "1.png"), cv2.cvtColor(halves(), cv2.COLOR_RGB2BGR))
    return folder


@pytest.mark.parametrize(
    ("taught", "options", "said"),
    [
        (RIGHT.to_list(), (), "blue"),
        (LEFT.to_list(), (), "red"),
        (LEFT.to_list(), ("--region", "0.5,0,0.5,1"), "blue"),
        (None, ("--region", "0.5,0,0.5,1"), "blue"),
        (None, ("--region", "0,0,0.5,1"), "red"),
    ],
)
def test_a_device_looks_at_the_region_only(tmp_path, photos, capsys, own_signals, taught, options, said):
    exports = exports_with(tmp_path / "exports", 1, taught)
    place = ("--models", str(exports), "--source", str(photos), "--cpu", "--device-id", "test")
    assert main([*place, *options]) == 0
    out, err = capsys.readouterr()
    best = json.loads(out)["top"][0]
    assert (best["name"], best["confidence"] > 0.9) == (said, True)
    assert ("as it was taught" in err) == (not options)


def test_a_device_can_look_at_the_whole_picture_all_the_same(tmp_path, photos, capsys, own_signals):
    lines = []
    for number, (region, options) in enumerate([(None, ()), (RIGHT.to_list(), ("--region", "whole"))]):
        exports = exports_with(tmp_path / f"exports{number}", 1, region)
        place = ("--models", str(exports), "--source", str(photos), "--cpu", "--device-id", "test")
        assert main([*place, *options]) == 0
        lines.append(json.loads(capsys.readouterr().out))
    assert lines[0]["top"] == lines[1]["top"]


@pytest.mark.parametrize("text", ["", "left", "0.1,0.1,0.5", "0.6,0,0.5,0.5", "0,0,0.01,0.5", "nan,0,1,1"])
def test_a_bad_region_ends_the_device_command_with_2(tmp_path, photos, capsys, text):
    with pytest.raises(SystemExit) as ended:
        main(["--models", str(tmp_path), "--source", str(photos), f"--region={text}"])
    assert ended.value.code == 2
    assert "--region" in capsys.readouterr().err


@pytest.mark.parametrize("values", [[0, 0, 2, 2], "left", [0.1, 0.1, 0.5]])
def test_a_manifest_with_a_bad_region_is_refused(tmp_path, values):
    with pytest.raises(BadModel, match="region"):
        Classifier.load(exports_with(tmp_path / "exports", 1, values))


def test_a_model_that_says_another_region_than_its_manifest_is_refused(tmp_path):
    data = tiny_model(1, metadata=metadata_of(1) | {"region": json.dumps(LEFT.to_list())}).SerializeToString()
    publish(tmp_path / "exports", 1, data, manifest_of(data) | {"region": RIGHT.to_list()})
    with pytest.raises(BadModel, match="contradict each other on region"):
        Classifier.load(tmp_path / "exports")
