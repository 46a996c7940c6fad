"""`python -m edge_hpcr report`: tables and plots of what `bench` left."""

import shlex
import sys
from pathlib import Path
from typing import Annotated, Any

from typer import Argument, Option

from edge_hpcr.bench import analyses, methods_page, teach_report
from edge_hpcr.bench import report as tables
from edge_hpcr.bench.analyses.contract import title_of
from edge_hpcr.bench.results import read_folders
from edge_hpcr.bench.teach_report import Lessons
from edge_hpcr.commands.cli import at_most_one, examples, new_commands
from edge_hpcr.common.errors import UserError

EXAMPLES = """
examples:
  python -m edge_hpcr report runs                                   tables on the screen, plots in runs/plots
  python -m edge_hpcr report results --out docs/results.md          a page with its plots in docs/plots
  python -m edge_hpcr report results results/analyses --methods docs/methods.md    how far each method was verified
"""
commands = new_commands()


@commands.command(epilog=examples(EXAMPLES))
def report(
    folders: Annotated[list[Path], Argument(metavar="DIR", help="where `bench` left its results")],
    out: Annotated[Path | None, Option(metavar="FILE.md", help="also write a page")] = None,
    plots: Annotated[
        Path | None,
        Option(metavar="DIR", help="for plots", show_default="plots, beside the page or in the first folder"),
    ] = None,
    methods: Annotated[
        Path | None,
        Option(metavar="FILE.md", help="write the page of verification: every method, and a verdict"),
    ] = None,
) -> None:
    """Put the runs of one setting together, and the paper's values beside them."""
    at_most_one(out=out, methods=methods)
    found, left_out = read_folders(folders)
    for complaint in left_out:
        print(f"left out: {complaint}", file=sys.stderr)
    if not found:
        where = " and ".join(map(str, folders))
        raise UserError(
            f"no finished runs in {where}: make one with "
            f"`python -m edge_hpcr bench --dataset digits --out {folders[0]}`"
        )
    taught = teach_report.group([result for result in found.values() if teach_report.is_lesson(result)])
    analysed = analyses.ordered([result for result in found.values() if analyses.is_analysis(result)])
    results = [result for result in found.values() if "benchmark" not in result]
    sections = [tables.table(results), *map(teach_report.section, taught), *map(analyses.section, analysed)]
    print("\n\n".join(filter(None, sections)))
    if methods:
        words = ["report", *map(str, folders), "--methods", str(methods)]
        costs = [each for each in analysed if each["analysis"] == "cost"]
        cost = max(costs, key=lambda each: each["version"] == "paper", default=None)
        _write(
            methods,
            methods_page.page(tables.group(results), cost, f"python -m edge_hpcr {shlex.join(words)}"),
        )
        return
    folder = plots or (out.parent if out else folders[0]) / "plots"
    images = _draw(results, taught, analysed, folder, out)
    if out:
        words = ["report", *map(str, folders), "--out", str(out)]
        if plots:
            words += ["--plots", str(plots)]
        more = [teach_report.EXPLANATION] if taught else []
        for lessons in taught:
            more.append(teach_report.section(lessons))
            more += [f"![{text}]({path})" for text, path in images.get(lessons[0].heading, [])]
        more += [analyses.EXPLANATION] if analysed else []
        for result in analysed:
            more.append(analyses.section(result))
            more += [f"![{text}]({path})" for text, path in images.get(title_of(result), [])]
        title = "Results" if results or taught else "The paper's analyses, repeated"
        command = f"python -m edge_hpcr {shlex.join(words)}"
        page = tables.page(results, command, list(found), images, more, title)
        _write(out, page)


def _write(path: Path, page: str) -> None:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(page, encoding="utf-8")
    except OSError as error:
        raise UserError(f"cannot write {path}: {error.strerror}; choose another file with --out") from None
    print(f"page: {path}", file=sys.stderr)


def _draw(
    results: list[dict[str, Any]],
    taught: list[list[Lessons]],
    analysed: list[dict[str, Any]],
    folder: Path,
    page: Path | None,
) -> dict[str, list[tuple[str, str]]]:
    """The plots that the page can show, by section: only what lies below the page moves with it."""
    from edge_hpcr.bench import plots  # here, because `bench` and the others need not wait for matplotlib

    try:
        folder.mkdir(parents=True, exist_ok=True)
        drawn = plots.draw(tables.group(results), folder) + plots.draw_lessons(taught, folder)
        drawn += analyses.draw(analysed, folder)
    except OSError as error:
        raise UserError(
            f"cannot write plots to {folder}: {error.strerror}; choose another folder with --plots"
        ) from None
    print(f"plots: {len(drawn)} in {folder}", file=sys.stderr)
    images: dict[str, list[tuple[str, str]]] = {}
    for dataset, text, path in drawn:
        if page is not None and path.resolve().is_relative_to(page.parent.resolve()):
            relative = path.resolve().relative_to(page.parent.resolve()).as_posix()
            images.setdefault(dataset, []).append((text, relative))
    return images
