"""Analyses of accuracies alone: over the temperature, replayed samples, tasks by distillation, new and old tasks."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import product
from typing import Any, ClassVar

import numpy as np

from benchmarks.paper.analysis import Analysis, Runs, Settings, as_printed, percent
from edge_hpcr.bench.report import markdown, marked
from edge_hpcr.bench.run_config import RunConfig
from edge_hpcr.learner.learner import LearnerConfig

# Where a static temperature is changed: in the gradient's factor 1/tau (G), in the probabilities (P), or in both.
PARTS = ("both", "G", "P")
WITHOUT_AND_WITH_HC = {"PCR": "pcr", "PCR+HC": "pcr_c"}
METHODS = ("er", "scr", "er_ace", "uer", "pcr", "pcr_ct", "hpcr")  # the paper's lines, and ER


@dataclass(frozen=True)
class TemperatureSettings(Settings):
    taus: tuple[float, ...] = (0.03, 0.06, 0.09, 0.2)
    lowest: tuple[float, ...] = (0.05, 0.09)
    highest: tuple[float, ...] = (0.12, 0.16, 0.2)
    cycles: tuple[int, ...] = (5, 15, 50)


def static_options(part: str, tau: float) -> dict[str, Any]:
    """Options with this temperature in this part, and the usual one in the other."""
    usual = LearnerConfig.tau
    in_gradient = tau if part in ("both", "G") else usual
    in_probabilities = tau if part in ("both", "P") else usual
    # The loss is multiplied by tau/tau(s), here a constant: its gradient has 1/tau(s) in place of 1/tau.
    return {"tau": in_probabilities, "tau_low": in_gradient, "tau_high": in_gradient, "cycle": 1}


class Temperature(Analysis):
    name = "temperature"
    purpose = "PCR with static temperatures; HPCR over tau_min, tau_max and the cycle S"
    source = "Figure `tau`, tables `tau`, `tau_step` and `tau_bound`"
    conclusion = (
        "PCR is sensitive to tau, old classes need a smaller one than new classes, each class has its own best, and HPCR is "
        "best with tau_min 0.05, tau_max 0.16 and S = 500."
    )
    small = TemperatureSettings(seeds=2, limit=150)
    paper = as_printed(
        TemperatureSettings,
        "cifar100",
        1000,
        taus=(0.01, 0.03, 0.05, 0.07, 0.09, 0.12, 0.14, 0.17, 0.2, 0.3, 0.5),
        lowest=(0.11, 0.09, 0.07, 0.05),
        highest=(0.12, 0.14, 0.16, 0.18, 0.2),
        cycles=(50, 100, 125, 250, 500, 1000),
    )

    def measure(self, settings: TemperatureSettings, runs: Runs) -> dict[str, Any]:
        def results(method: str, options: dict[str, Any]) -> list[dict[str, Any]]:
            seeds = range(settings.seeds)
            return [runs.result(runs.config(settings, method, seed, options)) for seed in seeds]

        static = []
        for part, tau in runs.each(list(product(PARTS, settings.taus)), "static temperatures"):
            made = results("pcr_ct", static_options(part, tau))
            last = [each["accuracy_matrix"][-1] for each in made]
            classes = [[each["class_accuracy"][-1][str(c)] for c in each["class_order"]] for each in made]
            static.append(
                {
                    **{"part": part, "tau": tau, "all": [each["A_T"] for each in made]},
                    **{"old": [float(np.mean(row[:-1])) for row in last], "new": [row[-1] for row in last]},
                    "classes": np.mean(classes, axis=0).round(4).tolist() if part == "P" else [],
                }
            )
        measured: dict[str, Any] = {"static": static, "bounds": [], "cycles": []}
        for low, high in runs.each(list(product(settings.lowest, settings.highest)), "bounds"):
            made = results("hpcr", {"tau_low": low, "tau_high": high})
            measured["bounds"].append({"tau_min": low, "tau_max": high, **_accuracies(made)})
        for cycle in runs.each(settings.cycles, "cycles"):
            measured["cycles"].append({"cycle": cycle, **_accuracies(results("hpcr", {"cycle": cycle}))})
        return measured

    def table(self, result: dict[str, Any]) -> str:
        measured = result["measured"]
        static = [
            [cell["part"], f"{cell['tau']:g}", *(percent(cell[kind]) for kind in ("all", "old", "new"))]
            for cell in measured["static"]
        ]
        bounds = [
            [f"{cell['tau_min']:g}", f"{cell['tau_max']:g}", percent(cell["A_T"]), percent(cell["AAA"])]
            for cell in measured["bounds"]
        ]
        cycles = [
            [str(cell["cycle"]), percent(cell["A_T"]), percent(cell["AAA"])] for cell in measured["cycles"]
        ]
        parts = [
            "PCR with a static tau in the gradient's factor (G), in the probabilities (P), or in both, and the usual "
            f"{LearnerConfig.tau} in the other part; final accuracy of all classes, of old ones, and of the last task's:",
            markdown(["part", "tau", "all", "old", "new"], static, left=1),
            "The best static tau (P part) for each class, in the order of arrival:",
            _best_by_class([cell for cell in measured["static"] if cell["part"] == "P"]),
            "HPCR over the bounds of the temperature:",
            markdown(["tau_min", "tau_max", "A_T", "AAA"], bounds),
            "HPCR over the cycle S in steps, with the usual bounds:",
            markdown(["S", "A_T", "AAA"], cycles, left=1),
        ]
        return "\n\n".join(parts)


def _accuracies(results: list[dict[str, Any]]) -> dict[str, list[float]]:
    return {metric: [result[metric] for result in results] for metric in ("A_T", "AAA")}


def _best_by_class(cells: list[dict[str, Any]]) -> str:
    accuracies = np.array([cell["classes"] for cell in cells])
    rows = [
        [str(number), f"{cells[best]['tau']:g}", f"{100 * share:.0f}"]
        for number, (best, share) in enumerate(zip(accuracies.argmax(0), accuracies.max(0), strict=True), 1)
    ]
    return markdown(["class", "tau", "accuracy"], rows, left=1)


@dataclass(frozen=True)
class ContrastiveSettings(Settings):
    replays: tuple[int, ...] = (10, 20, 50, 100)


class ContrastiveComponent(Analysis):
    name = "contrastive"
    purpose = "PCR with and without HC over the number of replayed samples"
    source = "Figure `ablation_hc`"
    conclusion = (
        "sample pairs (HC) cost accuracy while fewer than 60 samples are replayed, and gain it from there on."
    )
    small = ContrastiveSettings(buffer=200, seeds=2)
    paper = as_printed(ContrastiveSettings, "cifar100", 5000, replays=(10, 20, 40, 60, 80, 100))

    def measure(self, settings: ContrastiveSettings, runs: Runs) -> dict[str, Any]:
        def final(replay: int, name: str, seed: int) -> float:
            config = runs.config(settings, WITHOUT_AND_WITH_HC[name], seed, {"replay": replay})
            return runs.result(config)["A_T"]

        measured: dict[str, Any] = {name: {} for name in WITHOUT_AND_WITH_HC}
        for name, replay in runs.each(list(product(measured, settings.replays)), self.name):
            measured[name][str(replay)] = [final(replay, name, seed) for seed in range(settings.seeds)]
        return measured

    def table(self, result: dict[str, Any]) -> str:
        return f"Final accuracy by replayed samples in a step.\n\n{by_place(result['measured'], '.0f')}"


def by_place(measured: dict[str, dict[str, list[float]]], form: str) -> str:
    """A table with a row for each name and a column for each number that its accuracies are kept by."""
    rows = [[name, *map(percent, accuracies.values())] for name, accuracies in measured.items()]
    places = next(iter(measured.values()))
    return markdown(["method", *(f"{float(place):{form}}" for place in places)], rows, left=1)


class DistillationTasks(Analysis):
    name = "distillation-tasks"
    purpose = "final accuracy of each task when logits are distilled as in DER or as in PCD"
    source = "Table `ablation_hd`"
    conclusion = "PCD balances the old tasks better than DER, which is ahead on the latest ones; on average PCD is ahead (46.4 against 45.6)."
    small = Settings()
    paper = as_printed(Settings, "cifar10", 100)

    variants: ClassVar = {name: ("pcr_ct_pcd", {"distillation": name.lower()}) for name in ("DER", "PCD")}

    def seen(self, config: RunConfig, settings: Settings, runs: Runs) -> list[float]:
        return runs.result(config)["accuracy_matrix"][-1]

    def table(self, result: dict[str, Any]) -> str:
        rows = []
        for name, tasks in result["measured"].items():
            columns = [*zip(*tasks, strict=True), [float(np.mean(row)) for row in tasks]]
            rows.append([name, *map(percent, columns)])
        head = ["distillation", *(f"task {task}" for task in range(1, len(rows[0]) - 1)), "average"]
        note = "Final accuracy of each task (PCR with HT and this distillation, without SCD):"
        return f"{note}\n\n{markdown(head, rows, left=1)}"


def novel_and_historical(matrix: list[list[float]]) -> dict[str, list[float]]:
    """The accuracy on task i after task i, and from the second task on the mean over the tasks before it."""
    historical = [float(np.mean(row[:-1])) for row in matrix[1:]]
    return {"novel": [row[-1] for row in matrix], "historical": historical}


class Knowledge(Analysis):
    name = "knowledge"
    purpose = "accuracy on the newest task (novel) and on the earlier ones (historical), over the tasks"
    source = "Figure `learningstage5000`"
    conclusion = (
        "HT mainly helps novel knowledge (PCR against PCR with HT), distillation helps historical knowledge (HPCR against "
        "PCR with HT)."
    )
    small = Settings()
    paper = as_printed(Settings, "mini_imagenet", 5000)

    variants: ClassVar = {name: (name, {}) for name in METHODS}

    def seen(self, config: RunConfig, settings: Settings, runs: Runs) -> dict[str, list[float]]:
        return novel_and_historical(runs.result(config)["accuracy_matrix"])

    def table(self, result: dict[str, Any]) -> str:
        rows = []
        for name, seen in result["measured"].items():
            overall = [
                percent([float(np.mean(each[key])) for each in seen]) for key in ("novel", "historical")
            ]
            rows.append([marked(name), str(len(seen)), *overall])
        note = "Mean over the tasks; `pcr_ct` is PCR with HT, or HPCR without distillation."
        return f"{note}\n\n{markdown(['method', 'n', 'novel', 'historical'], rows, left=1)}"
