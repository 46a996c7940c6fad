"""The rivals with losses over views, rotations and prototypes: ER-DVC, OCM, OnPro."""

import copy
import math
from collections import Counter

import numpy as np
import pytest
import torch
from rival_parts import recorded

from edge_hpcr.learner.learner import Learner
from edge_hpcr.learner.memory import MemoryConfig
from edge_hpcr.learner.methods import Batch, er_dvc, onpro, rotations
from edge_hpcr.learner.network import Network

pytestmark = pytest.mark.computes


def normal(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def softmax(row: list[float]) -> list[float]:
    total = sum(math.exp(each) for each in row)
    return [math.exp(each) / total for each in row]


# ER-DVC ------------------------------------------------------------------------------------------------------------


def dual_view_by_hand(heads: list[list[list[float]]], labels: list[int], weight: float) -> float:
    """The three terms written out; `heads` are the logits of the first view, of the second and of both."""
    shares = [[softmax(row) for row in head] for head in heads]
    first, second, both = shares
    count, classes = len(labels), len(first[0])
    cross_entropy = -sum(math.log(view[i][y]) for view in (first, second) for i, y in enumerate(labels))
    entropy = 0.0
    for share in shares:
        for c in range(classes):
            mean = sum(row[c] for row in share) / count
            entropy -= mean * math.log(mean)
    distance = sum(
        abs(both[i][c] - view[i][c]) for view in (first, second) for i in range(count) for c in range(classes)
    )
    return cross_entropy / (2 * count) - entropy / 3 + weight * distance / (2 * count)


@pytest.mark.slow
@pytest.mark.parametrize("views", [True, False])
def test_er_dvc_adds_the_losses_of_incoming_and_replayed_samples(small_learner, digit_batches, views) -> None:
    learner = small_learner(method="er_dvc", replay=3, views=views)
    batches = digit_batches([0, 1], 2)
    learner.observe(*batches[0])
    seen = recorded(learner.method)
    into, out = (learner.network.extra[name].weight.detach().clone() for name in ("joint_in", "joint_out"))
    assert into.shape == (2, 256) and out.shape == (2, 128) and into.std() > 0.01 and out.std() > 0.01
    learner.observe(*batches[1])
    batch, found = seen[-1]
    expected, begin = 0.0, 0
    for count in (10, 3):
        second = begin + count if views else begin
        first_view, second_view = (batch.logits[at : at + count] for at in (begin, second))
        hidden = (first_view @ into[:, :128] + second_view @ into[:, 128:]).clamp_min(0)
        logits = [first_view.tolist(), second_view.tolist()]
        together = (hidden @ out.T).tolist()
        labels = batch.labels[begin : begin + count].tolist()
        expected += dual_view_by_hand([*logits, together], labels, 4.0 / 100)
        begin = second + count
    assert begin == len(batch.labels)
    assert found.item() == pytest.approx(expected, rel=1e-4)


@pytest.mark.slow
def test_er_dvc_replays_the_candidates_whose_gradient_grows_most(
    small_learner, digit_batches, monkeypatch
) -> None:
    learner = small_learner(method="er_dvc")
    first, second, third = digit_batches([0, 1], 3)
    for batch in (first, second):
        learner.observe(*batch)
    sizes, own = [], er_dvc.gradient_size

    def spy(*arguments):
        sizes.append((own(*arguments), arguments[2]))
        return sizes[-1][0]

    monkeypatch.setattr(er_dvc, "gradient_size", spy)
    before = [tensor.clone() for tensor in learner.network.state_dict().values()]
    columns = np.array([learner.class_ids.index(label) for label in third[1]])
    chosen = learner.method.choose_replay(learner.view, third[0], columns, 4)
    (later, labels), (now, _) = sizes
    growth = (later - now).tolist()
    best = sorted(range(20), key=lambda each: -growth[each])[:4]
    assert chosen.labels.tolist() == labels[best].tolist() and len(growth) == 20
    for tensor, old in zip(learner.network.state_dict().values(), before, strict=True):
        assert torch.equal(tensor, old)  # scoring is done on a copy


# Rotations, which OCM and OnPro share --------------------------------------------------------------------------------


def contrast_by_hand(similar: list[list[float]], labels: list[float], tau: float) -> float:
    rows, total = range(len(labels)), 0.0
    for i in rows:
        shares = softmax([each / tau for each in similar[i]])
        own = [-math.log(shares[p]) for p in rows if labels[p] == labels[i]]
        total += sum(own) / len(own)
    return total / len(labels)


def contrast_views_by_hand(similar: list[list[float]], labels: list[float], tau: float) -> float:
    rows, half, total = range(len(labels)), len(labels) // 2, 0.0
    for i in rows:
        others = [j for j in rows if j != i]
        shares = dict(zip(others, softmax([similar[i][j] / tau for j in others]), strict=True))
        same = [p for p in rows if labels[p] == labels[i]]
        total -= math.log(shares[(i + half) % len(labels)])
        total -= 2 * sum(math.log(shares[p]) for p in same if p != i) / len(same)
    return total / len(labels)


def projected(network: Network, features: torch.Tensor) -> torch.Tensor:
    return torch.nn.functional.normalize(network.extra["projection"](features), dim=1)


def similarities_by_hand(
    projections: torch.Tensor, features: torch.Tensor, first: int = 0, scale: float = 1.0
) -> list[list[float]]:
    size = projections.shape[1]
    directions = [(row / row.norm()).tolist()[first : first + size] for row in features]
    rows = projections.tolist()
    return [
        [
            scale * sum(a * (b + c) for a, b, c in zip(i, j, part, strict=True))
            for j, part in zip(rows, directions, strict=True)
        ]
        for i in rows
    ]


def test_similarities_take_a_random_part_of_longer_features() -> None:
    projections, features = torch.nn.functional.normalize(normal(8, 3), dim=1), normal(8, 7, seed=1)
    first = int(np.random.default_rng(3).integers(7 - 3))
    similar = rotations.similarities(projections, features, np.random.default_rng(3))
    by_hand = similarities_by_hand(projections, features, first)
    assert first > 0
    assert torch.allclose(similar, torch.tensor(by_hand, dtype=torch.float64))


@pytest.mark.parametrize("side", [4, 5])
def test_an_image_has_16_rotations_of_its_halves_and_of_the_whole(side: int) -> None:
    image = torch.arange(3 * side * side, dtype=torch.float32).reshape(1, 3, side, side)
    every = rotations.rotated(image)
    assert len({tuple(each.flatten().tolist()) for each in every}) == len(every) == 16
    assert torch.equal(every[0], image[0])
    # The right half upside down; then that by a quarter turn.
    half, picture = side // 2, image[0].numpy()
    right = np.concatenate([picture[:, :, :half], picture[:, ::-1, half:][:, :, ::-1]], axis=2)
    assert np.array_equal(every[1].numpy(), right)
    assert np.array_equal(every[5].numpy(), np.rot90(right, axes=(1, 2)))
    labels = rotations.rotated_labels(torch.tensor([2]), 3)
    assert labels.tolist() == [2 + 3 * turn for turn in range(16)]


# OCM ---------------------------------------------------------------------------------------------------------------


def rotated_group(learner: Learner, batch: Batch, group: slice) -> tuple[torch.Tensor, list[int]]:
    """All rotations of a group's first views, then of its second ones, with their classes."""
    views = batch.inputs[group].chunk(batch.views)
    labels = batch.labels[group].chunk(batch.views)[0]
    pseudo = [y + learner.network.num_classes * turn for turn in range(16) for y in labels.tolist()]
    return torch.cat([rotations.rotated(view) for view in views]), pseudo


@pytest.mark.slow
@pytest.mark.parametrize("later", [False, True])
def test_the_loss_of_ocm_is_the_sum_of_its_terms(small_learner, digit_batches, later: bool) -> None:
    learner = small_learner(method="ocm", replay=3, method_options={"scale": 0.5})
    learner.observe(*digit_batches([0, 1], 1)[0])
    if later:
        learner.end_task()
    seen = recorded(learner.method)
    before = copy.deepcopy(learner.network)
    learner.observe(*(digit_batches([2, 3], 1)[0] if later else digit_batches([0, 1], 2)[1]))
    batch, found = seen[-1]
    network = before.train()
    while network.num_classes < batch.num_classes:
        network.append_proxy(torch.zeros(network.feature_size))

    groups = [batch.incoming, batch.replayed] if later else [batch.incoming]
    images, labels = zip(*(rotated_group(learner, batch, group) for group in groups), strict=True)
    with torch.no_grad():
        features = network.features(torch.cat(images))
        projections = projected(network, features)
    sizes = [len(each) for each in images]
    parts = list(zip(projections.split(sizes), features.split(sizes), strict=True))
    scale = 0.5 if later else 1.0

    expected = contrast_views_by_hand(similarities_by_hand(*parts[0], scale=scale), labels[0] * 2, 0.07)
    classified = batch.replayed if later else batch.incoming
    logits = batch.logits[classified].chunk(2)[1]
    targets = batch.labels[classified].chunk(2)[1].tolist()
    terms = [math.log(softmax(row)[y]) for row, y in zip(logits.tolist(), targets, strict=True)]
    expected -= sum(terms) / len(terms)
    if later:
        previous = learner.method.previous
        plain = images[1].chunk(2)[0]
        augmented = batch.inputs[batch.replayed].chunk(2)[1]
        with torch.no_grad():
            keys = projected(previous, previous.features(plain))
            said = previous.logits(previous.features(augmented))
        expected += contrast_by_hand(similarities_by_hand(*parts[1], scale=scale), labels[1] * 2, 0.07)
        expected += contrast_by_hand((parts[1][0][: len(plain)] @ keys.T).tolist(), labels[1], 0.07)
        assert said.shape == (3, 2) and batch.num_classes == 4
        expected += sum(((logits[:, c] - said[:, c]) ** 2).sum().item() for c in range(2)) / 6
    assert found.item() == pytest.approx(expected, rel=1e-3)


# OnPro -------------------------------------------------------------------------------------------------------------


def prototype_contrast_by_hand(views: list[torch.Tensor], labels: list[int], tau: float) -> float:
    classes, prototypes = sorted(set(labels)), []
    for view in views:
        for c in classes:
            mean = torch.stack([view[i] for i, y in enumerate(labels) if y == c]).mean(0)
            prototypes.append(mean / mean.norm())
    total, count = 0.0, len(prototypes)
    for i in range(count):
        exponents = {
            j: math.exp((prototypes[i] @ prototypes[j]).item() / tau) for j in range(count) if j != i
        }
        total -= math.log(exponents[(i + len(classes)) % count] / sum(exponents.values()))
    return total / count


def test_prototypes_attract_their_other_view_and_repel_other_classes() -> None:
    views = [torch.nn.functional.normalize(normal(6, 4, seed=seed), dim=1) for seed in (0, 1)]
    labels = [0, 3, 1, 3, 3, 0]
    loss, means = onpro.prototype_contrast(views, torch.tensor(labels), 5, 0.5)
    assert loss.item() == pytest.approx(prototype_contrast_by_hand(views, labels, 0.5))
    # By class, over both views; nothing is known of a class that is not there.
    assert torch.allclose(means[3], torch.cat([view[[1, 3, 4]] for view in views]).mean(0))
    assert means[[2, 4]].abs().sum() == 0 and means.shape == (5, 4)
    alone, _ = onpro.prototype_contrast(views, torch.zeros(6, dtype=torch.int64), 5, 0.5)
    assert alone.item() == 0


def test_classes_that_are_near_are_mixed_more_often(small_learner, digit_batches) -> None:
    learner = small_learner(method="onpro", replay=3, memory=MemoryConfig(samples=40))
    for batch in digit_batches([0, 1, 2, 3], 4):
        learner.observe(*batch)
    assert set(learner.memory.labels().tolist()) == {0, 1, 2, 3}
    # Columns 0 and 2 are near each other, 1 is far from both, and nothing is known of 3.
    places = torch.tensor([[1.0, 0.0], [-2.0, 0.0], [1.0, 0.4], [0.0, 0.0]])
    mixed = onpro.mixed_pairs(learner.view, places, 2000, 0.5)
    closeness = {
        pair: math.exp(1 / (places[pair[0]] - places[pair[1]]).norm().item())
        for pair in ((0, 1), (0, 2), (1, 2))
    }
    met = Counter(zip(mixed.first.tolist(), mixed.second.tolist(), strict=True))
    assert met.keys() == closeness.keys()
    for pair, weight in closeness.items():
        assert met[pair] / 2000 == pytest.approx(weight / sum(closeness.values()), abs=0.05)
    assert mixed.share.min() >= 0 and mixed.share.max() <= 1
    assert (mixed.share > 0).float().mean().item() == pytest.approx(0.5, abs=0.05)
    held = learner.memory.at(np.arange(len(learner.memory)))
    unmixed = mixed.images[mixed.share == 0][:5]
    for image, column in zip(unmixed, mixed.first[mixed.share == 0].tolist(), strict=False):
        own = learner.to_device(held.inputs[held.labels == column])
        assert (own == image).flatten(1).all(1).any()
    assert onpro.mixed_pairs(learner.view, places[:1], 5, 1.0) is None
    assert onpro.mixed_pairs(learner.view, places, 0, 1.0) is None


@pytest.mark.slow
@pytest.mark.parametrize("later", [False, True])
def test_the_loss_of_onpro_is_the_sum_of_its_terms(
    small_learner, digit_batches, monkeypatch, later: bool
) -> None:
    options = {"alpha": 0.5, "mix": 1.0, "scale": 0.5}
    learner = small_learner(method="onpro", replay=4, method_options=options)
    learner.observe(*digit_batches([0, 1], 1)[0])
    if later:
        learner.end_task()
    learner.observe(*digit_batches([0, 1], 2)[1])
    shown, mixtures = [], []
    project, mix = rotations.project_rotated, onpro.mixed_at_random
    monkeypatch.setattr(
        rotations, "project_rotated", lambda *given: (shown.append(given[1]), project(*given))[1]
    )
    monkeypatch.setattr(onpro, "mixed_at_random", lambda *given: mixtures.append(mix(*given)) or mixtures[-1])
    seen = recorded(learner.method)
    network = copy.deepcopy(learner.network).train()
    learner.observe(*digit_batches([0, 1], 3)[2])
    batch, found = seen[-1]

    views = [torch.cat([rotations.rotated(view) for view in group]) for group in shown[0]]
    with torch.no_grad():
        features = network.features(torch.cat(views)).split([len(view) for view in views])
        projections = [projected(network, each) for each in features]
        replayed = list(projected(network, batch.features[batch.replayed]).chunk(2))
    labels = batch.labels[:10].tolist()
    pseudo = [y + 2 * turn for turn in range(16) for y in labels] * 2
    scale = 0.5 if later else 1.0
    similar = similarities_by_hand(projections[0], features[0], scale=scale)
    expected = contrast_views_by_hand(similar, pseudo, 0.07)
    expected += prototype_contrast_by_hand([projections[0][:10], projections[0][160:170]], labels, 0.5)
    expected += prototype_contrast_by_hand(replayed, batch.labels[batch.replayed][:4].tolist(), 0.5)
    if later:
        mixed = mixtures[0]
        assert len(mixed.images) == 4 and len(shown[0]) == 2
        between = ((1 - mixed.share.double()) * mixed.first + mixed.share.double() * mixed.second).tolist()
        similar = similarities_by_hand(projections[1], features[1], scale=scale)
        pseudo = [y + 2 * turn for turn in range(16) for y in between] * 2
        expected += contrast_by_hand(similar, pseudo, 0.07)
        with torch.no_grad():
            logits = network.logits(features[1][64:68]).tolist()
        facts = zip(mixed.first.tolist(), mixed.second.tolist(), mixed.share.tolist(), logits, strict=True)
        for first, second, share, row in facts:
            said = softmax(row)
            expected -= ((1 - share) * math.log(said[first]) + share * math.log(said[second])) / 4
    else:
        assert not mixtures and len(shown[0]) == 1
        rows = zip(batch.logits[10:20].tolist(), labels, strict=True)
        expected -= sum(math.log(softmax(row)[y]) for row, y in rows) / 10
    assert found.item() == pytest.approx(expected, rel=1e-3)
