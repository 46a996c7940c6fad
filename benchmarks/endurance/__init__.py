"""Does it hold? Faults at random moments, answers while it learns, hours of video, and how soon it is back."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

Progress = Callable[[int, int], None]  # of what is done, and of how much
PROBLEMS_KEPT = 20

# Small, so that every phase comes often: a checkpoint after every step, images that must be dropped.
SMALL: dict[str, Any] = {
    "backbone": "reduced_resnet18",
    "image_size": 8,
    "threads": 1,
    "memory_bytes": 6_000,
    "micro_batch": 5,
    "idle_steps": 0,
    "checkpoint_steps": 1,
    "checkpoints_kept": 2,
    "queue_samples": 12,
    "disk_bytes": 12_000,
    "device": "cpu",
}
# Nothing has to be dropped, so that whatever is missing was lost.
ROOMY: dict[str, Any] = {**SMALL, "checkpoint_steps": 50, "queue_samples": 10_000, "disk_bytes": 100_000_000}


def silent(done: int, total: int) -> None:
    """Show no progress."""


@dataclass
class Report:
    """What a part measured; the fields are kept as JSON, with the bar and whether it was passed."""

    bar = ""

    seed: int
    n: int = 0
    problems: list[str] = field(default_factory=list)  # the first of them
    problem_count: int = 0
    seconds: float = 0.0

    @property
    def passed(self) -> bool:
        return not self.problem_count

    def said(self) -> list[str]:
        """The measurements in words, a line each."""
        raise NotImplementedError

    def complain(self, problems: list[str]) -> None:
        self.problems += problems[: max(0, PROBLEMS_KEPT - len(self.problems))]
        self.problem_count += len(problems)

    def facts(self) -> dict[str, Any]:
        said = [*self.said(), *(f"problem: {each}" for each in self.problems), f"bar: {self.bar}"]
        return {**vars(self), "bar": self.bar, "passed": self.passed, "said": said}
