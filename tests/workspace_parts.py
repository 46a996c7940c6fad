"""What tests of workspaces share: a network that learns in milliseconds, checkpoints without a learner, small pictures."""

import io
import zipfile
from pathlib import Path

import numpy as np
from PIL import Image

from edge_hpcr.learner import checkpoint
from edge_hpcr.learner.memory import MemoryConfig, ReplayMemory
from edge_hpcr.live.accuracy import HeldOut, TestThenTrain
from edge_hpcr.stream import Frame
from edge_hpcr.workspace.workspace import Workspace

FROM_SCRATCH = {"backbone": "reduced_resnet18"}
SMALL = {**FROM_SCRATCH, "image_size": 8}
RNG = np.random.default_rng(0)


def write_checkpoint(
    path: Path, step: int, applied: int, samples: int = 5, fingerprint: str | None = None
) -> Path:
    """A checkpoint of a workspace as a learner saves it that has learned so many events; it has no weights."""
    memory = ReplayMemory(MemoryConfig(samples=samples), (8, 8, 3), 0, False, np.random.default_rng(0))
    memory.add_class()
    memory.update(np.zeros((samples, 8, 8, 3), np.uint8), np.zeros(samples, np.int64))
    arrays, facts = memory.state()
    notes = {
        "applied": applied,
        "fingerprint": fingerprint,
        "test_then_train": TestThenTrain().model_dump(),
        "held_out": HeldOut().model_dump(),
        "memory": {"samples": samples, "bytes": {"total": 1000}, "budget": 2000},
    }
    folder = path / "checkpoints" / f"step-{step:09d}"
    checkpoint.write(folder, {"memory": arrays}, {"memory": facts, "step": step, "notes": notes})
    return folder


def png(value: int, side: int = 8) -> bytes:
    """A small image that is like no other: its values tell which one it is."""
    pixels = np.full((side, side, 3), value % 256, np.uint8)
    pixels[0, 0] = divmod(value, 256)[0] % 256, value % 7, 3
    file = io.BytesIO()
    Image.fromarray(pixels).save(file, "PNG")
    return file.getvalue()


def make_zip(path: Path, entries: dict[str, bytes], compression: int = zipfile.ZIP_STORED) -> Path:
    with zipfile.ZipFile(path, "w", compression) as bundle:
        for name, content in entries.items():
            bundle.writestr(zipfile.ZipInfo(name), content, compression)
    return path


def take(workspace: Workspace, count: int) -> list[int]:
    """So many pictures, no two alike, into the queue."""
    images = RNG.integers(0, 256, (count, 8, 8, 3), np.uint8)
    return workspace.take_many([Frame(image, "camera 0") for image in images])


def label(workspace: Workspace, count: int) -> list[int]:
    """So many new pictures, all of them mugs."""
    ids = take(workspace, count)
    mug = workspace.journal.class_named("mug")
    workspace.journal.label_each((i, mug) for i in ids)
    return ids


def labels(workspace: Workspace) -> dict[str, int]:
    return {row.name: row.labels for row in workspace.journal.classes()}
