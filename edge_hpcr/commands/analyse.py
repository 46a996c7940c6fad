"""`python -m edge_hpcr bench analyse`: the door to the analyses of the paper, which are in the repository."""

import json
import sys
from pathlib import Path
from typing import Annotated

from typer import Argument, Option

from edge_hpcr.bench import datasets as data
from edge_hpcr.bench.report import paper_analyses
from edge_hpcr.commands.cli import DatasetRoot, Device, ResultFolder, Threads, make_writable, table
from edge_hpcr.commands.sweep import stoppable
from edge_hpcr.common.errors import UserError
from edge_hpcr.common.files import disk_errors, write_atomically

EXAMPLES = """
examples:
  python -m edge_hpcr bench analyse --list                            the analyses, and what each is for
  python -m edge_hpcr bench analyse flatness                          the small version, in minutes
  python -m edge_hpcr bench analyse flatness --paper                  the paper's version, in hours or days
  python -m edge_hpcr report results/analyses --out pages             a page of them

It needs a clone of the repository. Runs that have finished are not run again: a command that was stopped continues when it
is given again; without the folder of its runs it begins anew.
"""


def analyse(
    name: Annotated[str | None, Argument(metavar="NAME", help="the analysis; --list names them")] = None,
    list_them: Annotated[bool, Option("--list", help="list the analyses, and what each is for")] = False,
    paper: Annotated[
        bool, Option("--paper", help="the paper's version: its dataset, buffer, seeds and grid")
    ] = False,
    runs: Annotated[Path, Option(metavar="DIR", help="where its runs are kept")] = Path("runs/analyses"),
    out: ResultFolder = Path("results/analyses"),
    threads: Threads = 1,
    device: Device = "auto",
    root: DatasetRoot = None,
) -> int:
    """Repeat an analysis of the paper; `report` makes its table."""
    analyses = paper_analyses()
    if list_them:
        known = [[each.name, each.purpose] for each in analyses.ANALYSES.values()]
        print(table(["name", "what for"], known, ["left", "left"]))
        return 0
    if name is None:
        raise UserError(f"name an analysis: one of {', '.join(analyses.ANALYSES)}")
    chosen = analyses.analysis(name)
    settings = chosen.paper if paper else chosen.small
    for folder in (runs, out):
        make_writable(folder)
    data.load(settings.dataset, root)  # missing data: say so before anything is learned
    with stoppable():
        needed = analyses.Runs(runs, root, threads, device)
        result = chosen.result("paper" if paper else "small", settings, needed)
    path = out / f"{analyses.title_of(result)}.json"
    with disk_errors(f"cannot write {path}"):
        write_atomically(path, json.dumps(result, allow_nan=False, separators=(",", ":")) + "\n")
    print(chosen.section(result))
    print(f"kept: {path}", file=sys.stderr)
    return 0
