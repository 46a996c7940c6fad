"""Which held-out samples the learner and its published models are measured on: the same for both."""

from edge_hpcr.live.accuracy import balanced
from edge_hpcr.workspace.folder import Workspace


def held_out_ids(workspace: Workspace) -> dict[int, int]:
    """The held-out samples in use, with their classes: balanced over classes, within the budget."""
    rows = {
        row.id: row
        for row in workspace.journal.all_samples(state="labelled", held_out=True)
        if row.has_image and row.class_id is not None
    }
    members: dict[int, list[int]] = {}
    for row in rows.values():
        members.setdefault(row.class_id or 0, []).append(row.id)
    chosen, total = {}, 0
    for sample_id in balanced(members, len(rows)):
        total += rows[sample_id].bytes
        if total > workspace.settings.held_out_bytes:
            break
        chosen[sample_id] = rows[sample_id].class_id or 0
    return chosen
