"""`python -m edge_hpcr learn`: a workspace that learns from a source without a screen, and publishes what it learned."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from typer import Option

from edge_hpcr.commands.cli import examples, new_commands
from edge_hpcr.common.errors import UserError, check_positive
from edge_hpcr.common.units import parse_setting
from edge_hpcr.stream import KINDS, LABELS, SOURCE_VARIABLE

if TYPE_CHECKING:
    from edge_hpcr.live.live_learner import LiveLearner

EXAMPLES = """
examples:
  python -m edge_hpcr learn --workspace parts --source photos --labels folders   one sub-folder per class
  python -m edge_hpcr learn --workspace parts --source 0                         the first camera
  python -m edge_hpcr learn --workspace parts --source rtsp://user:secret@cam/stream
  python -m edge_hpcr learn --workspace parts --source watch:inbox --labels folders
  python -m edge_hpcr learn --workspace parts --source 0 --publish-every 60s     publish automatically
  python -m edge_hpcr learn --workspace parts --source 0 --set memory_bytes=2MB  another size of the replay memory
  python -m edge_hpcr learn --workspace demo --source workbench --labels folders --seconds 60

Frames without a label wait in the queue, the most informative first: see `samples W list --queue`, and label them
with `label W SAMPLE CLASS` from another terminal, while this goes on. Ctrl-C saves and ends; the same command continues.
"""
commands = new_commands()


def parse_period(text: str) -> dict[str, int]:
    """The settings that `--publish-every` stands for.

    >>> parse_period("200steps")
    {'publish_seconds': 0, 'publish_steps': 200}
    """
    match = re.fullmatch(r"([1-9]\d{0,8})(s|steps)|never", text)
    if match is None:
        raise UserError(f"--publish-every {text}: write it like 60s or 200steps, or never")
    number = int(match[1] or 0)
    return {"publish_seconds": number * (match[2] == "s"), "publish_steps": number * (match[2] == "steps")}


@commands.command(epilog=examples(EXAMPLES))
def learn(
    workspace: Annotated[Path, Option(metavar="W", help="its folder; made if missing")],
    source: Annotated[str, Option(metavar="SRC", envvar=SOURCE_VARIABLE, help=KINDS)],
    labels: Annotated[
        str, Option(help=f"{' or '.join(LABELS)}: whether sub-folders name the classes")
    ] = "none",
    fps: Annotated[float | None, Option(metavar="N", help="speed of a folder, video or workbench")] = None,
    seconds: Annotated[
        float | None, Option(metavar="N", help="stop after so many seconds", show_default="never")
    ] = None,
    settings: Annotated[
        list[str] | None,
        Option("--set", metavar="KEY=VALUE", help="change a setting for good; docs/settings.md has them"),
    ] = None,
    publish_every: Annotated[
        str | None,
        Option(metavar="60s|200steps|never", help="publish new versions automatically; kept in the settings"),
    ] = None,
    no_rehearsal: Annotated[
        bool,
        Option("--no-rehearsal", help="end after the last label, without further replay"),
    ] = False,
) -> int:
    """Learn in a workspace from a source, until it ends or Ctrl-C."""
    from edge_hpcr.live import session  # torch takes seconds, and --help needs none

    if seconds is not None:
        check_positive("--seconds", seconds)
    changes = dict(map(parse_setting, settings or []))
    if publish_every is not None:
        changes |= parse_period(publish_every)
    return session.learn(
        workspace,
        source,
        _publishing,
        labels=labels,
        fps=fps,
        seconds=seconds,
        changes=changes,
        rehearse=not no_rehearsal,
    )


@contextmanager
def _publishing(live: LiveLearner) -> Iterator[None]:
    """Publish by itself while it learns, if the settings ask for it, and at the end what was learned last."""
    settings = live.workspace.settings
    if not (settings.publish_steps or settings.publish_seconds):
        yield  # ONNX takes a second, and a plain `learn` needs none
        return
    from export.publish.publish import Publisher

    publisher, finished = Publisher(live, _say), False
    publisher.start()
    try:
        yield
        finished = not live.failed
    finally:
        publisher.stop(publish=finished)


def _say(sentence: str) -> None:
    print(f"edge_hpcr: {sentence}", file=sys.stderr, flush=True)
