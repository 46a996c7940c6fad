"""The runs that analyses need: each is one run of the split benchmark, kept on disk and not run a second time."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any, Protocol, TypeVar

from tqdm import tqdm

from edge_hpcr.bench.analyses.contract import Settings
from edge_hpcr.bench.run import (
    Run,
    RunConfig,
    finished_result,
    forget,
    make_config,
    papers_options,
    plain,
)
from edge_hpcr.common.files import write_atomically
from edge_hpcr.learner import methods
from edge_hpcr.learner.learner import LearnerConfig, resolve_device
from edge_hpcr.learner.memory import MemoryConfig

Item = TypeVar("Item")
BELOW = 1  # a run's progress bar is below the one that counts the runs


class Watcher(Protocol):
    def after_step(self, run: Run) -> None: ...

    def seen(self) -> dict[str, Any]:
        """When the run has ended; ready for JSON."""
        ...


class Runs:
    """Makes runs, or finds them finished, in one folder."""

    def __init__(
        self,
        folder: Path,
        root: Path | None = None,
        threads: int = 1,
        device: str = "auto",
        fresh: bool = False,
    ) -> None:
        self.folder, self.root, self.threads, self.device = folder, root, threads, device
        self._fresh, self._made_anew = fresh, set[Path]()
        self.device_name = str(resolve_device(device))

    def config(
        self,
        settings: Settings,
        method: str,
        seed: int,
        options: dict[str, Any] | None = None,
        learner: dict[str, Any] | None = None,
        buffer: int | None = None,
    ) -> RunConfig:
        """A run of this method; `options` are the method's and `learner` the learner's, beside those of the settings."""
        has_cycle = "cycle" in methods.method_class(method).options()
        chosen = ({"cycle": settings.cycle} if has_cycle else {}) | (options or {})
        learner_options = settings.learner | (learner or {})
        return make_config(
            settings.dataset,
            method,
            seed,
            MemoryConfig(samples=buffer or settings.buffer),
            method_options=papers_options(settings.dataset, method, LearnerConfig.backbone) | chosen,
            learner_options=learner_options,
            limit=settings.limit,
            threads=self.threads,
            device=self.device,
            label="-".join(f"{key}={value}" for key, value in sorted((learner_options | chosen).items())),
        )

    def result(self, config: RunConfig) -> dict[str, Any]:
        """The run's result, from the disk if it is finished; one that was stopped continues."""
        self._forget(config, self.folder / f"{config.name}.json")
        kept = finished_result(config, self.folder)
        return Run(config, self.folder, self.root).run(BELOW) if kept is None else kept

    def measured(
        self,
        config: RunConfig,
        settings: Settings,
        name: str,
        measure: Callable[[Run], dict[str, Any]],
    ) -> dict[str, Any]:
        """What `measure` says of the finished run, kept on disk under this name."""
        return self._kept(config, settings, name, lambda: measure(self._learned(config)))

    def watched(
        self,
        config: RunConfig,
        settings: Settings,
        name: str,
        watch: Callable[[Run], Watcher],
    ) -> dict[str, Any]:
        """What a watcher saw in every step of a run, kept on disk under this name.

        A watched run that was stopped begins anew: what its watcher had seen went with the process.
        """

        def learn() -> dict[str, Any]:
            run = Run(config, self.folder, self.root)
            watcher = watch(run)
            run.run(BELOW, watcher.after_step, anew=True)
            return watcher.seen()

        return self._kept(config, settings, name, learn)

    def _learned(self, config: RunConfig) -> Run:
        run = Run(config, self.folder, self.root)
        run.run(BELOW)
        return run

    def _kept(
        self, config: RunConfig, settings: Settings, name: str, make: Callable[[], dict[str, Any]]
    ) -> dict[str, Any]:
        path = self.folder / f"{config.name}.{name}"
        self._forget(config, path)
        facts = plain({"run": asdict(config), "settings": asdict(settings) | {"seeds": None}})
        with suppress(OSError, ValueError, KeyError):  # not made yet, or damaged
            kept = json.loads(path.read_text())
            if kept["facts"] == facts:
                return kept["measured"]
        measured = plain(make())
        write_atomically(path, json.dumps({"facts": facts, "measured": measured}) + "\n")
        return measured

    def _forget(self, config: RunConfig, path: Path) -> None:
        """If everything is to be made anew, remove what an earlier process left; several analyses may ask for it."""
        if self._fresh and path not in self._made_anew:
            forget(config, self.folder, path)
            self._made_anew.add(path)

    def each(self, items: Sequence[Item], what: str) -> Iterator[Item]:
        """The items with a progress bar, or with a line for each where nobody watches."""
        with tqdm(items, what, unit="", disable=None, dynamic_ncols=True) as bar:
            for number, item in enumerate(bar, 1):
                if bar.disable:
                    print(f"{what}: {number} of {len(items)}", file=sys.stderr, flush=True)
                yield item

    def quietly(self, items: Sequence[Item], what: str) -> Iterator[Item]:
        """The same without a line for each."""
        yield from tqdm(items, what, unit="", leave=False, position=BELOW, disable=None, dynamic_ncols=True)
