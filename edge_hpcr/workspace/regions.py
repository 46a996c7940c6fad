"""The regions that a person has drawn, one for each source, by its name; and which source was used last."""

from __future__ import annotations

import json
import threading
from pathlib import Path
from typing import Any

from edge_hpcr import __version__
from edge_hpcr.common.errors import UserError
from edge_hpcr.common.files import disk_errors, write_atomically
from edge_hpcr.common.formats import REGIONS
from edge_hpcr.stream.region import Region


class Regions:
    """Kept in a file, which is there once somebody has drawn a region. Any thread may ask."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._lock = threading.Lock()
        self._known: dict[str, Region] | None = None  # None: not read yet
        self._last = ""

    def of(self, source: str) -> Region | None:
        with self._lock:
            return self._read().get(source)

    def current(self) -> Region | None:
        """Of the source that was used last: what a model is published with."""
        with self._lock:
            return self._read().get(self._last)

    def put(self, source: str, region: Region | None) -> None:
        """Draw a source's region, or clear it; on disk when this returns."""
        with self._lock:
            known = {name: each for name, each in self._read().items() if name != source}
            if region is not None:
                known[source] = region
            self._write(known, source)

    def use(self, source: str) -> Region | None:
        """Go over to a source; the region that it has."""
        with self._lock:
            known = self._read()
            if known and source != self._last:
                self._write(known, source)
            return known.get(source)

    def _read(self) -> dict[str, Region]:
        if self._known is None:
            self._known, self._last = _load(self._path)
        return self._known

    def _write(self, known: dict[str, Region], last: str) -> None:
        facts = {"format": REGIONS.current, "version": __version__, "last": last}
        listed = {name: region.to_list() for name, region in known.items()}
        with disk_errors(f"regions {self._path} cannot be written", "is there room, and a right to write?"):
            write_atomically(self._path, json.dumps({**facts, "regions": listed}, indent=1) + "\n")
        self._known, self._last = known, last


def _load(path: Path) -> tuple[dict[str, Region], str]:
    if not path.exists():
        return {}, ""
    try:
        with disk_errors(f"regions {path} cannot be read"):
            facts: Any = json.loads(path.read_text(encoding="utf-8"))
        if not isinstance(facts, dict):
            raise ValueError("it is no JSON object")
    except ValueError as error:
        mend = "mend the file, or remove it and draw them again"
        raise UserError(f"regions {path} are damaged ({error}): {mend}") from error
    if REGIONS.is_old(facts.get("format"), path, facts.get("version")):
        REGIONS.upgrade(facts, facts["format"])
    try:
        listed = facts.get("regions", {}).items()
        return {name: Region.of(values) for name, values in listed}, str(facts.get("last"))
    except (UserError, AttributeError) as error:
        raise UserError(f"regions {path}: {error}") from error
