"""The command line: `python -m edge_hpcr COMMAND`. 0 is done, 2 wrong input in one line, 1 anything else."""

import argparse
import importlib
import sys
from typing import NoReturn

from edge_hpcr import __version__
from edge_hpcr.common.errors import UserError

# Each module adds its commands to the parser. Only the one that is asked for is imported: PyTorch alone takes seconds,
# and whoever asks for a status wants it at once.
MODULES = {
    "learn": "edge_hpcr.commands.learn",
    **dict.fromkeys(
        ("status", "label", "classes", "samples", "undo", "redo", "verify"), "edge_hpcr.commands.workspace"
    ),
    "bench": "edge_hpcr.commands.bench",
    "report": "edge_hpcr.commands.report",
    "speed": "benchmarks.speed",
    "endure": "benchmarks.endurance.command",
    "data": "edge_hpcr.commands.data",
}


class OneLineParser(argparse.ArgumentParser):
    """Says what is wrong in one line; the whole usage is for --help."""

    def error(self, message: str) -> NoReturn:
        name = self.prog.removeprefix("python -m ").split()[0]
        self.exit(2, f"{name}: {message} (see `{self.prog} --help`)\n")


def make_parser(command: str | None = None) -> argparse.ArgumentParser:
    """With this command alone, or with all of them."""
    parser = OneLineParser(
        prog="python -m edge_hpcr",
        description="Image classifiers that learn new classes on the device, for life.",
        epilog="First steps: `python -m edge_hpcr learn --workspace demo --source digits --labels folders --seconds 60`, "
        "then `status demo`, and `COMMAND --help` for each command.",
    )
    parser.add_argument("--version", action="version", version=f"edge_hpcr {__version__}")
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    names = [MODULES[command]] if command in MODULES else dict.fromkeys(MODULES.values())
    for name in names:
        importlib.import_module(name).add_parser(commands)
    return parser


def main(argv: list[str] | None = None) -> int:
    argv = sys.argv[1:] if argv is None else argv
    arguments = make_parser(argv[0] if argv else None).parse_args(argv)
    try:
        return arguments.func(arguments)
    except UserError as error:
        print(f"edge_hpcr: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("stopped", file=sys.stderr)
        return 1
