"""The gate: what looks alike, what the learner is sure of, and what comes too fast stays out."""

import math

import cv2
import numpy as np
import pytest
from sklearn.datasets import load_sample_images

from edge_hpcr.stream.gate import Gate, hamming, perceptual_hash

DISTANCE = 6  # the default setting


@pytest.fixture(scope="module")
def photos() -> list[np.ndarray]:
    """Two photographs, and four different parts of each."""
    whole = [np.array(image) for image in load_sample_images().images]
    return whole + [image[y : y + 200, x : x + 300] for image in whole for y in (0, 200) for x in (0, 300)]


def noisy(image: np.ndarray, strength: float, seed: int = 11) -> np.ndarray:
    random = np.random.default_rng(seed)
    return np.clip(image + random.normal(0, strength, image.shape), 0, 255).astype(np.uint8)


def through_jpeg(image: np.ndarray) -> np.ndarray:
    _, data = cv2.imencode(".jpg", np.ascontiguousarray(image[..., ::-1]), [cv2.IMWRITE_JPEG_QUALITY, 50])
    return np.ascontiguousarray(cv2.imdecode(data, cv2.IMREAD_COLOR)[..., ::-1])


CHANGES = {
    "brighter": lambda image: cv2.add(image, (10, 10, 10, 0)),
    "noise": lambda image: noisy(image, 8),
    "jpeg": through_jpeg,
    "half the size": lambda image: cv2.resize(image, None, fx=0.5, fy=0.5, interpolation=cv2.INTER_AREA),
}


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES.keys())
def test_a_small_change_of_a_photo_stays_a_duplicate(photos, change):
    distances = [hamming(perceptual_hash(photo), perceptual_hash(change(photo))) for photo in photos]
    assert max(distances) <= DISTANCE
    assert np.mean(distances) < 2.5


@pytest.mark.parametrize("grey", [0, 140])
def test_noise_on_an_even_wall_does_not_hash_at_random(grey):
    wall = np.full((480, 480, 3), grey, np.uint8)
    hashes = [perceptual_hash(noisy(wall, 4, seed)) for seed in range(10)]
    assert max(hamming(perceptual_hash(wall), other) for other in hashes) <= 1


def different(count: int) -> list[int]:
    """Hashes that are all far from each other."""
    return [int(code) for code in np.random.default_rng(1).integers(0, 2**64, count, dtype=np.uint64)]


def test_a_frame_is_compared_with_what_was_queued_or_labelled_only():
    gate = Gate(distance=6, sure=2, stable=1, per_second=1)
    first, second, third, labelled = different(4)
    gate.admit(labelled)
    verdicts = []
    for code in (first, first, second, third, third, labelled):
        verdicts.append(gate.judge(code, None, 0.0))
        if verdicts[-1] == "queue":
            gate.admit(code)
    # The third came too fast and was not queued, so it is no duplicate when it comes again.
    assert verdicts == ["queue", "duplicate", "queue", "rate", "rate", "duplicate"]
    assert gate.judge(third, None, 1.0) == "queue"


def test_a_frame_is_skipped_once_the_learner_was_sure_of_one_class_for_long_enough():
    gate = Gate(distance=-1, sure=0.9, stable=3, per_second=math.inf)
    answers = [(1, 0.95), (1, 0.9), (1, 0.99), (1, 0.97)]  # from the third in a row
    answers += [(2, 0.99), (2, 0.99), (2, 0.89)]  # another class: from the beginning; then not sure
    answers += [(2, 0.99), (2, 0.99), None]  # unknown
    answers += [(2, 0.99), (2, math.nan), (2, 0.99), (2, 0.99), (2, 0.99)]
    verdicts = [gate.judge(code, answer, 0.0) for code, answer in zip(different(15), answers, strict=True)]
    assert [n for n, verdict in enumerate(verdicts) if verdict == "sure"] == [2, 3, 14]
    assert set(verdicts) == {"queue", "sure"}


def test_the_rate_holds_on_average_after_a_burst_of_two_seconds_worth():
    times = [1000 + n / 25 for n in range(250)]  # ten seconds
    gate = Gate(distance=-1, sure=2, stable=1, per_second=2)
    frames = zip(times, different(len(times)), strict=True)
    entered = [now for now, code in frames if gate.judge(code, None, now) == "queue"]
    assert entered[:4] == times[:4]
    assert len(entered) == 4 + 19  # and two in each second that follows
