"""ER-WA (Zhao et al. 2020): ER, and after each task the weights of its new classes get the old ones' mean length.

`w_c <- w_c mean_old |w| / mean_new |w|`. Lengths matter in a linear classifier only, so it has one. That ER-WA is replay
with weight aligning alone, without the publication's distillation and without clipping, is remembered, not read.
"""

import torch
from torch import Tensor

from edge_hpcr.learner.methods.contract import StepView
from edge_hpcr.learner.methods.er import ER


class ERWA(ER):
    name = "er_wa"
    order = 119
    source = "Zhao et al., CVPR 2020 (arXiv 1911.07053); no program; how the tables combine it with ER is remembered"
    known_difference = "how the tables combine weight aligning with ER is remembered"
    linear = True
    needs_boundaries = True

    def begin(self, view: StepView) -> None:
        self.old = torch.zeros((), dtype=torch.int64, device=view.device)  # classes of earlier tasks

    @torch.no_grad()
    def end_task(self, view: StepView) -> None:
        old = int(self.old)
        for network in (view.network, view.average):
            if network is not None and 0 < old < network.num_classes:
                lengths = network.proxies.norm(dim=1)
                network.proxies[old:] *= lengths[:old].mean() / lengths[old:].mean()
        self.old.fill_(view.network.num_classes)

    def drop_class(self, column: int) -> None:
        self.old -= int(column < int(self.old))

    def state(self) -> dict[str, Tensor]:
        return {"old": self.old}

    def load_state(self, state: dict[str, Tensor]) -> None:
        self.old = state["old"]
