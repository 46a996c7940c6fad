"""`python -m edge_hpcr devices W`: which device runs which version, and when it was last heard of."""

import json
import time

from edge_hpcr.commands.cli import AsJson, W, new_commands, table
from edge_hpcr.common.units import format_duration
from edge_hpcr.workspace.devices import Device
from edge_hpcr.workspace.devices import devices as read_devices
from edge_hpcr.workspace.layout import Layout

commands = new_commands()


@commands.command()
def devices(workspace: W, as_json: AsJson = False) -> None:
    """List the devices that use a workspace's models, as they report to `export serve`."""
    layout = Layout(workspace)
    layout.check_exists()
    found, now = read_devices(layout.devices), time.time()
    if as_json:
        facts = [each.model_dump() | {"silent": each.is_silent(now)} for each in found]
        print(json.dumps(facts, ensure_ascii=False, indent=1))
    elif found:
        rows = [cells(each, now) for each in found]
        print(table([*rows[0]], [[*row.values()] for row in rows], ["left"] * len(rows[0])))
    else:
        print("no device has reported yet")


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
