"""What all pages share: the room that is shown (`app/rooms.py`), what can be done there, and what belongs to the own one
alone: its publisher, its models and its benchmarks.

Every method may be called from any thread, and raises a `UserError` for bad input.
"""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Callable
from dataclasses import asdict
from typing import Any, TypeVar

from app.arguments import ClassId, Done, Flag, Id, Ids, Numbers, Point, Seen, Share, Text
from app.arrangement import choose_key, move_class
from app.bench_runs import BenchRuns
from app.data_fetch import DataFetch
from app.feeder import Shown
from app.meanwhile import in_words, labelled_meanwhile
from app.published import Models
from app.rooms import Rooms
from app.states import frame_state, learned_state, source_state
from edge_hpcr.common.errors import UserError
from edge_hpcr.common.text import many
from edge_hpcr.learner.learner import resolve_device
from edge_hpcr.live.status import accuracy_text
from edge_hpcr.live.verdict import ClassHealth, Contradiction, Verdict, health, verdict
from edge_hpcr.stream import Rules
from edge_hpcr.stream.region import Region
from edge_hpcr.workspace.folder import Taken, Workspace
from edge_hpcr.workspace.history import history, taken_back_text
from edge_hpcr.workspace.records import Event
from edge_hpcr.workspace.settings import Settings
from export.publish.policy import Policy
from export.publish.publisher import Publisher, publisher_of
from export.publish.versions import latest_or_none

T = TypeVar("T")
HISTORY_SHOWN = 100  # actions
STATE_SECONDS = 0.1  # pages ask several times a second, each of them; the answer is made once
LEARNED_SHOWN = 12
PATIENCE = 30.0  # seconds for the learner to end its step


class Studio(Rooms):
    def __init__(self, workspace: Workspace, rules: Rules | None = None) -> None:
        super().__init__(workspace, rules)
        self.runs = BenchRuns(workspace.layout.benchmarks)
        self.data = DataFetch(self.runs.root, rules)
        self.models = Models(self.live, self.policy)
        self.publisher: Publisher | None = None
        self._publishing = threading.Lock()
        self._retired: list[Publisher] = []  # stopping, perhaps with a last version under way
        self._state: dict[str, Any] = {}
        self._latest_version: int | None = None
        self._looked_for_version = 0.0

    def start(self) -> None:
        self.own.start()
        self.arrange_publishing()

    def stop(self) -> int:
        """End; returns how many labels of the source could not be stored."""
        self.leave_demonstration()
        self._end_of_own_parts()()
        self.data.stop()
        return self.own.stop()

    def _end_of_own_parts(self) -> Callable[[], None]:
        """What ends the present publisher, models and benchmarks: what is under way is finished, or can be continued."""
        with self._publishing:
            publishers = [each for each in (self.publisher, *self._retired) if each is not None]
        models, runs = self.models, self.runs

        def end() -> None:
            for publisher in publishers:
                publisher.stop()
            models.stop()
            runs.stop()

        return end

    def _replace_own_parts(self) -> Callable[[], None]:
        end = self._end_of_own_parts()
        self.publisher, self._retired = None, []
        self.runs = BenchRuns(self.own.workspace.layout.benchmarks)
        self.models = Models(self.own.live, self.policy)
        self._looked_for_version = 0.0
        self.arrange_publishing()
        return end

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
        held_out = sum(move.held_out for move in event.moves)
        many = f" · {changed} pictures" if changed > 1 else ""
        part = f"{held_out} of them " if changed > 1 else ""
        kept = f" · {part}kept for measuring, not for learning" if held_out else ""
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
            self.transfers.refuse_during_import()
            return self._taken_back(self.journal.undo(), "undone")

    def redo(self) -> Done:
        with self._labelling:
            return self._taken_back(self.journal.redo(), "done again")

    def undo_to(self, seq: Point, newest: Point) -> Done:
        """Take back everything after an action of the history, whose newest action the page knows."""
        with self._labelling:
            self.transfers.refuse_during_import()
            with self.journal.transaction():
                back = itertools.takewhile(lambda entry: entry.seq > seq, history(self.journal))
                count = sum(not entry.undone for entry in back)
                event = self.journal.undo_to(seq, newest)
        self.live.notify()
        return Done(f"undone: {many(count, 'action')}{_lost(event)}", event.seq, None, len(event.moves))

    def history(self) -> dict[str, Any]:
        """The last actions, and whether there are more."""
        shown = list(itertools.islice(history(self.journal), HISTORY_SHOWN + 1))
        entries = [
            {name: getattr(entry, name) for name in ("seq", "at", "text", "undone", "author")}
            for entry in shown[:HISTORY_SHOWN]
        ]
        return {"entries": entries, "more": len(shown) > HISTORY_SHOWN}

    def _taken_back(self, event: Event, how: str) -> Done:
        self.live.notify()
        what = taken_back_text(self.journal, event)
        return Done(f"{how}: {what}{_lost(event)}", event.seq, None, len(event.moves))

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
            stay = labelled_meanwhile(self.journal, samples, seen or [], class_id)
            rest = [i for i in samples if i not in stay]
            if stay and not rest:
                raise UserError(in_words(stay))
            event = self.journal.label(rest, class_id)
        self.live.notify()
        changed = len(event.moves)
        told = f"{changed} labelled {self.class_name(class_id)}" + (f"; {in_words(stay)}" if stay else "")
        return Done(told, event.seq, class_id, changed)

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

    def move_class(self, class_id: ClassId, place: Id) -> Done:
        with self._labelling:
            move_class(self.workspace, class_id, place)
        return Done(f"{self.class_name(class_id)} moved", None, class_id)

    def choose_key(self, class_id: ClassId, key: Text) -> Done:
        with self._labelling:
            choose_key(self.workspace, class_id, key)
        told = f"has the key {key.strip()}" if key.strip() else "has the key of its place"
        return Done(f"{self.class_name(class_id)} {told}", None, class_id)

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
        return self._room.classes.names()

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

    def use_source(self, source: Text, labels: Text = "none", page: Text = "") -> Done:
        """Change the source; `page` names the page whose camera it is, if it is a browser's."""
        source = source.strip()
        self.feeder.choose(source, labels, page)
        self.workspace.change_settings(source=source, source_labels=labels)
        stream = self.feeder.stream
        return Done(f"source: {stream.name if stream else source}")

    def set_region(self, source: Text, region: Numbers | None = None) -> Done:
        """Look at a part of this source's picture only; without numbers, at all of it."""
        stream = self.feeder.stream
        if stream is None or stream.name != source:
            raise UserError("another source is shown by now: draw the region on its picture")
        chosen = None if region is None else Region.of(region)
        self.feeder.set_region(chosen)
        if chosen is None:
            return Done(f"{source}: the whole picture is learned from now on")
        return Done(f"{source}: only what is inside the frame is learned from now on")

    def close_source(self) -> Done:
        """Let no source run until somebody chooses one."""
        self.feeder.close()
        self.workspace.change_settings(source="", source_labels="none")
        return Done("no source")

    def set_unknown_share(self, share: Share) -> Done:
        """How many known pictures in a hundred may be called unknown; at once."""
        self.workspace.change_settings(unknown_share=float(share))
        self.between_steps(self.live.self_test.recalibrate)
        return Done(f"{100 * share:.0f} in 100 known pictures may be called unknown")

    def try_unknown_share(self, share: float) -> dict[str, Any]:
        """What such a share would have done to the pictures that were shown last."""
        line = self.live.self_test.calibration_for(min(max(share, 0.0), 0.5)).unknown_below
        recent = list(self.feeder.recent)
        unknown = 0 if line is None else sum(answer.similarity < line for answer in recent)
        return {"calibrated": line is not None, "unknown": unknown, "pictures": len(recent)}

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
        return Policy.of(self.own.workspace.settings)

    def arrange_publishing(self) -> None:
        """Start, change or end periodic publishing, as the settings say."""
        with self._publishing:
            ended = ("stopped", "failed")
            self._retired = [each for each in self._retired if each.status().phase not in ended]
            if self.publisher is not None:
                self._retired.append(self.publisher)
                # In a thread: it finishes the version under way, which takes time.
                threading.Thread(target=self.publisher.stop, name="publisher's end", daemon=True).start()
            self.publisher = publisher_of(self.own.live)
            if self.publisher is not None:
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
            return {**self._state, **self._room.classes.since(since)}

    def _make_state(self) -> dict[str, Any]:
        status = self.live.status()
        counts = self.journal.counts()
        share, measured = (status["held_out"][name] for name in ("accuracy", "samples"))
        progress = self.live.progress
        return {
            "room": self.room_name,
            "demonstration": self.demonstrates,
            "workspace": self.own.workspace.path.resolve().name,
            "phase": self.live.phase,
            "progress": None if progress is None else round(progress, 2),
            "verdict": asdict(self.verdict(status)),
            "step": status["step"],
            "labels": counts.labels,
            "waiting": status["labels_waiting"],
            "queue": counts.queued,
            "memory": {"used": status["memory"]["bytes"]["total"], "budget": status["memory"]["budget"]},
            "held_out": {"accuracy": share, "samples": measured, "text": accuracy_text(share, measured)},
            "model": self._version(),
            "unknown_share": self.workspace.settings.unknown_share,
            "source": source_state(self.feeder),
            "frame": frame_state(self.feeder),
            "learned": [learned_state(reply) for reply in list(self.live.recent)[-LEARNED_SHOWN:]],
            "alarms": [alarm.text for alarm in self.live.alarms()],
            "problems": list(self.live.problems),
            "transfer": self.transfers.state(),
            "seq": self.journal.last_seq,
        }

    def reasons_not_ready(self) -> list[str]:
        """Why nobody should rely on this page now; asked rarely, since it writes to the disk."""
        reasons = [alarm.text for alarm in self.own.live.alarms() if alarm.stops]
        try:
            self.own.journal.check_writable()
        except UserError as error:
            reasons.append(str(error))
        self.state()  # which all pages wait for
        return reasons

    def verdict(self, status: dict[str, Any] | None = None) -> Verdict:
        """Is it any good? Of the learner's present report, or of this one."""
        status = status or self.live.status()
        doubts = [
            Contradiction(each["one"], each["other"], tuple(each["samples"]))
            for each in status["contradictions"]
        ]
        return verdict(self._room.classes.rows(), status["answers"], doubts, self.live.calibrates)

    def health(self) -> list[ClassHealth]:
        """How each class is doing."""
        return health(self._room.classes.rows(), self.live.status()["answers"])

    def _version(self) -> int | None:
        if time.monotonic() - self._looked_for_version > 1.0:
            self._looked_for_version = time.monotonic()
            self._latest_version = latest_or_none(self.own.workspace.layout.exports)
        return self._latest_version


def _lost(event: Event) -> str:
    return f"; {many(len(event.lost), 'image')} gone, which stay deleted" if event.lost else ""
