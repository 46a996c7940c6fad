"""HPCR (eq. hpcr, Algorithm 1): PCR with a contrastive (HC), a temperature (HT) and two distillation components (HD).

The ablation rows of the paper's table (`ablations.py`) are the same loss with parts switched off.
"""

from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from edge_hpcr.common.errors import UserError, one_of
from edge_hpcr.learner import losses
from edge_hpcr.learner.methods.contract import Batch, Method

PAPER_OPTIONS = {"cifar10": {"alpha": 0.01}}


@dataclass(frozen=True)
class Config:
    smallest_batch: int = 60  # N_min: from how many samples on sample pairs join
    pairs: str = "apart"  # as in the authors' program; or "joined", as the paper prints it
    tau_high: float = 0.16
    tau_low: float = 0.05
    cycle: int = 500  # S
    schedule: str = "reciprocal"  # or "cosine", or "constant": no temperature component
    alpha: float = 0.1  # of PCD
    distillation: str = "pcd"  # or "der": the logits of all classes, not of the batch's
    distil: str = "older"  # or "always"
    distil_new: str = "initial"  # PCD for classes that came after a record: "initial", "zero" or "none"
    beta: float = 0.5  # of SCD

    def __post_init__(self) -> None:
        one_of("schedule", self.schedule, losses.SCHEDULES)
        one_of("pairs", self.pairs, ("apart", "joined"))
        one_of("distillation", self.distillation, ("pcd", "der"))
        one_of("distil", self.distil, ("older", "always"))
        one_of("distil_new", self.distil_new, ("initial", "zero", "none"))
        if not 0 < self.tau_low <= self.tau_high:
            raise UserError(f"tau_low {self.tau_low}, tau_high {self.tau_high}: give 0 < tau_low <= tau_high")
        if self.cycle < 1:
            raise UserError(f"cycle {self.cycle}: a temperature cycle takes at least one step")
        for name in ("alpha", "beta"):
            if getattr(self, name) < 0:
                raise UserError(f"{name} {getattr(self, name)}: a weight of a loss is not negative")


class HPCR(Method):
    name = "hpcr"
    order = 10
    Config = Config
    paper_options = PAPER_OPTIONS
    earlier: ClassVar = {"distil_new": "none"}

    def __init__(self, config: Any = None) -> None:
        super().__init__(config)
        # What nothing is distilled from need not be kept.
        self.stores_logits = self.config.alpha > 0
        self.extends_logits = self.stores_logits and self.config.distil_new == "initial"
        self.stores_features = self.config.beta > 0 or self.extends_logits

    def loss(self, batch: Batch) -> Tensor:
        loss = self.contrast(batch) * self.multiplier(batch)
        if self.config.alpha:
            loss = loss + self.config.alpha * self.proxy_distillation(batch)
        if self.config.beta:
            loss = loss + self.config.beta * self.sample_distillation(batch)
        return loss

    def contrast(self, batch: Batch) -> Tensor:
        """eq. pcrloss, and eq. pcr+ with sample pairs in large batches."""
        if losses.uses_sample_pairs(batch.distinct_samples, self.config.smallest_batch):
            joined = self.config.pairs == "joined"
            return losses.pcr_contrastive(batch.logits, batch.features, batch.labels, batch.tau, joined)
        return losses.pcr(batch.logits, batch.labels)

    def multiplier(self, batch: Batch) -> float:
        """eq. pcr++: the gradient grows and shrinks with a temperature that goes up and down."""
        config = self.config
        return losses.temperature_multiplier(
            batch.step, batch.tau, config.cycle, config.tau_high, config.tau_low, config.schedule
        )

    def distillable(self, batch: Batch) -> Tensor:
        """Which replayed rows are distilled, without being told of any task.

        "older": a record older than the newest class. While no class arrived since, the record is of the present
        situation and there is nothing to preserve; the authors' program says so by waiting for its second task.
        """
        older = batch.records.known < batch.num_classes
        return torch.ones_like(older) if self.config.distil == "always" else older

    def proxy_distillation(self, batch: Batch) -> Tensor:
        """eq. pcd over the replayed rows, or what DER has in its place.

        The authors' classifier has every proxy from the start, so their records also hold an image away from classes
        that nobody had seen. Here the memory gives a record that logit when the class comes: its cosine with the
        class's first proxy ("initial"), or zero.
        """
        records, logits = batch.records, batch.logits[batch.replayed]
        held = self.distillable(batch)[:, None].expand_as(records.logits)
        if self.config.distil_new == "none":
            held = held & losses.known_classes(records.known, batch.num_classes)
        if self.config.distillation == "der":
            return losses.der(logits, records.logits, held)
        counts = losses.class_counts(batch.labels, batch.num_classes)
        return losses.pcd(logits, records.logits, held, counts)

    def sample_distillation(self, batch: Batch) -> Tensor:
        """eq. scd over the replayed rows."""
        return losses.scd(
            batch.sketches[batch.replayed], batch.records.features, self.distillable(batch), batch.tau
        )
