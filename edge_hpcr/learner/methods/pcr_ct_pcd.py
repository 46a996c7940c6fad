"""PCR + HC + HT + PCD, the last ablation row: the logits that a sample had when it was stored are kept alive."""

from dataclasses import dataclass

import torch
from torch import Tensor

from edge_hpcr.common.errors import UserError, one_of
from edge_hpcr.learner import losses
from edge_hpcr.learner.methods import pcr_ct
from edge_hpcr.learner.methods.contract import Batch, Method

RULES = ("older", "always")


@dataclass(frozen=True)
class Config(pcr_ct.Config):
    alpha: float = 0.1
    distil: str = "older"  # or "always"

    def __post_init__(self) -> None:
        super().__post_init__()
        one_of("distil", self.distil, RULES)
        if self.alpha < 0:
            raise UserError(f"alpha {self.alpha}: a weight of a loss is not negative")


def distillable(batch: Batch, rule: str) -> Tensor:
    """Which replayed rows are distilled, without being told of any task.

    "older": a record older than the newest class. While no class arrived since, the record is of the present
    situation and there is nothing to keep alive; the authors' program says so by waiting for its second task.
    """
    known = batch.records.known
    return known < batch.num_classes if rule == "older" else torch.ones_like(known, dtype=torch.bool)


def proxy_distillation(batch: Batch, rule: str) -> Tensor:
    """eq. pcd over the replayed rows."""
    return losses.pcd(
        batch.logits[batch.replayed],
        batch.records.logits,
        batch.records.known,
        distillable(batch, rule),
        losses.class_counts(batch.labels, batch.num_classes),
    )


class PCRContrastiveTemperaturePCD(Method):
    Config = Config
    stores_logits = True

    def loss(self, batch: Batch) -> Tensor:
        learning = pcr_ct.contrastive_with_temperature(batch, self.config)
        return learning + self.config.alpha * proxy_distillation(batch, self.config.distil)


METHOD = PCRContrastiveTemperaturePCD
