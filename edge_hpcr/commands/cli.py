"""The one front door: `python -m edge_hpcr COMMAND`, and `edge-hpcr COMMAND` once installed.

`python -m app` and `python -m export` run the same functions under their own names. Each command returns its exit code:
0 is done, 2 wrong input in one line, 1 anything else.
"""

import importlib
import os
import re
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import typer
from tabulate import tabulate
from typer.core import TyperCommand, TyperGroup
from typer.main import get_command

from edge_hpcr import __version__
from edge_hpcr.common.errors import Failed, UserError
from edge_hpcr.common.files import disk_errors

HELP_WIDTH = 110
WORKSPACE, FETCH = "edge_hpcr.commands.workspace", "edge_hpcr.commands.fetch"
# Where each command is, and what it is for. Those of the app and the export (`learn` publishes, too) are named here and
# not imported: they build on this package, not the other way round.
COMMANDS = {
    "learn": ("export.learn", "learn from a camera, a video or a folder"),
    "status": (WORKSPACE, "show what a workspace is doing, what it holds and how good it is"),
    "label": (WORKSPACE, "give samples of a workspace a class"),
    "classes": (WORKSPACE, "list and change the classes of a workspace"),
    "samples": (WORKSPACE, "list, import and export samples"),
    "undo": (WORKSPACE, "take back the last action in a workspace"),
    "redo": (WORKSPACE, "redo what was undone last"),
    "verify": (WORKSPACE, "check that a workspace is whole"),
    "backup": (WORKSPACE, "copy a workspace to one file, even while it learns"),
    "restore": (WORKSPACE, "make a workspace from a backup"),
    "retrunk": ("edge_hpcr.commands.retrunk", "learn a workspace's labels again with another network"),
    "devices": (WORKSPACE, "list the devices that use a workspace's models"),
    "app": ("app.__main__", "teach on a web page"),
    "export": ("export.__main__", "publish models for devices"),
    "bench": ("edge_hpcr.commands.bench", "run a split benchmark"),
    "sweep": ("edge_hpcr.commands.sweep", "make many runs, on this machine or on a Ray cluster"),
    "report": ("edge_hpcr.commands.report", "make tables and plots of finished runs"),
    "data": (FETCH, "fetch datasets, and list them"),
    "weights": (FETCH, "fetch the weights of pre-trained networks"),
}

# Options and arguments that several commands have.
W = Annotated[Path, typer.Argument(metavar="W", help="the workspace's folder")]
AsJson = Annotated[bool, typer.Option("--json", help="print JSON")]
Threads = Annotated[int, typer.Option(min=1, metavar="N", help="CPU threads of a run")]
Device = Annotated[str, typer.Option(help="auto, cpu, cuda or mps")]
DatasetRoot = Annotated[
    Path | None,
    typer.Option(metavar="DIR", help="where datasets are", show_default="$EDGE_HPCR_DATA or ./datasets"),
]
ResultFolder = Annotated[Path, typer.Option(metavar="DIR", help="where results go")]
Fresh = Annotated[bool, typer.Option("--fresh", help="forget an earlier run of the same name")]


def say(sentence: str) -> None:
    """What is said beside a command's answer."""
    print(f"edge_hpcr: {sentence}", file=sys.stderr, flush=True)


def new_commands(**options: Any) -> typer.Typer:
    """A Typer whose help is plain text."""
    return typer.Typer(rich_markup_mode=None, add_completion=False, **options)


def examples(text: str) -> str:
    """An epilog: paragraphs with indented lines stay as they are, others are wrapped."""
    paragraphs = text.strip("\n").split("\n\n")
    return "\n\n".join(f"\b\n{each}" if re.search(r"^ ", each, re.MULTILINE) else each for each in paragraphs)


def make_writable(out: Path) -> None:
    """A folder for results, made if need be; refused before hours of work if nothing can be written there."""
    with disk_errors(f"cannot write results to {out}", "choose another folder with --out"):
        out.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=out):  # a name of its own: another command may try at the same moment
            pass


def table(head: list[str], rows: Sequence[Sequence[object]], sides: Sequence[str]) -> str:
    """Columns for a terminal, each aligned to its side; what is missing stays empty."""
    return tabulate(rows, head, tablefmt="plain", colalign=sides, disable_numparse=True, missingval="")


def run(commands: typer.Typer | TyperGroup, program: str, arguments: Sequence[str] | None = None) -> int:
    """Run a command line and return its exit code; what is wrong is said in one line.

    It ends quietly if nobody reads what it says any more, as in `… | head`.
    """
    try:
        code = _run(commands, program, arguments)
        print(end="", flush=True)
        return code
    except BrokenPipeError:
        for stream in (sys.stdout, sys.stderr):  # or Python would complain about it at its end
            os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())
        return 1


def _run(commands: typer.Typer | TyperGroup, program: str, arguments: Sequence[str] | None) -> int:
    name = program.removeprefix("python -m ").replace("-", "_")
    command = get_command(commands) if isinstance(commands, typer.Typer) else commands
    arguments = sys.argv[1:] if arguments is None else arguments
    try:
        with command.make_context(program, list(arguments), max_content_width=HELP_WIDTH) as context:
            return command.invoke(context) or 0
    except typer.Exit as ended:
        return ended.exit_code
    except typer.TyperException as error:
        where = getattr(error, "ctx", None)
        path = where.command_path if where else program
        message, code = f"{error.format_message()} (see `{path} --help`)", error.exit_code
    except UserError as error:
        message, code = str(error), 2
    except Failed as error:
        message, code = str(error), 1
    except KeyboardInterrupt:
        print("stopped", file=sys.stderr)
        return 1
    print(
        f"{name}: {' '.join(message.splitlines())}", file=sys.stderr
    )  # also of a file whose name has two lines
    return code


def _say_version(asked: bool) -> None:
    if asked:
        print(f"edge_hpcr {__version__}")
        raise typer.Exit


Version = Annotated[
    bool, typer.Option("--version", callback=_say_version, is_eager=True, help="print the version and exit")
]


class _Lazy(TyperCommand):
    """A command whose module is imported when it is used: PyTorch alone takes seconds."""

    def __init__(self, name: str, module: str, help: str) -> None:
        super().__init__(name, help=help, rich_markup_mode=None)
        self._name, self._module = name, module

    def make_context(self, *arguments: Any, **options: Any) -> Any:
        command = get_command(importlib.import_module(self._module).commands)
        if isinstance(command, TyperGroup):
            command = command.commands.get(self._name, command)
        return command.make_context(*arguments, **options)


front_door = new_commands()


@front_door.callback(
    epilog="First steps: `python -m edge_hpcr learn --workspace demo --source workbench --labels folders --seconds 60`, "
    "then `status demo`, and `COMMAND --help` for each command."
)
def _front_door(version: Version = False) -> None:
    """Image classifiers that learn new classes on the device, for life."""


@front_door.command(
    add_help_option=False, context_settings={"ignore_unknown_options": True, "allow_extra_args": True}
)
def device(context: typer.Context) -> None:
    """classify with a published model on a device"""
    runtime = importlib.import_module("export.runtime")
    runtime.leave(runtime.main(context.args))


def main(arguments: Sequence[str] | None = None) -> int:
    group = get_command(front_door)
    assert isinstance(group, TyperGroup)
    group.commands = {name: _Lazy(name, *about) for name, about in COMMANDS.items()} | dict(group.commands)
    installed = Path(sys.argv[0]).name == "edge-hpcr"
    return run(group, "edge-hpcr" if installed else "python -m edge_hpcr", arguments)
