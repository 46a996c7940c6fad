"""Starts the processes that work in workspaces, kills them at a random moment, and hands back what they reported."""

import json
import os
import select
import subprocess
import sys
import tempfile
import time
from contextlib import suppress
from pathlib import Path
from typing import Any, Self

import numpy as np

from benchmarks.endurance.victim import ACTING, LEARNING, LIFE_SECONDS, Phases
from benchmarks.runner import ROOT
from edge_hpcr.common.errors import UserError

Message = dict[str, Any]

# The phases that are waited for, and the most seconds from their beginning to the kill: about as long as they take on an
# idle machine.
HUNTED = {
    "opening": 0.15,
    "learning": 0.4,
    "labelling": 0.004,
    "taking images": 0.02,
    "checkpoint": 0.1,
    "journal backup": 0.02,
    "removing checkpoints": 0.005,
    "dropping images": 0.003,
}
HUNT_SECONDS = 1.5  # after the opening; then it is killed wherever it is
OPENING_SECONDS = 60.0  # on a busy machine


class Victims:
    """A process that has imported everything, and forks one for each order."""

    def __init__(self) -> None:
        self._pipe, writing = os.pipe()
        os.set_blocking(self._pipe, False)
        self._temporary = tempfile.TemporaryDirectory(prefix="edge-hpcr-phases-")
        file = Path(self._temporary.name) / "phases"
        self._phases = Phases(file)
        # Images are not dropped before there are many: what comes late is waited for once it was seen.
        self._seen = {"opening", "learning", "taking images", "labelling", "checkpoint"}
        # A library that starts threads at its import would lose them in every fork.
        single = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1")
        self._nursery = subprocess.Popen(
            [sys.executable, "-m", "benchmarks.endurance.victim", str(writing), file],
            cwd=ROOT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            pass_fds=[writing],
            env={**os.environ, **single},
        )
        os.close(writing)
        self._reply()  # it has imported everything

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self._nursery.communicate()  # it ends with its orders
        os.close(self._pipe)
        self._temporary.cleanup()

    def phase(self) -> str:
        """What the last one was doing; of its two threads the one that was at something rarer."""
        learning = self._phases.of(LEARNING)
        return self._phases.of(ACTING) if learning in ("waiting", "learning") else learning

    def live_and_die(
        self, folder: Path, seed: list[int], rng: np.random.Generator, clock_back: float = 0.0
    ) -> list[Message]:
        """Start one, kill it at a random moment of a random phase, and return what it reported until then."""
        hunted = str(rng.choice([phase for phase in HUNTED if phase in self._seen]))
        later = rng.uniform(0, HUNTED[hunted])
        self._order({"life": "killed", "folder": str(folder), "seed": seed, "clock_back": clock_back})
        limit = time.monotonic() + OPENING_SECONDS
        end, text = limit, b""
        while (now := time.monotonic()) < end:
            if hunted and not text:  # it reports first that it has opened: only then the hunt has its time
                end = min(now + HUNT_SECONDS, limit)
            phases = {self._phases.of(ACTING), self._phases.of(LEARNING)}
            self._seen |= phases
            if hunted in phases:
                end, hunted = now + later, ""
            select.select([self._pipe], [], [], 0.001)
            text += self._read()
        self._order("kill")
        return self._ended(text, expected="-9")

    def live_and_end(self, folder: Path, life: str, seed: list[int], **details: Any) -> list[Message]:
        """Start one that ends by itself: `victim.LIVES` says what it does."""
        self._order({"life": life, "folder": str(folder), "seed": seed, **details})
        return self._ended(b"", expected="0")

    def _order(self, order: Any) -> None:
        assert self._nursery.stdin is not None
        self._nursery.stdin.write(json.dumps(order) + "\n")
        self._nursery.stdin.flush()

    def _reply(self) -> str:
        assert self._nursery.stdout is not None
        if line := self._nursery.stdout.readline().strip():
            return line
        raise UserError("the process that starts the others has ended; its last words are above")

    def _ended(self, text: bytes, expected: str) -> list[Message]:
        # Read meanwhile: a full pipe would hold it up.
        while (
            self._nursery.stdout
            not in select.select([self._nursery.stdout, self._pipe], [], [], LIFE_SECONDS)[0]
        ):
            text += self._read()
        code = self._reply()
        messages = [json.loads(line) for line in (text + self._read()).split(b"\n")[:-1]]
        return messages if code == expected else [*messages, {"kind": "ended", "code": int(code)}]

    def _read(self) -> bytes:
        parts = []
        with suppress(BlockingIOError):
            while part := os.read(self._pipe, 2**16):
                parts.append(part)
        return b"".join(parts)
