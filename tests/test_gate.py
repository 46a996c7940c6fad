"""The gate: what looks alike, what the learner is sure of, and what comes too fast stays out, and is counted."""

import math

import cv2
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from sklearn.datasets import load_sample_images

from edge_hpcr.common.errors import UserError
from edge_hpcr.stream.gate import Gate, hamming, perceptual_hash

DISTANCE = 6  # the default setting


@pytest.fixture(scope="module")
def photos() -> list[np.ndarray]:
    """Two photographs, and four different parts of each."""
    whole = [np.array(image) for image in load_sample_images().images]
    return whole + [image[y : y + 200, x : x + 300] for image in whole for y in (0, 200) for x in (0, 300)]


def scaled(image: np.ndarray, factor: float, plus: float) -> np.ndarray:
    return np.clip(image.astype(float) * factor + plus, 0, 255).astype(np.uint8)


def noisy(image: np.ndarray, strength: float, seed: int = 11) -> np.ndarray:
    random = np.random.default_rng(seed)
    return np.clip(image + random.normal(0, strength, image.shape), 0, 255).astype(np.uint8)


def through_jpeg(image: np.ndarray) -> np.ndarray:
    _, data = cv2.imencode(".jpg", np.ascontiguousarray(image[..., ::-1]), [cv2.IMWRITE_JPEG_QUALITY, 50])
    return np.ascontiguousarray(cv2.imdecode(data, cv2.IMREAD_COLOR)[..., ::-1])


CHANGES = {
    "brighter": lambda image: scaled(image, 1, 10),
    "darker": lambda image: scaled(image, 0.93, 0),
    "noise": lambda image: noisy(image, 8),
    "jpeg": through_jpeg,
    "moved by a pixel": lambda image: np.roll(image, 1, axis=1),
    "half the size": lambda image: cv2.resize(image, None, fx=0.5, fy=0.5, interpolation=cv2.INTER_AREA),
}


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES.keys())
def test_a_small_change_of_a_photo_stays_a_duplicate(photos, change):
    distances = [hamming(perceptual_hash(photo), perceptual_hash(change(photo))) for photo in photos]
    assert max(distances) <= DISTANCE
    assert np.mean(distances) < 2.5


def test_different_photos_are_far_apart(photos):
    hashes = [perceptual_hash(photo) for photo in photos]
    distances = [hamming(a, b) for n, a in enumerate(hashes) for b in hashes[:n]]
    assert min(distances) > 2 * DISTANCE
    assert 24 < np.mean(distances) < 40


def test_digits_survive_noise_and_hardly_any_is_taken_for_another(digits):
    images = digits.train_images[:200]
    hashes = [perceptual_hash(image) for image in images]
    noise = [hamming(a, perceptual_hash(noisy(image, 5))) for a, image in zip(hashes, images, strict=True)]
    assert np.mean(np.array(noise) <= DISTANCE) > 0.98
    between = [hamming(a, b) for n, a in enumerate(hashes) for b in hashes[:n]]
    assert np.mean(np.array(between) <= DISTANCE) < 0.01


@pytest.mark.parametrize("size", [32, 480])
@pytest.mark.parametrize("grey", [0, 60, 140, 255])
def test_noise_on_an_even_wall_does_not_hash_at_random(grey, size):
    wall = np.full((size, size, 3), grey, np.uint8)
    hashes = [perceptual_hash(noisy(wall, 4, seed)) for seed in range(10)]
    assert max(hamming(perceptual_hash(wall), other) for other in hashes) <= 1


def test_even_cards_of_different_colours_are_not_duplicates():
    colours = [(200, 20, 20), (20, 180, 20), (20, 20, 220), (230, 220, 30), (250, 250, 250), (10, 10, 10)]
    hashes = [perceptual_hash(np.full((64, 64, 3), colour, np.uint8)) for colour in colours]
    assert min(hamming(a, b) for n, a in enumerate(hashes) for b in hashes[:n]) > DISTANCE


def test_a_thing_in_another_colour_of_the_same_shape_and_lightness_is_not_a_duplicate(photos):
    views = []
    for colour in ((200, 60, 60), (40, 133, 40)):
        view = photos[0].copy()
        cv2.circle(view, (320, 213), 110, colour, -1)
        views.append(perceptual_hash(view))
    assert hamming(*views) > DISTANCE


def test_any_shape_can_be_hashed():
    random = np.random.default_rng(4)
    for shape in ((1, 1, 3), (1, 50_000, 3), (3000, 2, 3), (7, 9, 3)):
        assert 0 <= perceptual_hash(random.integers(0, 256, shape, dtype=np.uint8)) < 2**64
    view = random.integers(0, 256, (40, 40, 3), dtype=np.uint8)[:, ::-1]
    assert perceptual_hash(view) == perceptual_hash(view.copy())


@given(st.integers(0, 2**64 - 1), st.sets(st.integers(0, 63)))
def test_the_distance_is_the_number_of_bits_that_were_flipped(code, flipped):
    other = code
    for bit in flipped:
        other ^= 1 << bit
    assert hamming(code, other) == len(flipped)
    gate = Gate(distance=5, sure=2, stable=1, per_second=math.inf)
    gate.admit(code)
    assert gate.judge(other, None, 0.0) == ("duplicate" if len(flipped) <= 5 else "queue")


def different(count: int) -> list[int]:
    """Hashes that are all far from each other."""
    return [int(code) for code in np.random.default_rng(1).integers(0, 2**64, count, dtype=np.uint64)]


def test_a_frame_is_compared_with_what_was_queued_or_labelled_only():
    gate = Gate(distance=6, sure=2, stable=1, per_second=1)
    first, second, third, labelled = different(4)
    gate.admit(labelled)
    verdicts = [gate.judge(code, None, 0.0) for code in (first, first, second, third, third, labelled)]
    # The third came too fast and was not queued, so it is no duplicate when it comes again.
    assert verdicts == ["queue", "duplicate", "queue", "rate", "rate", "duplicate"]
    assert gate.judge(third, None, 1.0) == "queue"


def test_only_the_latest_hashes_are_remembered():
    gate = Gate(distance=0, sure=2, stable=1, per_second=math.inf, remember=3)
    codes = different(4)
    for code in codes:
        gate.admit(code)
    assert [gate.judge(code, None, 0.0) for code in codes[1:]] == ["duplicate"] * 3
    assert gate.judge(codes[0], None, 0.0) == "queue"


def test_nothing_is_a_duplicate_before_anything_was_queued_not_even_a_hash_of_zero():
    assert Gate(distance=64, sure=2, stable=1, per_second=1).judge(0, None, 0.0) == "queue"


def test_a_distance_of_minus_one_turns_duplicates_off_and_of_zero_means_equal_hashes():
    off, equal = (Gate(distance, sure=2, stable=1, per_second=math.inf) for distance in (-1, 0))
    assert [off.judge(7, None, 0.0) for _ in range(2)] == ["queue", "queue"]
    assert [equal.judge(code, None, 0.0) for code in (7, 7, 6)] == ["queue", "duplicate", "queue"]


def test_a_frame_is_skipped_once_the_learner_was_sure_of_one_class_for_long_enough():
    gate = Gate(distance=-1, sure=0.9, stable=3, per_second=math.inf)
    answers = [
        (1, 0.95),
        (1, 0.9),
        (1, 0.99),  # the third in a row
        (1, 0.97),
        (2, 0.99),  # another class: from the beginning
        (2, 0.99),
        (2, 0.89),  # not sure
        (2, 0.99),
        (2, 0.99),
        None,  # unknown
        (2, 0.99),
        (2, math.nan),
        (2, 0.99),
        (2, 0.99),
        (2, 0.99),
    ]
    verdicts = [gate.judge(code, answer, 0.0) for code, answer in zip(different(15), answers, strict=True)]
    assert [n for n, verdict in enumerate(verdicts) if verdict == "sure"] == [2, 3, 14]
    assert set(verdicts) == {"queue", "sure"}


def test_skipped_frames_count_for_being_stable():
    gate = Gate(distance=6, sure=0.9, stable=3, per_second=math.inf)
    code, other = different(2)
    assert [gate.judge(code, (5, 0.99), 0.0) for _ in range(2)] == ["queue", "duplicate"]
    assert gate.judge(other, (5, 0.99), 0.0) == "sure"


def test_one_stable_frame_is_enough_if_so_set_and_a_confidence_above_one_turns_it_off():
    assert Gate(-1, sure=0.9, stable=1, per_second=1).judge(1, (0, 0.9), 0.0) == "sure"
    assert Gate(-1, sure=1.01, stable=1, per_second=1).judge(1, (0, 1.0), 0.0) == "queue"


def queued_at(gate: Gate, times: list[float]) -> list[float]:
    codes = different(len(times))
    return [now for now, code in zip(times, codes, strict=True) if gate.judge(code, None, now) == "queue"]


def test_the_rate_holds_on_average_after_a_burst_of_two_seconds_worth():
    times = [1000 + n / 25 for n in range(250)]  # ten seconds
    entered = queued_at(Gate(distance=-1, sure=2, stable=1, per_second=2), times)
    assert entered[:4] == times[:4]
    assert len(entered) == 4 + 19  # and two in each second that follows


def test_a_quiet_hour_saves_up_no_more_than_one_burst():
    times = [0.0] + [3600.0] * 10
    assert queued_at(Gate(distance=-1, sure=2, stable=1, per_second=2), times) == times[:5]


def test_a_slow_rate_lets_single_frames_in():
    times = [n / 10 for n in range(320)]
    entered = queued_at(Gate(distance=-1, sure=2, stable=1, per_second=0.1), times)
    assert entered == pytest.approx([0, 10, 20, 30], abs=0.3)


def test_a_rate_of_zero_lets_nothing_in_and_an_infinite_one_everything():
    assert queued_at(Gate(-1, 2, 1, per_second=0), [0.0, 5.0, 1e9]) == []
    assert queued_at(Gate(-1, 2, 1, per_second=math.inf), [0.0] * 1000) == [0.0] * 1000


def test_a_clock_that_is_set_back_neither_opens_nor_blocks_the_gate():
    gate = Gate(distance=-1, sure=2, stable=1, per_second=1)
    times = [1000.0, 1000.0, 1000.0, 10.0, 10.0, 11.0, 11.0]
    verdicts = [gate.judge(code, None, now) for code, now in zip(different(7), times, strict=True)]
    assert verdicts == ["queue", "queue", "rate", "rate", "rate", "queue", "rate"]


def test_what_happened_is_counted_until_it_is_taken():
    gate = Gate(distance=6, sure=0.9, stable=1, per_second=1)
    codes = different(5)
    for code in (*codes[:2], codes[0], codes[1], codes[2]):
        gate.judge(code, None, 0.0)
    gate.judge(codes[3], (1, 0.99), 0.0)
    assert gate.take_counts() == {"queued": 2, "skipped_duplicate": 2, "skipped_rate": 1, "skipped_sure": 1}
    assert gate.take_counts() == {}


@pytest.mark.parametrize(
    "setting",
    [
        {"distance": -2},
        {"distance": 65},
        {"sure": -0.1},
        {"sure": math.nan},
        {"stable": 0},
        {"per_second": -1},
        {"per_second": math.nan},
        {"remember": 0},
    ],
    ids=str,
)
def test_a_setting_out_of_range_is_refused(setting):
    with pytest.raises(UserError):
        Gate(**{"distance": 6, "sure": 0.9, "stable": 5, "per_second": 2.0, **setting})
