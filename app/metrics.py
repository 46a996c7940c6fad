"""What Prometheus may ask for, in its text format: counts, sizes, times, and whether something wants somebody."""

from __future__ import annotations

import bisect
import shutil
import threading
from collections import Counter
from collections.abc import Iterable, Sequence

import numpy as np

from app.studio import Studio

MEDIA_TYPE = "text/plain; version=0.0.4; charset=utf-8"
PREFIX = "edge_hpcr_"
BOUNDS = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5)  # seconds
Value = tuple[str, float]  # labels like {kind="x"}, or none; and the number


class Requests:
    """Counts what the page's scripts were answered, and how long their actions took. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._answers: Counter[str] = Counter()
        self._within = [0] * (len(BOUNDS) + 1)
        self._seconds = 0.0

    def count(self, answer: str) -> None:
        with self._lock:
            self._answers[answer] += 1

    def time(self, seconds: float) -> None:
        with self._lock:
            self._within[bisect.bisect_left(BOUNDS, seconds)] += 1
            self._seconds += seconds

    def lines(self) -> Iterable[str]:
        with self._lock:
            answers, within, seconds = dict(self._answers), list(self._within), self._seconds
        counted = [(f'{{answer="{name}"}}', answers.get(name, 0)) for name in ("done", "refused", "failed")]
        yield from _metric(
            "requests_total", "counter", "requests of the page, by what became of them", counted
        )
        name = f"{PREFIX}action_seconds"
        yield f"# HELP {name} from an action, such as a label, to its acknowledgement on disk"
        yield f"# TYPE {name} histogram"
        for bound, total in zip((*map(str, BOUNDS), "+Inf"), np.cumsum(within), strict=True):
            yield f'{name}_bucket{{le="{bound}"}} {total}'
        yield f"{name}_sum {seconds:.6f}"
        yield f"{name}_count {sum(within)}"


def text(studio: Studio, requests: Requests) -> str:
    own = studio.own  # also while the pages show the demonstration
    journal, status = own.journal, own.live.status()
    counts, alarms = journal.counts(), own.live.alarms()
    memory, settings, stream = status["memory"], own.workspace.settings, status["stream"]
    learned = [reply.seconds for reply in list(own.live.recent)]
    learned_at = [(f'{{quantile="{q}"}}', float(np.quantile(learned, q))) for q in (0.5, 0.95) if learned]
    held_out = status["held_out"]
    gauges: list[tuple[str, str, float | list[Value]]] = [
        ("labels", "labelled samples", counts.labels),
        ("held_out_labels", "labelled samples that are kept for measuring", counts.held_out),
        ("classes", "classes", len(own.classes.names())),
        ("queue_samples", "samples that wait for a label", counts.queued),
        ("queue_bytes", "bytes of their images", counts.queued_bytes),
        ("events", "labels and other actions in the journal", journal.last_seq),
        ("events_waiting", "those of them that are not learned yet", status["events_waiting"]),
        (
            "oldest_waiting_seconds",
            "how long a label has waited to be learned",
            status["oldest_waiting_seconds"],
        ),
        ("learned_seconds", "from a label to its having been learned, of the last 100", learned_at),
        (
            "held_out_accuracy",
            "on held-out samples",
            [] if held_out["accuracy"] is None else held_out["accuracy"],
        ),
        ("memory_bytes", "of the replay memory", memory["bytes"]["total"]),
        ("memory_budget_bytes", "that it may take", memory["budget"]),
        ("image_bytes", "of stored images", counts.image_bytes),
        ("image_budget_bytes", "that they may take", settings.disk_bytes),
        ("disk_free_bytes", "where the workspace is", shutil.disk_usage(own.workspace.path).free),
        ("source_live", "whether the source shows frames", bool(stream and stream["phase"] == "live")),
        ("problems", "that were reported and not put away", len(status["problems"])),
        ("alarms", "things that want somebody now", len(alarms)),
        ("ready", "as /healthz says, but for the journal", not any(alarm.stops for alarm in alarms)),
    ]
    lines = [line for name, says, value in gauges for line in _metric(name, "gauge", says, value)]
    lines += _metric("steps_total", "counter", "training steps", status["step"])
    frames = {name: (stream or {}).get(name, 0) for name in ("frames", "dropped", "bad")}
    lines += _metric(
        "source_frames", "gauge", "of the present source", [(f'{{kind="{k}"}}', n) for k, n in frames.items()]
    )
    return "\n".join([*lines, *requests.lines(), ""])


def _metric(name: str, kind: str, says: str, value: float | Sequence[Value]) -> Iterable[str]:
    values = value if isinstance(value, Sequence) else [("", value)]
    if values:
        yield f"# HELP {PREFIX}{name} {says}"
        yield f"# TYPE {PREFIX}{name} {kind}"
    for labels, number in values:
        yield f"{PREFIX}{name}{labels} {float(number):.10g}"
