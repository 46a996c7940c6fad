"""The one resize rule: exact where it can be, the middle of the frame where it must choose."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from edge_hpcr.stream.resize import RESIZE_RULE, check_rule, prepare

sides = st.integers(1, 70)


def noise(height: int, width: int, channels: int = 3) -> np.ndarray:
    return np.random.default_rng(3).integers(0, 256, (height, width, channels), dtype=np.uint8)


def test_a_frame_of_the_right_size_is_not_touched():
    frame = noise(32, 48)
    prepared = prepare(frame, (32, 48))
    np.testing.assert_array_equal(prepared, frame)
    prepared[:] = 0  # and it is nobody else's memory
    assert frame.any()


def test_a_frame_of_the_same_height_is_cut_in_the_middle_and_not_resampled():
    frame = noise(32, 48)
    np.testing.assert_array_equal(prepare(frame, (32, 32)), frame[:, 8:40])
    upright = frame.transpose(1, 0, 2)
    np.testing.assert_array_equal(prepare(upright, (32, 32)), upright[8:40])


def test_shrinking_averages_areas():
    frame = noise(64, 96)
    areas = frame[:, 16:80].reshape(16, 4, 16, 4, 3).mean((1, 3))
    np.testing.assert_allclose(prepare(frame, (16, 16)), areas, atol=0.51)


def test_growing_is_linear_and_stays_within_the_range_of_the_frame():
    frame = np.array([[0, 100], [0, 100]], np.uint8)
    grown = prepare(frame, (8, 8))
    np.testing.assert_allclose(grown[0, :, 0], [0, 0, 12.5, 37.5, 62.5, 87.5, 100, 100], atol=0.51)
    np.testing.assert_array_equal(grown, np.broadcast_to(grown[:1], grown.shape))


def test_nothing_is_stretched():
    frame = np.zeros((60, 200, 3), np.uint8)
    frame[20:40, 90:110] = 255  # a square in the middle stays one
    prepared = prepare(frame, (30, 30))[..., 0] > 127
    assert prepared.any(0).sum() == prepared.any(1).sum() == 10
    assert prepared[10:20, 10:20].all()


def test_a_grey_frame_gets_three_equal_channels():
    grey = noise(40, 40)[..., 0]
    np.testing.assert_array_equal(prepare(grey, (20, 20)), prepare(np.dstack([grey] * 3), (20, 20)))


def test_a_mirrored_view_of_a_frame_can_be_prepared():
    frame = noise(64, 64)
    np.testing.assert_array_equal(prepare(frame[:, ::-1], (16, 16)), prepare(frame[:, ::-1].copy(), (16, 16)))


@given(sides, sides, sides, sides)
def test_any_frame_fits_any_size(height, width, to_height, to_width):
    frame = np.full((height, width, 3), 77, np.uint8)
    prepared = prepare(frame, (to_height, to_width))
    assert prepared.shape == (to_height, to_width, 3) and prepared.dtype == np.uint8
    assert prepared.flags.c_contiguous and (prepared == 77).all()


@pytest.mark.parametrize(
    "frame",
    [
        np.zeros((4, 4, 4), np.uint8),  # RGBA: somebody must decide what is behind it
        np.zeros((4, 4, 1), np.uint8),
        np.zeros((1, 4, 4, 3), np.uint8),
        np.zeros(4, np.uint8),
        np.zeros((0, 4, 3), np.uint8),
        np.zeros((4, 0), np.uint8),
        np.zeros((4, 4, 3), np.float32),
        np.zeros((4, 4, 3), np.int8),
    ],
)
def test_what_is_not_a_frame_is_refused(frame):
    with pytest.raises(ValueError, match="a frame must be uint8 RGB"):
        prepare(frame, (8, 8))


def test_a_size_without_pixels_is_refused():
    for size in ((0, 8), (8, 0), (-1, 8)):
        with pytest.raises(ValueError, match="pixels large"):
            prepare(np.zeros((4, 4, 3), np.uint8), size)


def test_only_a_known_rule_is_accepted():
    check_rule(RESIZE_RULE)
    with pytest.raises(ValueError, match="unknown resize rule 'stretch'"):
        check_rule("stretch")
