"""`python -m benchmarks.verdicts`: is the page's number true, in 20 workspaces that were taught differently?

Things before one background, or before another one each time, shown singly or in bursts; labels given to what comes, or picked
from the head of the queue. Then each workspace is asked about pictures that were never shown, of the same classes and scene.
"""

from __future__ import annotations

import sys
from itertools import product
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Annotated

import cv2
import numpy as np
from scipy.stats import binomtest
from sklearn.datasets import load_sample_images
from typer import Option

from benchmarks.honesty import burst, label, learning, wait_for_rest
from benchmarks.runner import Facts, Out, check_writable, circumstances, keep
from benchmarks.scenes import SIGNS, a_skin, draw_hand
from benchmarks.scenes import scene as drawn_scene
from edge_hpcr.bench import inputs as sources
from edge_hpcr.bench.inputs import Pictures
from edge_hpcr.commands import cli
from edge_hpcr.live import accuracy
from edge_hpcr.live.feeder import Feeder
from edge_hpcr.live.live_learner import LiveLearner
from edge_hpcr.live.predictor import Encoder
from edge_hpcr.stream import Frame
from edge_hpcr.stream import workbench as bench
from edge_hpcr.workspace.selection import rank

SCENES = ("hands in a room", "parts in a room", "parts on a photograph", "parts on benches", "cifar100")
CLASSES, ASKED = 6, 35  # pictures of each class
# Shots per class, and frames per shot: labelled as they come; or labelled first, and then streamed into the queue.
COMES = {"single pictures": (12, 1), "bursts": (5, 5)}
FIRST = {"single pictures": (3, 1), "bursts": (3, 4)}
STREAMED = {"single pictures": (24, 1), "bursts": (6, 4)}
ROUNDS, PICKED = 3, 16  # labels from the head of the queue in each round
SIZE = (320, 240)  # of a picture
BELOW_GOOD = dict(accuracy.LEVELS)["good"]

commands = cli.new_commands()


@commands.command()
def verdicts(
    seed: Annotated[int, Option(min=0, metavar="K", help="of the workspaces")] = 0,
    validation: Annotated[
        bool, Option("--validation", help="CIFAR100's training pictures, to choose on")
    ] = False,
    out: Out = Path("results/machine/verdicts.json"),
    root: cli.DatasetRoot = None,
) -> None:
    """How often the page's number is true, and whether it says Good of what is not."""
    check_writable(out)
    pictures = sources.of_dataset("cifar100", root, validation)
    lives: list[Facts] = []
    with circumstances() as machine:
        for number, kind in enumerate(SCENES):
            scene = Scene(kind, np.random.default_rng([seed, number]), pictures)
            for ways in product(COMES, ("as they come", "queue-picked")):
                lives.append({"scene": kind} | life(scene, *ways))
                print(lives[-1], flush=True)
    result = {
        "seed": seed,
        "pictures": pictures.identity,
        "within": sum(each["within"] for each in lives),
        "at_least_holds": sum(each["truth"] >= each["at_least"] for each in lives),
        "good_but_is_not": sum(each["level"] == "good" and each["truth"] < BELOW_GOOD for each in lives),
        "workspaces": lives,
    }
    keep(out, result | machine)
    print(f"{result['within']} of {len(lives)} within, kept in {out}")


class Scene:
    """Where things are shown, in pictures that are all different."""

    def __init__(self, kind: str, rng: np.random.Generator, pictures: Pictures) -> None:
        self._kind, self.rng, self._pictures = kind, rng, pictures
        self._parts = rng.permutation(bench.CLASSES)
        classes = rng.permutation(len(pictures.class_names))[:CLASSES]
        self._left = [rng.permutation(np.flatnonzero(pictures.labels == i)).tolist() for i in classes]
        self._skin = a_skin(rng)
        self._change_light()
        self._asked: np.ndarray | None = None
        photographs = load_sample_images().images
        self._behind = cv2.resize(drawn_scene(photographs, kind != "parts on a photograph", rng), SIZE)

    def _change_light(self) -> None:
        self._light = bench.Light(*self.rng.uniform((0, 0.75, -1), (6.28, 1.1, 1)).tolist())

    def places(self, shots: int) -> np.ndarray:
        """Every class so many times, in no order."""
        return self.rng.permuted(np.repeat(range(CLASSES), shots))

    def asked(self, encoder: Encoder) -> np.ndarray:
        """What the trunk says of pictures of each class that are never shown."""
        if self._asked is None:
            frames = [self.shot(place, 1)[0] for place in range(CLASSES) for _ in range(ASKED)]
            self._asked = np.concatenate([encoder.encode(encoder.prepare(frame)[None]) for frame in frames])
        return self._asked

    def shot(self, place: int, frames: int) -> list[np.ndarray]:
        """Another thing of a class, in so many frames that are alike."""
        rng = self.rng
        if self._kind == "cifar100":
            return burst(self._pictures.frame(self._left[place].pop()), frames, rng)
        if self._kind == "parts on benches":
            self._change_light()
            self._behind = cv2.resize(bench.Bench(rng).lit(self._light), SIZE)
        pose, thing, fingers = bench.lying(rng), bench.specimen(self._parts[place], rng), rng.integers(2**32)
        found = []
        for _ in range(frames):
            x, y, turn = np.array([pose.x / 2, pose.y / 2, pose.angle]) + rng.normal(0, (1.5, 1.5, 0.03))
            image = self._behind.copy()
            if self._kind == "hands in a room":
                size, same = 30 * pose.scale, np.random.default_rng(fingers)
                draw_hand(image, SIGNS[place], self._skin, np.array([x, y]), size, turn / 10 - 0.3, same)
            else:
                bench.put(image, thing, bench.Pose(x, y, turn, 0.4 * pose.scale), self._light)
            found.append(np.clip(image + rng.normal(0, 4, image.shape), 0, 255).astype(np.uint8))
        return found


def life(scene: Scene, shown: str, labels: str) -> Facts:
    """Teach a workspace, ask it, and compare with what its page says."""
    # Before one background the gate takes different things for one: here all of them come into the queue.
    with (
        TemporaryDirectory() as folder,
        learning(Path(folder) / "w", CLASSES, gate_distance=-1) as (live, ids),
    ):
        shots, frames = (COMES if labels == "as they come" else FIRST)[shown]
        for place, shot in [(place, scene.shot(place, frames)) for place in scene.places(shots)]:
            label(live.workspace, shot, ids[place])
        if labels == "queue-picked":
            pick(live, scene, ids, *STREAMED[shown])
        wait_for_rest(live)
        answers = live.predictor.answer(scene.asked(live.predictor.encoder))
        right = np.array([answer.top[0][0] for answer in answers]) == np.repeat(ids, ASKED)
        page, classes = live.self_test.held_out, live.workspace.journal.classes()
        said = accuracy.verdict(classes, page.confusion, one_place=page.one_place)
    truth, page_right = float(right.mean()), round((page.accuracy or 0) * page.samples)
    interval = binomtest(page_right, max(1, page.samples)).proportion_ci(method="exact")
    return {
        "shown": shown,
        "labels": labels,
        "labelled": sum(row.labels for row in classes),
        "page": page.accuracy,
        "samples": page.samples,
        "interval": [interval.low, interval.high],
        "truth": truth,
        "asked": len(right),
        "within": interval.low <= truth <= interval.high,
        "at_least": accuracy.at_least(page_right, page.samples),
        "level": said.level,
        "sentence": said.sentence,
    }


def pick(live: LiveLearner, scene: Scene, ids: list[int], shots: int, frames: int) -> None:
    """Show things to the queue, and label what stands at its head."""
    feeder, journal, shown = Feeder(live.workspace, live), live.workspace.journal, dict[int | None, int]()
    feeder._chance.seed(int(scene.rng.integers(2**32)))
    wait_for_rest(live)
    for places in np.array_split(scene.places(shots), ROUNDS):
        for place in places.tolist():
            for image in scene.shot(place, frames):
                shown[feeder.take(Frame(image, "camera")).sample_id] = ids[place]
        rows = journal.queued()
        head = rank([row.id for row in rows], [row.priority for row in rows], [row.hash64 for row in rows])
        journal.label_each([(i, shown[i]) for i in head[:PICKED]])
        wait_for_rest(live)


if __name__ == "__main__":
    sys.exit(cli.run(commands, "python -m benchmarks.verdicts"))
