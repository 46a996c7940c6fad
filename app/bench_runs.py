"""Benchmarks of the app: runs as the command `bench` makes them, one at a time, each in a process of its own.

They have a low priority, so that they cannot slow or crash the learner, and leave what the command leaves: NAME.progress
while a run is under way, NAME.checkpoint from where it is continued, and NAME.json, its result.
"""

from __future__ import annotations

import json
import threading
from contextlib import closing, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from edge_hpcr.bench import datasets as data
from edge_hpcr.bench.local_runner import BEGUN, DONE, INTERRUPTED, run_here
from edge_hpcr.bench.report import read_result
from edge_hpcr.bench.run import finished_result
from edge_hpcr.bench.run_config import RunConfig, make_config
from edge_hpcr.common.errors import UserError
from edge_hpcr.common.files import disk_errors

NICENESS = 10
LEAVE_SECONDS = 10.0  # that the app's end waits for a run to save itself
MOST_SEEDS = 15  # the paper's number
UNDER_WAY = ("waiting", "running")


@dataclass(frozen=True)
class Request:
    """A benchmark as a person asks for it; one run per seed. Numbers may be texts."""

    dataset: str = "digits"
    method: str = "hpcr"
    size: str = "200KB"  # of the memory: bytes with their unit, or a number of samples
    seeds: int = 3  # one alone may be luck
    limit: int | str | None = None  # images per task, for a quick trial

    def configs(self) -> list[RunConfig]:
        if not 1 <= self.seeds <= MOST_SEEDS:
            raise UserError(f"{self.seeds} seeds: give a number from 1 to {MOST_SEEDS}")
        size = "buffer" if self.size.isdecimal() else "budget"
        chosen: dict[str, Any] = {size: self.size, "limit": self.limit}
        return [make_config(self.dataset, self.method, seed, **chosen) for seed in range(self.seeds)]


@dataclass(frozen=True)
class RunView:
    """A run that is not finished, as the page shows it."""

    name: str
    state: str  # waiting | running | stopped | failed
    problem: str = ""
    progress: dict[str, Any] = field(default_factory=dict)  # what the run wrote of itself


class BenchRuns:
    """The benchmarks of a workspace. Any thread may call it."""

    def __init__(self, folder: Path, root: Path | None = None) -> None:
        self.folder, self.root = folder, root  # of the datasets
        self._lock = threading.Lock()
        self._thread = threading.Thread()
        self._stopping = threading.Event()
        self._states: dict[str, tuple[str, str]] = {}  # of the last request: state, and why it failed

    def start(self, request: Request) -> list[str]:
        """Start the requested runs, or continue those that were stopped; returns the names of what was left to do."""
        configs = request.configs()
        self.check_data(request.dataset)
        with self._lock, disk_errors(f"{self.folder}", "check free space and permissions"):
            if self._thread.is_alive():
                raise UserError("a benchmark is under way: wait for its end, or cancel it")
            self.folder.mkdir(exist_ok=True)
            left = [each for each in configs if finished_result(each, self.folder) is None]
            if not left:
                file = self.folder / f"{configs[0].name}.json"
                raise UserError(f"it is finished already: delete {file} to run it again")
            self._stopping.clear()
            self._states = {each.name: ("waiting", "") for each in left}
            self._thread = threading.Thread(target=self._run, args=(left,), name="benchmarks", daemon=True)
            self._thread.start()
        return list(self._states)

    def _run(self, configs: list[RunConfig]) -> None:
        ends = {BEGUN: "running", DONE: "finished", INTERRUPTED: "stopped"}
        events = run_here(configs, self.folder, self.root, jobs=1, niceness=NICENESS)
        try:
            with closing(events):  # which asks the run under way to save itself
                for event in events:
                    if self._stopping.is_set():
                        break
                    if event is not None:
                        self._states[event.run.name] = ends.get(event.state, "failed"), event.cause
        finally:
            for name, (state, _) in self._states.items():
                if state in UNDER_WAY:
                    self._states[name] = "stopped", ""

    def cancel(self) -> None:
        """Ask what runs to save itself, so that it can be continued; the other seeds that were asked for end with it."""
        if not self._thread.is_alive():
            raise UserError("no benchmark is under way: there is nothing to cancel")
        self._stopping.set()

    def stop(self) -> None:
        """End; a run may still save itself when this returns."""
        self._stopping.set()
        if self._thread.is_alive():
            self._thread.join(LEAVE_SECONDS)

    def check_data(self, dataset: str) -> None:
        """Refuse a dataset that is not here, with the command that fetches it."""
        if data.is_here(dataset, self.root):
            return
        info = data.info(dataset)
        root = (self.root or data.default_root()).resolve()
        where = f". {info.where}" if info.where else ""
        folder = " --folder DIR" if not info.sources else ""
        raise UserError(
            f"{dataset} is not in {root}: fetch it with `python -m edge_hpcr data get {dataset}{folder} --root {root}`, "
            f"then start again{where}"
        )

    # Views ------------------------------------------------------------------------------------------------------------

    def runs(self) -> list[RunView]:
        """What is under way, and what was not brought to its end."""
        found = {path.stem for path in self.folder.glob("*.progress")} | self._states.keys()
        views = [self._view(name) for name in sorted(found) if not (self.folder / f"{name}.json").exists()]
        return sorted(views, key=lambda view: view.state not in UNDER_WAY)

    def _view(self, name: str) -> RunView:
        state, problem = self._states.get(name, ("stopped", ""))
        progress: dict[str, Any] = {}
        with suppress(OSError, ValueError):
            progress = json.loads((self.folder / f"{name}.progress").read_bytes())
        return RunView(name, state, problem, progress)

    def results(self) -> dict[str, dict[str, Any]]:
        """Of the finished runs by their names, the newest last."""
        found = {}
        for path in sorted(self.folder.glob("*.json"), key=lambda path: path.stat().st_mtime):
            with suppress(UserError):
                found[path.stem] = read_result(path)
        return found
