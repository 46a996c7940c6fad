"""The formats of everything that is stored, and the upgrades that bring what an older version wrote to this one's.

Each stored thing carries a format number. To change a format, append an upgrade to its list here: the number is one more
than the upgrades. Upgrades are never removed, so whatever any version wrote opens with every later one.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from edge_hpcr import __version__
from edge_hpcr.common.errors import UserError

if TYPE_CHECKING:  # a device reads formats too, and needs no database
    import sqlite3

Thing = TypeVar("Thing")


@dataclass(frozen=True)
class Format(Generic[Thing]):
    """One kind of stored thing. `upgrades[0]` changes format 1 to format 2 in place, and says what people should know.

    >>> Format[dict]("notes", (lambda notes: [],)).current
    2
    """

    name: str
    upgrades: tuple[Callable[[Thing], list[str]], ...] = ()

    @property
    def current(self) -> int:
        return 1 + len(self.upgrades)

    def is_old(self, written: Any, where: object, version: object = None) -> bool:
        """Whether upgrades are needed; refuses what a newer version wrote, and what is no format number."""
        if isinstance(written, int) and not isinstance(written, bool) and 1 <= written <= self.current:
            return written < self.current
        wrote = f"the version that wrote it ({str(version)[:20]}) or " if version else ""
        raise UserError(
            f"{self.name} {where}: format {str(written)[:20]}, this version ({__version__}) reads formats up to "
            f"{self.current}: use {wrote}a newer version"
        )

    def upgrade(self, thing: Thing, written: int) -> list[str]:
        return [sentence for step in self.upgrades[written - 1 :] for sentence in step(thing)]


def _take_each_file_once(db: sqlite3.Connection) -> list[str]:
    """Journal 1 to 2: one sample at most for the file that it was read from.

    Two threads could take a file at the same time. Of such samples one keeps the file's digest, a labelled one if there
    is one; the others keep image, label and events.
    """
    doubles = db.execute(
        "SELECT source_digest, group_concat(id, ', '), count(*) FROM (SELECT id, source_digest FROM samples"
        " WHERE source_digest IS NOT NULL ORDER BY id) GROUP BY source_digest HAVING count(*) > 1 ORDER BY min(id)"
    ).fetchall()
    for digest, _, _ in doubles:
        db.execute(
            "UPDATE samples SET source_digest = NULL WHERE source_digest = ?1 AND id != (SELECT id FROM samples"
            " WHERE source_digest = ?1 ORDER BY CASE state WHEN 'labelled' THEN 1 WHEN 'queued' THEN 2"
            " WHEN 'dismissed' THEN 3 ELSE 4 END, id LIMIT 1)",
            (digest,),
        )
    db.execute("DROP INDEX samples_by_source")
    db.execute(
        "CREATE UNIQUE INDEX samples_by_source ON samples (source_digest) WHERE source_digest IS NOT NULL"
    )
    return [
        f"one file had been taken {count} times, as samples {ids}: all are kept, look at their labels"
        for _, ids, count in doubles
    ]


def _name_the_backbone(index: dict[str, Any]) -> list[str]:
    """Checkpoint 1 to 2: weights belong to a backbone, which was the paper's network, or are proxies."""
    groups = index.get("arrays", {})
    for group in groups.keys() & {"network", "average", "optimiser"}:
        members = groups[group].items()
        groups[group] = {
            name if name.startswith("proxies") else f"backbone.{name}": value for name, value in members
        }
    return []


def _from_scratch(settings: dict[str, Any]) -> list[str]:
    """Settings 1 to 2: a learner that has begun goes on with the backbone, the size and the budgets it had."""
    had = {"backbone": "reduced_resnet18", "image_size": 32, "codec": "raw"}
    for name, value in {**had, "memory_bytes": 2_000_000, "held_out_bytes": 2_000_000}.items():
        settings.setdefault(name, value)
    return []


def _as_it_is(thing: dict[str, Any]) -> list[str]:
    """Nothing in the thing itself changes; what older programs would miss, this one looks up elsewhere.

    Manifest 1 to 2: the model has an output `similarity`, as its own metadata say. Backup 1 to 2: its list of files is
    gone, the zip has checksums of its own.
    """
    return []


JOURNAL: Format[sqlite3.Connection] = Format("journal", (_take_each_file_once,))
SETTINGS = Format[dict[str, Any]]("settings", (_from_scratch,))
# Of its index, with the arrays if they are read.
CHECKPOINT = Format[dict[str, Any]]("checkpoint", (_name_the_backbone,))
MANIFEST = Format[dict[str, Any]]("manifest", (_as_it_is,))  # of an exported version
LATEST = Format[dict[str, Any]]("latest.json")  # which names the current one
DATASET = Format[dict[str, Any]]("dataset")  # its description in the data folder
REGIONS = Format[dict[str, Any]]("regions")  # of sources, in a workspace
PINNED = Format[dict[str, Any]]("staged.json")  # devices that stay on a version
BACKUP = Format[dict[str, Any]]("backup", (_as_it_is,))  # of a whole workspace
