"""Edge: beyond the paper, at the paper's cost of 40 images per step.

The loss is PCR's. The bytes that distillation would take hold more samples instead, which are encoded. A step shows one
shifted or mirrored view of each sample and no second one. So 30 samples are replayed with 10 incoming ones, drawn as evenly
over the classes as possible. Incoming images are encoded and decoded before they are shown: otherwise the network would tell
old images from new ones by the codec's traces. Muon learns fast; the averaged weights predict. A new class is in the average
from its first step on. docs/edge.md has the evidence for each part.
"""

from dataclasses import asdict
from typing import ClassVar

from torch import Tensor

from edge_hpcr.learner import losses
from edge_hpcr.learner.augment import SHIFT
from edge_hpcr.learner.methods import hpcr
from edge_hpcr.learner.methods.method import Batch, Method


class Edge(Method):
    name = "edge"
    order = 15
    source = "ours, with the paper's PCR loss, and Muon of Jordan et al., 2024; no row of the paper's tables"
    gone: ClassVar = {
        **asdict(hpcr.Config(schedule="constant", alpha=0.0, beta=0.0)),
        **hpcr.HPCR.gone,
        "teacher": 0.0,
        "taught": "all",
    }
    predicts_averaged = True
    recommended: ClassVar = {
        "plain": False,
        "augment": SHIFT,
        "encode_incoming": True,
        "replay": 30,
        "batch_norm": "joint",
        "optimiser": "muon",
        "lr": 0.025,
        "proxy_lr": 0.1,
        "lr_decay": 1000,
    }
    recommended_memory: ClassVar = {"codec": "auto", "draw": "even"}

    def loss(self, batch: Batch) -> Tensor:
        return losses.pcr(batch.logits, batch.labels)
