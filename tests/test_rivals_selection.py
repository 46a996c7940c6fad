"""The rivals that choose what the memory keeps: ASER by Shapley values, GSS by gradients."""

from collections import Counter

import numpy as np
import pytest
import torch

from edge_hpcr.learner.memory import MemoryConfig
from edge_hpcr.learner.methods import gss
from edge_hpcr.learner.methods.aser import ASER, shapley

pytestmark = pytest.mark.computes


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


@pytest.mark.slow
def test_aser_replays_the_candidates_with_the_highest_adversarial_value(
    small_learner, digit_batches, monkeypatch
) -> None:
    learner = small_learner(method="aser", memory=MemoryConfig(samples=20), replay=5)
    for batch in digit_batches([0, 1], 2):
        learner.observe(*batch)
    drawn, own = [], ASER._balanced

    def balanced(*given, **without):
        drawn.append(own(*given, **without))
        return drawn[-1]

    monkeypatch.setattr(ASER, "_balanced", balanced)
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


# GSS ---------------------------------------------------------------------------------------------------------------


def test_a_score_is_the_largest_cosine_of_a_samples_own_gradient(small_learner, digit_batches) -> None:
    learner = small_learner(method="gss", nf=1)
    images, labels = digit_batches([0, 1], 1)[0]
    learner.observe(images, labels)
    network, inputs = learner.network.eval(), learner.to_device(images)
    columns = torch.tensor([learner.class_ids.index(label) for label in labels])

    def by_backward(rows: slice) -> torch.Tensor:
        network.zero_grad()
        torch.nn.functional.cross_entropy(network(inputs[rows])[0], columns[rows]).backward()
        return torch.cat([parameter.grad.flatten() for parameter in network.parameters()])

    kept = torch.stack(
        [gss.gradient(network, inputs[half], columns[half]) for half in (slice(5), slice(5, 10))]
    )
    found = gss.similarities(network, inputs[:3], columns[:3], kept)
    held = torch.stack([by_backward(slice(5)), by_backward(slice(5, 10))])
    for row in range(3):
        cosines = torch.cosine_similarity(held, by_backward(slice(row, row + 1))[None])
        assert found[row] == pytest.approx(cosines.max().item(), abs=1e-4)


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
    assert list(learner.method.scores.values()).count(-1.0) == 10


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
