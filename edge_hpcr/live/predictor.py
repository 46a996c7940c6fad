"""Answers from a copy of the weights, so that predicting never waits for a training step, nor disturbs one."""

from __future__ import annotations

import copy
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np
import torch

from edge_hpcr.learner.calibration import Calibration
from edge_hpcr.learner.learner import Learner, Prediction
from edge_hpcr.learner.trunk_session import fastest
from edge_hpcr.live.latents import LatentFile
from edge_hpcr.stream import Frame
from edge_hpcr.stream.resize import prepare
from edge_hpcr.workspace.selection import UNKNOWN

TOP = 3
LEAST_PRIORITY = 1e-12  # 0 is that of samples that nobody has ranked
SMALL_PIXELS = 64 * 64  # up to here a second core helps one image little


@dataclass(frozen=True)
class Answer:
    """What the learner says of one image."""

    top: tuple[tuple[int, float], ...]  # class id and calibrated confidence, the best first, three at most
    similarity: float  # to the nearest class
    unknown: bool  # no class is near
    calibrated: bool = True  # if not, nobody has compared its confidences with the truth

    @property
    def priority(self) -> float:
        """How much a label would tell: one minus the margin between the two best; more, if it is near to no class.

        Not the entropy: that grows with the number of classes, so that samples queued months apart could not be
        compared, and it cannot be had from the best three.
        """
        if self.unknown:
            return UNKNOWN  # all alike, because scores say nothing about strangers
        first, second = [*(confidence for _, confidence in self.top), 0.0, 0.0][:2]
        return min(1.0, max(LEAST_PRIORITY, 1 - (first - second)))

    @property
    def best(self) -> tuple[int, float] | None:
        return self.top[0] if self.top else None


NOTHING_KNOWN = Answer((), 0.0, True, calibrated=False)


class Predictor:
    """The newest weights that were handed over, and their calibration. Any thread may ask.

    It takes what `encoder` makes of pictures. `read` gives the image of a stored sample, `stored` what the trunk has said of
    samples.
    """

    def __init__(
        self, learner: Learner, read: Callable[[int], np.ndarray], stored: LatentFile | None = None
    ) -> None:
        self.learner = learner
        self.encoder = Encoder(learner, read, stored)
        self._lock = threading.Lock()
        self._network = copy.deepcopy(learner.network).eval().requires_grad_(False)
        self._class_ids: tuple[int, ...] = ()
        self.calibration = Calibration()
        self.refresh()

    def refresh(self) -> None:
        """Take over the learner's weights; called by the thread that trains, between two steps."""
        average = self.learner.average
        source = self.learner.network if average is None else average.network
        # Before the lock: class means take a pass over the memory.
        classify = self.learner.method.classifier(self.learner.view, source)
        state = {name: tensor.detach() for name, tensor in source.state_dict().items()}
        with self._lock, torch.no_grad():
            self._network.take_over(state)
            self._classify = classify
            self._class_ids = tuple(self.learner.class_ids)

    def predict(self, inputs: np.ndarray) -> Prediction:
        """Scores as the network gives them, before calibration."""
        count, plain = len(inputs), self.learner.view.plain(inputs)
        with self._lock, torch.inference_mode(), few_threads(inputs):
            if not self._class_ids:  # asked in the lock: the last class may be deleted at any moment
                return Prediction(np.zeros((count, 0)), np.zeros(count), np.zeros(0, np.int64))
            features = self._network.features(plain)
            scores = self._classify(features, plain).softmax(1).cpu().numpy()
            cosines = self._network.similarities(features)
            similarity = self._classify.similarity(cosines, plain).cpu().numpy()
            return Prediction(scores, similarity, np.array(self._class_ids, dtype=np.int64))

    def answer(self, inputs: np.ndarray) -> list[Answer]:
        """The three best classes of each image, or that it is unknown."""
        prediction = self.predict(inputs)
        if not len(prediction.class_ids):
            return [NOTHING_KNOWN] * len(inputs)
        calibration = self.calibration  # another thread may replace it
        confidences = calibration.confidences(prediction.scores)
        order = np.argsort(-confidences, axis=1, kind="stable")[:, :TOP]
        tops = [
            tuple((int(prediction.class_ids[c]), float(row[c])) for c in best)
            for row, best in zip(confidences, order, strict=True)
        ]
        unknown = calibration.unknown(prediction.similarity)
        said = zip(tops, prediction.similarity.tolist(), unknown.tolist(), strict=True)
        return [Answer(*each, calibration.is_measured) for each in said]

    def look(self, frame: Frame) -> Answer:
        """The same of a picture of any size."""
        return self.answer(self.encoder.of_frame(frame)[None])[0]


class Encoder:
    """What the trainable part sees of pictures: images of its size, or a trunk's latents of them.

    Any thread may ask. The trunk is frozen, so it runs beside a training step and waits for none. It sees a picture once:
    what it said stays with the frame, and with the sample that the frame becomes.
    """

    def __init__(
        self, learner: Learner, read: Callable[[int], np.ndarray], stored: LatentFile | None = None
    ) -> None:
        self._learner, self._read, self.stored = learner, read, stored
        trunk, config = learner.network.backbone.trunk, learner.config
        self._trunk = trunk and fastest(trunk, config.height, config.width, learner.device)

    def prepare(self, image: np.ndarray) -> np.ndarray:
        """A picture of any size as the learner takes it."""
        size = self._learner.config.height
        return prepare(image, (size, size))

    def encode(self, images: np.ndarray) -> np.ndarray:
        """Latents [N, 1, ...] of uint8 images [N, H, W, 3]; without a trunk the images themselves."""
        if self._trunk is None:
            return images
        with torch.inference_mode(), few_threads(images):
            return self._trunk(self._learner.to_device(images)).cpu().numpy()[:, None]

    def of_frame(self, frame: Frame) -> np.ndarray:
        if frame.seen is None or frame.seen[0] is not self:  # of the learner before a change of settings
            frame.seen = self, self.encode(self.prepare(frame.image)[None])[0]
        return frame.seen[1]

    def of_sample(self, sample_id: int) -> np.ndarray:
        latent = None if self.stored is None else self.stored.find(sample_id)
        if latent is not None:
            return latent[None]
        seen = self.encode(self.prepare(self._read(sample_id))[None])[0]
        if self.stored is not None:
            self.stored.keep(sample_id, seen[0])
        return seen

    def name(self, sample_id: int, frame: Frame) -> None:
        """This frame has become a sample: what the trunk said of it need not be asked again."""
        if self.stored is not None and frame.seen is not None and frame.seen[0] is self:
            self.stored.keep(sample_id, frame.seen[1][0])

    def forget(self, sample_id: int) -> None:
        if self.stored is not None:
            self.stored.forget(sample_id)

    def close(self) -> None:
        if self.stored is not None:
            self.stored.close()


@contextmanager
def few_threads(images: np.ndarray) -> Iterator[None]:
    """One thread for a small image: several wait for each other in every layer, and on busy cores that is most of it.

    The number belongs to the thread that calls; a learner beside it keeps its own.
    """
    before = torch.get_num_threads()
    small = images.ndim < 4 or images.shape[0] * images.shape[1] * images.shape[2] <= SMALL_PIXELS
    torch.set_num_threads(1 if small else before)
    try:
        yield
    finally:
        torch.set_num_threads(before)
