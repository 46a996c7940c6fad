"""Count the lines of every room, and fail where one exceeds its budget in pyproject.toml: `make check` runs it.

A change that needs more lines takes them from somewhere else, or says in its commit why the budget must grow.
"""

import sys
import tomllib
from pathlib import Path

ROOT = Path(__file__).parent.parent


def lines(pattern: str) -> tuple[int, int]:
    """Lines and files of what a pattern like `app/**/*.py` finds."""
    files = [path for path in ROOT.glob(pattern) if path.is_file()]
    return sum(len(path.read_text().splitlines()) for path in files), len(files)


def main() -> int:
    budgets = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["line-budget"]
    exceeded = 0
    for room, (*patterns, most_lines, most_files) in budgets.items():
        counts = [lines(pattern) for pattern in patterns]
        have_lines, have_files = sum(each[0] for each in counts), sum(each[1] for each in counts)
        over = have_lines > most_lines or have_files > most_files
        exceeded += over
        print(
            f"{room:24}{have_lines:7,} of {most_lines:6,} lines{have_files:5} of {most_files:3} files", end=""
        )
        print("   over its budget" if over else "")
    return 1 if exceeded else 0


if __name__ == "__main__":
    sys.exit(main())
