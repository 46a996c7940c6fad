"""ER-WA (Zhao et al. 2020): ER, but the newest task's classes get weights as long as those of the classes before them.

`w_c <- w_c mean_old |w| / mean_new |w|`. Lengths matter in a linear classifier only, so it has one, and they say how large a
logit becomes only while weights are not negative: the publication offers to clip them after each step. Without clipping, aligning the
very same training made it forget more here (docs/method.md). That ER-WA is replay with weight aligning alone, without the
publication's distillation, is remembered; a program of others (`er_wa`, built on Mammoth) has it so, with clipping.

`align` says what is aligned: `weights`, the weights themselves when a task ends, from which the next task goes on; `predict`, a
copy for predictions, so that training is that of ER; `none`, nothing: ER with a linear classifier.
"""

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor, nn

from edge_hpcr.common.errors import one_of
from edge_hpcr.learner.methods.contract import Batch, StepView
from edge_hpcr.learner.methods.er import ER
from edge_hpcr.learner.network import Classifier, Network

ALIGN = ("predict", "weights", "none")


@dataclass(frozen=True)
class Config:
    align: str = "weights"
    clip: bool = True  # negative weights become 0 after each step

    def __post_init__(self) -> None:
        one_of("align", self.align, ALIGN)


class ERWA(ER):
    name = "er_wa"
    order = 119
    source = "Zhao et al., CVPR 2020 (arXiv 1911.07053); a program of others (er_wa) was read; how the tables combine it with ER is remembered"
    known_difference = "how the tables combine weight aligning with ER is remembered"
    linear = True
    needs_boundaries = True
    Config = Config
    earlier: ClassVar = {"align": "weights", "clip": False}

    ended = before = (
        0  # how many classes belong to tasks that have ended, and to those before the newest task
    )

    def begin(self, view: StepView) -> None:
        self.network = view.network

    def add_class(self) -> None:
        if self.network.num_classes - 1 == self.ended:  # the first of a task
            self.before = self.ended

    @torch.no_grad()
    def end_task(self, view: StepView) -> None:
        for network in (view.network, view.average):
            if network is not None and self.config.align == "weights":
                network.proxies.copy_(self.aligned(network))
        self.ended = view.network.num_classes

    @torch.no_grad()
    def after_step(self, view: StepView, batch: Batch) -> None:
        if self.config.clip:
            view.network.proxies.clamp_(min=0)

    def aligned(self, network: Network) -> Tensor:
        old, weights = self.before, network.proxies.detach().clone()
        if 0 < old < len(weights):
            lengths = weights.norm(dim=1)
            weights[old:] *= lengths[:old].mean() / lengths[old:].mean()
        return weights

    def classifier(self, view: StepView, network: Network) -> nn.Module:
        if self.config.align != "predict":
            return super().classifier(view, network)
        return Classifier(nn.Identity(), self.aligned(network))

    def drop_class(self, column: int) -> None:
        self.ended -= int(column < self.ended)
        self.before -= int(column < self.before)

    def state(self) -> dict[str, Tensor]:
        return {"old": torch.tensor([self.ended, self.before])}

    def load_state(self, state: dict[str, Tensor]) -> None:
        self.ended, self.before = state["old"].expand(2).tolist()  # the first checkpoints have one number
