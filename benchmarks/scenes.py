"""`python -m benchmarks.scenes`: things taught before one scene, asked before the same one and before others.

Whoever teaches at a desk does that. The workbench's parts are drawn into photographs and rendered rooms, each time another
part of its class. `--hands` draws hand signs instead, for `bench teach --source`.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Annotated

import cv2
import numpy as np
from sklearn.datasets import load_sample_images
from tqdm import tqdm
from typer import Option

from benchmarks.runner import Facts, Out, check_writable, circumstances, keep_with_page, torch_threads
from edge_hpcr.bench.report import Estimate, markdown
from edge_hpcr.commands import cli
from edge_hpcr.learner.calibration import Calibration, calibrate
from edge_hpcr.learner.config import memory_options
from edge_hpcr.learner.cross_validation import CrossValidation
from edge_hpcr.learner.learner import Learner, LearnerConfig
from edge_hpcr.learner.memory import MemoryConfig
from edge_hpcr.learner.methods.experts import Experts
from edge_hpcr.live.predictor import Encoder
from edge_hpcr.stream.decode import BadImage
from edge_hpcr.stream.image_folder import read_frame, walk
from edge_hpcr.stream.resize import prepare
from edge_hpcr.stream.workbench import CLASSES, HEIGHT, WIDTH, Light, Pose, clouds, put, specimen

TRUNK, SIDE = "tiny_vit_5m_grid", 224
LABELS = (5, 10, 20)
ASKED = 15  # pictures of each class before the same scene, and as many before others
OTHERS = 20  # scenes
NOVEL = ((0, 1, 2), (3, 4, 5), (6, 7, 8))  # classes that other learners are not taught
UNKNOWN_SHARE = 0.05
SMALLEST = 300  # pixels a side of a photograph
OURS = "ours"
# The method of each, and what places count beside the picture where the method does not decide that.
CONTESTANTS = {
    OURS: ("experts", None),
    "picture alone": ("experts", 0.0),
    "places alone": ("experts", 1e6),
    "slda": ("slda", None),
    "ncm": ("ncm", None),
}
FIGURES = ("accuracy", "right_called_unknown", "novel_called_unknown")
# Ten hand signs: which fingers are stretched, the thumb first; and where they point, in degrees.
SIGNS = ("00000", "01000", "01100", "01110", "01111", "11111", "10000", "11000", "01001", "10001")
FINGERS = (-62, -20, -3, 14, 32)

commands = cli.new_commands()


@commands.command()
def scenes(
    photographs: Annotated[
        Path | None, Option(metavar="FOLDER", help="of scenes; default: scikit-learn's two")
    ] = None,
    draws: Annotated[int, Option(min=1, metavar="N", help="of scenes and parts")] = 3,
    seed: Annotated[int, Option(min=0, metavar="K", help="of the draws")] = 0,
    hands: Annotated[
        Path | None,
        Option(metavar="FOLDER", help="measure nothing: draw hand signs there, a sub-folder for each"),
    ] = None,
    out: Out = Path("results/machine/scenes.json"),
) -> None:
    """Accuracy and *unknown* before the scene of the labels, and before others."""
    if hands is not None:
        draw_hands(hands, np.random.default_rng(seed))
        return
    check_writable(out)
    pictures = load_sample_images().images if photographs is None else pictures_of(photographs)
    with circumstances() as machine, torch_threads(1):
        encoder = Encoder(learner_of("experts"), lambda sample: np.empty(0))
        lives = [life for draw in tqdm(range(draws)) for life in lives_of(encoder, pictures, seed, draw)]
    plan = {
        "draws": draws,
        "seed": seed,
        "asked": ASKED,
        "other_scenes": OTHERS,
        "photographs": len(pictures),
    }
    result = {"plan": plan, "trunk": TRUNK, "lives": lives, **machine}
    keep_with_page(out, result, [page_table(lives)], "python -m benchmarks.scenes")


def pictures_of(folder: Path) -> list[np.ndarray]:
    found = []
    for path in walk(folder, lambda path, reason: None):
        with suppress(BadImage):
            found.append(read_frame(path, folder).image)
    return [each for each in found if min(each.shape[:2]) >= SMALLEST]


def scene(photographs: list[np.ndarray], rendered: bool, rng: np.random.Generator) -> np.ndarray:
    """A room, or a piece of a photograph: uint8 RGB of a frame's size."""
    if not rendered:
        whole = photographs[rng.integers(len(photographs))]
        high = int(rng.uniform(0.6, 1) * min(whole.shape[0], whole.shape[1] * HEIGHT // WIDTH))
        wide = high * WIDTH // HEIGHT
        top, left = (rng.integers(size + 1) for size in (whole.shape[0] - high, whole.shape[1] - wide))
        piece = whole[top : top + high, left : left + wide]
        return cv2.resize(piece, (WIDTH, HEIGHT), interpolation=cv2.INTER_AREA)
    image = np.empty((HEIGHT, WIDTH, 3), np.float32)
    floor = int(rng.uniform(0.35, 0.7) * HEIGHT)
    image[:floor], image[floor:] = rng.uniform(60, 220, (2, 3))[:, None, None]
    for _ in range(int(rng.integers(4, 10))):
        x, y = rng.uniform(0, WIDTH), rng.uniform(0, HEIGHT)
        wide, high, lean = rng.uniform((30, 30, -30), (200, 220, 30))
        corners = [(x, y), (x + wide, y + lean), (x + wide, y + high), (x, y + high + lean)]
        cv2.fillPoly(image, [np.array(corners, np.int32)], rng.uniform(30, 230, 3).tolist())
    patches = clouds(rng, (HEIGHT, WIDTH), (200, 150), (40, 30), (6, 4))
    return np.clip(image * (0.6 + 0.7 * patches[..., None]), 0, 255).astype(np.uint8)


def shown(name: str, before: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """A part of this class somewhere before a scene, a quarter to half of the picture's height; prepared."""
    light = Light(*map(float, rng.uniform((0, 0.75, -1), (2 * np.pi, 1.1, 1))))
    image = np.roll(before, rng.integers(-2, 3, 2), (0, 1))  # the camera sways
    image = np.clip(image * rng.uniform(0.9, 1.1), 0, 255).astype(np.uint8)
    x, y = rng.uniform((WIDTH / 2 - 130, 120), (WIDTH / 2 + 130, HEIGHT - 120))
    put(image, specimen(name, rng), Pose(x, y, rng.uniform(0, 2 * np.pi), rng.uniform(0.35, 0.6)), light)
    noise = rng.normal(0, 3, image.shape).astype(np.float32)
    return prepare(cv2.add(image, noise, dtype=cv2.CV_8U), (SIDE, SIDE))


def learner_of(method: str) -> Learner:
    memory = MemoryConfig(bytes=8_000_000, **memory_options(TRUNK, method))
    config = LearnerConfig.recommended(TRUNK, method=method, height=SIDE, width=SIDE, memory=memory)
    return Learner(config, "cpu")


def lives_of(encoder: Encoder, photographs: list[np.ndarray], seed: int, draw: int) -> Iterator[Facts]:
    """What every contestant answers after so many labels per class."""
    rng = np.random.default_rng([seed, draw])
    here, *others = (scene(photographs, bool((draw + i) % 2), rng) for i in range(1 + OTHERS))
    classes = np.arange(len(CLASSES))

    def latents(rounds: int, scenes: list[np.ndarray]) -> np.ndarray:
        """In rounds of all classes."""
        turns = [(CLASSES[i % len(CLASSES)], scenes[i % len(scenes)]) for i in range(rounds * len(CLASSES))]
        return np.concatenate([encoder.encode(shown(*turn, rng)[None]) for turn in turns])

    lessons = latents(max(LABELS), [here])
    asked = {"same": latents(ASKED, [here]), "others": latents(ASKED, others)}
    truth = np.tile(classes, ASKED)
    for labels in LABELS:
        life = {"draw": draw, "labels": labels}
        for name in CONTESTANTS:
            learner = taught(name, lessons, labels, classes)
            line = calibration(learner) if name == OURS else Calibration()
            for where, latent in asked.items():
                said = learner.predict(latent)
                right = said.best == truth
                unknown = {"right_called_unknown": float(line.unknown(said.similarity)[right].mean())}
                figures = {"accuracy": float(right.mean())} | (unknown if name == OURS else {})
                yield life | {"contestant": name, "asked_before": where} | figures
        for novel in NOVEL:
            learner = taught(OURS, lessons, labels, np.setdiff1d(classes, novel))
            line = calibration(learner)
            for where, latent in asked.items():
                unknown_too = line.unknown(learner.predict(latent[np.isin(truth, novel)]).similarity)
                figures = {"novel_called_unknown": float(unknown_too.mean())}
                yield life | {"contestant": OURS, "asked_before": where} | figures


def taught(name: str, lessons: np.ndarray, labels: int, classes: np.ndarray) -> Learner:
    method, share = CONTESTANTS[name]
    learner = learner_of(method)
    if share is not None:
        assert isinstance(learner.method, Experts)
        learner.method.decide(share)
    for number in range(labels):
        learner.observe(lessons[number * len(CLASSES) + classes], classes)
    return learner


def calibration(learner: Learner) -> Calibration:
    """As a workspace's with these labels: copies learn a part of the memory, and are asked about the rest."""
    validation = CrossValidation(learner)
    while validation.advance():
        pass
    said = validation.result
    assert said is not None
    return calibrate(said.scores, said.similarity, said.columns, UNKNOWN_SHARE)


def page_table(lives: list[Facts]) -> str:
    """In percent: the mean and its 95 % interval over the draws, for what is novel over draws and classes."""

    def cell(*wanted: object) -> str:
        *life, figure = wanted
        keys = ("contestant", "labels", "asked_before")
        found = [each[figure] for each in lives if figure in each and [each[key] for key in keys] == life]
        return Estimate.of(found).text

    columns = [(where, figure) for figure in FIGURES for where in ("same", "others")]
    rows = [
        [name, str(labels), *(cell(name, labels, *column) for column in columns)]
        for labels in LABELS
        for name in CONTESTANTS
    ]
    header = [f"{figure.replace('_', ' ')}, {where}" for where, figure in columns]
    return markdown(["contestant", "labels per class", *header], rows, left=1)


def draw_hands(folder: Path, rng: np.random.Generator) -> None:
    for sign in SIGNS:
        (folder / sign).mkdir(parents=True)
        for number in range(60):
            cv2.imwrite(str(folder / sign / f"{number}.png"), hand(sign, rng)[..., ::-1])


def hand(sign: str, rng: np.random.Generator) -> np.ndarray:
    """A hand before a wall: uint8 RGB [128, 128, 3]."""
    shade = np.linspace(1, rng.uniform(0.7, 1), 128)[:, None, None]
    image = np.tile(shade * rng.uniform(90, 230, 3), (1, 128, 1)).astype(np.float32)
    skin, size, turn = a_skin(rng), rng.uniform(17, 24), np.deg2rad(rng.uniform(-25, 25))
    draw_hand(image, sign, skin, rng.uniform((54, 66), (74, 86)), size, turn, rng)
    noisy = cv2.GaussianBlur(image, (3, 3), 0.8) + rng.normal(0, 6, image.shape)
    return np.clip(noisy, 0, 255).astype(np.uint8)


def a_skin(rng: np.random.Generator) -> list[float]:
    return list((np.array([200, 150, 120]) * rng.uniform(0.5, 1.2)).tolist())


def draw_hand(
    image: np.ndarray,
    sign: str,
    skin: list[float],
    palm: np.ndarray,
    size: float,
    turn: float,
    rng: np.random.Generator,
) -> None:
    """A silhouette of a hand with these fingers stretched; `palm` is its middle, `size` its radius in pixels."""

    def line(begin: float, end: float, angle: float, width: float) -> None:
        way = size * np.array([np.sin(angle), -np.cos(angle)])
        points = np.rint(8 * np.array([palm + begin * way, palm + end * way])).astype(np.int32)
        cv2.polylines(image, [points], False, skin, int(width * size), cv2.LINE_AA, 3)

    line(0, 0, 0, 2)
    line(0, 3, turn + np.pi, 1.3)
    for stretched, degrees in zip(sign, FINGERS, strict=True):
        reach = rng.uniform(1.9, 2.4) if stretched == "1" else rng.uniform(1.0, 1.15)
        line(0.7, reach, turn + np.deg2rad(degrees + rng.uniform(-5, 5)), 0.42)


if __name__ == "__main__":
    sys.exit(cli.run(commands, "python -m benchmarks.scenes"))
