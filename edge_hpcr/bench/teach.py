"""The benchmark of the product's own job: how many labels a class does a learner need?

One run is one contestant taught one draw of classes and pictures, and one JSON file. Within a draw every contestant is
taught the same pictures in the same order, and tested on the same others. A run takes minutes: one that was killed is
begun again, those that finished are not.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from edge_hpcr.bench.inputs import TIMED, Inputs, timed
from edge_hpcr.bench.pictures import Pictures
from edge_hpcr.bench.run import plain, versions
from edge_hpcr.common.allocator import keep_freed_memory
from edge_hpcr.common.errors import one_of
from edge_hpcr.common.files import locked, write_atomically
from edge_hpcr.learner.calibration import FEWEST_SAMPLES, calibrate
from edge_hpcr.learner.cross_validation import CrossValidation
from edge_hpcr.learner.learner import Learner, LearnerConfig, LossNotFinite, resolve_device
from edge_hpcr.workspace.settings import Settings

# Contestants without a trunk, and their methods.
FROM_SCRATCH = {"scratch": "hpcr", "edge": "edge"}
CONTESTANTS = ("ours", *FROM_SCRATCH, "ncm", "slda", "ranpac", "dense")
ORDERS = ("one_after_the_other", "shuffled")
NOVEL_CLASSES = 10
UNKNOWN_SHARE = Settings().unknown_share
TEST_SHARE = 0.25  # of the smallest class, at least: it limits the label counts


@dataclass(frozen=True)
class TeachConfig:
    """One run, completely."""

    source: str
    pictures: str  # the identity of the source's pictures
    contestant: str
    order: str
    draw: int
    seed: int
    classes: int
    labels: tuple[int, ...]  # a class: where accuracy is measured
    test: int  # pictures a class, at most
    steps: int  # of rehearsal after the labels
    averaged: bool  # predict with the averaged weights
    learner: LearnerConfig
    threads: int = 1
    device: str = "auto"
    label: str = ""  # what sets it apart from a plain run, for its name

    def __post_init__(self) -> None:
        one_of("order", self.order, ORDERS)
        one_of("contestant", self.contestant, CONTESTANTS)

    @property
    def name(self) -> str:
        setting = [self.source, f"{self.classes}classes", self.contestant, self.order]
        return "-".join(
            ["teach", *setting, *filter(None, [self.label]), f"seed{self.seed}", f"draw{self.draw}"]
        )


def label_counts(wanted: Sequence[int], pictures: Pictures) -> tuple[int, ...]:
    """Those of the label counts for which every class has pictures enough, with some left to test on."""
    _, smallest = pictures.smallest_class
    return tuple(count for count in sorted(set(wanted)) if count <= smallest * (1 - TEST_SHARE))


@dataclass(frozen=True)
class Draw:
    """What is taught and tested: indices of pictures."""

    classes: np.ndarray  # class ids in the order in which they are taught
    taught: np.ndarray  # [classes, labels]
    rounds: np.ndarray  # the same pictures in rounds of all classes, [labels, classes]
    tested: np.ndarray
    novel: np.ndarray  # of classes that are never taught

    @classmethod
    def of(cls, pictures: Pictures, config: TeachConfig) -> Draw:
        rng = np.random.default_rng([config.seed, config.draw])
        classes = rng.choice(len(pictures.class_names), config.classes, replace=False)
        own = [rng.permutation(np.flatnonzero(pictures.labels == c)) for c in classes]
        most = max(config.labels)
        taught = np.stack([each[:most] for each in own])
        rounds = np.stack([rng.permutation(each) for each in taught.T])
        tested = np.concatenate([each[most : most + config.test] for each in own])
        others = np.setdiff1d(np.arange(len(pictures.class_names)), classes)
        others = np.random.default_rng([config.seed, config.draw, 1]).permutation(others)[:NOVEL_CLASSES]
        foreign = [np.flatnonzero(pictures.labels == c)[: config.test] for c in others]
        return cls(classes, taught, rounds, tested, np.concatenate([*foreign, np.empty(0, np.int64)]))

    def lesson(self, order: str, labels: int) -> np.ndarray:
        """The pictures of so many labels a class, in the order in which they are taught."""
        return self.rounds[:labels].ravel() if order == "shuffled" else self.taught[:, :labels].ravel()


class Contestant(Protocol):
    """Learns labelled samples one at a time, and names others: images, or what the trunk said of them."""

    label_seconds: list[float]

    def teach(self, sample: np.ndarray, class_id: int) -> None: ...

    def practise(self) -> None:
        """What it does when all labels are there."""

    def predict(self, samples: np.ndarray) -> np.ndarray: ...

    def bytes(self) -> dict[str, int]:
        """What it keeps of the samples."""

    def calibrated(self) -> Calibrated | None:
        """Answers with the confidence that it states, where it states one."""


Calibrated = Callable[
    [np.ndarray], tuple[np.ndarray, np.ndarray]
]  # samples: the best class's confidence, unknown


class OnDevice:
    """A learner, taught as the live learner is: a step for each label, then rehearsal."""

    def __init__(self, config: TeachConfig) -> None:
        self.learner = Learner(config.learner, config.device)
        self._steps = config.steps
        self._averaged = config.averaged and self.learner.average is not None
        self.label_seconds: list[float] = []

    def teach(self, sample: np.ndarray, class_id: int) -> None:
        begun = time.perf_counter()
        self.learner.observe(sample[None], [class_id])
        self.label_seconds.append(time.perf_counter() - begun)

    def practise(self) -> None:
        with suppress(LossNotFinite):  # as the live learner, which then waits for another label
            for _ in range(self._steps):
                if self.learner.rehearse() is None:
                    break

    def predict(self, samples: np.ndarray) -> np.ndarray:
        return self.learner.predict(samples, averaged=self._averaged).best

    def calibrated(self) -> Calibrated | None:
        """As the live learner in a workspace that holds no labels back: by cross-validation over the memory."""
        if self.learner.network.backbone.trunk is None or not len(self.learner.memory):
            return None
        validation = CrossValidation(self.learner)
        while validation.advance():
            pass
        left_out = validation.result
        if left_out is None or left_out.weights.sum() < FEWEST_SAMPLES:
            return None
        calibration = calibrate(
            left_out.scores, left_out.similarity, left_out.columns, UNKNOWN_SHARE, left_out.weights
        )

        def say(samples: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
            said = self.learner.predict(samples, averaged=self._averaged)
            return calibration.confidences(said.scores).max(1), calibration.unknown(said.similarity)

        return say

    def bytes(self) -> dict[str, int]:
        return self.learner.byte_breakdown()


class DenseHead:
    """The offline rival: a dense head on the frozen trunk's features, trained anew on all labels at once.

    As Teachable Machine trains it by default: 100 units with ReLU, softmax, Adam, 50 epochs in batches of 16.
    """

    UNITS, RATE, EPOCHS, BATCH = 100, 1e-3, 50, 16

    def __init__(self, config: TeachConfig) -> None:
        self._untaught = Learner(config.learner, config.device)
        self._rng = torch.Generator().manual_seed(config.seed)
        self._features: list[Tensor] = []
        self._class_ids: list[int] = []
        self._head = nn.Sequential()
        self._known = np.zeros(0, np.int64)
        self.label_seconds: list[float] = []

    def teach(self, sample: np.ndarray, class_id: int) -> None:
        self._features.append(self._features_of(sample[None])[0])
        self._class_ids.append(class_id)

    @torch.no_grad()
    def _features_of(self, samples: np.ndarray) -> Tensor:
        """As the backbone makes them before it has learned anything."""
        inputs = self._untaught.encode(samples)
        if self._untaught.network.backbone.trunk is not None:
            inputs = inputs[:, 0]  # of the picture itself, not of augmented views
        return self._untaught.network.eval().features(self._untaught.to_device(inputs)).cpu()

    def practise(self) -> None:
        begun = time.perf_counter()
        self._known, targets = np.unique(self._class_ids, return_inverse=True)
        inputs, labels = torch.stack(self._features), torch.from_numpy(targets)
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(int(torch.randint(2**31, (), generator=self._rng)))
            self._head = nn.Sequential(
                nn.Linear(inputs.shape[1], self.UNITS), nn.ReLU(), nn.Linear(self.UNITS, len(self._known))
            )
            optimiser = torch.optim.Adam(self._head.parameters(), self.RATE)
            for _ in range(self.EPOCHS):
                for rows in torch.randperm(len(labels)).split(self.BATCH):
                    optimiser.zero_grad()
                    F.cross_entropy(self._head(inputs[rows]), labels[rows]).backward()
                    optimiser.step()
        self.label_seconds = [(time.perf_counter() - begun) / len(labels)] * len(labels)

    @torch.no_grad()
    def predict(self, samples: np.ndarray) -> np.ndarray:
        return self._known[self._head(self._features_of(samples)).argmax(1).numpy()]

    def calibrated(self) -> None:
        return None

    def bytes(self) -> dict[str, int]:
        kept = sum(each.nbytes for each in self._features)
        return {"features": kept, "total": kept}


def run(config: TeachConfig, pictures: Pictures, out: Path) -> dict[str, Any]:
    """Teach and test one contestant on one draw; the result is also on disk."""
    refusal = f"{config.name} is being run by another process; wait, or choose another --out"
    with locked(out / f"{config.name}.lock", refusal, remove=True):
        torch.set_num_threads(config.threads)
        keep_freed_memory()
        result = _taught(config, pictures)
        write_atomically(out / f"{config.name}.json", json.dumps(result, indent=1, allow_nan=False) + "\n")
        return result


def _taught(config: TeachConfig, pictures: Pictures) -> dict[str, Any]:
    begun = time.perf_counter()
    draw = Draw.of(pictures, config)
    inputs = Inputs(config.learner, pictures, config.device)
    truth = pictures.labels[draw.tested]
    contestant = _contestant(config)
    accuracy: dict[str, float] = {}
    honesty: dict[str, dict[str, float]] = {}
    test_then_train: dict[str, float] = {}
    done = 0
    for count in config.labels:
        lesson = draw.lesson(config.order, count)
        if config.order != "shuffled":  # more labels a class are another life, not a longer one
            contestant, done = _contestant(config), 0
        right = []
        for sample, class_id in zip(
            inputs[lesson[done:]], pictures.labels[lesson[done:]].tolist(), strict=True
        ):
            if done:  # every class was taught before
                right.append(contestant.predict(sample[None])[0] == class_id)
            contestant.teach(sample, class_id)
        if right:
            test_then_train[str(count)] = float(np.mean(right))
        done = len(lesson)
        contestant.practise()
        said = np.concatenate([contestant.predict(part) for part in inputs.batches(draw.tested)])
        accuracy[str(count)] = float((said == truth).mean())
        say = contestant.calibrated()
        if say is not None:
            honesty[str(count)] = _honesty(say, inputs, draw, said == truth)
    seconds = time.perf_counter() - begun
    trunk = inputs.pass_seconds(draw.tested)  # which was not repeated when a sample was taught
    return {
        "benchmark": "teach",
        "source": config.source,
        "contestant": config.contestant,
        "order": config.order,
        "draw": config.draw,
        "seed": config.seed,
        "classes": [pictures.class_names[c] for c in draw.classes],
        "accuracy": accuracy,
        "test_then_train": test_then_train,
        "honesty": honesty,
        "test_pictures": len(draw.tested),
        "bytes": contestant.bytes(),
        "label_ms": _percentiles(np.array(contestant.label_seconds) + trunk),
        "prediction_ms": _percentiles(timed(contestant.predict, inputs.images(draw.tested[:TIMED]))),
        "seconds": seconds,
        "config": plain(asdict(config)),
        "versions": versions(config.threads, str(resolve_device(config.device))),
        "finished": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
    }


def _honesty(say: Calibrated, inputs: Inputs, draw: Draw, right: np.ndarray) -> dict[str, float]:
    """How far stated confidence is from accuracy, and what is called unknown, rightly and by mistake."""
    parts = [say(part) for part in inputs.batches(draw.tested)]
    confidence, unknown = (np.concatenate(column) for column in zip(*parts, strict=True))
    found = {
        "calibration_error": calibration_error(confidence, right),
        "known_called_unknown": float(unknown.mean()),
    }
    if len(draw.novel):
        novel = np.concatenate([say(part)[1] for part in inputs.batches(draw.novel)])
        found["novel_called_unknown"] = float(novel.mean())
    return found


def calibration_error(confidence: np.ndarray, right: np.ndarray, bins: int = 10) -> float:
    """The expected calibration error: the mean distance of confidence from accuracy in bins of equal width.

    >>> calibration_error(np.array([0.95, 0.95]), np.array([True, False]))
    0.45
    """
    place = np.minimum((confidence * bins).astype(np.int64), bins - 1)
    gaps = np.bincount(place, confidence - right, bins)
    return float(np.abs(gaps).sum() / len(confidence))


def _contestant(config: TeachConfig) -> Contestant:
    return DenseHead(config) if config.contestant == "dense" else OnDevice(config)


def _percentiles(seconds: Any) -> dict[str, float]:
    p50, p95 = np.percentile(seconds, [50, 95]) * 1e3
    return {"p50": float(p50), "p95": float(p95)}
