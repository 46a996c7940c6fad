"""The gradients that reach the proxies while the last task is learned: with and without HT, and by distillation."""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from benchmarks.paper.analysis import Analysis, Runs, Settings, as_printed, number, percent
from edge_hpcr.bench.report import markdown
from edge_hpcr.bench.run import Run, forget
from edge_hpcr.bench.run_config import RunConfig
from edge_hpcr.learner.methods import Batch

# At these batch sizes they differ in nothing else.
WITHOUT_AND_WITH = {"without HT": ("pcr", {}), "with HT": ("pcr_ct", {})}
DISTILLATIONS = {
    "none": ("hpcr", {"alpha": 0.0, "beta": 0.0}),
    "DER": ("hpcr", {"beta": 0.0, "distillation": "der"}),
    "PCD": ("hpcr", {"beta": 0.0}),
    "SCD": ("hpcr", {"alpha": 0.0}),
    "PCD+SCD": ("hpcr", {}),
}


class ProxyGradients:
    """Watches a run: for each proxy, the sums of the gradients of its similarities, and of the gradient itself.

    The first is the paper's (eq. gradient_pcr): the sum over steps and anchors of `dL/d<z, w_c>`, positive for a proxy that
    is pushed away from the samples; the second sums the absolute values, where pushes and pulls do not cancel. The third
    is a vector: with SGD, minus the proxy's way over the learning rate.
    """

    def __init__(self, run: Run) -> None:
        self._run = run
        self.of_similarities = self.sizes = torch.zeros(0, dtype=torch.float64)
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

    def sums(self) -> dict[str, Any]:
        """By class in the order of arrival; `new` are the last task's."""
        run = self._run
        return {
            "new": [class_id in run.stream.tasks[-1].classes for class_id in run.learner.class_ids],
            "similarities": _rounded(self.of_similarities),
            "sizes": _rounded(self.sizes),
            "lengths": _rounded(self.of_proxies.norm(dim=1)),
            "accuracy": run.result()["A_T"],
        }


def watched_gradients(run: Run) -> dict[str, Any]:
    """One that was stopped begins anew: what its watcher had seen went with the process."""
    forget(run.config, run.folder)
    watcher = ProxyGradients(run)
    run.run(watcher.after_step)
    return watcher.sums()


class ProxyGradientsOfHT(Analysis):
    name = "proxy-gradients"
    purpose = "cumulative gradient for old and new proxies with and without HT"
    source = "Table `ablation_ht`, columns 'Final Accuracy' and 'Cumulative gradient'"
    conclusion = (
        "with HT less gradient reaches the proxies of old (64.28 < 88.27) and of new classes (70.40 < 95.39); the table has "
        "the latter with a minus, so these are signed sums, of `dL/d<z, w>` by their signs."
    )
    small = Settings()
    paper = as_printed(Settings, "cifar10", 100)

    variants: ClassVar = WITHOUT_AND_WITH

    def seen(self, config: RunConfig, settings: Settings, runs: Runs) -> dict[str, Any]:
        return runs.measured(config, settings, self.name, watched_gradients)

    def table(self, result: dict[str, Any]) -> str:
        note = (
            "Sums over the steps of the last task and over the old (new) proxies, mean over the seeds: of `dL/d<z, w>` (the "
            "terms of one anchor add up to 0, so old and new are opposite by construction), of its absolute value (*size*), and "
            "of the *length* of each proxy's summed gradient. With SGD a proxy moves by this length times the learning rate."
        )
        kinds = [(key, new) for key in ("similarities", "sizes", "lengths") for new in (False, True)]
        rows = [
            [*_begin(name, seen), *(number(over(seen, key, new), 1) for key, new in kinds)]
            for name, seen in result["measured"].items()
        ]
        head = ["setting", "n", "A_T", "old", "new", "size, old", "size, new", "length, old", "length, new"]
        return f"{note}\n\n{markdown(head, rows, left=1)}"


class DistillationGradients(Analysis):
    name = "distillation-gradients"
    purpose = "cumulative gradient for all proxies under each distillation while the last classes are learned"
    source = "Figure `ablation_hd`"
    conclusion = "with SCD alone less gradient reaches the proxies than with PCD."
    small = Settings(seeds=2)
    paper = as_printed(Settings, "cifar10", 100)

    variants: ClassVar = DISTILLATIONS

    def seen(self, config: RunConfig, settings: Settings, runs: Runs) -> dict[str, Any]:
        return runs.measured(config, settings, self.name, watched_gradients)

    def table(self, result: dict[str, Any]) -> str:
        note = (
            "HPCR with each distillation, sums over the steps of the last task, mean over the seeds: for each class, in the "
            "order of arrival, of `dL/d<z, w>`; over all proxies, of the absolute values of these sums (*signed*); and of "
            "`|dL/d<z, w>|` (*size*)."
        )
        rows = []
        for name, seen in result["measured"].items():
            amounts = [[sum(map(abs, each[key])) for each in seen] for key in ("similarities", "sizes")]
            by_class = np.mean([each["similarities"] for each in seen], axis=0)
            cells = [*(number(each, 0) for each in amounts), *(f"{value:+.1f}" for value in by_class)]
            rows.append([*_begin(name, seen), *cells])
        classes = (f"class {place}" for place in range(1, len(rows[0]) - 4))
        head = ["distillation", "n", "A_T", "signed, all", "size, all", *classes]
        return f"{note}\n\n{markdown(head, rows, left=1)}"


def over(seen: list[dict[str, Any]], key: str, new: bool) -> list[float]:
    """The sum over the new (old) proxies, one per seed."""
    return [
        sum(value for value, is_new in zip(each[key], each["new"], strict=True) if is_new == new)
        for each in seen
    ]


def _begin(name: str, seen: list[dict[str, Any]]) -> list[str]:
    return [name, str(len(seen)), percent([each["accuracy"] for each in seen])]


def _rounded(values: Tensor) -> list[float]:
    return [round(value, 4) for value in values.tolist()]


def _sum(total: Tensor, more: Tensor) -> Tensor:
    """The sum by rows; rows of classes that came since begin at zero."""
    missing = len(more) - len(total)
    return F.pad(total, (0, 0) * (total.dim() - 1) + (0, missing)) + more.detach().cpu().double()
