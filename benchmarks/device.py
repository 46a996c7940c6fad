"""`PYTHONPATH=tests python -m benchmarks.device`: what a device pays in bytes; installs its packages anew."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Annotated

from device_parts import many_swaps, publish
from typer import Argument, Option

from benchmarks.runner import ROOT, Facts, run_parts
from edge_hpcr.commands import cli

LARGEST_MEGABYTES, LARGEST_GROWTH, SWAPS = 400.0, 0.05, 1000

commands = cli.new_commands()


@commands.command()
def device(
    part: Annotated[str, Argument(help="installation, swaps or all")] = "all",
    out: Annotated[Path, Option(metavar="FILE", help="where to keep it")] = Path("results/device.json"),
) -> int:
    """The bytes of a device's installation, and the memory after a thousand changes of the model."""
    return run_parts(part, {"installation": measure_installation, "swaps": measure_swaps}, out)


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


def measure_swaps(folder: Path) -> Facts:
    publish(folder / "exports", 1)
    facts = many_swaps(folder / "exports", SWAPS)
    growth = facts["after"] / facts["before"] - 1
    return {**facts, "growth": round(growth, 4), "passed": growth < LARGEST_GROWTH}


if __name__ == "__main__":
    sys.exit(cli.run(commands, "python -m benchmarks.device"))
