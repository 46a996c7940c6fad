"""What all pages share: one workspace, its learner, the source that feeds it, its publisher and its benchmarks.

Every method may be called from any thread, and raises a `UserError` for bad input.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, Any, TypeVar

from pydantic import Field

from app.bench_runs import BenchRuns
from app.browser_camera import SPEC as BROWSER
from app.changing import ChangingClasses
from app.feeder import Feeder, Shown
from app.published import Models
from app.sample_answers import SampleAnswers
from app.transfers import Transfers
from edge_hpcr.common.errors import UserError
from edge_hpcr.common.text import many
from edge_hpcr.learner.learner import resolve_device
from edge_hpcr.live.live_learner import LiveLearner
from edge_hpcr.live.predictor import Answer
from edge_hpcr.live.status import accuracy_text
from edge_hpcr.live.teaching import Learned
from edge_hpcr.stream import DEMONSTRATION, Rules
from edge_hpcr.workspace.folder import Taken, Workspace
from edge_hpcr.workspace.records import Event
from edge_hpcr.workspace.settings import Settings
from export.publish.policy import Policy
from export.publish.publisher import Publisher
from export.publish.versions import latest_or_none

T = TypeVar("T")
# What a page may send; `app/actions.py` checks the methods' arguments by these, and refuses others by the description.
WHOLE, MOST_IDS = "a whole number", 5000
Id = Annotated[int, Field(gt=0, lt=2**53, description=WHOLE)]
ClassId = Annotated[int, Field(gt=0, lt=2**53, description=WHOLE, alias="class")]
Ids = Annotated[
    list[Annotated[int, Field(gt=0, lt=2**53)]],
    Field(max_length=MOST_IDS, description=f"a list of at most {MOST_IDS} whole numbers"),
]
Seen = Annotated[
    list[Annotated[int, Field(ge=0, lt=2**53)]],
    Field(max_length=MOST_IDS, description=f"a list of at most {MOST_IDS} whole numbers"),
]
Text = Annotated[str, Field(max_length=2000, description="a text")]
Flag = Annotated[bool, Field(description="true or false")]

STATE_SECONDS = 0.1  # pages ask several times a second, each of them; the answer is made once
LEARNED_SHOWN = 12
MOST_ADVISED = 3  # classes that are named as wanting labels
PATIENCE = 30.0  # seconds for the learner to end its step
DONE_TEXTS = {
    "label": "labelled",
    "correct": "corrected",
    "dismiss": "dismissed",
    "delete": "deleted",
    "create_class": "a new class",
    "rename_class": "a new name",
    "recolour_class": "a new colour",
    "merge_classes": "merged classes",
    "delete_class": "deleted a class",
    "undo_import": "took an import back",
}


@dataclass(frozen=True)
class Done:
    """An action that is on disk."""

    message: str
    seq: int | None = None  # of the journal, by which the learner's reply is found
    class_id: int | None = None
    samples: int = 0


class Studio:
    def __init__(self, workspace: Workspace, rules: Rules | None = None) -> None:
        self.workspace = workspace
        self.journal = workspace.journal
        self.live = LiveLearner(workspace)
        self.feeder = Feeder(workspace, self.live, rules)
        self.runs = BenchRuns(workspace.layout.benchmarks)
        self.models = Models(self.live, self.policy)
        self.transfers = Transfers(workspace, self.live, rules)
        self.answers = SampleAnswers(self.live)
        self.publisher: Publisher | None = None
        # Actions one after the other: an undo must not overtake the label whose images are still on their way to disk.
        self._labelling = threading.RLock()
        self._publishing = threading.Lock()
        self._retired: list[Publisher] = []  # stopping, perhaps with a last version under way
        self._stating = threading.Lock()
        self._classes = ChangingClasses(self.journal)
        self._state: dict[str, Any] = {}
        self._stated_at = 0.0
        self._latest_version: int | None = None
        self._looked_for_version = 0.0

    def start(self) -> None:
        self.live.start()
        self.feeder.start()
        settings = self.workspace.settings
        self.feeder.resume(settings.source, settings.source_labels)
        self.arrange_publishing()

    def stop(self) -> int:
        """End; returns how many labels of the source could not be stored."""
        with self._publishing:
            for publisher in (self.publisher, *self._retired):
                if publisher is not None:
                    publisher.stop()
        self.models.stop()
        unstored = self.feeder.stop()
        self.transfers.stop()
        self.runs.stop()
        self.live.stop()
        return unstored

    # Teaching ---------------------------------------------------------------------------------------------------------

    def label_frames(self, frames: Ids, class_id: ClassId) -> Done:
        """Label frames that the page has shown; one action for all of them, on disk when this returns."""
        if not frames:
            raise UserError("there is no frame yet: choose a source first")
        return self._label(frames, lambda: class_id)

    def new_class(self, name: Text, frames: Ids | None = None) -> Done:
        """Make a class, with these frames as its first samples; a name that exists already means that class."""
        if frames:
            return self._label(frames, lambda: self.journal.class_named(name))
        class_id = self.journal.class_named(name)
        return Done(f"{self.class_name(class_id)}: a class without samples yet", None, class_id)

    def _label(self, frames: list[int], find_class: Callable[[], int]) -> Done:
        with self._labelling:
            shown = self._still_here(frames)
            for frame in shown:
                if frame.sample_id is None and frame.digest is not None:
                    frame.sample_id = self.journal.known_source(frame.digest)
            # The queue may have dropped a sample since; then the frame is taken again.
            known = [each for each in shown if each.sample_id is not None and self._is_here(each.sample_id)]
            fresh = [each for each in shown if each not in known]
            # A sample that was dropped keeps the file's digest: the one that replaces it has none.
            digests = [each.digest if each.sample_id is None else None for each in fresh]
            taken = [
                Taken(each.image, each.origin, digest, each.hash64, each.answer.priority)
                for each, digest in zip(fresh, digests, strict=True)
            ]
            with self.workspace.taking(taken) as ids:
                for frame, sample_id in zip(fresh, ids, strict=True):
                    self.live.name_sample(sample_id, frame.image)
                class_id = find_class()  # in the same transaction: a failure leaves no new class behind
                event = self.journal.label([*(each.sample_id or 0 for each in known), *ids], class_id)
            for frame, sample_id in zip(fresh, ids, strict=True):
                frame.sample_id = sample_id
        self.live.notify()
        if self.feeder.held:
            self.feeder.hold(False)
        name = self.class_name(class_id)
        changed = len(event.moves)
        if not changed:
            return Done(f"{name}: saved already", None, class_id, 0)
        held_out = all(move.held_out for move in event.moves)
        many = f" · {changed} frames" if changed > 1 else ""
        kept = " · kept for measuring, not for learning" if held_out else ""
        return Done(f"{name} saved{many}{kept}", event.seq, class_id, changed)

    def _still_here(self, numbers: list[int]) -> list[Shown]:
        """The frames that are still kept: of a burst, a few may be gone."""
        kept = [frame for frame in map(self.feeder.find, dict.fromkeys(numbers)) if frame is not None]
        return kept or [self.feeder.shown(numbers[0])]

    def hold(self, held: Flag = False, frame: Id | None = None) -> Done:
        self.feeder.hold(held, frame)
        return Done("the picture stands still: label it, or Space goes on" if held else "")

    def _is_here(self, sample_id: int) -> bool:
        try:
            row = self.journal.sample(sample_id)
        except UserError:
            return False
        return row.state in ("labelled", "queued", "dismissed") and (row.has_image or row.state == "labelled")

    def undo(self) -> Done:
        with self._labelling:
            return self._taken_back(self.journal.undo(), "undone")

    def redo(self) -> Done:
        with self._labelling:
            return self._taken_back(self.journal.redo(), "done again")

    def _taken_back(self, event: Event, how: str) -> Done:
        self.live.notify()
        kinds = [e for e in self.journal.events_after((event.of or 1) - 1, limit=1) if e.seq == event.of]
        what = DONE_TEXTS.get(kinds[0].kind, kinds[0].kind) if kinds else "the last action"
        lost = f"; {len(event.lost)} images are gone and stay deleted" if event.lost else ""
        samples = f" ({len(event.moves)} samples)" if len(event.moves) > 1 else ""
        return Done(f"{how}: {what}{samples}{lost}", event.seq, None, len(event.moves))

    def clear_problem(self, problem: Text) -> Done:
        """Hide a problem until it happens again."""
        self.live.clear_problem(problem)
        return Done("no longer shown")

    # Samples and classes ----------------------------------------------------------------------------------------------

    def label_samples(self, samples: Ids, class_id: ClassId, seen: Seen | None = None) -> Done:
        """Label samples; `seen` are the classes that the page showed of them, 0 for none.

        What somebody else has labelled differently meanwhile stays so: whoever looks at it then may decide anew.
        """
        with self.journal.transaction():  # nobody labels between looking and labelling
            taken = self._labelled_meanwhile(samples, seen or [], class_id)
            stay = [f"sample {i} stays {what}" for i, what in [*taken.items()][:MOST_ADVISED]]
            if len(taken) > MOST_ADVISED:
                stay.append(f"and so do {len(taken) - MOST_ADVISED} others")
            rest = [i for i in samples if i not in taken]
            if taken and not rest:
                raise UserError("; ".join(stay))
            event = self.journal.label(rest, class_id)
        self.live.notify()
        changed = len(event.moves)
        told = f"{changed} labelled {self.class_name(class_id)}"
        return Done("; ".join([told, *stay]), event.seq, class_id, changed)

    def _labelled_meanwhile(self, samples: list[int], seen: list[int], class_id: int) -> dict[int, str]:
        """Samples that have another class than the page showed, in words."""
        now = self.journal.labels_of(samples)
        other = {
            i: now[i]
            for i, was in zip(samples, seen, strict=False)
            if now.get(i) not in (None, was, class_id)
        }
        authors = self.journal.authors_of(other)
        return {
            i: f"{self.class_name(each)}, which {authors.get(i, 'somebody')} has called it meanwhile"
            for i, each in other.items()
        }

    def label_samples_as(self, samples: Ids, name: Text, seen: Seen | None = None) -> Done:
        """Label samples by the class's name; the class is made if there is none of that name."""
        with self.journal.transaction():  # a sample that is gone must not leave a class behind
            return self.label_samples(samples, self.journal.class_named(name), seen)

    def dismiss(self, samples: Ids) -> Done:
        event = self.journal.dismiss(samples)
        return Done(f"{len(samples)} dismissed", event.seq, None, len(samples))

    def delete_samples(self, samples: Ids) -> Done:
        event = self.journal.delete_samples(samples)
        self.live.notify()
        return Done(f"{len(samples)} deleted", event.seq, None, len(samples))

    def create_class(self, name: Text) -> Done:
        class_id = self.journal.create_class(name)
        return Done(f"{self.class_name(class_id)}: a new class, without labels yet", None, class_id)

    def rename_class(self, class_id: ClassId, name: Text) -> Done:
        event = self.journal.rename_class(class_id, name)
        return Done(f"now called {self.class_name(class_id)}", event.seq, class_id)

    def recolour_class(self, class_id: ClassId, colour: Text) -> Done:
        event = self.journal.recolour_class(class_id, colour)
        return Done(f"{self.class_name(class_id)} has a new colour", event.seq, class_id)

    def merge_classes(self, class_id: ClassId, into: Id) -> Done:
        name = self.class_name(class_id)
        moved = self.journal.merge_classes(class_id, into)
        self.live.notify()
        return Done(
            f"{name} merged into {self.class_name(into)}: {many(moved, 'sample')} moved", None, into, moved
        )

    def delete_class(self, class_id: ClassId) -> Done:
        name = self.class_name(class_id)
        lost = self.journal.delete_class(class_id)
        self.live.notify()
        return Done(f"{name} deleted with {many(lost, 'sample')}; u undoes it", None, None, lost)

    def class_name(self, class_id: int) -> str:
        return self.journal.class_name(class_id) or f"class {class_id}"

    def class_names(self) -> dict[int, str]:
        return self._classes.names()

    # Import and export ------------------------------------------------------------------------------------------------

    def look_at_import(self, path: Text) -> Done:
        return Done(f"looking at {self.transfers.look_at_folder(path).name} …")

    def choose_split(self, number: Id, split: Text) -> Done:
        self.transfers.choose_split(number, split)
        return Done("")

    def take_import(self, number: Id) -> Done:
        return Done(f"importing {self.transfers.take_found(number).name} …")

    def undo_import(self, number: Id) -> Done:
        with self._labelling:
            told = self.transfers.undo_import(number)
        self.live.notify()
        return Done(told)

    def export_samples(self) -> Done:
        return Done(f"exporting {self.transfers.export().name} …")

    def cancel_transfer(self) -> Done:
        self.transfers.cancel()
        return Done("cancelling …")

    # Source, settings, publishing -------------------------------------------------------------------------------------

    def use_source(self, source: Text, labels: Text = "none") -> Done:
        source = source.strip()
        self.feeder.choose(source, labels)
        self.workspace.change_settings(source=source, source_labels=labels)
        stream = self.feeder.stream
        return Done(f"source: {stream.name if stream else source}")

    def push_browser_frame(self, image: Any) -> bool:
        """False when another source has been chosen since."""
        camera = self.feeder.browser_camera
        if camera is not None:
            camera.push(image)
        return camera is not None

    def between_steps(self, look: Callable[[], T], patience: float | None = None) -> T:
        """Run something short in the learning thread, which alone may look into the learner, and wait for it."""
        asked = self.live.call(look)
        try:
            return asked.result(timeout=PATIENCE if patience is None else patience)
        except TimeoutError as error:
            asked.cancel()  # it must not happen after the refusal
            raise UserError("the learner is busy with a long step: try again in a moment") from error

    def change_settings(self, **changes: object) -> Settings:
        """Change settings and keep them; some take effect at the next start only."""
        if "device" in changes:
            resolve_device(str(changes["device"]))  # refused now, and not at the next start
        if {"backbone", "weights", "image_size", "method"} & changes.keys():
            settings = self._change_learner(changes)
        else:
            settings = self.workspace.change_settings(**changes)
        if any(name.startswith("publish_") for name in changes):
            self.arrange_publishing()
        return settings

    def _change_learner(self, changes: dict[str, object]) -> Settings:
        """Change what the network is made from: only as long as it has learned nothing."""

        def change() -> Settings:
            before = {name: getattr(self.workspace.settings, name) for name in changes}
            settings = self.workspace.change_settings(**changes)
            try:
                self.live.make_anew()
            except BaseException:
                self.workspace.change_settings(**before)
                raise
            return settings

        # In the learning thread: no label can come in between.
        return self.between_steps(change)

    def policy(self) -> Policy:
        settings = self.workspace.settings
        return Policy(most_drop=settings.publish_most_drop, keep=settings.publish_keep)

    def arrange_publishing(self) -> None:
        """Start, change or end periodic publishing, as the settings say."""
        with self._publishing:
            ended = ("stopped", "failed")
            self._retired = [each for each in self._retired if each.status().phase not in ended]
            if self.publisher is not None:
                self._retired.append(self.publisher)
                # In a thread: it finishes the version under way, which takes time.
                threading.Thread(target=self.publisher.stop, name="publisher's end", daemon=True).start()
            self.publisher = None
            settings = self.workspace.settings
            if settings.publish_steps or settings.publish_seconds:
                self.publisher = Publisher(
                    self.live,
                    self.policy(),
                    every_steps=settings.publish_steps or None,
                    every_seconds=float(settings.publish_seconds) or None,
                )
                self.publisher.start()

    # The state for the pages ------------------------------------------------------------------------------------------

    def state(self, fresh: bool = False, since: str = "") -> dict[str, Any]:
        """As of a tenth of a second ago at most; cheap however many pages ask, and however many classes there are.

        `since` is the version of the classes that a page has: it gets those that have changed.
        """
        with self._stating:
            if fresh or time.monotonic() - self._stated_at > STATE_SECONDS:
                self._state = self._make_state()
                self._stated_at = time.monotonic()
            return {**self._state, **self._classes.since(since)}

    def _make_state(self) -> dict[str, Any]:
        status = self.live.status()
        counts = self.journal.counts()
        share, measured = (status["held_out"][name] for name in ("accuracy", "samples"))
        return {
            "phase": self.live.phase,
            "step": status["step"],
            "labels": counts.labels,
            "waiting": status["labels_waiting"],
            "queue": counts.queued,
            "memory": {"used": status["memory"]["bytes"]["total"], "budget": status["memory"]["budget"]},
            "held_out": {"accuracy": share, "samples": measured, "text": accuracy_text(share, measured)},
            "model": self._version(),
            "advice": self._advice(),
            "source": self._source_state(),
            "frame": self._frame_state(),
            "learned": [_learned(reply) for reply in list(self.live.recent)[-LEARNED_SHOWN:]],
            "alarms": [alarm.text for alarm in self.live.alarms()],
            "problems": list(self.live.problems),
            "transfer": self.transfers.state(),
            "seq": self.journal.last_seq,
        }

    def reasons_not_ready(self) -> list[str]:
        """Why nobody should rely on this page now; asked rarely, since it writes to the disk."""
        reasons = [alarm.text for alarm in self.live.alarms() if alarm.stops]
        try:
            self.journal.check_writable()
        except UserError as error:
            reasons.append(str(error))
        self.state()  # which all pages wait for
        return reasons

    def _advice(self) -> str:
        """What would help most, once rehearsal has done what it can."""
        if self.live.phase != "idle" or not (few_labels := self.live.self_test.few_labels):
            return ""
        names = self._classes.names()
        wanting = [each for each in few_labels if each.class_id in names]
        if len(names) < 2 or not wanting:
            return ""
        told = (
            f"{names[each.class_id]} ({each.right} of {each.samples} right)"
            for each in wanting[:MOST_ADVISED]
        )
        return f"More labels would help now, more rehearsal would not: {', '.join(told)}"

    def _version(self) -> int | None:
        if time.monotonic() - self._looked_for_version > 1.0:
            self._looked_for_version = time.monotonic()
            self._latest_version = latest_or_none(self.workspace.layout.exports)
        return self._latest_version

    def _source_state(self) -> dict[str, Any]:
        feeder, stream = self.feeder, self.feeder.stream
        if stream is None:
            none = {"spec": "", "name": "no source", "phase": "closed", "browser": False}
            return {**none, "message": feeder.problem or ""}
        state = stream.state()
        phase, message = (
            ("ended", "it has shown everything") if feeder.ended else (state.phase, state.message)
        )
        return {
            "spec": feeder.spec
            if feeder.spec in (BROWSER, DEMONSTRATION)
            else "other",  # it may hold a password
            "name": stream.name,
            "phase": phase,
            "message": feeder.problem or message,
            "dropped": state.dropped,
            "bad": state.bad,
            "browser": feeder.browser_camera is not None,
        }

    def _frame_state(self) -> dict[str, Any] | None:
        shown = self.feeder.newest()
        if shown is None:
            return None
        return {
            "number": shown.number,
            "held": self.feeder.held,
            "small": max(shown.image.shape[:2]) <= 64,
            "verdict": shown.verdict,
            **_answer(shown.answer),
        }


def _answer(answer: Answer) -> dict[str, Any]:
    return {
        "top": [[class_id, round(confidence, 4)] for class_id, confidence in answer.top],
        "unknown": answer.unknown,
        "similarity": round(answer.similarity, 3),
    }


def _learned(reply: Learned) -> dict[str, Any]:
    return {
        "seq": reply.seq,
        "sample": reply.sample_id,
        "class": reply.class_id,
        "before": _answer(reply.before),
        "after": _answer(reply.after),
        "held_out": reply.held_out,
        "seconds": round(reply.seconds, 3),
    }
