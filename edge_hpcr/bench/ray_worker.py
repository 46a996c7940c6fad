"""What a machine of a Ray cluster does for a sweep: it says what it has, and makes runs.

The sweep's own machine has a `Collector`. A run tells it now and then where it is and asks whether to stop; without a
shared folder it also sends its checkpoints and its result there.
"""

from __future__ import annotations

import os
import platform
import shutil
import tempfile
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import torch

import edge_hpcr
from edge_hpcr.bench import datasets as data
from edge_hpcr.bench.local_runner import outcome
from edge_hpcr.bench.run import Run, RunConfig, finished_result
from edge_hpcr.common.errors import UserError
from edge_hpcr.common.files import Locked, sha256, write_atomically
from edge_hpcr.learner import checkpoint

REPORT_SECONDS = 1.0
# That a run waits for its dead predecessor's lock: longer than the lease of a network file system.
LOCK_SECONDS = 180.0


@dataclass(frozen=True)
class Place:
    """Where a run finds its data and leaves its files."""

    root: Path | None  # of the datasets, if the sweep was told
    default_root: Path  # of the sweep's machine, for one whose EDGE_HPCR_DATA says nothing
    shared: Path | None  # the result folder, if every machine has it

    def data_root(self) -> Path:
        return self.root or Path(os.environ.get("EDGE_HPCR_DATA") or self.default_root)


@cache
def source_hash() -> str:
    """Of all Python files of the package: two versions in the making have one number."""
    folder = Path(edge_hpcr.__file__).parent
    files = sorted(folder.rglob("*.py"))
    return sha256("".join(f"{path.relative_to(folder)} {sha256(path)}\n" for path in files).encode())


def facts(place: Place, datasets: Sequence[str], lock: str) -> dict[str, str]:
    """What must be the same on every machine; `lock` is the name of the file that marks the shared folder."""
    found = {
        "edge_hpcr": edge_hpcr.__version__,
        "source": source_hash()[:12],
        "python": platform.python_version(),
        "torch": torch.__version__,
        "numpy": np.__version__,
    }
    found |= {f"data {name}": data.identity(name, place.data_root())[:12] for name in datasets}
    if place.shared is not None:
        with suppress(OSError):
            found["mark"] = (place.shared / lock).read_text().strip()
    return found


def difference(node: str, expected: dict[str, str], found: dict[str, str]) -> str | None:
    """The first thing in which a machine differs, and what to do about it; None if it can make the runs."""
    if "missing" in found:
        return f"node {node} cannot import edge_hpcr ({found['missing']}): install version {expected['edge_hpcr']} there"
    for key, value in expected.items():
        there = found.get(key, "")
        if there == value:
            continue
        if key == "mark":
            return f"node {node} does not see the result folder: share it with that machine, or leave --shared out"
        if not key.startswith("data "):
            what = "another source of edge_hpcr" if key == "source" else f"{key} {there}"
            return f"node {node} has {what}, this machine {value}: install the same there"
        name = key.removeprefix("data ")
        what = f"another {name} than this machine" if there else f"no {name}"
        return f"node {node} has {what}: fetch it there with `python -m edge_hpcr data get {name}`"
    return None


class Collector:
    """An actor on the sweep's own machine: writes what runs send into the result folder, and says when to stop."""

    def __init__(self, out: Path) -> None:
        self._out = out
        self._stopping = False
        self._finished: set[str] = set()

    def stop(self) -> None:
        self._stopping = True

    def report(self, name: str, progress: bytes | None, saved: dict[str, bytes] | None) -> bool:
        """Whether the run shall stop. A machine that was believed dead may still report a run that another finished."""
        if name not in self._finished:
            if progress is not None:
                with suppress(OSError):  # perhaps nobody watches
                    write_atomically(self._out / f"{name}.progress", progress, durable=False)
            if saved is not None:
                checkpoint.unpack(saved, self._out / f"{name}.checkpoint")
        return self._stopping

    def finish(self, name: str, result: bytes) -> None:
        if name not in self._finished:
            write_atomically(self._out / f"{name}.json", result)
            checkpoint.remove(self._out / f"{name}.checkpoint")
            (self._out / f"{name}.progress").unlink(missing_ok=True)
            self._finished.add(name)


class _Reporter:
    """Called after every step of a run: reports to the collector, and stops the run if it says so."""

    def __init__(self, run: Run, collector: Any, sends: bool) -> None:
        self._run, self._collector, self._sends = run, collector, sends
        self._last = time.monotonic()
        self._sent = self._saved()
        self.first_step: int | None = None  # at which this machine began

    def __call__(self, run: Run) -> None:
        if self.first_step is None:
            self.first_step = len(run.progress.step_seconds) - 1
        if time.monotonic() - self._last >= REPORT_SECONDS or (self._sends and self._saved() != self._sent):
            run.stop_requested = self.report() or run.stop_requested
            self._last = time.monotonic()

    def _saved(self) -> int:
        """When the run's checkpoint was written; 0 if there is none."""
        try:
            return (self._run.checkpoint_path / checkpoint.INDEX).stat().st_mtime_ns
        except FileNotFoundError:
            return 0

    def report(self) -> bool:
        progress, saved = None, None
        if self._sends:
            with suppress(OSError):
                progress = self._run.progress_path.read_bytes()
            if self._saved() != self._sent:
                self._sent = self._saved()
                saved = checkpoint.pack(self._run.checkpoint_path)
        name = self._run.config.name
        return bool(_answer(self._collector.report.remote(name, progress, saved)))


def _answer(ref: Any) -> Any:
    """What the collector returns; what it could not do there, a full disk for one, is this run's failure in one line."""
    import ray

    try:
        return ray.get(ref)
    except ray.exceptions.RayTaskError as error:
        raise UserError(f"on the sweep's machine: {error.cause}") from None


def work(
    run: RunConfig,
    place: Place,
    collector: Any,
    expected: dict[str, str],
    lock: str,
    saved: dict[str, bytes] | None,
) -> tuple[int, str, int]:
    """Make a run on this machine: how it ended, why, and at which step it began here."""
    begun_at = 0

    def make() -> None:
        nonlocal begun_at
        datasets = [key.removeprefix("data ") for key in expected if key.startswith("data ")]
        # Asked again: something may have changed here since the sweep asked.
        problem = difference(platform.node(), expected, facts(place, datasets, lock))
        if problem is not None:
            raise UserError(problem)
        if place.shared is not None:
            begun_at = _make_in(place.shared, run, place, collector)
        else:
            begun_at = _make_and_send(run, place, collector, saved)

    code, cause = outcome(make)
    return code, cause, begun_at


def _make_in(folder: Path, run: RunConfig, place: Place, collector: Any) -> int:
    deadline = time.monotonic() + LOCK_SECONDS
    while finished_result(run, folder) is None:
        one = Run(run, folder, place.data_root())
        reporter = _Reporter(one, collector, sends=False)
        try:
            one.run(on_step=reporter, skip_done=True)
        except Locked:
            if time.monotonic() > deadline:
                raise
            time.sleep(REPORT_SECONDS)
            continue
        return reporter.first_step or 0
    return 0


def _make_and_send(run: RunConfig, place: Place, collector: Any, saved: dict[str, bytes] | None) -> int:
    folder = Path(tempfile.mkdtemp(prefix="edge-hpcr-"))
    try:
        one = Run(run, folder, place.data_root())
        if saved is not None:
            checkpoint.unpack(saved, one.checkpoint_path)
        reporter = _Reporter(one, collector, sends=True)
        try:
            one.run(on_step=reporter)
        except BaseException:  # also the request to stop: what it saved must reach the sweep
            with suppress(UserError):
                reporter.report()
            raise
        _answer(collector.finish.remote(run.name, one.result_path.read_bytes()))
        return reporter.first_step or 0
    finally:
        shutil.rmtree(folder, ignore_errors=True)
