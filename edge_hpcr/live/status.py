"""What a running learner tells other processes: a small file, replaced about once a second."""

import json
import os
from pathlib import Path
from typing import Any


def write_status(path: Path, status: dict[str, Any]) -> None:
    # Not flushed to disk: after a power cut nobody runs whose status it could be.
    temporary = path.with_name(path.name + ".writing")
    temporary.write_text(json.dumps(status, allow_nan=False))
    temporary.replace(path)


def read_status(path: Path) -> dict[str, Any] | None:
    """The status of a learner that is running now; None when none is."""
    try:
        status: dict[str, Any] = json.loads(path.read_text())
        os.kill(int(status["pid"]), 0)
    except PermissionError:
        return status  # somebody else's process: it runs
    except (OSError, ValueError, KeyError, TypeError):
        return None
    return status
