"""What an analysis is: settings (a small version and the paper's), a measurement, a table, and perhaps a plot.

A measurement is a dictionary that fits JSON. The table, the plot and the sentence of what was found are made from it
alone.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar

from edge_hpcr.bench import metrics
from edge_hpcr.bench.report import Estimate, machine, markdown
from edge_hpcr.bench.run import plain, versions

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from edge_hpcr.bench.analyses.runs import Runs

KIND = "analysis"
NEEDED: dict[str, type] = {
    **dict.fromkeys(("analysis", "version", "finished"), str),
    **dict.fromkeys(("settings", "measured", "versions"), dict),
    "n": int,
    "seeds": list,
}
DECIDES_NOTHING = " So little data and so few seeds decide nothing."
SMALL_NETWORK = {"nf": 8, "ema_decay": None}


@dataclass(frozen=True)
class Settings:
    """What is learned. The defaults are those of the small versions; an analysis adds its own."""

    dataset: str = "digits"
    buffer: int = 50
    seeds: int = 3
    limit: int | None = None  # training images per task
    learner: dict[str, Any] = field(default_factory=lambda: dict(SMALL_NETWORK))
    cycle: int = 15  # of the temperature: ten cycles in the stream, as the paper has them on CIFAR


def as_printed(kind: type, dataset: str, buffer: int, **options: Any) -> Any:
    """The paper's version: its network, its cycle and its ten seeds."""
    return kind(**{"dataset": dataset, "buffer": buffer, "seeds": 10, "learner": {}, "cycle": 500, **options})


class Analysis:
    """One analysis. A class without a `name` of its own is a helper."""

    name: ClassVar[str]
    order: ClassVar[int]  # its place on the page
    purpose: ClassVar[str]  # one line, for the list of analyses
    source: ClassVar[str]  # the paper's figure or table
    conclusion: ClassVar[str]  # what the paper concludes from it
    small: ClassVar[Any]
    paper: ClassVar[Any]

    def measure(self, settings: Any, runs: Runs) -> dict[str, Any]:
        """Everything that table, plot and finding need, ready for JSON."""
        raise NotImplementedError

    def finding(self, result: dict[str, Any]) -> str:
        """One sentence on what the numbers of this result say about the paper's conclusion."""
        raise NotImplementedError

    def table(self, result: dict[str, Any]) -> str:
        raise NotImplementedError

    def draw(self, result: dict[str, Any]) -> Figure | None:
        return None

    def result(self, version: str, settings: Any, runs: Runs) -> dict[str, Any]:
        """Measure, and say with what and where."""
        begun = time.perf_counter()
        measured = plain(self.measure(settings, runs))
        return {
            "benchmark": KIND,
            "analysis": self.name,
            "version": version,
            "n": settings.seeds,
            "seeds": list(range(settings.seeds)),
            "settings": plain(asdict(settings)),
            "measured": measured,
            "seconds": round(time.perf_counter() - begun, 1),
            "versions": versions(runs.threads, runs.device_name),
            "finished": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        }

    def section(self, result: dict[str, Any]) -> str:
        settings = result["settings"]
        options = ", ".join(f"{key} {value}" for key, value in settings["learner"].items())
        conditions = [
            f"{settings['dataset']}, {settings['buffer']} samples in memory",
            *([f"{settings['limit']} images per task"] if settings["limit"] else []),
            *([options] if options else []),
            f"n = {result['n']} seed{'s' if result['n'] > 1 else ''}",
        ]
        return "\n\n".join(
            [
                f"## {title_of(result)}: {self.purpose}",
                f"{self.source}. The paper: {self.conclusion}",
                f"Here ({'; '.join(conditions)}): {self.finding(result)}"
                f"{DECIDES_NOTHING if result['version'] == 'small' else ''}",
                self.table(result),
                f"Made by `python -m edge_hpcr bench analyse {self.name}"
                f"{' --paper' if result['version'] == 'paper' else ''}` on {machine(result)}.",
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


def mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)


def as_in_paper(holds: bool) -> str:
    """Of two means, not of their intervals: which of them is larger."""
    return "the paper's direction" if holds else "not the paper's direction"


def table_of(head: list[str], rows: list[list[str]], left: int = 1) -> str:
    return markdown(head, rows, left)
