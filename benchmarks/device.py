"""`python -m benchmarks.device`: what a device pays in bytes, and whether frames survive; installs its packages anew."""

import functools
import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Annotated

import httpx
from typer import Argument, Option

from benchmarks.product import command, free_port, running, set_up, until, write_tiles
from benchmarks.runner import ROOT, Facts, Out, run_parts
from edge_hpcr.commands import cli

LARGEST_MEGABYTES, AWAY_SECONDS = 400.0, 600.0
TOKEN = "a-token-for-the-benchmark"

commands = cli.new_commands()


@commands.command()
def device(
    part: Annotated[str, Argument(help="installation, away or all")] = "all",
    seconds: Annotated[float, Option(metavar="N", help="that the trainer is away")] = AWAY_SECONDS,
    out: Out = Path("results/machine/device.json"),
) -> int:
    """The bytes of a device's installation, and whether frames for a trainer that is away reach it afterwards."""
    parts = {
        "installation": measure_installation,
        "away": functools.partial(measure_away, seconds=seconds),
    }
    return run_parts(part, parts, out)


def measure_installation(folder: Path) -> Facts:
    """A new .venv with the device's packages, as `make install-device` makes it, and what is in it."""
    place = folder / "venv"
    subprocess.run([sys.executable, "-m", "venv", place], check=True)
    pip = [place / "bin" / "python", "-m", "pip", "install", "--quiet"]
    subprocess.run([*pip, "-r", ROOT / "export" / "requirements.txt"], check=True)
    # As the disk counts them: whole blocks, links not followed.
    blocks = sum(
        (Path(where) / name).lstat().st_blocks for where, _, names in os.walk(place) for name in names
    )
    megabytes = blocks * 512 / 1e6
    return {"megabytes": round(megabytes, 1), "passed": megabytes < LARGEST_MEGABYTES}


def published(folder: Path) -> Path:
    """A workspace with a small model."""
    write_tiles(folder / "pictures", 2, 5, 8)
    settings = {
        "backbone": "reduced_resnet18",
        "image_size": 8,
        "queue_samples": 10_000,
    }
    set_up(folder / "workspace", folder / "pictures", **settings)
    command("export", "--workspace", folder / "workspace", "--force")
    return folder / "workspace"


def measure_away(folder: Path, seconds: float) -> Facts:
    """A device whose trainer is away for so long: frames that it stored, and that the trainer has in the end."""
    workspace, token, port, served = published(folder), folder / "token", free_port(), free_port()
    token.write_text(TOKEN)
    device = (
        *("--models", workspace / "exports", "--source", "workbench", "--http", port, "--token", token),
        *("--cache", folder / "cache", "--send-unsure", f"http://127.0.0.1:{served}"),
        *("--device-id", "measured", "--unsure-below", "1", "--cpu", "--threads", "1"),
    )
    with running("export.runtime", *device, log=folder / "log"):
        until(lambda: _health(port), "the device")
        time.sleep(seconds)
        stored = _health(port)
        where = ("--workspace", workspace, "--port", served, "--token", token)
        with running("export", "serve", *where, log=folder / "served"):
            until(lambda: not _health(port)["unsure_waiting"], "the last frame", 120 + seconds)
    rows = json.loads(command("edge_hpcr", "samples", workspace, "list", "--json"))
    came = [row["digest"] for row in rows if row["origin"].startswith("device measured")]
    facts = {
        "seconds_away": seconds,
        "stored": stored["unsure_waiting"],
        "reached_the_trainer": len(came),
    }
    facts |= {"twice": len(came) - len(set(came)), "dropped": stored["unsure_dropped"]}
    return {
        **facts,
        "passed": 0 < facts["stored"] <= len(came) and not facts["twice"] and not facts["dropped"],
    }


def _health(port: int) -> Facts:
    """What a device says of itself; nothing while it starts."""
    try:
        headers = {"Authorization": f"Bearer {TOKEN}"}
        return dict(httpx.get(f"http://127.0.0.1:{port}/healthz", headers=headers, timeout=20).json())
    except httpx.HTTPError:
        return {}


if __name__ == "__main__":
    sys.exit(cli.run(commands, "python -m benchmarks.device"))
