"""`PYTHONPATH=tests python -m benchmarks.device`: what a device pays in bytes; installs its packages anew."""

from __future__ import annotations

import functools
import os
import re
import signal
import subprocess
import sys
import time
import urllib.request
from pathlib import Path
from typing import Annotated

from device_parts import many_swaps, publish
from trainer_parts import TOKEN, trainer
from typer import Argument, Option

from benchmarks.runner import ROOT, Facts, run_parts
from edge_hpcr.commands import cli

LARGEST_MEGABYTES, LARGEST_GROWTH, SWAPS = 400.0, 0.05, 1000
AWAY_SECONDS = 600.0

commands = cli.new_commands()


@commands.command()
def device(
    part: Annotated[str, Argument(help="installation, swaps, away or all")] = "all",
    seconds: Annotated[float, Option(metavar="N", help="that the trainer is away")] = AWAY_SECONDS,
    out: Annotated[Path, Option(metavar="FILE", help="where to keep it")] = Path("results/device.json"),
) -> int:
    """The bytes of a device's installation, the memory after a thousand changes of the model, and whether frames for a
    trainer that is away reach it afterwards.
    """
    away = functools.partial(measure_away, seconds=seconds)
    return run_parts(part, {"installation": measure_installation, "swaps": measure_swaps, "away": away}, out)


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


def measure_away(folder: Path, seconds: float) -> Facts:
    """A runtime whose trainer is away for so long: frames that it stored, and that the trainer has in the end."""
    publish(folder / "exports", 1)
    (folder / "token").write_text(TOKEN)
    with trainer() as gone:
        port = gone.server_address[1]
    options = [
        *(
            "--models",
            folder / "exports",
            "--source",
            "workbench",
            "--http",
            "0",
            "--cache",
            folder / "cache",
        ),
        *(
            "--send-unsure",
            f"http://127.0.0.1:{port}",
            "--token",
            folder / "token",
            "--device-id",
            "measured",
        ),
        *("--unsure-below", "1", "--cpu", "--threads", "1"),
    ]
    command = [sys.executable, "-m", "export.runtime", *map(str, options)]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE) as runtime:
        try:
            url = next(
                match[1] for line in runtime.stderr or () if (match := re.search(rb"is at (\S+)", line))
            )
            time.sleep(seconds)
            stored = _metrics(url.decode())
            with trainer(port=port) as back:
                deadline = time.monotonic() + 60 + seconds
                while _metrics(url.decode())["unsure_waiting"] and time.monotonic() < deadline:
                    time.sleep(1.0)
                runtime.send_signal(signal.SIGTERM)
                runtime.wait(60)
        finally:
            runtime.kill()
    kept, twice = len(back.frames), len(back.asked) - len(set(back.asked))
    facts = {"seconds_away": seconds, "stored": int(stored["unsure_waiting"]), "reached_the_trainer": kept}
    facts |= {"sent_twice": twice, "dropped": int(stored["unsure_dropped_total"])}
    return {**facts, "passed": 0 < facts["stored"] <= kept and not twice and not facts["dropped"]}


def _metrics(url: str) -> dict[str, float]:
    with urllib.request.urlopen(f"{url}metrics", timeout=20) as reply:
        text = reply.read().decode()
    return {
        name: float(value) for name, value in re.findall(r"(?m)^edge_hpcr_device_(\w+)\{.*\} (\S+)$", text)
    }


if __name__ == "__main__":
    sys.exit(cli.run(commands, "python -m benchmarks.device"))
