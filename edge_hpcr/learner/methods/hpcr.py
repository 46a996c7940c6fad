"""HPCR (eq. hpcr, Algorithm 1): PCR with a contrastive (HC), a temperature (HT) and two distillation components (HD).

The ablation rows of the paper's table, PCR among them, are the same loss with parts switched off, each on top of the one
before.
"""

from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from edge_hpcr.common.errors import UserError, check_at_least, one_of
from edge_hpcr.learner import losses
from edge_hpcr.learner.methods.method import Batch, Method


@dataclass(frozen=True)
class Config:
    smallest_batch: int = 60  # N_min: from how many samples on sample pairs join
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
        one_of("distillation", self.distillation, ("pcd", "der"))
        one_of("distil", self.distil, ("older", "always"))
        one_of("distil_new", self.distil_new, ("initial", "zero", "none"))
        if not 0 < self.tau_low <= self.tau_high:
            raise UserError(f"tau_low {self.tau_low}, tau_high {self.tau_high}: give 0 < tau_low <= tau_high")
        check_at_least(1, self, "cycle")
        check_at_least(0, self, "alpha", "beta")


class HPCR(Method):
    name = "hpcr"
    order = 10
    Config = Config
    paper_options: ClassVar = {"cifar10": {"alpha": 0.01}}
    earlier: ClassVar = {"distil_new": "none"}
    gone: ClassVar = {"pairs": "apart"}

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
        """eq. pcrloss, and eq. pcr+ with sample pairs in large batches (eq. step_function; views do not count)."""
        if batch.distinct_samples >= self.config.smallest_batch:
            return losses.pcr_contrastive(batch.logits, batch.features, batch.labels, batch.tau)
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
            batch.features[batch.replayed], batch.records.features, self.distillable(batch), batch.tau
        )


NO_SCD: dict[str, Any] = {"beta": 0.0}
NO_DISTILLATION = NO_SCD | {"alpha": 0.0, "distillation": "pcd", "distil": "older", "distil_new": "none"}
NO_TEMPERATURE = NO_DISTILLATION | {"tau_high": 1.0, "tau_low": 1.0, "cycle": 1, "schedule": "constant"}


class WithoutSCD(HPCR):
    name = "pcr_ct_pcd"
    order = 20
    fixed = NO_SCD


class WithoutDistillation(WithoutSCD):
    name = "pcr_ct"
    order = 30
    fixed = NO_DISTILLATION


class Contrastive(WithoutDistillation):
    name = "pcr_c"
    order = 40
    fixed = NO_TEMPERATURE | {"smallest_batch": 0}  # sample pairs in every batch, however small
    earlier: ClassVar = {**HPCR.earlier, "pairs": "joined"}


class PCR(WithoutDistillation):
    name = "pcr"
    order = 50
    # No sample pairs: only proxies of the batch's classes compete.
    fixed = NO_TEMPERATURE | {"smallest_batch": 2**31}


class Couple1(Method):
    """eq. coupleloss1, a plain way to join the proxy-based and the contrastive-based loss: simply added."""

    name = "couple_1"
    order = 60

    def loss(self, batch: Batch) -> Tensor:
        contrastive = losses.supervised_contrastive(batch.features, batch.labels, batch.tau)
        return losses.replay_cross_entropy(batch.logits, batch.labels) + contrastive


class Couple2(Method):
    """eq. coupleloss2, another one: anchor-to-sample pairs as further rivals in the cross-entropy."""

    name = "couple_2"
    order = 70

    def loss(self, batch: Batch) -> Tensor:
        return losses.cross_entropy_with_samples(batch.logits, batch.features, batch.labels, batch.tau)
