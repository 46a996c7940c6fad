"""What a running learner tells other processes: a small file, replaced about once a second."""

import json
import textwrap
from pathlib import Path
from typing import TYPE_CHECKING, Any

from edge_hpcr.common.errors import UserError
from edge_hpcr.common.files import write_atomically
from edge_hpcr.common.units import format_bytes
from edge_hpcr.workspace.records import Counts

if TYPE_CHECKING:
    from edge_hpcr.stream import Stream  # OpenCV takes a moment, and `status` does not need it

FIELDS = frozenset(
    {
        *("pid", "at", "phase", "device", "step", "applied", "labels_waiting", "memory", "test_then_train"),
        *("held_out", "suspicious", "stream", "problems"),
    }
)
TROUBLE = ("stalled", "reconnecting")  # phases of a source
FEW = 30  # held-out samples: an accuracy on fewer is a guess


def write_status(path: Path, status: dict[str, Any]) -> None:
    # Not flushed to disk: after a power cut nobody runs whose status it could be.
    write_atomically(path, json.dumps(status, allow_nan=False), durable=False)


def read_status(path: Path) -> dict[str, Any] | None:
    """The last thing that a learner said, whether it still runs or not; None if none ever said anything."""
    try:
        status = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return None
    except OSError as error:
        raise UserError(f"the learner's report {path} cannot be read: {error.strerror}") from None
    except ValueError as error:
        raise UserError(f"the learner's report {path} is damaged: {error}") from None
    if not isinstance(status, dict) or not status.keys() >= FIELDS:
        raise UserError(f"the learner's report {path} is damaged: it is not what a learner writes")
    return status


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
        f"{counts.labels:,} labels{waiting}",
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
