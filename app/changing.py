"""The classes as pages know them: each page gets only those that have changed since it last asked."""

from __future__ import annotations

import re
import secrets
import threading
from dataclasses import asdict
from typing import Any

from app.arrangement import chosen_keys, chosen_order
from app.palette import colour_of
from edge_hpcr.workspace.folder import Workspace
from edge_hpcr.workspace.records import ClassRow

GONE_KEPT = 1000  # classes that ended: a page that knows more of them gets everything anew


class ChangingClasses:
    """Follows the classes of a journal, which any process may change. Any thread may ask, but not within a transaction.

    A version is the last event that was looked at, with a name of this process: another one, after a restart or after
    an older journal was restored, may count the same event for something else.
    """

    def __init__(self, workspace: Workspace) -> None:
        self._workspace, self._journal = workspace, workspace.journal
        self._arrangement = self._arranged()
        self._lock = threading.Lock()
        self._process = secrets.token_hex(4)
        self._seq = -1
        self._rows: dict[int, tuple[ClassRow, int]] = {}  # each with the event at which its change was seen
        self._gone: dict[int, int] = {}

    def names(self) -> dict[int, str]:
        with self._lock:
            return {class_id: row.name for class_id, (row, _) in self._look().items()}

    def rows(self) -> list[ClassRow]:
        with self._lock:
            return [row for row, _ in self._look().values()]

    def since(self, version: str) -> dict[str, Any]:
        """What a page that has this version needs: changed and new classes, those that are gone, whether that is all."""
        with self._lock:
            rows = self._look()
            process, _, text = version.partition("-")
            known = int(text) if process == self._process and re.fullmatch("[0-9]{1,18}", text) else -1
            changed = [row for row, seen in rows.values() if seen > known]
            return {
                "version": f"{self._process}-{self._seq}",
                "whole": known < 0,
                "classes": self._described(changed),
                "gone": [class_id for class_id, seen in self._gone.items() if seen > known >= 0],
            }

    def _described(self, rows: list[ClassRow]) -> list[dict[str, Any]]:
        order, keys = self._arrangement
        places = {class_id: place for place, class_id in enumerate(chosen_order(order) if rows else ())}
        chosen = chosen_keys(keys) if rows else {}
        return [
            {
                **asdict(row),
                "colour": colour_of(row.id, row.colour),
                "place": places.get(row.id, len(places)),
                "chosen": chosen.get(row.id, ""),
            }
            for row in rows
        ]

    def _arranged(self) -> tuple[str, str]:
        return self._workspace.settings.class_order, self._workspace.settings.class_keys

    def _look(self) -> dict[int, tuple[ClassRow, int]]:
        """Everything else of a class is said by events: without a new one, nothing has changed."""
        if self._arrangement != self._arranged():
            self._arrangement = self._arranged()
            self._process = secrets.token_hex(4)  # pages get everything anew
        seq = self._journal.last_seq
        if seq == self._seq:
            return self._rows
        rows = {row.id: row for row in self._journal.classes()}
        for class_id in self._rows.keys() - rows.keys():
            del self._rows[class_id]
            self._gone[class_id] = seq
        for class_id, row in rows.items():
            if class_id not in self._rows or self._rows[class_id][0] != row:
                self._rows[class_id] = (row, seq)
                self._gone.pop(class_id, None)  # an undo brought it back
        if len(self._gone) > GONE_KEPT:
            self._gone.clear()
            self._process = secrets.token_hex(4)
        self._seq = seq
        return self._rows
