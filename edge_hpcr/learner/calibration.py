"""Confidence that means something, and the line below which an image is *unknown*: both set from held-out samples."""

from dataclasses import dataclass

import numpy as np

FEWEST_SAMPLES = 20  # fewer say too little: then nothing is corrected and nothing is called unknown
COLDEST, HOTTEST = 0.05, 20.0
# Of the logarithm of the temperature, before anything was measured. Twenty right answers would otherwise make it certain.
USUAL_SPREAD = 0.5


@dataclass(frozen=True)
class Calibration:
    """`temperature` divides the logits before the softmax; below `unknown_below` no proxy counts as near."""

    temperature: float = 1.0
    unknown_below: float | None = None
    samples: int = 0  # that it rests on

    @property
    def is_measured(self) -> bool:
        """Whether it rests on enough samples; before that nobody can say how sure an answer is."""
        return self.samples >= FEWEST_SAMPLES

    def confidences(self, scores: np.ndarray) -> np.ndarray:
        """
        >>> Calibration(temperature=2.0).confidences(np.array([[0.9, 0.1]])).round(2).tolist()
        [[0.75, 0.25]]
        """
        return _sharpened(scores, self.temperature)

    def unknown(self, similarity: np.ndarray) -> np.ndarray:
        if self.unknown_below is None:
            return np.zeros(len(similarity), dtype=bool)
        return similarity < self.unknown_below


def calibrate(
    scores: np.ndarray, similarity: np.ndarray, columns: np.ndarray, unknown_share: float
) -> Calibration:
    """From what the learner says of samples that it was not trained on, and their true columns.

    The temperature makes the held-out labels most likely (Guo et al., 2017), and is near 1 while they are few. The *unknown*
    line leaves `unknown_share` of held-out samples below it: that share of things it has been taught will be called unknown.
    """
    count = len(columns)
    if count < FEWEST_SAMPLES:
        return Calibration(samples=count)
    # Of so many samples the k-th lowest has k / (count + 1) of all that will come below it, on average.
    ranks = np.arange(1, count + 1)
    threshold = float(np.interp(unknown_share * (count + 1), ranks, np.sort(similarity)))
    if scores.shape[1] < 2:
        return Calibration(1.0, threshold, count)

    from scipy.optimize import minimize_scalar  # half a second, which no start has to wait for

    def loss(log_temperature: float) -> float:
        likely = _sharpened(scores, float(np.exp(log_temperature)))[np.arange(len(columns)), columns]
        surprise = -float(np.log(np.maximum(likely, 1e-12)).sum())
        return surprise + (log_temperature / USUAL_SPREAD) ** 2 / 2

    best = minimize_scalar(loss, bounds=(np.log(COLDEST), np.log(HOTTEST)), method="bounded")
    return Calibration(float(np.exp(best.x)), threshold, count)


def _sharpened(scores: np.ndarray, temperature: float) -> np.ndarray:
    logits = np.log(np.maximum(scores, 1e-30)) / temperature
    powers = np.exp(logits - logits.max(1, keepdims=True))
    return powers / powers.sum(1, keepdims=True)
