"""Bounds that hold for months: the queue's, and the disk's."""

from collections.abc import Collection

from edge_hpcr.live import checkpoints
from edge_hpcr.workspace import label_queue
from edge_hpcr.workspace.folder import Workspace

FILLED_AGAIN_TO = 0.9  # of the disk budget, so that the frames until the next checkpoint find room


def tidy(workspace: Workspace, in_memory: Collection[int], held_out: Collection[int]) -> int:
    """Drop images that nobody needs, oldest first, when the disk budget is nearly used up; returns how many."""
    trim_queue(workspace)
    settings = workspace.settings
    excess = workspace.journal.counts().image_bytes - int(FILLED_AGAIN_TO * settings.disk_bytes)
    if excess <= 0 or settings.archive:
        return 0
    needed = {int(i) for i in in_memory} | set(held_out)
    # If the newest checkpoint turns out damaged, an older one is loaded, and everything behind it is learned again.
    covered = checkpoints.oldest_applied(workspace.layout)
    dropped: list[int] = []
    for row in workspace.journal.all_samples():
        if excess <= 0:
            break
        if (
            not row.has_image
            or row.state == "queued"
            or row.id in needed
            or (row.labelled_seq or 0) > covered
        ):
            continue
        dropped.append(row.id)
        excess -= row.bytes
    return len(workspace.forget_images(dropped, covered))


def trim_queue(workspace: Workspace, room: int = 0, room_bytes: int = 0) -> int:
    """Let the least informative samples leave until there is this much room in the queue; returns how many left."""
    settings = workspace.settings
    most, most_bytes = max(0, settings.queue_samples - room), max(0, settings.queue_bytes - room_bytes)
    counts = workspace.journal.counts()
    if counts.queued <= most and counts.queued_bytes <= most_bytes:
        return 0
    rows = workspace.journal.queued(limit=counts.queued)
    leaving = label_queue.overflow(
        [row.id for row in rows],
        [row.priority for row in rows],
        [row.hash64 for row in rows],
        [row.bytes for row in rows],
        most,
        most_bytes,
    )
    return len(workspace.drop_queued(leaving))
