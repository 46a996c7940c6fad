"""SS-IL (Ahn et al. 2021): incoming samples compete among the new classes, replayed ones among the old.

`[sum CE(B; new) + sum CE(B_M; old)] / rows + sum over earlier tasks of tau^2 KL(p(previous network) | p)`, each softmax of
the second part over the classes of one earlier task. It replays samples of earlier tasks only.
"""

from typing import ClassVar

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from edge_hpcr.learner.memory import Replay
from edge_hpcr.learner.methods.closed_form import without
from edge_hpcr.learner.methods.method import Batch, StepView
from edge_hpcr.learner.methods.shared import KeepsPrevious

TEMPERATURE = 2.0  # of the distillation


class SSIL(KeepsPrevious):
    name = "ss_il"
    order = 124
    source = (
        "Ahn et al., ICCV 2021 (arXiv 2003.13947); the authors' program was read; nothing compares new classes with old ones, "
        "and the newest task is hardly learned; a program of others (AML), which distils less, may be what the paper ran"
    )
    gone: ClassVar = {"temperature": TEMPERATURE}

    def begin(self, view: StepView) -> None:
        super().begin(view)
        self.task_of = torch.zeros(0, dtype=torch.int64, device=view.device)  # the task of each old class

    def end_task(self, view: StepView) -> None:
        super().end_task(view)
        task = int(self.task_of.max()) + 1 if len(self.task_of) else 0
        self.task_of = F.pad(self.task_of, (0, self.old_classes - len(self.task_of)), value=task)

    def drop_class(self, column: int) -> None:
        super().drop_class(column)
        if column < len(self.task_of):
            self.task_of = without(self.task_of, column)

    def choose_replay(self, view: StepView, inputs: np.ndarray, columns: np.ndarray, size: int) -> Replay:
        old = np.flatnonzero(view.held.labels() < self.old_classes)
        return view.held.sample_of(old, size, view.rng)

    def loss(self, batch: Batch) -> Tensor:
        new = torch.arange(batch.num_classes, device=batch.labels.device) >= self.old_classes
        own = new[batch.labels][:, None] == new[None, :]  # also of an incoming sample of an old class
        separated = F.cross_entropy(
            batch.logits.masked_fill(~own, torch.finfo(batch.logits.dtype).min), batch.labels
        )
        if self.previous is None:
            return separated
        with torch.no_grad():
            teacher = self.previous.logits(self.previous.features(batch.inputs))
        return separated + task_wise_distillation(batch.logits, teacher, self.task_of, TEMPERATURE)

    def state(self) -> dict[str, Tensor]:
        return super().state() | {"task_of": self.task_of}

    def load_state(self, state: dict[str, Tensor]) -> None:
        super().load_state(state)
        self.task_of = state["task_of"]


def task_wise_distillation(logits: Tensor, teacher: Tensor, task_of: Tensor, temperature: float) -> Tensor:
    """The sum over earlier tasks of `tau^2 KL(teacher | logits)`, each over the classes of that task, mean over rows."""
    total = logits.new_zeros(())
    for task in task_of.unique().tolist():
        columns = torch.nonzero(task_of == task).flatten()
        new = F.log_softmax(logits[:, columns] / temperature, dim=1)
        old = F.log_softmax(teacher[:, columns] / temperature, dim=1)
        total = total + temperature**2 * F.kl_div(new, old, reduction="batchmean", log_target=True)
    return total
