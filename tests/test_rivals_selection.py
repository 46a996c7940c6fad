"""The rivals that choose what the memory keeps: ASER by Shapley values, GSS by gradients."""

import math
from collections import Counter
from typing import Any

import numpy as np
import pytest
import torch

from edge_hpcr.common.errors import UserError
from edge_hpcr.learner import methods
from edge_hpcr.learner.learner import Learner, LearnerConfig
from edge_hpcr.learner.memory import MemoryConfig
from edge_hpcr.learner.methods import gss
from edge_hpcr.learner.methods.aser import ASER, Config, shapley

pytestmark = pytest.mark.computes


def watched(monkeypatch: pytest.MonkeyPatch, kind: type[methods.Method], hook: str) -> list[Any]:
    """What the hook answers from now on, in order."""
    answers, own = [], getattr(kind, hook)

    def call(*arguments: Any, **options: Any) -> Any:
        answers.append(own(*arguments, **options))
        return answers[-1]

    monkeypatch.setattr(kind, hook, call)
    return answers


# ASER --------------------------------------------------------------------------------------------------------------


def shapley_by_hand(distances: list[float], hits: list[bool], k: int) -> list[float]:
    """The recursion as it is printed, for one point."""
    order, count = sorted(range(len(hits)), key=lambda each: distances[each]), len(hits)
    values = [0.0] * count
    values[order[-1]] = hits[order[-1]] / count
    for rank in range(count - 1, 0, -1):
        here, farther = order[rank - 1], order[rank]
        gained = (int(hits[here]) - int(hits[farther])) / k * min(k, rank) / rank
        values[here] = values[farther] + gained
    return values


@pytest.mark.parametrize("k", [1, 3, 20])
@pytest.mark.parametrize("candidates", [1, 2, 11])
def test_shapley_values_are_those_of_the_recursion(k: int, candidates: int) -> None:
    rng = np.random.default_rng(candidates)
    points, others = rng.normal(size=(6, 4)), rng.normal(size=(candidates, 4))
    classes, labels = rng.integers(0, 3, 6), rng.integers(0, 3, candidates)
    found = shapley(*(torch.from_numpy(each) for each in (points, classes, others, labels)), k)
    for row, (point, label) in enumerate(zip(points, classes, strict=True)):
        distances = np.linalg.norm(others - point, axis=1).tolist()
        expected = shapley_by_hand(distances, (labels == label).tolist(), k)
        assert found[row].tolist() == pytest.approx(expected)


def full_learner(small_learner, digit_batches, **options) -> Learner:
    learner = small_learner(**{"method": "aser", "memory": MemoryConfig(samples=20), "replay": 5} | options)
    for batch in digit_batches([0, 1], 2):
        learner.observe(*batch)
    assert len(learner.memory) == 20
    return learner


@pytest.mark.slow
def test_aser_replays_the_candidates_with_the_highest_adversarial_value(
    small_learner, digit_batches, monkeypatch
) -> None:
    learner = full_learner(small_learner, digit_batches)
    drawn = watched(monkeypatch, ASER, "_balanced")
    learner.network.eval()
    (images, labels) = digit_batches([0, 1], 1, start=2)[0]
    columns = np.array([learner.class_ids.index(label) for label in labels])
    chosen = learner.method.choose_replay(learner.view, images, columns, 2)
    candidates, friends = (learner.memory.at(slots) for slots in drawn)
    assert Counter(candidates.labels.tolist()) == Counter(friends.labels.tolist()) == {0: 3, 1: 3}
    assert not set(candidates.slots) & set(friends.slots)

    def features(inputs: np.ndarray) -> np.ndarray:
        with torch.no_grad():
            return learner.network.features(learner.to_device(inputs)).double().numpy()

    def mean_value(points: np.ndarray, classes: np.ndarray) -> np.ndarray:
        values = [
            shapley_by_hand(
                np.linalg.norm(near - point, axis=1).tolist(), (candidates.labels == c).tolist(), 3
            )
            for point, c in zip(features(points), classes, strict=True)
        ]
        return np.mean(values, axis=0)

    near = features(candidates.inputs)
    score = mean_value(friends.inputs, friends.labels) - mean_value(images, columns)
    best = {int(slot): value for slot, value in zip(candidates.slots, score, strict=True)}
    picked = [best.pop(int(slot)) for slot in chosen.slots]
    assert len(picked) == 2 and min(picked) >= max(best.values()) - 1e-5


@pytest.mark.slow
def test_aser_fills_the_memory_and_then_replaces_held_samples_only(
    small_learner, digit_batches, monkeypatch
) -> None:
    learner = small_learner(method="aser", memory=MemoryConfig(samples=13), replay=5)
    answers = watched(monkeypatch, ASER, "choose_slots")
    for batch in digit_batches([0, 1], 2) + digit_batches([2, 3], 4):
        learner.observe(*batch)
        assert len(learner.memory) == min(13, 10 * len(answers))
    assert answers[0] == dict.fromkeys(range(10))
    assert {row: slot for row, slot in answers[1].items() if row < 3} == {0: None, 1: None, 2: None}
    for answer in answers[2:]:
        assert None not in answer.values() and len(set(answer.values())) == len(answer)
    assert {2, 3} & set(learner.memory.labels().tolist())  # a small memory does not freeze


@pytest.mark.slow
def test_only_incoming_samples_of_classes_with_few_samples_are_points_of_evaluation(
    small_learner, digit_batches, monkeypatch
) -> None:
    learner = full_learner(small_learner, digit_batches, method_options={"per_class": 2})
    asked: list[list[int]] = []

    def spy(points, point_labels, *rest):
        asked.append(point_labels.tolist())
        return shapley(points, point_labels, *rest)

    monkeypatch.setattr("edge_hpcr.learner.methods.aser.shapley", spy)
    held = Counter(learner.memory.labels().tolist())
    images, labels = digit_batches([0, 1, 2], 1, start=3)[0]
    learner.observe(images, labels)
    incoming = Counter(learner.class_ids.index(label) for label in labels)
    of_incoming = Counter(asked[-1]) - Counter({0: 2, 1: 2})
    # Nothing is held of the new class; the others hold more than a third of the memory.
    assert held[2] == 0 and min(held[0], held[1]) > 20 / 3
    assert of_incoming == {2: incoming[2]}


def test_impossible_options_of_aser_are_refused() -> None:
    for options in ({"neighbours": 0}, {"per_class": 0}):
        with pytest.raises(UserError, match=f"{next(iter(options))} 0: give at least 1"):
            Config(**options)


# GSS ---------------------------------------------------------------------------------------------------------------


def cosine(one: list[float], two: list[float]) -> float:
    lengths = [math.sqrt(sum(each**2 for each in vector)) for vector in (one, two)]
    return sum(a * b for a, b in zip(one, two, strict=True)) / (lengths[0] * lengths[1])


def test_a_score_is_the_largest_cosine_of_a_samples_own_gradient(small_learner, digit_batches) -> None:
    learner = small_learner(method="gss", nf=1)
    images, labels = digit_batches([0, 1], 1)[0]
    learner.observe(images, labels)
    network, inputs = learner.network.eval(), learner.to_device(images)
    columns = torch.tensor([learner.class_ids.index(label) for label in labels])

    def by_backward(rows: slice) -> list[float]:
        network.zero_grad()
        torch.nn.functional.cross_entropy(network(inputs[rows])[0], columns[rows]).backward()
        return [value for p in network.parameters() for value in p.grad.flatten().tolist()]

    kept = torch.stack(
        [gss.gradient(network, inputs[half], columns[half]) for half in (slice(5), slice(5, 10))]
    )
    found = gss.similarities(network, inputs[:3], columns[:3], kept)
    held = [by_backward(slice(5)), by_backward(slice(5, 10))]
    for row in range(3):
        own = by_backward(slice(row, row + 1))
        assert found[row] == pytest.approx(max(cosine(own, each) for each in held), abs=1e-4)


@pytest.mark.slow
def test_a_batch_that_agrees_with_the_memory_is_skipped_once_it_is_full(
    small_learner, digit_batches, monkeypatch
) -> None:
    learner = small_learner(method="gss", memory=MemoryConfig(samples=20))
    *held, coming = digit_batches([0, 1], 3)
    for each in held:
        learner.observe(*each)
    before = learner.memory.ids().tolist()
    # The products of its gradient with those of two held batches; after one that is not negative no other is computed.
    for products, changes in (([0.0], False), ([-0.1, 0.5], False), ([-0.1, -0.2], True)):
        pretended = iter([torch.ones(1), *(torch.tensor([each]) for each in products)])
        monkeypatch.setattr(gss, "gradient", lambda *_, given=pretended: next(given))
        # A newcomer with the lowest possible score wins against any held sample.
        monkeypatch.setattr(gss, "similarities", lambda *_: np.full(10, -1.0))
        learner.observe(*coming)
        assert (learner.memory.ids().tolist() != before) == changes
        assert next(pretended, None) is None
    assert learner.method.scores.values.tolist().count(-1.0) == 10


def test_held_samples_with_high_scores_give_way_and_newcomers_win_by_the_ratio_of_scores() -> None:
    held, coming = np.array([0.9, 0.1, -0.5, 0.5]), np.array([0.2])
    rng, won, rounds = np.random.default_rng(0), Counter(), 10_000
    for _ in range(rounds):
        for row, slot in gss.replacements(held, coming, rng).items():
            won[slot] += 1
            assert row == 0
    weights = (held - held.min()) / (held.max() - held.min() + 0.01)
    for slot in range(4):
        expected = weights[slot] / weights.sum() * (held[slot] + 1) / (held[slot] + 1 + coming[0] + 1)
        assert won[slot] / rounds == pytest.approx(expected, abs=0.015)
    both = gss.replacements(held, np.array([-1.0, -1.0]), rng)  # they win whatever they meet
    assert both.keys() == {0, 1} and len(set(both.values())) == 2


def scores_of_held(learner: Learner) -> dict[int, float]:
    held = learner.memory.ids().tolist()
    return dict(zip(held, learner.method.scores.of(held), strict=True))


@pytest.mark.slow
def test_scores_follow_their_samples_when_others_are_removed(
    small_learner, digit_batches, monkeypatch
) -> None:
    learner = small_learner(method="gss", memory=MemoryConfig(samples=20))
    learner.observe(*digit_batches([0, 1], 1)[0])
    assert learner.method.scores.values.tolist() == pytest.approx([gss.FIRST] * 10)
    monkeypatch.setattr(gss, "similarities", lambda *_: np.linspace(0, 0.9, 10))
    learner.observe(*digit_batches([0, 1], 2)[1])
    expected = scores_of_held(learner)
    assert sorted(expected.values()) == pytest.approx(
        sorted([gss.FIRST] * 10 + np.linspace(0, 0.9, 10).tolist())
    )
    for sample in (0, 12):
        assert learner.forget(sample)
        del expected[sample]
    assert learner.rehearse() is not None  # a step that stores nothing
    assert scores_of_held(learner) == expected


@pytest.mark.slow
def test_gss_fills_the_memory_with_as_much_of_a_batch_as_fits(small_learner, digit_batches) -> None:
    learner = small_learner(method="gss", memory=MemoryConfig(samples=13))
    for batch in digit_batches([0, 1], 2):
        learner.observe(*batch)
    assert learner.memory.ids().tolist() == list(range(13)) == learner.method.scores.ids.tolist()


@pytest.mark.slow
def test_scores_stay_with_their_samples_when_large_newcomers_drive_others_out(
    small_learner, monkeypatch
) -> None:
    """Encoded pictures differ in size: while a batch is stored, samples leave and others take their slots."""
    learner = small_learner(method="gss", memory=MemoryConfig(bytes=1_500, codec="png"))
    rng, labels = np.random.default_rng(0), [0, 1] * 5
    flat = np.full((10, 8, 8, 3), 80, np.uint8)
    noisy = rng.integers(0, 256, (10, 8, 8, 3), dtype=np.uint8)
    learner.observe(flat, labels, np.arange(10))
    monkeypatch.setattr(gss, "_agree", lambda one, other: False)  # no batch is skipped
    scores = np.linspace(-0.9, 0, 10)
    monkeypatch.setattr(gss, "similarities", lambda network, inputs, *_: scores[: len(inputs)])
    learner.observe(noisy, labels, np.arange(100, 110))
    expected = dict(zip(range(100, 110), scores, strict=True))
    found = scores_of_held(learner)
    stored = [sample for sample in found if sample >= 100]
    assert 1 < len(stored) < 10  # some of them left again
    for sample in found:
        assert found[sample] == pytest.approx(expected.get(sample, gss.FIRST))


@pytest.mark.slow
def test_gss_keeps_to_a_byte_budget_with_its_scores(small_learner, digit_batches) -> None:
    learner = small_learner(method="gss", memory=MemoryConfig(bytes=3_000))
    for batch in digit_batches([0, 1], 2) + digit_batches([2, 3], 2):
        learner.observe(*batch)
        assert learner.byte_breakdown()["total"] <= 3_000
    assert len(learner.memory) >= 12


def test_impossible_options_of_gss_are_refused() -> None:
    for options in ({"batches": 0}, {"batch_size": 0}):
        with pytest.raises(UserError, match=f"{next(iter(options))} 0: give at least 1"):
            gss.Config(**options)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["aser", "gss", "er_dvc"])
def test_they_choose_among_the_latents_of_a_pre_trained_network(name: str) -> None:
    memory = MemoryConfig(samples=6, codec="latent")
    options: dict[str, Any] = {"height": 64, "width": 64, "stored_views": 2, "memory": memory, "replay": 3}
    learner = Learner(LearnerConfig.recommended("efficientnet_lite0", method=name, **options), "cpu")
    rng = np.random.default_rng(0)
    reports = [
        learner.observe(rng.integers(0, 256, (3, 64, 64, 3), np.uint8), [step % 2, 2, 3]) for step in range(4)
    ]
    assert [report.replayed for report in reports] == [0, 3, 3, 3] and len(learner.memory) == 6
    assert np.isfinite([report.loss for report in reports]).all()
