"""What a frozen trunk said of samples, kept on disk: labels that are learned again need no image and no pass.

It is a cache. Losing it costs time alone, so it is not flushed, no backup has it, and what is wrong with it is no error.
"""

from __future__ import annotations

import sqlite3
import threading
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import numpy as np

from edge_hpcr.learner.codec import Latents

TIDY_EVERY = 1000  # latents that are stored


class LatentFile:
    """Latents of samples by their numbers, 8 bits per number; the oldest leave. Any thread may ask.

    `made_of` names the trunk, and the picture of a sample: latents of another are not found. The numbers of samples alone
    would not do, since a journal that went back to a backup gives them again.
    """

    def __init__(
        self, path: Path, shape: tuple[int, ...], made_of: Callable[[int], str], most_bytes: int
    ) -> None:
        self._path, self._made_of = path, made_of
        self._store = Latents(shape)
        self._most = max(1, most_bytes // self._store.dtype.itemsize)
        self._lock = threading.Lock()
        self._stored = 0
        self._db: sqlite3.Connection | None = None
        try:
            self._open()
        except sqlite3.Error:  # cut short by a power cut, say
            self._remove()
            with suppress(sqlite3.Error):
                self._open()

    def _open(self) -> None:
        db = sqlite3.connect(self._path, isolation_level=None, check_same_thread=False)
        db.execute("PRAGMA journal_mode = WAL")
        db.execute("PRAGMA synchronous = OFF")
        db.execute("CREATE TABLE IF NOT EXISTS latents (id INTEGER PRIMARY KEY, made_of TEXT, latent BLOB)")
        self._db = db

    def _remove(self) -> None:
        for suffix in ("", "-wal", "-shm"):
            Path(f"{self._path}{suffix}").unlink(missing_ok=True)

    def close(self) -> None:
        with self._lock:
            if self._db is not None:
                self._db.close()
            self._db = None

    def find(self, sample_id: int) -> np.ndarray | None:
        query, found = "SELECT latent FROM latents WHERE id = ? AND made_of = ?", None
        made_of = self._made_of(sample_id)
        with self._lock, suppress(sqlite3.Error):
            if self._db is not None:
                found = self._db.execute(query, (sample_id, made_of)).fetchone()
        if found is None or len(found[0]) != self._store.dtype.itemsize:
            return None
        return self._store.decoded(np.frombuffer(found[0], self._store.dtype))[0]

    def keep(self, sample_id: int, latent: np.ndarray) -> None:
        row = (sample_id, self._made_of(sample_id), self._store.stored(latent).tobytes())
        with self._lock, suppress(sqlite3.Error):  # a full disk, say
            if self._db is None:
                return
            self._db.execute("INSERT OR REPLACE INTO latents VALUES (?, ?, ?)", row)
            self._stored += 1
            if self._stored % TIDY_EVERY == 0:
                newest = "(SELECT max(id) FROM latents)"
                self._db.execute(f"DELETE FROM latents WHERE id <= {newest} - ?", (self._most,))

    def forget(self, sample_id: int) -> None:
        """A person took the sample out: nothing of it stays."""
        with self._lock, suppress(sqlite3.Error):
            if self._db is not None:
                self._db.execute("DELETE FROM latents WHERE id = ?", (sample_id,))
