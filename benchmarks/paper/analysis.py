"""What an analysis is: settings (a small version and the paper's), a measurement, and a table.

A measurement is a dictionary that fits JSON; the table is made from it alone. `Runs` makes the runs of the
split benchmark that a measurement needs, and keeps them on disk.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from itertools import product
from pathlib import Path
from typing import Any, ClassVar

from tqdm import tqdm

from edge_hpcr.bench import metrics
from edge_hpcr.bench.report import Estimate, machine
from edge_hpcr.bench.run import Run, finished_result, plain
from edge_hpcr.bench.run import versions as versions_of
from edge_hpcr.bench.run_config import RunConfig, make_config
from edge_hpcr.common.files import write_atomically
from edge_hpcr.learner import methods
from edge_hpcr.learner.learner import resolve_device


@dataclass(frozen=True)
class Settings:
    """What is learned. The defaults are those of the small versions; an analysis adds its own."""

    dataset: str = "digits"
    buffer: int = 50
    seeds: int = 3
    limit: int | None = None  # training images per task
    learner: dict[str, Any] = field(default_factory=lambda: {"nf": 8, "ema_decay": None})
    cycle: int = 15  # of the temperature: ten cycles in the stream, as the paper has them on CIFAR


def as_printed(kind: type, dataset: str, buffer: int, **options: Any) -> Any:
    """The paper's version: its network, its cycle and its ten seeds."""
    return kind(**{"dataset": dataset, "buffer": buffer, "seeds": 10, "learner": {}, "cycle": 500, **options})


class Runs:
    """Makes runs, or finds them finished, in one folder: none is made a second time."""

    def __init__(
        self, folder: Path, root: Path | None = None, threads: int = 1, device: str = "auto"
    ) -> None:
        self.folder, self.root, self.threads, self.device = folder, root, threads, device

    def config(
        self, settings: Settings, method: str, seed: int, options: dict[str, Any] | None = None
    ) -> RunConfig:
        """A run of this method; `options` are the method's and the learner's, beside those of the settings."""
        has_cycle = "cycle" in methods.method_class(method).options()
        cycle = {"cycle": settings.cycle} if has_cycle else {}
        return make_config(
            settings.dataset,
            method,
            seed,
            buffer=settings.buffer,
            limit=settings.limit,
            threads=self.threads,
            device=self.device,
            settings={**settings.learner, **cycle, **(options or {})},
        )

    def result(self, config: RunConfig) -> dict[str, Any]:
        """The run's result, from the disk if it is finished; one that was stopped continues."""
        kept = finished_result(config, self.folder)
        return Run(config, self.folder, self.root).run() if kept is None else kept

    def measured(
        self, config: RunConfig, settings: Settings, name: str, make: Callable[[Run], dict[str, Any]]
    ) -> dict[str, Any]:
        """What `make` says of this run, which it makes itself; kept on disk under this name."""
        path = self.folder / f"{config.name}.{name}"
        facts = plain({"run": asdict(config), "settings": asdict(settings) | {"seeds": None}})
        with suppress(OSError, ValueError, KeyError):  # not made yet, or damaged
            kept = json.loads(path.read_text())
            if kept["facts"] == facts:
                return kept["measured"]
        measured = plain(make(Run(config, self.folder, self.root)))
        write_atomically(path, json.dumps({"facts": facts, "measured": measured}) + "\n")
        return measured

    def each(self, items: Sequence[Any], what: str) -> Iterator[Any]:
        """The items with a progress bar, or with a line for each where nobody watches."""
        with tqdm(items, what, unit="", disable=None, dynamic_ncols=True) as bar:
            for number, item in enumerate(bar, 1):
                if bar.disable:
                    print(f"{what}: {number} of {len(items)}", file=sys.stderr, flush=True)
                yield item


class Analysis:
    """One analysis of the paper."""

    name: ClassVar[str]
    purpose: ClassVar[str]  # one line, for the list of analyses
    source: ClassVar[str]  # the paper's figure or table
    conclusion: ClassVar[str]  # what the paper concludes from it
    small: ClassVar[Any]
    paper: ClassVar[Any]

    # Of an analysis that looks at some methods seed by seed: by their names in the table, methods and their options.
    variants: ClassVar[Mapping[str, tuple[str, dict[str, Any]]]] = {}

    def measure(self, settings: Any, runs: Runs) -> dict[str, Any]:
        """Everything that the table needs, ready for JSON."""
        measured: dict[str, Any] = {name: [] for name in self.variants}
        for name, seed in runs.each(list(product(self.variants, range(settings.seeds))), self.name):
            method, options = self.variants[name]
            measured[name].append(self.seen(runs.config(settings, method, seed, options), settings, runs))
        return measured

    def seen(self, config: RunConfig, settings: Any, runs: Runs) -> Any:
        """What the table needs of one run."""
        raise NotImplementedError

    def table(self, result: dict[str, Any]) -> str:
        raise NotImplementedError

    def result(self, version: str, settings: Any, runs: Runs) -> dict[str, Any]:
        """Measure, and say with what and where."""
        begun = time.perf_counter()
        measured = plain(self.measure(settings, runs))
        return {
            "benchmark": "analysis",
            "analysis": self.name,
            "version": version,
            "n": settings.seeds,
            "seeds": list(range(settings.seeds)),
            "settings": plain(asdict(settings)),
            "measured": measured,
            "seconds": round(time.perf_counter() - begun, 1),
            "versions": versions_of(runs.threads, str(resolve_device(runs.device))),
            "finished": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        }

    def section(self, result: dict[str, Any]) -> str:
        """In Markdown: what it is, what the paper concludes, and what was measured here."""
        settings = result["settings"]
        conditions = [f"{settings['dataset']}, {settings['buffer']} samples in memory"]
        if settings["limit"]:
            conditions.append(f"{settings['limit']} images per task")
        conditions += [f"{key} {value}" for key, value in settings["learner"].items()]
        conditions.append(f"n = {result['n']} seed{'s' if result['n'] > 1 else ''}")
        as_printed = "" if result["version"] == "small" else " --paper"
        command = f"python -m edge_hpcr bench analyse {self.name}{as_printed}"
        return "\n\n".join(
            [
                f"## {title_of(result)}: {self.purpose}",
                f"{self.source}. The paper: {self.conclusion}",
                f"Here: {', '.join(conditions)}.",
                self.table(result),
                f"Made by `{command}` on {machine(result)}.",
            ]
        )


def title_of(result: dict[str, Any]) -> str:
    """As in headings and file names."""
    name = result["analysis"]
    return name if result["version"] == "small" else f"{name}-{result['version']}"


def percent(shares: Sequence[float]) -> str:
    """The mean of shares, one per seed, with its interval, in percent."""
    return Estimate.of(shares).text


def number(values: Sequence[float], digits: int) -> str:
    """The mean of numbers, one per seed, with its interval."""
    middle, half = metrics.mean_and_interval(values)
    return f"{middle:.{digits}f}" + ("" if half is None else f" ± {half:.{digits}f}")
