"""DER++ (Buzzega et al. 2020): replays the logits of one draw and the labels of another.

`CE(B) + alpha MSE(o(B'), o*) + beta CE(B'')`; the mean squared error is over rows and classes. A record has no logits of
classes that came after it: they add nothing. The publication's classifier is linear; tried on digits, it diverged here at the
paper's learning rate, so this one has cosines like the others. Cosine logits reach 1/tau, so the publication's alpha and beta
(0.5 each) do not fit them; these were chosen on held-out training data (docs/choices.md).
"""

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from edge_hpcr.common.errors import check_at_least
from edge_hpcr.learner import losses
from edge_hpcr.learner.memory import Replay
from edge_hpcr.learner.methods.method import Batch, Method, StepView


@dataclass(frozen=True)
class Config:
    alpha: float = 0.1  # of the logits
    beta: float = 1.0  # of the labels

    def __post_init__(self) -> None:
        check_at_least(0, self, "alpha", "beta")


class DERpp(Method):
    name = "derpp"
    order = 122
    source = (
        "Buzzega et al., NeurIPS 2020 (arXiv 2004.07211); the authors' program (Mammoth) was read, which adds means where "
        "ER's equation takes one, so that incoming images count twice as much as in ER"
    )
    Config = Config
    stores_logits = True

    def choose_replay(self, view: StepView, inputs: np.ndarray, columns: np.ndarray, size: int) -> Replay:
        """Two independent draws, one behind the other."""
        draws = [view.held.sample(size).slots for _ in range(2)]
        return view.held.at(np.concatenate(draws))

    def loss(self, batch: Batch) -> Tensor:
        loss = F.cross_entropy(batch.logits[batch.incoming], batch.labels[batch.incoming])
        logits, labels, records = batch.logits[batch.replayed], batch.labels[batch.replayed], batch.records
        if len(logits) == 0:
            return loss
        # Samples, then their views; in each, the first draw and then the second. A rehearsal's draws may be uneven.
        row = torch.arange(len(logits), device=logits.device) % (len(logits) // batch.views)
        first = 2 * row < len(logits) // batch.views
        known = losses.known_classes(records.known, batch.num_classes)
        squared = torch.where(known, logits - records.logits, 0.0).square().mean(1)
        distilled = (squared * first).sum() / first.sum()
        labelled = F.cross_entropy(logits, labels, reduction="none") * ~first
        labelled = labelled.sum() / (~first).sum().clamp_min(1)
        return loss + self.config.alpha * distilled + self.config.beta * labelled
