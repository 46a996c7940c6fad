"""The exports folder of a workspace: numbered versions, the current one, rollback and roll-forward.

    exports/v000017/         a version, whole or absent
    exports/latest.json      the current version, replaced atomically
    exports/staged.json      devices that stay on a version, and the latest.json that they are given
    exports/history.json     the last numbers given, of versions and of signatures, and the version that was rolled back from
    exports/lock             held while the folder is changed

Numbers are never used again.
"""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from edge_hpcr.common.errors import UserError
from edge_hpcr.common.files import locked, sha256, write_atomically
from edge_hpcr.common.formats import PINNED as PINNED_FORMAT
from edge_hpcr.common.text import many
from edge_hpcr.common.units import format_bytes
from edge_hpcr.live.status import accuracy_text
from edge_hpcr.workspace.devices import check_id
from edge_hpcr.workspace.layout import Layout
from edge_hpcr.workspace.settings import Settings
from export.device import BadModel
from export.device.manifest import (
    FORMAT,
    LATEST,
    MANIFEST,
    Latest,
    Manifest,
    Whole,
    parse_json,
    read,
    read_latest,
    read_manifest,
    read_model_file,
)
from export.device.signing import PrivateKey

HISTORY, PINNED, LOCK = "history.json", "staged.json", "lock"
LOCK_SECONDS = 300.0  # a full export on a slow machine takes a minute
_VERSION = re.compile(r"v(\d{6,})")


@dataclass(frozen=True)
class Pinned:
    """These devices stay on this version, whatever is current for the others."""

    version: Whole
    devices: tuple[str, ...]
    latest: str  # the contents of the latest.json for these devices


class Refused(Exception):
    """The snapshot was not published; devices go on with what they have. One line: why."""


def folder_name(version: int) -> str:
    return f"v{version:06d}"


def versions(exports: Path) -> list[Manifest]:
    """All that are kept and can be read, oldest first."""
    found = []
    for folder in _folders(exports):
        with suppress(BadModel):
            found.append(read_manifest(folder))
    return found


def _latest(exports: Path) -> Latest | None:
    """What devices are told; None before the first version, or when it is damaged: the next version replaces it."""
    with suppress(BadModel):
        return read_latest(exports)
    return None


def latest_version(exports: Path) -> int | None:
    """The current version, if there is one."""
    latest = _latest(exports)
    return latest.version if latest else None


def held_out(facts: Mapping[str, Any]) -> str:
    """How good a version was when it was published, by its manifest."""
    accuracy = facts.get("accuracy") or {}
    text = accuracy_text(accuracy.get("held_out"), accuracy.get("samples", 0))
    return f"{text}, in one place" if accuracy.get("one_place") else text


def summary(manifest: Manifest) -> str:
    """A version in one line."""
    parts = [
        f"step {manifest.step:,}",
        many(len(manifest.classes), "class"),
        f"held-out: {held_out(manifest.facts)}",
        format_bytes(manifest.model.bytes),
        *(f"{name} {format_bytes(file.bytes)}" for name, file in manifest.variants.items()),
    ]
    return ", ".join(parts)


# Which one is current -------------------------------------------------------------------------------------------------


def rolled_back(exports: Path) -> int | None:
    """The version that was rolled back from, as long as an older one is current."""
    source, current = _history(exports)["rolled_back_from"], latest_version(exports)
    return source if source is not None and current is not None and current < source else None


def rollback(exports: Path, version: int | None = None) -> Manifest:
    """Make this kept version current for all devices, or the one before the current one."""
    with changing(exports):
        if version is None:
            current = _current(exports)
            version = max((each.version for each in versions(exports) if each.version < current), default=0)
            if not version:
                raise UserError(f"version {current} is the oldest that is kept")
        return _make_current(exports, version)


def rollforward(exports: Path) -> Manifest:
    """End a rollback: make the newest version current."""
    with changing(exports):
        return _make_current(exports, max((each.version for each in versions(exports)), default=0))


def _make_current(exports: Path, version: int) -> Manifest:
    current = _current(exports)
    if version == current:
        raise UserError(f"version {version} is the current one already")
    source = rolled_back(exports) or current
    manifest = check_whole(exports, version)
    signing_key(exports)  # one that is missing is told before anything changes
    if version < source:
        note(exports, rolled_back_from=source)  # first: a publisher must not undo what it does not know of
    point_at(exports, version)
    return manifest


def _current(exports: Path) -> int:
    if not (exports / LATEST).exists():
        raise UserError(f"{exports} holds no published version yet: publish one first")
    return read_latest(exports).version


def check_whole(exports: Path, version: int) -> Manifest:
    """The manifest of a version all of whose files are as they were published; else a `UserError`."""
    folder = exports / folder_name(version)
    try:
        manifest = read_manifest(folder)
        for file in manifest.files:
            read_model_file(folder, file)
    except BadModel as error:
        raise UserError(f"version {version} is not here, or damaged: {error}") from None
    return manifest


# Devices that stay on a version ---------------------------------------------------------------------------------------


def pinned(exports: Path) -> Pinned | None:
    """Who stays on which version; None when nobody does, or when the file is damaged."""
    with suppress(OSError, BadModel):
        return read(Pinned, parse_json((exports / PINNED).read_bytes(), PINNED), PINNED)
    return None


def pin(exports: Path, version: int, devices: Sequence[str]) -> Manifest:
    """Keep these devices, and no others, on this version until `unpin`."""
    if not devices:
        raise UserError("name the devices, with commas between them")
    with changing(exports):
        current, manifest = _current(exports), check_whole(exports, version)
        latest = _latest_for(exports / folder_name(version)).decode()
        facts = {"version": version, "devices": list(map(check_id, devices)), "latest": latest}
        write_atomically(exports / PINNED, json.dumps({"format": PINNED_FORMAT.current, **facts}))
        # Written once more, so that it is the later word for a device that is freed.
        point_at(exports, current)
    return manifest


def unpin(exports: Path) -> int:
    """Let all devices follow the current version again, which is returned."""
    with changing(exports):
        if not (exports / PINNED).exists():
            raise UserError("no device is kept on a version: `pin` does that")
        (exports / PINNED).unlink()
        return _current(exports)


# The folder -----------------------------------------------------------------------------------------------------------


def _folders(exports: Path) -> list[Path]:
    if not exports.is_dir():
        return []
    found = [(int(match[1]), each) for each in exports.iterdir() if (match := _VERSION.fullmatch(each.name))]
    return [folder for _, folder in sorted(found)]


@contextmanager
def changing(exports: Path) -> Iterator[None]:
    """Hold the folder's lock, and remove what was left half done, by an interrupted process or by an error."""
    try:
        exports.mkdir(parents=True, exist_ok=True)
        busy = f"{exports}: process {{owner}} has been busy in it for {LOCK_SECONDS:.0f} s; end that first"
        with locked(exports / LOCK, busy, LOCK_SECONDS):
            _tidy(exports)
            try:
                yield
            finally:
                _tidy(exports)
    except OSError as error:
        raise UserError(
            f"cannot change {exports}: {error.strerror or error}; check free space and permissions"
        ) from error


def _tidy(exports: Path) -> None:
    for left in (*exports.glob(".v*.writing"), *exports.glob(".v*.removing")):
        shutil.rmtree(left)


def _history(exports: Path) -> dict[str, Any]:
    """Defaults when the file cannot be read."""
    history: dict[str, Any] = {"last_version": 0, "rolled_back_from": None, "serial": 0}
    with suppress(OSError, ValueError):
        noted = json.loads((exports / HISTORY).read_bytes())
        history |= {name: noted[name] for name in history if name in noted}
    return history


def note(exports: Path, **changes: int) -> None:
    """Remember in the folder's history."""
    write_atomically(exports / HISTORY, json.dumps({"format": FORMAT, **_history(exports), **changes}))


def next_version(exports: Path) -> int:
    numbers = [int(folder.name[1:]) for folder in _folders(exports)]
    return max([_history(exports)["last_version"], latest_version(exports) or 0, *numbers]) + 1


def point_at(exports: Path, version: int) -> None:
    """Make it current; under the folder's lock."""
    write_atomically(exports / LATEST, _latest_for(exports / folder_name(version)))


def _latest_for(folder: Path) -> bytes:
    """The latest.json that names this version; both are signed if the workspace names a key."""
    latest = Latest(int(folder.name[1:]), folder.name, sha256(folder / MANIFEST))
    exports = folder.parent
    key = signing_key(exports)
    if key is None:
        return latest.to_bytes()
    # Higher than any before, so that a device knows which of two is the later one.
    serial = max(_history(exports)["serial"], _signed_serial(exports) or 0) + 1
    note(exports, serial=serial)
    # A device refuses an older version by itself; whoever makes one current means it.
    allows_older = latest.version < next_version(exports) - 1
    return key.signed(folder, latest, serial, allows_older).to_bytes()


def signing_key(exports: Path) -> PrivateKey | None:
    """The key of the workspace; a `UserError` if it names none and yet the current version is signed."""
    settings = Layout(exports.parent).settings
    named = Settings.load(settings).publish_key if settings.exists() else ""
    key = PrivateKey(Path(named)) if named else None
    if key is None and _signed_serial(exports) is not None:
        raise UserError(
            "the current version is signed and no key is named for the next, which devices would refuse: name it with "
            "--sign FILE"
        )
    return key


def _signed_serial(exports: Path) -> int | None:
    """The number of the current latest.json; None if it is not signed."""
    latest = _latest(exports)
    return latest.signature.serial if latest and latest.signature else None


def sign_current(exports: Path) -> None:
    """Sign what devices have now, with a key that was just named; a rollback signs the version that it returns to."""
    with changing(exports):
        if (current := latest_version(exports)) is not None:
            point_at(exports, current)
        kept = pinned(exports)
    if kept is not None:
        pin(exports, kept.version, kept.devices)


def prune(exports: Path, keep: int) -> None:
    """Remove all but the newest, the current one, and the one that devices are kept on."""
    kept = pinned(exports)
    used = (latest_version(exports), kept.version if kept else None)
    for folder in _folders(exports)[:-keep]:
        if int(folder.name[1:]) not in used:
            folder.rename(exports / f".{folder.name}.removing")  # `changing` removes it
