"""`python -m edge_hpcr sweep`: many runs of the benchmark, on this machine or on a Ray cluster."""

from collections import Counter
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import closing, contextmanager
from functools import partial
from pathlib import Path
from typing import Annotated, TypeAlias

from typer import Argument, Option

from edge_hpcr.bench import datasets as data
from edge_hpcr.bench.local_runner import BEGUN, DONE, INTERRUPTED, WRONG_INPUT, Event, of_disk, run_here
from edge_hpcr.bench.ray_runner import run_on_ray
from edge_hpcr.bench.run import Interrupted, finished_result, forget, interrupt, on_stop_signal
from edge_hpcr.bench.run_config import RunConfig
from edge_hpcr.bench.sweep import read
from edge_hpcr.commands.cli import (
    DatasetRoot,
    Fresh,
    ResultFolder,
    examples,
    make_writable,
    new_commands,
    say,
)
from edge_hpcr.common.errors import Failed, UserError
from edge_hpcr.learner import checkpoint

Start: TypeAlias = Callable[[list[RunConfig]], Generator[Event | None]]
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
    gpus: Annotated[float, Option(min=0, metavar="N", help="GPUs of a run on Ray")] = 0.0,
    root: DatasetRoot = None,
    out: ResultFolder = Path("runs"),
    dry_run: Annotated[bool, Option("--dry-run", help="only list the runs and which are done")] = False,
    fresh: Fresh = False,
) -> int:
    """Make many runs of the split benchmark: a list of them, each of which can be stopped and continued."""
    if jobs is not None and ray is not None:
        raise UserError("--jobs goes without --ray: the cluster makes as many runs as it has room for")
    runs = read(file)
    if dry_run:
        _list_runs(runs, out)
        return 0
    start: Start
    if ray is None:
        start = partial(run_here, out=out, root=root, jobs=jobs)
    else:
        place = (root or data.default_root()).resolve()
        start = partial(run_on_ray, out=out, root=place, address=ray, gpus=gpus)
    return make(runs, out, root, fresh, start)


def make(runs: Sequence[RunConfig], out: Path, root: Path | None, fresh: bool, start: Start) -> int:
    """Make those of the runs that are not finished, with a line for each that ends; returns the exit code."""
    make_writable(out)
    for name in dict.fromkeys(run.dataset for run in runs):
        data.load(name, root)  # missing or damaged data: said once, before anything runs
    for run in runs if fresh else []:
        forget(run, out)
    left = [run for run in runs if finished_result(run, out) is None]
    done, failed, wrong = len(runs) - len(left), 0, 0
    if done:
        say(f"{done} of {len(runs)} runs finished earlier (--fresh makes them again)")
    with stoppable(fresh), on_stop_signal(interrupt), closing(start(left)) as events:
        for event in filter(None, events):
            name = event.run.name
            if event.continued:
                say(f"{name}: continued from its checkpoint")
            if event.state == DONE:
                done += 1
                result = finished_result(event.run, out)
                assert result is not None
                say(f"{name}: done, accuracy {result['A_T']:.1%}; {done} of {len(runs)} runs done")
            elif event.state == INTERRUPTED:  # by somebody else
                say(f"{name}: it was stopped, and saved itself")
            elif event.state != BEGUN:
                failed += 1
                wrong += event.state == WRONG_INPUT
                say(f"{name}: failed: {event.cause}")
    if wrong == len(runs):
        return 2
    if failed:
        say(f"{failed} of {len(runs)} runs failed; {again(fresh)} them")
    return 0 if done == len(runs) else 1


def again(fresh: bool) -> str:
    """How runs go on that were stopped."""
    return f"the same command{' without --fresh' if fresh else ''} continues"


@contextmanager
def stoppable(fresh: bool = False) -> Iterator[None]:
    """Say in one line what stopped runs, and that they continue."""
    try:
        yield
    except (Interrupted, KeyboardInterrupt):
        why = "stopped and saved"
    except checkpoint.CannotWrite as error:
        why = str(error)
    except OSError as error:
        why = of_disk(error)
    else:
        return
    raise Failed(f"{why}; {again(fresh)}")


def _list_runs(runs: list[RunConfig], out: Path) -> None:
    counts = Counter[str]()
    for run in runs:
        begun = checkpoint.exists(out / f"{run.name}.checkpoint")
        state = "done" if finished_result(run, out) else "begun" if begun else "waiting"
        counts[state] += 1
        print(f"{state:8}{run.name}")
    print(f"{len(runs)} runs: {', '.join(f'{count} {state}' for state, count in sorted(counts.items()))}")
