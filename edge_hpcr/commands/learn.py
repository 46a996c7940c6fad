"""`python -m edge_hpcr learn`: a workspace that learns from a source, without a screen."""

import importlib
import re
from pathlib import Path
from typing import Annotated

from typer import Option

from edge_hpcr.commands.cli import examples, new_commands
from edge_hpcr.common.errors import UserError, check_positive
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
  python -m edge_hpcr learn --workspace parts --source 0 --publish-every 60s     models for devices, by itself
  python -m edge_hpcr learn --workspace parts --source 0 --serve 0.0.0.0:8081 --token token.txt     and served
  python -m edge_hpcr learn --workspace demo --source workbench --labels folders --seconds 60

Frames without a label wait in the queue, the most informative first: see `samples W list --queue`, and label them
with `label W SAMPLE CLASS` from another terminal, while this goes on. Ctrl-C saves and ends; the same command continues.

With --serve it goes on when the source has ended: devices still ask, and labels may still come.
"""
BESIDE = "export.publish.beside"  # named and not imported: the export builds on this package
LONGEST_PERIOD = 366 * 86_400  # seconds
commands = new_commands()


def parse_period(text: str) -> dict[str, int]:
    """The settings that `--publish-every` stands for.

    >>> parse_period("200steps")
    {'publish_seconds': 0, 'publish_steps': 200}
    """
    match = re.fullmatch(r"(\d{1,9})\s*(s|steps?)", text.strip())
    number, unit = (int(match[1]), match[2]) if match else (0, "s")
    if text == "never":
        return {"publish_seconds": 0, "publish_steps": 0}
    if not number or (unit == "s" and number > LONGEST_PERIOD):
        raise UserError(f"--publish-every {text}: write it like 60s or 200steps, or never")
    seconds, steps = (number, 0) if unit == "s" else (0, number)
    return {"publish_seconds": seconds, "publish_steps": steps}


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
    publish_every: Annotated[
        str | None,
        Option(metavar="60s|200steps|never", help="publish what is new by itself; kept in the settings"),
    ] = None,
    serve: Annotated[
        str | None,
        Option(metavar="HOST:PORT", help="publish, and give models to devices over HTTP, until Ctrl-C"),
    ] = None,
    token: Annotated[
        Path | None,
        Option(metavar="FILE", help="with --serve: only for who sends a bearer token of this file"),
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
    if publish_every is not None:
        changes |= parse_period(publish_every)
    beside = importlib.import_module(BESIDE).beside(serve, token)
    return session.learn(
        workspace,
        with_password(source, camera_password),
        labels=labels,
        fps=fps,
        seconds=seconds,
        changes=changes,
        rehearse=not no_rehearsal,
        rules=Rules(checked_folders(sources_under)),
        beside=lambda live: beside(live, workspace),
        stays=serve is not None,
    )
