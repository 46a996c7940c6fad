"""MIR (Aljundi et al. 2019): replays the samples that a step on the incoming ones alone would hurt most; else ER.

Of 50 candidates the 10 with the largest `l(x; after the step) - l(x; now)`, scored with batch-norm's running statistics.
"""

from typing import ClassVar

import numpy as np
from torch import Tensor
from torch.nn import functional as F

from edge_hpcr.learner.memory import Replay
from edge_hpcr.learner.methods.er import ER
from edge_hpcr.learner.methods.method import StepView
from edge_hpcr.learner.methods.shared import after_virtual_step, most_enlarged
from edge_hpcr.learner.network import Network

CANDIDATES = 50


class MIR(ER):
    name = "mir"
    order = 114
    source = (
        "Aljundi et al., NeurIPS 2019 (arXiv 1908.04742); public programs (RaptorMai, AML) were read; here candidates are "
        "scored with batch-norm's running statistics, where they take the candidates' own"
    )
    gone: ClassVar = {"candidates": CANDIDATES}

    def choose_replay(self, view: StepView, inputs: np.ndarray, columns: np.ndarray, size: int) -> Replay:
        drawn = view.held.sample(CANDIDATES)
        return most_enlarged(view, drawn, after_virtual_step(view, inputs, columns), losses, size)


def losses(network: Network, inputs: Tensor, labels: Tensor) -> Tensor:
    return F.cross_entropy(network.logits(network.features(inputs)), labels, reduction="none")
