"""What a person must know now: one list for the page's strip, `status` and its exit code, /healthz and /metrics.

Made anew each time from the learner's report, so that an alarm ends with its cause. What happened once, and is over, is
in the report's `problems`.
"""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from edge_hpcr.common.units import format_bytes, format_duration

SILENT_SECONDS = 30.0  # a learner reports about once a second; a slow disk may take it some
LONGEST_WAIT_SECONDS = 120.0  # of a label that is not learned
MOST_WAITING = 500  # labels and other actions
NEARLY_FULL, FULL = 200_000_000, 20_000_000  # bytes that are free where the workspace is
TROUBLE = ("stalled", "reconnecting")  # phases of a source


@dataclass(frozen=True)
class Alarm:
    text: str
    stops: bool = False  # it does not do its work any more: /healthz says that it is not ready


def alarms(folder: Path, report: Mapping[str, Any] | None = None, silent_seconds: float = 0.0) -> list[Alarm]:
    """Of a workspace, and of the learner that runs in it and made this report so many seconds ago."""
    found = _of_learner(report, silent_seconds) if report is not None else []
    try:
        free = shutil.disk_usage(folder).free
    except OSError as error:
        return [*found, Alarm(f"the disk of {folder} cannot be read: {error.strerror}", stops=True)]
    if free < NEARLY_FULL:
        left = f"the disk of {folder} has {format_bytes(free)} left"
        found.append(Alarm(f"{left}: make room, or labels can no longer be saved", stops=free < FULL))
    return found


def _of_learner(report: Mapping[str, Any], silent_seconds: float) -> list[Alarm]:
    found = []
    waiting, seconds = report["events_waiting"], report["oldest_waiting_seconds"]
    if report["phase"] == "failed":
        found.append(Alarm("learning has stopped; labels are kept: restart to learn them", stops=True))
    elif silent_seconds > SILENT_SECONDS:
        silence = f"the learner has given no sign of life for {format_duration(silent_seconds)}"
        found.append(Alarm(f"{silence}: it hangs, or is stopped; labels are kept: restart it", stops=True))
    elif seconds > LONGEST_WAIT_SECONDS:
        found.append(Alarm(f"a label has waited for {format_duration(seconds)} to be learned"))
    elif waiting > MOST_WAITING:
        found.append(Alarm(f"the learner is behind: {waiting:,} labels or changes wait to be learned"))
    stream, problem = report["stream"], report["source_problem"]
    if problem:
        found.append(Alarm(f"the source: {problem}", stops=True))
    elif stream is not None and stream["phase"] in TROUBLE:
        found.append(Alarm(f"{stream['name']}: {stream['message']}", stops=True))
    return found
