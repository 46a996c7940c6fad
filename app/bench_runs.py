"""Benchmarks of the app: a process each, one at a time and at low priority, so that they cannot slow or crash the learner.

    benchmarks/NAME.asked        the command's options, and why it ended if it failed
    benchmarks/NAME.progress     where it is: written by the run
    benchmarks/NAME.log          the process's output
    benchmarks/NAME.json         its result

A run that was stopped, by a person or with the app, can be continued from its checkpoint.
"""

from __future__ import annotations

import json
import logging
import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict, dataclass, field, replace
from datetime import datetime
from functools import lru_cache
from pathlib import Path
from typing import Any

import psutil
from pydantic import BaseModel

import edge_hpcr
from edge_hpcr.bench import datasets as data
from edge_hpcr.bench import metrics
from edge_hpcr.bench.report import Estimate, Group
from edge_hpcr.bench.results import read_result
from edge_hpcr.bench.run import RunConfig
from edge_hpcr.commands.bench import configure
from edge_hpcr.common.errors import UserError, one_of
from edge_hpcr.common.files import write_atomically
from edge_hpcr.common.units import parse_bytes
from edge_hpcr.learner import checkpoint, methods

LOG = logging.getLogger(__name__)

NICENESS = 10
KILL_SECONDS = 20.0  # after a run was asked to stop; what it did since its last checkpoint is lost then
LEAVE_SECONDS = 10.0  # that the app's end waits for a run to save itself
LOOK_SECONDS = 0.3
MOST_SEEDS = 15  # the paper's number
LARGEST_BUFFER = 10**9
KINDS = ("samples", "bytes")
UNDER_WAY = ("waiting", "running", "stopping")
_PLAIN_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._=-]{0,199}")
_FACTS = ("task", "tasks", "step", "steps", "incoming", "seconds", "seconds_left")  # of a run's progress


@dataclass(frozen=True)
class Request:
    """A benchmark as a person asks for it; one run per seed."""

    dataset: str = "digits"
    method: str = "hpcr"
    kind: str = "bytes"  # in which the memory is counted
    size: str = "200KB"
    seeds: int = 1
    limit: int | None = None  # images per task, for a quick trial

    def __post_init__(self) -> None:
        data.registry.info(self.dataset)
        one_of("method", self.method, methods.names())
        one_of("memory", self.kind, KINDS)
        if self.kind == "bytes":
            parse_bytes(self.size)
        elif not re.fullmatch("[0-9]{1,10}", self.size) or not 0 < int(self.size) <= LARGEST_BUFFER:
            raise UserError(f"memory {self.size[:20]!r}: give a whole number of samples, like 200")
        if not 1 <= self.seeds <= MOST_SEEDS:
            raise UserError(f"{self.seeds} seeds: give a number from 1 to {MOST_SEEDS}")
        if self.limit is not None and not 1 <= self.limit <= LARGEST_BUFFER:
            raise UserError(f"a limit of {self.limit} images per task: give at least 1, or none for all")

    def options(self, seed: int) -> list[str]:
        """Of the command line, for one seed."""
        size = "--budget" if self.kind == "bytes" else "--buffer"
        limit = [] if self.limit is None else ["--limit", str(self.limit)]
        chosen = ["--dataset", self.dataset, "--method", self.method, size, self.size, *limit]
        return [*chosen, "--seed", str(seed), "--threads", "1"]


@dataclass(frozen=True)
class RunView:
    """A run as the page shows it."""

    name: str
    state: str  # waiting | running | stopping | stopped | failed | finished
    group: Group  # of this run alone: its method, memory and the paper's value
    at: float  # when it was requested
    problem: str | None = None
    result: dict[str, Any] | None = None
    live: list[float] = field(default_factory=list)  # A_t after each task
    averaged: list[float] = field(default_factory=list)
    task: int = 0
    tasks: int = 0
    step: int = 0
    steps: int = 0
    incoming: float | None = None  # accuracy on new samples, before they are learned
    seconds: float = 0.0
    seconds_left: float | None = None

    @property
    def label(self) -> str:
        return f"{self.group.name}, seed {self.group.seeds[0]}"

    @property
    def title(self) -> str:
        return f"{self.group.dataset}: {self.label}"

    @property
    def paper(self) -> Estimate:
        return self.group.paper("A_T")

    @property
    def can_stop(self) -> bool:
        return self.state in ("waiting", "running")

    @property
    def can_continue(self) -> bool:
        return self.state in ("stopped", "failed")


class Asked(BaseModel, frozen=True):
    """The contents of NAME.asked."""

    options: list[str]
    at: float
    pid: int | None = None
    problem: str | None = None  # why it ended, when nobody had stopped it


@dataclass
class _Current:
    """The run that has the processor."""

    name: str
    process: psutil.Process | psutil.Popen
    asked_to_stop: bool = False


class BenchRuns:
    """The benchmarks of a workspace. Any thread may call it."""

    def __init__(self, folder: Path, root: Path | None = None) -> None:
        self.folder = folder
        self.root = root  # of the datasets
        self._lock = threading.RLock()
        self._changed = threading.Condition(self._lock)
        self._waiting: deque[str] = deque()
        self._stopping = False
        self._thread: threading.Thread | None = None
        with self._lock:
            self._current = self._left_running()
            if self._current is not None:
                self._work()

    # Requests ---------------------------------------------------------------------------------------------------------

    def start(self, request: Request) -> list[str]:
        """Start or queue the requested runs; returns their names. One that is finished is not run again."""
        self.check_data(request.dataset)
        asked = {_config(options).name: options for options in map(request.options, range(request.seeds))}
        with self._lock:
            states = {view.name: view.state for view in self.runs()}
            fresh = [name for name in asked if states.get(name) not in ("finished", *UNDER_WAY)]
            if not fresh:
                name = next(iter(asked))
                raise UserError(
                    f"{name} is {states[name]} already: see below; a finished run can be removed and run again"
                )
            try:
                self.folder.mkdir(exist_ok=True)
            except OSError as error:
                raise UserError(f"{self.folder} cannot be made: {error.strerror}") from error
            for name in fresh:
                self._queue(name, asked[name])
        return fresh

    def cancel(self, name: str) -> None:
        """Take it out of the queue; one that runs saves itself, so that it can be continued."""
        with self._lock:
            if name in self._waiting:
                self._waiting.remove(name)
            elif self._current is not None and self._current.name == name:
                self._ask_to_stop(self._current)
            else:
                raise UserError(f"{name} is not running: there is nothing to cancel")

    def resume(self, name: str) -> None:
        """Continue from its checkpoint, or from the start if it has none."""
        with self._lock:
            view = self.view(name)
            if not view.can_continue:
                raise UserError(f"{name} is {view.state}: only a run that was stopped can be continued")
            self.check_data(view.group.dataset)
            asked = self._asked(name)
            if asked is None:
                raise UserError(f"{name} was not started here: give its `bench` command again")
            self._queue(name, asked.options)

    def remove(self, name: str) -> None:
        """Delete a run with its result and its checkpoint."""
        with self._lock:
            view = self.view(name)
            if view.state in UNDER_WAY:
                raise UserError(f"{name} is {view.state}: cancel it first")
            try:
                checkpoint.remove(self.folder / f"{name}.checkpoint")
                for ending in ("progress", "log", "json", "asked"):
                    (self.folder / f"{name}.{ending}").unlink(missing_ok=True)
            except OSError as error:
                raise UserError(f"{name} cannot be removed: {error.strerror}") from error

    def stop(self) -> None:
        """Ask the current run to save itself; it may still do so when this returns."""
        with self._lock:
            self._stopping = True
            self._waiting.clear()
            if self._current is not None:
                self._ask_to_stop(self._current)
            self._changed.notify_all()
        if self._thread is not None:
            self._thread.join(LEAVE_SECONDS)

    def check_data(self, dataset: str) -> None:
        """Refuse a dataset that is not here, with the command that fetches it."""
        if data.is_here(dataset, self.root):
            return
        info = data.registry.info(dataset)
        root = (self.root or data.default_root()).resolve()
        where = f". {info.where}" if info.where else ""
        folder = " --source folder --folder DIR" if info.sources == ("folder",) else ""
        raise UserError(
            f"{dataset} is not in {root}: fetch it with `python -m edge_hpcr data get {dataset}{folder} --root {root}`, "
            f"then start again{where}"
        )

    # Views ------------------------------------------------------------------------------------------------------------

    def runs(self) -> list[RunView]:
        """The newest first."""
        names = {path.stem for ending in ("json", "asked") for path in self.folder.glob(f"*.{ending}")}
        with self._lock:
            views = [view for name in names if (view := self._view(name)) is not None]
        return sorted(views, key=lambda view: (-view.at, view.name))

    def view(self, name: str) -> RunView:
        with self._lock:
            view = self._view(name) if _PLAIN_NAME.fullmatch(name) else None
        if view is None:
            raise UserError(f"there is no run {name[:80]!r}")
        return view

    def result_file(self, name: str) -> Path | None:
        """For a download: only the results of runs."""
        with suppress(UserError):
            return self.folder / f"{name}.json" if self.view(name).result else None
        return None

    def _view(self, name: str) -> RunView | None:
        asked = self._asked(name)
        result = _cached(read_result, self.folder / f"{name}.json")
        state = self._state(name, asked, result)
        if result is not None and state not in UNDER_WAY:
            return finished(name, result, None if asked is None else asked.at)
        config = None if asked is None else _cached(_read_config, self.folder / f"{name}.asked")
        if asked is None or config is None:
            return None
        progress = _cached(_read_progress, self.folder / f"{name}.progress") or {}
        problem = asked.problem if state == "failed" else None
        return _made(RunView(name, state, _group_of(config), asked.at, problem), progress)

    def _state(self, name: str, asked: Asked | None, result: dict[str, Any] | None) -> str:
        if self._current is not None and self._current.name == name:
            return "stopping" if self._current.asked_to_stop else "running"
        if name in self._waiting:
            return "waiting"
        if result is not None:
            return "finished"
        return "failed" if asked is not None and asked.problem else "stopped"

    def _asked(self, name: str) -> Asked | None:
        return _cached(_read_asked, self.folder / f"{name}.asked")

    def _write_asked(self, name: str, asked: Asked) -> None:
        path = self.folder / f"{name}.asked"
        try:
            write_atomically(path, asked.model_dump_json())
        except OSError as error:
            raise UserError(
                f"{path} cannot be written: {error.strerror}; is there room on the disk?"
            ) from error

    # The thread that runs one after the other -------------------------------------------------------------------------

    def _queue(self, name: str, options: list[str]) -> None:
        self._write_asked(name, Asked(options=options, at=time.time()))
        self._waiting.append(name)
        self._work()

    def _work(self) -> None:
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="benchmarks", daemon=True)
            self._thread.start()
        self._changed.notify_all()

    def _run(self) -> None:
        while True:
            with self._lock:
                while self._current is None and not self._waiting and not self._stopping:
                    self._changed.wait()
                if self._current is None:
                    if self._stopping:
                        return
                    self._launch(self._waiting.popleft())
                current = self._current
            if current is not None:
                self._note_end(current, _end_of(current.process))

    def _launch(self, name: str) -> None:
        asked = self._asked(name)
        if asked is None:  # removed by hand meanwhile
            return
        package = str(Path(edge_hpcr.__file__).parent.parent)
        paths = os.pathsep.join(filter(None, (package, os.environ.get("PYTHONPATH"))))
        root = [] if self.root is None else ["--root", str(self.root)]
        options = [*asked.options, "--out", str(self.folder), *root]
        try:
            with (self.folder / f"{name}.log").open("wb") as log:
                process = psutil.Popen(
                    [sys.executable, "-m", "edge_hpcr", "bench", *options],
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=log,
                    env=os.environ | {"PYTHONPATH": paths, "OMP_NUM_THREADS": "1"},
                    # A Ctrl-C in the terminal is for the app, which asks its runs to stop by itself.
                    start_new_session=True,
                )
            self._current = _Current(name, process)
            os.setpriority(os.PRIO_PROCESS, process.pid, NICENESS)
            self._write_asked(name, asked.model_copy(update={"pid": process.pid}))
        except (OSError, UserError) as error:
            LOG.warning("%s: %s", name, error)
            if self._current is None:
                self._note_problem(name, f"it could not be started: {error}")

    def _ask_to_stop(self, current: _Current) -> None:
        if current.asked_to_stop:
            return
        current.asked_to_stop = True
        # Not SIGINT: an app that a shell started in the background passes on that it is ignored, until the run listens.
        _signal(current.process, signal.SIGTERM)
        timer = threading.Timer(KILL_SECONDS, _signal, (current.process, signal.SIGKILL))
        timer.daemon = True
        timer.start()

    def _note_end(self, current: _Current, code: int | None) -> None:
        with self._lock:
            self._current = None
            done = (self.folder / f"{current.name}.json").is_file()
            # The code of a process that an earlier app started is not known.
            if not done and not current.asked_to_stop and code is not None:
                self._note_problem(current.name, self._reason(current.name, code))
            self._changed.notify_all()

    def _note_problem(self, name: str, problem: str | None) -> None:
        asked = self._asked(name)
        if asked is not None:
            try:
                self._write_asked(name, asked.model_copy(update={"problem": problem}))
            except UserError as error:
                LOG.warning("%s: %s", name, error)

    def _reason(self, name: str, code: int) -> str | None:
        """Why a run ended by itself; None if somebody else asked it to stop, and it could save itself."""
        try:
            said = (self.folder / f"{name}.log").read_text(errors="replace").strip().splitlines()
        except OSError:
            said = []
        last = said[-1].removeprefix("edge_hpcr: ")[:500] if said else "it said nothing"
        if last.startswith("stopped and saved"):
            return None
        if code == 2:
            return last
        if code < 0:
            name = signal.Signals(-code).name if -code in set(signal.Signals) else f"signal {-code}"
            return f"something ended it ({name}; was the memory full?): it can be continued"
        return f"{last}; it can be continued"

    def _left_running(self) -> _Current | None:
        """A run of an app that was killed: it goes on, and is ours again."""
        for path in self.folder.glob("*.asked"):
            asked = self._asked(path.stem)
            if asked is None or asked.pid is None:
                continue
            try:
                process = psutil.Process(asked.pid)
                command = process.cmdline()
            except (psutil.Error, ValueError, OverflowError):
                continue
            if "bench" in command and str(self.folder) in command and set(asked.options) <= set(command):
                return _Current(path.stem, process)
        return None


def finished(name: str, result: dict[str, Any], at: float | None) -> RunView:
    """The view of a result; `at` is when it was requested, where that is known."""
    if at is None:
        try:
            at = datetime.strptime(result["finished"], "%Y-%m-%dT%H:%M:%S%z").timestamp()
        except ValueError:
            at = 0.0
    tasks, steps = len(result["accuracy_matrix"]), result.get("steps", 0)
    facts = {"task": tasks, "tasks": tasks, "step": steps, "steps": steps}
    seconds = result["train_seconds"] + result.get("eval_seconds", 0.0)
    view = RunView(name, "finished", Group((result,)), at, result=result)
    return _made(view, result | facts | {"seconds": seconds})


def _made(view: RunView, progress: dict[str, Any]) -> RunView:
    """The view with what a run's progress, or its result, says."""
    live, averaged = (progress.get(key) or [] for key in ("accuracy_matrix", "ema_accuracy_matrix"))
    return replace(
        view,
        live=metrics.average_accuracies(live),
        averaged=metrics.average_accuracies(averaged),
        **{key: progress[key] for key in _FACTS if progress.get(key) is not None},
    )


def _group_of(config: RunConfig) -> Group:
    """A group of one result that is not there yet, for its name and the paper's value."""
    learner = config.learner
    resolved = methods.create(learner.method, dict(learner.method_options)).config_dict()
    plain = json.loads(json.dumps(asdict(config))) | {"method_options": resolved}
    return Group(
        ({"dataset": config.dataset, "method": learner.method, "seed": config.seed, "config": plain},)
    )


def _end_of(process: psutil.Process | psutil.Popen) -> int | None:
    """Wait for its end; returns its code, if it is our child."""
    if isinstance(process, psutil.Popen):
        return process.wait()
    # Another's child: a zombie has ended, though it is listed until its parent has looked.
    with suppress(psutil.Error):
        while process.is_running() and process.status() != psutil.STATUS_ZOMBIE:
            time.sleep(LOOK_SECONDS)
    return None


def _signal(process: psutil.Process | psutil.Popen, number: int) -> None:
    # It may have ended; psutil notices a number that was given to another process since.
    with suppress(psutil.Error, ProcessLookupError):
        process.send_signal(number)


def _config(options: list[str]) -> RunConfig:
    """The run that these options of `bench` mean; a UserError if they mean none."""
    (config,) = configure(options)
    return config


def _cached(read: Callable[[Path], Any], path: Path) -> Any:
    """The value of a file, read once for each version of it; None without one."""
    try:
        state = path.stat()
    except OSError:
        return None
    return _read_once(read, path, state.st_mtime_ns, state.st_size, state.st_ino)


@lru_cache(maxsize=1024)
def _read_once(read: Callable[[Path], Any], path: Path, *version: int) -> Any:
    try:
        return read(path)
    except (OSError, ValueError, TypeError, UserError) as error:
        LOG.warning("%s cannot be used: %s", path, error)
        return None


def _read_asked(path: Path) -> Asked:
    return Asked.model_validate_json(path.read_bytes())


def _read_config(path: Path) -> RunConfig:
    return _config(_read_asked(path).options)


def _read_progress(path: Path) -> dict[str, Any]:
    return dict(json.loads(path.read_text(encoding="utf-8")))
