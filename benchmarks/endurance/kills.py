"""kill -9 at random moments, in the midst of labels, checkpoints, backups and dropped images; what is left must be whole.

The process that is killed reports through a pipe what was acknowledged. After each kill the journal, the checkpoints and
the images on disk are compared with that; the next process opens the same workspace and goes on.
"""

import json
import os
import select
import subprocess
import sys
import time
from collections import Counter
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

import numpy as np

from benchmarks.endurance import Progress, Report, silent
from benchmarks.endurance.expected import Change, Expected
from benchmarks.endurance.victim import ACTING, LEARNING, Phases
from benchmarks.runner import ROOT
from edge_hpcr.common.errors import UserError
from edge_hpcr.learner import checkpoint
from edge_hpcr.learner.memory import ReplayMemory
from edge_hpcr.live.teaching import Teach, operations
from edge_hpcr.workspace.folder import Workspace
from edge_hpcr.workspace.layout import Layout
from edge_hpcr.workspace.queries import Queries, reading
from edge_hpcr.workspace.records import Body, ClassState, Event
from edge_hpcr.workspace.verify import verify_workspace

Message = dict[str, Any]

# Small, so that every phase comes often: a checkpoint after every step, images that must be dropped.
SETTINGS: dict[str, Any] = {
    "backbone": "reduced_resnet18",
    "image_size": 8,
    "threads": 1,
    "memory_bytes": 6_000,
    "micro_batch": 5,
    "idle_steps": 0,
    "checkpoint_steps": 1,
    "checkpoints_kept": 2,
    "queue_samples": 12,
    "disk_bytes": 12_000,
    "device": "cpu",
}
# The phases that are waited for, and the most seconds from their beginning to the kill: about as long as they take on an
# idle machine.
HUNTED = {
    "opening": 0.15,
    "learning": 0.4,
    "labelling": 0.004,
    "taking images": 0.02,
    "checkpoint": 0.1,
    "journal backup": 0.02,
    "removing checkpoints": 0.005,
    "dropping images": 0.003,
}
HUNT_SECONDS = 3.0  # after the opening; then it is killed wherever it is
OPENING_SECONDS = 60.0  # on a busy machine
PLAN, QUICK = 500, 3  # kills


@dataclass
class KillsReport(Report):
    bar = "every acknowledged action is there, none twice, and the workspace verifies clean after every kill"

    settings: dict[str, Any] = field(default_factory=lambda: SETTINGS)
    acknowledged: Counter[str] = field(default_factory=Counter)  # actions by kind
    labels: int = 0  # acknowledged, of samples
    done_but_not_acknowledged: int = 0  # in the journal, though the kill came before they were reported
    phases: Counter[str] = field(default_factory=Counter)  # in which the kills hit
    memories_checked: int = 0  # sample by sample: of checkpoints, and of learners between two steps

    def said(self) -> list[str]:
        hit = ", ".join(f"{phase} {times}" for phase, times in self.phases.most_common())
        return [
            f"{self.n} kills in {self.seconds:.0f} s; {self.acknowledged.total()} actions were acknowledged, "
            f"{self.labels} labels among them; {self.done_but_not_acknowledged} were done and not reported",
            f"they hit: {hit}",
            f"{self.memories_checked} memories were checked sample by sample; {self.problem_count} problems",
        ]


def measure(folder: Path, kills: int, seed: int, progress: Progress = silent) -> KillsReport:
    """Kill a process that labels and learns in `folder`, so many times; the workspace stays there to look at."""
    if kills < 1:
        raise UserError(f"{kills} kills: give at least 1")
    begun = time.monotonic()
    with Workspace.open(folder) as workspace:
        workspace.change_settings(**SETTINGS)
    report, rng = KillsReport(seed), np.random.default_rng(seed)
    watcher = Watcher(Layout(folder), report)
    with Victims(folder) as victims:
        for number in range(kills):
            messages = victims.live_and_die([seed, number], rng)
            report.phases[victims.phase()] += 1
            report.n += 1
            watcher.check(f"kill {number + 1}, {victims.phase()}", messages)
            progress(number + 1, kills)
        watcher.check("after the last restart", victims.save_and_end(), saved=True)
    report.seconds = time.monotonic() - begun
    return report


# The process that is killed -------------------------------------------------------------------------------------------


class Victims:
    """Starts processes that work in the workspace, and kills them."""

    def __init__(self, folder: Path) -> None:
        self._pipe, writing = os.pipe()
        os.set_blocking(self._pipe, False)
        self._file = folder.with_name(folder.name + ".phases")
        self._phases = Phases(self._file)
        # Images are not dropped before there are many: what comes late is waited for once it was seen.
        self._seen = {"opening", "learning", "taking images", "labelling", "checkpoint"}
        # A library that starts threads at its import would lose them in every fork.
        single = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1")
        self._nursery = subprocess.Popen(
            [sys.executable, "-m", "benchmarks.endurance.victim", folder, str(writing), self._file],
            cwd=ROOT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            pass_fds=[writing],
            env={**os.environ, **single},
        )
        os.close(writing)
        self._reply()  # it has imported everything

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self._nursery.communicate()  # it ends with its orders
        os.close(self._pipe)
        self._file.unlink()

    def phase(self) -> str:
        """What the last one was doing; of its two threads the one that was at something rarer."""
        learning = self._phases.of(LEARNING)
        return self._phases.of(ACTING) if learning in ("waiting", "learning") else learning

    def live_and_die(self, seed: list[int], rng: np.random.Generator) -> list[Message]:
        """Start one, kill it at a random moment of a random phase, and return what it reported until then."""
        hunted = str(rng.choice([phase for phase in HUNTED if phase in self._seen]))
        later = rng.uniform(0, HUNTED[hunted])
        self._order({"seed": seed, "save": False})
        limit = time.monotonic() + OPENING_SECONDS
        end, text = limit, b""
        while (now := time.monotonic()) < end:
            if hunted and not text:  # it reports first that it has opened: only then the hunt has its time
                end = min(now + HUNT_SECONDS, limit)
            phases = {self._phases.of(ACTING), self._phases.of(LEARNING)}
            self._seen |= phases
            if hunted in phases:
                end, hunted = now + later, ""
            select.select([self._pipe], [], [], 0.001)
            text += self._read()
        self._order("kill")
        return self._ended(text, expected="-9")

    def save_and_end(self) -> list[Message]:
        """Start one that learns what is left, saves and ends by itself."""
        self._order({"seed": [], "save": True})
        return self._ended(b"", expected="0")

    def _order(self, order: Any) -> None:
        assert self._nursery.stdin is not None
        self._nursery.stdin.write(json.dumps(order) + "\n")
        self._nursery.stdin.flush()

    def _reply(self) -> str:
        assert self._nursery.stdout is not None
        if line := self._nursery.stdout.readline().strip():
            return line
        raise UserError("the process that starts the others has ended; its last words are above")

    def _ended(self, text: bytes, expected: str) -> list[Message]:
        code = self._reply()
        messages = [json.loads(line) for line in (text + self._read()).split(b"\n")[:-1]]
        return messages if code == expected else [*messages, {"kind": "ended", "code": int(code)}]

    def _read(self) -> bytes:
        parts = []
        with suppress(BlockingIOError):
            while part := os.read(self._pipe, 2**16):
                parts.append(part)
        return b"".join(parts)


# What is left ---------------------------------------------------------------------------------------------------------


class Watcher:
    """Compares a workspace with what was acknowledged in it."""

    def __init__(self, layout: Layout, report: KillsReport) -> None:
        self.layout, self.report = layout, report
        self.expected = Expected()
        self._known_seq = 0  # the last event that `expected` has in it
        self._checked: set[tuple[str, int]] = set()  # checkpoints, by name and age: they do not change

    def check(self, when: str, messages: list[Message], saved: bool = False) -> None:
        with reading(self.layout.journal) as journal:
            problems = self._check_messages(journal, messages)
            problems += self._check_tables(journal)
            problems += self._check_memories(
                journal, [m for m in messages if m["kind"] == "memory" and m["whole"]]
            )
        for problem in verify_workspace(self.layout.path):
            # What is not serious (a budget exceeded by an undo, say) is what the next checkpoint mends.
            if saved or problem.serious:
                problems.append(str(problem))
        if saved:
            problems += _leftovers(self.layout)
        self.report.complain([f"{when}: {problem}" for problem in problems])

    def _check_messages(self, journal: Queries, messages: list[Message]) -> list[str]:
        """Every acknowledged action is an event, in its order; behind them there may be one that was not reported."""
        problems = [f"the process ended by itself with {m['code']}" for m in messages if m["kind"] == "ended"]
        for message in messages:
            if message["kind"] == "opened":
                problems += [f"at the opening: {problem}" for problem in message["problems"]]
        actions = [m for m in messages if m["kind"] not in ("opened", "memory", "take", "ended")]
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

    def _check_memories(self, journal: Queries, messages: list[Message]) -> list[str]:
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
                    memories.append(_memory_of(folder))
                except UserError as error:
                    problems.append(str(error))
        self.report.memories_checked += len(memories)
        moments = _moments(journal, {applied for applied, *_ in memories})
        for applied, where, ids, classes, tested in memories:
            if applied not in moments:
                problems.append(f"{where} has applied event {applied}, which is not in the journal")
                continue
            problems += [f"{where}: {problem}" for problem in moments[applied].check(ids, classes, tested)]
        return problems


@dataclass(frozen=True)
class Moment:
    """The journal after one of its events."""

    training: dict[int, int]  # the class of each labelled sample that is not held out
    held_out: int
    teaches: int  # labels given so far, and corrections

    def check(self, ids: list[int], classes: list[int], tested: int | None) -> list[str]:
        problems = [f"sample {i} is in memory {n} times" for i, n in Counter(ids).items() if n > 1]
        for sample_id, class_id in zip(ids, classes, strict=True):
            if self.training.get(sample_id) != class_id:
                labelled = self.training.get(sample_id, "not among the training samples")
                problems.append(f"sample {sample_id} is in memory as class {class_id}, but is {labelled}")
        if tested is not None and not len(self.training) + self.held_out <= tested <= self.teaches:
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


def _memory_of(folder: Path) -> tuple[int, str, list[int], list[int], int]:
    arrays, facts = checkpoint.read(folder)
    memory = ReplayMemory.from_state(arrays["memory"], facts["memory"], np.random.default_rng(0))
    held = memory.at(np.arange(len(memory)))
    classes = [facts["class_ids"][column] for column in held.labels]
    tested = sum(count for _, count in facts["notes"]["test_then_train"]["seen"])
    return facts["notes"]["applied"], folder.name, held.ids.tolist(), classes, tested


def _leftovers(layout: Layout) -> list[str]:
    """What kills left behind, and no restart has removed."""
    kept = {folder.name for folder in layout.checkpoint_folders()}
    strange = [entry.name for entry in layout.checkpoints.iterdir() if entry.name not in kept]
    strange += [entry.name for entry in layout.path.iterdir() if ".writing" in entry.name]
    return [f"left over: {name}" for name in sorted(strange)]
