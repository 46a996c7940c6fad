"""The gradients that reach the proxies while the last task is learned, summed over its steps."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from edge_hpcr.bench.run import Run
from edge_hpcr.learner.methods import Batch


class ProxyGradients:
    """Watches a run: for each proxy, the sums of the gradients of its similarities, and of the gradient itself.

    The first is the paper's (eq. gradient_pcr): the sum over steps and anchors of `dL/d<z, w_c>`, positive for a proxy that
    is pushed away from the samples; the second sums the absolute values, where pushes and pulls do not cancel. The third
    is a vector: with SGD, minus the proxy's way over the learning rate.
    """

    def __init__(self, run: Run) -> None:
        self._run = run
        self.of_similarities = torch.zeros(0, dtype=torch.float64)
        self.sizes = torch.zeros(0, dtype=torch.float64)
        self.of_proxies = torch.zeros(0, run.learner.network.feature_size, dtype=torch.float64)
        method, tau = run.learner.method, run.learner.config.tau
        loss = method.loss

        def watched(batch: Batch) -> Tensor:
            # `o = <z, w>/tau`, so the gradient of the similarity is that of the logit over tau.
            batch.logits.register_hook(lambda gradient: self._add(gradient / tau))
            return loss(batch)

        method.loss = watched  # type: ignore[method-assign]

    @property
    def _last_task(self) -> bool:
        return self._run.progress.task == len(self._run.stream.tasks) - 1

    def _add(self, gradient: Tensor) -> None:
        if self._last_task:
            self.of_similarities = _sum(self.of_similarities, gradient.sum(0))
            self.sizes = _sum(self.sizes, gradient.abs().sum(0))

    def after_step(self, run: Run) -> None:
        gradient = run.learner.network.proxies.grad
        if self._last_task and gradient is not None:
            self.of_proxies = _sum(self.of_proxies, gradient)

    def seen(self) -> dict[str, Any]:
        """By class in the order of arrival; `new` are the last task's."""
        run = self._run
        return {
            "new": [class_id in run.stream.tasks[-1].classes for class_id in run.learner.class_ids],
            "similarities": _rounded(self.of_similarities),
            "sizes": _rounded(self.sizes),
            "lengths": _rounded(self.of_proxies.norm(dim=1)),
            "accuracy": run.result()["A_T"],
        }


def _rounded(values: Tensor) -> list[float]:
    return [round(value, 4) for value in values.tolist()]


def _sum(total: Tensor, more: Tensor) -> Tensor:
    """The sum by rows; rows of classes that came since begin at zero."""
    missing = len(more) - len(total)
    return F.pad(total, (0, 0) * (total.dim() - 1) + (0, missing)) + more.detach().cpu().double()
