"""The status of a learner: the small file that a running one replaces about once a second, and what others show of it.

Whether one runs is known from the workspace's lock, which holds across containers; a process number means nothing there.
Without PyTorch, and without reading anything large, so that `status` answers at once.
"""

import json
import shutil
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from pydantic import BaseModel, BeforeValidator, ConfigDict, ValidationError

from edge_hpcr.common.errors import UserError
from edge_hpcr.common.files import is_locked, write_atomically
from edge_hpcr.common.text import many
from edge_hpcr.common.units import format_bytes, format_duration
from edge_hpcr.learner import checkpoint
from edge_hpcr.live.accuracy import HeldOut, TestThenTrain
from edge_hpcr.workspace.layout import Layout
from edge_hpcr.workspace.queries import reading
from edge_hpcr.workspace.records import Counts
from edge_hpcr.workspace.settings import Settings

if TYPE_CHECKING:
    from edge_hpcr.stream import Stream  # OpenCV takes a moment, and `status` does not need it

FEW = 30  # held-out samples: an accuracy on fewer is a guess
SILENT_SECONDS = 30.0  # a learner reports about once a second; a slow disk may take it some
LONGEST_WAIT_SECONDS = 120.0  # of a label that is not learned
NEARLY_FULL, FULL = 200_000_000, 20_000_000  # bytes that are free where the workspace is
TROUBLE = ("stalled", "reconnecting")  # phases of a source


# What needs attention -------------------------------------------------------------------------------------------------


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
    seconds, stream, problem = (report[key] for key in ("oldest_waiting_seconds", "stream", "source_problem"))
    if report["phase"] == "failed":
        found.append(Alarm("learning has stopped; labels are kept: restart to learn them", stops=True))
    elif silent_seconds > SILENT_SECONDS:
        silence = f"the learner has given no sign of life for {format_duration(silent_seconds)}"
        found.append(Alarm(f"{silence}: it hangs, or is stopped; labels are kept: restart it", stops=True))
    elif seconds > LONGEST_WAIT_SECONDS:
        found.append(Alarm(f"a label has waited for {format_duration(seconds)} to be learned"))
    if problem:
        found.append(Alarm(f"the source: {problem}", stops=True))
    elif stream is not None and stream["phase"] in TROUBLE:
        found.append(Alarm(f"{stream['name']}: {stream['message']}", stops=True))
    return found


# What is said: a learner's report, and `status --json` ----------------------------------------------------------------

Total = Annotated[int | None, BeforeValidator(lambda said: said["total"] if isinstance(said, dict) else said)]


class Memory(BaseModel):
    samples: int | None = None
    bytes: Total = None
    budget: int


class Report(BaseModel):
    """What others read of a learner's report or of its checkpoint, which may say more; of none, the defaults."""

    model_config = ConfigDict(allow_inf_nan=False)

    step: int | None = None  # training steps so far
    applied: int = 0  # events
    memory: Memory | None = None
    held_out: HeldOut = HeldOut()
    test_then_train: TestThenTrain = TestThenTrain()
    # Only of one that runs, or has run:
    pid: int | None = None
    at: float = 0.0
    phase: str = "running"
    device: str | None = None
    oldest_waiting_seconds: float = 0.0
    stream: dict[str, Any] | None = None
    source_problem: str | None = None
    problems: list[str] = []


def write_status(path: Path, status: dict[str, Any]) -> None:
    # Not flushed to disk: after a power cut nobody runs whose status it could be.
    write_atomically(path, json.dumps(status, allow_nan=False), durable=False)


def read_report(path: Path) -> Report | None:
    """The last report of a learner, whether it still runs or not; None without a whole one: soon it is written anew."""
    try:
        return Report.model_validate_json(path.read_bytes())
    except (OSError, ValidationError):
        return None


def _checkpoint(folder: Path) -> tuple[Report, dict[str, Any]]:
    """What a checkpoint says of its learner; its tensors stay unread."""
    try:
        facts = checkpoint.facts(folder)
        figures = Report.model_validate({**facts["notes"], "step": facts["step"]})
        ago = max(0.0, time.time() - folder.stat().st_mtime)
        counted = {"step": facts["step"], "applied": figures.applied, "seconds_ago": ago}
        return figures, {"name": folder.name, **counted}
    except (OSError, ValueError, KeyError, TypeError) as error:  # pydantic's is a `ValueError`
        raise UserError(" ".join(str(error).split())) from None


def gather(path: Path) -> dict[str, Any]:
    """The object that `status --json` prints: of a workspace, whether a process learns in it or not."""
    layout = Layout(path)
    layout.check_exists()
    settings = Settings.load(layout.settings)
    newest, refused = layout.newest_checkpoint(_checkpoint)
    problems = [f"checkpoint {path} cannot be read ({error}): `verify` says more" for path, error in refused]
    saved, described = newest or (Report(), None)
    running, report = is_locked(layout.lock), read_report(layout.status)
    if report is not None:
        problems += report.problems
        if report.phase == "stopped" or (not running and report.phase != "failed"):
            report = None  # of a process that is gone
    said = report or saved
    with reading(layout.journal) as journal:
        counts, events, classes = journal.counts(), journal.last_seq, len(journal.classes())
    silent = max(0.0, time.time() - report.at) if report else 0.0
    pressing = [alarm.text for alarm in alarms(layout.path, said.model_dump() if report else None, silent)]
    return {
        "workspace": str(layout.path),
        "doing": _doing(running, report, silent),
        "running": running,
        "pid": said.pid,
        "device": said.device,
        "seconds_since_report": silent if report else None,
        "stream": said.stream,
        "step": said.step,
        "memory": (said.memory or Memory(budget=settings.memory_bytes)).model_dump(),
        "held_out": said.held_out.model_dump(),
        "test_then_train": said.test_then_train.model_dump(),
        "labels": counts.labels,
        "held_out_labels": counts.held_out,
        "classes": classes,
        "events": events,
        "events_waiting": max(0, events - said.applied),
        "queue": {
            "samples": counts.queued,
            "bytes": counts.queued_bytes,
            "most_samples": settings.queue_samples,
        },
        "disk": {"images": counts.images, "bytes": counts.image_bytes, "budget": settings.disk_bytes},
        "checkpoint": described,
        "problems": pressing + problems,
        "alarms": pressing,
    }


def _doing(running: bool, report: Report | None, silent: float) -> str:
    if report is None:
        return "running" if running else "not running"
    return "silent" if report.phase != "failed" and silent > SILENT_SECONDS else report.phase


# For people -----------------------------------------------------------------------------------------------------------


def accuracy_text(accuracy: float | None, samples: int) -> str:
    """
    >>> accuracy_text(0.912, 48), accuracy_text(1.0, 3), accuracy_text(None, 0)
    ('91 % (n=48)', '100 % (n=3, few samples)', 'nothing to measure on yet')
    """
    if accuracy is None:
        return "nothing to measure on yet"
    return f"{100 * accuracy:.0f} % (n={samples:,}{', few samples' if samples < FEW else ''})"


def _texts(said: Mapping[str, Any]) -> dict[str, str]:
    """The figures as every text has them."""
    memory, held_out, tried = said["memory"], said["held_out"], said["test_then_train"]
    held = "nothing yet"
    if memory["bytes"] is not None:
        held = f"{format_bytes(memory['bytes'])} of {format_bytes(memory['budget'])}, {memory['samples']:,} samples"
    return {
        "held-out": accuracy_text(held_out["accuracy"], held_out["samples"]),
        "memory": held,
        "before learning": accuracy_text(tried["accuracy"], tried["labels"]),
    }


def one_line(report: dict[str, Any], counts: Counts, stream: "Stream", message: str) -> str:
    """A learner's report, the most important first; trouble of the source before that."""
    state = stream.state()
    source = f"{stream.name}: {message}{f', {state.dropped:,} dropped' if state.dropped else ''}"
    waiting = f" ({report['labels_waiting']:,} to learn)" if report["labels_waiting"] else ""
    parts = [report["phase"], f"{many(counts.labels, 'label')}{waiting}"]
    parts.insert(0 if state.phase in TROUBLE else 2, source)
    texts = _texts(Report.model_validate(report).model_dump())
    parts += [f"{name}: {text}" for name, text in texts.items()]
    return " · ".join([*parts, f"queue {counts.queued:,}", f"step {report['step']:,}"])


def describe(status: Mapping[str, Any]) -> str:
    """The status in a few aligned lines."""
    queue, disk, newest, stream = (status[name] for name in ("queue", "disk", "checkpoint", "stream"))
    process = {"process": status["pid"], "on": status["device"], "step": status["step"]}
    parts = [f"{name} {value}" for name, value in process.items() if value is not None]
    if status["events_waiting"]:
        parts.append(f"{status['events_waiting']:,} events to learn")
    labels, classes = f"{status['labels']:,}", many(status["classes"], "class")
    lines = {
        "workspace": status["workspace"],
        "doing": f"{status['doing']} ({', '.join(parts)})" if parts else status["doing"],
        "labels": f"{labels} in {classes}, {status['held_out_labels']:,} held out",
        **_texts(status),
        "queue": f"{queue['samples']:,} of {queue['most_samples']:,} samples, {format_bytes(queue['bytes'])}",
        "checkpoint": "none yet",
        "disk": f"{format_bytes(disk['bytes'])} of {format_bytes(disk['budget'])} in {disk['images']:,} images",
    }
    if newest:
        lines["checkpoint"] = f"step {newest['step']:,}, {format_duration(newest['seconds_ago'])} ago"
    if stream:
        lines["source"] = f"{stream['name']}: {stream['message']}"
    problems = [("problem", problem) for problem in status["problems"]]
    return "\n".join(f"{name:<17}{text}" for name, text in [*lines.items(), *problems])
