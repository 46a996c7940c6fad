"""`python -m edge_hpcr devices W`: which device runs which version, and when it was last heard of."""

import json
import time
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

from typer import Argument, Option

from edge_hpcr.commands.cli import examples, new_commands, table
from edge_hpcr.common.units import format_duration
from edge_hpcr.workspace.devices import SILENT_SECONDS, Device
from edge_hpcr.workspace.devices import devices as read_devices
from edge_hpcr.workspace.layout import Layout

EXAMPLES = f"""
examples:
  python -m edge_hpcr devices parts            a line for each device, with its last sign of life
  python -m edge_hpcr devices parts --json     [{{"id", "version", "since", "frames", "unknown", "last_seen", "silent", …}}]

Devices report by themselves to `learn --serve` or `export serve`; nothing asks them. Times are those of this machine. A
device is silent when nothing was heard of it for {format_duration(SILENT_SECONDS)}.
"""
HEAD = ["device", "version", "for", "frames", "unknown", "waiting", "last seen", "problem"]
SIDES = ["left", "right", "right", "right", "right", "right", "right", "left"]

commands = new_commands()


@commands.command(epilog=examples(EXAMPLES))
def devices(
    workspace: Annotated[Path, Argument(metavar="W", help="the workspace's folder")],
    as_json: Annotated[bool, Option("--json", help="as JSON")] = False,
) -> None:
    """List the devices that use a workspace's models: what each runs, since when, and when it was last heard of."""
    layout = Layout(workspace)
    layout.check_exists()
    found, now = read_devices(layout.devices), time.time()
    if as_json:
        print(json.dumps([facts(each, now) for each in found], ensure_ascii=False, indent=1))
    elif found:
        print(table(HEAD, [list(cells(each, now).values()) for each in found], SIDES))
    else:
        print(
            "no device has reported yet: they do when they are given models by `learn --serve` or `export serve`"
        )


def facts(device: Device, now: float) -> dict[str, object]:
    return {**asdict(device), "unknown_share": device.unknown_share, "silent": device.is_silent(now)}


def cells(device: Device, now: float) -> dict[str, str]:
    """What a table shows of a device; the app's is made of the same."""
    share = device.unknown_share
    seen = f"{format_duration(device.silent_for(now))} ago"
    dropped = f", {device.unsure_dropped:,} lost" if device.unsure_dropped else ""
    return {
        "Device": device.id,
        "Version": "none" if device.version is None else f"v{device.version}",
        "For": format_duration(max(0.0, now - device.since)),
        "Frames": f"{device.frames:,}",
        "Unknown": "" if share is None else f"{share:.1%}",
        "Frames waiting": f"{device.unsure_waiting:,}{dropped}",
        "Last sign of life": f"{seen}, silent" if device.is_silent(now) else seen,
        "Problem": device.problem or "",
    }
