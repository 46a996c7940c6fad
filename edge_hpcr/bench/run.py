"""The split benchmark: one run is one method on one dataset with one seed, and one JSON file.

A run that is killed continues where it was: the learner and the run's progress are saved together, and a learner that
was restored goes on bit for bit.
"""

from __future__ import annotations

import json
import platform
import resource
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from tqdm import tqdm

from edge_hpcr import __version__
from edge_hpcr.bench import datasets as data
from edge_hpcr.bench import metrics
from edge_hpcr.bench.inputs import Inputs, of_arrays
from edge_hpcr.bench.run_config import RunConfig, has_budget
from edge_hpcr.bench.split import split
from edge_hpcr.common.errors import UserError
from edge_hpcr.common.files import locked, write_atomically
from edge_hpcr.learner import checkpoint, methods
from edge_hpcr.learner.device import keep_freed_memory
from edge_hpcr.learner.learner import Learner, LearnerConfig, LossNotFinite

if TYPE_CHECKING:
    from edge_hpcr.bench.teach import TeachConfig

SAVE_EVERY_SECONDS = 60.0
PROGRESS_EVERY_SECONDS = 2.0


class Interrupted(Exception):
    """The run was asked to stop, and saved itself."""


@dataclass
class Progress:
    """The progress of a run; saved with the learner."""

    task: int = 0
    position: int = 0  # in the task's training indices
    accuracy: list[list[float]] = field(default_factory=list)  # of the weights that predict
    live_accuracy: list[list[float]] = field(default_factory=list)
    ema_accuracy: list[list[float]] = field(default_factory=list)  # of the averaged weights
    class_accuracy: list[dict[str, float]] = field(default_factory=list)
    step_seconds: list[float] = field(default_factory=list)
    train_seconds: float = 0.0
    eval_seconds: float = 0.0
    peak_rss_bytes: int = 0
    correct_before_learning: int = 0
    seen: int = 0


class Run:
    """One run of the benchmark, from its start or from where it was stopped."""

    def __init__(self, config: RunConfig, out: Path, root: Path | None = None) -> None:
        self.config = config
        self.folder = Path(out)
        self.checkpoint_path = self.folder / f"{config.name}.checkpoint"
        self.progress_path = self.folder / f"{config.name}.progress"
        self.dataset = data.load(config.dataset, root)
        kind = methods.method_class(config.learner.method)
        self.samples_per_step = kind.samples_per_step
        self.stream = split(
            self.dataset, config.tasks, config.seed, config.limit, kind.shuffled_passes, config.validation
        )
        part = "held-out" if config.validation else "test"
        test = of_arrays(self.dataset, part, self.stream.test_images, self.stream.test_labels)
        train = of_arrays(self.dataset, "train", self.dataset.train_images, self.dataset.train_labels)
        self._train_inputs, self._test_inputs = (
            Inputs(config.learner, each, config.device) for each in (train, test)
        )
        self.stop_requested = False
        self.learner = Learner(config.learner, config.device)
        self.progress = Progress()
        if self.learner.method.uses_memory:  # before hours of training, not when the last class arrives
            self.learner.memory.check_holds(len(self.stream.class_order))

    def _continue_if_begun(self) -> None:
        if checkpoint.exists(self.checkpoint_path):
            self.learner, notes = Learner.load(self.checkpoint_path, self.config.device)
            if not is_of(notes["run"], self.config):
                raise UserError(
                    f"{self.checkpoint_path} belongs to a run with other settings; choose another --out, or start "
                    "anew with --fresh"
                )
            self.progress = Progress(**notes["progress"])

    @property
    def steps_in_all(self) -> int:
        return sum(-(-len(task.train) // self.samples_per_step) for task in self.stream.tasks)

    def run(self, on_step: Callable[[Run], None] | None = None, bar: bool = True) -> dict[str, Any]:
        """Train through all tasks; returns the result, which is also on disk. Raises `Interrupted` if asked to stop."""
        with locked_run(self.config, self.folder):
            torch.set_num_threads(self.config.threads)
            keep_freed_memory()
            self._continue_if_begun()
            try:
                self._train(on_step, bar)
            except LossNotFinite:
                self.save()
                raise
            result = self.result()
            keep_result(self.config, self.folder, result)
            return result

    def _train(self, on_step: Callable[[Run], None] | None, shows_bar: bool) -> None:
        saved = shown = time.monotonic()
        self.show_progress()
        with (
            self._progress_bar(shows_bar) as bar,
            on_stop_signal(partial(setattr, self, "stop_requested", True)),
        ):
            while self.progress.task < len(self.stream.tasks):
                task = self.stream.tasks[self.progress.task]
                self._train_inputs.fill(task.train[self.progress.position :])
                while self.progress.position < len(task.train):
                    self._step(task.train, bar)
                    if on_step is not None:
                        on_step(self)
                    if self.stop_requested:
                        self.save()
                        raise Interrupted
                    if time.monotonic() - shown > PROGRESS_EVERY_SECONDS:
                        self.show_progress()
                        shown = time.monotonic()
                    if time.monotonic() - saved > SAVE_EVERY_SECONDS:
                        self.save()
                        saved = time.monotonic()
                self.learner.end_task()
                self._evaluate()
                self.progress.task += 1
                self.progress.position = 0
                self._report_task(bar)
                self.show_progress()
                self.save()
                saved = time.monotonic()

    def _step(self, order: np.ndarray, bar: tqdm) -> None:
        progress = self.progress
        chosen = order[progress.position : progress.position + self.samples_per_step]
        inputs = self._train_inputs[chosen]
        begun = time.perf_counter()
        report = self.learner.observe(inputs, self.dataset.train_labels[chosen])
        seconds = time.perf_counter() - begun
        progress.position += len(chosen)
        progress.seen += len(chosen)
        progress.correct_before_learning += report.correct
        progress.step_seconds.append(round(seconds, 5))
        progress.train_seconds += seconds
        bar.update()

    def _evaluate(self) -> None:
        """Accuracy on every task so far, over the classes seen so far, with the live weights and with the averaged ones."""
        begun, progress = time.perf_counter(), self.progress
        tasks = self.stream.tasks[: progress.task + 1]
        indices = np.concatenate([task.test for task in tasks])
        ends = np.cumsum([len(task.test) for task in tasks])[:-1]
        labels = self.stream.test_labels[indices]

        def by_task(correct: np.ndarray) -> list[float]:
            return [float(part.mean()) for part in np.split(correct, ends)]

        predicts = self._answers(indices) == labels
        progress.live_accuracy.append(by_task(predicts))
        if self.learner.average is not None:
            averaged = self._answers(indices, averaged=True) == labels
            progress.ema_accuracy.append(by_task(averaged))
            predicts = averaged if self.learner.method.predicts_averaged else predicts
        progress.accuracy.append(by_task(predicts))
        progress.class_accuracy.append(
            {str(c): float(predicts[labels == c].mean()) for task in tasks for c in task.classes}
        )
        progress.eval_seconds += time.perf_counter() - begun

    def _answers(self, indices: np.ndarray, averaged: bool = False) -> np.ndarray:
        batches = self._test_inputs.batches(indices)
        return np.concatenate([self.learner.predict(batch, averaged).best for batch in batches])

    def _progress_bar(self, shown: bool) -> tqdm:
        return tqdm(
            total=self.steps_in_all,
            initial=len(self.progress.step_seconds),
            desc=self.config.name,
            unit="step",
            disable=None if shown else True,  # None: no bar where nobody watches
            dynamic_ncols=True,
        )

    def _report_task(self, bar: tqdm) -> None:
        """What was reached, in the bar, or in a line where nobody watches."""
        accuracy = metrics.final_accuracy(self.progress.accuracy)
        reached = f"task {self.progress.task} of {len(self.stream.tasks)}, accuracy {accuracy:.1%}"
        bar.set_postfix_str(reached)
        if bar.disable:
            left = f"{self._seconds / 60:.1f} min, about {self._seconds_left / 60:.1f} min left"
            print(f"{self.config.name}: {reached}, {left}", file=sys.stderr, flush=True)

    @property
    def _seconds(self) -> float:
        return self.progress.train_seconds + self.progress.eval_seconds

    @property
    def _seconds_left(self) -> float:
        done = len(self.progress.step_seconds)
        return self._seconds / done * (self.steps_in_all - done)

    def show_progress(self) -> None:
        """Write the run's progress into a small file, for other processes to read."""
        progress = self.progress
        facts = {
            "task": progress.task,
            "tasks": len(self.stream.tasks),
            "step": len(progress.step_seconds),
            "steps": self.steps_in_all,
            "seconds": self._seconds,
            "seconds_left": self._seconds_left if progress.step_seconds else None,
        }
        # Perhaps nobody watches: a full disk stops the run when it has something to save, not here.
        with suppress(OSError):
            write_atomically(self.progress_path, json.dumps(facts, allow_nan=False), durable=False)

    def save(self) -> None:
        self.progress.peak_rss_bytes = max(self.progress.peak_rss_bytes, _peak_rss())
        notes = {"run": plain(asdict(self.config)), "progress": asdict(self.progress)}
        self.learner.save(self.checkpoint_path, notes)

    def result(self) -> dict[str, Any]:
        progress, learner, memory = self.progress, self.learner, self.learner.memory
        p50, p95 = np.percentile(progress.step_seconds, [50, 95]) * 1e3
        return {
            "dataset": self.config.dataset,
            "method": self.config.learner.method,
            "tasks": len(self.stream.tasks),
            "seed": self.config.seed,
            "class_order": list(self.stream.class_order),
            "buffer_samples": len(memory) if learner.method.uses_memory else 0,
            "budget_bytes": self.config.learner.memory.bytes if has_budget(learner.method.name) else 0,
            "bytes": learner.byte_breakdown(),
            "learner_bytes": learner.learner_bytes(),
            "overhead": memory.overhead(),
            "accuracy_matrix": progress.accuracy,
            "class_accuracy": progress.class_accuracy,
            **metrics.summary(progress.accuracy),
            "live": metrics.summary(progress.live_accuracy),
            "live_accuracy_matrix": progress.live_accuracy,
            "ema": metrics.summary(progress.ema_accuracy) if progress.ema_accuracy else None,
            "ema_accuracy_matrix": progress.ema_accuracy,
            "steps": learner.step,
            # Of a step's own pass, which says nothing where the proxies do not classify.
            "accuracy_before_learning": progress.correct_before_learning / progress.seen
            if learner.method.closed_form or type(learner.method).classifier is methods.Method.classifier
            else None,
            "train_seconds": progress.train_seconds,
            "eval_seconds": progress.eval_seconds,
            "samples_per_second": progress.seen / progress.train_seconds,
            "step_ms": {"p50": float(p50), "p95": float(p95)},
            # Of one picture; no part of the times above, because its passes were kept.
            "trunk_ms": 1e3 * self._test_inputs.pass_seconds(self.stream.tasks[0].test),
            "peak_rss_bytes": max(progress.peak_rss_bytes, _peak_rss()),
            "config": plain(asdict(self.config)) | {"method_options": learner.method.config_dict()},
            "versions": versions(self.config.threads, str(learner.device)),
            "finished": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        }


def is_of(stored: dict[str, Any], config: RunConfig | TeachConfig) -> bool:
    """Whether a stored configuration, perhaps of an earlier version, is this one."""
    wanted = plain(asdict(config))
    there = stored | {"learner": plain(asdict(LearnerConfig.from_dict(stored["learner"])))}
    return {key: there.get(key) for key in wanted} == wanted


def finished_result(config: RunConfig | TeachConfig, out: Path) -> dict[str, Any] | None:
    """The result of this very run, if it is on disk already."""
    path = Path(out) / f"{config.name}.json"
    if not path.is_file():
        return None
    try:
        result = json.loads(path.read_text())
        same = is_of(result["config"], config)
    except (ValueError, KeyError, TypeError):
        raise UserError(f"{path} is not a result of ours: delete it, or start anew with --fresh") from None
    kind = methods.method_class(config.learner.method)
    options = methods.create(kind.name, config.learner.method_options).config_dict()
    # `bench teach` stores what was asked for, not what it came to.
    stored = kind.options_then(result["config"].get("method_options", options))
    if not same or any(options[key] != stored[key] for key in options.keys() & stored.keys()):
        raise UserError(
            f"{path} holds a run with other settings; choose another --out, or replace it with --fresh"
        )
    return result


def locked_run(config: RunConfig, out: Path) -> AbstractContextManager[None]:
    """Keep other processes from making this run, or removing what there is of it; refused while one does."""
    refusal = f"{config.name} is being run by another process; wait, or choose another --out"
    return locked(out / f"{config.name}.lock", refusal, remove=True)


def keep_result(config: RunConfig, out: Path, result: dict[str, Any]) -> None:
    """Write the result of a run, and remove what could make it again."""
    write_atomically(out / f"{config.name}.json", json.dumps(result, indent=1, allow_nan=False) + "\n")
    _forget_progress(config, out)


def forget(config: RunConfig, out: Path) -> None:
    """Remove what an earlier run of this name left; refused while a process makes it."""
    with locked_run(config, out):
        (out / f"{config.name}.json").unlink(missing_ok=True)
        _forget_progress(config, out)


def _forget_progress(config: RunConfig, out: Path) -> None:
    checkpoint.remove(out / f"{config.name}.checkpoint")
    (out / f"{config.name}.progress").unlink(missing_ok=True)


def versions(threads: int, device: str) -> dict[str, Any]:
    return {
        "edge_hpcr": __version__,
        "python": platform.python_version(),
        "torch": torch.__version__,
        "numpy": np.__version__,
        "hardware": hardware(),
        "threads": threads,
        "device": device,
        **source(),
    }


def source() -> dict[str, Any]:
    """The commit of this program and whether its tree was clean: None where it does not run from a clone."""
    here = Path(__file__).parent

    def git(*words: str) -> str | None:
        try:
            done = subprocess.run(
                ["git", "-C", str(here), *words], capture_output=True, text=True, timeout=10
            )
        except (OSError, subprocess.TimeoutExpired):
            return None
        return done.stdout.strip() if done.returncode == 0 else None

    changes = git("status", "--porcelain", "--untracked-files=no")
    return {"commit": git("rev-parse", "HEAD"), "clean": None if changes is None else not changes}


def hardware() -> str:
    """The processor's name, as a reader of a result wants it."""
    cpuinfo = Path("/proc/cpuinfo")
    if cpuinfo.is_file():
        for line in cpuinfo.read_text().splitlines():
            if line.startswith("model name"):
                return f"{line.split(':', 1)[1].strip()} ({platform.machine()})"
    return f"{platform.processor() or 'unknown processor'} ({platform.machine()})"


def _peak_rss() -> int:
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024  # macOS counts bytes, Linux kibibytes


def plain(value: Any) -> Any:
    """As JSON gives it back: tuples as lists, so that a saved configuration compares equal."""
    return json.loads(json.dumps(value))


def interrupt() -> None:
    """What Ctrl-C does, for `on_stop_signal`: a shell starts a background job with Ctrl-C ignored."""
    raise KeyboardInterrupt


@contextmanager
def on_stop_signal(stop: Callable[[], None]) -> Iterator[None]:
    """Call `stop` on the first Ctrl-C and the first SIGTERM; a second one does what it did before."""

    def once(number: int, frame: FrameType | None) -> None:
        signal.signal(number, previous[number])
        stop()

    numbers = (signal.SIGINT, signal.SIGTERM)
    previous: dict[int, Any] = {number: signal.getsignal(number) for number in numbers}
    for number in previous:
        signal.signal(number, once)
    try:
        yield
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)
