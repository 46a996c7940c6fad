"""Runs on this machine, a process each: what `bench` and `sweep` share."""

from __future__ import annotations

import multiprocessing
import os
import signal
import sys
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from multiprocessing import connection
from multiprocessing.process import BaseProcess
from pathlib import Path
from types import TracebackType

from edge_hpcr.bench.run import Interrupted, Run, RunConfig, finished_result
from edge_hpcr.common.errors import UserError
from edge_hpcr.common.files import Locked
from edge_hpcr.learner import checkpoint

# How a run ended; HELD is one that another process is making.
DONE, FAILED, WRONG_INPUT, INTERRUPTED, HELD = range(5)


@dataclass(frozen=True)
class Ended:
    """A run that is not running any more."""

    run: RunConfig
    code: int
    cause: str = ""  # one line, empty if it is done or was asked to stop


def of_disk(error: OSError) -> str:
    """What the disk refused, in one line."""
    return f"{error.strerror or error}{f': {error.filename}' if error.filename else ''}"


def outcome(work: Callable[[], object]) -> tuple[int, str]:
    """How a run ended that is made by calling `work`, and why."""
    try:
        work()
    except (Interrupted, KeyboardInterrupt):
        return INTERRUPTED, ""
    except Locked as error:
        return HELD, str(error)
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


class LocalRunner:
    """Starts runs in processes of their own, at most `jobs` at a time. At its end, those that still run are stopped.

    A process is spawned, not forked: PyTorch's threads do not survive a fork.
    """

    def __init__(self, out: Path, root: Path | None, jobs: int, quiet: bool = False) -> None:
        self.at_a_time = jobs
        self._out, self._root, self._quiet = out, root, quiet
        self._context = multiprocessing.get_context("spawn")
        self._processes: dict[BaseProcess, tuple[RunConfig, connection.Connection]] = {}
        self._started = 0

    def __enter__(self) -> LocalRunner:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for process in self._processes:
            process.terminate()  # a run saves itself and ends
        for process in self._processes:
            process.join()

    @property
    def running(self) -> list[RunConfig]:
        return [run for run, _ in self._processes.values()]

    @property
    def has_room(self) -> bool:
        return len(self._processes) < self.at_a_time

    def start(self, run: RunConfig) -> None:
        mine, its = self._context.Pipe(duplex=False)
        process = self._context.Process(
            target=_work, args=(run, self._out, self._root, self._started, self._quiet, its)
        )
        self._started += 1
        # The process inherits it: a terminal's Ctrl-C is for this one, which asks the others by SIGTERM.
        before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
        try:
            process.start()
            self._processes[process] = (run, mine)
        finally:
            its.close()
            signal.pthread_sigmask(signal.SIG_SETMASK, before)

    def wait(self, seconds: float | None = None) -> list[Ended]:
        """The runs that ended; waits for the first of them, or so long."""
        connection.wait([process.sentinel for process in self._processes], seconds)
        ended = [process for process in self._processes if process.exitcode is not None]
        return [self._end(process) for process in ended]

    def _end(self, process: BaseProcess) -> Ended:
        run, pipe = self._processes.pop(process)
        code = process.exitcode or DONE
        with pipe:
            try:
                cause = pipe.recv()
            except EOFError:  # it could not even say why
                cause = f"its process died with exit code {code}"
                if code < 0:
                    cause = f"its process was killed by {signal.Signals(-code).name}; is there enough memory?"
                code = FAILED
        process.close()
        return Ended(run, code, cause)


def _work(
    run: RunConfig, out: Path, root: Path | None, position: int, quiet: bool, report: connection.Connection
) -> None:
    if quiet:
        sys.stderr = Path(os.devnull).open("w")  # noqa: SIM115 (until the process ends)
    code, cause = outcome(
        lambda: finished_result(run, out) or Run(run, out, root).run(position, skip_done=True)
    )
    report.send(cause)
    sys.exit(code)
