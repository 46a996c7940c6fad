"""The demonstration: parts on a workbench, drawn by us."""

import numpy as np
import pytest

from edge_hpcr.stream.workbench import CLASSES, STAY, Film


def differ(one: np.ndarray, other: np.ndarray) -> float:
    """In grey levels, on average."""
    return float(np.abs(one.astype(int) - other).mean())


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
