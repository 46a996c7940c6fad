"""The command line: `python -m edge_hpcr COMMAND`. 0 is done, 2 wrong input in one line, 1 anything else."""

import argparse
import sys
from typing import NoReturn

from edge_hpcr import __version__, bench_command, report_command, speed
from edge_hpcr.data import cli as data_command
from edge_hpcr.errors import UserError


class OneLineParser(argparse.ArgumentParser):
    """Says what is wrong in one line; the whole usage is for --help."""

    def error(self, message: str) -> NoReturn:
        self.exit(2, f"edge_hpcr: {message} (see `{self.prog} --help`)\n")


def make_parser() -> argparse.ArgumentParser:
    parser = OneLineParser(
        prog="python -m edge_hpcr",
        description="Image classifiers that learn new classes on the device, for life.",
        epilog="First steps: `python -m edge_hpcr bench --dataset digits`, then `COMMAND --help` for each command.",
    )
    parser.add_argument("--version", action="version", version=f"edge_hpcr {__version__}")
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    for module in (bench_command, report_command, speed, data_command):
        module.add_parser(commands)
    return parser


def main(argv: list[str] | None = None) -> int:
    arguments = make_parser().parse_args(argv)
    try:
        return arguments.func(arguments)
    except UserError as error:
        print(f"edge_hpcr: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("stopped", file=sys.stderr)
        return 1
