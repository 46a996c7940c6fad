"""Measure what a device pays: the bytes of its installation, and the memory after a thousand changes of the model.

PYTHONPATH=tests python -m benchmarks.device --out results/device.json        some minutes; it installs the device's packages anew
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from device_parts import many_swaps, publish

from edge_hpcr.bench.run import hardware

ROOT = Path(__file__).parent.parent
LARGEST_MEGABYTES, LARGEST_GROWTH, SWAPS = 400.0, 0.05, 1000


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--out", type=Path, metavar="FILE", help="where the figures go, as JSON")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        parts = {"installation": measure_installation(Path(folder)), "swaps": measure_swaps(Path(folder))}
    report = parts | {"hardware": hardware(), "python": platform.python_version()}
    print(json.dumps(report, indent=1))
    if options.out:
        options.out.write_text(json.dumps(report, indent=1) + "\n")
    return 0 if all(part["passed"] for part in parts.values()) else 1


def measure_installation(folder: Path) -> dict[str, Any]:
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


def measure_swaps(folder: Path) -> dict[str, Any]:
    publish(folder / "exports", 1)
    facts = many_swaps(folder / "exports", SWAPS)
    growth = facts["after"] / facts["before"] - 1
    return {**facts, "growth": round(growth, 4), "passed": growth < LARGEST_GROWTH}


if __name__ == "__main__":
    raise SystemExit(main())
