"""`python -m edge_hpcr learn`: a workspace that learns from a source, without a screen."""

from pathlib import Path
from typing import Annotated

from typer import Option

from edge_hpcr.commands.cli import examples, new_commands
from edge_hpcr.common.errors import check_positive
from edge_hpcr.common.units import parse_bytes, parse_setting
from edge_hpcr.stream import KINDS, LABELS
from edge_hpcr.stream.passwords import VARIABLE, with_password
from edge_hpcr.stream.rules import SOURCES_UNDER, Rules, checked_folders

EXAMPLES = """
examples:
  python -m edge_hpcr learn --workspace parts --source photos --labels folders   one sub-folder a class
  python -m edge_hpcr learn --workspace parts --source 0                         the first camera
  python -m edge_hpcr learn --workspace parts --source rtsp://user:secret@cam/stream
  python -m edge_hpcr learn --workspace parts --source watch:inbox --labels folders
  python -m edge_hpcr learn --workspace demo --source workbench --labels folders --seconds 60

Frames without a label wait in the queue, the most informative first: see `samples W list --queue`, and label them
with `label W SAMPLE CLASS` from another terminal, while this goes on. Ctrl-C saves and ends; the same command continues.
"""
commands = new_commands()


@commands.command(epilog=examples(EXAMPLES))
def learn(
    workspace: Annotated[Path, Option(metavar="W", help="its folder; made if missing")],
    source: Annotated[str, Option(metavar="SRC", help=KINDS)],
    camera_password: Annotated[
        Path | None,
        Option(metavar="FILE", help="user:password of a camera's address", show_default=f"${VARIABLE}"),
    ] = None,
    labels: Annotated[
        str, Option(help=f"{' or '.join(LABELS)}: whether sub-folders name the classes")
    ] = "none",
    fps: Annotated[
        float | None, Option(metavar="N", help="pace of workbench, digits, a folder or a video")
    ] = None,
    seconds: Annotated[
        float | None, Option(metavar="N", help="stop after so long", show_default="never")
    ] = None,
    budget: Annotated[
        str | None, Option(metavar="BYTES", help="replay memory, like 2MB; kept in the settings")
    ] = None,
    size: Annotated[
        int | None, Option(metavar="N", help="side of the learned images; for a new workspace")
    ] = None,
    settings: Annotated[
        list[str] | None, Option("--set", metavar="KEY=VALUE", help="any other setting, kept")
    ] = None,
    sources_under: Annotated[
        list[Path] | None, Option(metavar="DIR", help=SOURCES_UNDER, show_default="anywhere")
    ] = None,
    no_rehearsal: Annotated[
        bool,
        Option("--no-rehearsal", help="end with the last label, without further replay of what was learned"),
    ] = False,
) -> int:
    """Learn in a workspace from a source, until it ends or Ctrl-C."""
    from edge_hpcr.live import session  # torch takes seconds, and --help needs none

    if seconds is not None:
        check_positive("--seconds", seconds)
    changes = dict(map(parse_setting, settings or []))
    if budget is not None:
        changes["memory_bytes"] = parse_bytes(budget)
    if size is not None:
        changes["image_size"] = size
    return session.learn(
        workspace,
        with_password(source, camera_password),
        labels=labels,
        fps=fps,
        seconds=seconds,
        changes=changes,
        rehearse=not no_rehearsal,
        rules=Rules(checked_folders(sources_under)),
    )
