"""HPCR (eq. hpcr, Algorithm 1): PCR with the contrastive, the temperature and both distillation components."""

from dataclasses import dataclass

from torch import Tensor

from edge_hpcr.common.errors import UserError
from edge_hpcr.learner import losses
from edge_hpcr.learner.methods import pcr_ct, pcr_ct_pcd
from edge_hpcr.learner.methods.contract import Batch, Method


@dataclass(frozen=True)
class Config(pcr_ct_pcd.Config):
    beta: float = 0.5

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.beta < 0:
            raise UserError(f"beta {self.beta}: a weight of a loss is not negative")


def sample_distillation(batch: Batch, rule: str) -> Tensor:
    """eq. scd over the replayed rows."""
    eligible = pcr_ct_pcd.distillable(batch, rule)
    return losses.scd(batch.features[batch.replayed], batch.records.features, eligible, batch.tau)


class HPCR(Method):
    Config = Config
    stores_logits = True
    stores_features = True

    def loss(self, batch: Batch) -> Tensor:
        return (
            pcr_ct.contrastive_with_temperature(batch, self.config)
            + self.config.alpha * pcr_ct_pcd.proxy_distillation(batch, self.config.distil)
            + self.config.beta * sample_distillation(batch, self.config.distil)
        )


METHOD = HPCR
