"""`python -m edge_hpcr report`: tables, plots and pages of what `bench` left."""

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, NamedTuple

from typer import Argument, Option

from edge_hpcr.bench import methods_page, teach
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
commands = new_commands()


class Section(NamedTuple):
    """A part of a page: what its plots are known by, its tables, what explains tables of its kind, and which page it is for."""

    name: str
    text: str
    explanation: str
    page: str


@commands.command(epilog=examples(EXAMPLES))
def report(
    folders: Annotated[list[Path], Argument(metavar="DIR", help="where `bench` left its results")],
    out: Annotated[
        Path | None,
        Option(
            metavar="DIR",
            help="write pages: results on test images, choices on held-out ones, methods with a verdict, analyses",
        ),
    ] = None,
    table: Annotated[Path | None, Option(metavar="FILE.csv", help="write a table with a row per run")] = None,
) -> None:
    """Put the runs of one setting together, with the paper's values; plots are beside the pages or in the first folder."""
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
    drawn = _draw(groups, taught, (out or folders[0]) / "plots")
    if table:
        with disk_errors(f"cannot write {table}", "choose another file with --table"):
            tables.write_runs(found, table)
        print(f"table: {table}", file=sys.stderr)
    if out:
        explained = {one.explanation for one in sections if one.page == RESULTS}
        pages = {
            name: _page(name, own, drawn, explained)
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
    found = [
        Section(dataset, tables.section(each), tables.EXPLANATION, CHOICES if validates else RESULTS)
        for (validates, dataset), each in tables.by(groups, lambda one: (one.validates, one.dataset)).items()
    ]
    for each in taught:
        page = CHOICES if each[0].validates else RESULTS
        found.append(Section(each[0].heading, teach.section(each), teach.EXPLANATION, page))
    if analysed:
        paper = tables.paper_analyses()
        for one in paper.ordered(analysed):
            found.append(Section(paper.title_of(one), paper.section(one), paper.EXPLANATION, ANALYSES))
    return found


def _page(
    name: str, sections: Sequence[Section], drawn: Sequence[tuple[str, str, str]], explained: set[str]
) -> str:
    """The sections of one page under its title, with their plots; what is explained once is not explained again."""
    parts = [f"# {TITLES[name]}"]
    for section in sections:
        elsewhere = name == CHOICES and section.explanation in explained
        explanation = EXPLAINED if elsewhere else section.explanation
        if explanation not in parts:
            parts.append(explanation)
        parts.append(section.text)
        if section.page == RESULTS:
            parts += [f"![{text}]({plot})" for of, text, plot in drawn if of == section.name]
    return "\n\n".join(parts) + "\n"


def _draw(
    groups: Sequence[tables.Group], taught: Sequence[list[teach.Lessons]], folder: Path
) -> list[tuple[str, str, str]]:
    """A plot for each that was tested on test images: the section it belongs to, what it shows, and its file beside a page."""
    from edge_hpcr.bench import plots  # here, because `bench` and the others need not wait for matplotlib

    with disk_errors(f"cannot write plots to {folder}"):
        folder.mkdir(parents=True, exist_ok=True)
        drawn = plots.draw([one for one in groups if not one.validates], folder)
        drawn += plots.draw_lessons([each for each in taught if not each[0].validates], folder)
    print(f"plots: {len(drawn)} in {folder}", file=sys.stderr)
    return [(of, text, f"{folder.name}/{file.name}") for of, text, file in drawn]
