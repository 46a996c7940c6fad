"""Finished runs as Markdown: seeds of one setting together, the paper's value beside ours where the setting is the paper's.

>>> paper_value("hpcr", "cifar10", 200, "A_T").text
'53.4 ± 1.4'
"""

from __future__ import annotations

import csv
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from functools import cache, cached_property, reduce
from operator import getitem
from pathlib import Path
from typing import Any

from tabulate import tabulate

from edge_hpcr.bench import metrics, presets
from edge_hpcr.bench.datasets import DATASETS
from edge_hpcr.bench.run import has_budget, make_config, papers_options, plain
from edge_hpcr.common.units import format_bytes, parse_bytes
from edge_hpcr.learner import methods
from edge_hpcr.learner.config import memory_options
from edge_hpcr.learner.learner import LearnerConfig
from edge_hpcr.learner.memory_config import OPTIONS as MEMORY_OPTIONS
from edge_hpcr.learner.memory_config import MemoryConfig

PAPER_RESULTS = Path(__file__).with_name("paper_results.csv")
NOTHING = "–"  # noqa: RUF001 (an en dash, as tables of numbers have it)
EXPLANATION = """\
All accuracies are in percent: the mean over n seeds and the half-width of its 95 % confidence interval (t distribution;
one seed has none). A_T is the final accuracy, AAA the mean accuracy after each task, F_T the forgetting (lower is
better). Beside them stands the paper's value where the run has the paper's setting, and by how much ours differs. A
method's name is followed by every setting in which the run differs from the paper's. Bytes are all that the memory keeps
of a sample; the overhead is what logits and features add to images and labels, in numbers (as the paper counts) and in
bytes. A step is one update of the weights, its p50 and p95 the median and the 95th percentile. With a pre-trained
backbone, times are those of learning; a picture's pass through the frozen trunk stands beside them."""
_METRICS = ("A_T", "AAA", "F_T")
_CONDITIONS = ("tasks", "limit", "validation", "stream")
# These decide the cost, or the averaged weights, or how numbers are rounded: the paper's row is still the one to compare.
_NOT_THE_PAPERS_CONCERN = frozenset({"threads", "ema_decay", "precision", "compute"})


@dataclass(frozen=True)
class Estimate:
    """A mean in percent, perhaps with the half-width of its confidence interval, perhaps unknown."""

    mean: float | None = None
    half: float | None = None

    @classmethod
    def of(cls, values: Sequence[float]) -> Estimate:
        """Of shares, one per seed."""
        return cls(*metrics.mean_and_interval([100 * value for value in values])) if values else cls()

    @property
    def text(self) -> str:
        if self.mean is None:
            return NOTHING
        return f"{self.mean:.1f}" if self.half is None else f"{self.mean:.1f} ± {self.half:.1f}"

    def above(self, other: Estimate) -> str:
        if self.mean is None or other.mean is None:
            return NOTHING
        return f"{self.mean - other.mean:+.1f}"


@cache
def _paper_results() -> dict[tuple[str, str, str, int | None, str], Estimate]:
    """By setting ("paper" or "ocm"), method, dataset, buffer and metric; the ablation rows are methods like others."""
    with PAPER_RESULTS.open(newline="") as file:
        return {
            (
                "ocm" if row["table"] == "paper_ocm_setting" else "paper",
                row["method"],
                row["dataset"],
                int(row["buffer"]) if row["buffer"] else None,
                row["metric"],
            ): Estimate(float(row["mean"]), float(row["ci95"]))
            for row in csv.DictReader(file)
        }


def paper_value(
    method: str, dataset: str, buffer: int | None, metric: str, setting: str = "paper"
) -> Estimate:
    return _paper_results().get((setting, method, dataset, buffer, metric), Estimate())


def is_in_papers_table(method: str) -> bool:
    """Whether the paper's table of final accuracies names a method; the ablation's rows are in a table of their own."""
    with PAPER_RESULTS.open(newline="") as file:
        return any(
            row["method"] == method and row["table"] == "paper_final_accuracy" for row in csv.DictReader(file)
        )


def _flat_settings(config: dict[str, Any]) -> dict[str, Any]:
    """What can differ between runs of a method on a dataset, beside the seed and the size of the memory.

    A setting of the learner that is newer than the run had its default then.
    """
    learner = plain(asdict(LearnerConfig.from_dict(config["learner"])))
    nested = ("method", "method_options", "memory", "augment", "seed")
    return {
        **{key: value for key, value in learner.items() if key not in nested},
        **{f"augment.{key}": value for key, value in learner["augment"].items()},
        **methods.method_class(learner["method"]).options_then(config["method_options"]),
        **{key: learner["memory"][key] for key in MEMORY_OPTIONS},
        **{key: config[key] for key in (*_CONDITIONS, "threads") if key in config},
    }


@cache
def _usual_settings(dataset: str, method: str, backbone: str) -> dict[str, Any]:
    """The paper's, and what a pre-trained backbone recommends instead of some of them."""
    options = papers_options(dataset, method, backbone)
    memory = MemoryConfig(samples=200, **memory_options(backbone, method))
    config = make_config(dataset, method, method_options=options, backbone=backbone, memory=memory)
    resolved = methods.create(method, config.learner.method_options).config_dict()
    return _flat_settings(asdict(config) | {"method_options": resolved})


def deviations(result: dict[str, Any]) -> dict[str, Any]:
    """The settings in which a run differs from the paper's. A method's option newer than the run counts as the paper's."""
    stored = _flat_settings(result["config"])
    usual = _usual_settings(result["dataset"], result["method"], stored["backbone"])
    usual = usual | {"backbone": LearnerConfig.backbone}  # another one is always named
    return {key: value for key, value in sorted(stored.items()) if key not in usual or usual[key] != value}


@dataclass(frozen=True)
class Group:
    """The runs of one setting, which differ in nothing but the seed."""

    results: tuple[dict[str, Any], ...]

    @property
    def dataset(self) -> str:
        return self.results[0]["dataset"]

    @property
    def method(self) -> str:
        return self.results[0]["method"]

    @property
    def seeds(self) -> list[int]:
        return [result["seed"] for result in self.results]

    @cached_property
    def deviations(self) -> dict[str, Any]:
        return deviations(self.results[0])

    @property
    def differing(self) -> dict[str, Any]:
        """The deviations that forbid a comparison with the paper's value."""
        return {key: value for key, value in self.deviations.items() if key not in _NOT_THE_PAPERS_CONCERN}

    @property
    def conditions(self) -> str:
        """Under which tasks and on which images it was tested: only runs that agree in it compare."""
        return _notes({key: value for key, value in self.deviations.items() if key in _CONDITIONS})

    @property
    def title(self) -> str:
        settings = self.deviations
        if self.differing == presets.OCM_SETTING:
            settings = {"OCM setting": True} | {
                key: settings[key] for key in settings if key not in presets.OCM_SETTING
            }
        notes = _notes(settings)
        return f"{self.method} ({notes})" if notes else self.method

    @property
    def has_budget(self) -> bool:
        return has_budget(self.method)

    @property
    def memory(self) -> str:
        if not self.has_budget:
            return "none"
        config = self.results[0]["config"]["learner"]["memory"]
        size = f"{config['samples']} samples" if config["bytes"] is None else _exact_bytes(config["bytes"])
        if config["codec"] in ("webp", "jpeg"):
            return f"{size}, {config['codec']} {config['quality']}"
        return size if config["codec"] == "raw" else f"{size}, {config['codec']}"

    @property
    def name(self) -> str:
        return f"{self.title}, {self.memory}" if self.has_budget else self.title

    @property
    def order(self) -> tuple[Any, ...]:
        config = self.results[0]["config"]["learner"]["memory"]
        size = (not self.has_budget, *(config[key] or 0 for key in ("bytes", "samples")))
        variant = any(key not in _CONDITIONS for key in self.deviations)
        place = (list(DATASETS).index(self.dataset), self.conditions, variant, *size)
        return (*place, config["codec"], config["quality"], methods.names().index(self.method), self.title)

    def paper(self, metric: str) -> Estimate:
        """The paper's value, if the setting is the paper's in everything that decides it."""
        memory = self.results[0]["config"]["learner"]["memory"]
        if self.has_budget and (memory["samples"] is None or memory["codec"] != "raw"):
            return Estimate()
        buffer = memory["samples"] if self.has_budget else None
        if not self.differing:
            return paper_value(self.method, self.dataset, buffer, metric)
        if self.differing == presets.OCM_SETTING:
            return paper_value(self.method, self.dataset, buffer, metric, "ocm")
        return Estimate()

    def estimate(self, metric: str) -> Estimate:
        if metric == "F_T" and len(self.results[0]["accuracy_matrix"]) == 1:
            return Estimate()  # with one task there is nothing to forget
        return Estimate.of([result[metric] for result in self.results])

    def averaged(self, metric: str) -> Estimate:
        """The same with the averaged weights."""
        if self.estimate(metric).mean is None or any(result["ema"] is None for result in self.results):
            return Estimate()
        return Estimate.of([result["ema"][metric] for result in self.results])

    def mean(self, *path: str) -> float:
        """Over the seeds, of a number in the result."""
        values: Iterable[Any] = (reduce(getitem, path, result) for result in self.results)
        return sum(values) / len(self.results)


def group(results: Sequence[dict[str, Any]]) -> list[Group]:
    """Runs that differ in nothing but the seed, together; in the order in which a reader wants them."""
    together: dict[tuple[str, ...], list[dict[str, Any]]] = {}
    for result in results:
        single = Group((result,))
        together.setdefault((single.dataset, single.name), []).append(result)
    groups = [Group(tuple(sorted(runs, key=lambda run: run["seed"]))) for runs in together.values()]
    return sorted(groups, key=lambda one: one.order)


def table(results: Sequence[dict[str, Any]]) -> str:
    """All results in Markdown tables that can be read as they are."""
    return "\n\n".join(section(groups) for groups in by_dataset(group(results)).values())


def by_dataset(groups: Sequence[Group]) -> dict[str, list[Group]]:
    found: dict[str, list[Group]] = {}
    for one in groups:
        found.setdefault(one.dataset, []).append(one)
    return found


def section(groups: Sequence[Group]) -> str:
    """One dataset: accuracy, accuracy of the averaged weights, cost."""
    dataset = groups[0].dataset
    info = DATASETS[dataset]
    beside_paper = any(key[2] == dataset for key in _paper_results())
    parts = [
        f"## {dataset}: {info.tasks} tasks of {info.classes // info.tasks} classes",
        _table_of([_accuracy_row(one, beside_paper) for one in groups]),
    ]
    if any(one.averaged("A_T").mean is not None for one in groups):
        parts += ["With averaged weights (EMA):", _averaged_table(groups)]
    machines = list(dict.fromkeys(machine(result) for one in groups for result in one.results))
    trunks = any("backbone" in one.deviations for one in groups)
    parts += ["Cost, mean over the seeds:", _table_of([_cost_row(one, machines, trunks) for one in groups])]
    parts += ["\n".join(f"- Machine {i}: {text}" for i, text in enumerate(machines, 1))]
    return "\n\n".join(parts)


def page(
    results: Sequence[dict[str, Any]],
    command: str,
    files: Sequence[Path],
    images: dict[str, list[tuple[str, str]]],
    more: Sequence[str] = (),
    title: str = "Results",
) -> str:
    """A page that says how it was made. `images` are a dataset's plots: what each shows, and its relative path."""
    parts = [f"# {title}", f"Made by `{command}` from the {len(files)} files listed at the end."]
    if results:
        parts.append(EXPLANATION)
    for dataset, groups in by_dataset(group(results)).items():
        parts.append(section(groups))
        parts += [f"![{text}]({path})" for text, path in images.get(dataset, [])]
    parts += more
    parts += ["## Files", "\n".join(f"- `{path.as_posix()}`" for path in files)]
    return "\n\n".join(parts) + "\n"


def machine(result: dict[str, Any]) -> str:
    versions = result["versions"]
    threads = f"{versions['threads']} thread{'s' if versions['threads'] > 1 else ''}"
    programs = ", ".join(f"{name} {versions[name]}" for name in ("python", "torch", "numpy", "edge_hpcr"))
    return f"{versions['hardware']}, {threads}, device {versions['device']}; {programs}"


def _accuracy_row(one: Group, beside_paper: bool) -> dict[str, str]:
    row = {"method": one.title, "memory": one.memory, "n": str(len(one.results)), "seeds": ranges(one.seeds)}
    for metric in _METRICS:
        ours, papers = one.estimate(metric), one.paper(metric)
        row[metric] = ours.text
        if beside_paper:
            row[f"paper's {metric}"] = papers.text
            if metric == "A_T":
                row["diff"] = ours.above(papers)
    return row


def _averaged_table(groups: Sequence[Group]) -> str:
    head = ["method", "memory", "n", *(part for metric in _METRICS for part in (metric, "vs live"))]
    rows = []
    for one in groups:
        row = [one.title, one.memory, str(len(one.results))]
        for metric in _METRICS:
            averaged = one.averaged(metric)
            row += [averaged.text, averaged.above(one.estimate(metric))]
        rows.append(row)
    return markdown(head, rows)


def _trunk_ms(one: Group) -> str:
    return f"{one.mean('trunk_ms'):.0f}" if "backbone" in one.deviations else NOTHING


def _cost_row(one: Group, machines: list[str], trunks: bool) -> dict[str, str]:
    held, total = one.mean("buffer_samples"), one.mean("bytes", "total")
    kept = [NOTHING] * 4
    if held > 0:
        overhead = f"{one.mean('overhead', 'numbers'):.2f}, {one.mean('overhead', 'bytes'):.2f}"
        kept = [f"{held:,.0f}", f"{total / held:,.0f}", format_bytes(total), overhead]
    elif total > 0:  # a closed-form method's statistics
        kept[2] = format_bytes(total)
    numbers = sorted({machines.index(machine(result)) + 1 for result in one.results})
    return {
        "method": one.title,
        "memory": one.memory,
        **dict(zip(("held", "B/sample", "total", "overhead"), kept, strict=True)),
        "samples/s": f"{one.mean('samples_per_second'):,.1f}",
        "step ms p50, p95": f"{one.mean('step_ms', 'p50'):.0f}, {one.mean('step_ms', 'p95'):.0f}",
        **({"trunk ms": _trunk_ms(one)} if trunks else {}),
        "train min": f"{one.mean('train_seconds') / 60:.1f}",
        "machine": ", ".join(map(str, numbers)),
    }


def _notes(settings: dict[str, Any]) -> str:
    return ", ".join(key if value is True else f"{key}={value}" for key, value in settings.items())


def _exact_bytes(size: int) -> str:
    short = format_bytes(size)
    return short if parse_bytes(short) == size else f"{size:,} B"


def ranges(seeds: Sequence[int]) -> str:
    """
    >>> ranges([0, 1, 2, 5])
    '0-2, 5'
    """
    runs: list[list[int]] = []
    for seed in seeds:
        if runs and seed == runs[-1][-1] + 1:
            runs[-1].append(seed)
        else:
            runs.append([seed])
    return ", ".join(str(run[0]) if len(run) == 1 else f"{run[0]}-{run[-1]}" for run in runs)


def _table_of(rows: list[dict[str, str]]) -> str:
    return markdown(list(rows[0]), [list(row.values()) for row in rows])


def markdown(head: list[str], rows: list[list[str]], left: int = 2) -> str:
    """Aligned, to be read in a terminal too: names (the first columns) to the left, numbers to the right."""
    alignment = ["left"] * left + ["right"] * (len(head) - left)
    return tabulate(rows, head, tablefmt="pipe", colalign=alignment, disable_numparse=True)
