"""Gets a benchmark's data: the command `data get` in a process of its own, with its progress and how it ended."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import threading
from dataclasses import dataclass, replace
from pathlib import Path

import edge_hpcr
from app.transfers import absolute_path
from edge_hpcr.bench import datasets as data
from edge_hpcr.common.errors import UserError
from edge_hpcr.stream.rules import Rules

COMMAND = (sys.executable, "-m", "edge_hpcr")
KILL_SECONDS = 5.0  # after it was asked to stop
SAID_KEPT = 4000  # characters of what it said last
_PERCENT = re.compile(r"(\d{1,3})%\|")  # a progress bar of torchvision's


@dataclass(frozen=True)
class Fetch:
    """How far it is, for the page."""

    dataset: str = ""
    phase: str = "idle"  # idle | running | stopping | done | failed | cancelled
    percent: int | None = None  # of the file that is being downloaded
    said: str = ""  # one line


class DataFetch:
    """One dataset at a time. Any thread may call."""

    def __init__(self, root: Path | None = None, rules: Rules | None = None) -> None:
        self.root, self._rules = root, rules or Rules()
        self._lock = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None
        self._thread: threading.Thread | None = None
        self.now = Fetch()

    def start(self, dataset: str, folder: str = "") -> None:
        """Begin; from a folder of the person's, or else from wherever it can be had."""
        info = data.registry.info(dataset)
        if not info.sources:
            raise UserError(f"{dataset} is built in: there is nothing to get")
        if not folder.strip() and info.sources == ("folder",):
            raise UserError(f"{info.where}. Then name the folder that holds {dataset} here")
        options = ["--root", str((self.root or data.default_root()).resolve())]
        if folder.strip():
            path = absolute_path(folder)
            self._rules.check_path(path)
            options += ["--source", "folder", "--folder", str(path)]
        with self._lock:
            if self.now.phase in ("running", "stopping"):
                raise UserError(f"{self.now.dataset} is being fetched: wait for its end, or cancel it")
            package = Path(edge_hpcr.__file__).parents[1]
            self._process = subprocess.Popen(
                [*COMMAND, "data", "get", dataset, *options],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.PIPE,
                env={**os.environ, "PYTHONPATH": str(package)},
                start_new_session=True,  # so that npm and the like end with it
            )
            self.now = Fetch(dataset, "running", said="it is starting …")
            self._thread = threading.Thread(
                target=self._follow, args=(self._process,), name="data", daemon=True
            )
            self._thread.start()

    def cancel(self) -> None:
        """Stop; whole files are kept, and the next time goes on from there."""
        with self._lock:
            if self._process is None or self.now.phase != "running":
                raise UserError("nothing to cancel: no data are being fetched")
            self.now = replace(self.now, phase="stopping", said="stopping …")
            _signal(self._process, signal.SIGINT)
            killer = threading.Timer(KILL_SECONDS, _signal, (self._process, signal.SIGKILL))
            killer.daemon = True
            killer.start()

    def stop(self) -> None:
        """With the program."""
        with self._lock:
            process, self._process = self._process, None
            if process is not None:
                _signal(process, signal.SIGKILL)
        if self._thread is not None:
            self._thread.join(KILL_SECONDS)

    def _follow(self, process: subprocess.Popen[bytes]) -> None:
        said = ""
        assert process.stderr is not None
        with process.stderr:
            while part := os.read(process.stderr.fileno(), 4096):
                said = (said + part.decode(errors="replace"))[-SAID_KEPT:]
                self._note(said)
        code = process.wait()
        with self._lock:
            if self.now.phase == "stopping":
                phase, told = (
                    "cancelled",
                    "cancelled; whole files are kept, and the next time goes on from there",
                )
            elif code == 0:
                phase, told = "done", "it is here, and was checked"
            else:
                phase, told = "failed", _last_line(said) or f"it ended with {code}"
            self.now = Fetch(self.now.dataset, phase, None, told)

    def _note(self, said: str) -> None:
        found = _PERCENT.findall(said)
        line = _last_line(said)
        with self._lock:
            if self.now.phase == "running":
                percent = min(100, int(found[-1])) if found else None
                told = self.now.said if _PERCENT.search(line) else line
                self.now = replace(self.now, percent=percent, said=told)


def _last_line(said: str) -> str:
    """What it said last, as one line without the command's name.

    >>> _last_line("mnist: trying\\n 3%|▎ | 1/9\\r 99%|█ |\\nedge_hpcr: mnist could not be fetched\\n")
    'mnist could not be fetched'
    """
    lines = [line.strip() for line in re.split(r"[\r\n]+", said) if line.strip()]
    return re.sub(r"^(edge_hpcr|python -m edge_hpcr[\w ]*): ", "", lines[-1]) if lines else ""


def _signal(process: subprocess.Popen[bytes], number: int) -> None:
    if process.poll() is None:
        os.killpg(process.pid, number)  # a session of its own, so the process leads its group
