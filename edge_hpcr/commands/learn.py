"""`python -m edge_hpcr learn`: a workspace that learns from a source, without a screen."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from edge_hpcr.common.errors import UserError
from edge_hpcr.common.units import parse_bytes, parse_setting
from edge_hpcr.stream import KINDS, LABELS

EXAMPLES = """\
examples:
  python -m edge_hpcr learn --workspace parts --source photos --labels folders   one sub-folder a class
  python -m edge_hpcr learn --workspace parts --source 0                         the first camera
  python -m edge_hpcr learn --workspace parts --source rtsp://user:secret@cam/stream
  python -m edge_hpcr learn --workspace parts --source watch:inbox --labels folders
  python -m edge_hpcr learn --workspace demo --source digits --labels folders --seconds 60

Frames without a label wait in the queue, the most informative first: see `samples W list --queue`, and label them
with `label W SAMPLE CLASS` from another terminal, while this goes on. Ctrl-C saves and ends; the same command continues.
"""


def add_parser(commands: Any) -> None:
    parser = commands.add_parser(
        "learn",
        help="learn from a camera, a video or a folder",
        description="Learn in a workspace from a source, until it ends or Ctrl-C.",
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "--workspace", type=Path, required=True, metavar="W", help="its folder; made if missing"
    )
    parser.add_argument("--source", required=True, metavar="SRC", help=KINDS)
    parser.add_argument(
        "--labels",
        default="none",
        help=f"{' or '.join(LABELS)}: whether sub-folders name the classes (default: none)",
    )
    parser.add_argument("--fps", type=float, metavar="N", help="pace of digits, a folder or a video")
    parser.add_argument("--seconds", type=float, metavar="N", help="stop after so long (default: never)")
    parser.add_argument("--budget", metavar="BYTES", help="replay memory, like 2MB; kept in the settings")
    parser.add_argument(
        "--size", type=int, metavar="N", help="side of the learned images; for a new workspace"
    )
    parser.add_argument(
        "--set",
        action="append",
        default=[],
        metavar="KEY=VALUE",
        dest="settings",
        help="any other setting, kept",
    )
    parser.add_argument(
        "--no-rehearsal",
        action="store_true",
        help="end with the last label, without further replay of what was learned",
    )
    parser.set_defaults(func=command)


def command(arguments: argparse.Namespace) -> int:
    from edge_hpcr.live.session import learn  # torch takes seconds, and --help needs none

    if arguments.seconds is not None and not arguments.seconds > 0:
        raise UserError(f"--seconds {arguments.seconds:g}: give a positive number")
    return learn(
        arguments.workspace,
        arguments.source,
        labels=arguments.labels,
        fps=arguments.fps,
        seconds=arguments.seconds,
        changes=_changes(arguments),
        rehearse=not arguments.no_rehearsal,
    )


def _changes(arguments: argparse.Namespace) -> dict[str, Any]:
    changes = dict(parse_setting(text) for text in arguments.settings)
    if arguments.budget is not None:
        changes["memory_bytes"] = parse_bytes(arguments.budget)
    if arguments.size is not None:
        changes["image_size"] = arguments.size
    return changes
