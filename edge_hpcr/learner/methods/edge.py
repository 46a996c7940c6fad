"""Edge: what goes past the paper at its cost of 40 images a step.

The loss is PCR's. What distillation keeps of a sample buys more samples instead, encoded; of each a step sees one shifted
or mirrored view and no second one, so that 30 are replayed beside 10 incoming, as evenly over the classes as can be. Incoming
images are encoded and decoded, too, before they are shown: else what the codec does to an image says that it is old, and a
clean one is taken for new. Muon learns fast; the averaged weights predict, and may teach the live ones (MKD, Michel et al.,
ICML 2024): `weight KL(teacher || student)`, on the rows that `taught` names; each costs a forward pass more. A new class is in
the average from its first step on. docs/edge.md has the evidence for each part.
"""

from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from edge_hpcr.common.errors import UserError, one_of
from edge_hpcr.learner import losses
from edge_hpcr.learner.augment import SHIFT
from edge_hpcr.learner.methods import hpcr
from edge_hpcr.learner.methods.contract import Batch

TAUGHT = ("all", "views", "replayed", "replayed_views", "none")


@dataclass(frozen=True)
class Config(hpcr.Config):
    schedule: str = "constant"
    alpha: float = 0.0
    beta: float = 0.0
    teacher: float = 0.0  # weight of the averaged weights' answers
    taught: str = "all"  # rows that they answer; "views": the augmented ones

    def __post_init__(self) -> None:
        super().__post_init__()
        one_of("taught", self.taught, TAUGHT)
        if self.teacher < 0:
            raise UserError(f"teacher {self.teacher}: a weight of a loss is not negative")


class Edge(hpcr.HPCR):
    name = "edge"
    order = 15
    source = (
        "ours, after the paper's PCR loss; Muon is of Jordan et al., 2024, the teacher of Michel et al., ICML 2024; "
        "no row of the paper's tables"
    )
    Config = Config
    paper_options: ClassVar = {}
    predicts_averaged = True
    recommended: ClassVar = {
        "plain": False,
        "augment": SHIFT,
        "as_kept": True,
        "replay": 30,
        "batch_norm": "joint",
        "optimiser": "muon",
        "lr": 0.025,
        "proxy_lr": 0.1,
        "lr_decay": 1000,
    }
    recommended_memory: ClassVar = {"codec": "auto", "draw": "even"}

    def loss(self, batch: Batch) -> Tensor:
        loss = super().loss(batch)
        rows = self.taught(batch)
        if batch.teach is None or self.config.teacher == 0 or not len(rows):
            return loss
        answers = batch.teach(batch.inputs[rows])
        share = len(rows) / len(batch.labels)  # a row weighs the same whichever others are taught
        return loss + self.config.teacher * share * losses.teacher_divergence(batch.logits[rows], answers)

    def contrast(self, batch: Batch) -> Tensor:
        """Without sample pairs, however large the batch: the settings were chosen without them."""
        return losses.pcr(batch.logits, batch.labels)

    def taught(self, batch: Batch) -> Tensor:
        """The rows whose answers the teacher gives."""
        every: Any = torch.arange(len(batch.labels), device=batch.labels.device)
        groups = [every[batch.incoming], every[batch.replayed]]
        if self.config.taught.startswith("replayed"):
            groups = groups[1:]
        if self.config.taught.endswith("views") and batch.views > 1:
            groups = [each[len(each) // 2 :] for each in groups]
        return every[:0] if self.config.taught == "none" else torch.cat(groups)
