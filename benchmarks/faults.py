"""`python -m benchmarks.faults`: 2,000 faults, after each of which everything that was acknowledged is there, once.

Commands of the product are killed at a random moment, or find a damaged file. Each fault has a copy of one
small workspace, and what is found afterwards is asked for by commands, too. This process has imported everything and forks
one child per command: so a fault costs no import.
"""

import importlib
import json
import multiprocessing
import os
import shutil
import sqlite3
import sys
import tarfile
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass
from functools import partial
from hashlib import sha256
from pathlib import Path
from typing import Annotated

import numpy as np
from typer import Option

from benchmarks.product import QUICK_NETWORK, write_noise
from benchmarks.runner import ROOT, Out, check_writable, circumstances, keep_with_page
from edge_hpcr.bench.report import markdown
from edge_hpcr.commands import cli
from edge_hpcr.common.errors import one_of

OLD_WORKSPACE = ROOT / "tests" / "data" / "workspace-1.tar.xz"
# How often each is tried among 2,000. Those before the first damage are `kill -9`.
KINDS = {
    "import": 170,
    "publish": 170,
    "backup": 160,
    "restore": 160,
    "upgrade": 160,
    "merge": 160,
    "undo": 160,
    "label": 150,
    "learn": 150,
    "damaged page of the journal": 200,
    "journal cut short": 150,
    "damaged checkpoint": 190,
    "damaged image": 180,
}
KILLS = tuple(KINDS)[:9]
SINGLE = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1")
FAULTS, PROBLEMS_KEPT, PATIENCE = 2000, 20, 240.0
LABELS_IN_A_ROW = 8
PAGE = 4096  # of SQLite
ALL_QUEUED = ("--set", "gate_distance=-1", "--set", "gate_per_second=1000", "--set", "gate_sure=2")
Command = Sequence[object]
FORK = multiprocessing.get_context("fork")


# Commands -------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Ended:
    code: int  # -9: it was killed
    out: str
    err: str
    seconds: float
    acknowledged: int  # of its commands
    modules: list[str]  # that it had imported at its end


def run(commands: Sequence[Command], kill_after: float | None = None) -> Ended:
    """These commands one after the other in a child; it is killed after so many seconds, if it still lives."""
    with tempfile.TemporaryDirectory(prefix="edge-hpcr-said-") as folder:
        said, begun = Path(folder), time.monotonic()
        for name in ("out", "err", "acknowledged", "modules"):
            (said / name).touch()
        child = FORK.Process(target=_live, args=(commands, said))
        child.start()
        child.join(PATIENCE if kill_after is None else kill_after)
        child.kill()
        child.join()
        return Ended(
            code=child.exitcode or 0,
            out=(said / "out").read_text(errors="replace"),
            err=(said / "err").read_text(errors="replace"),
            seconds=time.monotonic() - begun,
            acknowledged=(said / "acknowledged").stat().st_size,
            modules=(said / "modules").read_text().split(),
        )


def _live(commands: Sequence[Command], said: Path) -> None:
    """Never returns: what was inherited must not be cleaned up here."""
    code = 1
    try:
        for number, name in ((1, "out"), (2, "err")):
            os.dup2(os.open(said / name, os.O_WRONLY | os.O_APPEND), number)
        acknowledged = os.open(said / "acknowledged", os.O_WRONLY)
        for command in commands:
            code = cli.main([str(each) for each in command])
            if code:
                break
            os.write(acknowledged, b".")
        (said / "modules").write_text("\n".join(sorted(sys.modules)))
    except BaseException as error:  # an exit code says it
        print(f"{type(error).__name__}: {error}", file=sys.stderr)
        code = 1
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def done(*command: object) -> str:
    """What a command prints that must succeed."""
    ended = run([command])
    if ended.code:
        raise Wrong(f"{' '.join(map(str, command[:3]))} ended with {ended.code}: {ended.err.strip()[-300:]}")
    return ended.out


class Wrong(Exception):
    """Something was lost, doubled, or cannot be opened any more."""


def require(condition: bool, what: str) -> None:
    if not condition:
        raise Wrong(what)


# What a workspace says ------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Known:
    """The classes, and how often each picture has which label: its digest with the name of the class."""

    classes: tuple[str, ...]
    labels: Counter[tuple[str, str]]

    @classmethod
    def of(cls, workspace: Path) -> "Known":
        samples = json.loads(done("samples", workspace, "list", "--json"))
        labels = Counter((row["digest"], row["class"]) for row in samples if row["class_id"] is not None)
        rows = json.loads(done("classes", workspace, "list", "--json"))
        return cls(tuple(sorted(row["name"] for row in rows)), labels)

    def holds(self, before: "Known") -> bool:
        return before.labels <= self.labels and set(before.classes) <= set(self.classes)


def check_whole(workspace: Path) -> None:
    found = run([("verify", workspace, "--json")])
    require(found.code == 0, f"verify: {found.out.strip()[-300:]} {found.err.strip()[-200:]}")


def images_of(workspace: Path) -> set[str]:
    return {path.name for path in workspace.rglob("*.png") if "exports" not in path.parts}


# The workspace that is tried on ---------------------------------------------------------------------------------------


class Scene:
    """One workspace with pictures, models, a backup and an older journal; every fault has a copy of it."""

    def __init__(self, folder: Path, seed: int, with_models: bool) -> None:
        self.folder, self.rng = folder, np.random.default_rng(seed)
        self.template, self.old = folder / "template" / "w", folder / "old" / "w"
        self.pictures, self.queue, self.more = (folder / name for name in ("pictures", "queue", "more"))
        self._number = 0
        for number, (place, classes, each) in enumerate(
            ((self.pictures, 3, 12), (self.more, 4, 6), (self.queue, 1, 10))
        ):
            write_noise(place, classes, each, number)
        self.template.parent.mkdir(parents=True)
        done(*self.learn(self.template, self.pictures), *QUICK_NETWORK)
        done("learn", "--workspace", self.template, "--source", self.queue, *ALL_QUEUED)
        done("classes", self.template, "add", "spare")
        if with_models:
            done("export", "--workspace", self.template)  # the first one traces the network
        done(*self.learn(self.template, self.pictures))  # ends with a backup of the journal
        with tarfile.open(OLD_WORKSPACE) as packed:
            packed.extractall(self.old, filter="data")
        done("backup", self.template, folder / "whole.zip")
        shutil.make_archive(str(folder / "more"), "zip", self.more)
        self.before, self.images = Known.of(self.template), images_of(self.template)
        rows = json.loads(done("samples", self.template, "list", "--queue", "--json"))
        self.queued = [(row["id"], row["digest"]) for row in rows][:LABELS_IN_A_ROW]
        self.seconds: dict[str, float] = {}
        self.after: dict[str, Known] = {}

    @staticmethod
    def learn(workspace: Path, pictures: Path) -> Command:
        where = ("learn", "--workspace", workspace, "--source", pictures)
        return (*where, "--labels", "folders", "--no-rehearsal")

    def copy(self, of: Path | None = None, parent: Path | None = None) -> Path:
        self._number += 1
        place = (parent or self.folder / f"copy-{self._number}") / "w"
        shutil.copytree(of or self.template, place)
        return place

    def commands(self, kind: str, workspace: Path) -> list[Command]:
        beside = workspace.parent
        return {
            "import": [("samples", workspace, "import", self.folder / "more.zip")],
            "publish": [("export", "--workspace", workspace, "--force")],
            "backup": [("backup", workspace, beside / "backup.zip")],
            "restore": [("restore", self.folder / "whole.zip", beside / "restored")],
            "upgrade": [("label", workspace, "68", "mug")],
            "merge": [("classes", workspace, "merge", "class 0", "class 1")],
            "undo": [("undo", workspace)],
            "label": [("label", workspace, sample, "spare") for sample, _ in self.queued],
            "learn": [self.learn(workspace, self.more)],
        }[kind]

    def source_of(self, kind: str) -> Path:
        return self.old if kind == "upgrade" else self.template

    def prepare(self, kind: str, workspace: Path) -> None:
        if kind == "undo":
            done("classes", workspace, "merge", "class 2", "class 1")

    def measure(self, kinds: Iterable[str]) -> None:
        """Each command to its end: how long it takes, what is known then, and what it imports."""
        for kind in kinds:
            workspace = self.copy(self.source_of(kind))
            self.prepare(kind, workspace)
            for _ in range(2):  # the second without its imports
                again = self.copy(workspace)
                ended = run(self.commands(kind, again))
                require(ended.code == 0, f"{kind} does not work at all: {ended.err[-300:]}")
                for module in ended.modules:
                    with suppress(Exception):
                        importlib.import_module(module)
                self.seconds[kind], self.after[kind] = ended.seconds, Known.of(again)
                shutil.rmtree(again.parent)
            shutil.rmtree(workspace.parent)


# Kills ----------------------------------------------------------------------------------------------------------------


def kill(scene: Scene, kind: str) -> str:
    """Kill a command, look, and let it be done again. Returns what it was: killed, or done before."""
    workspace = scene.copy(scene.source_of(kind))
    scene.prepare(kind, workspace)
    before, images = Known.of(workspace), images_of(workspace)
    ended = run(scene.commands(kind, workspace), kill_after=scene.rng.uniform(0, scene.seconds[kind]))
    require(ended.code in (0, -9), f"it ended with {ended.code} by itself: {ended.err[-200:]}")
    AFTERWARDS[kind](scene, workspace, before, ended)
    check_whole(workspace)
    require(images <= images_of(workspace), "images are gone")
    done(*scene.learn(workspace, scene.pictures))  # the learner opens it, and catches up
    status = json.loads(done("status", workspace, "--json"))
    require(status["events_waiting"] == 0, "the learner has not caught up")
    learned = status["memory"]["samples"] + status["held_out_labels"]
    require(
        kind == "upgrade" or learned == status["labels"],
        f"{learned} of {status['labels']} labels are learned",
    )
    shutil.rmtree(workspace.parent)
    return "killed" if ended.code == -9 else "done before"


def all_or_nothing(kind: str, scene: Scene, workspace: Path, before: Known, ended: Ended) -> None:
    found = Known.of(workspace)
    require(found in ([] if ended.code == 0 else [before]) + [scene.after[kind]], "a half of it was done")
    if found == before != scene.after[kind]:
        for command in scene.commands(kind, workspace):
            done(*command)
        require(Known.of(workspace) == scene.after[kind], "done again, it came to something else")


def in_pieces(kind: str, scene: Scene, workspace: Path, before: Known, ended: Ended) -> None:
    """Of an import and of learning each picture counts for itself; the same command goes on."""
    require(Known.of(workspace).holds(before), "labels are gone")
    done(*scene.commands(kind, workspace)[0])
    require(Known.of(workspace) == scene.after[kind], "it did not go on to the same")


def acknowledged(scene: Scene, workspace: Path, before: Known, ended: Ended) -> None:
    labels = Known.of(workspace).labels
    given = [labels[digest, "spare"] == 1 for _, digest in scene.queued]
    require(all(given[: ended.acknowledged]), "an acknowledged label is gone")
    require(sum(given) <= ended.acknowledged + 1, "more was labelled than was asked for")
    require(Known.of(workspace).holds(before), "labels are gone")


def published(scene: Scene, workspace: Path, before: Known, ended: Ended) -> None:
    exports = workspace / "exports"
    first = _check_version(exports)
    require(first in (1, 2) and (ended.code != 0 or first == 2), f"version {first} is current")
    numbers = {path.name for path in exports.iterdir() if path.name.startswith("v0")}
    done(*scene.commands("publish", workspace)[0])
    second = _check_version(exports)
    require(
        second > first and f"v{second:06}" not in numbers & {"v000001", f"v{first:06}"}, "a number came again"
    )


def _check_version(exports: Path) -> int:
    """The current version, every byte of which is there."""
    latest = json.loads((exports / "latest.json").read_text())
    manifest = (exports / latest["folder"] / "manifest.json").read_bytes()
    require(sha256(manifest).hexdigest() == latest["manifest_sha256"], "the current manifest is another")
    facts = json.loads(manifest)
    for each in (facts, *facts["beside"].values()):
        content = (exports / latest["folder"] / each["file"]).read_bytes()
        require(sha256(content).hexdigest() == each["sha256"], f"{each['file']} is another")
    return int(latest["version"])


def backed_up(scene: Scene, workspace: Path, before: Known, ended: Ended) -> None:
    file = workspace.parent / "backup.zip"
    require(file.exists() or ended.code != 0, "there is no backup")
    if not file.exists():
        done(*scene.commands("backup", workspace)[0])
    done("restore", file, workspace.parent / "again")
    require(Known.of(workspace.parent / "again") == before, "the backup holds something else")


def restored(scene: Scene, workspace: Path, before: Known, ended: Ended) -> None:
    place = workspace.parent / "restored"
    if not place.exists() or not any(place.iterdir()):
        require(ended.code != 0, "nothing was restored")
        done(*scene.commands("restore", workspace)[0])
    require(Known.of(place) == scene.before, "something else was restored")
    check_whole(place)


AFTERWARDS: dict[str, Callable[[Scene, Path, Known, Ended], None]] = {
    "import": partial(in_pieces, "import"),
    "publish": published,
    "backup": backed_up,
    "restore": restored,
    "upgrade": partial(all_or_nothing, "upgrade"),
    "merge": partial(all_or_nothing, "merge"),
    "undo": partial(all_or_nothing, "undo"),
    "label": acknowledged,
    "learn": partial(in_pieces, "learn"),
}


# Damage ---------------------------------------------------------------------------------------------------------------


def damage(scene: Scene, kind: str) -> str:
    """Damage a copy and open it: it must know what it knew, or refuse in a sentence and touch nothing."""
    workspace = scene.copy()
    _do_damage(scene, kind, workspace)
    before = {path: path.read_bytes() for path in workspace.rglob("*") if path.is_file()}
    ended = run([scene.learn(workspace, scene.pictures)])
    require(scene.images <= images_of(workspace), "images are gone")
    if ended.code == 2:
        require(len(ended.err.strip().splitlines()) >= 1 and "Traceback" not in ended.err, "no clear refusal")
        lost = [path for path, content in before.items() if not path.exists() and content]
        require(not lost, f"refused, and yet {lost[:3]} are gone")
        require("journal" in kind, f"refused: {ended.err.strip()[-200:]}")
    else:
        require(ended.code == 0, f"it ended with {ended.code}: {ended.err.strip()[-300:]}")
        require(Known.of(workspace) == scene.before, "something is lost")
        status = json.loads(done("status", workspace, "--json"))
        require(status["events_waiting"] == 0, "it has not caught up")
        require(kind != "damaged image" or run([("verify", workspace)]).code == 1, "nobody noticed")
    shutil.rmtree(workspace.parent)
    return "refused" if ended.code == 2 else "known"


def _do_damage(scene: Scene, kind: str, workspace: Path) -> None:
    rng, journal = scene.rng, workspace / "journal.sqlite"
    with closing(sqlite3.connect(journal)) as db:
        db.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    if kind == "damaged page of the journal":
        with journal.open("r+b") as file:
            file.seek(PAGE * int(rng.integers(2)))  # the first two are always in use
            file.write(rng.bytes(PAGE))
    elif kind == "journal cut short":
        os.truncate(journal, int(rng.integers(1, journal.stat().st_size - PAGE)))
    else:
        if kind == "damaged image":
            files = list((workspace / "images").rglob("*.png"))
        else:
            newest = max((workspace / "checkpoints").iterdir())
            files = [path for path in newest.iterdir() if path.is_file()]
        chosen = sorted(files)[rng.integers(len(files))]
        data = bytearray(chosen.read_bytes())
        place = int(rng.integers(len(data)))
        data[place : place + 16] = bytes(255 - value for value in data[place : place + 16])
        chosen.write_bytes(bytes(data))


# All of them ----------------------------------------------------------------------------------------------------------


def measure(wanted: dict[str, int], seed: int, folder: Path) -> tuple[Counter[tuple[str, str]], list[str]]:
    """How often each kind came to what ("failed": something was lost, doubled or hidden), and the first problems."""
    outcomes: Counter[tuple[str, str]] = Counter()
    problems: list[str] = []
    scene = Scene(folder, seed, with_models="publish" in wanted)
    scene.measure([kind for kind in KILLS if kind in wanted])
    every = [kind for kind, times in wanted.items() for _ in range(times)]
    for number, kind in enumerate(map(str, np.random.default_rng(seed).permutation(every)), 1):
        scene.rng = np.random.default_rng([seed, number])
        fault = kill if kind in KILLS else damage
        try:
            outcomes[kind, fault(scene, kind)] += 1
        except KeyboardInterrupt:  # what was tried until now counts
            break
        except Wrong as wrong:
            outcomes[kind, "failed"] += 1
            problems = [*problems, f"fault {number}, {kind}: {wrong}"][:PROBLEMS_KEPT]
            print(problems[-1], file=sys.stderr, flush=True)
            for left in scene.folder.glob("copy-*"):
                shutil.rmtree(left)
        if number % 25 == 0:
            print(f"{number} of {len(every)} faults", file=sys.stderr, flush=True)
    return outcomes, problems


commands = cli.new_commands()


@commands.command()
def faults(
    count: Annotated[int, Option("--faults", min=1, metavar="N", help="how many")] = FAULTS,
    kinds: Annotated[str, Option(metavar="NAME,…", help="only these", show_default="all")] = "",
    seed: Annotated[int, Option(min=0, metavar="K")] = 0,
    out: Out = Path("results/machine/faults.json"),
) -> int:
    """Kill commands and damage files: nothing that was acknowledged may be lost. 1 when something was."""
    if SINGLE.items() - os.environ.items():  # a library that starts threads would lose them in every fork
        again = [sys.executable, "-m", "benchmarks.faults", *sys.argv[1:]]
        os.execve(sys.executable, again, os.environ | SINGLE)
    check_writable(out)
    chosen = kinds.split(",") if kinds else list(KINDS)
    for kind in chosen:
        one_of("kind", kind, KINDS)
    share = count / sum(KINDS[kind] for kind in chosen)
    wanted = {kind: max(1, round(share * KINDS[kind])) for kind in chosen}
    with circumstances() as machine, tempfile.TemporaryDirectory(prefix="edge-hpcr-faults-") as folder:
        outcomes, problems = measure(wanted, seed, Path(folder))
    found = {kind: {what: n for (of, what), n in sorted(outcomes.items()) if of == kind} for kind in wanted}
    rows = [
        [kind, str(sum(each.values())), ", ".join(f"{n} {what}" for what, n in each.items())]
        for kind, each in found.items()
    ]
    kills = sum(each.get("killed", 0) for each in found.values())
    said = f"{outcomes.total():,} faults, {kills:,} of them kills before the end, seed {seed}."
    facts = {"seed": seed, "n": outcomes.total(), "kills": kills, "faults": found, "problems": problems}
    keep_with_page(
        out,
        {**facts, "passed": not problems, **machine},
        [said, markdown(["fault", "times", "what came of it"], rows, left=1), *problems],
        f"python -m benchmarks.faults --faults {count} --seed {seed}",
    )
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(cli.run(commands, "python -m benchmarks.faults"))
