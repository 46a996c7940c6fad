"""Runs on a Ray cluster: each is a task that sends its checkpoints home. Ray starts a task again whose node died.

The sweep's own machine has a `Home`, which keeps what runs send in the result folder: a task that is started again
continues from the last checkpoint that was sent. Ray is an optional dependency (`pip install "edge-hpcr[ray]"`), imported
when it is asked for.
"""

from __future__ import annotations

import logging
import os
import platform
import signal
import socket
import tempfile
from collections.abc import Generator, Sequence
from contextlib import ExitStack, redirect_stdout
from pathlib import Path
from typing import Any

from edge_hpcr import __version__
from edge_hpcr.bench import datasets as data
from edge_hpcr.bench.local_runner import FAILED, INTERRUPTED, REFRESH_SECONDS, Event, outcome
from edge_hpcr.bench.run import Interrupted, Run, keep_result, locked_run
from edge_hpcr.bench.run_config import RunConfig
from edge_hpcr.common.errors import UserError
from edge_hpcr.common.files import reason_of
from edge_hpcr.learner import checkpoint

CONNECT_SECONDS = 5.0
STOP_SECONDS = 60.0  # for runs to save themselves
MOST_LOSSES = 10  # of one run: more is no bad luck


def run_on_ray(
    runs: Sequence[RunConfig], out: Path, root: Path, address: str, gpus: float
) -> Generator[Event | None]:
    """Make the runs on the cluster; None every second. To close it asks those that still run to save themselves.

    A node that differs ends the sweep: it would take one run after the other.
    """
    with ExitStack() as stack:
        ray = _connect(address, max((run.threads for run in runs), default=1), gpus, stack)
        home = _make_home(ray, out)
        # Each in a process of its own, so that the memory and the device it takes are its own.
        task = ray.remote(
            max_calls=1,
            max_retries=MOST_LOSSES,
            retry_exceptions=[Interrupted],  # of a node that was told to go
            num_gpus=gpus,
        )(work)
        flying = {
            task.options(num_cpus=run.threads).remote(run, root, home, __version__): run for run in runs
        }
        try:
            while flying:
                ended, _ = ray.wait(list(flying), timeout=REFRESH_SECONDS)
                for ref in ended:
                    yield _ending(ray, ref, flying.pop(ref))
                yield None
        finally:
            for ref in flying:
                ray.cancel(ref, recursive=False)  # as Ctrl-C: a run that has begun saves itself
            if flying:
                ray.wait(list(flying), num_returns=len(flying), timeout=STOP_SECONDS)


def _ending(ray: Any, ref: Any, run: RunConfig) -> Event:
    try:
        return Event(run, *ray.get(ref))
    except ray.exceptions.RayError as error:
        cause = getattr(error, "cause", None)
        if isinstance(cause, UserError):
            raise cause from None
        return Event(run, FAILED, _last_line(error))


def _connect(address: str, cpus: int, gpus: float, stack: ExitStack) -> Any:
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    try:
        import ray
    except ImportError:
        raise UserError('--ray needs the package ray: pip install "edge-hpcr[ray]"') from None
    _check_answers(address)
    # Ray prints what happens to its nodes to the output; it takes over SIGTERM, too.
    nowhere = stack.enter_context(Path(os.devnull).open("w"))  # noqa: SIM115 (closed with the stack)
    stack.enter_context(redirect_stdout(nowhere))
    stack.callback(signal.signal, signal.SIGTERM, signal.getsignal(signal.SIGTERM))
    try:
        ray.init(address=address, log_to_driver=False, logging_level=logging.ERROR)
    except (RuntimeError, ValueError, OSError) as error:  # a ConnectionError is an OSError
        raise UserError(
            f"--ray {address}: {_last_line(error)}; is Ray started on this machine, too?"
        ) from None
    stack.callback(ray.shutdown)
    nodes = [node["Resources"] for node in ray.nodes() if node["Alive"]]
    if not any(has.get("CPU", 0) >= cpus and has.get("GPU", 0) >= gpus for has in nodes):
        raise UserError(f"--ray {address}: no node has {cpus} CPUs and {gpus:g} GPUs; ask for less per run")
    return ray


def _check_answers(address: str) -> None:
    """Refuse an address that does not answer in seconds: Ray itself would try for minutes."""
    host, _, port = address.rpartition(":")
    try:
        socket.create_connection((host, int(port)), CONNECT_SECONDS).close()
    except ValueError:
        raise UserError(
            f"--ray {address!r}: write the address of a Ray cluster, like 10.0.0.5:6379"
        ) from None
    except (OSError, OverflowError) as error:
        raise UserError(
            f"--ray {address} does not answer ({reason_of(error)}): start it there with `ray start --head`"
        ) from None


def _last_line(error: Exception) -> str:
    return f"{type(error).__name__}: {(str(error).strip().splitlines() or [''])[-1]}"


def _make_home(ray: Any, out: Path) -> Any:
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    here = NodeAffinitySchedulingStrategy(ray.get_runtime_context().get_node_id(), soft=False)
    return ray.remote(num_cpus=0, scheduling_strategy=here)(Home).remote(out.resolve())


class Home:
    """An actor on the sweep's own machine: keeps what runs send in the result folder."""

    def __init__(self, out: Path) -> None:
        self._out = out
        self._begun: dict[str, ExitStack] = {}  # with the lock of each
        self._continued: set[str] = set()

    def begin(self, run: RunConfig) -> dict[str, bytes] | None:
        """The files of its checkpoint, if there is one. Until it ends no other process may make this run."""
        if run.name not in self._begun:  # else the node died that made it
            with ExitStack() as stack:
                stack.enter_context(locked_run(run, self._out))
                self._begun[run.name] = stack.pop_all()
        folder = self._out / f"{run.name}.checkpoint"
        if not checkpoint.exists(folder):
            return None
        self._continued.add(run.name)
        return checkpoint.pack(folder)

    def keep(self, run: RunConfig, saved: dict[str, bytes]) -> None:
        checkpoint.unpack(saved, self._out / f"{run.name}.checkpoint")

    def keep_result(self, run: RunConfig, result: dict[str, Any]) -> None:
        keep_result(run, self._out, result)

    def end(self, run: RunConfig) -> bool:
        """Whether the run had a checkpoint when it began."""
        if run.name in self._begun:
            self._begun.pop(run.name).close()
        return run.name in self._continued


# On a node ------------------------------------------------------------------------------------------------------------


def work(run: RunConfig, root: Path, home: Any, version: str) -> tuple[str, str, bool]:
    """Make a run on this machine: how it ended, why, and whether it was continued."""
    check_node(run.dataset, root, version)
    with tempfile.TemporaryDirectory(prefix="edge-hpcr-", ignore_cleanup_errors=True) as folder:
        state, cause = outcome(lambda: AwayRun(run, Path(folder), root, home).fetch_and_run())
    continued = ask(home, "end", run)
    if state == INTERRUPTED:
        raise Interrupted
    return state, cause, continued


def check_node(dataset: str, root: Path, version: str) -> None:
    """Refuse to run where the program differs, or the data are missing."""
    node = f"node {platform.node()}"
    if __version__ != version:
        raise UserError(f"{node} has edge_hpcr {__version__}, the sweep {version}: install the same there")
    try:
        data.load(dataset, root)
    except UserError as error:
        raise UserError(f"{node}: {error}") from None


class AwayRun(Run):
    """A run that sends home what it saves."""

    def __init__(self, config: RunConfig, out: Path, root: Path, home: Any) -> None:
        super().__init__(config, out, root)
        self._home = home

    def fetch_and_run(self) -> None:
        saved = ask(self._home, "begin", self.config)
        if saved is not None:
            checkpoint.unpack(saved, self.checkpoint_path)
        ask(self._home, "keep_result", self.config, self.run())

    def save(self) -> None:
        super().save()
        ask(self._home, "keep", self.config, checkpoint.pack(self.checkpoint_path))


def ask(home: Any, method: str, *what: Any) -> Any:
    """Call the home; what goes wrong there, like a full disk, goes wrong here."""
    import ray

    try:
        return ray.get(getattr(home, method).remote(*what))
    except ray.exceptions.RayTaskError as error:
        raise error.cause from None
