"""A watched folder: the images that are there, then each new one as soon as it is complete.

The system's notifications say what happened at once; a regular look through the folder finds what they missed (a full
queue, a network disk). A file is taken when its writer has closed it, or when it has not changed for a moment.
"""

import os
import threading
import time
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from watchdog import events
from watchdog.observers import Observer
from watchdog.observers.api import BaseObserver

from edge_hpcr.common.text import as_text
from edge_hpcr.stream.contract import BadFile, EndOfStream, Frame, Stream
from edge_hpcr.stream.decode import BadImage
from edge_hpcr.stream.folder import class_of, read_frame, require_folder, walk

LOOK_SECONDS = 0.1  # how often files that are not complete, and the folder itself, are looked at
SCAN_SHARE = 20  # a look through a large folder may take at most this part of the time
MOST_REMEMBERED = 100_000  # files that are gone are forgotten beyond this number

Version = tuple[int, int]  # size and time of the last change


@dataclass
class _Waiting:
    """A file that was seen and not yet taken."""

    since: float  # when it was last seen to change
    version: Version | None = None
    closed: bool = False
    trust_clock: bool = True  # an old time of change proves that it is complete


class _Taken(NamedTuple):
    version: Version
    digest: str | None  # None: it was refused


class WatchedFolder(Stream, events.FileSystemEventHandler):
    """Every version of every file, once. A folder that disappears is watched again when it comes back."""

    def __init__(
        self,
        path: Path,
        labels: str = "none",
        on_bad_file: BadFile | None = None,
        settle_seconds: float = 2.0,
        scan_seconds: float = 10.0,
    ) -> None:
        require_folder(path)
        self.name = as_text(path)
        self._root = path.absolute()
        self._labels = labels
        self._on_bad_file = on_bad_file
        self._settle_seconds = settle_seconds
        self._scan_seconds = scan_seconds
        # Guards what follows against the observer's thread and `close`.
        self._changed = threading.Condition()
        self._closed = False
        self._waiting: dict[Path, _Waiting] = {}
        self._taken: dict[Path, _Taken] = {}
        self._identity: tuple[int, int] | None = None  # of the folder that is watched; None: it is not there
        self._observer: BaseObserver | None = None
        self._next_scan = 0.0
        self._problem = ""

    def read(self, timeout: float) -> Frame | None:
        deadline = time.monotonic() + timeout
        while True:
            self._follow_folder()
            if time.monotonic() >= self._next_scan:
                self._scan(trust_clock=False)
            complete = self._next_complete()
            if complete is not None:
                frame = self._take(*complete)
                if frame is not None:
                    return frame
            with self._changed:
                if self._closed:
                    raise EndOfStream("closed")
                left = deadline - time.monotonic()
                if left <= 0:
                    return None
                if complete is None:
                    self._changed.wait(min(left, LOOK_SECONDS))

    def _doing(self) -> tuple[str, str]:
        with self._changed:
            if self._closed:
                return "closed", "closed"
            if self._identity is None:
                phase = "reconnecting" if self._problem else "opening"
                return phase, f"{phase}{self._problem}"
            return "live", f"live, {self._frames} images so far{self._problem}"

    def close(self) -> None:
        with self._changed:
            self._closed = True
            self._stop_observer()
            self._changed.notify_all()

    # The folder itself.

    def _follow_folder(self) -> None:
        """Watch the folder that has this name now: it may have gone, and another one may have come."""
        try:
            status = self._root.stat()
            identity = (status.st_dev, status.st_ino) if self._root.is_dir() else None
        except OSError:
            identity = None
        with self._changed:
            if self._closed:
                raise EndOfStream("closed")
            if identity == self._identity and (identity is not None or self._problem):
                return
            self._identity = identity
            self._stop_observer()
            self._problem = ""
            if identity is None:
                self._problem = f": the folder {self.name} has disappeared, waiting for it"
                return
            self._start_observer()
        self._scan(trust_clock=True)

    def _start_observer(self) -> None:
        observer = Observer()
        try:
            observer.schedule(self, str(self._root), recursive=True)
            observer.start()
        except OSError as error:
            # Too many folders for the system's limit, or a disk without notifications: the scans are left.
            self._problem = f" (new files are found every {self._scan_seconds:g} s only: {error.strerror})"
        else:
            self._observer = observer

    def _stop_observer(self) -> None:
        if self._observer is not None:
            self._observer.stop()  # its threads end by themselves; one may be waiting for our lock
            self._observer = None

    def _scan(self, trust_clock: bool) -> None:
        """Look through the whole folder for files that are not known."""
        started = time.monotonic()
        try:
            found = list(walk(self._root, self._refuse_once))
        except OSError:
            return  # it has just disappeared, which the next look at it will find
        with self._changed:
            for path in found:
                taken = self._taken.get(path)
                if path not in self._waiting and (taken is None or taken.version != _version(path)):
                    # Found without notification: perhaps half of a renaming, of which the notification follows.
                    self._waiting[path] = _Waiting(time.monotonic(), trust_clock=trust_clock)
            there = set(found)
            missing = [path for path in self._taken if path not in there]
            for path in missing[: max(0, len(self._taken) - MOST_REMEMBERED)]:
                del self._taken[path]
            now = time.monotonic()
            self._next_scan = now + max(self._scan_seconds, SCAN_SHARE * (now - started))

    # Its files.

    def on_any_event(self, event: events.FileSystemEvent) -> None:
        """What the system says has happened; called in the observer's thread."""
        source, target = (Path(os.fsdecode(name)) for name in (event.src_path, event.dest_path))
        with self._changed:
            if event.is_directory:
                # Files may have come into a new folder before it was watched.
                if event.event_type in (events.EVENT_TYPE_CREATED, events.EVENT_TYPE_MOVED):
                    self._next_scan = min(self._next_scan, time.monotonic() + self._settle_seconds)
            elif event.event_type == events.EVENT_TYPE_MOVED:
                self._follow_renaming(source, target)
            elif event.event_type in (events.EVENT_TYPE_CREATED, events.EVENT_TYPE_MODIFIED):
                self._expect(source, closed=False)
            elif event.event_type == events.EVENT_TYPE_CLOSED:
                self._expect(source, closed=True)
            self._changed.notify_all()

    def _expect(self, path: Path, closed: bool) -> None:
        if not path.is_relative_to(self._root):
            return
        hidden = any(part.startswith(".") for part in path.relative_to(self._root).parts)
        if not hidden:
            self._waiting[path] = _Waiting(time.monotonic(), closed=closed)

    def _follow_renaming(self, source: Path, target: Path) -> None:
        waiting = self._waiting.pop(source, None)
        taken = self._taken.pop(source, None)
        # Another class's folder gives the image another label, so that it is news; another name is not.
        if taken is not None:
            before, now = (class_of(path, self._root, self._labels) for path in (source, target))
            if before == now:
                self._taken[target] = taken
        self._expect(target, closed=waiting is None or waiting.closed)

    def _next_complete(self) -> tuple[Path, Version] | None:
        """Of the waiting files, the first one that is complete; forgets those that are gone or known."""
        with self._changed:
            waiting = list(self._waiting.items())
        for path, seen in waiting:
            version = _version(path)
            with self._changed:
                if self._waiting.get(path) is not seen:
                    continue  # something happened to it just now
                taken = self._taken.get(path)
                if version is None or (taken is not None and taken.version == version):
                    del self._waiting[path]
                elif self._is_complete(seen, version):
                    del self._waiting[path]
                    return path, version
        return None

    def _is_complete(self, seen: _Waiting, version: Version) -> bool:
        now = time.monotonic()
        if seen.version not in (None, version):
            seen.since = now
        seen.version = version
        size, changed_ns = version
        if seen.closed and size > 0:  # many a writer makes an empty file first
            return True
        unchanged = now - seen.since
        if seen.trust_clock:
            unchanged = max(unchanged, time.time() - changed_ns / 1e9)
        return unchanged >= self._settle_seconds

    def _take(self, path: Path, version: Version) -> Frame | None:
        frame, reason = None, ""
        try:
            frame = read_frame(path, self._root, self._labels)
        except BadImage as error:
            reason = str(error)
        now_version = _version(path)
        with self._changed:
            if now_version != version:
                if now_version is not None:  # it is being written after all
                    self._waiting.setdefault(path, _Waiting(time.monotonic()))
                return None
            before = self._taken.get(path)
            self._taken[path] = _Taken(version, frame.digest if frame else None)
            if frame is not None:
                if before is not None and before.digest == frame.digest:
                    return None  # only its time has changed
                return self._counted(frame)
        self._refuse(path, reason)
        return None

    def _refuse_once(self, path: Path, reason: str) -> None:
        with self._changed:
            version = _version(path) or (0, 0)
            known = self._taken.get(path) is not None
            self._taken[path] = _Taken(version, None)
        if not known:
            self._refuse(path, reason)

    def _refuse(self, path: Path, reason: str) -> None:
        with self._changed:
            self._bad += 1
        if self._on_bad_file is not None:
            self._on_bad_file(path, reason)


def _version(path: Path) -> Version | None:
    """Of the file, or of the link if it leads nowhere; None if there is nothing."""
    for follow in (True, False):
        try:
            status = path.stat(follow_symlinks=follow)
        except OSError:
            continue
        return status.st_size, status.st_mtime_ns
    return None
