"""The exports folder of a workspace: numbered versions, the current one, rollback and roll-forward.

    exports/v000017/         a version, whole or absent
    exports/latest.json      the current version, replaced atomically
    exports/staged.json      a version that only some devices get; see staging.py
    exports/history.json     the last numbers given, of versions and of signatures, and the version that was rolled back from
    exports/lock             held while the folder is changed

Numbers are never used again.
"""

import json
import re
import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from edge_hpcr.common.errors import UserError
from edge_hpcr.common.files import locked, sha256, write_atomically
from export.device.errors import BadModel
from export.device.manifest import (
    FORMAT,
    LATEST,
    MANIFEST,
    Latest,
    Manifest,
    read_latest,
    read_manifest,
    read_model_file,
)
from export.publish.keys import PrivateKey, key_of
from export.publish.staging import end_staging, staged, write_staged

HISTORY, LOCK = "history.json", "lock"
LOCK_SECONDS = 300.0  # a full export on a slow machine takes a minute
_VERSION = re.compile(r"v(\d{6,})")


def folder_name(version: int) -> str:
    return f"v{version:06d}"


def versions(exports: Path) -> list[Manifest]:
    """All that are kept and can be read, oldest first."""
    found = []
    for folder in _folders(exports):
        try:
            found.append(read_manifest(folder))
        except BadModel:
            continue  # `verify` names it
    return found


def latest_version(exports: Path) -> int | None:
    """The current version; None before the first."""
    return read_latest(exports).version if (exports / LATEST).exists() else None


def latest_or_none(exports: Path) -> int | None:
    try:
        return latest_version(exports)
    except BadModel:
        return None  # damaged, and replaced by the next version


def rolled_back(exports: Path) -> int | None:
    """The version that was rolled back from, as long as an older one is current."""
    source = _history(exports)["rolled_back_from"]
    current = latest_or_none(exports)
    return source if source is not None and current is not None and current < source else None


def rollback(exports: Path, version: int | None = None) -> Manifest:
    """Make an older version current for all devices: this one, or the one before the current one.

    Without a version, while one is on trial, the trial is what is taken back: everybody gets the current version.
    """
    with changing(exports):
        current, tried = _current(exports), staged(exports)
        if version is None and tried is not None and tried.version > current:
            return _make_current(exports, current, tried.version)
        older = [each.version for each in versions(exports) if each.version < current]
        if not older:
            raise UserError(f"version {current} is the oldest that is kept: there is nothing to roll back to")
        if version is not None and version not in older:
            kept = ", ".join(map(str, older))
            raise UserError(
                f"cannot roll back from version {current} to {version}: kept are {kept} before it"
            )
        return _make_current(exports, older[-1] if version is None else version)


def rollforward(exports: Path) -> Manifest:
    """Return to the version that was rolled back from; to the newest, if that is no longer kept."""
    with changing(exports):
        current = _current(exports)
        newer = [each.version for each in versions(exports) if each.version > current]
        if not newer:
            raise UserError(f"version {current} is the newest: there is nothing to roll forward to")
        source = rolled_back(exports)
        return _make_current(exports, source if source in newer else newer[-1], ends_rollback=True)


def roll_to(exports: Path, version: int) -> Manifest:
    """Make any kept version current. It stays a rollback while a newer version was rolled back from."""
    with changing(exports):
        if version == _current(exports):
            raise UserError(f"version {version} is the current one already: choose another")
        return _make_current(exports, version)


def stage(exports: Path, version: int, devices: Sequence[str]) -> Manifest:
    """Give a kept version to these devices only; all others stay with the current one."""
    with changing(exports):
        if version == _current(exports):
            raise UserError(
                f"version {version} is the current one, which all devices have: roll back first, or publish a new one "
                "for these devices (leave the number out)"
            )
        manifest = _check_whole(exports, version)
        try_on(exports, exports / folder_name(version), devices)
        return manifest


def try_on(exports: Path, folder: Path, devices: Sequence[str]) -> None:
    """Give this version to these devices only; under the folder's lock."""
    before = staged(exports)
    if before is not None and not set(before.devices) <= set(devices):
        # Written once more, so that it is the later word for a device that leaves the trial.
        point_at(exports, exports / folder_name(_current(exports)))
    write_staged(exports, int(folder.name[1:]), devices, latest_for(folder))


def release(exports: Path) -> Manifest:
    """Make the version on trial the current one for all devices."""
    with changing(exports):
        tried = staged(exports)
        if tried is None:
            raise UserError("no version is on trial: `stage` gives one to some devices first")
        return _make_current(exports, tried.version, ends_rollback=tried.version > _current(exports))


def _make_current(
    exports: Path, version: int, source: int | None = None, ends_rollback: bool = False
) -> Manifest:
    """For all devices. `source` is the version that somebody turns away from, if it is not the current one."""
    source = source or rolled_back(exports) or _current(exports)
    manifest = _check_whole(exports, version)
    signing_key(exports)  # one that is missing is told before anything changes
    back = version < source and not ends_rollback
    if back:
        note(exports, rolled_back_from=source)  # first: a publisher must not undo what it does not know of
    end_staging(exports)
    point_at(exports, exports / folder_name(version))
    if not back:
        note(exports, rolled_back_from=None)
    return manifest


def _current(exports: Path) -> int:
    current = latest_version(exports)
    if current is None:
        raise UserError(f"{exports} holds no published version yet: publish one first")
    return current


def _check_whole(exports: Path, version: int) -> Manifest:
    folder = exports / folder_name(version)
    try:
        manifest = read_manifest(folder)
        for file in manifest.files:
            read_model_file(folder, file)
    except BadModel as error:
        raise UserError(f"version {version} is damaged and cannot become the current one: {error}") from None
    return manifest


def read_current(exports: Path) -> tuple[Manifest, Path]:
    latest = read_latest(exports)
    folder = exports / latest.folder
    return read_manifest(folder, latest), folder


def _folders(exports: Path) -> list[Path]:
    if not exports.is_dir():
        return []
    found = [(int(match[1]), each) for each in exports.iterdir() if (match := _VERSION.fullmatch(each.name))]
    return [folder for _, folder in sorted(found)]


@contextmanager
def changing(exports: Path) -> Iterator[None]:
    """Hold the folder's lock, and remove what an interrupted process left half done."""
    try:
        exports.mkdir(parents=True, exist_ok=True)
        busy = f"{exports}: process {{owner}} has been busy in it for {LOCK_SECONDS:.0f} s; end that first"
        with locked(exports / LOCK, busy, LOCK_SECONDS):
            for left in (*exports.glob(".v*.writing"), *exports.glob(".v*.removing")):
                shutil.rmtree(left)
            yield
    except OSError as error:
        raise UserError(
            f"cannot change {exports}: {error.strerror or error}; is there room, and a right to write?"
        ) from error


def _history(exports: Path) -> dict[str, Any]:
    """The last number given and the version rolled back from; defaults when the file cannot be read."""
    try:
        history = json.loads((exports / HISTORY).read_text(encoding="utf-8"))
        source = history["rolled_back_from"]
        return {
            "last_version": int(history["last_version"]),
            "rolled_back_from": None if source is None else int(source),
            "serial": int(history.get("serial", 0)),
        }
    except (OSError, ValueError, KeyError, TypeError):
        return {"last_version": 0, "rolled_back_from": None, "serial": 0}


def next_version(exports: Path) -> int:
    numbers = [int(folder.name[1:]) for folder in _folders(exports)]
    return max([_history(exports)["last_version"], latest_or_none(exports) or 0, *numbers]) + 1


def note(exports: Path, **changes: int | None) -> None:
    history = {"format": FORMAT, **_history(exports), **changes}
    write_atomically(exports / HISTORY, json.dumps(history))


def latest_for(folder: Path) -> bytes:
    """The latest.json that names this version, signed if the workspace names a key."""
    data = (folder / MANIFEST).read_bytes()
    latest = Latest(int(folder.name[1:]), folder.name, sha256(data))
    exports = folder.parent
    key = signing_key(exports)
    if key is None:
        return latest.to_bytes()
    # Higher than any before, so that a device knows which of two is the later one.
    serial = max(_history(exports)["serial"], _signed_serial(exports) or 0) + 1
    note(exports, serial=serial)
    # A device refuses an older version by itself; whoever makes one current means it.
    signature = key.signature_of(
        latest, data, serial, allows_older=latest.version < next_version(exports) - 1
    )
    return replace(latest, signature=signature).to_bytes()


def signing_key(exports: Path) -> PrivateKey | None:
    """The key of the workspace; a `UserError` if it names none and yet the current version is signed."""
    key = key_of(exports)
    if key is None and _signed_serial(exports) is not None:
        raise UserError(
            "the current version is signed and no key is named for the next, which devices would refuse: name it with "
            "--sign FILE"
        )
    return key


def _signed_serial(exports: Path) -> int | None:
    """The number of the current latest.json; None if it is not signed."""
    try:
        signature = read_latest(exports).signature
    except BadModel:
        return None
    return None if signature is None else signature.serial


def point_at(exports: Path, folder: Path) -> None:
    write_atomically(exports / LATEST, latest_for(folder))


def sign_versions(exports: Path) -> int:
    """Sign every kept version and the current one with the workspace's key; how many there are."""
    key = key_of(exports)
    if key is None:
        raise UserError(
            "there is no key to sign with: name one with --sign FILE (`python -m export keygen` makes one)"
        )
    with changing(exports):
        folders = [folder for folder in _folders(exports) if (folder / MANIFEST).exists()]
        for folder in folders:
            key.sign_folder(folder)
        if (current := latest_version(exports)) is not None:
            point_at(exports, exports / folder_name(current))
        if (tried := staged(exports)) is not None:
            latest = latest_for(exports / folder_name(tried.version))
            write_staged(exports, tried.version, tried.devices, latest)
    return len(folders)


def prune(exports: Path, keep: int) -> None:
    tried = staged(exports)
    used = (latest_version(exports), tried.version if tried else None)
    for folder in _folders(exports)[:-keep]:
        if int(folder.name[1:]) not in used:
            removing = exports / f".{folder.name}.removing"
            folder.rename(removing)
            # The manifest first: without it, a reader that lists folders at this moment does not take this for a version.
            (removing / MANIFEST).unlink(missing_ok=True)
            shutil.rmtree(removing)
