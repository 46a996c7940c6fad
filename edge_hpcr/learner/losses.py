"""The losses of HPCR as pure functions of tensors, cited by the names of the paper's equations.

Every function takes logits `o = cos(z, w)/tau`, labels as class columns, and features `z`; none keeps state, none
draws random numbers. Where the paper prints an equation wrong, `docs/method.md` says how and why.
"""

import math

import torch
from torch import Tensor
from torch.nn import functional as F

SCHEDULES = ("reciprocal", "cosine", "constant")


def class_counts(labels: Tensor, num_classes: int) -> Tensor:
    """`k_c`: how many of the batch's labels are of class c."""
    # Neither bincount nor one_hot: they look at the labels first, for which the host would wait for the device.
    return (labels[:, None] == torch.arange(num_classes, device=labels.device)).sum(0).to(torch.float32)


def replay_cross_entropy(logits: Tensor, labels: Tensor) -> Tensor:
    """eq. erloss: every class is a rival of every anchor."""
    return F.cross_entropy(logits, labels)


def _proxy_terms(logits: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
    """For each anchor: log of the numerator `exp(o_y)` and of the denominator `sum_c k_c exp(o_c)`."""
    # log 0 = -inf drops a class that is not in the batch out of the sum, and out of the gradient.
    log_counts = class_counts(labels, logits.shape[1]).log()
    return logits.gather(1, labels[:, None]).squeeze(1), torch.logsumexp(logits + log_counts, dim=1)


def pcr(logits: Tensor, labels: Tensor) -> Tensor:
    """eq. pcrloss: only proxies of classes that are in the batch are rivals, each as often as its class occurs."""
    own, rivals = _proxy_terms(logits, labels)
    return (rivals - own).mean()


def _pair_similarities(features: Tensor, tau: float) -> Tensor:
    """`<z_i, z_j>/tau` for all pairs; the self-pairs are so small that they vanish from every sum."""
    unit = F.normalize(features, dim=1)
    same = torch.eye(len(features), dtype=torch.bool, device=features.device)
    # A finite stand-in for -inf: 0 * -inf would be NaN where these enter a weighted sum.
    return (unit @ unit.T / tau).masked_fill(same, torch.finfo(features.dtype).min)


def _positives(labels: Tensor) -> Tensor:
    """`P` of each anchor as a row: the other samples of its class."""
    return (labels[:, None] == labels[None, :]).fill_diagonal_(False)


def pcr_contrastive(logits: Tensor, features: Tensor, labels: Tensor, tau: float) -> Tensor:
    """eq. pcr+ with `s(N) = 1`: an anchor's positives are the other samples of its class and the class's proxy.

    As in the authors' program, the mean of the logarithms of all positives' shares, the proxy `k_y` times among them. The
    equation is printed with the logarithm of the proxy's and a sample's share together: a near sample would leave the
    proxy no gradient. An anchor without another sample of its class keeps its term of eq. pcrloss alone.
    """
    own, rivals = _proxy_terms(logits, labels)
    pairs = _pair_similarities(features, tau)
    positives = _positives(labels)
    count = positives.sum(1)
    chosen = ((count + 1) * own + torch.where(positives, pairs, 0.0).sum(1)) / (2 * count + 1)
    everything = torch.logaddexp(rivals, torch.logsumexp(pairs, dim=1))
    return torch.where(count > 0, everything - chosen, rivals - own).mean()


def supervised_contrastive(features: Tensor, labels: Tensor, tau: float) -> Tensor:
    """eq. scrloss: anchor-to-sample pairs alone. An anchor without another sample of its class adds nothing."""
    pairs = _pair_similarities(features, tau)
    positives = _positives(labels)
    log_share = pairs - torch.logsumexp(pairs, dim=1, keepdim=True)
    return -(torch.where(positives, log_share, 0.0).sum(1) / positives.sum(1).clamp(min=1)).mean()


def cross_entropy_with_samples(logits: Tensor, features: Tensor, labels: Tensor, tau: float) -> Tensor:
    """eq. coupleloss2: all proxies and all other samples are rivals of an anchor's own proxy."""
    rivals = torch.logsumexp(torch.cat([logits, _pair_similarities(features, tau)], dim=1), dim=1)
    return (rivals - logits.gather(1, labels[:, None]).squeeze(1)).mean()


def temperature(step: int, cycle: int, highest: float, lowest: float) -> float:
    """eq. tau_t: from `highest` down to `lowest` in half a cycle, and back."""
    return (highest - lowest) * (1 + math.cos(2 * math.pi * step / cycle)) / 2 + lowest


def temperature_multiplier(
    step: int, tau: float, cycle: int, highest: float, lowest: float, schedule: str = "reciprocal"
) -> float:
    """What eq. pcr++ multiplies the loss by: `tau/tau(s)` ("reciprocal", the paper's).

    "cosine" is what the authors' program does: the multiplier itself, not its reciprocal, follows the cosine between
    the same two ends. "constant" leaves the loss as it is.
    """
    if schedule == "constant":
        return 1.0
    if schedule == "reciprocal":
        return tau / temperature(step, cycle, highest, lowest)
    if schedule == "cosine":
        return temperature(step, cycle, tau / highest, tau / lowest)
    raise ValueError(f"unknown temperature schedule {schedule!r}: one of {SCHEDULES}")


def pcd(logits: Tensor, old_logits: Tensor, held: Tensor, counts: Tensor) -> Tensor:
    """eq. pcd, minimised: `(1/N) sum_c k_c (o_c - o*_c)^2`, N the number of labels that `counts` counts.

    `held` [rows, classes] says which logits are held to the record. Those that are not add nothing, but still count in
    the mean, so that a sample's weight does not depend on its neighbours.
    """
    if len(logits) == 0:
        return logits.sum()
    squared = torch.where(held, logits - old_logits, 0.0).square()
    return (squared * (counts / counts.sum())).sum(1).mean()


def der(logits: Tensor, old_logits: Tensor, held: Tensor) -> Tensor:
    """DER's distillation (Buzzega et al. 2020): `(o_c - o*_c)^2`, the mean over all classes, in the batch or not.

    `held` and the mean over the rows are as in `pcd`.
    """
    if len(logits) == 0:
        return logits.sum()
    return torch.where(held, logits - old_logits, 0.0).square().mean()


def known_classes(known: Tensor, num_classes: int) -> Tensor:
    """Row i is true for the first `known[i]` classes: those that existed when its record was made."""
    return torch.arange(num_classes, device=known.device)[None, :] < known[:, None]


def scd(features: Tensor, old_features: Tensor, eligible: Tensor, tau: float) -> Tensor:
    """eq. scd with the old similarities as the target: `-sum p_old log p_new` over pairs of replayed images.

    Only pairs of `eligible` rows enter; the mean is over all rows, as in `pcd`.
    """
    if len(features) == 0:
        return features.sum()
    outside = ~(eligible[:, None] & eligible[None, :])
    smallest = torch.finfo(features.dtype).min
    new = F.log_softmax(_pair_similarities(features, tau).masked_fill(outside, smallest), dim=1)
    old = F.softmax(_pair_similarities(old_features, tau).masked_fill(outside, smallest), dim=1)
    cross_entropy = -torch.where(outside, 0.0, old * new).sum(1)
    # A lone eligible row has no pair: its softmax runs over nothing but masked entries.
    has_pair = eligible & (eligible.sum() > 1)
    return torch.where(has_pair, cross_entropy, 0.0).mean()
