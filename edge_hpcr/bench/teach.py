"""The benchmark of the product's own job: how many labels per class does a learner need?

One run is one contestant taught one draw of classes and pictures, and one JSON file. Within a draw every contestant is
taught the same pictures in the same order, and tested on the same others. A run takes minutes: one that was killed is
begun again, those that finished are not.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from edge_hpcr.bench.inputs import TIMED, Inputs, Pictures, timed
from edge_hpcr.bench.report import NOTHING, Estimate, Together, by, machines, markdown
from edge_hpcr.bench.run import plain, versions
from edge_hpcr.common.errors import UserError, one_of
from edge_hpcr.common.files import locked, write_atomically
from edge_hpcr.common.units import format_bytes
from edge_hpcr.learner.device import keep_freed_memory
from edge_hpcr.learner.learner import Learner, LearnerConfig, LossNotFinite, resolve_device

# Contestants without a trunk, and their methods.
FROM_SCRATCH = {"scratch": "hpcr", "edge": "edge"}
CONTESTANTS = ("ours", *FROM_SCRATCH, "hpcr", "ncm", "slda", "ranpac", "dense")
ONE_ORDER = "one_after_the_other"  # in the names of files: earlier versions had others beside it
TEST_SHARE = 0.25  # of the smallest class, at least: it limits the label counts
EXPLANATION = """\
`bench teach`: top-1 accuracy in percent on pictures never shown, by the number of labels per class: the mean over n draws of
classes and pictures, and the half-width of its 95 % confidence interval. Within a draw every contestant was taught the same
pictures in the same order. A label's time is from the picture to the end of its training step (for `dense`, the whole
training divided by the labels). A prediction's time is that of one picture. Both include the trunk. *Kept* are the bytes kept of
the samples at the largest number of labels."""
LEADS = "Differences, paired by draw. Bold: larger than the interval."
_CONDITIONS = ("source", "pictures", "classes", "labels", "test")


@dataclass(frozen=True)
class TeachConfig:
    """One run, completely."""

    source: str
    pictures: str  # the identity of the source's pictures
    contestant: str
    draw: int
    seed: int
    classes: int
    labels: tuple[int, ...]  # a class: where accuracy is measured
    test: int  # pictures per class, at most
    steps: int  # of rehearsal after the labels
    averaged: bool  # predict with the averaged weights
    learner: LearnerConfig
    threads: int = 1
    device: str = "auto"
    label: str = ""  # what sets it apart from a plain run, for its name

    def __post_init__(self) -> None:
        one_of("contestant", self.contestant, CONTESTANTS)

    @property
    def name(self) -> str:
        setting = [self.source, f"{self.classes}classes", self.contestant, ONE_ORDER]
        return "-".join(
            ["teach", *setting, *filter(None, [self.label]), f"seed{self.seed}", f"draw{self.draw}"]
        )


def label_counts(wanted: Iterable[int], pictures: Pictures) -> tuple[int, ...]:
    """Those of the label counts for which every class has pictures enough, with some left to test on; the others are named."""
    name, size = pictures.smallest_class
    few = f"class {name} of {pictures.name} has {size} pictures, some of which must be left to test on"
    wanted = sorted(set(wanted))
    counts = tuple(count for count in wanted if count <= size * (1 - TEST_SHARE))
    if not counts:
        raise UserError(f"--labels {wanted[0]}: {few}; give fewer labels, or more pictures")
    if left_out := wanted[len(counts) :]:
        print(f"left out: {', '.join(map(str, left_out))} labels per class: {few}", file=sys.stderr)
    return counts


@dataclass(frozen=True)
class Draw:
    """What is taught and tested: indices of pictures."""

    classes: np.ndarray  # class ids in the order in which they are taught
    taught: np.ndarray  # [classes, labels]
    tested: np.ndarray

    @classmethod
    def of(cls, pictures: Pictures, config: TeachConfig) -> Draw:
        rng = np.random.default_rng([config.seed, config.draw])
        classes = rng.choice(len(pictures.class_names), config.classes, replace=False)
        own = [rng.permutation(np.flatnonzero(pictures.labels == c)) for c in classes]
        most = max(config.labels)
        taught = np.stack([each[:most] for each in own])
        tested = np.concatenate([each[most : most + config.test] for each in own])
        return cls(classes, taught, tested)

    def lesson(self, labels: int) -> np.ndarray:
        """The pictures of so many labels per class: all of a class, then those of the next."""
        return self.taught[:, :labels].ravel()


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
    accuracy: dict[str, float] = {}
    for count in config.labels:
        lesson = draw.lesson(count)
        contestant = _contestant(config)  # more labels per class are another life, not a longer one
        for sample, class_id in zip(inputs[lesson], pictures.labels[lesson].tolist(), strict=True):
            contestant.teach(sample, class_id)
        contestant.practise()
        said = np.concatenate([contestant.predict(part) for part in inputs.batches(draw.tested)])
        accuracy[str(count)] = float((said == truth).mean())
    seconds = time.perf_counter() - begun
    trunk = inputs.pass_seconds(draw.tested)  # which was not repeated when a sample was taught
    return {
        "benchmark": "teach",
        "source": config.source,
        "contestant": config.contestant,
        "order": ONE_ORDER,
        "draw": config.draw,
        "seed": config.seed,
        "classes": [pictures.class_names[c] for c in draw.classes],
        "accuracy": accuracy,
        "test_pictures": len(draw.tested),
        "bytes": contestant.bytes(),
        "label_ms": _percentiles(np.array(contestant.label_seconds) + trunk),
        "prediction_ms": _percentiles(timed(contestant.predict, inputs.images(draw.tested[:TIMED]))),
        "seconds": seconds,
        "config": plain(asdict(config)),
        "versions": versions(config.threads, str(resolve_device(config.device))),
        "finished": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
    }


def _contestant(config: TeachConfig) -> OnDevice | DenseHead:
    return DenseHead(config) if config.contestant == "dense" else OnDevice(config)


def _percentiles(seconds: Any) -> dict[str, float]:
    p50, p95 = np.percentile(seconds, [50, 95]) * 1e3
    return {"p50": float(p50), "p95": float(p95)}


# The report -----------------------------------------------------------------------------------------------------------


class Lessons(Together):
    """One contestant's runs, which differ in nothing but the draw."""

    def __init__(self, results: Sequence[dict[str, Any]]) -> None:
        super().__init__(results)
        config = self.results[0]["config"]
        self.setting = config["label"].removeprefix("validation").strip("-")  # what sets it apart
        self.title = f"{config['contestant']} ({self.setting})" if self.setting else config["contestant"]
        self.order = CONTESTANTS.index(config["contestant"]), self.title
        self.conditions = tuple(
            str(config[key]) for key in _CONDITIONS
        )  # lessons compare if they agree in these
        self.counts: list[int] = config["labels"]
        # Whether its pictures were training pictures.
        self.validates = "-train" in config["pictures"] or "train-pictures" in config["source"]
        source = config["source"] + (" (training pictures)" if config["pictures"].endswith("-train") else "")
        self.heading = f"{source}: {config['classes']} classes per draw, {ONE_ORDER.replace('_', ' ')}"

    def accuracies(self, labels: int) -> list[float]:
        return [result["accuracy"][str(labels)] for result in self.results]

    def above(self, other: Lessons, labels: int) -> str:
        """By how much it is better, on the draws that both have; bold where that is more than its interval."""
        ours, theirs = (
            {(run["seed"], run["draw"]): run["accuracy"][str(labels)] for run in one.results}
            for one in (self, other)
        )
        gain = Estimate.of([ours[draw] - theirs[draw] for draw in ours.keys() & theirs.keys()])
        certain = gain.mean is not None and gain.half is not None and abs(gain.mean) > gain.half
        return f"**{gain.signed}**" if certain else gain.signed


def lesson_key(result: dict[str, Any]) -> str:
    """The same for the draws of one contestant."""
    config = {"order": ONE_ORDER} | result["config"] | {"draw": None, "seed": None}
    learner = plain(asdict(LearnerConfig.from_dict(config["learner"])))
    return json.dumps(config | {"learner": learner | {"seed": None}}, sort_keys=True)


def group(results: Iterable[dict[str, Any]]) -> list[list[Lessons]]:
    """The contestants that compare, together."""
    contestants = map(Lessons, by(results, lesson_key).values())
    sections = by(contestants, lambda one: one.conditions)
    return [sorted(sections[key], key=lambda one: one.order) for key in sorted(sections)]


def table(results: Iterable[dict[str, Any]]) -> str:
    return "\n\n".join(map(section, group(results)))


def section(contestants: Sequence[Lessons]) -> str:
    """One source: accuracy over labels per class, then cost."""
    counts = contestants[0].counts
    labels = [f"{count} label{'s' if count > 1 else ''}" for count in counts]
    accuracy = [
        [one.title, one.n, *(Estimate.of(one.accuracies(count)).text for count in counts)]
        for one in contestants
    ]
    leads = [
        [first.title, one.title, *(first.above(one, count) for count in counts)]
        for first, *others in by(contestants, lambda one: one.setting).values()
        for one in others
    ]
    return "\n\n".join(
        [
            f"## {contestants[0].heading}",
            f"Accuracy after so many labels per class, on {contestants[0].mean('test_pictures'):,.0f} test pictures per draw:",
            markdown(["contestant", "n", *labels], accuracy, left=1),
            *([LEADS, markdown(["contestant", "minus", *labels], leads)] if leads else []),
            "Cost, mean over the draws:",
            markdown(
                ["contestant", "label ms p50, p95", "prediction ms p50, p95", "kept"],
                [_cost(one) for one in contestants],
                left=1,
            ),
            machines(contestants),
        ]
    )


def _cost(one: Lessons) -> list[str]:
    kept = one.mean("bytes", "total")
    return [
        one.title,
        one.percentiles("label_ms", 1),
        one.percentiles("prediction_ms", 1),
        format_bytes(kept) if kept else NOTHING,
    ]
