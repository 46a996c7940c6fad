"""Benchmarks, each run in a process of its own, one at a time and at low priority: they cannot slow or crash the learner.

    benchmarks/NAME.asked        what was asked for, and how it ended when it did not come to its end
    benchmarks/NAME.progress     where it stands: written by the run
    benchmarks/NAME.log          what the process said
    benchmarks/NAME.json         its result

A run that was stopped, by a person or with the program, continues from its checkpoint when it is asked to.
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
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, NamedTuple

import psutil

import edge_hpcr
from app.bench_view import RunView, averages, finished, group_of
from edge_hpcr.bench import datasets as data
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
LEAVE_SECONDS = 10.0  # that the program's end waits for a run to save itself
LOOK_SECONDS = 0.3
MOST_SEEDS = 15  # the paper's number
LARGEST_BUFFER = 10**9
KINDS = ("samples", "bytes")
_PLAIN_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._=-]{0,199}")


@dataclass(frozen=True)
class Request:
    """A benchmark as a person asks for it; one run a seed."""

    dataset: str = "digits"
    method: str = "hpcr"
    kind: str = "bytes"  # what the memory is counted in
    size: str = "200KB"
    seeds: int = 1
    limit: int | None = None  # images a task, for a quick trial

    def __post_init__(self) -> None:
        data.registry.info(self.dataset)
        one_of("method", self.method, methods.names())
        one_of("memory", self.kind, KINDS)
        if self.kind == "bytes":
            parse_bytes(self.size)
        elif not (
            self.size.isascii() and self.size.isdecimal() and 0 < int(self.size[:12]) <= LARGEST_BUFFER
        ):
            raise UserError(f"memory {self.size[:20]!r}: give a whole number of samples, like 200")
        if not 1 <= self.seeds <= MOST_SEEDS:
            raise UserError(f"{self.seeds} seeds: give a number from 1 to {MOST_SEEDS}")
        if self.limit is not None and not 1 <= self.limit <= LARGEST_BUFFER:
            raise UserError(
                f"a limit of {self.limit} images a task: give at least 1, or leave it empty for all"
            )

    def options(self, seed: int) -> list[str]:
        """Of the command line, for one seed."""
        size = "--budget" if self.kind == "bytes" else "--buffer"
        limit = [] if self.limit is None else ["--limit", str(self.limit)]
        chosen = ["--dataset", self.dataset, "--method", self.method, size, self.size, *limit]
        return [*chosen, "--seed", str(seed), "--threads", "1"]


@dataclass
class Asked:
    """The contents of NAME.asked."""

    options: list[str]
    at: float
    pid: int | None = None
    problem: str | None = None  # why it ended, when nobody had asked it to


class _Read(NamedTuple):
    """What was read of a file, as long as it stays the same."""

    stamp: tuple[int, int]
    value: Any


@dataclass
class _Current:
    """The run that has the processor."""

    name: str
    process: psutil.Process | psutil.Popen
    asked_to_stop: bool = False


class BenchRuns:
    """The benchmarks of a workspace. Any thread may ask."""

    def __init__(self, folder: Path, root: Path | None = None) -> None:
        self.folder = folder
        self.root = root  # of the datasets
        self._lock = threading.RLock()
        self._changed = threading.Condition(self._lock)
        self._waiting: deque[str] = deque()
        self._stopping = False
        self._thread: threading.Thread | None = None
        self._files: dict[Path, _Read] = {}
        with self._lock:
            self._current = self._left_running()
            if self._current is not None:
                self._work()

    # What a person asks for -------------------------------------------------------------------------------------------

    def start(self, request: Request) -> list[str]:
        """Start or queue the requested runs; returns their names. One that is finished is not run again."""
        self.check_data(request.dataset)
        configs = {seed: _config(request.options(seed)) for seed in range(request.seeds)}
        with self._lock:
            states = {view.name: view.state for view in self.runs()}
            fresh = {
                config.name: request.options(seed)
                for seed, config in configs.items()
                if states.get(config.name) not in ("finished", "running", "waiting", "stopping")
            }
            if not fresh:
                (first, *_) = configs.values()
                raise UserError(
                    f"{first.name} is {states[first.name]} already: see below; a finished run can be removed and run again"
                )
            self._make_folder()
            for name, options in fresh.items():
                self._write_asked(name, Asked(options, time.time()))
                self._waiting.append(name)
            self._work()
        return list(fresh)

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
            self._write_asked(name, Asked(asked.options, time.time()))
            self._waiting.append(name)
            self._work()

    def remove(self, name: str) -> None:
        """Forget a run with its result and its checkpoint."""
        with self._lock:
            view = self.view(name)
            if view.state in ("waiting", "running", "stopping"):
                raise UserError(f"{name} is {view.state}: cancel it first")
            try:
                checkpoint.remove(self.folder / f"{name}.checkpoint")
                for ending in ("progress", "log", "json", "asked"):
                    (self.folder / f"{name}.{ending}").unlink(missing_ok=True)
            except OSError as error:
                raise UserError(f"{name} cannot be removed: {error.strerror}") from error

    def stop(self) -> None:
        """Ask the run under way to save itself; it may still be at it when this returns."""
        with self._lock:
            self._stopping = True
            self._waiting.clear()
            current = self._current
            if current is not None:
                self._ask_to_stop(current)
            self._changed.notify_all()
        if self._thread is not None:
            self._thread.join(LEAVE_SECONDS)

    # Data -------------------------------------------------------------------------------------------------------------

    def has_data(self, dataset: str) -> bool:
        place = (self.root or data.default_root()) / dataset / "meta.json"
        return not data.registry.info(dataset).sources or place.is_file()

    def check_data(self, dataset: str) -> None:
        """Refuse a dataset that is not here, with the command that fetches it."""
        if self.has_data(dataset):
            return
        info = data.registry.info(dataset)
        root = (self.root or data.default_root()).resolve()
        where = f". {info.where}" if info.where else ""
        folder = " --source folder --folder DIR" if info.sources == ("folder",) else ""
        raise UserError(
            f"{dataset} is not in {root}: fetch it with `python -m edge_hpcr data get {dataset}{folder} --root {root}`, "
            f"then start again{where}"
        )

    # What is there ----------------------------------------------------------------------------------------------------

    def runs(self) -> list[RunView]:
        """The newest first."""
        names = {path.stem for path in self.folder.glob("*.json")} | {
            path.stem for path in self.folder.glob("*.asked")
        }
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
        """For a download: only what `runs` lists."""
        return self.folder / f"{name}.json" if any(v.name == name and v.result for v in self.runs()) else None

    def _view(self, name: str) -> RunView | None:
        asked = self._asked(name)
        result = self._cached(self.folder / f"{name}.json", _read_result)
        state = self._state(name, asked, result)
        if result is not None and state not in ("waiting", "running", "stopping"):
            return finished(name, result, None if asked is None else asked.at)
        if asked is None:
            return None
        config = self._cached(self.folder / f"{name}.asked", _read_config)
        if config is None:
            return None
        progress = self._cached(self.folder / f"{name}.progress", _read_json) or {}
        return RunView(
            name=name,
            state=state,
            group=group_of(config),
            seed=config.seed,
            at=asked.at,
            problem=asked.problem if state == "failed" else None,
            live=averages(progress.get("accuracy_matrix")),
            averaged=averages(progress.get("ema_accuracy_matrix")),
            **{
                key: progress[key]
                for key in ("task", "tasks", "step", "steps", "incoming", "seconds", "seconds_left")
                if progress.get(key) is not None
            },
        )

    def _state(self, name: str, asked: Asked | None, result: dict[str, Any] | None) -> str:
        if self._current is not None and self._current.name == name:
            return "stopping" if self._current.asked_to_stop else "running"
        if name in self._waiting:
            return "waiting"
        if result is not None:
            return "finished"
        return "failed" if asked is not None and asked.problem else "stopped"

    def _cached(self, path: Path, read: Callable[[Path], Any]) -> Any:
        """What `read` makes of a file, once for each version of it; None without one."""
        try:
            state = path.stat()
        except OSError:
            self._files.pop(path, None)
            return None
        stamp = (state.st_mtime_ns, state.st_size)
        known = self._files.get(path)
        if known is None or known.stamp != stamp:
            known = self._files[path] = _Read(stamp, read(path))
        return known.value

    def _asked(self, name: str) -> Asked | None:
        values = _read_json(self.folder / f"{name}.asked")
        if values is None:
            return None
        try:
            asked = Asked(**values)
        except TypeError:
            return None
        return asked if isinstance(asked.options, list) and isinstance(asked.at, int | float) else None

    def _write_asked(self, name: str, asked: Asked) -> None:
        path = self.folder / f"{name}.asked"
        try:
            write_atomically(path, json.dumps(asdict(asked)))
        except OSError as error:
            raise UserError(
                f"{path} cannot be written: {error.strerror}; is there room on the disk?"
            ) from error

    def _make_folder(self) -> None:
        try:
            self.folder.mkdir(exist_ok=True)
        except OSError as error:
            raise UserError(f"{self.folder} cannot be made: {error.strerror}") from error

    # The thread that runs one after the other ---------------------------------------------------------------------------

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
        command = [
            sys.executable,
            "-m",
            "edge_hpcr",
            "bench",
            *asked.options,
            "--out",
            str(self.folder),
            *root,
        ]
        try:
            with (self.folder / f"{name}.log").open("wb") as log:
                process = psutil.Popen(
                    command,
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=log,
                    env=os.environ | {"PYTHONPATH": paths, "OMP_NUM_THREADS": "1"},
                    # A Ctrl-C in the terminal is for the program, which asks its runs to stop by itself.
                    start_new_session=True,
                )
            os.setpriority(os.PRIO_PROCESS, process.pid, NICENESS)
            asked.pid = process.pid
            self._current = _Current(name, process)
            self._write_asked(name, asked)
        except (OSError, UserError) as error:
            LOG.warning("%s: %s", name, error)
            if self._current is None:
                self._fail(name, f"it could not be started: {error}")

    def _ask_to_stop(self, current: _Current) -> None:
        if current.asked_to_stop:
            return
        current.asked_to_stop = True
        _signal(current.process, signal.SIGINT)
        timer = threading.Timer(KILL_SECONDS, _signal, (current.process, signal.SIGKILL))
        timer.daemon = True
        timer.start()

    def _note_end(self, current: _Current, code: int | None) -> None:
        with self._lock:
            self._current = None
            done = (self.folder / f"{current.name}.json").is_file()
            # Of a process that an earlier program started nobody learns the code.
            if not done and not current.asked_to_stop and code is not None:
                self._fail(current.name, self._reason(current.name, code))  # None when it saved itself
            self._changed.notify_all()

    def _fail(self, name: str, problem: str | None) -> None:
        asked = self._asked(name)
        if asked is not None:
            asked.problem = problem
            try:
                self._write_asked(name, asked)
            except UserError as error:
                LOG.warning("%s: %s", name, error)

    def _reason(self, name: str, code: int) -> str | None:
        """Why a run ended by itself; None if it was somebody else who asked it to stop, and it could save itself."""
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
        """A run that a program which was killed has left: it goes on, and is ours again."""
        for path in self.folder.glob("*.asked"):
            asked = self._asked(path.stem)
            if asked is None or asked.pid is None:
                continue
            try:
                process = psutil.Process(asked.pid)
                command = process.cmdline()
            except (psutil.Error, ValueError):
                continue
            if "bench" in command and str(self.folder) in command and set(asked.options) <= set(command):
                return _Current(path.stem, process)
        return None


def _end_of(process: psutil.Process | psutil.Popen) -> int | None:
    """Wait for it; its code, if it is ours."""
    if isinstance(process, psutil.Popen):
        return process.wait()
    # Somebody else's child: it has ended though it may be listed until its parent has looked.
    with suppress(psutil.Error):
        while process.is_running() and process.status() != psutil.STATUS_ZOMBIE:
            time.sleep(LOOK_SECONDS)
    return None


def _signal(process: psutil.Process | psutil.Popen, number: int) -> None:
    # It may have ended; psutil knows a number that was given to another process since.
    with suppress(psutil.Error, ProcessLookupError):
        process.send_signal(number)


def _config(options: list[str]) -> RunConfig:
    """The run that these options of `bench` mean; a UserError if they mean none."""
    (config,) = configure(options)
    return config


def _read_json(path: Path) -> dict[str, Any] | None:
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    return value if isinstance(value, dict) else None


def _read_result(path: Path) -> dict[str, Any] | None:
    try:
        return read_result(path)
    except UserError as error:
        LOG.warning("%s", error)
        return None


def _read_config(path: Path) -> RunConfig | None:
    values = _read_json(path)
    try:
        return None if values is None else _config(values["options"])
    except (UserError, KeyError, TypeError) as error:
        LOG.warning("%s cannot be used: %s", path, error)
        return None
