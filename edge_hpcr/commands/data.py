"""`python -m edge_hpcr data ...`: fetch datasets and say which are there."""

import sys
from pathlib import Path
from typing import Annotated

from typer import Argument, Option

from edge_hpcr.bench import datasets as data
from edge_hpcr.bench.datasets.sources import SOURCES
from edge_hpcr.commands.cli import new_commands, table

Root = Annotated[
    Path | None,
    Option(metavar="DIR", help="where datasets are kept", show_default="$EDGE_HPCR_DATA or ./datasets"),
]
commands = new_commands(help="Fetch datasets, and list them.")


@commands.command()
def get(
    name: Annotated[str, Argument(metavar="NAME", help=f"one of: {', '.join(data.DATASETS)}")],
    source: Annotated[str, Option(help=f"{', '.join(SOURCES)}; auto tries what there is, in order")] = "auto",
    folder: Annotated[
        Path | None, Option(metavar="DIR", help="a folder of yours that holds the dataset")
    ] = None,
    root: Root = None,
) -> int:
    """Fetch a dataset, check it, and store it below the root."""
    if not data.registry.info(name).sources:
        print(f"{name} is built in: there is nothing to fetch")
        return 0
    try:
        print(data.get(name, root, source, folder))
    except KeyboardInterrupt:
        print("\nstopped; whole files are kept, and the same command goes on", file=sys.stderr)
        return 1
    return 0


@commands.command("list")
def list_datasets(root: Root = None) -> None:
    """List the datasets and whether they are there."""
    rows = []
    for name, info in data.DATASETS.items():
        there = "there" if data.is_here(name, root) else "not fetched"
        state = there if info.sources else "built in"
        rows.append([name, info.classes, info.tasks, info.side, state, info.description])
    head = ["name", "classes", "tasks", "side", "state", "description"]
    print(table(head, rows, ("left", "right", "right", "right", "left", "left")))
