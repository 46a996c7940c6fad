"""The rivals with losses over views, rotations and prototypes: ER-DVC, OCM, OnPro."""

import copy
import math

import numpy as np
import pytest
import torch

from edge_hpcr.common.errors import UserError
from edge_hpcr.learner.learner import Learner
from edge_hpcr.learner.methods import Batch, Method, er_dvc, rotations

pytestmark = pytest.mark.computes


def normal(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def softmax(row: list[float]) -> list[float]:
    total = sum(math.exp(each) for each in row)
    return [math.exp(each) / total for each in row]


# ER-DVC ------------------------------------------------------------------------------------------------------------


def dual_view_by_hand(heads: list[list[list[float]]], labels: list[int], lam: float) -> float:
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
    return cross_entropy / (2 * count) - entropy / 3 + lam * distance / (2 * count * classes)


@pytest.mark.parametrize("lam", [0.0, 4.0])
def test_the_loss_of_er_dvc_is_the_sum_of_its_three_terms(lam: float) -> None:
    heads, labels = [normal(5, 3, seed=seed) for seed in range(3)], [0, 2, 1, 1, 0]
    found = er_dvc.dual_view(*heads, torch.tensor(labels), lam)
    assert found.item() == pytest.approx(dual_view_by_hand([head.tolist() for head in heads], labels, lam))


def test_er_dvc_prefers_a_batch_whose_mean_is_spread_over_the_classes() -> None:
    # The right answers are equally sure in both; only what is said of the batch as a whole differs.
    sure = 20 * torch.eye(2, dtype=torch.float64)
    spread, narrow = torch.tensor([0, 1]), torch.tensor([0, 0])
    loss = {
        name: er_dvc.dual_view(sure[labels], sure[labels], sure[labels], labels, 4.0).item()
        for name, labels in (("spread", spread), ("narrow", narrow))
    }
    assert loss["spread"] == pytest.approx(-math.log(2), abs=1e-6)
    assert loss["narrow"] == pytest.approx(0, abs=1e-6)


@pytest.mark.slow
@pytest.mark.parametrize("views", [True, False])
def test_er_dvc_adds_the_losses_of_incoming_and_replayed_samples(small_learner, digit_batches, views) -> None:
    learner = small_learner(method="er_dvc", replay=3, views=views)
    batches = digit_batches([0, 1], 2)
    learner.observe(*batches[0])
    method, seen = learner.method, []
    own = method.loss

    def spy(batch):
        seen.append((batch, own(batch)))
        return seen[-1][1]

    method.loss = spy
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
        expected += dual_view_by_hand([*logits, together], labels, 4.0)
        begin = second + count
    assert begin == len(batch.labels)
    assert found.item() == pytest.approx(expected, rel=1e-4)


def test_the_size_of_a_gradient_is_that_of_the_linear_layer(small_learner, digit_batches) -> None:
    learner = small_learner(method="er_dvc")
    (images, labels) = digit_batches([0, 1], 1)[0]
    learner.observe(images, labels)
    columns = torch.tensor([learner.class_ids.index(label) for label in labels])
    network, samples = learner.network.eval(), learner.to_device(images)
    found = er_dvc.gradient_size(network, samples, columns)
    with torch.no_grad():
        features = network.features(samples)
        logits = network.logits(features)
    for i, y in enumerate(columns.tolist()):
        error = sum(abs(p - (c == y)) for c, p in enumerate(softmax(logits[i].tolist())))
        length = sum(abs(each) for each in features[i].tolist())
        assert found[i].item() == pytest.approx(error * length, rel=1e-4)


@pytest.mark.slow
def test_er_dvc_replays_the_candidates_whose_gradient_grows_most(
    small_learner, digit_batches, monkeypatch
) -> None:
    learner = small_learner(method="er_dvc")
    first, second, third = digit_batches([0, 1], 3)
    for batch in (first, second):
        learner.observe(*batch)
    sizes = []
    own = er_dvc.gradient_size

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


def test_impossible_options_of_er_dvc_are_refused() -> None:
    with pytest.raises(UserError, match="lam -1: a weight of a loss is not negative"):
        er_dvc.Config(lam=-1)
    with pytest.raises(UserError, match="candidates 0: give at least 1"):
        er_dvc.Config(candidates=0)


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


def similarities_by_hand(projections: torch.Tensor, features: torch.Tensor, first: int) -> list[list[float]]:
    size = projections.shape[1]
    directions = [(row / row.norm()).tolist()[first : first + size] for row in features]
    rows = projections.tolist()
    return [
        [
            sum(a * (b + c) for a, b, c in zip(i, j, part, strict=True))
            for j, part in zip(rows, directions, strict=True)
        ]
        for i in rows
    ]


def test_the_contrasts_are_those_of_the_formulas() -> None:
    projections, features = torch.nn.functional.normalize(normal(8, 3), dim=1), normal(8, 7, seed=1)
    labels = [0, 1, 0, 2, 0, 1, 0, 2]
    similar = rotations.similarities(projections, features, 2)
    by_hand = similarities_by_hand(projections, features, 2)
    assert torch.allclose(similar, torch.tensor(by_hand, dtype=torch.float64))
    found = rotations.contrast(similar, torch.tensor(labels), 0.3).item()
    assert found == pytest.approx(contrast_by_hand(by_hand, labels, 0.3))
    found = rotations.contrast_views(similar, torch.tensor(labels), 0.3, views=2).item()
    assert found == pytest.approx(contrast_views_by_hand(by_hand, labels, 0.3))


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


def test_images_that_are_not_square_are_refused_in_one_line() -> None:
    with pytest.raises(UserError, match="images of 8x10 cannot be turned by 90 degrees"):
        rotations.rotated(torch.zeros(1, 3, 8, 10))


# OCM ---------------------------------------------------------------------------------------------------------------


def recorded(method: Method) -> list[tuple[Batch, float]]:
    """The batches whose loss is computed from now on, with the losses."""
    seen, own = [], method.loss

    def spy(batch: Batch) -> torch.Tensor:
        seen.append((batch, own(batch)))
        return seen[-1][1]

    method.loss = spy
    return seen


def rotated_group(learner: Learner, batch: Batch, group: slice) -> tuple[torch.Tensor, list[int]]:
    """All rotations of a group's first views, then of its second ones, with their classes."""
    views = batch.inputs[group].chunk(batch.views)
    labels = batch.labels[group].chunk(batch.views)[0]
    pseudo = [y + learner.network.num_classes * turn for turn in range(16) for y in labels.tolist()]
    return torch.cat([rotations.rotated(view) for view in views]), pseudo


@pytest.mark.slow
@pytest.mark.parametrize("later", [False, True])
def test_the_loss_of_ocm_is_the_sum_of_its_terms(small_learner, digit_batches, later: bool) -> None:
    learner = small_learner(method="ocm", replay=3)
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
        projections = torch.nn.functional.normalize(network.extra["projection"](features), dim=1)
    sizes = [len(each) for each in images]
    parts = list(zip(projections.split(sizes), features.split(sizes), strict=True))
    expected = contrast_views_by_hand(similarities_by_hand(*parts[0], 0), labels[0] * 2, 0.07)
    classified = batch.replayed if later else batch.incoming
    logits = batch.logits[classified].chunk(2)[1]
    targets = batch.labels[classified].chunk(2)[1].tolist()
    expected -= sum(math.log(softmax(row)[y]) for row, y in zip(logits.tolist(), targets, strict=True)) / len(
        targets
    )
    if later:
        previous = learner.method.previous
        plain = images[1].chunk(2)[0]
        augmented = batch.inputs[batch.replayed].chunk(2)[1]
        with torch.no_grad():
            keys = torch.nn.functional.normalize(
                previous.extra["projection"](previous.features(plain)), dim=1
            )
            said = previous.logits(previous.features(augmented))
        expected += contrast_by_hand(similarities_by_hand(*parts[1], 0), labels[1] * 2, 0.07)
        expected += contrast_by_hand((parts[1][0][: len(plain)] @ keys.T).tolist(), labels[1], 0.07)
        assert said.shape == (3, 2) and batch.num_classes == 4
        expected += sum(((logits[:, c] - said[:, c]) ** 2).sum().item() for c in range(2)) / 6
    assert found.item() == pytest.approx(expected, rel=1e-3)


@pytest.mark.slow
def test_after_the_first_task_ocm_does_not_classify_incoming_images(small_learner, digit_batches) -> None:
    learner = small_learner(method="ocm", replay=3)
    learner.observe(*digit_batches([0, 1], 1)[0])
    gradients = []
    for ended in (False, True):
        if ended:
            learner.end_task()
        seen = recorded(learner.method)
        own = learner.method.loss

        def watch(batch: Batch, own=own) -> torch.Tensor:
            batch.logits.retain_grad()
            return own(batch)

        learner.method.loss = watch
        learner.observe(*digit_batches([0, 1], 2)[1])
        batch = seen[-1][0]
        gradients.append(
            [batch.logits.grad[part].abs().sum().item() > 0 for part in (batch.incoming, batch.replayed)]
        )
        del learner.method.loss
    assert gradients == [[True, False], [False, True]]


@pytest.mark.parametrize("name", ["ocm"])
def test_a_second_network_counts_in_the_bytes_and_comes_back_from_a_checkpoint(
    name: str, small_learner, digit_batches, tmp_path
) -> None:
    learner = small_learner(method=name, replay=3)
    learner.observe(*digit_batches([0, 1], 1)[0])
    weights = sum(tensor.nbytes for tensor in learner.network.state_dict().values())
    assert learner.byte_breakdown()["method"] == weights
    learner.end_task()
    learner.observe(*digit_batches([2, 3], 1)[0])
    learner.save(tmp_path / "checkpoint")
    restored, _ = Learner.load(tmp_path / "checkpoint", device="cpu")
    batch = digit_batches([2, 3], 2)[1]
    assert restored.observe(*batch).loss == learner.observe(*batch).loss
    learner.drop_class(learner.class_ids[0])
    assert np.isfinite(learner.observe(*batch).loss)
