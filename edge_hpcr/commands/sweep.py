"""`python -m edge_hpcr sweep`: many runs of the benchmark, on this machine or on a Ray cluster."""

import os
import sys
from collections import Counter
from collections.abc import Generator
from contextlib import closing
from pathlib import Path
from typing import Annotated

from typer import Argument, Option

from edge_hpcr.bench import datasets as data
from edge_hpcr.bench.local_runner import BEGUN, DONE, INTERRUPTED, Event, run_here
from edge_hpcr.bench.ray_runner import run_on_ray
from edge_hpcr.bench.run import finished_result, forget, interrupt, on_stop_signal
from edge_hpcr.bench.run_config import RunConfig
from edge_hpcr.bench.sweep import read
from edge_hpcr.commands.cli import (
    DatasetRoot,
    Fresh,
    ResultFolder,
    continues,
    examples,
    make_writable,
    new_commands,
)
from edge_hpcr.common.errors import UserError
from edge_hpcr.learner import checkpoint

EXAMPLES = """
examples:
  python -m edge_hpcr sweep benchmarks/sweeps/cifar10-200.yaml         a cell of the paper's table, every method
  python -m edge_hpcr sweep benchmarks/sweeps/paper.yaml               the paper's whole table
  python -m edge_hpcr sweep FILE --dry-run                             list the runs and which are done, and stop
  python -m edge_hpcr sweep FILE --ray 10.0.0.5:6379                   on a Ray cluster (docs/sweeps.md)

Runs that are done are skipped and runs that were stopped continue. `report` shows what is done at any moment.
"""
commands = new_commands()


@commands.command(epilog=examples(EXAMPLES))
def sweep(
    file: Annotated[Path, Argument(metavar="FILE", help="what to run, as YAML (docs/sweeps.md)")],
    jobs: Annotated[
        int | None, Option(min=1, metavar="N", help="runs at a time", show_default="one per core")
    ] = None,
    ray: Annotated[str | None, Option(metavar="ADDRESS", help="make the runs on a Ray cluster")] = None,
    gpus: Annotated[float, Option(min=0, metavar="N", help="of a run on Ray")] = 0.0,
    root: DatasetRoot = None,
    out: ResultFolder = Path("runs"),
    dry_run: Annotated[bool, Option("--dry-run", help="list the runs and which are done, and stop")] = False,
    fresh: Fresh = False,
) -> int:
    """Make many runs of the split benchmark: a list of them, each of which can be stopped and continued."""
    if jobs is not None and ray is not None:
        raise UserError("--jobs goes without --ray: the cluster makes as many runs as it has room for")
    runs = read(file)
    if dry_run:
        _list_runs(runs, out)
        return 0
    make_writable(out)
    for name in dict.fromkeys(run.dataset for run in runs):
        data.load(name, root)  # missing or damaged data: said once, before anything runs
    for run in runs if fresh else []:
        forget(run, out)
    left = [run for run in runs if finished_result(run, out) is None]
    if ray is None:
        most = max(run.threads for run in runs)
        events = run_here(left, out, root, jobs or max(1, (os.cpu_count() or 1) // most), quiet=True)
    else:
        events = run_on_ray(left, out, (root or data.default_root()).resolve(), ray, gpus)
    return _make(len(runs), len(runs) - len(left), events, out, continues(fresh))


def _make(count: int, done: int, events: Generator[Event | None], out: Path, how: str) -> int:
    """Make the runs, with a line for each that ends; returns the exit code. `how` says what to do to continue."""
    failed = 0
    if done:
        _say(f"{done} of {count} runs are done already")
    try:
        with on_stop_signal(interrupt), closing(events):
            for event in filter(None, events):
                name = event.run.name
                if event.continued:
                    _say(f"{name}: continued from its checkpoint")
                if event.state == DONE:
                    done += 1
                    result = finished_result(event.run, out)
                    assert result is not None
                    _say(f"{name}: done, accuracy {result['A_T']:.1%}; {done} of {count} runs done")
                elif event.state == INTERRUPTED:  # by somebody else
                    _say(f"{name}: it was stopped, and saved itself")
                elif event.state != BEGUN:
                    failed += 1
                    _say(f"{name}: failed: {event.cause}")
    except KeyboardInterrupt:
        _say(f"stopped and saved; {how}")
        return 1
    if failed:
        _say(f"{failed} of {count} runs failed; {how} them")
    _say(f"{done} of {count} runs are done")
    return 0 if done == count else 1


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def _list_runs(runs: list[RunConfig], out: Path) -> None:
    counts = Counter[str]()
    for run in runs:
        begun = checkpoint.exists(out / f"{run.name}.checkpoint")
        state = "done" if finished_result(run, out) else "begun" if begun else "waiting"
        counts[state] += 1
        print(f"{state:8}{run.name}")
    print(f"{len(runs)} runs: {', '.join(f'{count} {state}' for state, count in sorted(counts.items()))}")
