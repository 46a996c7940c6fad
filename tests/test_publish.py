"""Publishing: numbered versions, whole or absent; which one counts, and for whom; what is refused; what lies beside."""

import hashlib
import json
import os
import threading
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from device_parts import publish as publish_tiny
from export_parts import HELD_OUT, RIGHT, Teaching, confused, first, later, with_proxies, with_template
from process_parts import PIPE, started

from edge_hpcr.common.errors import UserError
from edge_hpcr.live.accuracy import HeldOut
from edge_hpcr.live.status import accuracy_text
from edge_hpcr.stream.region import Region
from edge_hpcr.workspace.settings import Settings
from export.device import BadModel
from export.device.manifest import ClassLabel, Manifest, read_latest
from export.device.model import Classifier
from export.publish.handout import MEASURED
from export.publish.publish import publish, unchanged
from export.publish.quantise import make_int8
from export.publish.snapshot import NO_UNKNOWN, HeldOutSamples, snapshot_of
from export.publish.versions import (
    Refused,
    latest_version,
    pin,
    pinned,
    prune,
    rollback,
    rolled_back,
    rollforward,
    unpin,
    versions,
)


@pytest.fixture
def exports(tmp_path):
    return with_template(tmp_path / "exports")


@pytest.fixture
def three(tmp_path: Path) -> Path:
    """Versions 1 to 3, of which 2 is current, of tiny models."""
    (tmp_path / "w").mkdir()
    for version in (1, 3, 2):
        publish_tiny(tmp_path / "w" / "exports", version)
    return tmp_path / "w" / "exports"


def released(exports, count=1, settings=None):
    """So many versions, each a step later than the one before."""
    return [publish(exports, later(first().snapshot, n), settings) for n in range(count)]


def kept(exports):
    return [manifest.version for manifest in versions(exports)]


def few_held_out(count: int) -> HeldOutSamples:
    samples = first().snapshot.held_out
    return HeldOutSamples(samples.images[:count], samples.class_ids[:count])


# A version ------------------------------------------------------------------------------------------------------------


def test_a_version_says_how_good_it_is_and_names_its_files_with_their_hashes(exports):
    names = tuple(ClassLabel(each.id, f"größe | {each.id}") for each in first().snapshot.classes)
    published = publish(exports, replace(first().snapshot, classes=names))
    assert not published.traced and published.folder == exports / "v000001"
    facts = json.loads((published.folder / "manifest.json").read_text())
    assert facts["accuracy"] == {"held_out": RIGHT / HELD_OUT, "samples": HELD_OUT}
    assert facts["parity"]["same_answer"] == facts["parity"]["images"] == 64
    for file in (facts, *facts["beside"].values()):
        data = (published.folder / file["file"]).read_bytes()
        assert (file["bytes"], file["sha256"]) == (len(data), hashlib.sha256(data).hexdigest())
    assert f"75 % (n={HELD_OUT}" in (published.folder / "model-card.md").read_text()
    manifest = (published.folder / "manifest.json").read_bytes()
    assert read_latest(exports).manifest_sha256 == hashlib.sha256(manifest).hexdigest()
    info = Classifier.load(exports, "cpu", 1).info
    assert (info.version, info.classes) == (1, names)


def test_the_accuracy_that_a_version_names_is_the_learners_own_in_every_place(exports):
    measured = HeldOut(confusion=[(1, 1, 3), (1, 2, 1), (2, 2, 4)])
    measured.one_place = True
    published = publish(exports, replace(first().snapshot, measured=measured, unknown_below=None))
    said, card = f"{accuracy_text(7 / 8, 8)}, in one place", (published.folder / "model-card.md").read_text()
    assert said in card and MEASURED in card and NO_UNKNOWN in card
    assert said in published.text and NO_UNKNOWN in published.text
    assert published.manifest.facts["accuracy"]["samples"] == 8
    nothing_yet = publish(exports, replace(later(first().snapshot), measured=HeldOut()))
    assert accuracy_text(None, 0) in nothing_yet.text


def test_a_model_that_calls_nothing_unknown_replaces_one_that_does_by_force_alone(exports):
    released(exports)
    without = replace(later(first().snapshot), unknown_below=None)
    with pytest.raises(Refused, match=NO_UNKNOWN):
        publish(exports, without)
    assert publish(exports, without, force=True).manifest.version == 2
    assert publish(exports, later(without)).manifest.version == 3, "there is nothing left to lose"


def test_a_version_carries_the_region_and_any_news_is_seen(exports):
    snapshot, region = first().snapshot, Region(0.5, 0.0, 0.5, 1.0)
    assert unchanged(exports, snapshot) is None
    taught = replace(snapshot, region=region)
    folder = publish(exports, taught).folder
    assert json.loads((folder / "manifest.json").read_text())["region"] == region.to_list()
    assert Classifier.load(folder).info.region == region
    assert unchanged(exports, taught) == 1
    renamed = (replace(snapshot.classes[0], name="other"), *snapshot.classes[1:])
    for news in (
        {"region": None},
        {"step": snapshot.step + 1},
        {"classes": renamed},
        {"classes": snapshot.classes[::-1]},
        {"temperature": 1.4},
        {"unknown_below": None},
    ):
        assert unchanged(exports, replace(taught, **news)) is None


def test_the_oldest_versions_leave_and_numbers_are_never_used_again(exports):
    released(exports, 4, Settings(publish_keep=2))
    assert kept(exports) == [3, 4]
    for file in (exports / "v000004").iterdir():
        file.unlink()
    (exports / "v000004").rmdir()
    (exports / "latest.json").unlink()
    assert released(exports)[0].manifest.version == 5
    assert sorted(path.name for path in exports.iterdir()) == [
        "history.json", "latest.json", "lock", "template", "v000003", "v000005",
    ]  # fmt: skip
    (exports / "history.json").write_text("{")
    assert released(exports)[0].manifest.version == 6


def test_files_are_on_disk_before_their_folder_has_its_name_and_that_before_the_pointer(exports, monkeypatch):
    done = []
    fsync, rename = os.fsync, os.rename

    def noted_fsync(descriptor):
        done.append(("flush", Path(f"/proc/self/fd/{descriptor}").readlink().name))
        fsync(descriptor)

    def noted_rename(source, target):
        done.append(("rename", Path(target).name))
        rename(source, target)

    monkeypatch.setattr(os, "fsync", noted_fsync)
    monkeypatch.setattr(os, "rename", noted_rename)
    released(exports)
    rest = iter(done)
    for step in (
        ("flush", "model.onnx"),
        ("flush", "manifest.json"),
        ("flush", ".v000001.writing"),
        ("rename", "v000001"),
        ("flush", "exports"),
        ("flush", "latest.json.writing"),
    ):
        assert step in rest, done


def test_what_a_power_cut_left_half_done_is_removed_and_does_not_count(exports):
    for name in (".v000001.writing", ".v000000.removing"):
        (exports / name).mkdir()
        (exports / name / "model.onnx").write_bytes(b"half")
    released(exports)
    assert list(exports.glob(".*")) == []
    pointer = (exports / "latest.json").read_bytes()
    publish(exports, later(first().snapshot))
    (exports / "latest.json").write_bytes(pointer)  # the power went before the second was pointed at
    assert rolled_back(exports) is None
    assert (unchanged(exports, first().snapshot), unchanged(exports, later(first().snapshot))) == (1, None)
    assert released(exports)[0].manifest.version == 3


@pytest.mark.slow
def test_a_model_has_the_region_of_the_source_that_was_used_last(tmp_path):
    one, region = Teaching(tmp_path / "w"), Region(0.5, 0.0, 0.5, 1.0)
    one.teach(0)
    one.workspace.regions.put("camera 0", region)
    assert snapshot_of(one.live).region == region
    one.close()


# Which one is current -------------------------------------------------------------------------------------------------


def test_a_rollback_makes_an_older_version_current_and_a_roll_forward_the_newest(three):
    assert rollback(three).version == 1
    assert (latest_version(three), rolled_back(three)) == (1, 2)
    assert rollforward(three).version == 3
    assert (latest_version(three), rolled_back(three)) == (3, None)
    assert rollback(three, 1).version == 1 and rollback(three, 2).version == 2
    assert rolled_back(three) == 3, "a newer one was not wanted"
    rollforward(three)
    with pytest.raises(UserError):
        rollforward(three)
    assert rollback(three, 1).version == 1 and kept(three) == [1, 2, 3]
    prune(three, keep=1)
    assert kept(three) == [1, 3], "the current one is kept however old it is"


def test_a_rollback_to_what_is_current_gone_or_damaged_is_refused(three, tmp_path):
    for version in (7, 2):
        with pytest.raises(UserError):
            rollback(three, version)
    model = three / "v000001" / "model.onnx"
    model.write_bytes(model.read_bytes()[:-1] + b"\0")
    with pytest.raises(UserError):
        rollback(three)
    assert latest_version(three) == 2
    with pytest.raises(UserError):
        rollback(tmp_path / "none")


def test_devices_stay_on_a_version_whatever_is_current_until_they_are_freed(three):
    assert pin(three, 1, ["cam-1", "cam-2"]).version == 1
    kept_back = pinned(three)
    assert (kept_back.version, kept_back.devices) == (1, ("cam-1", "cam-2"))
    assert json.loads(kept_back.latest)["folder"] == "v000001" and latest_version(three) == 2
    rollforward(three)
    prune(three, keep=1)
    assert kept(three) == [1, 3] and pinned(three) == kept_back
    assert unpin(three) == 3 and pinned(three) is None
    for devices in ([], ["no/id"]):
        with pytest.raises(UserError):
            pin(three, 1, devices)
    with pytest.raises(UserError):
        unpin(three)


# What is refused ------------------------------------------------------------------------------------------------------


def test_a_model_that_recognises_less_than_the_current_one_is_refused_with_both_figures(exports):
    released(exports)
    before = sorted(path.name for path in exports.iterdir())
    with pytest.raises(Refused, match=r"25\.0% of 60 .* 75\.0%"):
        publish(exports, confused(first().snapshot), Settings(publish_int8=True))
    assert sorted(path.name for path in exports.iterdir()) == before and latest_version(exports) == 1
    assert publish(exports, confused(first().snapshot), force=True).manifest.version == 2
    released(exports)  # the good one is no step back from the bad one
    rollback(exports, 1)
    with pytest.raises(Refused, match="version 1"):
        publish(exports, replace(confused(first().snapshot), step=99))
    allowed = Settings(publish_most_drop=1.0)
    assert publish(exports, confused(first().snapshot), allowed).manifest.version == 4
    assert rolled_back(exports) is None, "by hand ends a rollback"


def test_what_cannot_be_compared_refuses_nothing_and_that_is_said(exports):
    released(exports)
    few = replace(confused(first().snapshot), held_out=few_held_out(19))
    assert "19 held-out samples" in publish(exports, few).notes[0]
    (exports / "v000002" / "model.onnx").write_bytes(b"nonsense")
    assert "not compared" in publish(exports, confused(first().snapshot)).notes[0]
    (exports / "latest.json").write_text("nonsense")
    assert publish(exports, later(first().snapshot)).manifest.version == 4


def test_a_new_class_is_no_step_back(exports):
    """The older model cannot know it; both are tested on the samples of today."""
    snapshot = first().snapshot
    right = snapshot.held_out.class_ids[:RIGHT]  # an answer that is right among ten is right among fewer
    known = set(right.tolist()) - {right[0]}
    columns = [column for column, each in enumerate(snapshot.classes) if each.id in known]
    rows = np.flatnonzero(right != right[0])
    small = replace(
        with_proxies(snapshot, snapshot.network.proxies[columns]),
        classes=tuple(snapshot.classes[column] for column in columns),
        held_out=HeldOutSamples(snapshot.held_out.images[rows], right[rows]),
    )
    published = publish(exports, small)
    assert published.manifest.facts["accuracy"]["held_out"] == 1.0 > RIGHT / HELD_OUT
    assert publish(exports, later(snapshot), Settings(publish_most_drop=0.0)).manifest.version == 2


HOLDER = """
import fcntl, sys
lock = open(sys.argv[1], "a")
fcntl.flock(lock, fcntl.LOCK_EX)
print("held", flush=True)
sys.stdin.read()
"""


@pytest.mark.slow
def test_publishers_wait_for_each_other_and_get_different_versions(exports):
    with started("-c", HOLDER, exports / "lock", stdin=PIPE) as holder:
        assert holder.stdout.readline() == "held\n"
        threads = [threading.Thread(target=released, args=(exports, 2)) for _ in range(2)]
        for thread in threads:
            thread.start()
        threads[0].join(0.5)
        assert kept(exports) == []
    for thread in threads:
        thread.join(60)
    assert kept(exports) == [1, 2, 3, 4] and read_latest(exports).version == 4


@pytest.mark.slow
def test_a_model_that_differs_from_the_network_is_refused_even_by_force(exports, monkeypatch):
    # No float32 model is as near as this; the full export that is tried next is not either.
    monkeypatch.setattr("export.publish.to_onnx.TOLERANCE", 1e-12)
    with pytest.raises(Refused):
        publish(exports, first().snapshot, force=True)
    assert kept(exports) == [] and not (exports / "latest.json").exists() and list(exports.glob(".*")) == []


def test_a_manifest_that_names_a_file_elsewhere_is_refused(three):
    beside = {"labels": {"file": "../../etc/passwd", "bytes": 1, "sha256": "0" * 64}}
    facts = json.loads((three / "v000001" / "manifest.json").read_text())
    assert Manifest.parse(json.dumps(facts).encode(), "").beside == {}, (
        "versions of before have nothing there"
    )
    with pytest.raises(BadModel):
        Manifest.parse(json.dumps(facts | {"beside": beside}).encode(), "manifest.json")


# Variants -------------------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_int8_is_kept_exactly_when_it_is_accurate_enough(tmp_path):
    entry = make_int8(tmp_path / "model.onnx", first().exported, first().snapshot)
    accuracies = (first().exported.accuracy, entry["accuracy"])
    right, still_right = (round(HELD_OUT * share) for share in accuracies)
    assert entry["samples"] == HELD_OUT
    wanted = still_right >= right  # one sample of 60 is more than a point
    assert (tmp_path / "model.int8.onnx").exists() == wanted == ("sha256" in entry)
    assert (entry.get("kept") is not False) == wanted


@pytest.mark.slow
def test_int8_that_loses_accuracy_is_dropped_with_the_figure(tmp_path):
    """Calibrated on black images alone, everything brighter is cut off."""
    black = replace(first().snapshot, images=np.zeros((8, 8, 8, 3), np.uint8))
    entry = make_int8(tmp_path / "model.onnx", first().exported, black)
    assert entry["kept"] is False and entry["accuracy"] < first().exported.accuracy - 0.01
    assert "accuracy" in entry["reason"] and not (tmp_path / "model.int8.onnx").exists()


def test_a_version_says_why_it_lacks_a_variant(exports, capfd):
    few = replace(first().snapshot, held_out=few_held_out(3))
    published = publish(exports, few, Settings(publish_int8=True))
    assert "at least 20" in published.manifest.missing_variants["int8"]
    assert Classifier.load(exports, "cpu", 1, "int8").notes
    assert capfd.readouterr() == ("", "")
