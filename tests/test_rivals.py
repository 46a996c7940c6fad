"""The rivals that change a loss, a gradient or the classifier: each against a slow loop written from its formula."""

import copy
import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from rival_parts import batch_of, cross_entropy, directions, loss_of, observe, pictures, recorded, rival
from torch import Tensor

from edge_hpcr.learner.learner import Learner
from edge_hpcr.learner.memory import MemoryConfig
from edge_hpcr.learner.methods.agem import projected

pytestmark = pytest.mark.computes


# ER-ACE ------------------------------------------------------------------------------------------------------------


def test_er_ace_lets_incoming_samples_compete_with_the_classes_of_their_batch_only() -> None:
    batch = batch_of(incoming=[0, 2, 2, 0], replayed=[1, 3, 0])
    rows = [cross_entropy(o, y, [0, 2]) for o, y in zip(batch.logits[:4].tolist(), [0, 2, 2, 0], strict=True)]
    rows += [cross_entropy(o, y, range(4)) for o, y in zip(batch.logits[4:].tolist(), [1, 3, 0], strict=True)]
    assert loss_of("er_ace", batch) == pytest.approx(sum(rows) / 7, rel=1e-5)


# DER++ -------------------------------------------------------------------------------------------------------------


def test_derpp_replays_the_logits_of_one_draw_and_the_labels_of_the_other() -> None:
    # Two draws of two samples each, and a view of all four behind them.
    batch = batch_of(incoming=[0, 1], replayed=[0, 1, 2, 0] * 2, views=2, known=[4, 2, 3, 4] * 2)
    logits, records = batch.logits[2:].tolist(), batch.records.logits.tolist()
    squares, labelled = [], []
    for row, label in enumerate([0, 1, 2, 0] * 2):
        if row % 4 < 2:  # of the first draw
            for c in range(4):
                known = c < [4, 2, 3, 4][row % 4]
                squares.append((logits[row][c] - records[row][c]) ** 2 if known else 0.0)
        else:
            labelled.append(cross_entropy(logits[row], label, range(4)))
    incoming = [cross_entropy(o, y, range(4)) for o, y in zip(batch.logits[:2].tolist(), [0, 1], strict=True)]
    expected = sum(incoming) / 2 + 0.3 * sum(squares) / len(squares) + 0.7 * sum(labelled) / 4
    assert loss_of("derpp", batch, alpha=0.3, beta=0.7) == pytest.approx(expected, rel=1e-5)


# A-GEM -------------------------------------------------------------------------------------------------------------


def test_a_gem_takes_away_what_goes_against_the_reference_and_nothing_else() -> None:
    against, reference = (
        [torch.tensor([1.0, -2.0]), torch.tensor([3.0])],
        [torch.tensor([0.0, 4.0]), torch.tensor([1.0])],
    )
    # g r = -8 + 3 = -5, r r = 17
    (first, second) = projected(against, reference)
    torch.testing.assert_close(first, torch.tensor([1.0, -2.0 + 5 / 17 * 4]))
    torch.testing.assert_close(second, torch.tensor([3.0 + 5 / 17]))
    along = [torch.tensor([1.0, 2.0]), torch.tensor([3.0])]
    assert all(torch.equal(a, b) for a, b in zip(projected(along, reference), along, strict=True))


# ER-WA -------------------------------------------------------------------------------------------------------------


def assert_it_answers_by(learner: Learner, weights: torch.Tensor) -> None:
    answers = learner.predict(pictures([0, 3])).scores
    features = learner.network.eval().features(learner.to_device(pictures([0, 3]))).detach()
    np.testing.assert_allclose(answers, (features @ weights.T).softmax(1).numpy(), rtol=1e-4, atol=1e-6)


def test_er_wa_gives_the_new_classes_the_mean_length_of_the_old_ones_when_a_task_ends() -> None:
    learner = rival("er_wa")
    observe(learner, [0, 1, 0, 1])
    learner.end_task()
    observe(learner, [2, 3, 2, 3])
    with torch.no_grad():
        for network in (learner.network, learner.average.network):
            network.proxies[2:] *= 3
    before = learner.network.proxies.detach().clone()
    # It has not heard yet that the second task has ended.
    assert_it_answers_by(learner, before)
    learner.end_task()
    lengths = [math.hypot(*row) for row in before.tolist()]
    factor = sum(lengths[:2]) / sum(lengths[2:])
    assert factor < 0.9
    aligned = torch.cat([before[:2], factor * before[2:]])
    torch.testing.assert_close(learner.network.proxies.detach(), aligned)
    assert_it_answers_by(learner, learner.network.proxies.detach())
    averaged = learner.average.network.proxies.norm(dim=1)
    torch.testing.assert_close(averaged[2:].mean(), averaged[:2].mean())


# UER ---------------------------------------------------------------------------------------------------------------


def test_uer_learns_incoming_samples_by_the_angle_and_replayed_ones_by_the_product() -> None:
    learner = rival("uer")
    observe(learner, [0, 1, 2, 3])
    proxies = learner.network.proxies.detach()
    features = torch.randn(5, proxies.shape[1], generator=torch.Generator().manual_seed(0))
    batch = batch_of(incoming=[0, 2, 1], replayed=[1, 3])
    batch = replace(batch, features=features, logits=learner.network.logits(features))
    terms = []
    for row, label in enumerate([0, 2, 1, 1, 3]):
        z = features[row].tolist()
        products = [sum(a * b for a, b in zip(z, w.tolist(), strict=True)) for w in proxies]
        if row < 3:
            lengths = [math.hypot(*z) * math.hypot(*w.tolist()) for w in proxies]
            products = [p / n / 0.09 for p, n in zip(products, lengths, strict=True)]
        terms.append(cross_entropy(products, label, range(4)))
    assert learner.method.loss(batch).item() == pytest.approx(sum(terms) / 5, rel=1e-4)


# OBC ---------------------------------------------------------------------------------------------------------------


def test_obc_teaches_the_features_through_a_surrogate_that_starts_where_the_proxies_do() -> None:
    learner = rival("obc", memory=MemoryConfig(samples=4), replay=4)
    surrogate = lambda: learner.network.extra["surrogate"].weight.detach().clone()  # noqa: E731
    observe(learner, [0, 1, 0, 1])
    # While nothing is replayed they move together.
    assert torch.equal(surrogate(), learner.network.proxies)
    learner.add_class(2)
    assert torch.equal(surrogate()[2], learner.network.proxies[2])
    rows, seen = surrogate(), recorded(learner.method)
    observe(learner, [2, 2, 1], seed=5)
    ((batch, loss),) = seen
    terms = []
    for z, label in zip(batch.features.tolist(), batch.labels.tolist(), strict=True):
        cosines = [sum(a * b for a, b in zip(z, w, strict=True)) for w in rows.tolist()]
        logits = [
            o / math.hypot(*z) / math.hypot(*w) / 0.09 for o, w in zip(cosines, rows.tolist(), strict=True)
        ]
        terms.append(cross_entropy(logits, label, range(3)))
    assert loss.item() == pytest.approx(sum(terms) / len(terms), rel=1e-4)
    assert not torch.equal(surrogate(), rows) and not torch.equal(surrogate(), learner.network.proxies)


def test_obc_moves_the_proxies_by_replayed_samples_alone() -> None:
    learner = rival("obc", views=False, memory=MemoryConfig(samples=4), replay=4)
    observe(learner, [0, 1, 0, 1])  # the memory is full of these, whatever comes
    learner.memory.threshold = 0.0
    learner.add_class(2)
    before = learner.network.proxies.detach().clone()
    stem = learner.network.backbone.stem.weight.detach().clone()
    held, network = learner.memory.at(np.arange(4)), copy.deepcopy(learner.network)
    assert set(held.labels.tolist()) == {0, 1}
    observe(learner, [2, 2, 2], seed=5)
    # The step's own pass has moved batch-norm's statistics when the classifier's turn comes.
    buffers = dict(learner.network.named_buffers())
    for name, buffer in network.named_buffers():
        buffer.copy_(buffers[name])
    with torch.no_grad():
        features = network.eval().features(learner.to_device(held.inputs))
    proxies = before.clone().requires_grad_()
    unit = torch.nn.functional.normalize
    logits = unit(features, dim=1) @ unit(proxies, dim=1).T / 0.09
    (gradient,) = torch.autograd.grad(
        torch.nn.functional.cross_entropy(logits, torch.from_numpy(held.labels)), [proxies]
    )
    torch.testing.assert_close(learner.network.proxies.detach(), before - 0.1 * gradient)
    assert not torch.equal(learner.network.backbone.stem.weight, stem)


# SS-IL -------------------------------------------------------------------------------------------------------------


def test_ss_il_separates_old_and_new_classes_and_distils_what_the_network_knew_at_the_end_of_a_task() -> None:
    learner = rival("ss_il")
    method = learner.method
    observe(learner, [0, 1, 0, 1])
    assert method.previous is None and method.old_classes == 0
    learner.end_task()
    expected = {name: tensor.clone() for name, tensor in learner.network.state_dict().items()}
    observe(learner, [2, 3, 2, 3])
    teacher = method.previous
    assert method.old_classes == 2
    for name, tensor in teacher.state_dict().items():
        assert torch.equal(tensor, expected[name]), name
    assert not torch.equal(learner.network.proxies[:2], expected["proxies"])
    batch = batch_of(incoming=[2, 3, 3], replayed=[0, 1])
    rows = [
        cross_entropy(o, y, [2, 3] if y > 1 else [0, 1])
        for o, y in zip(batch.logits.tolist(), [2, 3, 3, 0, 1], strict=True)
    ]
    with torch.no_grad():
        old = teacher.logits(teacher.features(batch.inputs))
    distilled = divergence(batch.logits, old, [[0, 1]], 2.0)
    assert method.loss(batch).item() == pytest.approx(sum(rows) / 5 + distilled, rel=1e-4)


def divergence(new: Tensor, old: Tensor, tasks: list[list[int]], temperature: float) -> float:
    total = 0.0
    for row in range(len(new)):
        for columns in tasks:
            a = [math.exp(old[row, c].item() / temperature) for c in columns]
            b = [math.exp(new[row, c].item() / temperature) for c in columns]
            for p, q in zip(a, b, strict=True):
                total += temperature**2 * p / sum(a) * math.log((p / sum(a)) / (q / sum(b)))
    return total / len(new)


def test_ss_il_replays_samples_of_earlier_tasks_only_and_remembers_the_tasks(tmp_path: Path) -> None:
    learner = rival("ss_il", memory=MemoryConfig(samples=40))
    assert [observe(learner, [0, 1, 0, 1], seed).replayed for seed in range(2)] == [0, 0]
    learner.end_task()
    observe(learner, [2, 3, 2, 3])
    drawn = learner.method.choose_replay(learner.view, pictures([2]), np.array([2]), 30)
    assert len(drawn.ids) == 8 and set(drawn.labels.tolist()) == {0, 1}
    learner.end_task()
    learner.save(tmp_path / "checkpoint")
    restored, _ = Learner.load(tmp_path / "checkpoint", device="cpu")
    assert restored.method.task_of.tolist() == [0, 0, 1, 1]
    restored.drop_class(1)
    assert restored.method.task_of.tolist() == [0, 1, 1] and restored.method.old_classes == 3
    assert observe(restored, [2, 3], 9).replayed == 4


# SCR ---------------------------------------------------------------------------------------------------------------


def test_scr_contrasts_projections_of_samples_with_the_same_class_against_all_others() -> None:
    learner = rival("scr")
    observe(learner, [0, 1, 2, 3])
    batch = batch_of(incoming=[0, 1, 0], replayed=[1, 2])
    features = torch.randn(5, learner.network.feature_size, generator=torch.Generator().manual_seed(1))
    projected = torch.nn.functional.normalize(learner.network.extra["projection"](features), dim=1).tolist()
    labels, terms = [0, 1, 0, 1, 2], []

    def likeness(i: int, j: int) -> float:
        return math.exp(sum(a * b for a, b in zip(projected[i], projected[j], strict=True)) / 0.1)

    for i in range(5):
        others = [j for j in range(5) if j != i]
        same = [j for j in others if labels[j] == labels[i]]
        below = sum(likeness(i, j) for j in others)
        terms.append(-sum(math.log(likeness(i, p) / below) for p in same) / max(1, len(same)))
    found = learner.method.loss(replace(batch, features=features)).item()
    assert found == pytest.approx(sum(terms) / 5, rel=1e-4)


def test_scr_answers_by_the_nearest_mean_of_the_samples_in_memory_as_they_are_now() -> None:
    learner = rival("scr", memory=MemoryConfig(samples=30))
    for seed in range(4):
        observe(learner, [0, 1, 2, 3], seed)
    images = pictures([0, 1, 2, 3], seed=50)
    held = learner.memory.at(np.arange(len(learner.memory)))
    known = directions(learner, held.inputs)
    means = np.stack([known[held.labels == column].mean(0) for column in range(4)])
    cosines = directions(learner, images) @ (means / np.linalg.norm(means, axis=1, keepdims=True)).T
    answer = learner.predict(images)
    np.testing.assert_allclose(answer.similarity, cosines.max(1), rtol=1e-4)
    scores = np.exp(cosines / 0.09) / np.exp(cosines / 0.09).sum(1, keepdims=True)
    np.testing.assert_allclose(answer.scores, scores, rtol=1e-2, atol=1e-5)
