"""Any sequence of actions: the journal agrees with a simple model, with its own events, and with itself after a restart."""

import shutil
import tempfile
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from edge_hpcr.common.errors import UserError
from edge_hpcr.workspace.journal import Journal
from edge_hpcr.workspace.records import QUEUED, Body, ClassState, SampleRow, SampleState

NAMES = st.sampled_from(["mug", "Mug", "MUG", "cup", "Cup", "ß", "SS", "pen"])


class JournalAgainstModel(RuleBasedStateMachine):
    """The model keeps whole copies of its state, where the journal keeps events; undo takes the copy before."""

    def __init__(self) -> None:
        super().__init__()
        self.folder = Path(tempfile.mkdtemp())
        self.open()
        self.classes: dict[int, str] = {}
        self.samples: dict[int, tuple[str, int | None]] = {}
        self.past: list[tuple[dict, dict]] = []
        self.future: list[tuple[dict, dict]] = []
        self.class_ids_seen: list[int] = []
        self.followed: dict[int, int] = {}  # what somebody who follows the moves believes
        self.follower_seq = 0

    def open(self) -> None:
        self.journal = Journal(self.folder / "journal.sqlite")
        self.journal._db.execute("PRAGMA synchronous = OFF")  # quicker; nothing here is about power cuts

    def teardown(self) -> None:
        self.journal.close()
        shutil.rmtree(self.folder)

    def act(self) -> None:
        self.past.append((dict(self.classes), dict(self.samples)))
        self.future.clear()

    def taken(self, name: str, own: int | None = None) -> bool:
        return any(n.casefold() == name.casefold() for i, n in self.classes.items() if i != own)

    def some(self, data, items, most=3):
        return data.draw(st.lists(st.sampled_from(sorted(items)), min_size=1, max_size=most, unique=True))

    def one(self, data) -> int:
        return data.draw(st.sampled_from(sorted(self.classes)))

    @rule(name=NAMES)
    def create(self, name):
        if self.taken(name):
            with pytest.raises(UserError):
                self.journal.create_class(name)
            return
        class_id = self.journal.create_class(name)
        assert class_id not in self.class_ids_seen, "an id was used again"
        self.class_ids_seen.append(class_id)
        self.act()
        self.classes[class_id] = name

    @rule(count=st.integers(1, 3))
    def take(self, count):
        for sample_id in self.journal.add_samples([SampleRow(bytes=10)] * count):
            assert sample_id not in self.samples
            # New samples are no action: they are there in every past and future as well.
            for samples in (self.samples, *(state[1] for state in (*self.past, *self.future))):
                samples[sample_id] = ("queued", None)

    @precondition(lambda self: self.classes)
    @rule(data=st.data(), name=NAMES)
    def rename(self, data, name):
        class_id = self.one(data)
        if self.taken(name, class_id):
            with pytest.raises(UserError):
                self.journal.rename_class(class_id, name)
        elif self.classes[class_id] != name:
            self.journal.rename_class(class_id, name)
            self.act()
            self.classes[class_id] = name

    @precondition(lambda self: self.classes and self.samples)
    @rule(data=st.data())
    def label(self, data):
        class_id, ids = self.one(data), self.some(data, self.samples)
        if any(self.samples[i][0] == "deleted" for i in ids):
            with pytest.raises(UserError):
                self.journal.label(ids, class_id)
            return
        self.journal.label(ids, class_id)
        if any(self.samples[i] != ("labelled", class_id) for i in ids):
            self.act()
            self.samples.update(dict.fromkeys(ids, ("labelled", class_id)))

    @precondition(lambda self: self.samples)
    @rule(data=st.data(), kind=st.sampled_from(["dismiss", "delete"]))
    def put_away(self, data, kind):
        ids = self.some(data, self.samples)
        after = "dismissed" if kind == "dismiss" else "deleted"
        if kind == "dismiss" and any(self.samples[i][0] in ("labelled", "deleted") for i in ids):
            with pytest.raises(UserError):
                self.journal.dismiss(ids)
            return
        self.journal.dismiss(ids) if kind == "dismiss" else self.journal.delete_samples(ids)
        if any(self.samples[i][0] != after for i in ids):
            self.act()
            self.samples.update(dict.fromkeys(ids, (after, None)))

    @precondition(lambda self: len(self.classes) > 1)
    @rule(data=st.data())
    def merge(self, data):
        source, into = self.one(data), self.one(data)
        if source == into:
            with pytest.raises(UserError):
                self.journal.merge_classes(source, into)
            return
        moved = [i for i, (_, c) in self.samples.items() if c == source]
        assert self.journal.merge_classes(source, into) == len(moved)
        self.act()
        del self.classes[source]
        self.samples.update(dict.fromkeys(moved, ("labelled", into)))

    @precondition(lambda self: self.classes)
    @rule(data=st.data())
    def delete_class(self, data):
        class_id = self.one(data)
        gone = [i for i, (_, c) in self.samples.items() if c == class_id]
        assert self.journal.delete_class(class_id) == len(gone)
        self.act()
        del self.classes[class_id]
        self.samples.update(dict.fromkeys(gone, ("deleted", None)))

    @rule()
    def undo(self):
        self.turn(self.journal.undo, self.past, self.future)

    @rule()
    def redo(self):
        self.turn(self.journal.redo, self.future, self.past)

    @precondition(lambda self: self.past)
    @rule(data=st.data())
    def undo_to(self, data):
        kept = data.draw(st.integers(0, len(self.past) - 1))
        done = [each.seq for each in self.journal.actions(undone=False)][::-1]
        event = self.journal.undo_to(done[kept - 1] if kept else 0, newest=done[-1])
        assert event.body.lost == []
        while len(self.past) > kept:
            self.future.append((dict(self.classes), dict(self.samples)))
            self.classes, self.samples = self.past.pop()

    def turn(self, act, source, target):
        if not source:
            with pytest.raises(UserError):
                act()
            return
        assert act().body.lost == []
        target.append((dict(self.classes), dict(self.samples)))
        self.classes, self.samples = source.pop()

    @rule()
    def reopen(self):
        self.journal.close()
        self.open()

    @invariant()
    def the_journal_says_what_the_model_says(self):
        rows = self.journal.classes()
        assert {row.id: row.name for row in rows} == self.classes
        assert len({row.name.casefold() for row in rows}) == len(rows)
        samples = {row.id: (row.state, row.class_id) for row in self.journal.samples()}
        assert samples == self.samples

    @invariant()
    def the_events_add_up_to_the_tables(self):
        rows = {row.id: row.label for row in self.journal.all_samples()}
        samples: dict[int, SampleState] = dict.fromkeys(rows, QUEUED)
        classes: dict[int, ClassState] = {}
        for (text,) in self.journal._rows("SELECT body FROM events ORDER BY seq"):
            body = Body.from_json(text)
            samples.update({sample_id: after for sample_id, _, after in body.samples})
            classes.update({class_id: after for class_id, _, after in body.classes})
        assert (samples, classes) == (rows, self.journal.class_states())

    @invariant()
    def who_follows_the_moves_knows_every_label(self):
        for event in self.journal.events_after(self.follower_seq):
            for move in event.moves:
                assert self.followed.pop(move.sample_id, None) == move.was
                if move.now is not None:
                    self.followed[move.sample_id] = move.now
            assert not set(event.closed) & set(self.followed.values())
            self.follower_seq = event.seq
        assert self.followed == {i: c for i, (_, c) in self.samples.items() if c is not None}


TestJournalAgainstModel = pytest.mark.slow(JournalAgainstModel.TestCase)
TestJournalAgainstModel.settings = settings(
    max_examples=20,
    stateful_step_count=30,
    deadline=None,
    derandomize=True,
    suppress_health_check=[HealthCheck.too_slow],
)
