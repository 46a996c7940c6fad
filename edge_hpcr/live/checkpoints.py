"""The checkpoints of a workspace: the newest whole one is loaded, the last few are kept."""

from __future__ import annotations

import itertools
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from edge_hpcr.common.errors import UserError
from edge_hpcr.learner import checkpoint
from edge_hpcr.workspace.layout import Layout

if TYPE_CHECKING:  # `status` asks here too, and PyTorch takes seconds
    import torch

    from edge_hpcr.learner.learner import Learner

Loaded = TypeVar("Loaded")
ATTEMPTS = 3  # a learner that runs may remove every checkpoint whose name was read


def newest(
    layout: Layout, load: Callable[[Path], Loaded], refusals: type[UserError] = UserError
) -> tuple[Loaded | None, list[tuple[Path, UserError]]]:
    """Load the newest checkpoint that `load` does not refuse; returns also those it refused, with the reasons."""
    for _ in range(ATTEMPTS):
        refused: list[tuple[Path, UserError]] = []
        folders = layout.checkpoint_folders()
        for folder in reversed(folders):
            try:
                return load(folder), refused
            except refusals as error:
                if folder.exists():
                    refused.append((folder, error))
        if len(refused) == len(folders):
            break
    return None, refused


def load_newest(
    layout: Layout, device: str | torch.device, weights: str | None = None
) -> tuple[tuple[Learner, dict[str, Any]] | None, list[str]]:
    """The learner of the newest whole checkpoint, with its notes; and a sentence about each damaged one, set aside.

    Only for the process that holds the workspace's lock. A checkpoint of another version is refused and stays.
    """
    _clear_leftovers(layout)
    from edge_hpcr.learner.learner import Learner

    found, damaged = newest(
        layout, lambda folder: Learner.load(folder, device, weights), checkpoint.DamagedCheckpoint
    )
    for folder, _ in damaged:
        names = (folder.with_name(f"damaged-{folder.name}-{number}") for number in itertools.count(1))
        folder.rename(next(name for name in names if not name.exists()))
    again = "what it had learned is learned again from the labels, as far as images are left"
    return found, [f"{error}; {again}" for _, error in damaged]


def _clear_leftovers(layout: Layout) -> None:
    """Remove what a process left that was killed while it saved; a whole older checkpoint is kept."""
    for leftover in layout.checkpoints.glob("step-*.*"):
        whole = leftover.with_suffix("")
        if leftover.suffix == ".previous" and not whole.exists():
            leftover.rename(whole)
        else:
            shutil.rmtree(leftover)


def save(
    layout: Layout, learner: Learner, applied: int, notes: dict[str, Any], fingerprint: str | None = None
) -> Path:
    """`applied` is the last event of the journal that the learner has taken in completely."""
    folder = layout.checkpoints / f"step-{learner.step:09d}-event-{applied:09d}"
    learner.save(folder, {**notes, "applied": applied, "fingerprint": fingerprint})
    return folder


def prune(layout: Layout, kept: int) -> None:
    for folder in layout.checkpoint_folders()[:-kept]:
        checkpoint.remove(folder)


def oldest_applied(layout: Layout) -> int:
    """The event up to which every kept checkpoint has learned: what came later may have to be learned again."""
    folders = layout.checkpoint_folders()
    return int(folders[0].name.rsplit("-", 1)[1]) if folders else 0
