"""`python -m benchmarks.endurance.faults`: 2,000 faults, after each of which everything acknowledged must be there, once.

A round is a workspace of its own: kills of a process that labels and learns in it, then, on copies of it, a damaged,
missing or older journal, damaged checkpoints, a full and a read-only disk; and, in new workspaces, sources that change
under load and slow clients. What a process reported as acknowledged is compared with what is found after the fault.
"""

import json
import shutil
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import numpy as np
from tqdm import tqdm
from typer import Option

from benchmarks.endurance import ROOMY, SMALL
from benchmarks.endurance.expected import Expected
from benchmarks.endurance.intake import labelled_folders
from benchmarks.endurance.trouble import small_disk
from benchmarks.endurance.victims import Message, Victims
from benchmarks.endurance.watcher import Watched, Watcher, memory_of
from benchmarks.runner import check_writable, circumstances, keep, keep_with_page, table
from edge_hpcr.commands import cli
from edge_hpcr.common.errors import UserError
from edge_hpcr.common.files import sha256
from edge_hpcr.workspace.folder import Workspace
from edge_hpcr.workspace.layout import Layout
from edge_hpcr.workspace.queries import Queries, reading

KILL, KILL_WITH_CLOCK_BACK = "kill -9", "clock set back, then kill -9"
# What is tried, and how often in a round; a process is started for each, except for the last two kinds.
KINDS = {
    KILL: 12,
    KILL_WITH_CLOCK_BACK: 4,
    "damaged page of the journal": 4,
    "journal cut short": 2,
    "missing journal": 2,
    "missing journal and backup": 2,
    "older journal": 2,
    "older journal and backup": 2,
    "damaged checkpoint": 2,
    "full disk": 3,
    "read-only folders": 2,
    "another source under load": 90,
    "slow client": 90,
}
ROUND = sum(KINDS.values())
FAULTS = 2000
LONGEST_BACK = 10 * 365 * 86400  # seconds
PAGE = 4096  # of SQLite
ACTIONS = 5  # before, during and after trouble
SNAPSHOT_AT = 6  # kills after which the older journal is put away


@dataclass
class FaultsReport(Watched):
    bar = (
        "every acknowledged action is there, none twice, each learned once, and the workspace verifies clean"
    )

    faults: Counter[str] = field(default_factory=Counter)  # by kind
    failed: Counter[str] = field(
        default_factory=Counter
    )  # those that lost, doubled or hid something, by kind
    phases: Counter[str] = field(default_factory=Counter)  # in which the kills hit
    refused: Counter[str] = field(default_factory=Counter)  # actions that a full or read-only disk refused
    not_possible: Counter[str] = field(default_factory=Counter)  # on this machine

    def said(self) -> list[str]:
        return [
            f"{self.n:,} faults in {self.seconds / 60:.0f} minutes; {self.acknowledged.total():,} actions were "
            f"acknowledged by processes that were killed or disturbed, {self.labels:,} labels in all; "
            f"{self.memories_checked:,} memories were compared sample by sample. Bar: {self.bar}."
        ]

    def count(self, kind: str, complained_before: int, times: int = 1) -> None:
        self.faults[kind] += times
        self.n += times
        self.failed[kind] += self.problem_count > complained_before


class Round:
    """One workspace and what happens to it."""

    def __init__(self, folder: Path, seed: list[int], victims: Victims, report: FaultsReport) -> None:
        self.folder, self.seed, self.victims, self.report = folder, seed, victims, report
        self.rng = np.random.default_rng(seed)
        self.layout = Layout(folder / "workspace")
        self.watcher = Watcher(self.layout, report)
        self._lives = 0  # so that no two of them name their classes alike

    def run(self, counts: dict[str, int]) -> None:
        with Workspace.open(self.layout.path) as workspace:
            workspace.change_settings(**SMALL)
        kills = [kind for kind in (KILL, KILL_WITH_CLOCK_BACK) for _ in range(counts[kind])]
        older = None
        for number, kind in enumerate(self.rng.permutation(kills)):
            self._try(str(kind), partial(self.kill, number))
            if number == min(SNAPSHOT_AT, len(kills) - 1):
                older = self.save()
        older = older or self.save()
        self.save()
        for kind, do in self._damages(*older).items():
            for _ in range(counts[kind]):
                self._try(kind, do)
        for kind, check in (("another source under load", self.sources), ("slow client", self.clients)):
            if counts[kind]:
                self._try(kind, partial(check, counts[kind]), counts[kind])

    def _damages(self, journal: Path, expected: Expected, seq: int) -> dict[str, Callable[[str], object]]:
        """What is done to a copy of the workspace; the journal is an older one, with what was expected of it then."""

        def replace(layout: Layout) -> None:
            _remove_journal(layout.journal)
            shutil.copy(journal, layout.journal)

        return {
            "damaged page of the journal": partial(self.damaged, self._damage_page),
            "journal cut short": partial(self.damaged, self._cut_short),
            "missing journal": partial(self.damaged, lambda layout: _remove_journal(layout.journal)),
            "missing journal and backup": self.missing_both,
            "older journal": partial(self.damaged, replace),
            "older journal and backup": partial(self.older_both, journal, expected, seq),
            "damaged checkpoint": partial(self.damaged, self._damage_checkpoint),
            "full disk": partial(self.trouble, "full disk"),
            "read-only folders": partial(self.trouble, "read-only"),
        }

    def _try(self, kind: str, do: Callable[[str], object], times: int = 1) -> None:
        before = self.report.problem_count
        try:
            possible = do(kind)
        except UserError as error:  # of a watcher that cannot even read what is left
            possible = self.report.complain([f"{kind}: {error}"])
        if possible is False:
            self.report.not_possible[kind] += times
        else:
            self.report.count(kind, before, times)

    def _when(self, kind: str) -> str:
        return f"seed {self.seed}, fault {self.report.n + 1}, {kind}"

    # On the workspace itself ------------------------------------------------------------------------------------------

    def kill(self, number: int, kind: str) -> None:
        back = float(self.rng.uniform(1, LONGEST_BACK)) if kind == KILL_WITH_CLOCK_BACK else 0.0
        messages = self.victims.live_and_die(self.layout.path, [*self.seed, number], self.rng, back)
        self.report.phases[self.victims.phase()] += 1
        self.watcher.check(self._when(f"{kind} while {self.victims.phase()}"), messages)

    def save(self) -> tuple[Path, Expected, int]:
        """Let it learn what is left, save and end; returns its journal as it is now, and what is expected of it."""
        self._lives += 1
        seed = [*self.seed, 10_000 + self._lives]
        messages = self.victims.live_and_end(self.layout.path, "saved", seed, actions=0)
        self.watcher.check(self._when("saved"), messages, saved=True)
        kept = self.folder / f"journal-{self._lives}.sqlite"
        shutil.copy(self.layout.backup, kept)  # one file, and the same as the journal now
        return kept, *self.watcher.known()

    # On a copy --------------------------------------------------------------------------------------------------------

    def _copy(self, parent: Path | None = None) -> Layout:
        """With room for everything: whatever is missing later was lost."""
        self._lives += 1
        layout = Layout((parent or self.folder / f"copy-{self._lives}") / "workspace")
        shutil.copytree(self.layout.path, layout.path)
        settings = json.loads(layout.settings.read_text())
        layout.settings.write_text(json.dumps({**settings, **ROOMY}))
        return layout

    def _saved(self, layout: Layout, **details: Any) -> list[Message]:
        seed = [*self.seed, 20_000 + self._lives]
        return self.victims.live_and_end(layout.path, "saved", seed, actions=ACTIONS, **details)

    def check_images(self, kind: str, layout: Layout, images: set[str]) -> None:
        """No image that was there has gone, whatever the journal knows of it."""
        there = {path.name for path in layout.path.rglob("*") if path.is_file()}
        lost = sorted(images - there)
        self.report.complain(
            [f"{self._when(kind)}: {len(lost)} of {len(images)} images are gone"] if lost else []
        )

    def damaged(self, damage: Callable[[Layout], object], kind: str) -> None:
        layout = self._copy()
        images = _names(layout.images)
        damage(layout)
        messages = self._saved(layout)
        self.watcher.of_copy(layout).check(self._when(kind), messages, saved=True, damaged=True)
        self.check_images(kind, layout, images)
        shutil.rmtree(layout.path.parent)

    def _damage_page(self, layout: Layout) -> None:
        with layout.journal.open("r+b") as file:
            pages = layout.journal.stat().st_size // PAGE
            # Of a page that nothing points to nobody would notice the damage; the first two are always in use.
            file.seek(PAGE * int(self.rng.integers(min(2, pages))))
            file.write(self.rng.bytes(PAGE))

    def _cut_short(self, layout: Layout) -> None:
        size = layout.journal.stat().st_size
        with layout.journal.open("r+b") as file:
            file.truncate(int(self.rng.integers(1, size - PAGE)))

    def _damage_checkpoint(self, layout: Layout) -> None:
        """The newest one: the older one is there for this."""
        files = sorted(path for path in layout.checkpoint_folders()[-1].iterdir() if path.is_file())
        chosen = files[self.rng.integers(len(files))]
        data = bytearray(chosen.read_bytes())
        place = int(self.rng.integers(len(data)))
        data[place : place + 16] = bytes(255 - value for value in data[place : place + 16])
        chosen.write_bytes(bytes(data))

    def missing_both(self, kind: str) -> None:
        """Nobody can tell what was labelled: it must say so, and touch nothing."""
        layout = self._copy()
        images = _names(layout.images)
        _remove_journal(layout.journal)
        layout.backup.unlink()
        messages = self._saved(layout)
        if [message["kind"] for message in messages] != ["refused"]:
            self.report.complain([f"{self._when(kind)}: it was opened as if nothing had happened"])
        self.check_images(kind, layout, images)
        shutil.copy(self.layout.journal, layout.journal)
        self.watcher.of_copy(layout).check(self._when(f"{kind}, then back"), self._saved(layout), saved=True)
        shutil.rmtree(layout.path.parent)

    def older_both(self, journal: Path, expected: Expected, seq: int, kind: str) -> None:
        """What it knew then is the truth again; what it does not know is kept, and new labels are learned."""
        layout = self._copy()
        images = _names(layout.images)
        _remove_journal(layout.journal)
        for place in (layout.journal, layout.backup):
            shutil.copy(journal, place)
        watcher = self.watcher.of_copy(layout)
        watcher.expect(expected, seq)
        watcher.check(self._when(kind), self._saved(layout), saved=True, damaged=True, relearned=True)
        self.check_images(kind, layout, images)
        shutil.rmtree(layout.path.parent)

    def trouble(self, trouble: str, kind: str) -> bool:
        place = self.folder / "disk"
        place.mkdir()
        try:
            with small_disk(place) as small:
                if trouble == "full disk" and not small:
                    return False
                layout = self._copy(place)
                images = _names(layout.images)
                messages = self._saved(layout, troubles=[trouble])
                self.report.refused[kind] += sum(m["times"] for m in messages if m["kind"] == "refusals")
                self.watcher.of_copy(layout).check(self._when(kind), messages, saved=True)
                self.check_images(kind, layout, images)
        finally:
            shutil.rmtree(place)
        return True

    # In a new workspace -----------------------------------------------------------------------------------------------

    def sources(self, times: int, kind: str) -> None:
        layout = Layout(self.folder / "fed")
        messages = self.victims.live_and_end(layout.path, "sources", [*self.seed, 30_000], faults=times)
        self._complain_of_ends(kind, messages)
        wanted = {
            sha256(path): path.parent.name
            for source in labelled_folders(layout.path)
            for path in source.rglob("*.png")
        }
        with reading(layout.journal) as journal:
            names = {row.id: row.name for row in journal.classes()}
            rows = list(journal.all_samples())
            found = Counter(row.source_digest for row in rows if row.class_id is not None)
            wrong = [
                f"{found[digest]} samples of one file of {name}"
                for digest, name in wanted.items()
                if found[digest] != 1
            ]
            wrong += [
                f"sample {row.id} is {names.get(row.class_id or 0)}"
                for row in rows
                if names.get(row.class_id or 0) != wanted.get(row.source_digest or "")
            ]
            wrong += self._learned(layout, journal, len(wanted))
        self.report.labels += len(wanted)
        self.report.complain([f"{self._when(kind)}: {each}" for each in wrong])

    def clients(self, times: int, kind: str) -> None:
        layout = Layout(self.folder / "served")
        messages = self.victims.live_and_end(layout.path, "clients", [*self.seed, 40_000], faults=times)
        self._complain_of_ends(kind, messages)
        told = {m["sample"]: m["kind"] for m in messages if "sample" in m}
        with reading(layout.journal) as journal:
            times_labelled = Counter(
                int(sample_id)
                for _, _, name, text in journal.stored_events()
                if name in ("label", "correct")
                for sample_id, *_ in json.loads(text)["samples"]
            )
            wrong = [
                f"sample {i} was {how}, and labelled {times_labelled[i]} times"
                for i, how in told.items()
                if times_labelled[i] > 1 or (how == "acknowledged" and not times_labelled[i])
            ]
            acknowledged = sum(how == "acknowledged" for how in told.values())
            wrong += (
                [f"only {acknowledged} of {times} labels were acknowledged"] if acknowledged != times else []
            )
            wrong += self._learned(layout, journal, len(times_labelled))
        self.report.labels += acknowledged
        self.report.complain([f"{self._when(kind)}: {each}" for each in wrong])

    def _learned(self, layout: Layout, journal: Queries, labels: int) -> list[str]:
        """Every label was learned, or tested on, exactly once."""
        applied, *_, tested = memory_of(layout.checkpoint_folders()[-1])
        if applied == journal.last_seq and tested == labels:
            return []
        return [f"{labels} labels in {journal.last_seq} events, learned {tested} up to event {applied}"]

    def _complain_of_ends(self, kind: str, messages: list[Message]) -> None:
        ends = [f"it ended with {m['code']}" for m in messages if m["kind"] == "ended"]
        self.report.complain([f"{self._when(kind)}: {end}" for end in ends])


def _remove_journal(journal: Path) -> None:
    for part in journal.parent.glob(f"{journal.name}*"):
        part.unlink()


def _names(folder: Path) -> set[str]:
    return {path.name for path in folder.rglob("*") if path.is_file()}


# The command ----------------------------------------------------------------------------------------------------------


def measure(
    faults: int,
    seed: int,
    report: FaultsReport | None = None,
    kept: Callable[[FaultsReport], None] = lambda _: None,
) -> FaultsReport:
    """Try so many faults, or as many more as the report has not yet; `kept` is called after each round."""
    if faults < 1:
        raise UserError(f"{faults} faults: give at least 1")
    report = report or FaultsReport(seed)
    begun, spent = time.monotonic(), report.seconds
    with Victims() as victims, tqdm(total=faults, initial=report.n, disable=None, leave=False) as bar:
        while (left := faults - tried(report)) > 0:
            folder = Path(tempfile.mkdtemp(prefix="edge-hpcr-faults-"))
            before = report.problem_count
            Round(folder, [seed, tried(report)], victims, report).run(share(min(left, ROUND)))
            report.seconds = spent + time.monotonic() - begun
            if report.problem_count == before:
                shutil.rmtree(folder)
            else:
                print(f"the files of this round are kept in {folder}", file=sys.stderr)
            bar.update(tried(report) - bar.n)
            kept(report)
    return report


def tried(report: FaultsReport) -> int:
    return report.n + report.not_possible.total()


def share(faults: int) -> dict[str, int]:
    """How often each kind is tried in a round of so many: each once, as far as they reach, and then by its share.

    >>> share(ROUND) == KINDS, sum(share(15).values()), min(share(15).values())
    (True, 15, 1)
    """
    turns = sorted(
        (turn / times, place, kind)
        for place, (kind, times) in enumerate(KINDS.items())
        for turn in range(times)
    )
    chosen = Counter(kind for *_, kind in turns[:faults])
    return {kind: chosen[kind] for kind in KINDS}


def tables(report: FaultsReport) -> list[str]:
    rows = [
        [kind, str(report.faults[kind]), str(report.failed[kind])] for kind in KINDS if report.faults[kind]
    ]
    rows.append(["all", str(report.n), str(report.failed.total())])
    impossible = [f"Not possible on this machine: {kind}." for kind in report.not_possible]
    return [
        *report.said(),
        table(["fault", "tried", "something lost, doubled, unlearned or unsaid"], rows),
        *impossible,
    ]


commands = cli.new_commands()


@commands.command()
def faults(
    count: Annotated[int, Option("--faults", metavar="N", help="how many")] = FAULTS,
    seed: Annotated[int, Option(metavar="K")] = 0,
    out: Annotated[Path, Option(metavar="FILE", help="what it has begun is continued")] = Path(
        "results/faults.json"
    ),
) -> int:
    """Kill it, damage it, fill its disk: nothing that was acknowledged may be lost. 1 when something was."""
    check_writable(out)
    report = begun(out, seed)
    command = f"python -m benchmarks.endurance.faults --faults {count} --seed {seed}"
    with circumstances() as machine:
        done = measure(count, seed, report, lambda so_far: keep(out, facts(so_far)))
    keep_with_page(out, {**facts(done), **machine}, tables(done), command)
    return 0 if done.passed else 1


def facts(report: FaultsReport) -> dict[str, Any]:
    return {name: value for name, value in report.facts().items() if name != "said"}


def begun(out: Path, seed: int) -> FaultsReport | None:
    """A run that was cut short: it says no circumstances yet."""
    if not out.exists():
        return None
    try:
        kept = json.loads(out.read_text())
        if "hardware" in kept or kept["seed"] != seed:
            return None
        fields = {name: value for name, value in kept.items() if name not in ("bar", "passed")}
        counters = {name: Counter(value) for name, value in fields.items() if isinstance(value, dict)}
        return FaultsReport(**{**fields, **counters})
    except (ValueError, KeyError, TypeError):
        raise UserError(f"{out} is no result of this command: move it away, or give another file") from None


if __name__ == "__main__":
    sys.exit(cli.run(commands, "python -m benchmarks.endurance.faults"))
