"""Does it hold? Kills at random moments, answers while it learns, hours of video, and how soon it is back."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

Progress = Callable[[int, int], None]  # of what is done, and of how much
PROBLEMS_KEPT = 20


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
