"""What faults have left: a workspace is compared with what was acknowledged in it, sample by sample."""

import copy
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.endurance import Report
from benchmarks.endurance.expected import Change, Expected
from edge_hpcr.common.errors import UserError
from edge_hpcr.learner import checkpoint
from edge_hpcr.learner.memory import ReplayMemory
from edge_hpcr.live.teaching import Teach, operations
from edge_hpcr.workspace.layout import Layout
from edge_hpcr.workspace.queries import Queries, reading
from edge_hpcr.workspace.records import Body, ClassState, Event
from edge_hpcr.workspace.verify import verify_workspace

Message = dict[str, Any]
FEW = 3  # problems that are told of one fault
NO_ACTIONS = ("opened", "memory", "take", "ended", "refused", "refusals")


@dataclass
class Watched(Report):
    """What a watcher counts."""

    acknowledged: Counter[str] = field(default_factory=Counter)  # actions by kind
    labels: int = 0  # acknowledged, of samples
    done_but_not_acknowledged: int = 0  # in the journal, though the kill came before they were reported
    memories_checked: int = 0  # sample by sample: of checkpoints, and of learners between two steps


class Watcher:
    """Compares a workspace with what was acknowledged in it."""

    def __init__(self, layout: Layout, report: Watched) -> None:
        self.layout, self.report = layout, report
        self.expected = Expected()
        self._known_seq = 0  # the last event that `expected` has in it
        self._checked: set[tuple[str, int]] = set()  # checkpoints, by name and age: they do not change

    def of_copy(self, layout: Layout) -> "Watcher":
        """One that expects the same of a copy of the workspace."""
        other = Watcher(layout, self.report)
        other.expect(*self.known())
        return other

    def known(self) -> tuple[Expected, int]:
        """What is expected now, and up to which event."""
        return copy.deepcopy(self.expected), self._known_seq

    def expect(self, expected: Expected, seq: int) -> None:
        self.expected, self._known_seq = copy.deepcopy(expected), seq

    def check(
        self,
        when: str,
        messages: list[Message],
        saved: bool = False,
        damaged: bool = False,
        relearned: bool = False,
    ) -> None:
        """After a kill, or when it has `saved` and ended; of a `damaged` workspace the opening must have said so.

        `relearned`: everything was learned anew, except for samples whose image had been dropped.
        """
        with reading(self.layout.journal) as journal:
            problems = self._check_opening(messages, damaged)
            problems += self._check_messages(journal, messages)
            problems += self._check_tables(journal)
            gone = sum(1 for _ in journal.all_samples(has_image=False)) if relearned else 0
            problems += self._check_memories(
                journal, [m for m in messages if m["kind"] == "memory" and m["whole"]], gone
            )
            if saved:
                applied = int(self.layout.checkpoint_folders()[-1].name.rsplit("-", 1)[1])
                behind = [seq for seq, _, kind, _ in journal.stored_events(applied) if kind != "evict"]
                problems += [f"events {behind} were not learned"] if behind else []
        for problem in verify_workspace(self.layout.path):
            # What is not serious is what the next checkpoint mends, or what a damaged workspace keeps aside.
            if problem.serious or (saved and not damaged):
                problems.append(str(problem))
        if saved:
            problems += _leftovers(self.layout)
        few = [*problems[:FEW], f"and {len(problems) - FEW} more"] if len(problems) > FEW else problems
        self.report.complain([f"{when}: {problem}" for problem in few])

    def _check_opening(self, messages: list[Message], damaged: bool) -> list[str]:
        problems = [f"the process ended by itself with {m['code']}" for m in messages if m["kind"] == "ended"]
        problems += [f"refused: {m['why']}" for m in messages if m["kind"] == "refused"]
        for message in messages:
            if message["kind"] == "opened" and not damaged:
                problems += [f"at the opening: {problem}" for problem in message["problems"]]
            elif message["kind"] == "opened" and not message["problems"]:
                problems.append("nothing was said of the damage")
        return problems

    def _check_messages(self, journal: Queries, messages: list[Message]) -> list[str]:
        """Every acknowledged action is an event, in its order; behind them there may be one that was not reported."""
        problems = []
        actions = [m for m in messages if m["kind"] not in NO_ACTIONS]
        events = [each for each in journal.stored_events(self._known_seq) if each[2] != "evict"]
        kinds = ["label" if kind == "correct" else kind for _, _, kind, _ in events]
        wanted = [action["kind"] for action in actions]
        if kinds[: len(wanted)] != wanted or len(kinds) > len(wanted) + 1:
            problems.append(f"acknowledged were {wanted}, the journal has {kinds}")
        for action in actions:
            self.expected.acknowledge(action)
            self.report.acknowledged[action["kind"]] += 1
            self.report.labels += len(action["ids"]) if action["kind"] == "label" else 0
        for _, _, kind, text in events[len(wanted) :]:
            self._take_over(kind, Body.from_json(text))
            self.report.done_but_not_acknowledged += 1
        self._known_seq = journal.last_seq
        return problems

    def _take_over(self, kind: str, body: Body) -> None:
        """Expect an action that was done and not reported, as the journal has it: nothing was promised about it."""
        if kind in ("undo", "redo"):
            self.expected.turn_back(kind, body.lost)
            return
        labels = {i: (before.class_id, after.class_id) for i, before, after in body.samples}

        def name(of: ClassState) -> str | None:
            return of.name if of.state == "live" else None

        self.expected.do(Change(labels, {i: (name(old), name(new)) for i, old, new in body.classes}))

    def _check_tables(self, journal: Queries) -> list[str]:
        problems = []
        numbers = [seq for seq, *_ in journal.stored_events()]
        if numbers != list(range(1, len(numbers) + 1)):
            problems.append(f"{len(numbers)} events are numbered from {numbers[0]} to {numbers[-1]}")
        labels = {
            i: state.class_id for i, state in journal.sample_states().items() if state.class_id is not None
        }
        for sample_id in sorted(labels.keys() | self.expected.labels.keys()):
            if labels.get(sample_id) != self.expected.labels.get(sample_id):
                problems.append(
                    f"sample {sample_id} has class {labels.get(sample_id)}, "
                    f"acknowledged was {self.expected.labels.get(sample_id)}"
                )
        names = {row.id: row.name for row in journal.classes()}
        if names != self.expected.names:
            problems.append(f"the classes are {names}, acknowledged were {self.expected.names}")
        problems += [
            f"{origin!r} is {times} samples"
            for origin, times in Counter(row.origin for row in journal.all_samples()).items()
            if times > 1
        ]
        return problems

    def _check_memories(self, journal: Queries, messages: list[Message], gone: int = 0) -> list[str]:
        """The memories that learners reported and those of checkpoints hold only what was labelled for training then."""
        problems = []
        memories: list[tuple[int, str, list[int], list[int], int | None]] = [
            (m["applied"], "the learner", m["ids"], m["classes"], None) for m in messages
        ]
        for folder in self.layout.checkpoint_folders():
            known = (folder.name, folder.stat().st_mtime_ns)
            if known not in self._checked:
                self._checked.add(known)
                try:
                    memories.append(memory_of(folder))
                except UserError as error:
                    problems.append(str(error))
        self.report.memories_checked += len(memories)
        moments = _moments(journal, {applied for applied, *_ in memories})
        for applied, where, ids, classes, tested in memories:
            if applied not in moments:
                problems.append(f"{where} has applied event {applied}, which is not in the journal")
                continue
            problems += [f"{where}: {each}" for each in moments[applied].check(ids, classes, tested, gone)]
        return problems


@dataclass(frozen=True)
class Moment:
    """The journal after one of its events."""

    training: dict[int, int]  # the class of each labelled sample that is not held out
    held_out: int
    teaches: int  # labels given so far, and corrections

    def check(self, ids: list[int], classes: list[int], tested: int | None, gone: int = 0) -> list[str]:
        """`gone`: samples at most that could not be learned again, as their image had been dropped."""
        problems = [f"sample {i} is in memory {n} times" for i, n in Counter(ids).items() if n > 1]
        for sample_id, class_id in zip(ids, classes, strict=True):
            if self.training.get(sample_id) != class_id:
                labelled = self.training.get(sample_id, "not among the training samples")
                problems.append(f"sample {sample_id} is in memory as class {class_id}, but is {labelled}")
        if tested is not None and not len(self.training) + self.held_out - gone <= tested <= self.teaches:
            problems.append(
                f"{tested} labels were learned, of {self.teaches} given and {len(self.training) + self.held_out} "
                "that are still labelled: some were left out, or learned twice"
            )
        return problems


def _moments(journal: Queries, wanted: set[int]) -> dict[int, Moment]:
    samples: dict[int, tuple[int, bool]] = {}
    teaches = 0
    found = {}

    def moment() -> Moment:
        training = {i: class_id for i, (class_id, held_out) in samples.items() if not held_out}
        return Moment(training, len(samples) - len(training), teaches)

    if 0 in wanted:
        found[0] = moment()
    for seq, _, kind, text in journal.stored_events():
        body = Body.from_json(text)
        for sample_id, _, after in body.samples:
            samples.pop(sample_id, None)
            if after.class_id is not None:
                samples[sample_id] = (after.class_id, after.held_out)
        event = Event.of_body(seq, 0.0, kind, body)
        teaches += sum(isinstance(operation, Teach) for operation in operations(event))
        if seq in wanted:
            found[seq] = moment()
    return found


def memory_of(folder: Path) -> tuple[int, str, list[int], list[int], int]:
    arrays, facts = checkpoint.read(folder)
    memory = ReplayMemory.from_state(arrays["memory"], facts["memory"], np.random.default_rng(0))
    held = memory.at(np.arange(len(memory)))
    classes = [facts["class_ids"][column] for column in held.labels]
    tested = facts["notes"]["test_then_train"]
    learned = sum(count for _, count in tested["seen"]) + tested["of_new_classes"]
    return facts["notes"]["applied"], folder.name, held.ids.tolist(), classes, learned


def _leftovers(layout: Layout) -> list[str]:
    """What kills left behind, and no restart has removed."""
    kept = {folder.name for folder in layout.checkpoint_folders()}
    names = [entry.name for entry in layout.checkpoints.iterdir() if entry.name not in kept]
    strange = [name for name in names if not name.startswith("damaged-")]  # set aside, which the opening said
    strange += [entry.name for entry in layout.path.iterdir() if ".writing" in entry.name]
    return [f"left over: {name}" for name in sorted(strange)]
