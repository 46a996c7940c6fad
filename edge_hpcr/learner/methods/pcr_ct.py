"""PCR + HC + HT (eq. pcr++): sample pairs in large batches only, and a gradient that breathes with a temperature."""

from dataclasses import dataclass

from torch import Tensor

from edge_hpcr.common.errors import UserError, one_of
from edge_hpcr.learner import losses
from edge_hpcr.learner.methods.contract import Batch, Method


@dataclass(frozen=True)
class Config:
    smallest_batch: int = 60  # N_min
    tau_high: float = 0.16
    tau_low: float = 0.05
    cycle: int = 500  # S
    schedule: str = "reciprocal"  # or "cosine"

    def __post_init__(self) -> None:
        one_of("schedule", self.schedule, losses.SCHEDULES)
        if not 0 < self.tau_low <= self.tau_high:
            raise UserError(f"tau_low {self.tau_low}, tau_high {self.tau_high}: give 0 < tau_low <= tau_high")
        if self.cycle < 1:
            raise UserError(f"cycle {self.cycle}: a temperature cycle takes at least one step")


def contrastive_with_temperature(batch: Batch, config: Config) -> Tensor:
    """eq. pcr++."""
    if losses.uses_sample_pairs(batch.distinct_samples, config.smallest_batch):
        loss = losses.pcr_contrastive(batch.logits, batch.features, batch.labels, batch.tau)
    else:
        loss = losses.pcr(batch.logits, batch.labels)
    return loss * losses.temperature_multiplier(
        batch.step, batch.tau, config.cycle, config.tau_high, config.tau_low, config.schedule
    )


class PCRContrastiveTemperature(Method):
    Config = Config

    def loss(self, batch: Batch) -> Tensor:
        return contrastive_with_temperature(batch, self.config)


METHOD = PCRContrastiveTemperature
