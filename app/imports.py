"""Imports of labelled samples, one at a time, in a thread of their own while the page goes on.

A zip on its way lies in the server's temporary folder, and is gone when it has arrived.
"""

from __future__ import annotations

import itertools
import logging
import os
import re
import shutil
import tempfile
import threading
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

from edge_hpcr.common.errors import UserError
from edge_hpcr.common.files import disk_errors
from edge_hpcr.common.text import natural_order
from edge_hpcr.live.live_learner import LiveLearner
from edge_hpcr.workspace.transfer import import_samples, look_at
from edge_hpcr.workspace.workspace import Workspace

LOG = logging.getLogger(__name__)

REASONS_SHOWN, CLASSES_SHOWN = 5, 30
LONGEST_NAME = 80
STOP_SECONDS = 30.0


@dataclass
class Import:
    """An import, under way or over; the last one stays to be read."""

    number: int
    source: Path  # temporary
    name: str  # for people
    phase: str = "looking"  # then asking whether to import it, running; and done, failed or cancelled
    done: int = 0
    total: int = 0  # pictures; 0: not known yet
    message: str = ""
    reasons: list[str] = field(default_factory=list)  # of the first bad files
    found: dict[str, Any] = field(default_factory=dict)  # what the source holds
    stop: threading.Event = field(default_factory=threading.Event)


class Imports:
    """Any thread may call."""

    def __init__(self, workspace: Workspace, live: LiveLearner) -> None:
        self.workspace, self.live = workspace, live
        self._lock = threading.Lock()
        self._numbers = itertools.count(1)
        self._job: Import | None = None
        self._thread: threading.Thread | None = None

    def state(self) -> dict[str, Any] | None:
        """For the pages."""
        names = ("number", "name", "phase", "done", "total", "message", "reasons", "found")
        return None if self._job is None else {name: getattr(self._job, name) for name in names}

    def receive(self, files: Sequence[tuple[str, IO[bytes]]]) -> None:
        """Look at uploaded files by their paths: a zip, or a folder's and loose ones."""
        zips = [name for name, _ in files if name.lower().endswith(".zip")]
        if not files or (zips and len(files) > 1):
            raise UserError("choose pictures, a folder, or one zip")
        with ExitStack() as undone, disk_errors("the upload cannot be kept", "make room and try again"):
            place = Path(tempfile.mkdtemp(prefix="import-", dir=os.environ.get("GRADIO_TEMP_DIR")))
            undone.callback(shutil.rmtree, place)
            called = f"uploaded {upload_path(zips[0]).stem}.zip" if zips else "uploaded pictures"
            source = place / ("upload.zip" if zips else "files")
            for name, file in files:
                target = source if zips else source / upload_path(name)
                target.parent.mkdir(parents=True, exist_ok=True)
                with target.open("xb") as kept:
                    shutil.copyfileobj(file, kept)
            self._begin(source, called)
            undone.pop_all()

    def _begin(self, source: Path, name: str) -> None:
        with self._lock:
            self.refuse_while_busy()
            if self._job is not None and self._job.phase == "asking":
                self._end(self._job, "cancelled")
            job = self._job = Import(next(self._numbers), source, name)
        self._run(job, self._look)

    def _look(self, job: Import) -> str:
        found = look_at(self.workspace.path, job.source, Path(job.name))
        if not found.classes:
            if not found.loose:
                raise UserError(f"{job.name} holds no pictures")
            job.phase = "running"
            return self._import(job)  # nothing to ask: they wait for a label
        classes = sorted(found.classes.items(), key=lambda item: natural_order(item[0]))
        listed = ", ".join(f"{name} {count:,}" for name, count in classes[:CLASSES_SHOWN])
        rest = len(classes) - CLASSES_SHOWN
        more = f" and {rest} more classes" if rest > 0 else ""
        job.found = {
            "text": str(found),
            "classes": listed + more,
            "pictures": sum(found.classes.values()) + len(found.loose),
        }
        return "cancelled" if job.stop.is_set() else "asking"

    def take(self, number: int) -> None:
        """Import what was found."""
        with self._lock:  # or a zip that arrives now would end it
            job = self._job
            if job is None or job.number != number or job.phase != "asking":
                raise UserError("that import has expired: add the pictures again")
            job.phase = "running"
        self._run(job, self._import)

    def _import(self, job: Import) -> str:
        def progress(done: int, total: int) -> None:
            job.done, job.total = done, total
            self.live.notify()

        result = import_samples(self.workspace, job.source, progress, job.stop, Path(job.name))
        job.reasons, job.message = result.reasons[:REASONS_SHOWN], str(result)
        if not job.stop.is_set() or 0 < job.total == job.done:
            return "done"
        job.message = f"cancelled; what was taken in so far stays: {job.message}"
        return "cancelled"

    def refuse_while_busy(self) -> None:
        """One import at a time; and nothing may be undone while more of it comes behind."""
        if self._job is not None and self._job.phase in ("looking", "running"):
            raise UserError("an import is under way: wait for its end, or cancel it")

    def cancel(self) -> None:
        job = self._job
        if job is None or job.phase not in ("looking", "asking", "running"):
            raise UserError("nothing to cancel: no import is under way")
        job.stop.set()
        if job.phase == "asking":
            self._end(job, "cancelled")

    def stop(self) -> None:
        """End what is under way; an import goes on from there when it is started again."""
        if (job := self._job) is not None and job.phase in ("looking", "asking", "running"):
            self.cancel()
        if self._thread is not None:
            self._thread.join(STOP_SECONDS)

    def _end(self, job: Import, phase: str) -> None:
        if phase != "asking":
            shutil.rmtree(job.source.parent, ignore_errors=True)
        if phase == "cancelled" and not job.message:
            job.message = "cancelled: nothing was imported"
        job.phase = phase  # last, since it is what everybody waits for
        self.live.notify()

    def _run(self, job: Import, work: Callable[[Import], str]) -> None:
        """`work` returns the phase that follows."""

        def run() -> None:
            try:
                phase = work(job)
            except UserError as error:
                phase, job.message = "failed", str(error)
            except Exception:
                LOG.exception("the import of %s failed", job.name)
                phase, job.message = "failed", "the import failed; the program's log says why"
            self._end(job, phase)

        self._thread = threading.Thread(target=run, name="import", daemon=True)
        self._thread.start()


def upload_path(name: str) -> Path:
    """Where an uploaded file is kept below the upload's folder, whatever the browser sent.

    >>> upload_path("fruits/apple/1.jpg"), upload_path("../../etc/passwd"), upload_path("C:\\\\1.jpg")
    (PosixPath('fruits/apple/1.jpg'), PosixPath('etc/passwd'), PosixPath('C_/1.jpg'))
    """
    named = (re.sub(r'[<>:"|?*\x00-\x1f]', "_", part)[-LONGEST_NAME:] for part in re.split(r"[\\/]+", name))
    parts = [part for part in named if part.strip(" .")]
    return Path(*parts) if parts else Path("picture")
