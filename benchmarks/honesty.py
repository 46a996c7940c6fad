"""`python -m benchmarks.honesty`: does confidence mean what it says, and *unknown* what it promises, also after bursts?

Real workspaces are taught ten classes, a label at a time in rounds of all classes, and asked after 3, 5, 10 and 20 labels a
class: once with a picture for each label, once with bursts, in which one picture is moved and lit a little differently from
frame to frame. They are asked about other pictures of the same classes, and about classes that they were never taught.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import product
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Annotated, Any

import cv2
import numpy as np
from tqdm import tqdm
from typer import Option

from benchmarks.runner import Facts, Out, check_writable, circumstances, keep_with_page
from edge_hpcr.bench import inputs as sources
from edge_hpcr.bench.inputs import Pictures
from edge_hpcr.bench.report import Estimate, markdown
from edge_hpcr.commands import cli
from edge_hpcr.live.live_learner import LiveLearner
from edge_hpcr.stream import Frame
from edge_hpcr.stream.gate import perceptual_hash
from edge_hpcr.workspace.workspace import Workspace

KINDS = ("single pictures", "bursts")
# Frames of one picture each; they end at the numbers of labels that are asked about.
BURSTS = (3, 2, 5, 5, 5)
SIDE, WINDOW = 128, 112  # pixels of a picture, and of the part that a frame shows
STEP, LIGHT = 3, 0.1  # by how much a frame differs from the one before: pixels, share
SURE = 0.9
MEASURED = (
    "accuracy",
    "right_called_unknown",
    "novel_called_unknown",
    "wrong_confidence",
    "wrong_and_sure",
    "calibration_error",
)


CLASSES = NOVEL_CLASSES = 10
LABELS = (3, 5, 10, 20)
TEST = 30  # pictures of each class, taught or not

commands = cli.new_commands()


@commands.command()
def honesty(
    dataset: Annotated[str, Option(metavar="NAME", help="whose pictures are shown")] = "cifar100",
    validation: Annotated[
        bool, Option("--validation", help="training pictures instead of test pictures, to choose on")
    ] = False,
    draws: Annotated[int, Option(min=1, metavar="N", help="of classes and pictures")] = 5,
    seed: Annotated[int, Option(min=0, metavar="K", help="of the draws")] = 0,
    out: Out = Path("results/machine/honesty.json"),
    root: cli.DatasetRoot = None,
) -> None:
    """How often right answers are called unknown, and how often novel things; how sure wrong answers are."""
    check_writable(out)
    pictures = sources.of_dataset(dataset, root, validation)
    with circumstances() as machine:
        drawn = (Draw(pictures, seed, draw) for draw in tqdm(range(draws)))
        lives = [life for draw in drawn for kind in KINDS for life in taught(draw, kind)]
    plan = {"draws": draws, "seed": seed, "classes": CLASSES, "novel_classes": NOVEL_CLASSES, "test": TEST}
    result = {"pictures": pictures.identity, "plan": plan, "lives": lives, **machine}
    keep_with_page(out, result, [page_table(lives)], "python -m benchmarks.honesty")


class Draw:
    """Classes, and what is shown of them."""

    def __init__(self, pictures: Pictures, seed: int, draw: int) -> None:
        self.number, self._pictures = draw, pictures
        self._rng = np.random.default_rng([seed, draw])
        classes = self._rng.choice(len(pictures.class_names), CLASSES + NOVEL_CLASSES, replace=False)
        most = max(LABELS)
        own = [self._rng.permutation(np.flatnonzero(pictures.labels == c)) for c in classes]
        self.shown = [each[:most].tolist() for each in own[:CLASSES]]
        tested = [each[most : most + TEST] for each in own]
        self.truth = np.repeat(np.arange(CLASSES), TEST)
        self.known = self._frames(np.concatenate(tested[:CLASSES]))
        self.novel = self._frames(np.concatenate(tested[CLASSES:]))

    def _frames(self, chosen: np.ndarray) -> list[np.ndarray]:
        return [self._burst(number, 1)[0] for number in chosen.tolist()]

    def lessons(self, kind: str, place: int, labels: int) -> list[list[np.ndarray]]:
        """So many frames of a class, those together that are labelled by one key press."""
        lengths = BURSTS if kind == "bursts" else [1] * labels
        wanted = int(np.searchsorted(np.cumsum(lengths), labels)) + 1
        numbers = self.shown[place][:wanted]
        return [self._burst(number, length) for number, length in zip(numbers, lengths, strict=False)]

    def _burst(self, number: int, frames: int) -> list[np.ndarray]:
        return burst(self._pictures.frame(number), frames, self._rng)


def burst(picture: np.ndarray, frames: int, rng: np.random.Generator) -> list[np.ndarray]:
    """One picture, moved and lit a little differently from frame to frame."""
    whole = cv2.resize(picture, (SIDE, SIDE), interpolation=cv2.INTER_CUBIC)
    room = SIDE - WINDOW
    corner = rng.integers(0, room + 1, 2)
    found = []
    for _ in range(frames):
        light = 1 + rng.uniform(-LIGHT, LIGHT)
        row, column = corner
        part = whole[row : row + WINDOW, column : column + WINDOW]
        found.append(np.clip(part * light, 0, 255).astype(np.uint8))
        corner = np.clip(corner + rng.integers(-STEP, STEP + 1, 2), 0, room)
    return found


def taught(draw: Draw, kind: str) -> Iterator[Facts]:
    """The life of one workspace: what it said of itself after so many labels per class, and how true that was."""
    with TemporaryDirectory() as folder, learning(Path(folder) / "w", CLASSES) as (live, ids):
        lessons = [draw.lessons(kind, place, max(LABELS)) for place in range(CLASSES)]
        done = 0
        for labels in LABELS:
            for class_id, presses in zip(ids, lessons, strict=True):
                learned = done
                while learned < labels:
                    frames = presses.pop(0)
                    learned += len(frames)
                    label(live.workspace, frames, class_id)
            done = labels
            wait_for_rest(live)
            yield {"draw": draw.number, "kind": kind, "labels": labels} | facts(live, draw, ids)


@contextmanager
def learning(folder: Path, classes: int, **settings: Any) -> Iterator[tuple[LiveLearner, list[int]]]:
    """A new workspace that learns, with its classes."""
    with Workspace.open(folder) as workspace:
        workspace.change_settings(threads=1, **settings)
        ids = [workspace.journal.create_class(f"class {place}") for place in range(classes)]
        live = LiveLearner(workspace)
        live.hurries = True
        live.start()
        try:
            yield live, ids
        finally:
            live.stop()


def label(workspace: Workspace, frames: Sequence[np.ndarray], class_id: int) -> None:
    """As one key press does."""
    taken = [Frame(each, "camera", hash64=perceptual_hash(each), priority=0.0) for each in frames]
    workspace.journal.label(workspace.take_many(taken), class_id)


def wait_for_rest(live: LiveLearner) -> None:
    """Until everything is learned, rehearsed and calibrated."""
    live.notify()
    while not live.caught_up or live.idle_steps_left or live.calibrates or live.phase != "idle":
        if live.failed:
            raise RuntimeError(f"the learner failed: {list(live.problems)}")
        time.sleep(0.05)


def facts(live: LiveLearner, draw: Draw, ids: Sequence[int]) -> Facts:
    known, novel = (said_of(live, frames) for frames in (draw.known, draw.novel))
    right = np.array([answer.top[0][0] for answer in known]) == np.array(ids)[draw.truth]
    confidence = np.array([answer.top[0][1] for answer in known])
    unknown, unknown_novel = (np.array([answer.unknown for answer in each]) for each in (known, novel))
    return {
        "calibrated_on": live.predictor.calibration.samples,
        "accuracy": share(right),
        "right_called_unknown": share(unknown[right]),
        "novel_called_unknown": share(unknown_novel),
        "wrong_confidence": share(confidence[~right]),
        "wrong_and_sure": share(confidence[~right] >= SURE),
        "calibration_error": calibration_error(confidence, right),
    }


def calibration_error(confidence: np.ndarray, right: np.ndarray, bins: int = 10) -> float:
    """The expected calibration error: the mean distance of confidence from accuracy in bins of equal width.

    >>> round(calibration_error(np.array([0.95, 0.95]), np.array([True, False])), 2)
    0.45
    """
    place = np.minimum((confidence * bins).astype(np.int64), bins - 1)
    gaps = np.bincount(place, confidence - right, bins)
    return float(np.abs(gaps).sum() / len(confidence))


def said_of(live: LiveLearner, frames: Sequence[np.ndarray]) -> list[Any]:
    return [live.predictor.look(Frame(frame, "")) for frame in frames]


def share(values: np.ndarray) -> float | None:
    return float(values.mean()) if len(values) else None


def page_table(lives: list[Facts]) -> str:
    """In percent: the mean over the draws and its 95 % interval."""
    rows = []
    for kind, labels in product(KINDS, LABELS):
        same = [each for each in lives if (each["kind"], each["labels"]) == (kind, labels)]
        cells = [
            Estimate.of([each[name] for each in same if each[name] is not None]).text for name in MEASURED
        ]
        samples = np.mean([each["calibrated_on"] for each in same])
        rows.append([kind, str(labels), str(len(same)), f"{samples:.0f}", *cells])
    header = ["shown", "labels per class", "workspaces", "calibrated on"]
    return markdown([*header, *(each.replace("_", " ") for each in MEASURED)], rows, left=1)


if __name__ == "__main__":
    sys.exit(cli.run(commands, "python -m benchmarks.honesty"))
