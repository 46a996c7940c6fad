"""The one resize rule: exact where it can be, the middle of the frame where it must choose."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from edge_hpcr.stream.resize import prepare

sides = st.integers(1, 70)


def noise(height: int, width: int, channels: int = 3) -> np.ndarray:
    return np.random.default_rng(3).integers(0, 256, (height, width, channels), dtype=np.uint8)


def test_a_frame_of_the_same_height_is_cut_in_the_middle_and_not_resampled():
    frame = noise(32, 48)
    np.testing.assert_array_equal(prepare(frame, (32, 32)), frame[:, 8:40])
    upright = frame.transpose(1, 0, 2)
    np.testing.assert_array_equal(prepare(upright, (32, 32)), upright[8:40])


def test_shrinking_averages_areas():
    frame = noise(64, 96)
    areas = frame[:, 16:80].reshape(16, 4, 16, 4, 3).mean((1, 3))
    np.testing.assert_allclose(prepare(frame, (16, 16)), areas, atol=0.51)


def test_nothing_is_stretched():
    frame = np.zeros((60, 200, 3), np.uint8)
    frame[20:40, 90:110] = 255  # a square in the middle stays one
    prepared = prepare(frame, (30, 30))[..., 0] > 127
    assert prepared.any(0).sum() == prepared.any(1).sum() == 10
    assert prepared[10:20, 10:20].all()


@given(sides, sides, sides, sides)
def test_any_frame_fits_any_size(height, width, to_height, to_width):
    frame = np.full((height, width, 3), 77, np.uint8)
    prepared = prepare(frame, (to_height, to_width))
    assert prepared.shape == (to_height, to_width, 3) and prepared.dtype == np.uint8
    assert prepared.flags.c_contiguous and (prepared == 77).all()
