"""`python -m edge_hpcr bench analyse`: one analysis of the paper, measured and kept as one JSON file."""

import json
import sys
from pathlib import Path
from typing import Annotated

from typer import Argument, Option

from edge_hpcr.bench import analyses
from edge_hpcr.bench import datasets as data
from edge_hpcr.bench.analyses.contract import title_of
from edge_hpcr.bench.analyses.runs import Runs
from edge_hpcr.bench.local_runner import of_disk
from edge_hpcr.bench.run import Interrupted
from edge_hpcr.commands.cli import (
    DatasetRoot,
    Device,
    Fresh,
    ResultFolder,
    Threads,
    continues,
    make_writable,
    table,
)
from edge_hpcr.common.errors import Failed, UserError
from edge_hpcr.common.files import disk_errors, write_atomically
from edge_hpcr.learner import checkpoint

EXAMPLES = """
examples:
  python -m edge_hpcr bench analyse --list                            the analyses, and what each is for
  python -m edge_hpcr bench analyse flatness                          the small version, in minutes
  python -m edge_hpcr bench analyse flatness --paper                  the paper's version, in hours or days
  python -m edge_hpcr report results/analyses --out docs/analyses.md  a page with its plots

Runs that have finished are not run again: a command that was stopped continues when it is given again.
"""


def analyse(
    name: Annotated[str | None, Argument(metavar="NAME", help="of the analysis; --list names them")] = None,
    list_them: Annotated[bool, Option("--list", help="the analyses, and what each is for")] = False,
    paper: Annotated[
        bool, Option("--paper", help="as the paper prints it: its dataset, buffer, seeds and grid")
    ] = False,
    runs: Annotated[Path, Option(metavar="DIR", help="where the runs are kept that it needs")] = Path(
        "runs/analyses"
    ),
    out: ResultFolder = Path("results/analyses"),
    threads: Threads = 1,
    device: Device = "auto",
    root: DatasetRoot = None,
    fresh: Fresh = False,
) -> int:
    """Repeat an analysis of the paper; `report` makes its table and plot."""
    if list_them:
        known = map(analyses.analysis, analyses.names())
        print(table(["name", "what for"], [[each.name, each.purpose] for each in known], ["left", "left"]))
        return 0
    if name is None:
        raise UserError(f"name an analysis: one of {', '.join(analyses.names())}")
    chosen = analyses.analysis(name)
    settings = chosen.paper if paper else chosen.small
    for folder in (runs, out):
        make_writable(folder)
    data.load(settings.dataset, root)  # missing data: say so before anything is learned
    needed = Runs(runs, root, threads, device, fresh)
    try:
        result = chosen.result("paper" if paper else "small", settings, needed)
    except (Interrupted, KeyboardInterrupt):
        print(f"stopped and saved; {continues(fresh)}", file=sys.stderr)
        return 1
    except (OSError, checkpoint.CannotWrite) as error:
        why = of_disk(error) if isinstance(error, OSError) else str(error)
        raise Failed(f"{why}; {continues(fresh)}") from error
    path = out / f"{title_of(result)}.json"
    with disk_errors(f"cannot write {path}"):
        write_atomically(path, json.dumps(result, allow_nan=False, separators=(",", ":")) + "\n")
    print(chosen.section(result))
    print(f"kept: {path}", file=sys.stderr)
    return 0
