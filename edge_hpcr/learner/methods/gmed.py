"""GMED (Jin et al. 2021): edits the images in memory so that they are harder to keep, then ER on the edited ones.

`x <- x + alpha (1 - decay)^k gradient_x [l(x; after a step on B) - (1 + beta) l(x; now)]`, k the edits of x so far. The step
on B is one, as in the authors' program for CIFAR. There `alpha` multiplies the gradient of a mean over ten images: their 0.05
to 1 are 0.005 to 0.1 here; beta 0.001 to 0.1 was tried, its term has the opposite sign, and `decay` is 0 by default. The
memory holds edited floats, four bytes a number, and 12 bytes for the number of edits of each.
"""

from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from edge_hpcr.common.errors import UserError
from edge_hpcr.learner.memory import Replay
from edge_hpcr.learner.methods.contract import Batch, StepView
from edge_hpcr.learner.methods.er import ER
from edge_hpcr.learner.methods.lookahead import after_virtual_step
from edge_hpcr.learner.methods.per_sample import PerSample


@dataclass(frozen=True)
class Config:
    alpha: float = 0.05  # of the edit
    beta: float = 0.001  # how much the loss now holds the image back
    decay: float = 0.0  # of alpha with each edit of an image

    def __post_init__(self) -> None:
        for name in ("alpha", "beta"):
            if getattr(self, name) < 0:
                raise UserError(f"{name} {getattr(self, name)}: give 0 or more")
        if not 0 <= self.decay < 1:
            raise UserError(f"decay {self.decay}: give 0 or more, less than 1")


class GMED(ER):
    name = "gmed"
    order = 112
    source = "Jin et al., NeurIPS 2021 (arXiv 2006.15294); the authors' program was read; rates chosen here"
    Config = Config
    earlier: ClassVar = {"decay": 0.0}
    edits_images = True
    edited: Replay | None = None  # what this step replays; a rehearsal edits nothing

    def begin(self, view: StepView) -> None:
        self.edits = PerSample(0, torch.int32)

    def choose_replay(self, view: StepView, inputs: np.ndarray, columns: np.ndarray, size: int) -> Replay:
        self.edited, drawn = None, view.held.sample(size)
        later, now = after_virtual_step(view, inputs, columns), view.network.eval()
        labels = torch.from_numpy(drawn.labels).to(view.device)
        with torch.enable_grad():
            images = view.plain(drawn.inputs).requires_grad_()
            losses = [
                F.cross_entropy(net.logits(net.features(images)), labels, reduction="sum")
                for net in (later, now)
            ]
            (gradient,) = torch.autograd.grad(losses[0] - (1 + self.config.beta) * losses[1], [images])
        rate = self.config.alpha * (1 - self.config.decay) ** torch.tensor(self.edits.of(drawn.ids))
        moved = images.detach() + rate.to(images)[:, None, None, None] * gradient
        edited = moved.clamp(0, 1)  # colours have no meaning outside
        self.edited = replace(drawn, inputs=edited.permute(0, 2, 3, 1).mul(255).cpu().numpy())
        return self.edited

    def after_step(self, view: StepView, batch: Batch) -> None:
        """Keep the edited images, now that the step was taken, of samples that are still held."""
        new: dict[int, float] = {}
        if self.edited is not None:
            slot_of = {sample: slot for slot, sample in enumerate(view.held.ids().tolist())}
            ids = self.edited.ids.tolist()
            new = {sample: edits + 1 for sample, edits in zip(ids, self.edits.of(ids), strict=True)}
            for sample, image in zip(ids, self.edited.inputs, strict=True):
                if sample in slot_of:
                    view.held.replace_input(slot_of[sample], image)
        self.edits.follow(view.held.ids(), new)
        self.edited = None

    def state(self) -> dict[str, Tensor]:
        return self.edits.state("edits")

    def load_state(self, state: dict[str, Tensor]) -> None:
        if state:  # the first checkpoints have none
            self.edits.load_state(state, "edits")
