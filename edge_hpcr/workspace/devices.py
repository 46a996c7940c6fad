"""The devices that use a workspace's models, as each of them last reported: `devices.json`.

Nothing that was learned depends on it, and devices report again within a minute, so that a damaged one is made anew.
`export serve` writes it. Times are this machine's: the clock of a device may say 1970.
"""

from __future__ import annotations

import re
import time
from contextlib import suppress
from pathlib import Path
from typing import Annotated, Any

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, TypeAdapter, ValidationError

from edge_hpcr.common.errors import UserError, first_of
from edge_hpcr.common.files import disk_errors, write_atomically

ID = re.compile(r"[A-Za-z0-9._-]{1,64}")
MOST_DEVICES = 2000  # of more, those that have been silent for longest are forgotten
SILENT_SECONDS = 300.0  # after which a device counts as silent
LONGEST_TEXT = 300


def check_id(device: str) -> str:
    """The id, or a `UserError` that says how one is written."""
    if ID.fullmatch(device) is None:
        written = "an id has 1 to 64 letters, digits, points, lines and underscores"
        raise UserError(f"device {device[:80]!r}: {written}")
    return device


def _printable(text: Any) -> Any:
    """It is shown on pages and in terminals: one line, and not too long."""
    if not isinstance(text, str):
        return text
    return "".join(each if each.isprintable() else " " for each in text)[:LONGEST_TEXT]


Count = Annotated[int, Field(ge=0, lt=2**53)]
Text = Annotated[str, BeforeValidator(_printable)]


class Facts(BaseModel):
    """What a device says of itself and is kept; further fields of a newer one are let pass."""

    model_config = ConfigDict(strict=True, allow_inf_nan=False)

    version: Count | None  # None: it has no model yet
    frames: Count  # since its start
    unknown: Count  # of these
    unsure_waiting: Count  # frames that wait on the device for the way here
    unsure_dropped: Count  # frames for which it had no room
    problem: Text | None


class Report(Facts):
    """What a device sends."""

    device: str

    @classmethod
    def parse(cls, data: bytes) -> Report:
        try:
            return cls.model_validate_json(data)
        except ValidationError as error:
            raise UserError(first_of(error)) from None


class Device(Facts):
    """What is known of a device."""

    id: str
    first_seen: float
    last_seen: float
    since: float  # that it reports this version

    @property
    def unknown_share(self) -> float | None:
        return min(1.0, self.unknown / self.frames) if self.frames else None

    def silent_for(self, now: float) -> float:
        return max(0.0, now - self.last_seen)

    def is_silent(self, now: float) -> bool:
        return self.silent_for(now) > SILENT_SECONDS


_DEVICES = TypeAdapter(list[Device])


def note_report(path: Path, device: str, report: Report, at: float | None = None) -> None:
    """Note what a device says; a `UserError` if it cannot be stored."""
    now = time.time() if at is None else at
    known: dict[str, Device] = {}
    with suppress(UserError):
        known = {each.id: each for each in devices(path)}
    before = known.get(check_id(device))
    known[device] = Device(
        id=device,
        first_seen=before.first_seen if before else now,
        last_seen=now,
        since=before.since if before and before.version == report.version else now,
        **report.model_dump(include=set(Facts.model_fields)),
    )
    newest = sorted(known.values(), key=lambda each: each.last_seen)[-MOST_DEVICES:]
    with disk_errors(f"{path} cannot be written"):
        write_atomically(path, _DEVICES.dump_json(newest), durable=False)  # reports come again


def devices(path: Path) -> list[Device]:
    """All that have reported, by id."""
    if not path.exists():
        return []
    with disk_errors(f"{path} cannot be read"):
        text = path.read_bytes()
    try:
        return sorted(_DEVICES.validate_json(text), key=lambda each: each.id)
    except ValidationError as error:
        anew = "the next report of a device makes it anew"
        raise UserError(f"{path} cannot be read ({first_of(error)}): {anew}") from error
