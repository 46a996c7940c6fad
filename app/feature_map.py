"""A map of the features: samples of the memory and held-out ones, with the proxies of the classes among them.

What the cosine classifier sees of a feature is its direction, so features and proxies are brought to length one first.
"""

from __future__ import annotations

import threading
from collections import defaultdict
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import islice
from typing import Any

import numpy as np

from app.charts import Group, empty, scatter
from app.studio import Studio
from edge_hpcr.common.errors import UserError
from edge_hpcr.live.accuracy import held_out_ids
from edge_hpcr.live.live_learner import LiveLearner

PCA, TSNE = "PCA", "t-SNE"
MOST_REMEMBERED, MOST_HELD_OUT = 350, 150
FEWEST = 3
FEWEST_FOR_TSNE = 10
BATCH = 32  # images at a time: predictions for the camera wait no longer than that


@dataclass(frozen=True)
class Samples:
    """Features and proxies of length one, each row with its class."""

    features: np.ndarray
    classes: np.ndarray
    held_out: np.ndarray  # true where a sample was never trained on
    proxies: np.ndarray
    proxy_classes: np.ndarray
    step: int


@dataclass(frozen=True)
class Places:
    """Where samples and proxies lie in the plane."""

    samples: np.ndarray
    proxies: np.ndarray
    shares: tuple[float, float] | None = None  # of the variation, by the two axes


def gather(studio: Studio) -> Samples:
    """Some of the memory and some held-out samples, as the network sees them now."""
    live = studio.live

    def remembered() -> tuple[np.ndarray, np.ndarray, int]:
        # Not the memory's generator: drawing from it would change what it learns next.
        memory = live.learner.memory
        replay = memory.at(np.random.default_rng(0).permutation(len(memory))[:MOST_REMEMBERED])
        return replay.inputs, np.array(live.learner.class_ids, np.int64)[replay.labels], live.learner.step

    inputs, classes, step = studio.between_steps(remembered)
    parts = [live.predictor.features(inputs[at : at + BATCH]) for at in range(0, len(inputs), BATCH)]
    tests = list(islice(held_out(live), MOST_HELD_OUT))
    for at in range(0, len(tests), BATCH):
        parts.append(live.predictor.features(np.stack([kept for _, _, kept in tests[at : at + BATCH]])))
    classes = np.concatenate([classes, np.array([class_id for _, class_id, _ in tests], np.int64)])
    proxies, proxy_classes = live.predictor.proxies()
    features = np.concatenate(parts) if parts else np.empty((0, proxies.shape[1]), np.float32)
    untrained = np.arange(len(classes)) >= len(inputs)
    return Samples(_unit(features), classes, untrained, _unit(proxies), proxy_classes, step)


def held_out(live: LiveLearner, only: int | None = None) -> Iterator[tuple[int, int, np.ndarray]]:
    """Held-out samples, of one class or of all: number, class and what the network sees, each read when it is needed."""
    ids = held_out_ids(live.workspace)
    for sample_id, class_id in ((i, c) for i, c in ids.items() if only in (None, c)):
        with suppress(UserError):  # deleted a moment ago
            yield sample_id, class_id, live.inputs_of(sample_id)


def pca(samples: Samples) -> Places:
    """The two directions in which the samples differ most; proxies are laid on the same plane."""
    centre = samples.features.mean(0)
    _, lengths, directions = np.linalg.svd(samples.features - centre, full_matrices=False)
    plane = np.zeros((2, samples.features.shape[1]))
    plane[: min(2, len(directions))] = directions[:2]
    variation = np.append(lengths**2, [0.0, 0.0])
    total = float(variation.sum()) or 1.0
    return Places(
        (samples.features - centre) @ plane.T,
        (samples.proxies - centre) @ plane.T,
        (float(variation[0]) / total, float(variation[1]) / total),
    )


def tsne(samples: Samples) -> Places:
    """Neighbours stay neighbours; distances between far groups say little. Some seconds of one core."""
    # Both take a second to import, and most pages never ask for this map.
    from sklearn import manifold
    from threadpoolctl import threadpool_limits  # type: ignore[import-untyped]

    everything = np.concatenate([samples.features, samples.proxies]).astype(np.float32)
    perplexity = min(30.0, (len(everything) - 1) / 3)
    with threadpool_limits(1, user_api="openmp"):  # the other cores are the learner's
        places = manifold.TSNE(perplexity=perplexity, init="pca", random_state=0).fit_transform(everything)
    count = len(samples.features)
    return Places(places[:count], places[count:])


def drawing(
    samples: Samples, places: Places, names: dict[int, str], colours: dict[int, str], kind: str
) -> str:
    """The map as a chart; classes that are gone meanwhile are left out."""
    stars = dict(zip(samples.proxy_classes.tolist(), places.proxies.tolist(), strict=True))
    groups = []
    for class_id in sorted(names.keys() & {*samples.classes.tolist(), *stars}):
        own = samples.classes == class_id
        trained, held = (
            places.samples[own & kind].tolist() for kind in (~samples.held_out, samples.held_out)
        )
        groups.append(Group(names[class_id], colours[class_id], trained, held, stars.get(class_id)))
    titles = ("first t-SNE coordinate", "second t-SNE coordinate")
    if places.shares is not None:
        first, second = (f"{100 * share:.0f} % of the variation" for share in places.shares)
        titles = (f"first principal component ({first})", f"second ({second})")
    tests = int(samples.held_out.sum())
    title = (
        f"{kind} of {len(samples.features):,} features at step {samples.step:,}: "
        f"{len(samples.features) - tests:,} from the memory, {tests:,} held out"
    )
    return scatter(groups, *titles, title, "held out" if tests else "", "the proxy of a class")


@dataclass
class FeatureMap:
    """The newest map of each kind, made once however many pages ask."""

    studio: Studio
    # A lock each: PCA must not wait for another page's t-SNE.
    _locks: dict[str, Any] = field(default_factory=lambda: defaultdict(threading.Lock))
    _made: dict[str, tuple[tuple[int, int], Samples, Places]] = field(default_factory=dict)

    def draw(self, kind: str, names: dict[int, str], colours: dict[int, str]) -> str:
        """The map of now; blocks until it is there."""
        with self._locks[kind]:
            status = self.studio.live.status()
            now = (status["step"], status["applied"])
            if kind not in self._made or self._made[kind][0] != now:
                samples = gather(self.studio)
                fewest = FEWEST if kind == PCA else FEWEST_FOR_TSNE
                if len(samples.features) < fewest or not len(samples.proxies):
                    self._made.pop(kind, None)
                    return empty(
                        f"A {kind} map needs {fewest} labelled samples at least: teach some on the Teach tab."
                    )
                self._made[kind] = (now, samples, pca(samples) if kind == PCA else tsne(samples))
            _, samples, places = self._made[kind]
        return drawing(samples, places, names, colours, kind)


def _unit(rows: np.ndarray) -> np.ndarray:
    lengths = np.linalg.norm(rows, axis=1, keepdims=True)
    return rows / np.maximum(lengths, 1e-12)
