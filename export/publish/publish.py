"""Publish a snapshot as the next version of an exports folder, or say why not.

A version is refused when its model does not answer as the network does, when a device would refuse it, or when it
recognises fewer held-out samples than the current version. The graph of the first one is kept beside the
versions, so that later ones need no tracing.
"""

from __future__ import annotations

import json
import shutil
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from edge_hpcr.common.errors import UserError, one_of
from edge_hpcr.common.files import flush_to_disk, write_through
from edge_hpcr.stream.resize import RESIZE_STEPS
from export.device.errors import BadModel
from export.device.manifest import LATEST, MANIFEST, Manifest, read_manifest, read_model_file
from export.device.model import Classifier
from export.publish.companions import write_companions
from export.publish.policy import FEWEST_SAMPLES, Policy, Refused, falls_by_more
from export.publish.quantise import MAKERS, none
from export.publish.republish import load_template, republish, save_template
from export.publish.running import TwoParts, read_model
from export.publish.snapshot import Snapshot
from export.publish.staging import end_staging, staged
from export.publish.to_onnx import OUTPUTS, Exported, ParityFailed, described, export_full, file_facts
from export.publish.versions import (
    changing,
    folder_name,
    latest_or_none,
    next_version,
    note,
    point_at,
    prune,
    read_current,
    rolled_back,
    signing_key,
    try_on,
    versions,
)

MODEL, TEMPLATE = "model.onnx", "template"


@dataclass(frozen=True)
class Published:
    manifest: Manifest
    folder: Path
    traced: bool  # a full export; otherwise new weights in the known graph
    seconds: float
    notes: tuple[str, ...]  # what could not be checked, for people


def publish(
    exports: Path,
    snapshot: Snapshot,
    policy: Policy | None = None,
    variants: Sequence[str] = ("int8",),
    by_hand: bool = True,
    devices: Sequence[str] = (),
) -> Published:
    """Publish the snapshot as the next version and make it current; raises `Refused` if it fails a check.

    With `by_hand=False` a rollback is left alone: a person preferred the older version. So is a trial on some devices.
    With `devices` the version is for these only, and the current one stays.
    """
    policy = policy or Policy()
    for name in variants:
        one_of("variant", name, MAKERS)
    if not snapshot.classes:
        raise UserError("nothing to publish: no class has been learned yet; label some images first")
    if devices and not (exports / LATEST).exists():
        raise UserError(
            "no version is published yet: publish one for all devices before one for some of them"
        )
    begun = time.monotonic()
    with changing(exports):
        if not by_hand:
            if reason := why_waiting(exports):
                raise Refused(reason)
            _check_not_older(exports, snapshot)
        version = next_version(exports)
        folder = exports / folder_name(version)
        writing = exports / f".{folder.name}.writing"
        writing.mkdir()
        try:
            exported, traced = _export(exports, snapshot, writing / MODEL, version, policy.tolerance)
            notes = _check_accuracy(exports, snapshot, exported, policy)
            kept = exports / TEMPLATE
            made = {name: MAKERS[name](writing / MODEL, exported, snapshot, kept) for name in variants}
            facts = {
                **described(snapshot, exported, version),
                "resize_steps": RESIZE_STEPS,
                "outputs": list(OUTPUTS),
                **file_facts(writing / MODEL),
                "parity": asdict(exported.parity),
                "variants": made,
            }
            _write_manifest(writing, facts)
            classifier, refused = _check_as_a_device(writing)
            made.update(refused)
            facts["beside"] = write_companions(writing, classifier, snapshot, facts)
            _write_manifest(writing, facts)
            if (key := signing_key(exports)) is not None:
                key.sign_folder(writing)
            flush_to_disk(writing)
            note(exports, last_version=version)  # used up from now on, even if the rename fails
            writing.rename(folder)
            flush_to_disk(exports)
        except BaseException:
            shutil.rmtree(writing, ignore_errors=True)
            raise
        if devices:
            try_on(exports, folder, devices)
        else:
            end_staging(exports)
            point_at(exports, folder)
            note(exports, rolled_back_from=None)
        prune(exports, policy.keep)
    return Published(read_manifest(folder), folder, traced, time.monotonic() - begun, tuple(notes))


def why_waiting(exports: Path) -> str | None:
    """Why nothing may be published by itself: a person has decided which version devices have."""
    if (tried := staged(exports)) is not None:
        on = f"{len(tried.devices)} device{'s' if len(tried.devices) > 1 else ''}"
        return (
            f"version {tried.version} is on trial on {on}: release it, roll back, or publish by hand to go on"
        )
    if (source := rolled_back(exports)) is not None:
        return f"rolled back from version {source}: roll forward or publish by hand to go on"
    return None


def _check_not_older(exports: Path, snapshot: Snapshot) -> None:
    """Refuse to go back in steps: of two automatic publishers, the one behind would keep undoing the other."""
    for newest in versions(exports)[-1:]:
        if snapshot.step < newest.step:
            raise Refused(
                f"version {newest.version} is of a later step, {newest.step:,}: publish by hand to go back"
            )


def unchanged(exports: Path, snapshot: Snapshot) -> int | None:
    """The version that the snapshot would only repeat: the current one, or that was rolled back from; or None.

    Other versions do not matter: one may be whole and yet never have been current, after a power cut.
    """
    tried = staged(exports)
    known = (latest_or_none(exports), rolled_back(exports), tried.version if tried else None)
    wanted = (snapshot.step, snapshot.classes, snapshot.unknown_below, snapshot.region, snapshot.temperature)
    for manifest in versions(exports):
        facts = (manifest.step, manifest.classes, manifest.unknown_below, manifest.region)
        if manifest.version in known and (*facts, manifest.facts.get("temperature")) == wanted:
            return manifest.version
    return None


def _export(
    exports: Path, snapshot: Snapshot, path: Path, version: int, tolerance: float
) -> tuple[Exported, bool]:
    """Write the model, from the known graph if there is one; True when the network had to be traced."""
    template = load_template(exports / TEMPLATE, snapshot)
    if template is not None:
        try:
            return republish(snapshot, template, path, version, tolerance), False
        except (BadModel, ParityFailed):
            pass  # trace again: a fresh graph shows whether the template was at fault
    try:
        exported = export_full(snapshot, path, version, tolerance)
    except (BadModel, ParityFailed) as error:
        raise Refused(f"step {snapshot.step}: {error}") from None
    save_template(exports / TEMPLATE, exported.model, snapshot)
    return exported, True


def _check_accuracy(exports: Path, snapshot: Snapshot, exported: Exported, policy: Policy) -> list[str]:
    """Refuse a step back. Both models are tested on the same samples: those held out now.

    An older figure would rest on other samples and fewer classes, and every new class would look like a loss.
    """
    samples = snapshot.held_out
    if not (exports / LATEST).exists():
        return []
    if len(samples) < FEWEST_SAMPLES:
        few = f"{len(samples)} held-out samples, and fewer than {FEWEST_SAMPLES} say too little"
        return [f"accuracy was not compared: {few}"]
    try:
        manifest, folder = read_current(exports)
        if (manifest.height, manifest.width) != (snapshot.height, snapshot.width):
            return [f"accuracy was not compared: version {manifest.version} takes images of another size"]
        model = read_model(read_model_file(folder, manifest.model), str(folder))
        before = TwoParts(model, str(folder)).accuracy(samples, [each.id for each in manifest.classes])
    except BadModel as error:
        return [f"accuracy was not compared with the current version: {error}"]
    was, now = before.held_out or 0.0, exported.accuracy.held_out or 0.0
    if falls_by_more(was, now, policy.most_drop) and not policy.force:
        raise Refused(
            f"step {snapshot.step} recognises {now:.1%} of {len(samples)} held-out samples, where version "
            f"{manifest.version} recognises {was:.1%}: a fall of more than {policy.most_drop:.1%} is not published "
            "(teach it more, allow a larger fall, or force it)"
        )
    return []


def _write_manifest(folder: Path, facts: dict[str, Any]) -> None:
    write_through(folder / MANIFEST, json.dumps(facts, indent=1, ensure_ascii=False, allow_nan=False))


def _check_as_a_device(folder: Path) -> tuple[Classifier, dict[str, dict[str, Any]]]:
    """The model as a device loads it, and the variants that none would take, with the reason: those are removed.

    A version that no device would take is not published.
    """
    try:
        manifest = read_manifest(folder)
        classifier = Classifier.load_version(folder, manifest, "cpu", 1)
    except BadModel as error:
        raise Refused(f"a device would refuse the model: {error}") from None
    refused = {}
    for variant, file in manifest.variants.items():
        try:
            Classifier.load_version(folder, manifest, "cpu", 1, variant)
        except BadModel as error:
            (folder / file.file).unlink()
            refused[variant] = none(f"a device would refuse it: {str(error).removeprefix(f'{folder}/')}")
    return classifier, refused
