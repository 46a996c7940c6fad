"""ER-WA (Zhao et al. 2020): ER, but the newest task's classes get weights as long as those of the classes before them.

`w_c <- w_c mean_old |w| / mean_new |w|`. Lengths matter in a linear classifier only, so it has one, and they say how large a
logit becomes only while weights are not negative: the publication offers to clip them after each step. Without clipping, aligning the
very same training made it forget more here (docs/method.md). That ER-WA is replay with weight aligning alone, without the
publication's distillation, is remembered; a program of others (`er_wa`, built on Mammoth) does the same, with clipping.
"""

from typing import ClassVar

import torch
from torch import Tensor

from edge_hpcr.learner.methods.er import ER
from edge_hpcr.learner.methods.method import Batch, StepView


class ERWA(ER):
    name = "er_wa"
    order = 119
    from_description = True
    source = "Zhao et al., CVPR 2020 (arXiv 1911.07053); a program of others (er_wa) was read; how the paper combines it with ER is from memory, without a source"
    linear = True
    needs_boundaries = True
    earlier: ClassVar = {"clip": False}
    gone: ClassVar = {"align": "weights", "clip": True}

    # How many classes belong to tasks that have ended, and to those before the newest task.
    ended = before = 0

    def add_class(self) -> None:
        if self.network.num_classes - 1 == self.ended:  # the first of a task
            self.before = self.ended

    @torch.no_grad()
    def end_task(self, view: StepView) -> None:
        for network in filter(None, (view.network, view.average)):
            old, weights = self.before, network.proxies
            if 0 < old < len(weights):
                lengths = weights.norm(dim=1)
                weights[old:] *= lengths[:old].mean() / lengths[old:].mean()
        self.ended = view.network.num_classes

    @torch.no_grad()
    def after_step(self, view: StepView, batch: Batch) -> None:
        view.network.proxies.clamp_(min=0)

    def drop_class(self, column: int) -> None:
        self.ended -= int(column < self.ended)
        self.before -= int(column < self.before)

    def state(self) -> dict[str, Tensor]:
        return {"old": torch.tensor([self.ended, self.before])}

    def load_state(self, state: dict[str, Tensor]) -> None:
        self.ended, self.before = state["old"].tolist()
