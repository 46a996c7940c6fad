"""The checkpoints of a workspace: the newest whole one is loaded, the last few are kept."""

import shutil
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from edge_hpcr.learner import checkpoint
from edge_hpcr.learner.learner import Learner
from edge_hpcr.workspace.layout import Layout


@dataclass(frozen=True)
class Restored:
    learner: Learner | None  # None: there is no whole checkpoint
    notes: dict[str, Any]
    losses: list[str] = field(default_factory=list)  # what could not be read, for people


def load_newest(layout: Layout, device: str | torch.device) -> Restored:
    """The newest whole checkpoint; a damaged one is set aside with a sentence, and the one before it is tried.

    Only for the process that holds the workspace's lock. A checkpoint of another version is refused and stays.
    """
    _clear_leftovers(layout)
    losses = []
    for folder in reversed(layout.checkpoint_folders()):
        try:
            learner, notes = Learner.load(folder, device)
        except checkpoint.DamagedCheckpoint as error:
            losses.append(
                f"{error}; what it had learned is learned again from the labels, as far as images are left"
            )
            folder.rename(_free_name(folder))
            continue
        return Restored(learner, notes, losses)
    return Restored(None, {}, losses)


def _clear_leftovers(layout: Layout) -> None:
    """What a process that was killed while it saved has left: a whole older one is kept, half a newer one goes."""
    for leftover in layout.checkpoints.glob("step-*.*"):
        whole = leftover.with_suffix("")
        if leftover.suffix == ".previous" and not whole.exists():
            leftover.rename(whole)
        else:
            shutil.rmtree(leftover)


def _free_name(folder: Path) -> Path:
    """Kept for whoever wants to look into it, under a name that nothing loads."""
    number = 1
    while (aside := folder.with_name(f"damaged-{folder.name}-{number}")).exists():
        number += 1
    return aside


def save(layout: Layout, learner: Learner, applied: int, notes: dict[str, Any]) -> Path:
    """`applied` is the last event of the journal that the learner has taken in completely."""
    folder = layout.checkpoints / f"step-{learner.step:09d}-event-{applied:09d}"
    learner.save(folder, {**notes, "applied": applied})
    return folder


def prune(layout: Layout, kept: int) -> None:
    for folder in layout.checkpoint_folders()[:-kept]:
        checkpoint.remove(folder)


def oldest_applied(layout: Layout) -> int:
    """The event up to which every kept checkpoint has learned: what came later may have to be learned again."""
    folders = layout.checkpoint_folders()
    return int(folders[0].name.rsplit("-", 1)[1]) if folders else 0
