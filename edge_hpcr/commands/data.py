"""`python -m edge_hpcr data ...`: fetch datasets and say which are there."""

import argparse
import sys
from pathlib import Path
from typing import Any

from edge_hpcr.bench import datasets as data
from edge_hpcr.bench.datasets import store
from edge_hpcr.bench.datasets.sources import SOURCES


def add_parser(subparsers: Any) -> None:
    """Add the command `data` with `get` and `list`; each parser sets `func`, which returns the exit code."""
    parser = subparsers.add_parser("data", help="fetch datasets, and list them")
    commands = parser.add_subparsers(dest="data_command", required=True)

    get = commands.add_parser("get", help="fetch a dataset, check it, and store it below the root")
    get.add_argument("name", metavar="NAME", help=f"one of: {', '.join(data.DATASETS)}")
    get.add_argument("--source", choices=SOURCES, default="auto", help="auto tries what there is, in order")
    get.add_argument("--folder", type=Path, metavar="DIR", help="a folder of yours that holds the dataset")
    get.set_defaults(func=_get)

    listing = commands.add_parser("list", help="list the datasets and whether they are there")
    listing.set_defaults(func=_list)
    for command in (get, listing):
        command.add_argument(
            "--root",
            type=Path,
            metavar="DIR",
            help="where datasets are kept (default: $EDGE_HPCR_DATA or ./datasets)",
        )


def _get(args: argparse.Namespace) -> int:
    if args.name in data.DATASETS and not data.DATASETS[args.name].sources:
        print(f"{args.name} is built in: there is nothing to fetch")
        return 0
    try:
        print(data.get(args.name, args.root, args.source, args.folder))
    except KeyboardInterrupt:
        print("\nstopped; what was downloaded is kept, the same command continues", file=sys.stderr)
        return 1
    return 0


def _list(args: argparse.Namespace) -> int:
    root = args.root or data.default_root()
    print(f"{'name':<14} {'classes':>7} {'tasks':>5} {'side':>4}  {'state':<12} description")
    for name, info in data.DATASETS.items():
        if not info.sources:
            state = "built in"
        else:
            state = "there" if (root / name / store.META).is_file() else "not fetched"
        print(f"{name:<14} {info.classes:>7} {info.tasks:>5} {info.side:>4}  {state:<12} {info.description}")
    return 0
