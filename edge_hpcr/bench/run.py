"""The split benchmark: one run is one method on one dataset with one seed, and one JSON file.

A run that is killed continues where it was: the learner and the run's progress are saved together, and a learner that
was restored goes on bit for bit.
"""

from __future__ import annotations

import json
import platform
import resource
import signal
import sys
import time
from collections import deque
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
from edge_hpcr.bench.datasets import registry
from edge_hpcr.bench.inputs import Inputs
from edge_hpcr.bench.pictures import of_arrays
from edge_hpcr.bench.split import STREAMS, SplitStream, blurry, split
from edge_hpcr.common.allocator import keep_freed_memory
from edge_hpcr.common.errors import UserError, one_of
from edge_hpcr.common.files import locked, write_atomically
from edge_hpcr.learner import checkpoint, methods
from edge_hpcr.learner.backbones import backbone_class
from edge_hpcr.learner.codec import LATENT
from edge_hpcr.learner.learner import Learner, LearnerConfig, LossNotFinite
from edge_hpcr.learner.memory import MemoryConfig

if TYPE_CHECKING:
    from edge_hpcr.bench.teach import TeachConfig

SAVE_EVERY_SECONDS = 60.0
PROGRESS_EVERY_SECONDS = 2.0
_NEWER_SETTINGS = {"stream": "split"}  # what runs did before they said so
RECENT_STEPS = 100  # over which the progress bar's accuracy is taken


class Interrupted(Exception):
    """The run was asked to stop, and saved itself."""


def has_budget(method: str) -> bool:
    """Whether a method keeps anything of the samples: replayed samples, or statistics."""
    kind = methods.method_class(method)
    return kind.uses_memory or kind.closed_form


@dataclass(frozen=True)
class RunConfig:
    """One run, completely: the same RunConfig gives the same numbers on the same machine."""

    dataset: str
    learner: LearnerConfig
    tasks: int
    seed: int
    limit: int | None = None
    validation: bool = False
    threads: int = 1
    device: str = "auto"
    label: str = ""  # what sets it apart from a plain run, for its name
    stream: str = "split"

    def __post_init__(self) -> None:
        one_of("stream", self.stream, STREAMS)

    @property
    def name(self) -> str:
        memory = self.learner.memory
        size = f"{memory.samples}" if memory.samples is not None else f"{memory.bytes}B"
        parts = [
            (self.dataset, True),
            (self.learner.method, True),
            (
                self.learner.backbone.replace(":", "_").replace("/", "_"),
                self.learner.backbone != LearnerConfig.backbone,
            ),
            (f"{self.tasks}tasks", self.tasks != registry.info(self.dataset).tasks),
            (size, has_budget(self.learner.method)),
            (f"{memory.codec}{memory.quality}", memory.codec not in ("raw", LATENT)),
            (self.stream, self.stream != "split"),
            (self.learner.compute, self.learner.compute != LearnerConfig.compute),
            (f"limit{self.limit}", self.limit is not None),
            ("validation", self.validation),
            (self.label, bool(self.label)),
            (f"seed{self.seed}", True),
        ]
        return "-".join(part for part, wanted in parts if wanted)


@dataclass
class Progress:
    """The progress of a run; saved with the learner."""

    task: int = 0
    position: int = 0  # in the task's training indices
    accuracy: list[list[float]] = field(default_factory=list)
    ema_accuracy: list[list[float]] = field(default_factory=list)
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
        self.result_path = self.folder / f"{config.name}.json"
        self.checkpoint_path = self.folder / f"{config.name}.checkpoint"
        self.progress_path = self.folder / f"{config.name}.progress"
        self.dataset = data.load(config.dataset, root)
        kind = methods.method_class(config.learner.method)
        if (
            config.stream == "blurry"
            and methods.create(kind.name, config.learner.method_options).needs_boundaries
        ):
            raise UserError(
                f"method {kind.name} needs to know where a task ends, and a {config.stream} stream has no tasks: choose "
                "--stream split, or another method"
            )
        self.samples_per_step = kind.samples_per_step
        self.stream = self._make_stream(kind.shuffled_passes)
        part = "held-out" if config.validation else "test"
        test = of_arrays(self.dataset, part, self.stream.test_images, self.stream.test_labels)
        train = of_arrays(self.dataset, "train", self.dataset.train_images, self.dataset.train_labels)
        self._train_inputs, self._test_inputs = (
            Inputs(config.learner, each, config.device) for each in (train, test)
        )
        self.stop_requested = False
        self._recent: deque[float] = deque(maxlen=RECENT_STEPS)
        self.learner = Learner(config.learner, config.device)
        self.progress = Progress()
        if self.learner.method.uses_memory:  # before hours of training, not when the last class arrives
            self.learner.memory.check_holds(len(self.stream.class_order))

    def _make_stream(self, passes: int) -> SplitStream:
        config = self.config
        if config.stream != "blurry" or passes:
            options = (config.limit, passes, config.validation, config.stream == "longtail")
            return split(self.dataset, config.tasks, config.seed, *options)
        # As many samples as the split stream with the same limit. Without one, half of the data: classes cannot be
        # imbalanced while all of every class is shown.
        samples = config.limit * config.tasks if config.limit else len(self.dataset.train_labels) // 2
        return blurry(self.dataset, samples, config.seed, config.validation)

    def _continue_if_begun(self) -> None:
        if checkpoint.exists(self.checkpoint_path):
            self.learner, notes = Learner.load(self.checkpoint_path, self.config.device)
            if as_now(notes["run"]) != plain(asdict(self.config)):
                raise UserError(
                    f"{self.checkpoint_path} belongs to a run with other settings; choose another --out, or start "
                    "anew with --fresh"
                )
            self.progress = Progress(**notes["progress"])

    @property
    def steps_in_all(self) -> int:
        return sum(-(-len(task.train) // self.samples_per_step) for task in self.stream.tasks)

    def run(
        self,
        bar_position: int = 0,
        on_step: Callable[[Run], None] | None = None,
        skip_done: bool = False,
        anew: bool = False,
    ) -> dict[str, Any]:
        """Train through all tasks; returns the result, which is also on disk. Raises `Interrupted` if asked to stop.

        With `skip_done`, a result that another process has written meanwhile is returned as it is. With `anew`, it begins
        at the start also if an earlier process has begun it.
        """
        with locked_run(self.config, self.folder):
            torch.set_num_threads(self.config.threads)
            keep_freed_memory()
            if skip_done and (done := finished_result(self.config, self.folder)) is not None:
                return done
            if anew:
                checkpoint.remove(self.checkpoint_path)
            self._continue_if_begun()
            try:
                self._train(bar_position, on_step)
            except LossNotFinite:
                self.save()
                raise
            result = self.result()
            # On the disk before the checkpoint goes that could make it again.
            write_atomically(self.result_path, json.dumps(result, indent=1, allow_nan=False) + "\n")
            checkpoint.remove(self.checkpoint_path)
            self.progress_path.unlink(missing_ok=True)
            return result

    def _train(self, bar_position: int, on_step: Callable[[Run], None] | None) -> None:
        saved = shown = time.monotonic()
        self._show_progress()
        with (
            self._progress_bar(bar_position) as bar,
            on_stop_signal(partial(setattr, self, "stop_requested", True)),
        ):
            while self.progress.task < len(self.stream.tasks):
                task = self.stream.tasks[self.progress.task]
                while self.progress.position < len(task.train):
                    self._step(task.train, bar)
                    if on_step is not None:
                        on_step(self)
                    if self.stop_requested:
                        self.save()
                        raise Interrupted
                    if time.monotonic() - shown > PROGRESS_EVERY_SECONDS:
                        self._show_progress()
                        shown = time.monotonic()
                    if time.monotonic() - saved > SAVE_EVERY_SECONDS:
                        self.save()
                        saved = time.monotonic()
                self.learner.end_task()
                self._evaluate()
                self.progress.task += 1
                self.progress.position = 0
                if bar.disable:
                    self._report_task()
                self._show_progress()
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
        self._recent.append(report.correct / len(chosen))
        bar.update()
        if not bar.disable:
            accuracy = f"incoming {np.mean(self._recent):.0%}{self._last_accuracy()}"
            bar.set_postfix_str(f"task {progress.task + 1}, {accuracy}", refresh=False)

    def _last_accuracy(self) -> str:
        rows = self.progress.accuracy
        return f", A_{len(rows)} {metrics.final_accuracy(rows):.1%}" if rows else ""

    def _evaluate(self) -> None:
        """Accuracy on every task so far, over the classes seen so far, with the method's own weights and the averaged ones."""
        begun = time.perf_counter()
        tasks = self.stream.tasks[: self.progress.task + 1]
        indices = np.concatenate([task.test for task in tasks])
        ends = np.cumsum([len(task.test) for task in tasks])[:-1]
        labels = self.stream.test_labels[indices]
        own = self.learner.method.predicts_averaged and self.learner.average is not None
        correct = self._answers(indices, averaged=own) == labels
        self.progress.accuracy.append([float(part.mean()) for part in np.split(correct, ends)])
        self.progress.class_accuracy.append(
            {str(c): float(correct[labels == c].mean()) for task in tasks for c in task.classes}
        )
        if self.learner.average is not None:
            averaged = correct if own else self._answers(indices, averaged=True) == labels
            self.progress.ema_accuracy.append([float(part.mean()) for part in np.split(averaged, ends)])
        self.progress.eval_seconds += time.perf_counter() - begun

    def _answers(self, indices: np.ndarray, averaged: bool = False) -> np.ndarray:
        batches = self._test_inputs.batches(indices)
        return np.concatenate([self.learner.predict(batch, averaged).best for batch in batches])

    def _progress_bar(self, position: int) -> tqdm:
        return tqdm(
            total=self.steps_in_all,
            initial=len(self.progress.step_seconds),
            desc=self.config.name,
            unit="step",
            position=position,
            disable=None,  # no bar where nobody watches
            dynamic_ncols=True,
        )

    def _report_task(self) -> None:
        where = f"task {self.progress.task} of {len(self.stream.tasks)}{self._last_accuracy()}"
        times = f"{self._seconds / 60:.1f} min, about {self._seconds_left / 60:.1f} min left"
        print(f"{self.config.name}: {where}, {times}", file=sys.stderr, flush=True)

    @property
    def _seconds(self) -> float:
        return self.progress.train_seconds + self.progress.eval_seconds

    @property
    def _seconds_left(self) -> float:
        done = len(self.progress.step_seconds)
        return self._seconds / done * (self.steps_in_all - done)

    def _show_progress(self) -> None:
        """Write the run's progress into a small file, for other processes to read."""
        progress = self.progress
        facts = {
            "task": progress.task,
            "tasks": len(self.stream.tasks),
            "step": len(progress.step_seconds),
            "steps": self.steps_in_all,
            "incoming": float(np.mean(self._recent)) if self._recent else None,
            "accuracy_matrix": progress.accuracy,
            "ema_accuracy_matrix": progress.ema_accuracy,
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
            "overhead": memory.overhead(),
            "accuracy_matrix": progress.accuracy,
            "class_accuracy": progress.class_accuracy,
            **metrics.summary(progress.accuracy),
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


def as_now(config: dict[str, Any]) -> dict[str, Any]:
    """A stored configuration with what settings that are newer than it meant before they existed."""
    learner = LearnerConfig.from_dict(config["learner"])
    return _NEWER_SETTINGS | config | {"learner": plain(asdict(learner))}


def finished_result(config: RunConfig | TeachConfig, out: Path) -> dict[str, Any] | None:
    """The result of this very run, if it is on disk already."""
    path = Path(out) / f"{config.name}.json"
    if not path.is_file():
        return None
    try:
        result = json.loads(path.read_text())
        config_there = as_now(result["config"])
    except (ValueError, KeyError, TypeError):
        raise UserError(f"{path} is not a result of ours: delete it, or start anew with --fresh") from None
    wanted = plain(asdict(config))
    kind = methods.method_class(config.learner.method)
    options = methods.create(kind.name, config.learner.method_options).config_dict()
    # `bench teach` stores what was asked for, not what it came to.
    stored = kind.options_then(result["config"].get("method_options", options))
    same = {key: config_there.get(key) for key in wanted} == wanted
    if not same or any(options[key] != stored[key] for key in options.keys() & stored.keys()):
        raise UserError(
            f"{path} holds a run with other settings; choose another --out, or replace it with --fresh"
        )
    return result


def papers_options(dataset: str, method: str, backbone: str) -> dict[str, Any]:
    """A method's options in the paper; with a trunk, which the paper does not have there, none."""
    return {} if backbone_class(backbone).has_trunk else methods.method_class(method).papers_options(dataset)


def make_config(
    dataset: str,
    method: str = "hpcr",
    seed: int = 0,
    memory: MemoryConfig | None = None,
    tasks: int | None = None,
    method_options: dict[str, Any] | None = None,
    learner_options: dict[str, Any] | None = None,
    backbone: str = LearnerConfig.backbone,
    **run_options: Any,
) -> RunConfig:
    """A run with the dataset's own number of tasks, and its own image size unless the backbone is pre-trained."""
    info = registry.info(dataset)
    size, options = {"height": info.side, "width": info.side}, method_options or {}
    if backbone_class(backbone).has_trunk:
        size, options = {}, LearnerConfig.recommended(backbone, method=method).method_options | options
    learner = LearnerConfig.recommended(
        backbone,
        method=method,
        method_options=options,
        # One that keeps nothing is the same run whatever budget it is offered.
        memory=memory if memory and has_budget(method) else MemoryConfig(samples=200),
        seed=seed,
        **(size | (learner_options or {})),
    )
    methods.create(method, learner.method_options)
    return RunConfig(dataset, learner, info.tasks if tasks is None else tasks, seed, **run_options)


def locked_run(config: RunConfig, out: Path) -> AbstractContextManager[None]:
    """Keep other processes from making this run, or removing what there is of it; refused while one does."""
    refusal = f"{config.name} is being run by another process; wait, or choose another --out"
    return locked(out / f"{config.name}.lock", refusal, remove=True)


def forget(config: RunConfig, out: Path, result: Path | None = None) -> None:
    """Remove what an earlier run of this name left, or what was measured of it; refused while a process makes it."""
    with locked_run(config, out):
        (result or out / f"{config.name}.json").unlink(missing_ok=True)
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
    }


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
