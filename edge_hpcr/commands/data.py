"""`python -m edge_hpcr data ...`: fetch datasets and say which are there."""

import sys
from pathlib import Path
from typing import Annotated

from typer import Argument, Option

from edge_hpcr.bench import datasets as data
from edge_hpcr.bench.datasets import store
from edge_hpcr.bench.datasets.sources import SOURCES
from edge_hpcr.commands.cli import new_commands, table
from edge_hpcr.common.errors import one_of

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
    one_of("source", source, SOURCES)
    if name in data.DATASETS and not data.DATASETS[name].sources:
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
    root = root or data.default_root()
    rows = []
    for name, info in data.DATASETS.items():
        if not info.sources:
            state = "built in"
        else:
            state = "there" if (root / name / store.META).is_file() else "not fetched"
        rows.append([name, info.classes, info.tasks, info.side, state, info.description])
    head = ["name", "classes", "tasks", "side", "state", "description"]
    print(table(head, rows, ("left", "right", "right", "right", "left", "left")))
