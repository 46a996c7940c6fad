"""What a step computes: the batch through the network, its gradients, and what the host must know of them."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F
from torch.nn.utils import get_total_norm

from edge_hpcr.learner.augment import augment
from edge_hpcr.learner.memory import Replay
from edge_hpcr.learner.methods import Batch, Records
from edge_hpcr.learner.network import Network
from edge_hpcr.learner.precision import computing_in
from edge_hpcr.learner.reports import LossNotFinite
from edge_hpcr.learner.transfers import read_back, send

if TYPE_CHECKING:
    from edge_hpcr.learner.learner import Learner


FEW_SAMPLES = (
    10  # in a step; fewer are shown as in the paper: each image, and a view that differs much from it
)


@dataclass(frozen=True)
class Outcome:
    """What the host knows of a step on the device, read before anything is changed by it."""

    loss: float
    correct: int
    logits: np.ndarray  # of the incoming samples themselves, or of the views that stood in for them
    features: np.ndarray  # likewise: of length one, as the memory keeps them; empty if it keeps none


def forward(
    learner: Learner,
    inputs: np.ndarray,
    columns: np.ndarray,
    replay: Replay,
    ids: np.ndarray | None = None,
    rehearsal: bool = False,
) -> Batch:
    """The incoming and the replayed group through the network, each followed by its augmented views, or these alone."""
    config, network, device = learner.config, learner.network, learner.device
    # Else the network learns that what was encoded is of an old class, and takes every clean image for a new one.
    shown = learner.memory.as_kept(inputs) if config.as_kept and not rehearsal else inputs
    every = np.concatenate([shown, replay.inputs])
    plain = learner.view.plain(every)
    # Views of few images, or of one class, may be so alike that batch-norm learns that pictures do not vary.
    alike = not config.plain and (len(every) < FEW_SAMPLES or network.num_classes == 1)
    strong = alike or learner.has_few
    kinds = [plain] if config.plain or strong else []
    if config.views:
        kinds.append(_other_views(learner, every, plain, strong))
    views = len(kinds)
    split = [len(inputs), len(replay.ids)]
    parts = [part for group in zip(*(each.split(split) for each in kinds), strict=True) for part in group]
    rows = torch.cat(parts)
    if rows.dim() == 4:
        rows = rows.contiguous(memory_format=torch.channels_last)
    groups = [views * size for size in split if size]
    # Batch-norm cannot take statistics of a single image: it joins the other group, or uses the running ones.
    joint = config.batch_norm == "joint" or 1 in groups
    network.train(len(rows) > 1)
    features = features_of(learner, network, rows, None if joint else groups)

    def repeated(array: np.ndarray) -> Tensor:
        # `cat` copies into PyTorch's own memory, whose alignment is always the same; NumPy's is not.
        return send(torch.cat([torch.from_numpy(array)] * views), device)

    return Batch(
        inputs=rows,
        logits=network.logits(features),
        features=features,
        sketches=network.backbone.sketch(features) if learner.method.stores_features else features,
        labels=torch.cat([repeated(columns), repeated(replay.labels)]),
        incoming_rows=views * len(columns),
        distinct_samples=sum(split),
        records=Records(repeated(replay.logits), repeated(replay.features), repeated(replay.known)),
        step=learner.step,
        tau=config.tau,
        ids=learner.memory.new_ids(len(columns)) if ids is None else ids,
        teach=None if learner.average is None else partial(_teach, learner, learner.average.network),
    )


def features_of(
    learner: Learner, network: Network, inputs: Tensor, groups: list[int] | None = None
) -> Tensor:
    """A network's pass in the precision of the learner's steps."""
    with computing_in(learner.config.compute, learner.device):
        return network.features(inputs, groups).float()


@torch.no_grad()
def _teach(learner: Learner, average: Network, inputs: Tensor) -> Tensor:
    """What the averaged weights say of inputs, with their own batch-norm statistics."""
    return average.logits(features_of(learner, average, inputs))


def _other_views(learner: Learner, inputs: np.ndarray, plain: Tensor, strong: bool) -> Tensor:
    """An augmented view of each sample: made here of an image, the paper's if `strong`; drawn among those kept of latents."""
    stored, view, trunk = learner.config.stored_views, learner.view, learner.network.backbone.trunk
    if trunk is None and strong:
        return augment(plain, learner.rng)
    if trunk is None or stored == 1:
        return view.augment(plain)
    chosen = learner.rng.integers(1, stored, len(inputs))
    return view.to_device(inputs[np.arange(len(inputs)), chosen])


def backward(learner: Learner, batch: Batch) -> tuple[Tensor, Tensor]:
    """The gradients of the batch's loss, as the method wants them; returns the loss and the gradients' norm."""
    loss = learner.method.loss(batch)
    parameters = list(learner.network.parameters())
    for parameter in parameters:
        parameter.grad = None
    loss.backward()
    learner.method.adjust_gradients(learner.view, batch)
    return loss.detach(), get_total_norm([p.grad for p in parameters if p.grad is not None])


@torch.no_grad()
def read(learner: Learner, batch: Batch, loss: Tensor, norm: Tensor) -> Outcome:
    """What the step came to; refuses it if it cannot be taken. Until here a GPU has been given work and no question."""
    count = len(batch.ids)
    logits = batch.logits[:count]
    correct = (logits.argmax(1) == batch.labels[:count]).sum()
    # SCD reads directions only; of length one they fit 16 bits whatever the network does.
    features = F.normalize(batch.sketches[: count if learner.method.stores_features else 0], dim=1)
    loss_there, norm_there, correct_there, *rows = read_back([loss, norm, correct, logits, features])
    # A finite loss may still have a gradient that is not; it would be in the weights before anybody noticed.
    if not math.isfinite(loss_there + norm_there):
        raise LossNotFinite(
            f"the loss is {float(loss_there)} and its gradient's norm {float(norm_there)} at step {learner.step}: the "
            f"step was not taken; lower the learning rate ({learner.config.lr}), or continue from an older checkpoint"
        )
    return Outcome(float(loss_there), int(correct_there), *rows)
