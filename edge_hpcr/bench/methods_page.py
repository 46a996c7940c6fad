"""The page of verification: every method, where it comes from, what it keeps and costs, and how far it was checked."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from statistics import fmean
from typing import Any

from edge_hpcr.bench.report import NOTHING, Estimate, Group, markdown, ranges
from edge_hpcr.common.units import format_bytes
from edge_hpcr.learner import methods
from edge_hpcr.learner.config import LearnerConfig
from edge_hpcr.learner.methods import Method

EXPLANATION = """\
Every method runs behind one contract, under the paper's rules: the same network, augmentation, optimiser, 10 incoming and 10
replayed samples a step, and HPCR's classifier of cosines that grows with the classes, where the rivals' programs have a linear
layer for all classes from the start (ER-WA and UER, which are about its lengths, have a growing linear one). The verdicts:

- *reproduced*: our mean lies in the paper's 95 % interval;
- *differs*: it does not, and by how much; *within our interval*: ours, of our few seeds, contains the paper's mean;
- *runs*: the method passes its tests (its loss or rule against a slow loop written from the formula, and the contract that
  all methods must pass), but no run of ours has the paper's setting yet.

With one seed a verdict is worth what one seed is worth. Runs in float32 and in bfloat16 count together: a seed's number is
the mean of its runs, and the table says which seeds ran how. Computation (C_D) is the number of floating-point operations per
sample of the stream relative to ER's, and the processor time in the same way, measured in turns in one process. Data is what
is kept of a sample relative to its image, in numbers, as the paper counts; model is all weights relative to ER's, and of its
own what a method keeps beside memory and network."""

WITHIN = ", within our interval"


def verdict(ours: Estimate, papers: Estimate) -> str:
    """What a run at the paper's setting says about a method."""
    if ours.mean is None or papers.mean is None:
        return "runs"
    if abs(ours.mean - papers.mean) <= (papers.half or 0.0):
        return "reproduced"
    within = ours.half is not None and abs(ours.mean - papers.mean) <= ours.half
    return f"differs ({ours.above(papers)})" + (WITHIN if within else "")


def page(groups: Sequence[Group], cost: dict[str, Any] | None, command: str) -> str:
    """`groups` are finished runs of `bench`, `cost` is a result of `bench analyse cost`."""
    kinds = [methods.method_class(name) for name in methods.names()]
    comparable = [one for one in groups if one.paper("A_T").mean is not None]
    verdicts = {kind: _verdict_rows(kind, comparable) for kind in kinds}
    differing = [
        f"- `{kind.name}`: {kind.known_difference or 'no cause is known'}."
        for kind, rows in verdicts.items()
        if any("differs" in row[-1] and WITHIN not in row[-1] for row in rows)
    ]
    parts = [
        "# The methods, and how far each was verified",
        f"Made by `{command}`.",
        EXPLANATION,
        "## Verdicts",
        markdown(
            ["method", "dataset", "memory", "n", "seeds", "A_T", "paper's A_T", "verdict"],
            [row for rows in verdicts.values() for row in rows],
        ),
        *(
            ["What is known of those that differ by more than our interval:", "\n".join(differing)]
            if differing
            else []
        ),
        "## On a part of the data",
        "Runs with `limit` see so many images of each task. They compare with one another, not with the paper.",
        markdown(["method", "dataset", "memory", "n", "A_T"], _plain_rows(groups, _is_limited)),
        "## All data, other settings",
        markdown(["method", "dataset", "memory", "n", "A_T"], _plain_rows(groups, _is_variant)),
        "## What they keep and cost",
        _measured_where(cost),
        _cost_table(kinds, cost),
        "## Where they come from",
        "\n".join(f"- `{kind.name}`: {kind.source}." for kind in kinds),
    ]
    return "\n\n".join(parts) + "\n"


def _verdict_rows(kind: type[Method], comparable: Sequence[Group]) -> list[list[str]]:
    together: dict[tuple[str, str, str], list[Group]] = {}
    for one in comparable:
        if one.method == kind.name:
            together.setdefault((_title(one, one.differing), one.dataset, one.memory), []).append(one)
    rows = []
    for names, alike in together.items():
        by_seed: dict[int, list[float]] = {}
        for result in (result for one in alike for result in one.results):
            by_seed.setdefault(result["seed"], []).append(result["A_T"])
        ours, papers = Estimate.of([fmean(runs) for runs in by_seed.values()]), alike[0].paper("A_T")
        told = verdict(ours, papers)
        rows.append([*names, str(len(by_seed)), _seeds(alike), ours.text, papers.text, told])
    return rows or [[kind.name, *[NOTHING] * 6, "runs"]]


def _seeds(alike: Sequence[Group]) -> str:
    """Which seeds ran in which precision."""
    found: dict[str, set[int]] = {}
    for one in alike:
        found.setdefault(one.deviations.get("compute", LearnerConfig.compute), set()).update(one.seeds)
    return "; ".join(f"{ranges(sorted(seeds))} in {precision}" for precision, seeds in sorted(found.items()))


def _title(one: Group, settings: dict[str, Any]) -> str:
    notes = ", ".join(f"{key}={value}" for key, value in settings.items())
    return f"{one.method} ({notes})" if notes else one.method


def _is_limited(one: Group) -> bool:
    """Of a part of the data: what takes too long here, beside others on the same part."""
    return "limit" in one.deviations and "validation" not in one.deviations


def _is_variant(one: Group) -> bool:
    return not one.conditions and one.paper("A_T").mean is None


def _plain_rows(groups: Sequence[Group], wanted: Callable[[Group], bool]) -> list[list[str]]:
    rows = []
    for one in filter(wanted, groups):
        told = {key: value for key, value in one.deviations.items() if key != "threads"}
        rows.append(
            [_title(one, told), one.dataset, one.memory, str(len(one.results)), one.estimate("A_T").text]
        )
    return rows


def _measured_where(cost: dict[str, Any] | None) -> str:
    if cost is None:
        return "Nothing was measured yet: `bench analyse cost` does."
    settings = cost["settings"]
    options = "".join(f", {key} {value}" for key, value in settings["learner"].items())
    return (
        f"Operations, times and models measured on {settings['dataset']}{options}, by `bench analyse cost`; data on Split "
        f"CIFAR10 with the paper's network."
    )


def _cost_table(kinds: Sequence[type[Method]], cost: dict[str, Any] | None) -> str:
    head = [
        "method",
        "keeps of a sample",
        "task ends",
        "C_D",
        "time",
        "paper's C_D",
        "data",
        "model",
        "of its own",
    ]
    return markdown(head, [_cost_row(kind, cost["measured"] if cost else {}) for kind in kinds])


def _cost_row(kind: type[Method], cost: dict[str, Any]) -> list[str]:
    from edge_hpcr.bench.analyses.cost import REFERENCE, paper_costs

    method = kind()
    row = [kind.name, _kept(method), "needs them" if method.needs_boundaries else "not needed"]
    measured, reference = (cost.get("methods", {}).get(name) for name in (kind.name, REFERENCE))
    printed = paper_costs().get(("computation", kind.name, ""))
    papers = f"{printed[0]:g}" if printed else NOTHING
    if measured is None or reference is None:
        return [*row, NOTHING, NOTHING, papers, NOTHING, NOTHING, NOTHING]
    model = measured["model"]
    own = format_bytes(model["method"]) if model["method"] else NOTHING
    whole = sum(model.values()) / sum(reference["model"].values())
    relative = [f"{measured[key] / reference[key]:.2f}" for key in ("gflop", "ms")]
    stored = cost["data"].get(kind.name, {}).get("cifar10", {"numbers": 1.0})
    data = f"{stored['numbers']:.2f}" if method.uses_memory else NOTHING
    return [*row, *relative, papers, data, f"{whole:.2f}", own]


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
