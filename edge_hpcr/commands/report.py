"""`python -m edge_hpcr report`: tables, plots and pages of what `bench` left."""

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, NamedTuple

from typer import Argument, Option

from edge_hpcr.bench import methods_page, plots, teach
from edge_hpcr.bench import report as tables
from edge_hpcr.commands.cli import examples, new_commands
from edge_hpcr.common.errors import UserError
from edge_hpcr.common.files import disk_errors

EXAMPLES = """
examples:
  python -m edge_hpcr report runs                              tables on the screen, plots in runs/plots
  python -m edge_hpcr report runs --out pages --table runs.csv pages with their plots, and a table of the runs
"""
RESULTS, CHOICES, ANALYSES, METHODS = "results.md", "choices.md", "analyses.md", "methods.md"
TITLES = {
    RESULTS: "Results on test images",
    CHOICES: "Choices, made on held-out training images",
    ANALYSES: "The paper's analyses, repeated",
}
EXPLAINED = f"The columns are explained in [{RESULTS}]({RESULTS})."
PLOTS = "plots"  # the folder beside the pages
commands = new_commands()


class Section(NamedTuple):
    """A part of a page: its tables, what explains tables of its kind, which page it is for, and its plots."""

    text: str
    explanation: str
    page: str
    plots: list[plots.Plot]


@commands.command(epilog=examples(EXAMPLES))
def report(
    folders: Annotated[list[Path], Argument(metavar="DIR", help="where `bench` left its results")],
    out: Annotated[
        Path | None,
        Option(
            metavar="DIR",
            help="write pages: results on test images, choices on held-out images, methods with a verdict, analyses",
        ),
    ] = None,
    table: Annotated[Path | None, Option(metavar="FILE.csv", help="write a table, one row per run")] = None,
) -> None:
    """Make tables of finished runs, with the paper's values. Plots go next to the pages, or into the first folder."""
    found, left_out = tables.read_folders(folders)
    for complaint in left_out:
        print(f"left out: {complaint}", file=sys.stderr)
    if not found:
        raise UserError(
            f"no finished runs in {' and '.join(map(str, folders))}: make one with "
            f"`python -m edge_hpcr bench --dataset digits --out {folders[0]}`"
        )
    kinds = tables.by(found.values(), tables.kind_of)
    groups = tables.group(kinds.get("", []))
    taught = teach.group(kinds.get("teach", []))
    analysed = kinds.get("analysis", [])
    sections = _sections(groups, taught, analysed)
    print("\n\n".join(each.text for each in sections))
    folder, drawn = (out or folders[0]) / PLOTS, [plot for each in sections for plot in each.plots]
    with disk_errors(f"cannot write plots to {folder}"):
        folder.mkdir(parents=True, exist_ok=True)
        for plot in drawn:
            plots.write(plot, folder)
    print(f"plots: {len(drawn)} in {folder}", file=sys.stderr)
    if table:
        with disk_errors(f"cannot write {table}", "choose another file with --table"):
            tables.write_runs(found, table)
        print(f"table: {table}", file=sys.stderr)
    if out:
        explained = {one.explanation for one in sections if one.page == RESULTS}
        pages = {
            name: _page(name, own, explained)
            for name, own in tables.by(sections, lambda one: one.page).items()
        }
        if groups:
            costs = [each for each in analysed if each["analysis"] == "cost"]
            cost = max(costs, key=lambda each: each["version"] == "paper", default=None)
            pages[METHODS] = methods_page.page(groups, cost)
        with disk_errors(f"cannot write pages to {out}", "choose another folder with --out"):
            for name, page in pages.items():
                (out / name).write_text(page, encoding="utf-8")
        print(f"pages: {', '.join(pages)} in {out}", file=sys.stderr)


def _sections(
    groups: Sequence[tables.Group],
    taught: Sequence[list[teach.Lessons]],
    analysed: list[dict[str, object]],
) -> list[Section]:
    found = []
    for same in tables.by(groups, lambda one: (one.validates, one.dataset)).values():
        page, drawn = (CHOICES, []) if same[0].validates else (RESULTS, list(plots.of_groups(same)))
        found.append(Section(tables.section(same), tables.EXPLANATION, page, drawn))
    for same_heading in tables.by(taught, lambda one: one[0].heading).values():
        for number, lessons in enumerate(same_heading, 1):
            tested = not lessons[0].validates
            drawn = list(plots.of_lessons(lessons, number)) if tested else []
            page = RESULTS if tested else CHOICES
            found.append(Section(teach.section(lessons), teach.EXPLANATION, page, drawn))
    if analysed:
        paper = tables.paper_analyses()
        for one in paper.ordered(analysed):
            found.append(Section(paper.section(one), paper.EXPLANATION, ANALYSES, []))
    return found


def _page(name: str, sections: Sequence[Section], explained: set[str]) -> str:
    """The sections of one page under its title, with their plots; what is explained once is not explained again."""
    parts = [f"# {TITLES[name]}"]
    for section in sections:
        elsewhere = name == CHOICES and section.explanation in explained
        explanation = EXPLAINED if elsewhere else section.explanation
        if explanation not in parts:
            parts.append(explanation)
        parts.append(section.text)
        parts += [f"![{plot.text}]({PLOTS}/{plot.file})" for plot in section.plots]
    return "\n\n".join(parts) + "\n"
