"""A disk that is really full: a device goes on.

It is a small one of its own, in memory; mounting it needs root.
"""

import pytest
from device_parts import LOAD, frame_of, publish
from disk_parts import full_disk, small_disk
from fleet_parts import TOKEN, make_workspace, running

from export.device.health import Health
from export.device.hot_swap import HotSwap, HttpModels


@pytest.fixture
def disk(tmp_path):
    """A place on a disk that can be filled."""
    place = tmp_path / "disk"
    place.mkdir()
    with small_disk(place) as mounted:
        if not mounted:
            pytest.skip("mounting a small disk needs root")
        yield place


def test_a_device_whose_disk_is_full_says_so_once_and_takes_the_model_when_there_is_room(disk, tmp_path):
    workspace, said = make_workspace(tmp_path / "w"), []
    publish(workspace / "exports", 1)
    with running(workspace) as server:
        models = HttpModels(server.url, disk / "cache", TOKEN)
        swap = HotSwap(models, LOAD, Health("test", said.append))
        assert swap.first().info.version == 1
        publish(workspace / "exports", 2)
        with full_disk(disk / "w"):
            assert not swap.look() and not swap.look()
            assert swap.classifier.predict([frame_of("red")])[0].top[0].name == "red"
        (trouble,) = [line for line in said if "No space left" in line]
        assert "cannot keep models in" in trouble and "v1 stays in use" in trouble
        assert swap.look() and swap.classifier.info.version == 2
