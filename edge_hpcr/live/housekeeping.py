"""Bounds that hold for months: the queue's, and the disk's."""

from collections.abc import Collection

from edge_hpcr import label_queue
from edge_hpcr.live import checkpoints
from edge_hpcr.workspace.folder import Workspace
from edge_hpcr.workspace.records import SampleRow

FILLED_AGAIN_TO = 0.9  # of the disk budget, so that not every checkpoint has to look for room


def tidy(workspace: Workspace, in_memory: Collection[int], held_out: Collection[int]) -> int:
    """Drop images that nobody needs, oldest first, when the disk budget is exceeded; returns how many."""
    trim_queue(workspace)
    settings = workspace.settings
    excess = workspace.journal.counts().image_bytes - settings.disk_bytes
    if excess <= 0 or settings.archive:
        return 0
    excess += int((1 - FILLED_AGAIN_TO) * settings.disk_bytes)
    needed = {int(i) for i in in_memory} | set(held_out)
    # If the newest checkpoint turns out damaged, an older one is loaded, and everything behind it is learned again.
    covered = checkpoints.oldest_applied(workspace.layout)
    dropped: list[int] = []
    for row in _with_image(workspace):
        if excess <= 0:
            break
        if row.state == "queued" or row.id in needed or (row.labelled_seq or 0) > covered:
            continue
        dropped.append(row.id)
        excess -= row.bytes
    return len(workspace.forget_images(dropped))


def _with_image(workspace: Workspace) -> list[SampleRow]:
    rows, after = [], 0
    while page := workspace.journal.samples(after_id=after):
        rows += [row for row in page if row.has_image]
        after = page[-1].id
    return rows


def trim_queue(workspace: Workspace) -> int:
    """Let the least informative samples leave a queue that has grown too large; returns how many left."""
    settings = workspace.settings
    counts = workspace.journal.counts()
    if counts.queued <= settings.queue_samples and counts.queued_bytes <= settings.queue_bytes:
        return 0
    rows = workspace.journal.queued(limit=counts.queued)
    leaving = label_queue.overflow(
        [row.id for row in rows],
        [row.priority for row in rows],
        [row.hash64 for row in rows],
        [row.bytes for row in rows],
        settings.queue_samples,
        settings.queue_bytes,
    )
    return len(workspace.drop_queued(leaving))
