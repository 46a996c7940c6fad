"""The paper's analyses, repeated: `python -m edge_hpcr bench analyse`, in a clone of the repository."""

from typing import Any

from benchmarks.paper.accuracy import ContrastiveComponent, DistillationTasks, Knowledge, Temperature
from benchmarks.paper.analysis import Analysis, Runs, title_of
from benchmarks.paper.cost import Cost
from benchmarks.paper.flatness import Flatness
from benchmarks.paper.gradients import DistillationGradients, ProxyGradientsOfHT
from edge_hpcr.common.errors import one_of

__all__ = ["ANALYSES", "EXPLANATION", "Runs", "analysis", "ordered", "section", "title_of"]

EXPLANATION = """\
`bench analyse` repeats the paper's analyses. A small version has little data, a small network and few seeds, and takes minutes on
one core. It shows that the analysis works and decides nothing about the paper. `--paper` runs an analysis as the paper prints it.
Accuracies are in percent, the mean over n seeds and the half-width of its 95 % confidence interval. Figures and tables are named
by their labels in the paper's source. [method.md](method.md#what-it-does) explains HC, HT, PCD and SCD."""
# In the order of the paper.
ANALYSES: dict[str, Analysis] = {
    each.name: each
    for each in (
        Temperature(),
        ProxyGradientsOfHT(),
        Flatness(),
        ContrastiveComponent(),
        DistillationTasks(),
        DistillationGradients(),
        Knowledge(),
        Cost(),
    )
}


def analysis(name: str) -> Analysis:
    one_of("analysis", name, ANALYSES)
    return ANALYSES[name]


def section(result: dict[str, Any]) -> str:
    """One analysis in Markdown."""
    return analysis(result["analysis"]).section(result)


def ordered(results: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """In the order of the paper; the small version of an analysis first."""
    places = list(ANALYSES)
    return sorted(
        results, key=lambda result: (places.index(result["analysis"]), result["version"] != "small")
    )
