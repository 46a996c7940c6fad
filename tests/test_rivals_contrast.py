"""The rivals with losses over views, rotations and prototypes: ER-DVC, OCM, OnPro."""

import math

import numpy as np
import pytest
import torch

from edge_hpcr.common.errors import UserError
from edge_hpcr.learner.methods import er_dvc

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
