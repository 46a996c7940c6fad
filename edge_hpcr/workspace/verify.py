"""Is a workspace whole? Reads everything, changes nothing, and works beside a process that learns in it."""

import json
import time
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from edge_hpcr.common.errors import UserError
from edge_hpcr.common.files import sha256
from edge_hpcr.common.units import format_bytes
from edge_hpcr.learner import checkpoint
from edge_hpcr.learner.memory import ReplayMemory
from edge_hpcr.workspace.database import JournalDamaged
from edge_hpcr.workspace.fold import BrokenChain, differences, fold_events, read_events
from edge_hpcr.workspace.layout import Layout
from edge_hpcr.workspace.queries import Queries, reading
from edge_hpcr.workspace.records import Counts
from edge_hpcr.workspace.sample_files import SampleFiles
from edge_hpcr.workspace.set_aside import why_foreign
from edge_hpcr.workspace.settings import Settings

_SHOWN = 10  # of many problems of one kind
_RESTORE = "start `learn` on the workspace, which restores what can be read"
_FRESH_SECONDS = 60.0  # an image without a row may be on its way


@dataclass(frozen=True)
class Problem:
    what: str
    where: str
    what_to_do: str
    serious: bool = True  # False: untidy, but nothing is wrong

    def __str__(self) -> str:
        return f"{self.where}: {self.what}; {self.what_to_do}"


@dataclass(frozen=True)
class Facts:
    events: int
    classes: int
    counts: Counts
    checkpoints: list[str]


def workspace_facts(path: Path | str) -> Facts:
    layout = Layout(path)
    layout.check_exists()
    names = [folder.name for folder in layout.checkpoint_folders()]
    with reading(layout.journal) as journal:
        return Facts(journal.last_seq, len(journal.classes()), journal.counts(), names)


def verify_workspace(path: Path | str) -> list[Problem]:
    """Find everything that is wrong; an empty list for a whole workspace."""
    layout = Layout(path)
    layout.check_exists()
    settings = Settings.load(layout.settings)
    # Checkpoints first: what they have applied must be in a journal that is read later.
    applied, problems = _check_checkpoints(layout, settings)
    try:
        with reading(layout.journal) as journal:
            problems += _check_journal(journal, layout)
            problems += _check_budgets(journal.counts(), layout, settings)
            problems += _check_images(journal, layout)
            problems += _check_applied(journal, layout, applied)
    except JournalDamaged as error:
        problems.append(Problem(f"damaged ({error.what})", str(layout.journal), _RESTORE))
    except UserError as error:  # missing, or of a newer version
        what, _, advice = str(error).removeprefix(f"journal {layout.journal}").lstrip(": ").rpartition(": ")
        problems.append(Problem(what, str(layout.journal), advice))
    return problems + _check_exports(layout) + _check_set_aside(layout)


# The journal ------------------------------------------------------------------------------------------------------


def _check_journal(journal: Queries, layout: Layout) -> list[Problem]:
    where = str(layout.journal)
    if damage := journal.damage(_SHOWN):
        return [Problem(f"damaged ({each})", where, _RESTORE) for each in damage]
    keep = f"keep a copy of the folder and restore {layout.backup.name}"
    found = journal.broken_references()
    try:
        found += differences(fold_events(journal), journal)
    except BrokenChain as error:
        found.append(str(error))
    return _few([Problem(what, where, keep) for what in found])


def _check_budgets(counts: Counts, layout: Layout, settings: Settings) -> list[Problem]:
    # Not serious: labels are never refused for want of room, and undo fills the queue until the next checkpoint.
    checks = [
        ("the queue", counts.queued, "queue_samples"),
        ("the queue", counts.queued_bytes, "queue_bytes"),
    ]
    if not settings.archive:
        checks.append(("all images", counts.image_bytes, "disk_bytes"))
    return [problem for check in checks for problem in _over_budget(*check, layout, settings, serious=False)]


def _over_budget(
    what: str, held: int, setting: str, layout: Layout, settings: Settings, serious: bool = True
) -> list[Problem]:
    allowed = getattr(settings, setting)
    if held <= allowed:
        return []
    size = format_bytes if setting.endswith("_bytes") else "{} samples".format
    many = f"{what}: {size(held)} where {size(allowed).removesuffix(' samples')} are allowed"
    raised = f"`learn` makes room at a checkpoint; or raise {setting}"
    return [Problem(many, str(layout.path), raised, serious)]


# Images -----------------------------------------------------------------------------------------------------------


def _check_images(journal: Queries, layout: Layout) -> list[Problem]:
    files = SampleFiles(layout.images)
    problems = []
    known = set()
    for row in journal.all_samples(has_image=True):
        known.add(row.file)
        # Since the moment that `journal` shows, the sample may have left the queue, and its file with it.
        if not files.matches(row) and _still_has_image(layout, row.id):
            what = f"the image of sample {row.id} ({row.state}) is missing or damaged"
            problems.append(Problem(what, str(layout.images / row.file), f"delete sample {row.id}"))
    orphans = [name for name in files.orphans(known) if _is_old(layout.images / name)]
    if orphans:
        what = f"{len(orphans)} files belong to no sample, {orphans[0]} for one"
        tidy = "nothing is wrong: `learn` removes a few when it starts, and sets aside many"
        problems.append(Problem(what, str(layout.images), tidy, serious=False))
    return _few(problems)


def _still_has_image(layout: Layout, sample_id: int) -> bool:
    with reading(layout.journal) as journal:
        try:
            return journal.sample(sample_id).has_image
        except UserError:
            return False


def _is_old(path: Path) -> bool:
    try:
        return time.time() - path.stat().st_mtime > _FRESH_SECONDS
    except FileNotFoundError:
        return False


# Checkpoints ------------------------------------------------------------------------------------------------------


def _check_checkpoints(layout: Layout, settings: Settings) -> tuple[dict[Path, int], list[Problem]]:
    """What each whole checkpoint has applied, and what is wrong with the others."""
    applied: dict[Path, int] = {}
    problems = []
    remove = "remove the folder: the learner uses the newest whole one"
    for folder in layout.checkpoint_folders():
        try:
            arrays, facts = checkpoint.read(folder)
            applied[folder] = int(facts["notes"]["applied"])
            memory = ReplayMemory.from_state(arrays["memory"], facts["memory"], np.random.default_rng(0))
            held = memory.byte_breakdown()["total"]
        except (UserError, KeyError, TypeError, ValueError) as error:
            if folder.exists():  # the learner removes old ones
                problems.append(Problem(f"it cannot be used ({error})", str(folder), remove))
            continue
        problems += _over_budget(
            f"the replay memory of {folder.name}", held, "memory_bytes", layout, settings
        )
    return applied, problems


def _check_applied(journal: Queries, layout: Layout, applied: dict[Path, int]) -> list[Problem]:
    problems = []
    for folder in applied:
        if why := why_foreign(folder, journal):
            problems.append(Problem(f"it {why}", str(folder), "`learn` sets it aside when it starts"))
    # After a restart from the oldest checkpoint these would be learned again, from their images.
    oldest = min(applied.values(), default=0)
    needed = set()
    try:
        for _, _, _, body in read_events(journal, oldest):
            needed |= {i for i, before, after in body.samples if before.class_id is None and after.class_id}
    except BrokenChain:
        pass  # said of the journal already
    gone = {row.id for row in journal.all_samples(state="labelled", has_image=False)}
    for sample_id in sorted(needed & gone):
        labelled = f"sample {sample_id} was labelled after event {oldest}, the oldest checkpoint"
        lost = f"delete sample {sample_id}, or label another picture of it"
        problems.append(Problem(f"{labelled}, and has no image", str(layout.images), lost))
    return _few(problems)


# Exports ----------------------------------------------------------------------------------------------------------


def _check_exports(layout: Layout) -> list[Problem]:
    problems = []
    for manifest in sorted(layout.exports.rglob("manifest.json")):
        try:
            facts = json.loads(manifest.read_text(encoding="utf-8"))
            more = [*(facts.get("variants") or {}).values(), *(facts.get("beside") or {}).values()]
            for file in (facts, *(each for each in more if each and "sha256" in each)):
                model = manifest.parent / str(file.get("file", "model.onnx"))
                if "sha256" in file and sha256(model) != file["sha256"]:
                    problems.append(
                        Problem("it is not the file that was exported", str(model), "export again")
                    )
        except (OSError, ValueError, TypeError, AttributeError, RecursionError) as error:
            problems.append(Problem(f"cannot be read ({error})", str(manifest), "export again"))
    return problems


def _check_set_aside(layout: Layout) -> list[Problem]:
    if not layout.set_aside.is_dir():
        return []
    what = "images, checkpoints or a backup that the journal does not know are kept here"
    advice = "put the journal back that they belong to, or remove the folder"
    return [Problem(what, str(layout.set_aside), advice, serious=False)]


def _few(problems: list[Problem]) -> list[Problem]:
    """The first of many, and how many more there are."""
    if len(problems) <= _SHOWN:
        return problems
    first = problems[0]
    more = Problem(f"and {len(problems) - _SHOWN} more like these", first.where, first.what_to_do)
    return [*problems[:_SHOWN], more]
