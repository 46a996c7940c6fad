"""Every loss against a slow loop of Python floats, written from the paper's equation as hpcr.md corrects it."""

import math
from collections.abc import Callable
from typing import NamedTuple

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from edge_hpcr.learner import losses

pytestmark = pytest.mark.computes

TAU = 0.09
HIGH, LOW, CYCLE = 0.16, 0.05, 500


class Case(NamedTuple):
    """A random batch, and what a memory would have recorded of the same rows."""

    logits: Tensor
    features: Tensor
    labels: Tensor
    old_logits: Tensor
    old_features: Tensor
    known: Tensor
    eligible: Tensor

    @property
    def counts(self) -> Tensor:
        return losses.class_counts(self.labels, self.logits.shape[1])

    @property
    def held(self) -> Tensor:
        return losses.known_classes(self.known, self.logits.shape[1]) & self.eligible[:, None]


def random_case(rows: int, classes: int, size: int, seed: int) -> Case:
    generator = torch.Generator().manual_seed(seed)

    def normal(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator, dtype=torch.float64)

    def whole(low: int, high: int) -> Tensor:
        return torch.randint(low, high, (rows,), generator=generator)

    return Case(
        logits=4 * normal(rows, classes),
        features=normal(rows, size),
        labels=whole(0, classes),
        old_logits=4 * normal(rows, classes),
        old_features=normal(rows, size),
        known=whole(0, classes + 1),
        eligible=whole(0, 2).bool(),
    )


cases = st.builds(
    random_case, st.integers(1, 9), st.integers(1, 7), st.integers(2, 5), st.integers(0, 2**32 - 1)
)
for_all_batches = settings(max_examples=40, deadline=None, derandomize=True)

# The paper's equations, in loops -----------------------------------------------------------------------------------


def mean(values: list[float]) -> float:
    return sum(values) / len(values)


def exp_pair(features: list[list[float]], i: int, j: int) -> float:
    """exp(<z_i, z_j>/tau)"""
    dot = sum(a * b for a, b in zip(features[i], features[j], strict=True))
    return math.exp(dot / math.hypot(*features[i]) / math.hypot(*features[j]) / TAU)


def others(count: int, i: int) -> list[int]:
    """J: everything in the batch but the anchor."""
    return [j for j in range(count) if j != i]


def slow_er(c: Case) -> float:
    rows, labels = c.logits.tolist(), c.labels.tolist()
    return mean(
        [-math.log(math.exp(o[y]) / sum(math.exp(v) for v in o)) for o, y in zip(rows, labels, strict=True)]
    )


def slow_pcr(c: Case) -> float:
    rows, labels = c.logits.tolist(), c.labels.tolist()
    terms = []
    for o, y in zip(rows, labels, strict=True):
        below = sum(labels.count(k) * math.exp(o[k]) for k in range(len(o)))
        terms.append(-math.log(math.exp(o[y]) / below))
    return mean(terms)


def slow_pcr_contrastive(c: Case) -> float:
    rows, z, labels = c.logits.tolist(), c.features.tolist(), c.labels.tolist()
    terms = []
    for i, (o, y) in enumerate(zip(rows, labels, strict=True)):
        below = sum(labels.count(k) * math.exp(o[k]) for k in range(len(o)))
        samples = [p for p in others(len(z), i) if labels[p] == y]
        if not samples:
            terms.append(-math.log(math.exp(o[y]) / below))
            continue
        below += sum(exp_pair(z, i, j) for j in others(len(z), i))
        # Every sample of the class brings its proxy, the anchor's own too.
        above = [math.exp(o[y])] * labels.count(y) + [exp_pair(z, i, p) for p in samples]
        terms.append(-mean([math.log(each / below) for each in above]))
    return mean(terms)


def slow_scr(c: Case) -> float:
    z, labels = c.features.tolist(), c.labels.tolist()
    terms = []
    for i, y in enumerate(labels):
        positives = [p for p in others(len(z), i) if labels[p] == y]
        logs = [
            math.log(exp_pair(z, i, p) / sum(exp_pair(z, i, j) for j in others(len(z), i))) for p in positives
        ]
        terms.append(-sum(logs) / len(positives) if positives else 0.0)
    return mean(terms)


def slow_couple_2(c: Case) -> float:
    rows, z, labels = c.logits.tolist(), c.features.tolist(), c.labels.tolist()
    terms = []
    for i, (o, y) in enumerate(zip(rows, labels, strict=True)):
        below = sum(math.exp(v) for v in o) + sum(exp_pair(z, i, j) for j in others(len(z), i))
        terms.append(-math.log(math.exp(o[y]) / below))
    return mean(terms)


def slow_pcd(c: Case) -> float:
    labels = c.labels.tolist()
    terms = []
    for i, (new, old) in enumerate(zip(c.logits.tolist(), c.old_logits.tolist(), strict=True)):
        known = range(int(c.known[i])) if c.eligible[i] else range(0)
        terms.append(sum(labels.count(k) * (new[k] - old[k]) ** 2 for k in known) / len(labels))
    return mean(terms)


def slow_scd(c: Case) -> float:
    new, old, eligible = c.features.tolist(), c.old_features.tolist(), c.eligible.tolist()
    terms = []
    for i in range(len(new)):
        pairs = [j for j in others(len(new), i) if eligible[i] and eligible[j]]
        all_old = sum(exp_pair(old, i, j) for j in pairs)
        all_new = sum(exp_pair(new, i, j) for j in pairs)
        terms.append(
            -sum(exp_pair(old, i, j) / all_old * math.log(exp_pair(new, i, j) / all_new) for j in pairs)
        )
    return mean(terms)


def slow_der(c: Case) -> float:
    terms = []
    for i, (new, old) in enumerate(zip(c.logits.tolist(), c.old_logits.tolist(), strict=True)):
        known = range(int(c.known[i])) if c.eligible[i] else range(0)
        terms.append(sum((new[k] - old[k]) ** 2 for k in known) / len(new))
    return mean(terms)


# Ours, and the loop.
LOSSES: dict[str, tuple[Callable[[Case], Tensor], Callable[[Case], float]]] = {
    "er": (lambda c: losses.replay_cross_entropy(c.logits, c.labels), slow_er),
    "pcr": (lambda c: losses.pcr(c.logits, c.labels), slow_pcr),
    "pcr_contrastive": (
        lambda c: losses.pcr_contrastive(c.logits, c.features, c.labels, TAU),
        slow_pcr_contrastive,
    ),
    "scr": (lambda c: losses.supervised_contrastive(c.features, c.labels, TAU), slow_scr),
    "couple_2": (
        lambda c: losses.cross_entropy_with_samples(c.logits, c.features, c.labels, TAU),
        slow_couple_2,
    ),
    "pcd": (lambda c: losses.pcd(c.logits, c.old_logits, c.held, c.counts), slow_pcd),
    "scd": (lambda c: losses.scd(c.features, c.old_features, c.eligible, TAU), slow_scd),
    "der": (lambda c: losses.der(c.logits, c.old_logits, c.held), slow_der),
}
every_loss = pytest.mark.parametrize("name", LOSSES)


def loss_with_finite_gradients(name: str, case: Case) -> float:
    logits, features = case.logits.clone().requires_grad_(), case.features.clone().requires_grad_()
    loss = LOSSES[name][0](case._replace(logits=logits, features=features))
    loss.backward()
    reached = [leaf.grad for leaf in (logits, features) if leaf.grad is not None]
    assert reached and all(gradient.isfinite().all() for gradient in reached)
    return loss.item()


@pytest.mark.slow
@every_loss
@for_all_batches
@given(case=cases)
def test_the_loss_is_the_papers_equation(name: str, case: Case) -> None:
    _, by_the_loop = LOSSES[name]
    # The inputs are 64-bit, the class counts inside the losses 32-bit.
    expected = pytest.approx(by_the_loop(case), rel=1e-6, abs=1e-6)
    assert loss_with_finite_gradients(name, case) == expected


# Theorem 1 ---------------------------------------------------------------------------------------------------------


def theorem_1(case: Case, temperature: float) -> Tensor:
    """eq. gradient_pcr for every anchor and class, over the number of anchors that the loss is a mean of."""
    rows, labels = case.logits.tolist(), case.labels.tolist()
    gradient = []
    for o, y in zip(rows, labels, strict=True):
        below = sum(labels.count(c) * math.exp(o[c]) for c in range(len(o)))
        p = [math.exp(v) / below for v in o]
        gradient.append([(labels.count(c) * p[c] - (c == y)) / temperature for c in range(len(o))])
    return torch.tensor(gradient, dtype=torch.float64) / len(labels)


@for_all_batches
@given(case=cases)
def test_the_gradient_of_pcr_is_theorem_1(case: Case) -> None:
    cosines = (case.logits * TAU).requires_grad_()
    losses.pcr(cosines / TAU, case.labels).backward()
    torch.testing.assert_close(cosines.grad, theorem_1(case, TAU), rtol=1e-6, atol=1e-6)


@for_all_batches
@given(case=cases, step=st.integers(0, 2000))
def test_the_temperature_component_replaces_only_the_temperature_in_front_of_the_gradient(
    case: Case, step: int
) -> None:
    """eq. gradient_pcr++: (k p* - 1)/tau(s), with the constant tau still inside p*."""
    cosines = (case.logits * TAU).requires_grad_()
    multiplier = losses.temperature_multiplier(step, TAU, CYCLE, HIGH, LOW)
    (losses.pcr(cosines / TAU, case.labels) * multiplier).backward()
    expected = theorem_1(case, losses.temperature(step, CYCLE, HIGH, LOW))
    torch.testing.assert_close(cosines.grad, expected, rtol=1e-6, atol=1e-6)


# The temperature's schedules ---------------------------------------------------------------------------------------


def test_the_temperature_follows_its_equation() -> None:
    expected = {0: 0.16, 125: 0.105, 250: 0.05, 375: 0.105, 500: 0.16}
    measured = {step: losses.temperature(step, CYCLE, HIGH, LOW) for step in expected}
    assert measured == pytest.approx(expected)


@pytest.mark.parametrize("schedule", ["reciprocal", "cosine"])
def test_the_multiplier_runs_between_the_same_ends_in_both_schedules(schedule: str) -> None:
    found = [losses.temperature_multiplier(step, TAU, CYCLE, HIGH, LOW, schedule) for step in range(1000)]
    assert min(found[:500]) == found[0] == pytest.approx(0.5625)
    assert max(found[:500]) == found[250] == pytest.approx(1.8)
    assert found[500:] == pytest.approx(found[:500])


# Numerical safety --------------------------------------------------------------------------------------------------


def extreme_cases() -> dict[str, Case]:
    wide = random_case(8, 4, 5, seed=9)
    wide = wide._replace(known=torch.full((8,), 4), eligible=torch.ones(8).bool())
    signs = torch.where(wide.logits > 0, 1e4, -1e4).double()
    zero = wide.features.clone()
    zero[0] = 0
    return {
        "huge logits": wide._replace(logits=signs, old_logits=-signs),
        "one class": wide._replace(labels=torch.full((8,), 2)),
        "one sample": Case(*(field[:1] for field in wide)),
        "identical features": wide._replace(features=wide.features[:1].expand(8, -1)),
        "opposite features": wide._replace(features=wide.features[:1] * torch.tensor([1.0, -1] * 4)[:, None]),
        "a zero feature vector": wide._replace(features=zero, old_features=zero),
        "every row of its own class": wide._replace(
            logits=wide.logits.repeat(1, 2), old_logits=wide.old_logits.repeat(1, 2), labels=torch.arange(8)
        ),
    }


@every_loss
@pytest.mark.parametrize("extreme", extreme_cases())
def test_extreme_batches_give_finite_losses_and_gradients(name: str, extreme: str) -> None:
    case = Case(
        *(field.float() if field.is_floating_point() else field for field in extreme_cases()[extreme])
    )
    assert math.isfinite(loss_with_finite_gradients(name, case))


@pytest.mark.parametrize("name", ["pcd", "scd", "der"])
def test_an_empty_replay_distils_nothing(name: str) -> None:
    case = Case(*(field[:0] for field in random_case(6, 5, 4, seed=7)))
    assert loss_with_finite_gradients(name, case) == 0
