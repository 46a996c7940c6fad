"""What OCM and OnPro share: contrast among rotated images, in a projection that is trained with the classifier."""

from collections.abc import Callable, Sequence

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from edge_hpcr.common.errors import UserError
from edge_hpcr.learner.methods.method import StepView
from edge_hpcr.learner.network import Network

Features = Callable[[Network, Tensor], Tensor]  # StepView's
ROTATIONS = 16
PROJECTION = "projection"
PROJECTED = 128  # numbers of a projection; fewer if the network has fewer features


def add_projection(view: StepView, method: str) -> int:
    """Give the network a linear projection of its features; returns how many numbers a projection has."""
    if view.network.backbone.trunk is not None:
        raise UserError(f"{method} rotates images, and this backbone keeps latents: choose another method")
    size = view.network.feature_size
    projected = min(PROJECTED, size)
    view.network.extra[PROJECTION] = view.linear(size, projected)
    return projected


def rotated(images: Tensor) -> Tensor:
    """All images, then all in another way, 16 times: each half upside down or not, and the whole by quarter turns."""
    height, width = images.shape[2:]
    if height != width:
        raise UserError(
            f"images of {height}x{width} cannot be turned by 90 degrees: this method takes square images"
        )
    left, right = images.split([width // 2, width - width // 2], dim=3)
    turned_left, turned_right = left.flip(2, 3), right.flip(2, 3)
    halves = [(left, right), (left, turned_right), (turned_left, turned_right), (turned_left, right)]
    whole = torch.cat([torch.cat(pair, dim=3) for pair in halves])
    every = torch.cat([whole.rot90(turn, (2, 3)) for turn in range(4)])
    return every.contiguous(memory_format=torch.channels_last)


def rotated_labels(labels: Tensor, num_classes: int) -> Tensor:
    """A rotated image is of a class of its own; in the order of `rotated`."""
    return torch.cat([labels + num_classes * turn for turn in range(ROTATIONS)])


def project(network: Network, features: Tensor) -> Tensor:
    """Directions of the projections."""
    return F.normalize(network.extra[PROJECTION](features), dim=1)


def project_rotated(
    network: Network, groups: Sequence[tuple[Tensor, ...]], features_of: Features
) -> list[tuple[Tensor, Tensor]]:
    """Projections and features of each group, all in one pass: the rotations of its first views, then of its second."""
    parts = [torch.cat([rotated(view) for view in views]) for views in groups]
    features, sizes = features_of(network, torch.cat(parts)), [len(part) for part in parts]
    return list(zip(project(network, features).split(sizes), features.split(sizes), strict=True))


def similarities(projections: Tensor, features: Tensor, rng: np.random.Generator) -> Tensor:
    """`u_i u_j + u_i f_j`, of the features a random stretch that is as long as a projection."""
    size = projections.shape[1]
    first = int(rng.integers(max(1, features.shape[1] - size)))
    return projections @ (projections + F.normalize(features, dim=1)[:, first : first + size]).T


def contrast(similar: Tensor, labels: Tensor, tau: float) -> Tensor:
    """`mean_i mean_p -log q(i, p)` over all p of the class of i, q a row's softmax (L_buf)."""
    same = labels[:, None] == labels[None, :]
    log_share = F.log_softmax(similar / tau, dim=1)
    return -(torch.where(same, log_share, 0.0).sum(1) / same.sum(1)).mean()


def contrast_views(similar: Tensor, labels: Tensor, tau: float, views: int) -> Tensor:
    """`mean_i [-log q(i, other view of i) + 2 mean_p -log q(i, p)]`, q without i itself (L_new).

    The rows are the first views of all images, then the second ones. As in the authors' program the mean over p counts
    i, which adds nothing. Without second views the first term is left out.
    """
    itself = torch.eye(len(labels), dtype=torch.bool, device=labels.device)
    logits = (similar / tau).masked_fill(itself, torch.finfo(similar.dtype).min)
    log_share = F.log_softmax(logits, dim=1)
    same = labels[:, None] == labels[None, :]
    loss = -2 * (torch.where(same & ~itself, log_share, 0.0).sum(1) / same.sum(1)).mean()
    if views == 2:
        half = len(labels) // 2
        pairs = torch.cat([log_share.diagonal(half), log_share.diagonal(-half)])
        loss = loss - pairs.mean()
    return loss
