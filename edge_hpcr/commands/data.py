"""`python -m edge_hpcr data ...`: fetch datasets and say which are there."""

from pathlib import Path
from typing import Annotated

from typer import Argument, Option

from edge_hpcr.bench import datasets as data
from edge_hpcr.commands.cli import DatasetRoot, new_commands, table

commands = new_commands(help="Fetch datasets, and list them.")


@commands.command()
def get(
    name: Annotated[str, Argument(metavar="NAME", help=f"one of: {', '.join(data.DATASETS)}")],
    folder: Annotated[
        Path | None,
        Option(metavar="DIR", help="a folder of yours that holds the dataset; else it is downloaded"),
    ] = None,
    root: DatasetRoot = None,
) -> int:
    """Fetch a dataset, check it, and store it below the root."""
    if data.info(name).built_in:
        print(f"{name} is built in: there is nothing to fetch")
        return 0
    print(data.get(name, root, folder))
    return 0


@commands.command("list")
def list_datasets(root: DatasetRoot = None) -> None:
    """List the datasets and whether they are there."""
    rows = []
    for name, info in data.DATASETS.items():
        there = "there" if data.is_here(name, root) else "not fetched"
        state = "built in" if info.built_in else there
        rows.append([name, info.classes, info.tasks, info.side, state, info.description])
    head = ["name", "classes", "tasks", "side", "state", "description"]
    print(table(head, rows, ("left", "right", "right", "right", "left", "left")))
