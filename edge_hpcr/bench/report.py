"""What `bench` left, as Markdown: seeds of one setting together, the paper's value beside ours where the setting is the paper's.

>>> paper_value("hpcr", "cifar10", 200, "A_T").text
'53.4 ± 1.4'
"""

from __future__ import annotations

import csv
import importlib
import json
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cache, reduce
from operator import getitem
from pathlib import Path
from types import ModuleType
from typing import Any, TypeVar

from tabulate import tabulate

from edge_hpcr.bench import metrics
from edge_hpcr.bench.datasets import DATASETS
from edge_hpcr.bench.run import plain
from edge_hpcr.bench.run_config import has_budget, make_config
from edge_hpcr.common.errors import UserError
from edge_hpcr.common.units import format_bytes, parse_bytes
from edge_hpcr.learner import methods
from edge_hpcr.learner.augment import STRENGTHS
from edge_hpcr.learner.learner import LearnerConfig
from edge_hpcr.learner.memory import OPTIONS as MEMORY_OPTIONS

PAPER_RESULTS = Path(__file__).with_name("paper_results.csv")
NOTHING = "–"  # noqa: RUF001 (an en dash, as tables of numbers have it)
EXPLANATION = """\
All accuracies are in percent: the mean over n seeds and the half-width of its 95 % confidence interval (t distribution;
one seed has none). A_T is the final accuracy with the weights that the method predicts with, *live* with the current and
*averaged* with the averaged ones (EMA). AAA is the mean accuracy after each task, F_T the forgetting (lower is better). The
paper's value is given where the run has the paper's setting, and by how much ours differs. A method's name is followed by every
setting in which the run differs from the paper's; this version no longer has all of them (`stream`, `teacher`, `taught`).
*Built from descriptions*: no program of the method's authors was read.

*Replay bytes* are the samples and all that is kept of them: the budget. *Learner bytes* are weights, averages, optimiser state and
second networks; older runs did not count them, or counted second networks as replay bytes. *Held* is the number of samples in the
memory at the end. The overhead is the factor by which logits and features enlarge images and labels, in numbers (as the paper
counts) and in bytes. A step is one update of the weights; p50 is the median, p95 the 95th percentile. With a pre-trained backbone,
step and training times leave out the frozen trunk; *trunk ms* is its time per picture. In the plots, dashed lines are of averaged
weights, and bands are 95 % intervals, from three seeds on."""
PAIRED = """\
A_T minus that of `{reference}`, paired: the same seeds, precision and memory. The last column compares the averaged weights of both.
One run says little."""
REFERENCES = ("hpcr", "edge")
METRICS = {"A_T": "final accuracy (A_T)", "AAA": "mean accuracy (AAA)", "F_T": "forgetting (F_T)"}
_CONDITIONS = ("tasks", "limit", "validation", "stream")
# These decide the cost, or the averaged weights, or how numbers are rounded: the paper's row is still the one to compare.
_NOT_THE_PAPERS_CONCERN = frozenset({"threads", "ema_decay", "precision", "compute"})
Item = TypeVar("Item")
Key = TypeVar("Key", bound=Hashable)


# Estimates, and the paper's --------------------------------------------------------------------------------------------


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

    @property
    def signed(self) -> str:
        """As the text of a difference."""
        return self.text if self.mean is None or self.mean < 0 else f"+{self.text}"

    def above(self, other: Estimate) -> str:
        if self.mean is None or other.mean is None:
            return NOTHING
        return f"{self.mean - other.mean:+.1f}"


@cache
def _paper_rows() -> list[dict[str, str]]:
    with PAPER_RESULTS.open(newline="") as file:
        return list(csv.DictReader(file))


@cache
def _paper_results() -> dict[tuple[str, str, str, str], Estimate]:
    """By method, dataset, buffer and metric; the ablation rows are methods like others."""
    return {
        (row["method"], row["dataset"], row["buffer"], row["metric"]): Estimate(
            float(row["mean"]), float(row["ci95"])
        )
        for row in _paper_rows()
        if row["table"] != "paper_ocm_setting"  # of another network and optimiser
    }


def paper_value(method: str, dataset: str, buffer: int | None, metric: str) -> Estimate:
    return _paper_results().get((method, dataset, str(buffer or ""), metric), Estimate())


def is_in_papers_table(method: str) -> bool:
    """Whether the paper's table of final accuracies names a method; the ablation's rows are in a table of their own."""
    return any(row["method"] == method and row["table"] == "paper_final_accuracy" for row in _paper_rows())


def marked(method: str) -> str:
    """A method's name for a table, with a mark where no program of its authors was read."""
    described = methods.method_class(method).from_description
    return f"{method} (built from descriptions)" if described else method


# Settings --------------------------------------------------------------------------------------------------------------


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
        "stream": config.get("stream", "split"),  # earlier versions had others
    }


@cache
def _usual_settings(dataset: str, method: str, backbone: str) -> dict[str, Any]:
    """The paper's, and what a pre-trained backbone recommends instead of some of them."""
    config = make_config(dataset, method, backbone=backbone)
    resolved = methods.create(method, config.learner.method_options).config_dict()
    return _flat_settings(asdict(config) | {"method_options": resolved})


def deviations(result: dict[str, Any]) -> dict[str, Any]:
    """The settings in which a run differs from the paper's. A method's option newer than the run counts as the paper's."""
    stored = _flat_settings(result["config"])
    usual = _usual_settings(result["dataset"], result["method"], stored["backbone"])
    usual = usual | {"backbone": LearnerConfig.backbone}  # another one is always named
    found = {key: value for key, value in stored.items() if key not in usual or usual[key] != value}
    augment = LearnerConfig.from_dict(result["config"]["learner"]).augment
    names = [name for name, strength in STRENGTHS.items() if strength == augment]
    fields = {key for key in found if key.startswith("augment.")}
    if names and fields:
        found = {key: value for key, value in found.items() if key not in fields} | {"augment": names[0]}
    return dict(sorted(found.items()))


# Groups ----------------------------------------------------------------------------------------------------------------


def by(items: Iterable[Item], key: Callable[[Item], Key]) -> dict[Key, list[Item]]:
    """The items with the same key together, in the order in which the keys come."""
    found: dict[Key, list[Item]] = {}
    for item in items:
        found.setdefault(key(item), []).append(item)
    return found


class Together:
    """Finished runs that differ in nothing but the seed."""

    def __init__(self, results: Sequence[dict[str, Any]]) -> None:
        self.results = tuple(sorted(results, key=lambda run: (run["seed"], run.get("draw"))))
        self.n = str(len(self.results))

    def mean(self, *path: str) -> float:
        """Over the runs, of a number in the result."""
        values: Iterable[Any] = (reduce(getitem, path, result) for result in self.results)
        return sum(values) / len(self.results)

    def percentiles(self, name: str, digits: int = 0) -> str:
        return ", ".join(f"{self.mean(name, each):.{digits}f}" for each in ("p50", "p95"))


class Group(Together):
    """The runs of `bench` of one setting."""

    def __init__(self, results: Sequence[dict[str, Any]]) -> None:
        super().__init__(results)
        first = self.results[0]
        self.dataset: str = first["dataset"]
        self.method: str = first["method"]
        self.seeds = ", ".join(str(result["seed"]) for result in self.results)
        self.validates = bool(first["config"]["validation"])  # tested on held-out training images
        self.deviations = deviations(first)
        # Those that forbid a comparison with the paper's value.
        self.differing = {k: v for k, v in self.deviations.items() if k not in _NOT_THE_PAPERS_CONCERN}
        # Under which tasks and on which images it was tested: only runs that agree in it compare.
        self.conditions = notes({k: v for k, v in self.deviations.items() if k in _CONDITIONS})
        self.precision = str(self.deviations.get("compute", LearnerConfig.compute))
        self.has_budget = has_budget(self.method)
        self._memory = first["config"]["learner"]["memory"]
        self.memory = _memory_text(self._memory) if self.has_budget else "none"
        described = methods.method_class(self.method).from_description
        settings = ({"built from descriptions": True} if described else {}) | self.deviations
        self.title = f"{self.method} ({notes(settings)})" if settings else self.method
        self.name = f"{self.title}, {self.memory}" if self.has_budget else self.title

    @property
    def order(self) -> tuple[Any, ...]:
        kept = self._memory
        size = (not self.has_budget, *(kept[key] or 0 for key in ("bytes", "samples")))
        variant = any(key not in _CONDITIONS for key in self.deviations)
        place = (list(DATASETS).index(self.dataset), self.conditions, variant, *size)
        return (*place, kept["codec"], kept["quality"], methods.names().index(self.method), self.title)

    def paper(self, metric: str) -> Estimate:
        """The paper's value, if the setting is the paper's in everything that decides it."""
        kept = self._memory
        if self.differing or (self.has_budget and (kept["samples"] is None or kept["codec"] != "raw")):
            return Estimate()
        buffer = kept["samples"] if self.has_budget else None
        return paper_value(self.method, self.dataset, buffer, metric)

    def estimate(self, metric: str) -> Estimate:
        if metric == "F_T" and len(self.results[0]["accuracy_matrix"]) == 1:
            return Estimate()  # with one task there is nothing to forget
        return Estimate.of([result[metric] for result in self.results])

    @property
    def averaged(self) -> Estimate:
        """A_T with the averaged weights."""
        return self._of_weights("ema")

    @property
    def live(self) -> Estimate:
        """A_T with the current weights; older runs of a method that predicts with the averaged ones do not tell."""
        if not methods.method_class(self.method).predicts_averaged:
            return self.estimate("A_T")
        return self._of_weights("live")

    def _of_weights(self, which: str) -> Estimate:
        found = [result[which]["A_T"] for result in self.results if result.get(which)]
        return Estimate.of(found) if len(found) == len(self.results) else Estimate()

    @property
    def learner_bytes(self) -> float | None:
        counted = [run["learner_bytes"]["total"] for run in self.results if "learner_bytes" in run]
        return sum(counted) / len(counted) if counted else None

    def compares_with(self, other: Group) -> bool:
        """Whether the same seeds of both differ in the method alone, or in its settings."""
        return all(
            getattr(self, name) == getattr(other, name)
            for name in ("dataset", "conditions", "memory", "precision")
        ) and self.deviations.get("backbone") == other.deviations.get("backbone")

    def above(self, other: Group, averaged: bool = False) -> tuple[int, Estimate]:
        """By how much its A_T is higher, paired by the seeds that both have, and how many they are."""

        def reached(run: dict[str, Any]) -> float | None:
            where = run["ema"] if averaged else run
            return where["A_T"] if where else None

        theirs = {run["seed"]: reached(run) for run in other.results}
        pairs = [(reached(run), theirs.get(run["seed"])) for run in self.results]
        gains = [ours - its for ours, its in pairs if ours is not None and its is not None]
        return len(gains), Estimate.of(gains)


def _memory_text(kept: dict[str, Any]) -> str:
    size = f"{kept['samples']} samples" if kept["bytes"] is None else _exact_bytes(kept["bytes"])
    if kept["codec"] in ("webp", "jpeg"):
        return f"{size}, {kept['codec']} {kept['quality']}"
    return size if kept["codec"] == "raw" else f"{size}, {kept['codec']}"


def group(results: Iterable[dict[str, Any]]) -> list[Group]:
    """Runs that differ in nothing but the seed, together; in the order in which a reader wants them."""
    together = by(results, lambda result: _key(Group([result]))).values()
    return sorted(map(Group, together), key=lambda one: one.order)


def _key(one: Group) -> tuple[str, str]:
    return one.dataset, one.name


# Tables ----------------------------------------------------------------------------------------------------------------


def table(results: Iterable[dict[str, Any]]) -> str:
    """All results in Markdown tables that can be read as they are."""
    return "\n\n".join(map(section, by(group(results), lambda one: one.dataset).values()))


def section(groups: Sequence[Group]) -> str:
    """One dataset: accuracy and cost."""
    info = DATASETS[groups[0].dataset]
    return "\n\n".join(
        [
            f"## {groups[0].dataset}: {info.tasks} tasks of {info.classes // info.tasks} classes",
            filled_columns([_accuracy_row(one) for one in groups]),
            *(part for name in REFERENCES for part in _paired(groups, name)),
            "Cost, mean over the seeds:",
            filled_columns([_cost_row(one) for one in groups]),
            machines(groups),
        ]
    )


def _paired(groups: Sequence[Group], name: str) -> list[str]:
    """The ranking: each method that can be compared with this one in its own setting."""
    of_all = {"backbone", "compute", *_CONDITIONS}
    rows = []
    for reference in groups:
        if reference.method != name or reference.deviations.keys() - of_all:
            continue
        others = [one for one in groups if one is not reference and one.compares_with(reference)]
        for one in sorted(others, key=lambda each: -(each.above(reference)[1].mean or 0.0)):
            n, gain = one.above(reference)
            if n:
                text = gain.signed if n > 1 else f"{gain.signed} (one run)"
                averaged = one.above(reference, averaged=True)[1].signed
                rows.append([one.title, one.memory, str(n), text, averaged])
    if not rows:
        return []
    return [
        PAIRED.format(reference=name),
        markdown(["method", "memory", "n", "difference", "averaged"], rows),
    ]


def machines(groups: Iterable[Together]) -> str:
    """The machines that made some runs; the table of runs names the one of each."""
    every = (machine(result) for one in groups for result in one.results)
    return "\n".join(f"- Made on {text}" for text in dict.fromkeys(every))


def machine(result: dict[str, Any]) -> str:
    versions = result["versions"]
    threads = f"{versions['threads']} thread{'s' if versions['threads'] > 1 else ''}"
    programs = ", ".join(f"{name} {versions[name]}" for name in ("python", "torch", "numpy", "edge_hpcr"))
    return f"{versions['hardware']}, {threads}, device {versions['device']}; {programs}"


def _accuracy_row(one: Group) -> dict[str, str]:
    row = {"method": one.title, "memory": one.memory, "n": one.n, "seeds": one.seeds}
    for metric, name in METRICS.items():
        row |= {name: one.estimate(metric).text, f"paper's {metric}": one.paper(metric).text}
        if metric == "A_T":
            row |= {"diff": one.estimate(metric).above(one.paper(metric))}
            row |= {"live": one.live.text, "averaged": one.averaged.text}
    return row


def _cost_row(one: Group) -> dict[str, str]:
    held, total, own = one.mean("buffer_samples"), one.mean("bytes", "total"), one.learner_bytes
    overhead = f"{one.mean('overhead', 'numbers'):.2f}, {one.mean('overhead', 'bytes'):.2f}"
    return {
        "method": one.title,
        "memory": one.memory,
        "held": f"{held:,.0f}" if held else NOTHING,
        "replay bytes": format_bytes(total) if total else NOTHING,  # of a closed-form method, its statistics
        "learner bytes": format_bytes(own) if own else NOTHING,
        "all bytes": format_bytes(total + own) if own else NOTHING,
        "overhead": overhead if held else NOTHING,
        "step ms p50, p95": one.percentiles("step_ms"),
        "trunk ms": f"{one.mean('trunk_ms'):.0f}" if "backbone" in one.deviations else NOTHING,
        "train min": f"{one.mean('train_seconds') / 60:.1f}",
    }


def filled_columns(rows: list[dict[str, str]]) -> str:
    """The table without the columns that have nothing in any row, like the paper's where it has no such runs."""
    head = [name for name in rows[0] if any(row[name] != NOTHING for row in rows)]
    return markdown(head, [[row[name] for name in head] for row in rows])


def notes(settings: dict[str, Any]) -> str:
    return ", ".join(key if value is True else f"{key}={value}" for key, value in settings.items())


def _exact_bytes(size: int) -> str:
    short = format_bytes(size)
    return short if parse_bytes(short) == size else f"{size:,} B"


def markdown(head: list[str], rows: list[list[str]], left: int = 2) -> str:
    """Aligned, to be read in a terminal too: names (the first columns) to the left, numbers to the right."""
    alignment = ["left"] * left + ["right"] * (len(head) - left)
    return tabulate(rows, head, tablefmt="pipe", colalign=alignment, disable_numparse=True)


# Files -----------------------------------------------------------------------------------------------------------------


def kind_of(result: Any) -> str:
    """Which command wrote it: "teach", "analysis", or "" for `bench` itself."""
    return result.get("benchmark", "") if isinstance(result, dict) else ""


def paper_analyses() -> ModuleType:
    """`benchmarks.paper`, opened by its name when it is asked for: it builds on this package, and is no part of it."""
    try:
        return importlib.import_module("benchmarks.paper")
    except ModuleNotFoundError as error:
        if error.name not in ("benchmarks", "benchmarks.paper"):
            raise
        raise UserError(
            "the paper's analyses are not part of the installed package: run this in a clone of the repository"
        ) from None


def read_folders(folders: Iterable[Path]) -> tuple[dict[Path, dict[str, Any]], list[str]]:
    """The finished runs by file, and what was left out and why. The same seed twice is no second observation."""
    found: dict[tuple[Hashable, ...], tuple[Path, dict[str, Any]]] = {}
    left_out: list[str] = []
    for folder in dict.fromkeys(folders):
        if not folder.is_dir():
            raise UserError(f"{folder}: no such folder; name the one that `bench` wrote to with --out")
        for path in sorted(folder.rglob("*.json")):
            if any(part.endswith(".checkpoint") for part in path.parts):
                continue
            try:
                result, key = _read(path)
            except UserError as error:
                left_out.append(str(error))
                continue
            ours = (path, result)
            older, newer = sorted((found.get(key, ours), ours), key=lambda pair: pair[1]["finished"])
            if key in found:
                left_out.append(f"{older[0]}: the same run is in {newer[0]}, as late or later")
            found[key] = newer
    return dict(sorted(found.values(), key=lambda pair: pair[0])), left_out


def write_runs(found: Mapping[Path, dict[str, Any]], path: Path) -> None:
    """The table of runs: a row for each of `bench`, with its file."""
    rows = [_run_row(file, result) for file, result in found.items() if not kind_of(result)]
    if not rows:
        raise UserError(f"{path}: there is no run of `bench` to put into it")
    with path.open("w", newline="") as target:
        writer = csv.DictWriter(target, rows[0], lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)


def _run_row(file: Path, result: dict[str, Any]) -> dict[str, Any]:
    one = Group([result])
    settings = {key: value for key, value in one.deviations.items() if key not in ("compute", *_CONDITIONS)}
    live, averaged, versions = result.get("live"), result["ema"], result["versions"]
    return {
        "dataset": one.dataset,
        "method": one.method,
        "settings": notes(settings),
        "conditions": one.conditions,
        "seed": result["seed"],
        "precision": one.precision,
        "memory": one.memory,
        "samples": result["buffer_samples"],
        "replay_bytes": result["bytes"]["total"],
        "learner_bytes": result.get("learner_bytes", {}).get("total", ""),
        **{metric: f"{100 * result[metric]:.2f}" for metric in METRICS},
        "A_T_live": f"{100 * live['A_T']:.2f}" if live else "",
        "A_T_averaged": f"{100 * averaged['A_T']:.2f}" if averaged else "",
        "commit": versions.get("commit") or "",
        "clean": versions.get("clean", ""),
        "version": versions["edge_hpcr"],
        "machine": versions["hardware"],
        "finished": result["finished"],
        "file": file.as_posix(),
    }


def read_result(path: Path) -> dict[str, Any]:
    """A finished run of `bench`, checked; UserError says what is wrong with the file."""
    result, _ = _read(path)
    if kind_of(result):
        raise UserError(f"{path}: not a finished run of `bench`")
    return result


def _read(path: Path) -> tuple[dict[str, Any], tuple[Hashable, ...]]:
    """A result of which tables can be made, and what no other may have in common with it."""
    from edge_hpcr.bench import teach  # here, because it builds on this module

    try:
        result = json.loads(path.read_text(encoding="utf-8"))
        if kind_of(result) == "analysis":
            paper_analyses().section(result)
            return result, ("analysis", result["analysis"], result["version"])
        if kind_of(result) == "teach":
            teach.section([teach.Lessons([result])])
            return result, (teach.lesson_key(result), result["seed"], result["draw"])
        one = Group([result])
        section([one])
        return result, (*_key(one), result["seed"])
    except (OSError, ArithmeticError, ValueError, LookupError, TypeError, AttributeError, UserError) as error:
        why = str(error) if isinstance(error, UserError) else repr(error)
    raise UserError(f"{path}: damaged, of another version, or not a result of `bench` ({why})")
