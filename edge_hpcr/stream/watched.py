"""A watched folder: the images that are there, then each new one as soon as it is complete.

The system's notifications say what happened at once; a regular look through the folder finds what they missed (a full
queue, a network disk). A file is taken when its writer has closed it, or when it has not changed for a moment.
"""

import heapq
import itertools
import os
import threading
import time
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from watchdog import events
from watchdog.observers import Observer
from watchdog.observers.api import BaseObserver

from edge_hpcr.common.errors import UserError
from edge_hpcr.common.text import as_text
from edge_hpcr.stream.contract import BadFile, EndOfStream, Frame, Stream
from edge_hpcr.stream.decode import BadImage
from edge_hpcr.stream.folder import class_of, read_frame, require_folder, walk

LOOK_SECONDS = 0.1  # how often files that are not complete, and the folder itself, are looked at
SCAN_SHARE = 20  # a look through a large folder may take at most this part of the time
MOST_REMEMBERED = 100_000  # files that are gone are forgotten beyond this number
MOST_FOLDERS = 10_000  # each takes a watch of the system, of which there may be as few as 8,192
MOST_FILES = 1_000_000

Version = tuple[int, int]  # size and time of the last change


@dataclass
class _Waiting:
    """A file that was seen and not yet taken."""

    since: float  # when it was last seen to change
    version: Version | None = None
    closed: bool = False
    trust_clock: bool = True  # an old time of change proves that it is complete
    look_at: float = 0.0  # when it may be complete; 0: at once


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
        _refuse_huge(path)
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
        # By the time to look at each, then in the order of arrival: looking at all of them for each would be quadratic.
        # An entry counts only while it is its file's last one.
        self._looks: list[tuple[float, int, Path, _Waiting]] = []
        self._arrivals = itertools.count()
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
            observer, self._observer = self._observer, None
            self._changed.notify_all()
        _stop(observer)

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
            gone, self._observer = self._observer, None
            missing = f": the folder {self.name} has disappeared, waiting for it"
            self._problem = "" if identity is not None else missing
        _stop(gone)
        if identity is not None:
            self._start_observer()
            self._scan(trust_clock=True)

    def _start_observer(self) -> None:
        # Without our lock: it visits every folder, and whoever asks for the state or closes must not wait for that.
        observer = Observer()
        problem = ""
        try:
            observer.schedule(self, str(self._root), recursive=True)
            observer.start()
        except OSError as error:
            # Too many folders for the system's limit, or a disk without notifications: the scans are left.
            problem = f" (new files are found every {self._scan_seconds:g} s only: {error.strerror})"
        with self._changed:
            self._problem = problem
            if not problem and not self._closed:
                self._observer = observer
                return
        if not problem:
            _stop(observer)

    def _scan(self, trust_clock: bool) -> None:
        """Look through the whole folder for files that are not known."""
        started = time.monotonic()
        try:
            found = list(walk(self._root, self._refuse_once))
        except OSError:
            return  # it has just disappeared, which the next look at it will find
        with self._changed:
            known = [(path, self._taken.get(path)) for path in found if path not in self._waiting]
        news = [path for path, taken in known if taken is None or taken.version != _version(path)]
        with self._changed:
            for path in news:
                if path not in self._waiting:
                    # Found without notification: perhaps half of a renaming, of which the notification follows.
                    self._waiting[path] = _Waiting(time.monotonic(), trust_clock=trust_clock)
                    self._look(path, 0.0)
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
        if hidden:
            return
        known = path in self._waiting
        seen = self._waiting.setdefault(path, _Waiting(0.0))
        seen.since, seen.closed, seen.trust_clock = time.monotonic(), closed, True
        if closed or not known:
            self._look(path, 0.0)

    def _look(self, path: Path, at: float) -> None:
        """Have a waiting file looked at at this time, and not at the one that was set before."""
        seen = self._waiting[path]
        seen.look_at = at
        heapq.heappush(self._looks, (at, next(self._arrivals), path, seen))

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
        while True:
            with self._changed:
                if self._closed or not self._looks or self._looks[0][0] > time.monotonic():
                    return None
                at, _, path, seen = heapq.heappop(self._looks)
                if self._waiting.get(path) is not seen or seen.look_at != at:
                    continue
            version = _version(path)
            with self._changed:
                if self._waiting.get(path) is not seen or seen.look_at != at:
                    continue  # something happened to it just now
                taken = self._taken.get(path)
                if version is None or (taken is not None and taken.version == version):
                    del self._waiting[path]
                elif (left := self._unsettled(seen, version)) <= 0:
                    del self._waiting[path]
                    return path, version
                else:
                    self._look(path, time.monotonic() + max(left, LOOK_SECONDS))

    def _unsettled(self, seen: _Waiting, version: Version) -> float:
        """For how many seconds it must not change before it is complete; 0: it is."""
        now = time.monotonic()
        if seen.version not in (None, version):
            seen.since = now
        seen.version = version
        size, changed_ns = version
        if seen.closed and size > 0:  # many a writer makes an empty file first
            return 0.0
        unchanged = now - seen.since
        if seen.trust_clock:
            unchanged = max(unchanged, time.time() - changed_ns / 1e9)
        return self._settle_seconds - unchanged

    def _take(self, path: Path, version: Version) -> Frame | None:
        frame, reason = None, ""
        try:
            frame = read_frame(path, self._root, self._labels)
        except BadImage as error:
            reason = str(error)
        now_version = _version(path)
        with self._changed:
            if now_version != version:
                if now_version is not None and path not in self._waiting:  # it is being written after all
                    self._waiting[path] = _Waiting(time.monotonic())
                    self._look(path, time.monotonic() + self._settle_seconds)
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


def _stop(observer: BaseObserver | None) -> None:
    if observer is not None:
        observer.stop()  # its threads end by themselves


def _refuse_huge(root: Path) -> None:
    """Refuse a folder whose watching would take the system's watches and minutes of listing."""
    folders, files, left = 0, 0, [os.fspath(root)]
    while left:
        try:
            with os.scandir(left.pop()) as entries:
                for entry in entries:
                    if entry.is_dir(follow_symlinks=False):
                        folders += 1
                        left.append(entry.path)
                    else:
                        files += 1
                    if folders > MOST_FOLDERS or files > MOST_FILES:
                        most = f"{MOST_FOLDERS:,} folders or {MOST_FILES:,} files"
                        raise UserError(f"{as_text(root)} holds more than {most}: watch a smaller folder")
        except OSError:
            continue  # told when it is listed


def _version(path: Path) -> Version | None:
    """Of the file, or of the link if it leads nowhere; None if there is nothing."""
    for follow in (True, False):
        try:
            status = path.stat(follow_symlinks=follow)
        except OSError:
            continue
        return status.st_size, status.st_mtime_ns
    return None
