"""Answers from a copy of the weights, so that predicting never waits for a training step, nor disturbs one."""

from __future__ import annotations

import copy
import threading
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from edge_hpcr.learner.calibration import Calibration
from edge_hpcr.learner.learner import Learner, Prediction
from edge_hpcr.live.encoder import Encoder, few_threads
from edge_hpcr.workspace.label_queue import uncertainty

TOP = 3


@dataclass(frozen=True)
class Answer:
    """What the learner says of one image."""

    top: tuple[tuple[int, float], ...]  # class id and calibrated confidence, the best first, three at most
    similarity: float  # cosine to the nearest proxy
    unknown: bool  # no proxy is near
    calibrated: bool = True  # if not, nobody has compared its confidences with the truth

    @property
    def priority(self) -> float:
        """How much a label would tell."""
        scores = np.array([[confidence for _, confidence in self.top]])
        return float(uncertainty(scores, np.array([self.unknown]))[0])

    @property
    def best(self) -> tuple[int, float] | None:
        return self.top[0] if self.top else None


NOTHING_KNOWN = Answer((), 0.0, True, calibrated=False)


class Predictor:
    """The newest weights that were handed over, and their calibration. Any thread may ask.

    It takes uint8 images, or what `encoder` or the memory has of them.
    """

    def __init__(self, learner: Learner, averaged: bool) -> None:
        self._learner = learner
        self._averaged = averaged and learner.average is not None
        self.encoder = Encoder(learner)
        self._lock = threading.Lock()
        self._network = copy.deepcopy(learner.network).eval().requires_grad_(False)
        self._class_ids: tuple[int, ...] = ()
        self.calibration = Calibration()
        self.refresh()

    @property
    def image_size(self) -> int:
        """The side of the images that it takes, in pixels."""
        return self._learner.config.height

    def refresh(self) -> None:
        """Take over the learner's weights; called by the thread that trains, between two steps."""
        average = self._learner.average
        source = average.network if self._averaged and average is not None else self._learner.network
        # Before the lock: class means take a pass over the memory.
        classify = self._learner.method.classifier(self._learner.view, source)
        state = {name: tensor.detach() for name, tensor in source.state_dict().items()}
        with self._lock, torch.no_grad():
            self._network.take_over(state)
            self._classify = classify
            self._class_ids = tuple(self._learner.class_ids)

    def predict(self, inputs: np.ndarray) -> Prediction:
        """Scores as the network gives them, before calibration."""
        count = len(inputs)
        plain = self._plain(inputs)
        with self._lock, torch.inference_mode(), few_threads(inputs):
            if not self._class_ids:  # asked in the lock: the last class may be deleted at any moment
                return Prediction(np.zeros((count, 0)), np.zeros(count), np.zeros(0, np.int64))
            features = self._network.features(plain)
            scores = self._classify(features).softmax(1).cpu().numpy()
            similarity = self._network.similarities(features).amax(1).cpu().numpy()
            return Prediction(scores, similarity, np.array(self._class_ids, dtype=np.int64))

    def features(self, inputs: np.ndarray) -> np.ndarray:
        plain = self._plain(inputs)
        with self._lock, torch.inference_mode():
            return self._network.features(plain).cpu().numpy()

    def _plain(self, inputs: np.ndarray) -> Tensor:
        """The samples themselves on the device, not their stored views; outside the lock, since a trunk takes time."""
        if inputs.dtype == np.uint8:
            inputs = self.encoder.encode(inputs)
        return self._learner.view.plain(inputs)

    def proxies(self) -> tuple[np.ndarray, np.ndarray]:
        """A copy of the classes' proxies, and the classes' ids."""
        with self._lock:
            return self._network.proxies.detach().cpu().numpy().copy(), np.array(self._class_ids, np.int64)

    def answer(self, inputs: np.ndarray) -> list[Answer]:
        """The three best classes of each image, or that it is unknown."""
        prediction = self.predict(inputs)
        if not len(prediction.class_ids):
            return [NOTHING_KNOWN] * len(inputs)
        return to_answers(prediction, self.calibration)


def to_answers(prediction: Prediction, calibration: Calibration) -> list[Answer]:
    confidences = calibration.confidences(prediction.scores)
    order = np.argsort(-confidences, axis=1, kind="stable")[:, :TOP]
    unknown = calibration.unknown(prediction.similarity)
    tops = [
        tuple((int(prediction.class_ids[c]), float(row[c])) for c in best)
        for row, best in zip(confidences, order, strict=True)
    ]
    return [
        Answer(top, similarity, none_near, calibration.is_measured)
        for top, similarity, none_near in zip(
            tops, prediction.similarity.tolist(), unknown.tolist(), strict=True
        )
    ]
