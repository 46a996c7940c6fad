"""Publishing: numbered versions, whole or absent; which one counts; what is refused, and why."""

import fcntl
import hashlib
import json
import os
import threading
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from export_parts import HELD_OUT, RIGHT, Teaching, confused, first, later, with_proxies, with_template
from hypothesis import given
from hypothesis import strategies as st
from process_parts import PIPE, started

from edge_hpcr.common.errors import UserError
from edge_hpcr.stream.region import Region
from edge_hpcr.workspace.verify import verify_workspace
from export.device.manifest import ClassLabel, read_latest
from export.device.model import Classifier
from export.publish.policy import Policy, Refused, falls_by_more
from export.publish.publish import publish, unchanged
from export.publish.snapshot import HeldOutSamples, snapshot_of
from export.publish.versions import prune, rollback, rolled_back, rollforward, versions


@pytest.fixture
def exports(tmp_path):
    return with_template(tmp_path / "exports")


def released(exports, count=1, policy=None, start=None):
    """So many versions, each a step later than the one before."""
    snapshot = start or first().snapshot
    return [publish(exports, later(snapshot, n), policy, variants=()) for n in range(count)]


def kept(exports):
    return [manifest.version for manifest in versions(exports)]


@pytest.mark.slow
def test_a_version_says_what_it_is_and_is_current(exports):
    (published,) = released(exports)
    assert not published.traced
    assert published.folder == exports / "v000001"
    facts = json.loads((published.folder / "manifest.json").read_text())
    data = (published.folder / "model.onnx").read_bytes()
    assert (facts["bytes"], facts["sha256"]) == (len(data), hashlib.sha256(data).hexdigest())
    assert facts["accuracy"] == {"held_out": RIGHT / HELD_OUT, "samples": HELD_OUT}
    assert facts["parity"]["same_answer"] == facts["parity"]["images"] == 64
    assert facts["classes"][0] == {
        "id": first().snapshot.classes[0].id,
        "name": first().snapshot.classes[0].name,
        "colour": "#1f77b4",
    }
    assert (facts["unknown_below"], facts["temperature"]) == (0.4, 1.3)
    assert set(facts["versions"]) == {"edge_hpcr", "torch", "onnx", "opset", "ir"}
    latest = read_latest(exports)
    assert (latest.version, latest.folder) == (1, "v000001")
    assert (
        latest.manifest_sha256
        == hashlib.sha256((published.folder / "manifest.json").read_bytes()).hexdigest()
    )
    assert Classifier.load(exports, "cpu", 1).info.version == 1


@pytest.mark.slow
def test_a_device_loads_each_new_version_from_the_exports_folder(exports):
    released(exports, 2)
    renamed = tuple(replace(each, name=f"new {each.name}") for each in first().snapshot.classes)
    publish(exports, replace(first().snapshot, classes=renamed), variants=())
    info = Classifier.load(exports, "cpu", 1).info
    assert (info.version, info.classes) == (3, renamed)


@pytest.mark.slow
def test_the_oldest_versions_leave_and_numbers_are_never_used_again(exports):
    released(exports, 5, Policy(keep=3))
    assert kept(exports) == [3, 4, 5]
    for file in (exports / "v000005").iterdir():
        file.unlink()
    (exports / "v000005").rmdir()
    (exports / "latest.json").unlink()
    (published,) = released(exports)
    assert published.manifest.version == 6
    assert sorted(path.name for path in exports.iterdir()) == [
        "history.json", "latest.json", "lock", "template", "v000003", "v000004", "v000006",
    ]  # fmt: skip


@pytest.mark.slow
def test_a_lost_history_does_not_bring_numbers_back(exports):
    released(exports, 2)
    (exports / "history.json").write_text("{")
    assert released(exports)[0].manifest.version == 3


@pytest.mark.slow
def test_a_rollback_makes_the_version_before_current_and_a_roll_forward_undoes_all_of_them(exports):
    released(exports, 4)
    assert rollback(exports).version == 3
    assert rollback(exports).version == 2
    assert (read_latest(exports).version, rolled_back(exports)) == (2, 4)
    assert Classifier.load(exports, "cpu", 1).info.version == 2
    assert rollforward(exports).version == 4
    assert (read_latest(exports).version, rolled_back(exports)) == (4, None)
    assert rollback(exports, 1).version == 1
    assert kept(exports) == [1, 2, 3, 4]


@pytest.mark.slow
def test_a_version_after_a_rollback_has_a_new_number_and_ends_it(exports):
    released(exports, 3)
    rollback(exports, 1)
    assert released(exports)[0].manifest.version == 4
    assert rolled_back(exports) is None
    with pytest.raises(UserError, match="version 4 is the newest"):
        rollforward(exports)


@pytest.mark.slow
def test_the_current_version_is_kept_however_old_it_is(exports):
    released(exports, 4)
    rollback(exports, 1)
    prune(exports, keep=2)
    assert kept(exports) == [1, 3, 4]


@pytest.mark.parametrize(
    ("version", "reason"), [(7, "from version 2 to 7: kept are 1"), (2, "from version 2 to 2")]
)
def test_a_rollback_to_what_is_not_older_is_refused(exports, version, reason):
    released(exports, 2)
    with pytest.raises(UserError, match=reason):
        rollback(exports, version)
    assert read_latest(exports).version == 2


def test_nothing_to_roll_back_to_is_said(tmp_path, exports):
    with pytest.raises(UserError, match="no published version yet"):
        rollback(tmp_path / "none")
    released(exports)
    with pytest.raises(UserError, match="the oldest that is kept"):
        rollback(exports)


def test_a_damaged_version_cannot_be_rolled_back_to(exports):
    released(exports, 2)
    model = exports / "v000001" / "model.onnx"
    model.write_bytes(model.read_bytes()[:-1] + b"\0")
    with pytest.raises(UserError, match="version 1 is damaged"):
        rollback(exports)
    assert read_latest(exports).version == 2


# What is refused ------------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_a_model_that_recognises_less_than_the_current_one_is_refused_with_both_figures(exports):
    released(exports)
    before = sorted(path.name for path in exports.iterdir())
    with pytest.raises(
        Refused, match=r"recognises 25\.0% of 60 held-out samples, where version 1 recognises 75\.0%"
    ):
        publish(exports, confused(first().snapshot), variants=())
    assert sorted(path.name for path in exports.iterdir()) == before
    assert read_latest(exports).version == 1
    assert publish(exports, confused(first().snapshot), Policy(force=True), variants=()).manifest.version == 2


def test_a_fall_within_what_is_allowed_is_published(exports):
    released(exports)
    assert (
        publish(exports, confused(first().snapshot), Policy(most_drop=1.0), variants=()).manifest.version == 2
    )


@given(st.integers(20, 2000), st.data())
def test_exactly_as_much_as_is_allowed_may_be_lost(samples, data):
    """Accuracies are shares of samples, and a share's last digits are rounded."""
    before = data.draw(st.integers(0, samples))
    now = data.draw(st.integers(0, before))
    most = data.draw(st.integers(0, samples))
    assert falls_by_more(before / samples, now / samples, most / samples) == (before - now > most)


@pytest.mark.slow
def test_a_model_is_compared_with_the_current_version_and_not_with_the_newest(exports):
    released(exports)
    publish(exports, confused(first().snapshot), Policy(force=True), variants=())
    released(exports)  # the good one is no step back from the bad one
    rollback(exports, 1)
    with pytest.raises(Refused, match="version 1 recognises"):
        publish(exports, replace(confused(first().snapshot), step=99), variants=())


def test_few_held_out_samples_refuse_nothing_and_that_is_said(exports):
    samples = first().snapshot.held_out
    few = HeldOutSamples(samples.images[:19], samples.class_ids[:19])
    released(exports)
    published = publish(exports, replace(confused(first().snapshot), held_out=few), variants=())
    assert published.notes == (
        "accuracy was not compared: 19 held-out samples, and fewer than 20 say too little",
    )
    assert published.manifest.facts["accuracy"]["samples"] == 19


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
    published = publish(exports, small, variants=())
    assert published.manifest.facts["accuracy"]["held_out"] == 1.0 > RIGHT / HELD_OUT
    assert publish(exports, later(snapshot), Policy(most_drop=0.0), variants=()).manifest.version == 2


@pytest.mark.slow
def test_a_current_version_that_is_damaged_does_not_stop_the_next_one(exports):
    released(exports)
    (exports / "v000001" / "model.onnx").write_bytes(b"nonsense")
    published = publish(exports, confused(first().snapshot), variants=())
    assert "was not compared with the current version" in published.notes[0]
    (exports / "latest.json").write_text("nonsense")
    assert publish(exports, later(first().snapshot), variants=()).manifest.version == 3


@pytest.mark.slow
def test_a_model_that_differs_from_the_network_is_refused_even_by_force(exports):
    # No float32 model is as near as this; the full export that is tried next is not either.
    with pytest.raises(Refused, match="differs from the network"):
        publish(exports, first().snapshot, Policy(tolerance=1e-12, force=True), variants=())
    assert kept(exports) == [] and not (exports / "latest.json").exists()
    assert list(exports.glob(".*")) == []


def test_what_a_device_would_refuse_is_not_published(exports):
    nameless = tuple(replace(each, name="") for each in first().snapshot.classes)
    with pytest.raises(Refused, match=r"a device would refuse the model.*name"):
        publish(exports, replace(first().snapshot, classes=nameless), variants=())
    assert kept(exports) == []


def test_no_class_is_nothing_to_publish(exports):
    empty = replace(with_proxies(first().snapshot, first().snapshot.network.proxies[:0]), classes=())
    with pytest.raises(UserError, match="no class has been learned yet"):
        publish(exports, empty, variants=())


def test_one_class_alone_is_published(exports):
    snapshot = first().snapshot
    one = replace(with_proxies(snapshot, snapshot.network.proxies[:1]), classes=(ClassLabel(4, "four"),))
    publish(exports, one, variants=())
    (result,) = Classifier.load(exports, "cpu", 1).predict([snapshot.images[0]])
    assert [(label.id, label.confidence) for label in result.top] == [(4, pytest.approx(1))]


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"most_drop": -0.1}, "most_drop"),
        ({"most_drop": 2}, "most_drop"),
        ({"keep": 0}, "keep"),
        ({"tolerance": 0}, "tol"),
    ],
)
def test_a_policy_that_makes_no_sense_is_refused(options, reason):
    with pytest.raises(UserError, match=reason):
        Policy(**options)


def test_an_unknown_variant_is_refused_before_anything_is_done(exports):
    with pytest.raises(UserError, match="unknown variant 'int4': choose one of int8, fp16"):
        publish(exports, first().snapshot, variants=("int4",))
    assert not (exports / "lock").exists()


def test_a_folder_that_cannot_be_written_is_said_in_one_line(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(UserError, match=r"cannot change .*file"):
        publish(tmp_path / "file", first().snapshot, variants=())


# Who else is there ----------------------------------------------------------------------------------------------------


def test_what_a_power_cut_left_half_done_is_removed(exports):
    for name in (".v000001.writing", ".v000000.removing"):
        (exports / name).mkdir()
        (exports / name / "model.onnx").write_bytes(b"half")
    released(exports)
    assert list(exports.glob(".*")) == []


@pytest.mark.slow
def test_a_version_without_a_pointer_to_it_does_not_hinder_the_next(exports):
    """The power went between the two."""
    released(exports, 2)
    pointer = (exports / "latest.json").read_bytes()
    released(exports)
    (exports / "latest.json").write_bytes(pointer)
    assert rolled_back(exports) is None
    assert released(exports)[0].manifest.version == 4


def test_a_version_without_a_pointer_to_it_is_not_what_has_been_published(exports):
    snapshot = first().snapshot
    publish(exports, snapshot, variants=())
    pointer = (exports / "latest.json").read_bytes()
    publish(exports, later(snapshot), variants=())
    (exports / "latest.json").write_bytes(pointer)
    assert unchanged(exports, later(snapshot)) is None
    assert unchanged(exports, snapshot) == 1


@pytest.mark.slow
def test_of_two_that_publish_by_themselves_the_one_behind_does_not_undo_the_other(exports):
    snapshot = first().snapshot
    publish(exports, later(snapshot, 5), variants=(), by_hand=False)
    with pytest.raises(Refused, match="version 1 is of a later step"):
        publish(exports, snapshot, variants=(), by_hand=False)
    assert kept(exports) == [1]
    publish(exports, later(snapshot, 5), variants=(), by_hand=False)
    assert publish(exports, snapshot, variants=()).manifest.version == 3, "a person may go back"


HOLDER = """
import fcntl, sys
lock = open(sys.argv[1], "a")
fcntl.flock(lock, fcntl.LOCK_EX)
print("held", flush=True)
sys.stdin.read()
"""


@pytest.mark.slow
def test_a_publisher_waits_for_another_process(exports):
    with started("-c", HOLDER, exports / "lock", stdin=PIPE) as holder:
        assert holder.stdout.readline() == "held\n"
        thread = threading.Thread(target=released, args=(exports,))
        thread.start()
        thread.join(1.0)
        assert thread.is_alive() and kept(exports) == []
    thread.join(60)
    assert kept(exports) == [1]


@pytest.mark.slow
def test_publishers_at_the_same_time_get_different_versions(exports):
    threads = [threading.Thread(target=released, args=(exports, 2)) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert kept(exports) == [1, 2, 3, 4]
    assert read_latest(exports).version == 4


def test_the_lock_is_free_after_a_refusal(exports):
    released(exports)
    with pytest.raises(Refused):
        publish(exports, confused(first().snapshot), variants=())
    with (exports / "lock").open("a") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)


@pytest.mark.slow
def test_a_reader_of_the_pointer_always_finds_a_whole_version(exports):
    released(exports)
    ended = threading.Event()
    seen, failures = set(), []

    def read():
        while not ended.is_set():
            try:
                seen.add(Classifier.load(exports, "cpu", 1).info.version)
            except Exception as error:
                failures.append(error)

    reader = threading.Thread(target=read)
    reader.start()
    for number in range(2, 8):
        # With one kept, the version that a reader is at is removed before its eyes.
        released(exports, policy=Policy(keep=1), start=later(first().snapshot, number))
    ended.set()
    reader.join(60)
    assert not failures and len(seen) > 1


# A workspace ----------------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_a_workspace_with_exports_is_whole_and_one_with_a_changed_model_is_not(tmp_path):
    one = Teaching(tmp_path / "w")
    one.teach(0)
    one.teach(1)
    publish(one.exports, snapshot_of(one.live), variants=("fp16",))
    one.teach(2)
    publish(one.exports, snapshot_of(one.live), variants=())
    one.close()
    assert verify_workspace(one.path) == []
    with (one.exports / "v000001" / "model.onnx").open("ab") as file:
        file.write(b"\0")
    (problem,) = verify_workspace(one.path)
    assert "not the file that was exported" in str(problem)


def test_a_snapshot_without_news_is_known_and_any_news_is_seen(exports):
    snapshot = first().snapshot
    assert unchanged(exports, snapshot) is None
    publish(exports, snapshot, variants=())
    publish(exports, later(snapshot), variants=())
    assert unchanged(exports, later(snapshot)) == 2
    assert unchanged(exports, snapshot) is None
    rollback(exports)
    assert (unchanged(exports, snapshot), unchanged(exports, later(snapshot))) == (1, 2)
    renamed = (replace(snapshot.classes[0], name="other"), *snapshot.classes[1:])
    for news in (
        {"classes": renamed},
        {"temperature": 1.4},
        {"unknown_below": None},
        {"classes": snapshot.classes[::-1]},
    ):
        assert unchanged(exports, replace(snapshot, **news)) is None


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
    wanted = [
        ("flush", "model.onnx"),
        ("flush", "manifest.json"),
        ("flush", ".v000001.writing"),
        ("rename", "v000001"),
        ("flush", "exports"),
        ("flush", "latest.json.writing"),
    ]
    rest = iter(done)
    assert all(step in rest for step in wanted), done


@pytest.mark.slow
def test_a_version_carries_the_region_and_another_region_is_something_new(exports):
    region = Region(0.5, 0.0, 0.5, 1.0)
    snapshot = replace(first().snapshot, region=region)
    folder = publish(exports, snapshot, variants=()).folder
    assert json.loads((folder / "manifest.json").read_text())["region"] == region.to_list()
    assert "only a part of the camera's picture" in (folder / "model-card.md").read_text()
    assert Classifier.load(folder / "model.onnx").info.region == region
    assert unchanged(exports, snapshot) == 1
    assert unchanged(exports, first().snapshot) is None
    folder = publish(exports, first().snapshot, variants=()).folder
    assert "region" not in json.loads((folder / "manifest.json").read_text())
    assert Classifier.load(folder).info.region is None


@pytest.mark.slow
def test_what_is_published_has_the_region_of_the_source_that_was_used_last(tmp_path):
    teaching, region = Teaching(tmp_path / "w"), Region(0.5, 0.0, 0.5, 1.0)
    try:
        teaching.teach(1)
        assert snapshot_of(teaching.live).region is None
        teaching.workspace.regions.put("camera 0", region)
        assert snapshot_of(teaching.live).region == region
    finally:
        teaching.close()
