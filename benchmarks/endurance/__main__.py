"""`python -m benchmarks.endurance`: answers while learning, hours of film, restarts; each against its bar."""

import importlib
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Annotated, Any

from tqdm import tqdm
from typer import Argument, Option

from benchmarks.endurance import Progress
from benchmarks.runner import QUICK_HELP, Facts, run_parts
from edge_hpcr.commands import cli

PARTS = ("latency", "restart", "soak")

commands = cli.new_commands()


@commands.command()
def endure(
    part: Annotated[str, Argument(help="latency, restart, soak or all")] = "all",
    frames: Annotated[
        int | None, Option(metavar="N", help="of film to soak in", show_default="200000")
    ] = None,
    seed: Annotated[int, Option(metavar="K")] = 0,
    quick: Annotated[bool, Option("--quick", help=QUICK_HELP)] = False,
    out: Annotated[Path, Option(metavar="FILE", help="where each part is kept beside the others")] = Path(
        "results/endurance.json"
    ),
) -> int:
    """Soak it and restart it: what a learner must endure, each part against its bar. 1 when one is missed."""
    plans = {"soak": frames}
    return run_parts(
        part, {name: partial(_measure, name, plans.get(name), seed, quick) for name in PARTS}, out
    )


def _measure(name: str, plan: Any, seed: int, quick: bool, folder: Path) -> Facts:
    module = importlib.import_module(f"benchmarks.endurance.{name}")  # PyTorch takes seconds, and --help none
    if plan is None:
        plan = module.QUICK if quick else module.PLAN
    with _progress(name) as progress:
        return module.measure(folder / "workspace", plan, seed, progress).facts()


@contextmanager
def _progress(name: str) -> Iterator[Progress]:
    # A line per minute in a log, a bar on a terminal; both with the time that is left.
    on_terminal = sys.stderr.isatty()
    with tqdm(
        desc=name, leave=False, mininterval=0.2 if on_terminal else 60, dynamic_ncols=on_terminal
    ) as bar:

        def show(done: int, total: int) -> None:
            bar.total = total
            bar.update(done - bar.n)

        yield show


if __name__ == "__main__":
    sys.exit(cli.run(commands, "python -m benchmarks.endurance"))
