"""The page of verification: every method, where it comes from, what it keeps and costs, and how far it was checked."""

from __future__ import annotations

import csv
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

from edge_hpcr.bench.report import NOTHING, Estimate, Group, filled_columns, markdown, marked, notes
from edge_hpcr.common.units import format_bytes
from edge_hpcr.learner import methods
from edge_hpcr.learner.methods import Method

PAPER_COSTS = Path(__file__).with_name("paper_costs.csv")
REFERENCE = "er"  # to which costs are relative
COSTS = (
    "method",
    "keeps of a sample",
    "task ends",
    "C_D",
    "time",
    "paper's C_D",
    "data",
    "learner bytes",
    "of its own",
)
WIDEST = 5.0  # half of an interval that reproduces anything
FEWEST = 3  # seeds
EXPLANATION = f"""\
Every method runs under the paper's rules: the same network, augmentation and optimiser, with 10 incoming and 10 replayed samples
per step. All share HPCR's classifier: cosines, which grow with the classes. The rivals' own programs have a linear layer for all
classes from the start. ER-WA and UER correct the lengths of such a layer's weights, so here they have a linear layer that grows.
The verdicts:

- *reproduced*: from three seeds on, our mean lies in the paper's 95 % interval, the paper's mean in ours, and ours is at most
  {WIDEST:g} points to each side;
- *differs*: from three seeds on, the two intervals do not meet; the difference follows;
- *open*: too few seeds, or intervals that only overlap; the difference follows;
- *runs*: the method passes its tests, but no run of ours has the paper's setting yet. A test compares its loss or rule with a slow
  loop written from the formula; others are the same for all methods.

Runs in float32 and in bfloat16 are rows of their own. *Built from descriptions* marks methods whose authors' program was not read.
*C_D* (computation) is the number of floating-point operations per sample of the stream, relative to ER's. *Time* is the processor time,
relative to ER's, measured in turns in one process. *Data* is what is kept of a sample, relative to its image, in numbers, as the paper
counts. *Learner bytes* are weights, the average where it predicts, optimiser state, and what only this method keeps (*of its own*),
relative to ER's. No budget on these pages pays for learner bytes."""


@cache
def paper_costs() -> dict[tuple[str, str, str], tuple[float, float | None]]:
    """What the paper prints, with its interval if it has one, by kind, method and dataset ("": on all of them)."""
    with PAPER_COSTS.open(newline="") as file:
        return {
            (row["kind"], row["method"], row["dataset"]): (
                float(row["value"]),
                float(row["ci95"]) if row["ci95"] else None,
            )
            for row in csv.DictReader(file)
        }


def verdict(ours: Estimate, papers: Estimate, seeds: int) -> str:
    """What runs at the paper's setting say about a method."""
    if ours.mean is None or papers.mean is None:
        return "runs"
    difference = ours.above(papers)
    if seeds < FEWEST or ours.half is None:
        return f"open ({difference}, {seeds} seed{'s' if seeds > 1 else ''})"
    gap, theirs = abs(ours.mean - papers.mean), papers.half or 0.0
    if gap <= min(theirs, ours.half) and ours.half <= WIDEST:
        return "reproduced"
    return f"differs ({difference})" if gap > theirs + ours.half else f"open ({difference})"


def page(groups: Sequence[Group], cost: dict[str, Any] | None) -> str:
    """`groups` are finished runs of `bench`, `cost` is a result of `bench analyse cost`."""
    kinds = [methods.method_class(name) for name in methods.names()]
    comparable = [one for one in groups if one.paper("A_T").mean is not None]
    parts = [
        "# The methods, and how far each was verified",
        EXPLANATION,
        "## Verdicts",
        markdown(
            ["method", "dataset", "memory", "precision", "n", "seeds", "A_T", "paper's A_T", "verdict"],
            [row for kind in kinds for row in _verdict_rows(kind, comparable)],
        ),
        "## What they keep and cost",
        _measured_where(cost),
        filled_columns([_cost_row(kind, cost["measured"] if cost else {}) for kind in kinds]),
        "## Where they come from, and what is known to differ",
        "\n".join(f"- {marked(kind.name)}: {kind.source}." for kind in kinds),
    ]
    return "\n\n".join(parts) + "\n"


def _verdict_rows(kind: type[Method], comparable: Sequence[Group]) -> list[list[str]]:
    rows = []
    for one in comparable:
        if one.method == kind.name:
            ours, papers = one.estimate("A_T"), one.paper("A_T")
            title = f"{marked(kind.name)} ({notes(one.differing)})" if one.differing else marked(kind.name)
            where = [title, one.dataset, one.memory, one.precision, one.n, one.seeds]
            rows.append([*where, ours.text, papers.text, verdict(ours, papers, len(one.results))])
    return rows or [[marked(kind.name), *[NOTHING] * 7, "runs"]]


def _measured_where(cost: dict[str, Any] | None) -> str:
    if cost is None:
        return "Nothing was measured yet: run `bench analyse cost`."
    settings = cost["settings"]
    options = "".join(f", {key} {value}" for key, value in settings["learner"].items())
    return (
        f"`bench analyse cost` measured C_D, time and learner bytes on {settings['dataset']}{options}. Data is for Split CIFAR10 "
        f"with the paper's network."
    )


def _cost_row(kind: type[Method], cost: dict[str, Any]) -> dict[str, str]:
    method, printed = kind(), paper_costs().get(("computation", kind.name, ""))
    row = dict.fromkeys(COSTS, NOTHING)
    row |= {"method": marked(kind.name), "keeps of a sample": _kept(method)}
    row["task ends"] = "needs them" if method.needs_boundaries else "not needed"
    row["paper's C_D"] = f"{printed[0]:g}" if printed else NOTHING
    measured, reference = (cost.get("methods", {}).get(name) for name in (kind.name, REFERENCE))
    if measured is None or reference is None:
        return row
    learner = measured["learner"]
    stored = cost["data"].get(kind.name, {}).get("cifar10", {"numbers": 1.0})
    return row | {
        "C_D": f"{measured['gflop'] / reference['gflop']:.2f}",
        "time": f"{measured['ms'] / reference['ms']:.2f}",
        "data": f"{stored['numbers']:.2f}" if method.uses_memory else NOTHING,
        "learner bytes": f"{learner['total'] / reference['learner']['total']:.2f}",
        "of its own": format_bytes(learner["method"]) if learner["method"] else NOTHING,
    }


def _kept(method: Method) -> str:
    if method.closed_form:
        return "sums over samples"
    if not method.uses_memory:
        return "nothing"
    image = "image as 32-bit floats" if method.edits_images else "image"
    extra = [
        word
        for word, kept in (("logits", method.stores_logits), ("features", method.stores_features))
        if kept
    ]
    return ", ".join([image, "label", *extra])
