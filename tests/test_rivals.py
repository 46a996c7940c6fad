"""The rivals that change a loss, a gradient or the classifier: each against a slow loop written from its formula."""

import copy
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from rival_parts import batch_of, cross_entropy, observe, pictures, rival
from torch import Tensor

from edge_hpcr.common.errors import UserError
from edge_hpcr.learner import methods
from edge_hpcr.learner.learner import Learner, LossNotFinite
from edge_hpcr.learner.memory import MemoryConfig
from edge_hpcr.learner.methods import Batch
from edge_hpcr.learner.methods.agem import projected
from edge_hpcr.learner.methods.ss_il import task_wise_distillation

pytestmark = pytest.mark.computes


def loss_of(name: str, batch: Batch, **options: Any) -> float:
    return methods.create(name, options).loss(batch).item()


# ER-ACE ------------------------------------------------------------------------------------------------------------


def test_er_ace_lets_incoming_samples_compete_with_the_classes_of_their_batch_only() -> None:
    batch = batch_of(incoming=[0, 2, 2, 0], replayed=[1, 3, 0])
    rows = [cross_entropy(o, y, [0, 2]) for o, y in zip(batch.logits[:4].tolist(), [0, 2, 2, 0], strict=True)]
    rows += [cross_entropy(o, y, range(4)) for o, y in zip(batch.logits[4:].tolist(), [1, 3, 0], strict=True)]
    assert loss_of("er_ace", batch) == pytest.approx(sum(rows) / 7, rel=1e-5)


def test_er_ace_pushes_no_class_away_that_is_not_incoming() -> None:
    batch = batch_of(incoming=[0, 2, 2, 0], replayed=[])
    logits = batch.logits.clone().requires_grad_()
    methods.create("er_ace").loss(replace(batch, logits=logits)).backward()
    assert logits.grad is not None
    assert (logits.grad[:, [1, 3]] == 0).all() and (logits.grad[:, [0, 2]] != 0).all()


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


def test_derpp_replays_twice_as_many_samples_and_keeps_their_logits() -> None:
    learner = rival("derpp", replay=3, memory=MemoryConfig(samples=20))
    reports = [observe(learner, [0, 1, 2, 3], seed) for seed in range(3)]
    assert [report.replayed for report in reports] == [0, 6, 6]
    assert learner.byte_breakdown()["logits"] == len(learner.memory) * 4 * 2


@pytest.mark.parametrize("option", ["alpha", "beta"])
def test_derpp_refuses_a_negative_weight(option: str) -> None:
    with pytest.raises(UserError, match=f"{option} -1"):
        methods.create("derpp", {option: -1.0})


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


def test_a_gem_steps_by_the_projected_gradient_of_the_incoming_samples() -> None:
    learner = rival("agem", views=False, lr=0.5, ema_decay=None)
    observe(learner, [0, 1, 0, 1])
    # The same pictures with their names exchanged: certain to pull against what the memory holds.
    images = pictures([0, 1, 0, 1])
    before = [parameter.detach().clone() for parameter in learner.network.parameters()]
    learner.observe(images, [1, 0, 1, 0])
    moved = [(b - p.detach()) / 0.5 for b, p in zip(before, learner.network.parameters(), strict=True)]
    reference = learner.method.reference
    along = sum(float((m * r).sum()) for m, r in zip(moved, reference, strict=True))
    squared = sum(float((r * r).sum()) for r in reference)
    assert abs(along) < 1e-3 * squared


def test_a_projection_that_is_not_finite_is_not_taken() -> None:
    learner = rival("agem")
    observe(learner, [0, 1, 0, 1])
    before = {name: value.clone() for name, value in learner.network.state_dict().items()}
    plain = learner.method.loss

    def damaged(batch: Batch) -> Tensor:
        loss = plain(batch)
        learner.method.reference = [torch.full_like(each, math.inf) for each in learner.method.reference]
        return loss

    learner.method.loss = damaged
    with pytest.raises(LossNotFinite):
        observe(learner, [0, 1], seed=3)
    assert all(torch.equal(value, before[name]) for name, value in learner.network.state_dict().items())


# ER-WA -------------------------------------------------------------------------------------------------------------


def two_tasks_of_er_wa(**options: Any) -> Learner:
    """It has not heard yet that the second task has ended, and the newest classes have long weights."""
    learner = rival("er_wa", options)
    observe(learner, [0, 1, 0, 1])
    learner.end_task()
    observe(learner, [2, 3, 2, 3])
    with torch.no_grad():
        for network in (learner.network, learner.average.network):
            network.proxies[2:] *= 3
    return learner


def aligned_by_a_loop(weights: torch.Tensor, old: int) -> torch.Tensor:
    lengths = [math.hypot(*row) for row in weights.tolist()]
    factor = (sum(lengths[:old]) / old) / (sum(lengths[old:]) / (len(lengths) - old))
    assert factor < 0.9
    return torch.tensor(
        [[w * (factor if c >= old else 1) for w in row] for c, row in enumerate(weights.tolist())]
    )


def assert_it_answers_by(learner: Learner, weights: torch.Tensor) -> None:
    answers = learner.predict(pictures([0, 3])).scores
    features = learner.network.eval().features(learner.to_device(pictures([0, 3]))).detach()
    np.testing.assert_allclose(answers, (features @ weights.T).softmax(1).numpy(), rtol=1e-4, atol=1e-6)


def test_er_wa_can_answer_with_new_classes_as_long_as_the_old_ones_and_learn_as_er() -> None:
    learner = two_tasks_of_er_wa(align="predict", clip=False)
    weights = learner.network.proxies.detach().clone()
    expected = aligned_by_a_loop(weights, old=2)
    learner.changed()
    assert_it_answers_by(learner, expected)  # also in the middle of a task
    learner.end_task()
    assert torch.equal(learner.network.proxies, weights)
    assert_it_answers_by(learner, expected)
    averaged = learner.predict(pictures([0]), averaged=True).scores
    features = learner.average.network.features(learner.to_device(pictures([0])))
    weights = aligned_by_a_loop(learner.average.network.proxies, old=2)
    np.testing.assert_allclose(averaged, (features @ weights.T).softmax(1).numpy(), rtol=1e-4, atol=1e-6)


def test_er_wa_gives_the_new_classes_the_mean_length_of_the_old_ones_when_a_task_ends() -> None:
    learner = two_tasks_of_er_wa()
    before = learner.network.proxies.detach().clone()
    assert_it_answers_by(learner, before)
    learner.end_task()
    torch.testing.assert_close(learner.network.proxies.detach(), aligned_by_a_loop(before, old=2))
    assert_it_answers_by(learner, learner.network.proxies.detach())
    averaged = learner.average.network.proxies.norm(dim=1)
    torch.testing.assert_close(averaged[2:].mean(), averaged[:2].mean())


@pytest.mark.parametrize("clip", [True, False])
def test_er_wa_clips_negative_weights_after_each_step_unless_told_not_to(clip: bool) -> None:
    learner = rival("er_wa", {"clip": clip})
    observe(learner, [0, 1, 0, 1])
    assert (learner.network.proxies.min() == 0) == clip
    assert learner.network.proxies.max() > 0


def test_er_wa_still_knows_after_a_checkpoint_and_a_dropped_class_which_classes_are_old(
    tmp_path: Path,
) -> None:
    learner = two_tasks_of_er_wa(align="predict")
    learner.drop_class(0)
    learner.save(tmp_path / "checkpoint")
    restored, _ = Learner.load(tmp_path / "checkpoint", device="cpu")
    assert (restored.method.ended, restored.method.before) == (1, 1)
    assert_it_answers_by(restored, aligned_by_a_loop(learner.network.proxies.detach(), old=1))
    # The first checkpoints had one number.
    restored.method.load_state({"old": torch.tensor(1)})
    assert (restored.method.ended, restored.method.before) == (1, 1)


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
    batches, loss = [], learner.method.loss
    learner.method.loss = lambda batch: batches.append(batch) or loss(batch)
    rows = surrogate()
    report = observe(learner, [2, 2, 1], seed=5)
    (batch,) = batches
    terms = []
    for z, label in zip(batch.features.tolist(), batch.labels.tolist(), strict=True):
        cosines = [sum(a * b for a, b in zip(z, w, strict=True)) for w in rows.tolist()]
        logits = [
            o / math.hypot(*z) / math.hypot(*w) / 0.09 for o, w in zip(cosines, rows.tolist(), strict=True)
        ]
        terms.append(cross_entropy(logits, label, range(3)))
    assert report.loss == pytest.approx(sum(terms) / len(terms), rel=1e-4)
    assert not torch.equal(surrogate(), rows) and not torch.equal(surrogate(), learner.network.proxies)


@pytest.mark.parametrize("surrogate", [True, False])
def test_obc_moves_the_proxies_by_replayed_samples_alone(surrogate: bool) -> None:
    learner = rival("obc", {"surrogate": surrogate}, views=False, memory=MemoryConfig(samples=4), replay=4)
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


def test_ss_il_separates_old_and_new_classes_and_distils_each_earlier_task_for_itself() -> None:
    learner = rival("ss_il")
    observe(learner, [0, 1, 0, 1])
    learner.end_task()
    observe(learner, [2, 3, 2, 3])
    batch = batch_of(incoming=[2, 3, 3], replayed=[0, 1])
    method, teacher = learner.method, learner.method.previous
    assert method.old_classes == 2
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


def test_the_distillation_of_ss_il_is_a_sum_of_divergences_over_earlier_tasks() -> None:
    generator = torch.Generator().manual_seed(3)
    new, old = torch.randn(6, 7, generator=generator), torch.randn(6, 5, generator=generator)
    expected = divergence(new, old, [[0, 1], [2, 3, 4]], 2.0)
    found = task_wise_distillation(new, old, torch.tensor([0, 0, 1, 1, 1]), 2.0)
    assert found.item() == pytest.approx(expected, rel=1e-4)


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


def class_means(learner: Learner) -> np.ndarray:
    held = learner.memory.at(np.arange(len(learner.memory)))
    with torch.no_grad():
        features = learner.network.eval().features(learner.to_device(held.inputs)).double().numpy()
    features /= np.linalg.norm(features, axis=1, keepdims=True)
    means = np.stack([features[held.labels == c].mean(0) for c in range(len(learner.class_ids))])
    return means / np.linalg.norm(means, axis=1, keepdims=True)


def test_scr_answers_by_the_nearest_mean_of_the_samples_in_memory_as_they_are_now() -> None:
    learner = rival("scr", memory=MemoryConfig(samples=30))
    for seed in range(4):
        observe(learner, [0, 1, 2, 3], seed)
    images = pictures([0, 1, 2, 3], seed=50)
    with torch.no_grad():
        features = learner.network.eval().features(learner.to_device(images)).double().numpy()
    cosines = features @ class_means(learner).T / np.linalg.norm(features, axis=1, keepdims=True)
    answer = learner.predict(images)
    np.testing.assert_allclose(answer.similarity, cosines.max(1), rtol=1e-4)
    scores = np.exp(cosines / 0.09) / np.exp(cosines / 0.09).sum(1, keepdims=True)
    np.testing.assert_allclose(answer.scores, scores, rtol=1e-2, atol=1e-5)
    # A sample that leaves the memory leaves the mean.
    mine = learner.memory.at(np.flatnonzero(learner.memory.labels() == 0))
    for sample in mine.ids[1:].tolist():
        learner.forget(sample)
    with torch.no_grad():
        alone = learner.network.features(learner.to_device(mine.inputs[:1])).numpy()[0]
    assert learner.predict(mine.inputs[:1]).similarity[0] == pytest.approx(1.0, abs=1e-4)
    np.testing.assert_allclose(class_means(learner)[0], alone / np.linalg.norm(alone), rtol=1e-3, atol=1e-5)


def test_the_review_of_scr_moves_the_network_a_little_when_a_task_ends_and_needs_boundaries() -> None:
    plain, reviewing = rival("scr"), rival("scr", {"review": True})
    assert not plain.method.needs_boundaries and reviewing.method.needs_boundaries
    for learner, moves in ((plain, False), (reviewing, True)):
        observe(learner, [0, 1, 0, 1])
        before = learner.network.backbone.stem.weight.detach().clone()
        observe(learner, [1, 0, 1, 0], seed=1)
        before = learner.network.backbone.stem.weight.detach().clone()
        learner.end_task()
        assert torch.equal(learner.network.backbone.stem.weight, before) != moves
