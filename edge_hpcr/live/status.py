"""The status of a learner: the small file that a running one replaces about once a second, and what others show of it.

Whether one runs is known from the workspace's lock, which holds across containers; a process number means nothing there.
Without PyTorch, and without reading anything large, so that `status` answers at once.
"""

import json
import textwrap
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from edge_hpcr.common.errors import UserError
from edge_hpcr.common.files import is_locked, read_regular, write_atomically
from edge_hpcr.common.text import many
from edge_hpcr.common.units import format_bytes, format_duration
from edge_hpcr.learner import checkpoint
from edge_hpcr.live import checkpoints
from edge_hpcr.live.accuracy import HeldOut, TestThenTrain
from edge_hpcr.live.health import SILENT_SECONDS, TROUBLE, alarms
from edge_hpcr.workspace.layout import Layout
from edge_hpcr.workspace.queries import reading
from edge_hpcr.workspace.records import Counts
from edge_hpcr.workspace.settings import Settings

if TYPE_CHECKING:
    from edge_hpcr.stream import Stream  # OpenCV takes a moment, and `status` does not need it

FEW = 30  # held-out samples: an accuracy on fewer is a guess
ENDED = ("stopped", "failed")
BAR = 8  # characters
LARGEST_REPORT = 64_000_000  # bytes; thousands of classes take a few million

FIELDS = """\
  workspace                     its folder
  doing                         starting, learning, rehearsing, idle; running (a process has it, and has not said more);
                                silent (it has, and says nothing any more); failed; not running; or unknown
  running, pid, device          whether a process has the workspace (null: cannot be told), which one, where it computes
  seconds_since_report          how old the learner's own report is
  step                          training steps so far
  labels, held_out_labels       labelled samples, and those of them that are kept for measuring
  classes                       number of classes
  events, events_waiting        in the journal, and those of them that are not learned yet
  memory.{samples, bytes, budget}
  held_out.{accuracy, samples, few, step, classes, confusion}    on samples that are never trained on; few: below
                                30; by class: recall, best, forgetting; true class, answer, how many
  test_then_train.{accuracy, labels, recent_accuracy, recent_labels, classes}    before each label was learned
  suspicious                    labels that the other samples contradict: sample_id, class_id, suggested, strength
  stream.{name, phase, message, frames, dropped, bad, size}      what feeds the learner that runs
  queue.{samples, bytes, most_samples, most_bytes}
  checkpoint.{name, step, applied, seconds_ago}  the newest
  disk.{images, bytes, budget, archive}          archive: the budget does not bind labelled images
  counters                      queued, skipped_duplicate, skipped_sure, skipped_rate, …: since the beginning
  problems                      sentences
  alarms                        those of them that are so now and want somebody: the exit code is 1 while there are any
"""


def write_status(path: Path, status: dict[str, Any]) -> None:
    # Not flushed to disk: after a power cut nobody runs whose status it could be.
    write_atomically(path, json.dumps(status, allow_nan=False), durable=False)


Count = Annotated[int, Field(ge=0, lt=2**63)]


class _Part(BaseModel):
    model_config = ConfigDict(strict=True, allow_inf_nan=False)


class _Bytes(_Part):
    total: Count


class _Memory(_Part):
    samples: Count
    bytes: _Bytes
    budget: Annotated[Count, Field(gt=0)]


class _Recent(_Part):
    accuracy: float | None
    labels: Count


class _TestThenTrain(_Recent):
    recent: _Recent
    classes: dict[str, dict[str, int | float]] = {}


class _HeldOut(_Part):
    accuracy: float | None
    samples: Count
    step: Count = 0
    classes: dict[str, dict[str, int | float]] = {}
    confusion: list[tuple[int, int, int]] = []


class _Suspicion(_Part):
    sample_id: Count
    class_id: Count
    suggested: Count = 0
    strength: float = 0.0


class _Source(_Part):
    name: str
    phase: str
    message: str
    frames: Count = 0
    dropped: Count = 0
    bad: Count = 0
    size: tuple[Count, Count] | None = None


class Report(_Part):
    """What others read of a learner's report; it may say more."""

    pid: Count
    at: float
    phase: str
    device: str
    step: Count
    applied: Count
    labels_waiting: Count
    events_waiting: Count = 0  # which reports of 0.1 do not have
    oldest_waiting_seconds: float = 0.0
    memory: _Memory
    test_then_train: _TestThenTrain
    held_out: _HeldOut
    suspicious: list[_Suspicion]
    stream: _Source | None
    source_problem: str | None = None
    problems: list[str]


def read_status(path: Path) -> dict[str, Any] | None:
    """The last report of a learner, whether it still runs or not; None if there is none."""
    if not path.exists():
        return None

    def refuse(reason: str) -> UserError:
        return UserError(f"the learner's report {path} cannot be read: {reason}")

    try:
        return Report.model_validate_json(read_regular(path, LARGEST_REPORT, refuse)).model_dump()
    except ValidationError as error:
        wrong = error.errors(include_url=False, include_context=False, include_input=False)[0]
        where = ".".join(map(str, wrong["loc"])) or "its content"
        raise UserError(f"the learner's report {path} is damaged: {where}: {wrong['msg']}") from None


def one_line(
    status: dict[str, Any], counts: Counts, stream: "Stream", message: str, width: int | None = None
) -> str:
    """The status in at most `width` columns: the most important first, what finds no room at the end is left out.

    Trouble of the source comes before everything else.
    """
    state = stream.state()
    source = f"{message}, {state.dropped:,} dropped" if state.dropped else message
    in_trouble = state.phase in TROUBLE
    waiting = f" ({status['labels_waiting']:,} to learn)" if status["labels_waiting"] else ""
    memory = status["memory"]
    held_out, recent = status["held_out"], status["test_then_train"]["recent"]
    parts = [
        *([source] if in_trouble else []),
        status["phase"],
        f"{many(counts.labels, 'label')}{waiting}",
        stream.name if in_trouble else f"{stream.name}: {source}",
        f"held-out: {accuracy_text(held_out['accuracy'], held_out['samples'])}",
        f"memory {format_bytes(memory['bytes']['total'])} of {format_bytes(memory['budget'])}",
        f"queue {counts.queued:,}",
        f"before learning: {accuracy_text(recent['accuracy'], recent['labels'])}",
        f"step {status['step']:,}",
    ]
    if width is None:
        return " · ".join(parts)
    while len(parts) > 1 and len(" · ".join(parts)) > width:
        parts.pop()
    return textwrap.shorten(" · ".join(parts), max(1, width), placeholder=" …")


def accuracy_text(accuracy: float | None, samples: int) -> str:
    """
    >>> accuracy_text(0.912, 48), accuracy_text(1.0, 3), accuracy_text(None, 0)
    ('91 % (n=48)', '100 % (n=3, few samples)', 'nothing to measure on yet')
    """
    if accuracy is None:
        return "nothing to measure on yet"
    return f"{100 * accuracy:.0f} % (n={samples:,}{', few samples' if samples < FEW else ''})"


def gather(path: Path) -> dict[str, Any]:
    """The object that `status --json` prints; FIELDS describes it."""
    layout = Layout(path)
    layout.check_exists()
    settings = Settings.load(layout.settings)
    running, problems = is_locked(layout.lock), settings.report_unknown(layout.settings)
    if running is None:
        problems.append(f"whether a process learns in it cannot be told: {layout.lock} cannot be read")
    newest, refused = checkpoints.newest(layout, _checkpoint)
    problems += [f"checkpoint {path} cannot be read ({error}): `verify` says more" for path, error in refused]
    figures = newest["figures"] if newest else _nothing_learned()
    report = None
    try:
        report = read_status(layout.status)
        if report is not None:
            problems += report["problems"]
            if report["phase"] in ENDED or running is False:
                report = report if report["phase"] == "failed" else None  # of a process that is gone
            else:
                figures = _figures(report)
    except UserError as error:
        problems.append(str(error))
    journal = _from_journal(layout, settings, figures["applied"])
    if newest and newest["described"]["applied"] > journal["events"]:
        ahead = f"checkpoint {newest['described']['name']} is ahead of the journal"
        problems.append(f"{ahead}: `learn` sets it aside when it starts")
    silent = max(0.0, time.time() - report["at"]) if report else 0.0
    pressing = [alarm.text for alarm in alarms(layout.path, report, silent)]
    return {
        "workspace": str(layout.path),
        "doing": _doing(running, report),
        "running": running,
        "pid": report["pid"] if report else None,
        "device": report["device"] if report else None,
        "seconds_since_report": silent if report else None,
        **{name: value for name, value in figures.items() if name != "applied"},
        **journal,
        "memory": figures["memory"] or {"samples": None, "bytes": None, "budget": settings.memory_bytes},
        "stream": report["stream"] if report else None,
        "checkpoint": newest["described"] if newest else None,
        "problems": pressing + problems,
        "alarms": pressing,
    }


def _doing(running: bool | None, report: dict[str, Any] | None) -> str:
    if report is None:
        return {True: "running", False: "not running", None: "unknown"}[running]
    if report["phase"] not in ENDED and time.time() - report["at"] > SILENT_SECONDS:
        return "silent" if running else "unknown"
    return str(report["phase"])


def _checkpoint(folder: Path) -> dict[str, Any]:
    """What a checkpoint says of its learner; its tensors stay unread."""
    try:
        facts = checkpoint.facts(folder)
        notes = facts["notes"]
        measured = {
            "test_then_train": TestThenTrain.from_state(notes["test_then_train"]).summary(),
            "held_out": HeldOut.from_state(notes["held_out"]).summary(),
        }
        figures = _figures({**notes, **measured, "step": facts["step"]})
        ago = max(0.0, time.time() - folder.stat().st_mtime)
        described = {"name": folder.name, "step": figures["step"], "applied": figures["applied"]}
        return {"described": {**described, "seconds_ago": ago}, "figures": figures}
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise UserError(str(error)) from None


def _nothing_learned() -> dict[str, Any]:
    measured = {"test_then_train": TestThenTrain().summary(), "held_out": HeldOut().summary()}
    memory = {"samples": 0, "bytes": {"total": 0}, "budget": 0}
    figures = _figures({**measured, "memory": memory, "step": 0, "applied": 0, "suspicious": []})
    return {**figures, "step": None, "memory": None}


def _figures(said: dict[str, Any]) -> dict[str, Any]:
    """The figures of a learner's report or of a checkpoint, as `status` shows them."""
    memory, held_out, tested = said["memory"], said["held_out"], said["test_then_train"]
    samples = int(held_out["samples"])
    return {
        "step": int(said["step"]),
        "applied": int(said["applied"]),
        "memory": {
            **{name: int(memory[name]) for name in ("samples", "budget")},
            "bytes": int(memory["bytes"]["total"]),
        },
        "held_out": {
            "accuracy": held_out["accuracy"],
            "samples": samples,
            "few": samples < FEW,
            "step": held_out.get("step") if samples else None,
            "classes": held_out.get("classes", {}),
            "confusion": held_out.get("confusion", []),
        },
        "test_then_train": {
            "accuracy": tested["accuracy"],
            "labels": tested["labels"],
            "recent_accuracy": tested["recent"]["accuracy"],
            "recent_labels": tested["recent"]["labels"],
            "classes": tested.get("classes", {}),
        },
        "suspicious": list(said["suspicious"]),
    }


def _from_journal(layout: Layout, settings: Settings, applied: int) -> dict[str, Any]:
    with reading(layout.journal) as journal:
        counts, events, classes = journal.counts(), journal.last_seq, len(journal.classes())
        counters = journal.counters()
    return {
        **{"labels": counts.labels, "held_out_labels": counts.held_out, "classes": classes},
        **{"events": events, "events_waiting": max(0, events - applied)},
        "queue": {
            "samples": counts.queued,
            "bytes": counts.queued_bytes,
            "most_samples": settings.queue_samples,
            "most_bytes": settings.queue_bytes,
        },
        "disk": {
            "images": counts.images,
            "bytes": counts.image_bytes,
            "budget": settings.disk_bytes,
            "archive": settings.archive,
        },
        "counters": counters,
    }


# For people -------------------------------------------------------------------------------------------------------


def describe(status: dict[str, Any]) -> str:
    """The same in a few aligned lines."""
    test, queue, disk = status["test_then_train"], status["queue"], status["disk"]
    held_out, newest = f"{status['held_out_labels']:,} held out", status["checkpoint"]
    before = accuracy_text(test["accuracy"], test["labels"])
    lately = f", lately {accuracy_text(test['recent_accuracy'], test['recent_labels'])}"
    stored = f"{format_bytes(disk['bytes'])} of {format_bytes(disk['budget'])} in {disk['images']:,} images"
    gate = [
        f"{value:,} {name.replace('skipped_', 'skipped as ')}" for name, value in status["counters"].items()
    ]
    lines = [
        ("workspace", status["workspace"]),
        ("doing", _doing_text(status)),
        ("labels", f"{status['labels']:,} in {many(status['classes'], 'class')}, {held_out}"),
        ("memory", _memory_text(status["memory"])),
        ("held-out", accuracy_text(status["held_out"]["accuracy"], status["held_out"]["samples"])),
        ("test-then-train", before + (lately if test["labels"] else "")),
        (
            "queue",
            f"{queue['samples']:,} of {queue['most_samples']:,} samples, {format_bytes(queue['bytes'])}",
        ),
        (
            "checkpoint",
            f"step {newest['step']:,}, {format_duration(newest['seconds_ago'])} ago"
            if newest
            else "none yet",
        ),
        ("disk", stored + (", an archive beyond that" if disk["archive"] else "")),
        ("gate", ", ".join(gate) or "no frames yet"),
    ]
    if stream := status["stream"]:
        lines.append(("source", f"{stream['name']}: {stream['message']}"))
    if count := len(status["suspicious"]):
        listed = f"`samples {status['workspace']} list --suspicious`"
        lines.append(("suspicious", f"{many(count, 'label')} that the other samples contradict: {listed}"))
    lines += [("problem", problem) for problem in status["problems"]]
    return "\n".join(f"{name:<17}{text}" for name, text in lines)


def _doing_text(status: dict[str, Any]) -> str:
    text = str(status["doing"])
    if text == "silent":
        text = (
            f"no sign of life for {format_duration(status['seconds_since_report'])}: it hangs, or is stopped"
        )
    parts = [f"process {status['pid']}", f"on {status['device']}"] if status["pid"] is not None else []
    if status["step"] is not None:
        parts.append(f"step {status['step']:,}")
    if status["events_waiting"]:
        parts.append(f"{status['events_waiting']:,} events to learn")
    return f"{text} ({', '.join(parts)})" if parts else text


def _memory_text(memory: dict[str, Any]) -> str:
    if memory["bytes"] is None:
        return f"{format_bytes(memory['budget'])} allowed; what it holds is known once it has run"
    filled = min(BAR, round(BAR * memory["bytes"] / memory["budget"]))
    held = f"{format_bytes(memory['bytes'])} of {format_bytes(memory['budget'])}"
    return f"{'▓' * filled}{'░' * (BAR - filled)} {held}, {memory['samples']:,} samples"
