"""Runs on this machine, a process each: what `bench` and `sweep` share."""

from __future__ import annotations

import multiprocessing
import os
import signal
import traceback
from collections import deque
from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass
from multiprocessing import connection
from multiprocessing.context import SpawnProcess
from pathlib import Path

from edge_hpcr.bench.run import Interrupted, Run, finished_result
from edge_hpcr.bench.run_config import RunConfig
from edge_hpcr.common.errors import UserError
from edge_hpcr.learner import checkpoint

REFRESH_SECONDS = 1.0
# What becomes of a run.
BEGUN, DONE, FAILED, WRONG_INPUT, INTERRUPTED = "begun", "done", "failed", "wrong", "stopped"


@dataclass(frozen=True)
class Event:
    """A run begins, or has ended."""

    run: RunConfig
    state: str
    cause: str = ""  # one line, empty if it is done or was asked to stop
    continued: bool = False  # on another node of a cluster


def of_disk(error: OSError) -> str:
    """What the disk refused, in one line."""
    return f"{error.strerror or error}{f': {error.filename}' if error.filename else ''}"


def outcome(work: Callable[[], object]) -> tuple[str, str]:
    """How a run ended that is made by calling `work`, and why."""
    try:
        work()
    except (Interrupted, KeyboardInterrupt):
        return INTERRUPTED, ""
    except checkpoint.CannotWrite as error:
        return FAILED, str(error)
    except UserError as error:
        return WRONG_INPUT, str(error)
    except OSError as error:
        return FAILED, of_disk(error)
    except Exception as error:  # whatever one run dies of, the others go on and it is said
        traceback.print_exc()
        return FAILED, " ".join(f"{type(error).__name__}: {error}".split())
    return DONE, ""


def run_here(
    runs: Sequence[RunConfig],
    out: Path,
    root: Path | None,
    jobs: int | None = None,
    niceness: int = 0,
) -> Generator[Event | None]:
    """Make the runs in processes of their own, at most `jobs` at a time (default: one per core); None every second.

    To close it asks those that still run to save themselves. A process is spawned, not forked: PyTorch's threads do not
    survive a fork.
    """
    if jobs is None:
        jobs = max(1, (os.cpu_count() or 1) // max((run.threads for run in runs), default=1))
    context = multiprocessing.get_context("spawn")
    waiting = deque(runs)
    processes: dict[SpawnProcess, tuple[RunConfig, connection.Connection]] = {}
    try:
        while waiting or processes:
            while waiting and len(processes) < jobs:
                run = waiting.popleft()
                mine, its = context.Pipe(duplex=False)
                process = context.Process(target=_work, args=(run, out, root, niceness, its))
                # The process inherits it: a terminal's Ctrl-C is for this one, which asks the others by SIGTERM.
                before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
                try:
                    process.start()
                    processes[process] = run, mine
                finally:
                    its.close()
                    signal.pthread_sigmask(signal.SIG_SETMASK, before)
                yield Event(run, BEGUN)
            connection.wait([process.sentinel for process in processes], REFRESH_SECONDS)
            for process in [process for process in processes if process.exitcode is not None]:
                run, mine = processes.pop(process)
                yield Event(run, *_ending(process, mine))
            yield None
    finally:
        for process in processes:
            process.terminate()
        for process in processes:
            process.join()


def _ending(process: SpawnProcess, pipe: connection.Connection) -> tuple[str, str]:
    code = process.exitcode or 0
    process.close()
    with pipe:
        try:
            state, cause = pipe.recv()
        except EOFError:  # it could not even say why
            killed = (
                f"was killed by {signal.Signals(-code).name}; is there enough memory?" if code < 0 else ""
            )
            return FAILED, f"its process {killed or f'died with exit code {code}'}"
    return state, cause


def _work(run: RunConfig, out: Path, root: Path | None, niceness: int, pipe: connection.Connection) -> None:
    os.nice(niceness)
    # A line per task says how far it is: several bars would write over each other.
    pipe.send(outcome(lambda: finished_result(run, out) or Run(run, out, root).run(bar=False)))
