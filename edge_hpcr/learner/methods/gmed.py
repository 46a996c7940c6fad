"""GMED (Jin et al. 2021): edits the images in memory so that they are harder to keep, then ER on the edited ones.

`x <- x + alpha gradient_x [l(x; after a step on B) - (1 + beta) l(x; now)]`. The step on B is one, as in the authors' program
for CIFAR. There `alpha` multiplies the gradient of a mean over ten images: their 0.05 to 1 are 0.005 to 0.1 here; beta 0.001 to
0.1 was tried, its term has the opposite sign. The publication's decay of `alpha` is 0 by default there, and left out here. The
memory holds edited floats, four bytes per number.
"""

from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np
import torch
from torch.nn import functional as F

from edge_hpcr.common.errors import check_at_least
from edge_hpcr.learner.memory import Replay
from edge_hpcr.learner.methods.er import ER
from edge_hpcr.learner.methods.method import Batch, StepView
from edge_hpcr.learner.methods.shared import after_virtual_step


@dataclass(frozen=True)
class Config:
    alpha: float = 0.05  # of the edit
    beta: float = 0.001  # how much the loss now holds the image back

    def __post_init__(self) -> None:
        check_at_least(0, self, "alpha", "beta")


class GMED(ER):
    name = "gmed"
    order = 112
    source = "Jin et al., NeurIPS 2021 (arXiv 2006.15294); the authors' program was read; rates chosen here"
    Config = Config
    gone: ClassVar = {"decay": 0.0}
    edits_images = True
    edited: Replay | None = None  # what this step replays; a rehearsal edits nothing

    def choose_replay(self, view: StepView, inputs: np.ndarray, columns: np.ndarray, size: int) -> Replay:
        self.edited, drawn = None, view.held.sample(size)
        later, now = after_virtual_step(view, inputs, columns), view.network.eval()
        images, labels = view.samples(drawn)
        with torch.enable_grad():
            images.requires_grad_()
            losses = [
                F.cross_entropy(net.logits(net.features(images)), labels, reduction="sum")
                for net in (later, now)
            ]
            (gradient,) = torch.autograd.grad(losses[0] - (1 + self.config.beta) * losses[1], [images])
        moved = images.detach() + self.config.alpha * gradient
        edited = moved.clamp(0, 1)  # colours have no meaning outside
        self.edited = replace(drawn, inputs=edited.permute(0, 2, 3, 1).mul(255).cpu().numpy())
        return self.edited

    def after_step(self, view: StepView, batch: Batch) -> None:
        """Keep the edited images, now that the step was taken, of samples that are still held."""
        if self.edited is not None:
            slot_of = {sample: slot for slot, sample in enumerate(view.held.ids().tolist())}
            for sample, image in zip(self.edited.ids.tolist(), self.edited.inputs, strict=True):
                if sample in slot_of:
                    view.held.replace_input(slot_of[sample], image)
        self.edited = None
