"""The picture and its places: what is kept of a sample, when places count, and that a device says the same."""

from pathlib import Path

import numpy as np
import onnx
import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from edge_hpcr.learner.config import memory_options
from edge_hpcr.learner.cross_validation import FOLDS_OF_CLOSED_FORMS, CrossValidation
from edge_hpcr.learner.learner import Learner, LearnerConfig
from edge_hpcr.learner.memory import MemoryConfig
from edge_hpcr.learner.methods.experts import KEPT_PLACES, SAME_SCENE, Experts, PlacesToo
from edge_hpcr.learner.network import Classifier, Unit
from export.publish.graph import Outputs, RunningModel, check
from export.publish.quantise import quantised
from export.publish.snapshot import snapshot_of_learner
from export.publish.to_onnx import export

pytestmark = pytest.mark.computes

TRUNK = "tiny_vit_5m_grid"
SIDE = 96  # three places in each direction
COLOURS = ((230, 20, 20), (20, 230, 20), (20, 20, 230))


@pytest.fixture
def learner(fetched: Path) -> Learner:
    """One that knows nothing yet."""
    return new()


def new(method: str = "experts", budget: int = 8_000_000) -> Learner:
    memory = MemoryConfig(bytes=budget, **memory_options(TRUNK, method))
    config = LearnerConfig.recommended(TRUNK, method=method, height=SIDE, width=SIDE, memory=memory)
    return Learner(config, "cpu")


def scene(seed: int) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 256, (SIDE, SIDE, 3), np.uint8)


def thing(kind: int, rng: np.random.Generator, before: np.ndarray) -> np.ndarray:
    """A square of the kind's colour somewhere before a scene."""
    picture = before.copy()
    top, left = rng.integers(0, SIDE - 30, 2)
    picture[top : top + 30, left : left + 30] = COLOURS[kind]
    return picture


def taught(learner: Learner, count: int, scenes: list[int]) -> Learner:
    rng = np.random.default_rng(1)
    for number in range(count):
        before = scene(scenes[number % len(scenes)])
        learner.observe(thing(number % 3, rng, before)[None], [number % 3], np.array([number]))
    return learner


def things(count: int, before: np.ndarray) -> np.ndarray:
    rng = np.random.default_rng(2)
    return np.stack([thing(number % 3, rng, before) for number in range(count)])


def test_before_the_first_class_there_is_a_classifier_as_a_new_workspace_needs(fetched: Path) -> None:
    empty = new()
    assert empty.method.classifier(empty.view, empty.network).weight.shape[0] == 0


def test_a_sample_takes_less_than_2000_bytes_with_its_places(learner: Learner) -> None:
    taught(learner, 4, [0])
    assert learner.memory.row_bytes() <= 2000
    trunk = learner.network.backbone.trunk
    assert learner.memory.input_shape == (1, *trunk.with_places(KEPT_PLACES))


def test_the_kept_places_are_those_that_differ_from_the_scene(learner: Learner) -> None:
    empty, there = scene(0), scene(0)
    there[:32, :32] = COLOURS[0]  # the place at the top on the left
    method = learner.method
    assert isinstance(method, Experts)
    for _ in range(3):
        method.keep(learner.view, learner.encode(empty[None]))
    size = learner.network.feature_size
    shown, known = (learner.encode(each[None])[0, 0, size:].reshape(-1, 320) for each in (there, empty))
    farthest = np.argsort((shown * known).sum(1))[:KEPT_PLACES]
    kept = method.keep(learner.view, learner.encode(there[None]))[0, 0]
    np.testing.assert_allclose(kept[size:].reshape(-1, 320), shown[farthest], atol=1e-6)
    np.testing.assert_array_equal(kept[:size], learner.encode(there[None])[0, 0, :size])


def test_a_thing_is_where_places_differ_from_the_scene(learner: Learner) -> None:
    method, size = learner.method, learner.network.feature_size
    latent = learner.encode(scene(0)[None])
    assert method.where(latent) is None, "nothing has been seen"
    method.keep(learner.view, latent)
    assert method.where(latent) is None, "nothing else has been seen"
    latent[0, 0, size:].reshape(9, 320)[[1, 2]] *= -1  # at the top, in the middle and on the right
    assert method.where(latent) == pytest.approx((2 / 3, 1 / 6, 4 / 6), abs=0.01)


@pytest.mark.parametrize(("where", "detail"), [("whole", 1), ("layout", 3)])
def test_layout_counts_more_where_it_tells_samples_apart_that_are_left_out(
    learner: Learner, tmp_path: Path, where: str, detail: float
) -> None:
    rng = np.random.default_rng(3)
    size = learner.network.feature_size
    latents = learner.encode(things(1, scene(0))).repeat(32, 0)
    parts = {"whole": slice(0, 320), "layout": slice(320, size)}
    for part in parts.values():
        noise = rng.normal(size=(32, part.stop - part.start))
        latents[:, 0, part] = noise / np.linalg.norm(noise, axis=1, keepdims=True)
    kinds = np.arange(32) % 4
    own = rng.normal(size=(4, size))  # of a class, in each picture of it
    own[:, parts["layout" if where == "whole" else "whole"]] = 0
    latents[:, 0, :size] += 0.25 * own[kinds] / np.linalg.norm(own, axis=1, keepdims=True)[kinds]
    for latent, kind in zip(latents, kinds, strict=True):
        learner.observe(latent[None], [int(kind)])
    learner.predict(latents[:1])
    assert learner.method.detail == detail
    learner.save(tmp_path / "saved")
    restored, _ = Learner.load(tmp_path / "saved", device="cpu")
    assert restored.method.detail == detail
    earlier = {name: each for name, each in learner.method.state().items() if name != "detail"}
    fresh = new()
    fresh.method.load_state(earlier)  # of a version that did not choose
    assert fresh.method.detail == 1


@pytest.mark.parametrize("stays", [True, False])
def test_places_count_where_the_background_stays(learner: Learner, stays: bool) -> None:
    rng = np.random.default_rng(3)
    latents = learner.encode(things(24, scene(0)))
    if not stays:  # the same pictures with places of any directions
        places = rng.normal(size=(24, 9, 320))
        places /= np.linalg.norm(places, axis=2, keepdims=True)
        latents[:, 0, learner.network.feature_size :] = places.reshape(24, -1)
    for number, latent in enumerate(latents):
        learner.observe(latent[None], [number % 3])
    learner.predict(latents)
    assert (learner.method.share > 0) == stays
    said = "the background is the same" if stays else "most of it changes"
    assert said in learner.method.evidence()


def test_without_evidence_places_do_not_count_and_nothing_is_said_of_them(learner: Learner) -> None:
    taught(learner, 9, [0]).predict(things(1, scene(0)))
    assert learner.method.share == 0 and learner.method.evidence() is None


def test_with_one_label_per_class_it_is_the_nearest_class_seen_from_their_middle(learner: Learner) -> None:
    size = learner.network.feature_size
    rng = np.random.default_rng(4)
    latents = learner.encode(things(1, scene(0))).repeat(40, 0)
    latents[:, 0, :size] = rng.normal(
        0.02, 0.03, (40, size)
    )  # all of a length, nearly, and away from the origin
    for kind in range(5):
        learner.observe(latents[kind][None], [kind])
    known = latents[:, 0, :size] / np.linalg.norm(latents[:, 0, :size], axis=1, keepdims=True)
    away = known[:5] - known[:5].mean(0)
    lengths = np.linalg.norm(away, axis=1, keepdims=True)
    drawn = away * (1 + 5 / 6 * (np.sqrt((lengths**2).mean()) / lengths - 1))
    distances = ((known[:, None] - known[:5].mean(0) - drawn) ** 2).sum(2)
    said = learner.predict(latents)
    np.testing.assert_array_equal(said.best, distances.argmin(1))
    # From the mean of one sample another is twice as far, in square, as the mean itself is off.
    squared = ((known[:, None, :320] - known[:5, :320]) ** 2).sum(2).min(1)
    np.testing.assert_allclose(said.similarity, 1 / (1 + squared / 2), atol=1e-4)


def test_before_another_scene_the_best_place_says_whether_a_class_is_near() -> None:
    desk, first, second, elsewhere = torch.eye(4)
    scores = (2 * torch.stack([first, second]), torch.zeros(2), torch.tensor(1.0))
    knows = (desk.repeat(3, 1), torch.tensor(SAME_SCENE), torch.full((2,), 0.5))
    nearness = (torch.eye(4), torch.zeros(2, 4), torch.zeros(2), torch.ones(2))  # all pictures are as far
    classify = PlacesToo(Classifier(Unit(), torch.zeros(2, 4), torch.zeros(2)), (*scores, *knows), nearness)
    shown = [(desk, desk, first), (desk, desk, elsewhere), (elsewhere, elsewhere, first), (elsewhere,) * 3]
    said = classify.similarity(torch.empty(0), torch.stack([torch.cat([desk, *each]) for each in shown]))
    assert said[0] == said[1] == 0.5
    assert said[2] > 0.9 > 0.1 > said[3]


def test_things_are_recognised_before_a_scene_that_was_never_shown(learner: Learner) -> None:
    taught(learner, 45, [0])
    said = learner.predict(things(12, scene(9))).best
    assert (said == np.arange(12) % 3).mean() > 0.5


def test_what_is_unlike_all_classes_is_less_similar(learner: Learner) -> None:
    taught(learner, 24, [0])
    known = learner.predict(things(6, scene(0))).similarity
    strange = learner.predict(
        np.random.default_rng(5).integers(0, 80, (6, SIDE, SIDE, 3), np.uint8)
    ).similarity
    assert known.min() > strange.max()
    assert ((strange >= 0) & (known <= 1)).all()


def test_a_label_that_is_undone_was_never_there_but_for_the_scene(learner: Learner) -> None:
    taught(learner, 24, [0])
    asked = things(6, scene(0))
    before, held = learner.predict(asked).scores, len(learner.memory)
    wrong = scene(3)[None]
    learner.observe(wrong, [0], np.array([100]))
    assert len(learner.memory) == held + 1
    learner.forget(100)
    learner.unlearn(wrong, [0])
    np.testing.assert_allclose(learner.predict(asked).scores, before, atol=1e-3)


def test_a_class_without_samples_has_a_score_that_is_a_number(learner: Learner) -> None:
    """For a moment a correction leaves none, and a page that is told NaN shows nothing any more."""
    pictures = things(1, scene(0))
    learner.observe(pictures, [7])
    assert learner.unlearn(pictures, [7])
    found = learner.predict(pictures)
    assert np.isfinite(found.scores).all() and np.isfinite(found.similarity).all()


def test_a_restored_learner_answers_and_learns_on_bit_for_bit(learner: Learner, tmp_path: Path) -> None:
    taught(learner, 24, [0])
    learner.save(tmp_path / "saved")
    restored, _ = Learner.load(tmp_path / "saved", device="cpu")
    asked = things(6, scene(0))
    for each in (learner, restored):
        each.observe(thing(1, np.random.default_rng(7), scene(0))[None], [1], np.array([200]))
    np.testing.assert_array_equal(restored.predict(asked).scores, learner.predict(asked).scores)


@pytest.mark.parametrize("budget", [40_000, 300_000])
def test_a_small_budget_has_room_for_statistics_and_for_samples(fetched: Path, budget: int) -> None:
    learner = taught(new(budget=budget), 12, [0])
    assert learner.byte_breakdown()["total"] <= budget
    assert len(learner.memory) and len(learner.method.scatter) > 0
    assert len(learner.predict(things(2, scene(0))).best) == 2


def test_idle_time_needs_no_rehearsal(learner: Learner) -> None:
    assert taught(learner, 6, [0]).rehearse() is None


def answers(model: onnx.ModelProto, images: np.ndarray) -> Outputs:
    return RunningModel(model.SerializeToString(), "a model")(images)


@pytest.mark.slow
def test_its_copies_learn_nine_tenths_and_nobody_waits_for_their_rehearsals(learner: Learner) -> None:
    validation, steps = CrossValidation(taught(learner, 30, [0, 1, 2])), 0
    while validation.advance():
        steps += 1
        assert (validation.seconds_left == 0) == (steps == FOLDS_OF_CLOSED_FORMS)
    assert steps == FOLDS_OF_CLOSED_FORMS == 10


def test_the_exported_model_answers_as_the_learner_also_when_republished_with_a_new_class(
    learner: Learner, tmp_path: Path
) -> None:
    taught(learner, 24, [0])
    asked = things(6, scene(1))
    learner.predict(asked)
    assert learner.method.share > 0  # or places would be multiplied by nothing
    models = []
    for path in ("full", "filled"):
        exported = export(snapshot_of_learner(learner), tmp_path / path, templates=tmp_path / "template")
        assert exported.traced == (path == "full")
        models.append(exported.model)
        found, expected = answers(exported.model, asked), learner.predict(asked)
        np.testing.assert_allclose(found.scores, expected.scores, atol=1e-4)
        np.testing.assert_allclose(found.similarity, expected.similarity, atol=1e-4)
        learner.observe(scene(4)[None], [7])
    # In 8 bits: the trunk's linear layers alone.
    small = quantised(models[0], asked)
    check(small)
    kinds = [node.op_type for node in small.graph.node]
    assert kinds.count("MatMulInteger") == 40 and kinds.count("Conv") == 27
    features, whole = answers(small, asked).features, answers(models[0], asked).features
    lengths = np.linalg.norm(features, axis=1) * np.linalg.norm(whole, axis=1)
    assert ((features * whole).sum(1) / lengths > 0.8).all()


def test_on_a_network_without_places_it_is_slda(small_learner, digits) -> None:
    ours, rival = small_learner(method="experts"), small_learner(method="slda")
    for each in (ours, rival):
        each.observe(digits.train_images[:20], digits.train_labels[:20])
    asked = digits.test_images[:10]
    torch.testing.assert_close(
        torch.from_numpy(ours.predict(asked).scores), torch.from_numpy(rival.predict(asked).scores)
    )


class Shapes(TorchDispatchMode):
    """Of all tensors that are made."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: set[torch.Size] = set()

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        made = func(*args, **(kwargs or {}))
        self.seen |= {
            each.shape for each in (made if isinstance(made, tuple) else (made,)) if torch.is_tensor(each)
        }
        return made


def test_an_answer_needs_no_table_of_all_pairs_of_classes(learner: Learner) -> None:
    """Of 5,000 classes it would have 25 million places, anew with each label."""
    classes = 37  # as long as nothing else is
    latents = learner.encode(things(1, scene(0))).repeat(classes, 0)
    latents += np.random.default_rng(5).normal(0, 0.05, latents.shape).astype(np.float32)
    learner.observe(latents, np.arange(classes))
    with Shapes() as made:
        learner.predict(latents[:1])
    assert any(classes in shape for shape in made.seen)
    assert not [shape for shape in made.seen if list(shape).count(classes) > 1]
