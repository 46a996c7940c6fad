"""The demonstration: parts on a workbench, drawn by us."""

from itertools import pairwise

import numpy as np
import pytest

from edge_hpcr.stream import open_stream
from edge_hpcr.stream.gate import Gate, perceptual_hash
from edge_hpcr.stream.workbench import CLASSES, STAY, Film, Workbench, picture
from edge_hpcr.stream.workbench.parts import CLUTTER, PARTS
from edge_hpcr.workspace.settings import Settings


def differ(one: np.ndarray, other: np.ndarray) -> float:
    """In grey levels, on average."""
    return float(np.abs(one.astype(int) - other).mean())


@pytest.mark.slow
@pytest.mark.parametrize("name", CLASSES)
def test_every_specimen_of_a_part_is_whole(name):
    for seed in range(6):
        height = PARTS[name](np.random.default_rng(seed)).height
        border = np.concatenate([height[0], height[-1], height[:, 0], height[:, -1]])
        assert np.isfinite(height).all() and not border.any()
        assert 0.03 < (height > 0).mean() < 0.8


@pytest.mark.slow
def test_a_film_depends_on_its_seed_alone():
    one, other = Film(3), Film(3)
    later = one.frame(STAY + 20)
    np.testing.assert_array_equal(one.frame(5), other.frame(5))
    np.testing.assert_array_equal(later, other.frame(STAY + 20))  # whatever was shown in between
    assert differ(Film(4).frame(5), one.frame(5)) > 5
    assert later.shape == (480, 640, 3) and later.dtype == np.uint8


def test_every_class_comes_once_a_round():
    film = Film(0)
    shown = [film.shows(visit * STAY) for visit in range(3 * len(CLASSES))]
    rounds = [shown[start : start + len(CLASSES)] for start in range(0, len(shown), len(CLASSES))]
    assert all(sorted(each) == sorted(CLASSES) for each in rounds)
    assert rounds[0] != rounds[1]
    assert {film.shows(number) for number in range(STAY)} == {shown[0]}


@pytest.mark.slow
def test_a_part_moves_a_little_from_frame_to_frame_and_the_gate_lets_it_pass_as_it_moves():
    film, settings = Film(1), Settings()
    frames = [film.frame(number) for number in range(STAY)]
    steps = [differ(one, other) for one, other in pairwise(frames)]
    assert min(steps) > 0 and max(steps[6:-6]) < 15  # but for the frames in which it comes and goes
    gate = Gate(settings.gate_distance, settings.gate_sure, settings.gate_stable, settings.gate_per_second)
    verdicts = [gate.judge(perceptual_hash(image), None, number / 8) for number, image in enumerate(frames)]
    assert verdicts.count("queue") >= 3 and verdicts.count("duplicate") >= 3


@pytest.mark.slow
def test_with_labels_each_frame_is_another_part_and_says_its_class():
    frames = [Workbench("folders", seed=2)._frame(number) for number in range(4)]
    assert [frame.label for frame in frames] == [Film(2).shows(number * STAY) for number in range(4)]
    assert len({frame.digest for frame in frames}) == 4
    assert Workbench(seed=2)._frame(0).label is None


@pytest.mark.slow
def test_pictures_of_a_class_are_of_different_parts_and_the_same_each_time():
    first, second = (picture("gear", number, seed=5) for number in range(2))
    assert first.shape == (480, 640, 3) and differ(first, second) > 5
    np.testing.assert_array_equal(picture("gear", 0, seed=5), first)
    assert differ(picture("nut", 0, seed=5), first) > 5


@pytest.mark.slow
def test_the_source_is_another_film_each_time_unless_a_seed_is_named():
    images = {}
    for spec in ("workbench", "workbench:7"):
        for time in range(2):
            with open_stream(spec) as stream:
                images[spec, time] = stream._frame(9).image
    assert differ(images["workbench", 0], images["workbench", 1]) > 5
    np.testing.assert_array_equal(images["workbench:7", 0], images["workbench:7", 1])


def test_the_source_says_what_it_shows():
    with open_stream("workbench:7") as stream:
        assert stream.state().message == f"live, 8.0 frames/s, now a {Film(7).shows(0)}"
    assert stream.state().phase == "closed"


@pytest.mark.parametrize("thing", CLUTTER)
def test_clutter_can_be_drawn(thing):
    shape = thing(np.random.default_rng(0))
    assert np.isfinite(shape.height).all() and (shape.height > 0).any()
    assert all(where.shape == shape.height.shape for where, _ in shape.paint)
