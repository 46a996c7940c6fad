"""Runs on a Ray cluster: each is a task; one whose machine dies continues from its checkpoint on another.

Ray is an optional dependency (`pip install "edge-hpcr[ray]"`), imported when it is asked for.
"""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import ExitStack, redirect_stdout
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any

from edge_hpcr.bench import datasets as data
from edge_hpcr.bench import ray_worker
from edge_hpcr.bench.local_runner import DONE, FAILED, HELD, INTERRUPTED, Ended
from edge_hpcr.bench.ray_worker import Place, difference, facts
from edge_hpcr.bench.run import RunConfig, finished_result, locked_run
from edge_hpcr.common.errors import UserError
from edge_hpcr.common.files import Locked, reason_of
from edge_hpcr.learner import checkpoint

LOCAL = "local"
CONNECT_SECONDS = 5.0
ANSWER_SECONDS = 60.0  # for Ray to be imported on a busy machine, and to say that it is Ray
ASK_SECONDS = 300.0  # for a node to import PyTorch and answer
STOP_SECONDS = 60.0  # for runs to save themselves
MOST_LOSSES = 10  # of one run: more is no bad luck
NODE_LABEL = "ray.io/node-id"  # which Ray gives to every node


@dataclass(frozen=True)
class RayOptions:
    """What the command line says about the cluster."""

    address: str
    cpus: int  # per run
    gpus: float = 0.0
    jobs: int | None = None  # at a time, at most
    shared: bool = False  # every machine has the result folder


class RayRunner:
    """Hands runs to a cluster, as `LocalRunner` does to processes. It connects when it is made."""

    def __init__(
        self,
        options: RayOptions,
        runs: Sequence[RunConfig],
        out: Path,
        root: Path | None,
        lock: str,
        say: Callable[[str], None],
    ) -> None:
        self._options, self._out, self._lock, self._say = options, out.resolve(), lock, say
        shared = options.shared or options.address == LOCAL
        self._place = Place(
            root and root.resolve(), data.default_root().resolve(), self._out if shared else None
        )
        self._flying: dict[Any, tuple[RunConfig, frozenset[str]]] = {}  # and the nodes that may make it
        self._waiting: list[RunConfig] = []  # lost ones, for a node that can make them
        self._good: set[str] = set()  # nodes that have this code and these data
        self._left_out: set[str] = set()
        self._asked: dict[Any, dict[str, Any]] = {}  # nodes that joined, by what they will answer
        self._losses: Counter[str] = Counter()
        self._locks: dict[str, ExitStack] = {}
        self._refused: list[Ended] = []
        self.at_a_time = 0
        self._stack = ExitStack()
        try:
            self._ray = self._connect()
            datasets = list(dict.fromkeys(run.dataset for run in runs))
            self._expected = facts(self._place, datasets, lock)
            self._question = self._ray.remote(_question(self._place, datasets, lock))
            self._check_nodes()
            self._collector = self._make_collector()
            # Each in a process of its own, so that the memory and the device it takes are its own; lost ones are started
            # again here and not by Ray, with the checkpoint they have by then.
            alone = {"max_calls": 1, "max_retries": 0, "num_cpus": options.cpus, "num_gpus": options.gpus}
            self._task = self._ray.remote(**alone)(ray_worker.work)
        except BaseException:
            self._stack.close()
            raise

    def __enter__(self) -> RayRunner:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with self._stack:
            if self._flying:
                self._ray.get(self._collector.stop.remote())
                refs = list(self._flying)
                self._ray.wait(refs, num_returns=len(refs), timeout=STOP_SECONDS)

    @property
    def running(self) -> list[RunConfig]:
        return [run for run, _ in self._flying.values()] + self._waiting

    @property
    def has_room(self) -> bool:
        return len(self.running) < self.at_a_time

    def start(self, run: RunConfig) -> None:
        """Hand a run to the cluster; what is wrong with its files here ends this run and no other."""
        try:
            self._start(run)
        except (OSError, UserError) as error:
            reason = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
            self._refused.append(Ended(run, FAILED, reason))

    def _start(self, run: RunConfig) -> None:
        if self._place.shared is None and run.name not in self._locks and not self._hold(run):
            return
        saved = None
        begun = self._out / f"{run.name}.checkpoint"
        if self._place.shared is None and checkpoint.exists(begun):
            saved = checkpoint.pack(begun)
        nodes = frozenset(node["NodeID"] for node in self._good_nodes())
        # Not on a node that joins later: it may be a bad one.
        task = self._task.options(label_selector={NODE_LABEL: f"in({','.join(sorted(nodes))})"})
        ref = task.remote(run, self._place, self._collector, self._expected, self._lock, saved)
        self._flying[ref] = run, nodes

    def _hold(self, run: RunConfig) -> bool:
        """Lock a run here if its machine cannot, because it writes elsewhere; False if another process has it."""
        held = ExitStack()
        try:
            held.enter_context(locked_run(run, self._out))
        except Locked as error:
            self._refused.append(Ended(run, HELD, str(error)))
            return False
        self._locks[run.name] = self._stack.enter_context(held)
        return True

    def wait(self, seconds: float | None = None) -> list[Ended]:
        """The runs that ended; waits for the first of them, or so long. Runs that lost their machine start again."""
        self._take_in_nodes()
        self._count_room()
        while self._waiting and len(self._flying) < self.at_a_time:
            self.start(self._waiting.pop(0))
        if self._refused:
            refused, self._refused = self._refused, []
            return refused
        self._give_up_nodes()
        if not self._flying:
            time.sleep(seconds or 0.0)
            return []
        done, _ = self._ray.wait(list(self._flying), timeout=seconds)
        all_ended = [ended for ref in done if (ended := self._end(ref)) is not None]
        for ended in all_ended:
            self._locks.pop(ended.run.name, ExitStack()).close()
        return all_ended

    def _end(self, ref: Any) -> Ended | None:
        from ray import exceptions

        run, _ = self._flying.pop(ref)
        lost = (
            exceptions.TaskCancelledError,
            exceptions.NodeDiedError,
            exceptions.WorkerCrashedError,
            exceptions.LocalRayletDiedError,
            exceptions.OutOfMemoryError,
        )
        try:
            code, cause, begun_at = self._ray.get(ref)
        except exceptions.TaskUnschedulableError:  # its node died before it began
            self._waiting.append(run)
            return None
        except lost as error:
            return self._again(run, type(error).__name__)
        except exceptions.RayError as error:
            return Ended(run, FAILED, f"{type(error).__name__}: {str(error).strip().splitlines()[-1]}")
        if (
            code == INTERRUPTED
        ):  # not by this sweep, which looks at no run that it stops: its node was told to go
            return self._again(run, "a request to stop")
        if begun_at and not cause:
            self._say(f"{run.name}: continued at step {begun_at}")
        return Ended(run, code, cause)

    def _again(self, run: RunConfig, reason: str) -> Ended | None:
        """Start a run again that lost its node, unless it is done or has been lost too often."""
        if finished_result(run, self._out) is not None:
            return Ended(run, DONE)  # it was the last that its machine did
        self._losses[run.name] += 1
        if self._losses[run.name] > MOST_LOSSES:
            return Ended(run, FAILED, f"lost {MOST_LOSSES + 1} times, last by {reason}")
        self._say(f"{run.name}: its node or process died; it starts again where it was saved last")
        self._waiting.append(run)
        return None

    def _connect(self) -> Any:
        os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
        try:
            import ray
        except ImportError:
            raise UserError('--ray needs the package ray: pip install "edge-hpcr[ray]"') from None
        address = self._options.address
        quiet: dict[str, Any] = {"log_to_driver": False, "logging_level": "ERROR"}
        # Ray prints what happens to its nodes to the output; it takes over SIGTERM, too.
        nowhere = self._stack.enter_context(Path(os.devnull).open("w"))  # noqa: SIM115 (closed with the stack)
        self._stack.enter_context(redirect_stdout(nowhere))
        self._stack.callback(signal.signal, signal.SIGTERM, signal.getsignal(signal.SIGTERM))
        if address == LOCAL:
            jobs = self._options.jobs
            cpus = None if jobs is None else jobs * self._options.cpus
            ray.init(address=LOCAL, num_cpus=cpus, include_dashboard=False, **quiet)
        else:
            _check_answers(address)
            try:
                ray.init(address=address, **quiet)
            except (RuntimeError, ValueError, OSError) as error:  # a ConnectionError is an OSError
                reason = str(error).strip().splitlines()[0]
                raise UserError(f"--ray {address}: {reason}; is Ray started on this machine, too?") from None
        self._stack.callback(ray.shutdown)
        return ray

    def _nodes(self) -> list[dict[str, Any]]:
        """The living nodes that can make a run by their size."""
        return [node for node in self._ray.nodes() if node["Alive"] and self._room(node)]

    def _good_nodes(self) -> list[dict[str, Any]]:
        return [node for node in self._nodes() if node["NodeID"] in self._good]

    def _room(self, node: dict[str, Any]) -> int:
        has, options = node["Resources"], self._options
        room = int(has.get("CPU", 0) // options.cpus)
        return min(room, int(has.get("GPU", 0) // options.gpus)) if options.gpus else room

    def _count_room(self) -> None:
        had, now = self.at_a_time, sum(map(self._room, self._good_nodes()))
        self.at_a_time = min(now, self._options.jobs or now)
        if had and not now:
            self._say("no node is left that can make a run: waiting for one")

    def _check_nodes(self) -> None:
        """Every node has this code and these data; else nothing starts."""
        nodes = self._nodes()
        if not nodes:
            asked = f"{self._options.cpus} CPUs and {self._options.gpus:g} GPUs"
            raise UserError(f"--ray {self._options.address}: no node has {asked}; ask for less per run")
        for answer, node in [(self._ask(node), node) for node in nodes]:
            if problem := self._problem(node, answer):
                raise UserError(problem)
            self._good.add(node["NodeID"])
        self._count_room()

    def _ask(self, node: dict[str, Any]) -> Any:
        from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

        there = NodeAffinitySchedulingStrategy(node["NodeID"], soft=False)
        return self._question.options(num_cpus=0, scheduling_strategy=there).remote()

    def _problem(self, node: dict[str, Any], answer: Any) -> str | None:
        """Why a node cannot make the runs, by what it answers."""
        name = node["NodeManagerHostname"]
        try:
            return difference(name, self._expected, self._ray.get(answer, timeout=ASK_SECONDS))
        except self._ray.exceptions.RayError as error:
            reason = str(error).strip().splitlines()[-1]
            return f"node {name} cannot be asked what it has: {reason}"

    def _take_in_nodes(self) -> None:
        """Ask the nodes that joined; one that cannot make the runs is named and left out."""
        asked = {node["NodeID"] for node in self._asked.values()}
        for node in self._nodes():
            if node["NodeID"] not in self._good | self._left_out | asked:
                self._asked[self._ask(node)] = node
        if not self._asked:
            return
        answered, _ = self._ray.wait(list(self._asked), num_returns=len(self._asked), timeout=0)
        for answer in answered:
            node = self._asked.pop(answer)
            problem = self._problem(node, answer)
            (self._left_out if problem else self._good).add(node["NodeID"])
            if problem:
                self._say(f"{problem}; it is left out")

    def _give_up_nodes(self) -> None:
        """Take back runs that no living node may begin any more: Ray would wait for one for ever."""
        living = {node["NodeID"] for node in self._good_nodes()}
        for ref, (_, nodes) in self._flying.items():
            if not nodes & living:
                self._ray.cancel(ref, force=True)

    def _make_collector(self) -> Any:
        from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

        here = NodeAffinitySchedulingStrategy(self._ray.get_runtime_context().get_node_id(), soft=False)
        return (
            self._ray.remote(ray_worker.Collector)
            .options(num_cpus=0, scheduling_strategy=here)
            .remote(self._out)
        )


def _question(place: Place, datasets: list[str], lock: str) -> Callable[[], dict[str, str]]:
    """A function that Ray sends as a whole: it answers also where edge_hpcr is missing or older than this file."""
    from_place = (place.root, place.default_root, place.shared)

    def ask() -> dict[str, str]:
        try:
            from edge_hpcr.bench.ray_worker import Place, facts
        except ImportError as error:
            return {"missing": str(error)}
        return facts(Place(*from_place), datasets, lock)

    return ask


def _check_answers(address: str) -> None:
    """Refuse an address behind which there is no Ray, in seconds: Ray itself would try for minutes."""
    match = re.fullmatch(r"\[?([^\[\]/]+?)\]?:([0-9]{1,5})", address)
    if match is None:
        raise UserError(
            f"--ray {address!r}: write the address of a Ray cluster, like 10.0.0.5:6379, or local"
        )
    start = "start it there with `ray start --head`"
    try:
        socket.create_connection((match[1], int(match[2])), CONNECT_SECONDS).close()
    except (OSError, OverflowError) as error:
        raise UserError(f"--ray {address} does not answer ({reason_of(error)}): {start}") from None
    command = [sys.executable, "-m", "ray.scripts.scripts", "health-check", "--address", address]
    try:
        subprocess.run(command, capture_output=True, timeout=ANSWER_SECONDS, check=True)
    except subprocess.SubprocessError:
        raise UserError(f"--ray {address} answers, but not as Ray does: {start}") from None
