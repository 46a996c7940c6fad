"""Every loss against a slow loop of Python floats, written from the paper's equation as hpcr.md corrects it."""

import math
from collections.abc import Callable
from typing import NamedTuple

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.nn import functional as F

from edge_hpcr.learner import losses

pytestmark = pytest.mark.computes

TAU = 0.09
HIGH, LOW, CYCLE = 0.16, 0.05, 500
# The inputs are 64-bit, the class counts inside the losses 32-bit.
CLOSE = {"rel": 1e-6, "abs": 1e-6}


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

LOSSES: dict[str, Callable[[Case], Tensor]] = {
    "er": lambda c: losses.replay_cross_entropy(c.logits, c.labels),
    "pcr": lambda c: losses.pcr(c.logits, c.labels),
    "pcr_contrastive": lambda c: losses.pcr_contrastive(c.logits, c.features, c.labels, TAU),
    "pcr_joined": lambda c: losses.pcr_contrastive(c.logits, c.features, c.labels, TAU, joined=True),
    "scr": lambda c: losses.supervised_contrastive(c.features, c.labels, TAU),
    "couple_2": lambda c: losses.cross_entropy_with_samples(c.logits, c.features, c.labels, TAU),
    "pcd": lambda c: losses.pcd(c.logits, c.old_logits, c.held, c.counts),
    "scd": lambda c: losses.scd(c.features, c.old_features, c.eligible, TAU),
}
every_loss = pytest.mark.parametrize("name", LOSSES)


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


def slow_pcr_contrastive(c: Case, joined: bool = False) -> float:
    rows, z, labels = c.logits.tolist(), c.features.tolist(), c.labels.tolist()
    terms = []
    for i, (o, y) in enumerate(zip(rows, labels, strict=True)):
        below = sum(labels.count(k) * math.exp(o[k]) for k in range(len(o)))
        samples = [p for p in others(len(z), i) if labels[p] == y]
        if not samples:
            terms.append(-math.log(math.exp(o[y]) / below))
            continue
        below += sum(exp_pair(z, i, j) for j in others(len(z), i))
        if joined:
            above = [math.exp(o[y]) + exp_pair(z, i, p) for p in samples]
        else:  # every sample of the class brings its proxy, the anchor's own too
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


SLOW = {
    "er": slow_er,
    "pcr": slow_pcr,
    "pcr_contrastive": slow_pcr_contrastive,
    "pcr_joined": lambda c: slow_pcr_contrastive(c, joined=True),
    "scr": slow_scr,
    "couple_2": slow_couple_2,
    "pcd": slow_pcd,
    "scd": slow_scd,
}


@pytest.mark.slow
@every_loss
@for_all_batches
@given(case=cases)
def test_the_loss_is_the_papers_equation(name: str, case: Case) -> None:
    assert LOSSES[name](case).item() == pytest.approx(SLOW[name](case), **CLOSE)


@for_all_batches
@given(labels=st.lists(st.integers(0, 6), max_size=20))
def test_class_counts_counts_the_labels(labels: list[int]) -> None:
    counts = losses.class_counts(torch.tensor(labels, dtype=torch.int64), 7)
    assert counts.tolist() == [labels.count(c) for c in range(7)]


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


# Properties --------------------------------------------------------------------------------------------------------


@pytest.mark.slow
@every_loss
@for_all_batches
@given(case=cases, seed=st.integers(0, 1000))
def test_the_order_of_the_batch_does_not_matter(name: str, case: Case, seed: int) -> None:
    order = torch.randperm(len(case.labels), generator=torch.Generator().manual_seed(seed))
    shuffled = Case(*(field[order] for field in case))
    assert LOSSES[name](shuffled).item() == pytest.approx(LOSSES[name](case).item(), abs=1e-12)


def with_an_absent_class(case: Case, seed: int) -> Case:
    column = 4 * torch.randn(
        2, len(case.labels), 1, generator=torch.Generator().manual_seed(seed), dtype=torch.float64
    )
    return case._replace(
        logits=torch.cat([case.logits, column[0]], dim=1),
        old_logits=torch.cat([case.old_logits, column[1]], dim=1),
        known=torch.where(case.known == case.logits.shape[1], case.known + 1, case.known),
    )


@pytest.mark.parametrize("name", ["pcr", "pcr_contrastive", "pcr_joined", "pcd"])
@for_all_batches
@given(case=cases, seed=st.integers(0, 1000))
def test_a_class_that_is_not_in_the_batch_changes_nothing(name: str, case: Case, seed: int) -> None:
    wider = with_an_absent_class(case, seed)
    assert LOSSES[name](wider).item() == pytest.approx(LOSSES[name](case).item(), abs=1e-12)


@pytest.mark.parametrize("name", ["er", "couple_2"])
def test_a_class_that_is_not_in_the_batch_is_a_rival_in_cross_entropy(name: str) -> None:
    case = random_case(6, 3, 4, seed=1)
    assert LOSSES[name](with_an_absent_class(case, seed=2)) > LOSSES[name](case) + 1e-3


@pytest.mark.parametrize("name", ["pcr", "pcr_contrastive", "pcr_joined", "pcd"])
@for_all_batches
@given(case=cases)
def test_a_count_of_zero_means_exactly_no_gradient(name: str, case: Case) -> None:
    logits = case.logits.clone().requires_grad_()
    LOSSES[name](case._replace(logits=logits)).backward()
    assert (logits.grad[:, case.counts == 0] == 0).all()


# Figure 1: which pairs enter ---------------------------------------------------------------------------------------

# Class 0 three times, class 1 twice, class 2 once; classes 3 and 4 are known, but not in the batch.
LABELS = torch.tensor([0, 0, 1, 0, 1, 2])
IN_BATCH = [True, True, True, False, False]
FIGURE_1 = {
    "er": [True] * 5,
    "scr": [False] * 5,
    "pcr": IN_BATCH,
    "pcr_contrastive": IN_BATCH,
    "pcr_joined": IN_BATCH,
}


def figure_1_case() -> Case:
    return random_case(6, 5, 4, seed=3)._replace(labels=LABELS)


@pytest.mark.parametrize("name", FIGURE_1)
def test_figure_1_which_proxies_an_anchor_meets(name: str) -> None:
    case = figure_1_case()
    proxies = random_case(5, 1, 4, seed=4).features.requires_grad_()
    features = case.features.clone().requires_grad_()
    logits = F.normalize(features, dim=1) @ F.normalize(proxies, dim=1).T / TAU
    LOSSES[name](case._replace(logits=logits, features=features)).backward()
    gradient = torch.zeros_like(proxies) if proxies.grad is None else proxies.grad
    assert [bool(row.abs().max() > 0) for row in gradient] == FIGURE_1[name]


@pytest.mark.parametrize(
    ("name", "meets_samples"),
    [("er", False), ("scr", True), ("pcr", False), ("pcr_contrastive", True), ("pcr_joined", True)],
)
@pytest.mark.parametrize("row", range(len(LABELS)))
def test_figure_1_whether_an_anchor_meets_the_other_samples(name: str, meets_samples: bool, row: int) -> None:
    """Move one sample while every anchor-to-proxy pair stays: the last row, alone of its class, is a rival only."""
    case = figure_1_case()
    moved = case.features.clone()
    moved[row] = -moved[row]
    changed = abs(LOSSES[name](case._replace(features=moved)).item() - LOSSES[name](case).item()) > 1e-6
    assert changed == meets_samples


def test_samples_that_found_each_other_still_pull_their_proxy_unless_the_shares_are_joined() -> None:
    """Two classes whose samples lie close together, each class's proxy at right angles to both."""
    features = torch.eye(4, dtype=torch.float64)[[0, 0, 1, 1]] + 0.01
    labels = torch.tensor([0, 0, 1, 1])

    def pull_on_own(joined: bool) -> float:
        cosines = torch.zeros(4, 2, dtype=torch.float64, requires_grad=True)
        losses.pcr_contrastive(cosines / TAU, features, labels, TAU, joined).backward()
        return -cosines.grad[0, 0].item()

    assert pull_on_own(joined=False) > 0.5
    assert abs(pull_on_own(joined=True)) < 0.01


def test_sample_pairs_join_from_the_smallest_large_batch_on() -> None:
    assert not losses.uses_sample_pairs(59, smallest=60)
    assert losses.uses_sample_pairs(60, smallest=60)


# The temperature's schedules ---------------------------------------------------------------------------------------


def multiplier(step: int, schedule: str) -> float:
    return losses.temperature_multiplier(step, TAU, CYCLE, HIGH, LOW, schedule)


def test_the_temperature_follows_its_equation() -> None:
    expected = {0: 0.16, 125: 0.105, 250: 0.05, 375: 0.105, 500: 0.16}
    measured = {step: losses.temperature(step, CYCLE, HIGH, LOW) for step in expected}
    assert measured == pytest.approx(expected)


@pytest.mark.parametrize("schedule", ["reciprocal", "cosine"])
def test_the_multiplier_runs_between_the_same_ends_in_both_schedules(schedule: str) -> None:
    assert multiplier(0, schedule) == pytest.approx(0.5625)
    assert multiplier(250, schedule) == pytest.approx(1.8)
    whole_cycle = [multiplier(step, schedule) for step in range(500)]
    assert min(whole_cycle) == whole_cycle[0] and max(whole_cycle) == whole_cycle[250]
    assert [multiplier(step + 500, schedule) for step in range(500)] == pytest.approx(whole_cycle)


def test_the_schedules_differ_between_the_ends() -> None:
    assert multiplier(125, "reciprocal") == pytest.approx(0.09 / 0.105)
    assert multiplier(125, "cosine") == pytest.approx((0.5625 + 1.8) / 2)


def test_the_papers_schedule_is_the_default() -> None:
    assert losses.temperature_multiplier(125, TAU, CYCLE, HIGH, LOW) == multiplier(125, "reciprocal")


def test_an_unknown_schedule_is_refused_with_the_known_ones() -> None:
    with pytest.raises(ValueError, match=r"'linear'.*'reciprocal', 'cosine'"):
        multiplier(0, "linear")


# Distillation ------------------------------------------------------------------------------------------------------


def distillation_case() -> Case:
    """Six rows, all of them eligible, all five classes known to all and in the batch."""
    case = random_case(6, 5, 4, seed=7)
    return case._replace(
        labels=torch.tensor([0, 1, 2, 3, 4, 4]), known=torch.full((6,), 5), eligible=torch.ones(6).bool()
    )


def test_pcd_is_minimised_towards_the_stored_logits() -> None:
    case = distillation_case()
    values = [
        LOSSES["pcd"](case._replace(logits=torch.lerp(case.logits, case.old_logits, share))).item()
        for share in (0.0, 0.25, 0.5, 0.75, 1.0)
    ]
    assert values == sorted(values, reverse=True) and values[0] > values[-1] == 0


def test_pcd_divides_by_all_labels_of_the_batch_not_only_the_replayed() -> None:
    case = distillation_case()
    counts = torch.tensor([10.0, 10, 10, 5, 5])
    labels = [0] * 10 + [1] * 10 + [2] * 10 + [3] * 5 + [4] * 5
    loss = losses.pcd(case.logits, case.old_logits, case.held, counts)
    distances = ((case.logits - case.old_logits) ** 2).tolist()
    assert loss.item() == pytest.approx(
        mean([sum(row[y] for y in labels) / 40 for row in distances]), rel=1e-6
    )


def test_pcd_leaves_classes_alone_that_were_not_known_when_the_row_was_stored() -> None:
    case = distillation_case()._replace(known=torch.tensor([0, 1, 2, 3, 4, 5]))
    logits = case.logits.clone().requires_grad_()
    LOSSES["pcd"](case._replace(logits=logits)).backward()
    assert torch.equal(logits.grad != 0, torch.ones(6, 5).tril(-1).bool())


@pytest.mark.parametrize("name", ["pcd", "scd"])
def test_rows_that_are_not_eligible_add_nothing_and_learn_nothing(name: str) -> None:
    eligible = torch.tensor([True, True, False, True, False, False])
    case = distillation_case()._replace(eligible=eligible)
    logits, features = case.logits.clone().requires_grad_(), case.features.clone().requires_grad_()
    LOSSES[name](case._replace(logits=logits, features=features)).backward()
    gradient = logits.grad if name == "pcd" else features.grad
    assert [bool(row.abs().max() > 0) for row in gradient] == eligible.tolist()
    assert LOSSES[name](case._replace(eligible=torch.zeros(6).bool())) == 0


def test_scd_has_its_minimum_where_the_features_are_the_old_ones() -> None:
    case = distillation_case()
    features = case.old_features.clone().requires_grad_()
    at_old = LOSSES["scd"](case._replace(features=features))
    at_old.backward()
    torch.testing.assert_close(features.grad, torch.zeros_like(features), rtol=0, atol=1e-12)
    for share in (0.1, 0.5, 1.0):
        elsewhere = torch.lerp(case.old_features, case.features, share)
        assert LOSSES["scd"](case._replace(features=elsewhere)) > at_old


def test_scd_takes_the_old_similarities_as_the_target() -> None:
    """An old similarity near zero asks for nothing, a new one near zero costs much: the roles are not symmetric."""
    together = torch.tensor([[1.0, 0], [1, 0.1], [1, -0.1]], dtype=torch.float64)
    apart = torch.tensor([[1.0, 0], [1, 0.1], [-1, 0]], dtype=torch.float64)
    eligible = torch.ones(3).bool()
    assert losses.scd(apart, together, eligible, TAU) > 2 * losses.scd(together, apart, eligible, TAU)


def test_scd_leaves_the_self_pair_out() -> None:
    """Two rows have one pair each: it takes the whole softmax, so there is nothing to distil."""
    case = random_case(2, 3, 4, seed=8)._replace(eligible=torch.ones(2).bool())
    assert LOSSES["scd"](case).item() == pytest.approx(0, abs=1e-12)


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
        "one known class": Case(
            wide.logits[:, :1], wide.features, wide.labels * 0, wide.logits[:, 1:2], *wide[4:]
        ),
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
    logits, features = case.logits.clone().requires_grad_(), case.features.clone().requires_grad_()
    loss = LOSSES[name](case._replace(logits=logits, features=features))
    assert loss.isfinite()
    loss.backward()
    reached = [leaf.grad for leaf in (logits, features) if leaf.grad is not None]
    assert reached and all(gradient.isfinite().all() for gradient in reached)


def test_huge_logits_still_rank_right_and_wrong() -> None:
    right = torch.tensor([[1e4, -1e4], [-1e4, 1e4]])
    labels = torch.tensor([0, 1])
    assert losses.pcr(right, labels).item() == 0
    assert losses.pcr(-right, labels).item() == 2e4


@pytest.mark.parametrize("name", ["pcd", "scd"])
def test_an_empty_replay_distils_nothing(name: str) -> None:
    case = Case(*(field[:0] for field in distillation_case()))
    logits, features = case.logits.requires_grad_(), case.features.requires_grad_()
    loss = LOSSES[name](case._replace(logits=logits, features=features))
    loss.backward()
    assert loss.item() == 0


def test_an_anchor_alone_in_its_class_keeps_the_proxy_term_alone() -> None:
    case = random_case(5, 5, 3, seed=10)._replace(labels=torch.arange(5))
    for name in ("pcr_contrastive", "pcr_joined"):
        assert LOSSES[name](case).item() == pytest.approx(LOSSES["pcr"](case).item(), abs=1e-12)
    assert LOSSES["scr"](case).item() == 0
