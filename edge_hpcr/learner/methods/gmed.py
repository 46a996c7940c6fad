"""GMED (Jin et al. 2021): edits the images in memory so that they are harder to keep, then ER on the edited ones.

`x <- x + alpha gradient_x [l(x; after a step on B) - (1 + beta) l(x; now)]`. The publication lets edits of one image
shrink with their number and takes the step on B sample by sample; here edits do not shrink and the step is one. Rates for
CIFAR are remembered. The memory holds edited floats, four bytes a number.
"""

from dataclasses import dataclass, replace

import numpy as np
import torch
from torch.nn import functional as F

from edge_hpcr.common.errors import UserError
from edge_hpcr.learner.memory import Replay
from edge_hpcr.learner.methods.contract import Batch, StepView
from edge_hpcr.learner.methods.er import ER
from edge_hpcr.learner.methods.lookahead import after_virtual_step


@dataclass(frozen=True)
class Config:
    alpha: float = 0.05  # of the edit
    beta: float = 0.001  # how much the loss now holds the image back

    def __post_init__(self) -> None:
        for name in ("alpha", "beta"):
            if getattr(self, name) < 0:
                raise UserError(f"{name} {getattr(self, name)}: give 0 or more")


class GMED(ER):
    name = "gmed"
    order = 112
    source = "Jin et al., NeurIPS 2021 (arXiv 2006.15294); the authors' program was read; rates for CIFAR are remembered"
    Config = Config
    edits_images = True
    edited: Replay | None = None  # what this step replays; a rehearsal edits nothing

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
        edited = (images.detach() + self.config.alpha * gradient).clamp(
            0, 1
        )  # colours have no meaning outside
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
