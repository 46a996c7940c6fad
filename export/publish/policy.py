"""When a snapshot is published, and when it is not."""

from __future__ import annotations

from dataclasses import dataclass

from edge_hpcr.common.errors import UserError, check_positive
from edge_hpcr.workspace.settings import Settings

TOLERANCE = 1e-4  # of a score, against the network
FEWEST_SAMPLES = 20  # held out: an accuracy on fewer is a guess, and nothing is refused for a guess
_ROUNDING = 1e-9  # far below one sample of any number of them


class Refused(Exception):
    """The snapshot was not published; devices go on with what they have. One line: why."""


def falls_by_more(before: float, now: float, most: float) -> bool:
    """Whether an accuracy falls by more than is allowed; exactly that much is allowed.

    >>> falls_by_more(0.91, 0.90, 0.01), 0.91 - 0.90 > 0.01
    (False, True)
    """
    return before - now > most + _ROUNDING


@dataclass(frozen=True)
class Policy:
    """When to publish, and how much to keep."""

    most_drop: float = 0.02  # of held-out accuracy, against the current version
    keep: int = 10  # versions
    tolerance: float = TOLERANCE  # of a score, against the network
    force: bool = False  # publish a worse model too; never one that differs from the network

    @classmethod
    def of(cls, settings: Settings) -> Policy:
        """What a workspace's settings say."""
        return cls(most_drop=settings.publish_most_drop, keep=settings.publish_keep)

    def __post_init__(self) -> None:
        if not 0 <= self.most_drop <= 1:
            raise UserError(f"most_drop {self.most_drop}: give a share from 0 to 1")
        if self.keep < 1:
            raise UserError(f"keep {self.keep}: give a whole number of at least 1")
        check_positive("tolerance", self.tolerance)
