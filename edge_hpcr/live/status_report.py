"""How a workspace is, asked from another process: from the learner's own report while one runs, otherwise from disk.

Without PyTorch, and without reading anything large: whoever asks wants to know at once.
"""

import json
import time
from contextlib import closing
from pathlib import Path
from typing import Any

from edge_hpcr.common.errors import UserError
from edge_hpcr.common.units import format_bytes
from edge_hpcr.learner import checkpoint
from edge_hpcr.live.accuracy import HeldOut, TestThenTrain
from edge_hpcr.live.status import FEW, accuracy_text, read_status
from edge_hpcr.workspace.database import as_user_errors, open_read_only
from edge_hpcr.workspace.layout import Layout
from edge_hpcr.workspace.records import Counts
from edge_hpcr.workspace.settings import Settings
from edge_hpcr.workspace.tables import COUNTS

SILENT_SECONDS = 30.0  # a learner reports about once a second; a slow disk may take it some
ENDED = ("stopped", "failed")
BAR = 8  # characters

FIELDS = """\
  workspace                     its folder
  doing                         starting, learning, rehearsing, idle, stopped, failed, silent, or not running
  running, pid, device          whether a process learns in it, which one, and where it computes
  seconds_since_report          how old the learner's own report is
  step                          training steps so far
  labels, held_out_labels       labelled samples, and those of them that are kept for measuring
  classes                       number of classes
  events, events_waiting        in the journal, and those of them that are not learned yet
  memory.{samples, bytes, budget}
  held_out.{accuracy, samples, few, step, classes, confusion}    on samples that are never trained on; few: below
                                30; by class: recall, best, forgetting; true class, answer, how many
  test_then_train.{accuracy, labels, recent_accuracy, recent_labels, classes}    before each label was learned
  suspicious                    labels that their neighbours contradict: sample_id, class_id, suggested, strength
  stream.{name, phase, message, frames, dropped, bad, size}      what feeds the learner that runs
  queue.{samples, bytes, most_samples, most_bytes}
  checkpoint.{name, step, applied, seconds_ago}  the newest
  disk.{images, bytes, budget, archive}          archive: the budget does not bind labelled images
  counters                      queued, skipped_duplicate, skipped_sure, skipped_rate, …: since the beginning
  problems                      sentences
"""


def gather(path: Path) -> dict[str, Any]:
    """The object that `status --json` prints; FIELDS describes it."""
    layout = Layout(Path(path))
    if not layout.is_workspace():
        raise UserError(f"no workspace at {layout.path}: `learn --workspace {layout.path}` makes one")
    settings = Settings.load(layout.settings)
    report = read_status(layout.status)
    running = report is not None and report["phase"] not in ENDED
    newest, problems = _newest_checkpoint(layout)
    last = report or _last_report(layout)
    if last is not None:
        problems += last["problems"]
    known = (report if running else newest) or {}
    status = {
        "workspace": str(layout.path),
        "doing": _doing(report),
        "running": running,
        "pid": report["pid"] if report else None,
        "device": report["device"] if report else None,
        "seconds_since_report": max(0.0, time.time() - report["at"]) if report else None,
        "step": known.get("step"),
        **_from_journal(layout, settings, known.get("applied", 0)),
        "memory": _memory(known, settings),
        "held_out": _held_out(known),
        "test_then_train": _test_then_train(known),
        "suspicious": known.get("suspicious", []),
        "stream": report["stream"] if report else None,
        "checkpoint": None,
        "problems": problems,
    }
    if newest is not None:
        status["checkpoint"] = {key: newest[key] for key in ("name", "step", "applied", "seconds_ago")}
    return status


def _doing(report: dict[str, Any] | None) -> str:
    if report is None:
        return "not running"
    if report["phase"] not in ENDED and time.time() - report["at"] > SILENT_SECONDS:
        return "silent"  # it hangs; or it is gone, and another process has got its number
    return str(report["phase"])


def _last_report(layout: Layout) -> dict[str, Any] | None:
    """What the last process said at its end, or before it was killed."""
    try:
        report = json.loads(layout.status.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    return report if isinstance(report, dict) and {"applied", "step", "problems"} <= report.keys() else None


def _newest_checkpoint(layout: Layout) -> tuple[dict[str, Any] | None, list[str]]:
    """The facts of the newest checkpoint that can be read, in the form of a learner's report; its tensors stay unread."""
    problems = []
    for folder in reversed(layout.checkpoint_folders()):
        index = folder / checkpoint.INDEX
        try:
            facts = json.loads(index.read_text(encoding="utf-8"))["facts"]
            notes = facts["notes"]
            found = {
                "name": folder.name,
                "step": int(facts["step"]),
                "applied": int(notes["applied"]),
                "seconds_ago": max(0.0, time.time() - index.stat().st_mtime),
                "test_then_train": TestThenTrain.from_state(notes["test_then_train"]).summary(),
                "held_out": HeldOut.from_state(notes["held_out"]).summary(),
                "memory": notes["memory"],
                "suspicious": notes["suspicious"],
            }
        except (OSError, ValueError, KeyError, TypeError) as error:
            if folder.exists():  # a learner that runs removes old ones
                problems.append(f"checkpoint {folder} cannot be read ({error}): `verify` says more")
            continue
        return found, problems
    return None, problems


def _from_journal(layout: Layout, settings: Settings, applied: int) -> dict[str, Any]:
    with closing(open_read_only(layout.journal)) as db, as_user_errors(layout.journal):
        db.execute("BEGIN")
        counts = Counts(*db.execute(COUNTS).fetchone())
        (classes,) = db.execute("SELECT count(*) FROM classes WHERE state = 'live'").fetchone()
        (events,) = db.execute("SELECT coalesce(max(seq), 0) FROM events").fetchone()
        counters = dict(db.execute("SELECT name, value FROM counters ORDER BY name"))
    return {
        "labels": counts.labels,
        "held_out_labels": counts.held_out,
        "classes": classes,
        "events": events,
        "events_waiting": max(0, events - applied),
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


def _memory(known: dict[str, Any], settings: Settings) -> dict[str, Any]:
    memory = known.get("memory")
    if memory is None:
        return {"samples": None, "bytes": None, "budget": settings.memory_bytes}
    return {"samples": memory["samples"], "bytes": memory["bytes"]["total"], "budget": memory["budget"]}


def _held_out(known: dict[str, Any]) -> dict[str, Any]:
    test = known.get("held_out", {})
    samples = test.get("samples", 0)
    return {
        "accuracy": test.get("accuracy"),
        "samples": samples,
        "few": samples < FEW,
        "step": test.get("step") if samples else None,
        "classes": test.get("classes", {}),
        "confusion": test.get("confusion", []),
    }


def _test_then_train(known: dict[str, Any]) -> dict[str, Any]:
    test = known.get(
        "test_then_train", {"labels": 0, "accuracy": None, "recent": {"labels": 0, "accuracy": None}}
    )
    return {
        "accuracy": test["accuracy"],
        "labels": test["labels"],
        "recent_accuracy": test["recent"]["accuracy"],
        "recent_labels": test["recent"]["labels"],
        "classes": test.get("classes", {}),
    }


# For people -------------------------------------------------------------------------------------------------------


def describe(status: dict[str, Any]) -> str:
    """The same in a few aligned lines."""
    test, queue, disk = status["test_then_train"], status["queue"], status["disk"]
    lines = [
        ("workspace", status["workspace"]),
        ("doing", _doing_text(status)),
        (
            "labels",
            f"{status['labels']:,} in {status['classes']:,} classes, {status['held_out_labels']:,} held out",
        ),
        ("memory", _memory_text(status["memory"])),
        ("held-out", accuracy_text(status["held_out"]["accuracy"], status["held_out"]["samples"])),
        (
            "test-then-train",
            f"{accuracy_text(test['accuracy'], test['labels'])}"
            + (
                f", lately {accuracy_text(test['recent_accuracy'], test['recent_labels'])}"
                if test["labels"]
                else ""
            ),
        ),
        (
            "queue",
            f"{queue['samples']:,} of {queue['most_samples']:,} samples, {format_bytes(queue['bytes'])}",
        ),
        ("checkpoint", _checkpoint_text(status["checkpoint"])),
        (
            "disk",
            f"{format_bytes(disk['bytes'])} of {format_bytes(disk['budget'])} in {disk['images']:,} images"
            + (", an archive beyond that" if disk["archive"] else ""),
        ),
        ("gate", _gate_text(status["counters"])),
        *(
            [("source", f"{status['stream']['name']}: {status['stream']['message']}")]
            if status["stream"]
            else []
        ),
        *([("suspicious", _suspicious_text(status))] if status["suspicious"] else []),
        *[("problem", problem) for problem in status["problems"]],
    ]
    return "\n".join(f"{name:<17}{text}" for name, text in lines)


def _doing_text(status: dict[str, Any]) -> str:
    text = str(status["doing"])
    if text == "silent":
        text = f"no sign of life for {_duration(status['seconds_since_report'])}: it hangs or has been killed"
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


def _checkpoint_text(newest: dict[str, Any] | None) -> str:
    if newest is None:
        return "none yet"
    return f"step {newest['step']:,}, {_duration(newest['seconds_ago'])} ago"


def _suspicious_text(status: dict[str, Any]) -> str:
    count = len(status["suspicious"])
    return f"{count:,} labels that their neighbours contradict: `samples {status['workspace']} list --suspicious`"


def _gate_text(counters: dict[str, int]) -> str:
    texts = [f"{value:,} {name.replace('skipped_', 'skipped as ')}" for name, value in counters.items()]
    return ", ".join(texts) or "no frames yet"


def _duration(seconds: float) -> str:
    """
    >>> _duration(40), _duration(400), _duration(40000), _duration(400000)
    ('40 s', '7 min', '11 h', '5 days')
    """
    for unit, size, most in (("s", 1, 100), ("min", 60, 100), ("h", 3600, 72)):
        if seconds / size < most:
            return f"{seconds / size:.0f} {unit}"
    return f"{seconds / 86400:.0f} days"
