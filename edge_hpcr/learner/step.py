"""What a step computes: the batch through the network, its gradients, and what the host must know of them."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F
from torch.nn.utils import get_total_norm

from edge_hpcr.common.errors import UserError
from edge_hpcr.learner.augment import augment
from edge_hpcr.learner.device import computing_in, read_back, send
from edge_hpcr.learner.memory import Replay
from edge_hpcr.learner.methods import Batch, Records
from edge_hpcr.learner.network import Network

if TYPE_CHECKING:
    from edge_hpcr.learner.learner import Learner


# Samples in a step; fewer are shown as in the paper: each image, and a view that differs much from it.
FEW_IN_STEP = 10


class LossNotFinite(UserError):
    """The step was not taken: weights, memory, random numbers and statistics are as before it.

    A class that came with the batch stays known, with its first proxy.
    """


@dataclass(frozen=True)
class StepReport:
    step: int
    loss: float
    correct: int  # of the incoming images, as this step's forward pass classified them before it learned them
    replayed: int
    seconds: float


@dataclass(frozen=True)
class Outcome:
    """What the host knows of a step on the device, read before anything is changed by it."""

    loss: float
    correct: int
    logits: np.ndarray  # of the incoming samples, or of their views where only those are shown
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
    # Otherwise the network learns that an encoded image is of an old class, and takes every clean one for a new class.
    shown = learner.memory.encode_incoming(inputs) if config.encode_incoming and not rehearsal else inputs
    every = np.concatenate([shown, replay.inputs])
    plain = learner.view.plain(every)
    # Views of few images, or of one class, may be so alike that batch-norm learns that pictures do not vary.
    alike = not config.plain and (len(every) < FEW_IN_STEP or network.num_classes == 1)
    strong = alike or learner.has_few
    kinds = [plain] if config.plain or strong else []
    if config.views:
        kinds.append(
            augment(plain, learner.rng)
            if strong and network.backbone.trunk is None
            else learner.view.augment(plain)
        )
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
        labels=torch.cat([repeated(columns), repeated(replay.labels)]),
        incoming_rows=views * len(columns),
        distinct_samples=sum(split),
        records=Records(repeated(replay.logits), repeated(replay.features), repeated(replay.known)),
        step=learner.step,
        tau=config.tau,
        ids=learner.memory.new_ids(len(columns)) if ids is None else ids,
    )


def features_of(
    learner: Learner, network: Network, inputs: Tensor, groups: list[int] | None = None
) -> Tensor:
    """A network's pass in the precision of the learner's steps."""
    with computing_in(learner.config.compute, learner.device):
        return network.features(inputs, groups).float()


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
    features = F.normalize(batch.features[: count if learner.method.stores_features else 0], dim=1)
    loss_there, norm_there, correct_there, *rows = read_back([loss, norm, correct, logits, features])
    # A finite loss may still have a gradient that is not; it would be in the weights before anybody noticed.
    if not math.isfinite(loss_there + norm_there):
        raise LossNotFinite(
            f"the loss is {float(loss_there)} and its gradient's norm {float(norm_there)} at step {learner.step}: the "
            f"step was not taken; lower the learning rate ({learner.config.lr}), or continue from an older checkpoint"
        )
    return Outcome(float(loss_there), int(correct_there), *rows)
