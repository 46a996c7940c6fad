"""`python -m edge_hpcr sweep`: many runs of the benchmark, on this machine or on a Ray cluster, with a live table."""

import os
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Annotated

from rich.console import Console
from rich.live import Live
from rich.table import Table
from typer import Argument, Option

from edge_hpcr.bench import datasets as data
from edge_hpcr.bench import presets, sweep_state
from edge_hpcr.bench import sweep as asked
from edge_hpcr.bench.local_runner import LocalRunner
from edge_hpcr.bench.ray_runner import RayOptions, RayRunner
from edge_hpcr.bench.run import RunConfig, forget, interrupt, on_stop_signal
from edge_hpcr.bench.sweep_state import Row, Runner, Sweep
from edge_hpcr.commands.bench import configure
from edge_hpcr.commands.cli import (
    DatasetRoot,
    Device,
    Fresh,
    ResultFolder,
    continues,
    examples,
    make_writable,
    new_commands,
    table,
)
from edge_hpcr.common.errors import UserError, one_of
from edge_hpcr.common.files import disk_errors, locked
from edge_hpcr.common.units import format_duration

EXAMPLES = """
examples:
  python -m edge_hpcr sweep benchmarks/sweeps/cifar10-200.yaml         a cell of the paper's table, every method
  python -m edge_hpcr sweep --preset paper/accuracy --datasets cifar10,cifar100 --seeds 3
  python -m edge_hpcr sweep FILE --dry-run                             list the runs, and stop
  python -m edge_hpcr sweep FILE --ray 10.0.0.5:6379                   on a Ray cluster (docs/sweeps.md)

Runs that are done are skipped and runs that were stopped continue. `report` shows what is done at any moment.
"""
# Those that a person looks for come first when the terminal is too small for all.
_ORDER = (
    sweep_state.RUNNING,
    sweep_state.FAILED,
    sweep_state.ELSEWHERE,
    sweep_state.BEGUN,
    sweep_state.WAITING,
    sweep_state.ENDED,
)
_HEAD = ["run", "state", "progress", "accuracy", "left"]
_SIDES = ["left", "left", "right", "right", "right"]

commands = new_commands()


@commands.command(epilog=examples(EXAMPLES))
def sweep(
    file: Annotated[
        Path | None, Argument(metavar="FILE", help="what to run, as YAML (docs/sweeps.md)")
    ] = None,
    preset: Annotated[
        str | None,
        Option(metavar="NAME", help=f"instead of a file: {asked.ACCURACY}, the paper's whole table"),
    ] = None,
    datasets: Annotated[
        str | None, Option(metavar="NAME,…", help="of the preset", show_default=", ".join(presets.BUFFERS))
    ] = None,
    seeds: Annotated[
        int | None,
        Option(min=1, max=asked.MOST_SEEDS, metavar="N", help="of the preset: 0 to N-1", show_default="1"),
    ] = None,
    jobs: Annotated[
        int | None, Option(min=1, metavar="N", help="runs at a time", show_default="one per core")
    ] = None,
    threads: Annotated[
        int | None, Option(min=1, metavar="N", help="of a run", show_default="the file's, or 1")
    ] = None,
    device: Device = "auto",
    ray: Annotated[
        str | None, Option(metavar="ADDRESS", help="make the runs on a Ray cluster; local: a Ray of its own")
    ] = None,
    cpus: Annotated[
        int | None, Option(min=1, metavar="N", help="of a run on Ray", show_default="its threads")
    ] = None,
    gpus: Annotated[
        float | None, Option(min=0, metavar="N", help="of a run on Ray", show_default="0")
    ] = None,
    shared: Annotated[
        bool, Option("--shared", help="every node of the cluster has the folder --out; else results are sent")
    ] = False,
    root: DatasetRoot = None,
    out: ResultFolder = Path("runs"),
    dry_run: Annotated[bool, Option("--dry-run", help="list the runs and what is done, and stop")] = False,
    fresh: Fresh = False,
) -> int:
    """Make many runs of the split benchmark: a list of them, each of which can be stopped and continued."""
    if ray is None:
        for name, value in (("--cpus", cpus), ("--gpus", gpus), ("--shared", shared or None)):
            if value is not None:
                raise UserError(f"{name} goes with --ray")
    options = ["--device", device, *(["--threads", str(threads)] if threads else [])]
    runs = _runs(file, preset, datasets, seeds, options)
    if dry_run:
        if fresh:
            raise UserError("--dry-run changes nothing, and --fresh forgets runs: leave one of them out")
        _list_runs(Sweep(runs, out))
        return 0
    make_writable(out)
    _check_data(runs, root, "--datasets NAME,… leaves it out" if preset else f"take it out of {file}")
    with ExitStack() as stack:
        with disk_errors(f"cannot write results to {out}", "make room, or choose another --out"):
            refusal = f"another sweep works in {out}: wait for it, or choose another --out"
            stack.enter_context(locked(out / sweep_state.LOCK, refusal, remove=True))
            for run in runs if fresh else []:
                forget(run, out)
        state = Sweep(runs, out)
        most = max(run.threads for run in runs)
        if ray is None:
            runner: Runner = LocalRunner(out, root, jobs or max(1, (os.cpu_count() or 1) // most), quiet=True)
        else:
            cluster = RayOptions(ray, cpus or most, gpus or 0.0, jobs, shared)
            runner = RayRunner(cluster, runs, out, root, sweep_state.LOCK, _say)
        return _make(state, runner, continues(fresh))


def _runs(
    file: Path | None, preset: str | None, datasets: str | None, seeds: int | None, options: list[str]
) -> list[RunConfig]:
    if preset is None:
        for name, value in (("--datasets", datasets), ("--seeds", seeds)):
            if value is not None:
                raise UserError(f"{name} goes with --preset: a file names its own")
        if file is None:
            raise UserError(
                f"name a file (docs/sweeps.md), or the paper's table with --preset {asked.ACCURACY}"
            )
        return asked.read(file, configure, options)
    if file is not None:
        raise UserError(f"both {file} and --preset {preset}: leave one of them out")
    one_of("preset", preset, [asked.ACCURACY])
    chosen = list(presets.BUFFERS) if datasets is None else [each.strip() for each in datasets.split(",")]
    for name in chosen:
        one_of("dataset", name, presets.BUFFERS)
    return asked.paper_table(chosen, seeds or 1, configure, options)


def _check_data(runs: list[RunConfig], root: Path | None, otherwise: str) -> None:
    """Missing or damaged data: said once, before anything runs."""
    needed = list(dict.fromkeys(run.dataset for run in runs))
    missing = [name for name in needed if not data.is_here(name, root)]
    if missing:
        where = "" if root is None else f" --root {root}"
        fetch = " and ".join(f"`python -m edge_hpcr data get {name}{where}`" for name in missing)
        raise UserError(f"not fetched: {', '.join(missing)}; fetch with {fetch}, or {otherwise}")
    for name in needed:
        data.load(name, root)


def _make(state: Sweep, runner: Runner, how: str) -> int:
    """Make the runs; returns the exit code. `how` says what to do to continue."""
    already = len(state.having(sweep_state.ENDED))
    if already:
        _say(f"{already} of {len(state.rows)} runs are done already")
    try:
        with on_stop_signal(interrupt), _display(state, runner) as show, runner:
            state.make(runner, show)
    except KeyboardInterrupt:
        _say(f"stopped and saved; {how}")
        return 1
    state.look_elsewhere()
    held, failed = state.having(sweep_state.ELSEWHERE), state.having(sweep_state.FAILED)
    if held:
        names = ", ".join(row.name for row in held)
        _say(f"{len(held)} of the runs {_is_are(held)} being made by another process: {names}")
    if failed:
        _say(f"{len(failed)} of {len(state.rows)} runs failed; {how} them")
    done = len(state.having(sweep_state.ENDED))
    _say(f"{done} of {len(state.rows)} runs are done")
    return 0 if done == len(state.rows) else 1


def _is_are(rows: list[Row]) -> str:
    return "is" if len(rows) == 1 else "are"


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


@contextmanager
def _display(state: Sweep, runner: Runner) -> Iterator[Callable[[Row | None], None]]:
    """A table that is kept up to date in a terminal, and elsewhere a line for each run that ended."""
    console = Console(stderr=True)

    def line(row: Row | None) -> None:
        if row is not None:
            _say(_ended_line(state, row, runner.at_a_time))

    if not console.is_terminal:
        yield line
        return
    with Live(console=console, auto_refresh=False) as live:

        def refresh(row: Row | None) -> None:
            if row is not None and row.cause:  # stays above the table
                live.console.print(f"{row.name}: {row.cause}", markup=False, highlight=False)
            live.update(_live_table(state, runner.at_a_time, console.height - 4), refresh=True)

        refresh(None)
        yield refresh


def _ended_line(state: Sweep, row: Row, at_a_time: int) -> str:
    if row.state != sweep_state.ENDED:
        return f"{row.name}: {row.state}: {row.cause}"
    return f"{row.name}: {row.state}, accuracy {_percent(row.accuracy)}; {_summary(state, at_a_time)}"


def _summary(state: Sweep, at_a_time: int) -> str:
    left = state.seconds_left(at_a_time)
    time_left = "" if not left else f", about {format_duration(left)} left"
    return f"{len(state.having(sweep_state.ENDED))} of {len(state.rows)} runs done{time_left}"


def _live_table(state: Sweep, at_a_time: int, height: int) -> Table:
    shown = Table(caption=_summary(state, at_a_time), box=None, caption_justify="left")
    for name, side in zip(_HEAD, _SIDES, strict=True):
        shown.add_column(name, justify="right" if side == "right" else "left", no_wrap=True)
    rows = sorted(state.rows, key=lambda row: _ORDER.index(row.state))
    for row in rows[: max(1, height)]:
        shown.add_row(*_cells(row))
    return shown


def _cells(row: Row) -> list[str]:
    left = "" if row.seconds_left is None else format_duration(row.seconds_left)
    progress = f"{row.share:.0%}" if row.share else ""
    return [row.name, row.state, progress, _percent(row.accuracy), left]


def _percent(share: float | None) -> str:
    return "" if share is None else f"{100 * share:.1f} %"


def _list_runs(state: Sweep) -> None:
    print(table(_HEAD, [_cells(row) for row in state.rows], _SIDES))
    counts = ", ".join(f"{len(rows)} {name}" for name in _ORDER if (rows := state.having(name)))
    print(f"{len(state.rows)} runs: {counts}")
