"""Imports and exports of labelled samples, one at a time, in a thread of their own while the page goes on.

What is on its way lies in a folder of its own inside the server's temporary folder, and is gone when it has arrived.
"""

from __future__ import annotations

import itertools
import logging
import os
import shutil
import tempfile
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import copy_context
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath, PureWindowsPath
from typing import IO, Any

from edge_hpcr.common.errors import UserError
from edge_hpcr.common.text import many, natural_order
from edge_hpcr.live.live_learner import LiveLearner
from edge_hpcr.stream.class_folders import EVERY_SPLIT
from edge_hpcr.stream.rules import Rules
from edge_hpcr.workspace.folder import Workspace
from edge_hpcr.workspace.transfer import Exported, Imported, export_samples, import_samples, look_at

LOG = logging.getLogger(__name__)

LARGEST_UPLOAD = 500_000_000  # bytes
EXPORT_SECONDS = (
    600.0  # a finished export that nobody fetches, or a zip nobody wants imported, is removed after these
)
REASONS_SHOWN = 5
CLASSES_SHOWN = 30
LONGEST_NAME = 80
STOP_SECONDS = 30.0


class _Cancelled(Exception):
    """A person has cancelled the export."""


@dataclass
class Job:
    """An import or export, under way or over; the last one stays to be read."""

    number: int
    kind: str  # import or export
    name: str  # for people
    phase: str  # uploading, looking, asking, running; done, failed or cancelled
    done: int = 0
    total: int = 0  # bytes while it is uploaded, samples afterwards; 0: not known yet
    message: str = ""
    reasons: list[str] = field(default_factory=list)  # of the first bad files
    stop: threading.Event = field(default_factory=threading.Event)
    folder: Path | None = None  # its own temporary one
    source: Path | None = None  # of an import, and the name that people know it by
    called: Path | None = None
    found: dict[str, Any] | None = None  # what the source holds, for the question whether to import it
    taken_by: str | None = None  # the number by which the import can be taken back

    @property
    def under_way(self) -> bool:
        return self.phase in ("uploading", "looking", "running")

    def drop_folder(self) -> None:
        if self.folder is not None:
            shutil.rmtree(self.folder, ignore_errors=True)
            self.folder = None


class Upload:
    """A zip on its way from a browser to a temporary file."""

    def __init__(self, job: Job, file: IO[bytes]) -> None:
        self.job, self._file = job, file

    def write(self, part: bytes) -> None:
        if self.job.stop.is_set():
            raise UserError("the upload was cancelled: nothing was imported")
        self.job.done += len(part)
        refuse_too_large(self.job.done)
        try:
            self._file.write(part)
            self._file.flush()  # a full disk is noticed here, not when the file is closed
        except OSError as error:
            raise UserError(
                f"the upload cannot be kept: {error.strerror}; make room and try again"
            ) from error


class Transfers:
    """Any thread may call."""

    def __init__(self, workspace: Workspace, live: LiveLearner, rules: Rules | None = None) -> None:
        self.workspace, self.live = workspace, live
        self._rules = rules or Rules()
        self._lock = threading.Lock()
        self._numbers = itertools.count(1)
        self._job: Job | None = None
        self._thread: threading.Thread | None = None
        self._ready: Path | None = None  # a finished export that waits to be fetched
        self._expiry: threading.Timer | None = None

    def state(self) -> dict[str, Any] | None:
        """For the pages."""
        job = self._job
        if job is None:
            return None
        names = ("number", "kind", "name", "phase", "done", "total", "message", "reasons", "found")
        shown = {name: getattr(job, name) for name in names}
        ready = job.kind == "export" and self._ready is not None
        return {**shown, "ready": ready, "can_undo": job.taken_by is not None}

    # Import -----------------------------------------------------------------------------------------------------------

    def look_at_folder(self, text: str) -> Job:
        """See what a folder or a zip on the server's machine holds; `take_found` imports it."""
        path = absolute_path(text)
        self._rules.check_path(path)
        job = self._begin("import", str(path), "looking")
        job.source = path
        self._run(job, lambda: self._look(job))
        return job

    @contextmanager
    def receiving(self, name: str, size: int | None) -> Iterator[Upload]:
        """Receive a zip; when the block ends it is looked at, and when it raises nothing is left."""
        refuse_too_large(size or 0)
        called = upload_name(name)
        job = self._begin("import", called, "uploading")
        job.total = size or 0
        try:
            path = self._own_folder(job) / "upload.zip"
            with path.open("wb") as file:
                yield Upload(job, file)
        except BaseException as error:
            job.drop_folder()
            job.message = (
                str(error) if isinstance(error, UserError) else "the upload broke off: nothing was imported"
            )
            job.phase = "cancelled" if job.stop.is_set() else "failed"
            raise
        job.done = job.total = 0
        job.phase = "looking"
        job.source, job.called = path, Path(called)
        self._run(job, lambda: self._look(job))

    def _look(self, job: Job) -> str:
        job.found = self._found(job, None)
        self._expire(self._forget_question, job)
        job.phase = "asking"
        return ""

    def _found(self, job: Job, split: str | None) -> dict[str, Any]:
        found = look_at(self.workspace.path, _source(job), job.called, split)
        if not found.classes:
            raise UserError(
                f"{job.name} holds no pictures in folders: a folder for each class, with images, is expected"
            )
        classes = sorted(found.classes.items(), key=lambda item: natural_order(item[0]))
        return {
            "text": str(found),
            "classes": classes[:CLASSES_SHOWN],
            "more_classes": max(0, len(classes) - CLASSES_SHOWN),
            "pictures": sum(found.classes.values()),
            "splits": [*found.folders.splits],
            "split": found.folders.split or EVERY_SPLIT,
        }

    def choose_split(self, number: int, split: str) -> Job:
        """See what the source that is asked about holds in another split, or in all of them."""
        job = self._asking(number)
        job.found = self._found(job, split)
        return job

    def take_found(self, number: int) -> Job:
        """Import what was found."""
        with self._lock:
            job = self._asking(number)
            job.phase = "running"
        split = job.found["split"] if job.found and job.found["splits"] else None
        self._run(job, lambda: self._import(job, split))
        return job

    def _asking(self, number: int) -> Job:
        job = self._job
        if job is None or job.number != number or job.phase != "asking":
            raise UserError("that import is no longer asked about: choose the folder or zip again")
        return job

    def _forget_question(self, job: Job) -> None:
        with self._lock:
            if job.phase == "asking":
                job.phase, job.message = "cancelled", "nobody answered: nothing was imported"
                job.drop_folder()

    def _import(self, job: Job, split: str | None) -> str:
        def progress(done: int, total: int) -> None:
            job.done, job.total = done, total
            self.live.notify()

        result = import_samples(self.workspace, _source(job), progress, job.stop, job.called, split)
        job.reasons = result.reasons[:REASONS_SHOWN]
        job.taken_by = result.number if result.samples else None
        if job.stop.is_set() and (job.done < job.total or not job.total):
            job.phase = "cancelled"
            return f"cancelled; what was taken in so far stays: {imported_text(result)}"
        return imported_text(result)

    def undo_import(self, number: int) -> str:
        """Take back an import that this page has seen; a sentence about it."""
        job = self._job
        if job is None or job.number != number or job.taken_by is None:
            raise UserError("that import cannot be undone here any more: `undo W --import` does it")
        told = str(self.workspace.journal.take_back_import(job.taken_by))
        job.taken_by, job.message, job.reasons = None, told, []
        return told

    # Export -----------------------------------------------------------------------------------------------------------

    def export(self) -> Job:
        """Make a zip of all labelled samples, to be fetched when it is done."""
        job = self._begin("export", "all labelled samples", "running")
        self._run(job, lambda: self._export(job))
        return job

    def _export(self, job: Job) -> str:
        def progress(done: int, total: int) -> None:
            job.done, job.total = done, total
            if job.stop.is_set():
                raise _Cancelled

        path = self._own_folder(job) / "samples.zip"
        result = export_samples(self.workspace, path, progress)
        with self._lock:
            self._ready, job.folder = path, None
        self._expire(self._drop_export, path)
        return exported_text(result)

    def _expire(self, forget: Callable[[Any], None], what: Any) -> None:
        self._expiry = threading.Timer(EXPORT_SECONDS, forget, [what])
        self._expiry.daemon = True
        self._expiry.start()

    def take_export(self) -> IO[bytes]:
        """The finished zip, opened; its file is removed, so that nothing is left if the download breaks off."""
        with self._lock:
            if self._ready is None:
                raise UserError("no export is ready: it may have been fetched already; start a new one")
            try:
                return self._ready.open("rb")
            except OSError as error:
                raise UserError(f"the export is gone ({error.strerror}): start a new one") from error
            finally:
                self._forget_export()

    def _drop_export(self, path: Path) -> None:
        with self._lock:
            if self._ready == path:
                self._forget_export()

    def _forget_export(self) -> None:
        if self._ready is not None:
            shutil.rmtree(self._ready.parent, ignore_errors=True)
        if self._expiry is not None:
            self._expiry.cancel()
        self._ready = self._expiry = None

    def refuse_during_import(self) -> None:
        """An import that is under way cannot be taken back: it would go on behind it."""
        if self._job is not None and self._job.kind == "import" and self._job.phase == "running":
            raise UserError("an import is under way: wait for its end, or cancel it, before you undo")

    def refuse_while_busy(self) -> None:
        if self._job is not None and self._job.under_way:
            raise UserError(f"an {self._job.kind} is under way: wait for its end, or cancel it")

    # Both -------------------------------------------------------------------------------------------------------------

    def cancel(self) -> None:
        job = self._job
        if job is None or not (job.under_way or job.phase == "asking"):
            raise UserError("nothing to cancel: no import or export is under way")
        job.stop.set()
        if job.phase == "asking":
            job.phase, job.message = "cancelled", "nothing was imported"
            job.drop_folder()

    def stop(self) -> None:
        """End what is under way; an import goes on from there when it is started again."""
        job, thread = self._job, self._thread
        if job is not None:
            job.stop.set()
        if thread is not None:
            thread.join(STOP_SECONDS)
        with self._lock:
            self._forget_export()
            if job is not None:
                job.drop_folder()

    def _begin(self, kind: str, name: str, phase: str) -> Job:
        with self._lock:
            self.refuse_while_busy()
            self._forget_export()
            if self._job is not None:
                self._job.drop_folder()  # of one that was asked about
            self._job = Job(next(self._numbers), kind, name, phase)
            return self._job

    def _own_folder(self, job: Job) -> Path:
        # Gradio's is the server's own temporary folder, removed with it.
        try:
            job.folder = Path(tempfile.mkdtemp(prefix=f"{job.kind}-", dir=os.environ.get("GRADIO_TEMP_DIR")))
        except OSError as error:
            raise UserError(f"no room for temporary files: {error.strerror}; make room") from error
        return job.folder

    def _run(self, job: Job, work: Callable[[], str]) -> None:
        def run() -> None:
            phase = "done"
            try:
                job.message = work()
                phase = job.phase if job.phase in ("cancelled", "asking") else "done"
            except _Cancelled:
                phase, job.message = "cancelled", f"the {job.kind} was cancelled"
            except UserError as error:
                phase, job.message = "failed", str(error)
            except Exception:
                LOG.exception("the %s of %s failed", job.kind, job.name)
                phase, job.message = "failed", f"the {job.kind} failed; the program's log says why"
            finally:
                if phase != "asking":
                    job.drop_folder()
                job.phase = phase  # last, since it is what everybody waits for
                self.live.notify()

        self._thread = threading.Thread(
            target=copy_context().run, args=(run,), name=job.kind, daemon=True
        )  # with the author of who asked for it
        self._thread.start()


def _source(job: Job) -> Path:
    if job.source is None:
        raise UserError("that is no import: choose a folder or zip")
    return job.source


def refuse_too_large(size: int) -> None:
    if size > LARGEST_UPLOAD:
        raise UserError(
            f"the zip has more than {LARGEST_UPLOAD // 1_000_000} MB: copy it to the server's machine and import it by its path"
        )


def upload_name(name: str) -> str:
    """What an uploaded file is called here and in the journal: one part of a path, whatever the browser sent.

    >>> upload_name("C:\\\\pictures\\\\mugs.zip"), upload_name("../..")
    ('uploaded mugs.zip', 'uploaded samples.zip')
    """
    last = PurePosixPath(PureWindowsPath(name).name).name
    stem = "".join(c for c in last if c.isprintable()).strip(" .")
    stem = stem[:-4] if stem.lower().endswith(".zip") else stem
    return f"uploaded {stem[:LONGEST_NAME] or 'samples'}.zip"


def absolute_path(text: str) -> Path:
    text = text.strip()
    if not text:
        raise UserError("no folder was named: write the path of a folder or a zip on the server's machine")
    try:
        path = Path(text).expanduser()
    except RuntimeError as error:
        raise UserError(f"{text[:100]}: there is no such user: write the whole path") from error
    if not path.is_absolute() or "\0" in text:
        raise UserError(f"{text[:100]!r} is no whole path: write it from the top, like /home/anna/parts")
    return path


def imported_text(result: Imported) -> str:
    """The result of an import as one sentence.

    >>> imported_text(Imported(samples=12, classes=1, known=3, bad=2))
    '12 samples labelled, 1 new class, 3 known already, 2 bad'
    """
    earlier = f" ({result.deleted} of them deleted here earlier)" if result.deleted else ""
    return (
        f"{many(result.samples, 'sample')} labelled, {many(result.classes, 'new class')}, "
        f"{result.known:,} known already{earlier}, {result.bad:,} bad"
    )


def exported_text(result: Exported) -> str:
    missing = f"; {many(result.missing, 'label')} had no image any more" if result.missing else ""
    return f"{many(result.samples, 'sample')} of {many(result.classes, 'class')} exported{missing}"
