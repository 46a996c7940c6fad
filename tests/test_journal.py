"""The journal's rules, one by one."""

import json
import random
import unicodedata

import pytest

from edge_hpcr.common.errors import UserError
from edge_hpcr.workspace.journal import Journal
from edge_hpcr.workspace.records import AUTHOR, ClassRow, Move, NewSample


@pytest.fixture
def journal(tmp_path):
    journal = Journal(tmp_path / "journal.sqlite")
    journal._db.execute("PRAGMA synchronous = OFF")  # quicker; nothing here is about power cuts
    yield journal
    journal.close()


def add(journal: Journal, count: int, **fields) -> list[int]:
    return journal.add_samples([NewSample(100, "digest", "camera 0", **fields) for _ in range(count)])


def state(journal: Journal, sample_id: int) -> tuple[str, int | None, bool]:
    row = journal.sample(sample_id)
    return row.state, row.class_id, row.held_out


def names(journal: Journal) -> dict[int, str]:
    return {row.id: row.name for row in journal.classes()}


def test_a_label_is_one_event_with_a_move_for_each_sample(journal):
    mug = journal.create_class("mug", "#1f77b4")
    ids = add(journal, 2)
    event = journal.label(ids, mug)
    assert event.kind == "label"
    assert event.moves == [Move(i, None, mug, False) for i in ids]
    assert event.seq == journal.last_seq == 2
    assert journal.events_after(1) == [event]
    assert journal.classes() == [ClassRow(mug, "mug", "#1f77b4", 2, 0)]
    assert journal.sample(ids[0]).labelled_seq == event.seq


def test_an_event_carries_its_author_and_a_sample_tells_who_acted_last(journal):
    mug = journal.create_class("mug")
    one, other, queued = add(journal, 3)
    journal.label([one, other], mug)
    before = AUTHOR.set("anna")
    try:
        journal.delete_samples([other])
        journal.undo()
    finally:
        AUTHOR.reset(before)
    authors = [json.loads(text)["author"] for *_, text in journal.stored_events()]
    assert authors == ["local", "local", "anna", "anna"]
    assert journal.authors_of([one, other, queued]) == {one: "local", other: "anna"}


def test_a_correction_moves_a_sample_and_keeps_it_on_its_side(journal):
    mug, cup = journal.create_class("mug"), journal.create_class("cup")
    (sample,) = add(journal, 1)
    journal.label([sample], mug)
    event = journal.label([sample], cup)
    assert (event.kind, event.moves) == ("correct", [Move(sample, mug, cup, False)])
    held_out = label_until_held_out(journal, mug)
    journal.label([held_out], cup)
    assert state(journal, held_out) == ("labelled", cup, True)


def label_until_held_out(journal: Journal, class_id: int) -> int:
    for _ in range(20):
        (sample,) = add(journal, 1)
        if journal.label([sample], class_id).moves[0].held_out:
            return sample
    raise AssertionError("none of twenty labels was held out")


def test_a_label_that_changes_nothing_is_not_recorded(journal):
    mug = journal.create_class("mug")
    (sample,) = add(journal, 1)
    journal.label([sample], mug)
    last = journal.last_seq
    event = journal.label([sample, sample], mug)
    assert (event.moves, event.seq, journal.last_seq) == ([], last, last)


def test_one_single_label_in_ten_is_held_out_and_never_the_first_of_a_class(journal):
    mug, cup = journal.create_class("mug"), journal.create_class("cup")
    sides = {mug: [], cup: []}
    for number in range(60):
        class_id = (mug, cup)[number % 2]
        (sample,) = add(journal, 1)
        sides[class_id].append(journal.label([sample], class_id).moves[0].held_out)
    for side in sides.values():
        assert side[0] is False
        assert sum(side) == 3
    assert [row.held_out for row in journal.classes()] == [3, 3]


def look_alikes(journal: Journal, *poses: int, each: int = 4) -> list[int]:
    """Samples of a thing in several poses, so many of each that look the same."""
    rng = random.Random(0)
    views = {pose: rng.getrandbits(63) | 1 for pose in range(1000)}
    return journal.add_samples(
        NewSample(file_bytes=700, digest="", origin="camera 0", hash64=views[pose] ^ (1 << number % 2))
        for pose in poses
        for number in range(each)
    )


def test_of_a_burst_a_part_is_held_out_and_look_alikes_stay_on_one_side(journal):
    mug = journal.create_class("mug")
    event = journal.label(look_alikes(journal, *range(10), each=4), mug)
    sides = [{move.held_out for move in event.moves[start : start + 4]} for start in range(0, 40, 4)]
    assert all(len(side) == 1 for side in sides)
    assert sides.count({True}) == 1, "one pose of ten"


def test_a_burst_that_looks_the_same_throughout_trains_as_a_whole(journal):
    mug = journal.create_class("mug")
    bursts = [journal.label(look_alikes(journal, number, each=4), mug) for number in range(20)]
    assert not any(move.held_out for event in bursts for move in event.moves)


def test_a_picture_that_looks_like_a_learned_one_does_not_measure(journal):
    mug = journal.create_class("mug")
    for number in range(30):  # always the same pose
        assert journal.label(look_alikes(journal, 7, each=1), mug).moves[0].held_out is False, number
    assert journal.label(look_alikes(journal, 8, each=1), mug).moves[0].held_out is True
    # One that looks like that one stays beside it.
    assert journal.label(look_alikes(journal, 8, each=1), mug).moves[0].held_out is True
    assert journal.label(look_alikes(journal, 9, each=1), mug).moves[0].held_out is True
    assert journal.label(look_alikes(journal, 10, each=1), mug).moves[0].held_out is False, "three of 34"


def test_the_first_labels_of_a_class_train_even_when_half_is_held_out(tmp_path):
    journal = Journal(tmp_path / "journal.sqlite", held_out_share=0.5)
    mug = journal.create_class("mug")
    assert journal.label(add(journal, 1), mug).moves[0].held_out is False
    assert journal.label(add(journal, 1), mug).moves[0].held_out is True
    journal.close()


def test_what_was_trained_on_before_an_undo_is_never_held_out(journal):
    mug, cup = journal.create_class("mug"), journal.create_class("cup")
    (trained,) = add(journal, 1)
    journal.label([trained], cup)
    journal.undo()
    for sample in add(journal, 4):
        assert journal.label([sample], mug).moves[0].held_out is False
    # The fifth of a class would measure; this one has been learned already, so the sixth does.
    assert journal.label([trained], mug).moves[0].held_out is False
    assert journal.label(add(journal, 1), mug).moves[0].held_out is True


def test_undo_takes_back_and_redo_does_again(journal):
    mug = journal.create_class("mug")
    ids = add(journal, 3)
    label = journal.label(ids, mug)
    undone = journal.undo()
    assert (undone.kind, undone.of) == ("undo", label.seq)
    assert undone.moves == [Move(i, mug, None, False) for i in ids]
    assert all(state(journal, i) == ("queued", None, False) for i in ids)
    assert journal.redo().moves == label.moves
    with pytest.raises(UserError, match="nothing to redo"):
        journal.redo()
    journal.undo()
    assert journal.undo().closed == [mug]
    assert journal.classes() == []
    with pytest.raises(UserError, match="nothing to undo"):
        journal.undo()
    assert journal.redo().closed == []
    assert names(journal) == {mug: "mug"}


def test_a_new_action_clears_what_could_be_done_again(journal):
    mug = journal.create_class("mug")
    ids = add(journal, 2)
    journal.label(ids[:1], mug)
    journal.undo()
    journal.dismiss(ids[1:])
    with pytest.raises(UserError, match="nothing to redo"):
        journal.redo()


def test_an_undone_class_never_gives_its_id_to_another(journal):
    first = journal.create_class("mug")
    journal.undo()
    second = journal.create_class("mug")
    journal.delete_class(second)
    third = journal.create_class("mug")
    assert len({first, second, third}) == 3


def test_a_rename_changes_only_the_name(journal):
    mug = journal.create_class("mug", "#ff0000")
    (sample,) = add(journal, 1)
    journal.label([sample], mug)
    event = journal.rename_class(mug, "  Cup ")
    assert event.moves == event.closed == []
    assert journal.classes() == [ClassRow(mug, "Cup", "#ff0000", 1, 0)]
    journal.recolour_class(mug, "#00ff00")
    journal.undo()
    journal.undo()
    assert journal.classes() == [ClassRow(mug, "mug", "#ff0000", 1, 0)]


def test_a_merge_moves_the_labels_and_the_held_out_samples_and_can_be_undone(journal):
    mug, cup = journal.create_class("mug"), journal.create_class("cup")
    held_out = label_until_held_out(journal, mug)
    before = journal.classes()
    count = before[0].labels
    assert journal.merge_classes(mug, cup) == count
    event = journal.events_after(journal.last_seq - 1)[0]
    assert event.closed == [mug]
    assert {(m.was, m.now) for m in event.moves} == {(mug, cup)} and len(event.moves) == count
    assert journal.classes() == [ClassRow(cup, "cup", None, count, 1)]
    assert state(journal, held_out) == ("labelled", cup, True)
    with pytest.raises(UserError, match=f"merged into {cup}: use that one"):
        journal.label([held_out], mug)
    journal.undo()
    assert journal.classes() == before


def test_deleting_a_class_deletes_its_samples_and_undo_revives_the_same_id(journal):
    mug = journal.create_class("mug")
    ids = add(journal, 3)
    journal.label(ids, mug)
    assert journal.delete_class(mug) == 3
    assert [state(journal, i)[0] for i in ids] == ["deleted"] * 3
    with pytest.raises(UserError, match="was deleted"):
        journal.label(ids, mug)
    event = journal.undo()
    assert event.moves == [Move(i, None, mug, False) for i in ids]
    assert names(journal) == {mug: "mug"}


def test_undo_of_a_deletion_leaves_samples_without_image_deleted_and_says_so(journal):
    mug = journal.create_class("mug")
    ids = add(journal, 3)
    journal.label(ids, mug)
    journal.delete_class(mug)
    assert [row.id for row in journal.forget_images(ids[:1])] == ids[:1]
    event = journal.undo()
    assert event.lost == ids[:1]
    assert [m.sample_id for m in event.moves] == ids[1:]
    assert state(journal, ids[0]) == ("deleted", None, False)
    assert journal.events_after(event.seq - 1)[0].lost == ids[:1]


def test_a_label_whose_image_is_gone_can_be_undone_but_its_sample_is_not_queued_again(journal):
    mug, cup = journal.create_class("mug"), journal.create_class("cup")
    (sample,) = add(journal, 1)
    journal.label([sample], mug)
    journal.label([sample], cup)
    journal.forget_images([sample])
    assert journal.undo().moves == [Move(sample, cup, mug, False)]
    event = journal.undo()
    assert event.lost == [sample] and event.moves == [Move(sample, mug, None, False)]
    assert state(journal, sample) == ("deleted", None, False)
    assert journal.redo().lost == [sample]
    assert state(journal, sample) == ("deleted", None, False)


def test_a_queued_sample_keeps_its_image(journal):
    (sample,) = add(journal, 1)
    assert journal.forget_images([sample]) == []
    assert journal.sample(sample).has_image


def test_samples_leave_the_queue_without_a_trace_unless_an_event_speaks_of_them(journal):
    mug = journal.create_class("mug")
    fresh, undone, labelled = add(journal, 3)
    journal.label([undone], mug)
    journal.undo()
    journal.label([labelled], mug)
    dropped = journal.drop_queued([fresh, undone, labelled, 999])
    assert [row.id for row in dropped] == [fresh, undone]
    with pytest.raises(UserError, match=f"unknown sample {fresh}"):
        journal.sample(fresh)
    assert state(journal, undone)[0] == "deleted" and not journal.sample(undone).has_image
    assert state(journal, labelled)[0] == "labelled"
    assert journal.undo().moves == [Move(labelled, mug, None, False)]  # not the eviction


def test_redo_of_a_label_whose_sample_left_the_queue_says_that_it_is_lost(journal):
    mug = journal.create_class("mug")
    ids = add(journal, 2)
    journal.label(ids, mug)
    journal.undo()
    journal.drop_queued(ids[:1])
    event = journal.redo()
    assert event.lost == ids[:1] and event.moves == [Move(ids[1], None, mug, False)]


def test_dismissed_and_deleted_samples_come_back_by_undo(journal):
    mug = journal.create_class("mug")
    first, second = add(journal, 2)
    journal.label([first], mug)
    assert journal.dismiss([second]).moves == []
    assert journal.delete_samples([first, second]).moves == [Move(first, mug, None, False)]
    assert journal.counts().labels == 0
    journal.undo()
    assert (state(journal, first)[0], state(journal, second)[0]) == ("labelled", "dismissed")
    journal.undo()
    assert [row.id for row in journal.queued()] == [second]
    with pytest.raises(UserError, match="only a queued one can be dismissed"):
        journal.dismiss([first])


def test_a_dismissed_sample_can_be_labelled_but_a_deleted_one_cannot(journal):
    mug = journal.create_class("mug")
    first, second, third = add(journal, 3)
    journal.dismiss([first, third])
    assert journal.label([first], mug).moves == [Move(first, None, mug, False)]
    journal.delete_samples([second])
    with pytest.raises(UserError, match="was deleted: undo that"):
        journal.label([second], mug)
    journal.forget_images([third])
    with pytest.raises(UserError, match="has no image any more"):
        journal.label([third], mug)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("", "an empty class name"),
        (" \t ", "an empty class name"),
        ("x" * 101, "101 characters"),
        ("a\nb", "control characters"),
        ("a\x00b", "control characters"),
        ("a\udc80", "control characters"),
        ("Mug", "exists already"),
        (" Mug ", "exists already"),
        ("mUG", "differs only in case from 'Mug'"),
        ("STRASSE", "differs only in case from 'Straße'"),
        (unicodedata.normalize("NFD", "café"), "exists already"),
    ],
)
def test_a_bad_name_is_refused_for_new_and_for_old_classes(journal, name, message):
    for taken in ("Mug", "Straße", "café"):
        journal.create_class(taken)
    other = journal.create_class("other")
    last = journal.last_seq
    with pytest.raises(UserError, match=message):
        journal.create_class(name)
    with pytest.raises(UserError, match=message):
        journal.rename_class(other, name)
    assert journal.last_seq == last
    assert names(journal)[other] == "other"


def test_a_name_is_free_again_after_its_class_is_gone_and_its_own_case_may_change(journal):
    mug = journal.create_class("mug")
    journal.rename_class(mug, "MUG")
    assert journal.class_id("mug") == mug
    journal.delete_class(mug)
    assert journal.class_id("mug") is None
    assert journal.create_class("mug") != mug


@pytest.mark.parametrize("act", [
    lambda j: j.label([1], 7),
    lambda j: j.label([77], j.create_class("x")),
    lambda j: j.label([10**30], j.create_class("x")),
    lambda j: j.label([], j.create_class("x")),
    lambda j: j.label([1], 10**30),
    lambda j: j.rename_class(7, "y"),
    lambda j: j.merge_classes(j.create_class("x"), 7),
    lambda j: (x := j.create_class("x")) and j.merge_classes(x, x),
    lambda j: j.delete_class(7),
    lambda j: j.dismiss([77]),
    lambda j: j.delete_samples([77]),
    lambda j: j.sample(77),
    lambda j: j.create_class("x", "red"),
    lambda j: j.recolour_class(j.create_class("x"), "red"),
])  # fmt: skip
def test_what_does_not_exist_or_cannot_be_is_a_user_error(journal, act):
    add(journal, 1)
    with pytest.raises(UserError):
        act(journal)
    assert state(journal, 1) == ("queued", None, False)


def test_the_queue_shows_the_highest_priority_first_and_counts_its_bytes(journal):
    low, high = add(journal, 1, priority=0.1) + add(journal, 1, priority=0.9)
    assert [row.id for row in journal.queued()] == [high, low]
    journal.set_priorities({low: 2.0})
    assert [row.id for row in journal.queued(limit=1)] == [low]
    journal.label([high], journal.create_class("mug"))
    counts = journal.counts()
    assert (counts.labels, counts.queued, counts.queued_bytes, counts.images, counts.image_bytes) == (
        1, 1, 100, 2, 200,
    )  # fmt: skip
    journal.forget_images([high])
    assert (journal.counts().images, journal.counts().image_bytes) == (1, 100)


def test_a_sample_comes_back_as_it_was_added(journal):
    new = NewSample(700, "abc", "/photos/ä.png", 2**64 - 5, 0.25, 30, 20, "01/000001.png", "def")
    (sample,) = journal.add_samples([new])
    row = journal.sample(sample)
    assert (row.bytes, row.digest, row.origin, row.hash64, row.priority) == (
        700,
        "abc",
        "/photos/ä.png",
        2**64 - 5,
        0.25,
    )
    assert (row.width, row.height, row.file, row.source_digest) == (30, 20, "01/000001.png", "def")
    assert journal.known_source("def") == sample
    assert journal.known_source("abc") is None


def test_samples_are_listed_by_page_and_by_what_they_are(journal):
    mug = journal.create_class("mug")
    ids = add(journal, 5)
    journal.label(ids[:3], mug)
    assert [row.id for row in journal.samples(limit=2)] == ids[:2]
    assert [row.id for row in journal.samples(after_id=ids[1], limit=2)] == ids[2:4]
    assert [row.id for row in journal.samples(class_id=mug)] == ids[:3]
    assert [row.id for row in journal.samples(state="queued")] == ids[3:]
    assert journal.samples(class_id=mug, held_out=True) == []


def test_reserved_ids_are_given_once_also_to_two_journals_of_one_file(journal, tmp_path):
    other = Journal(tmp_path / "journal.sqlite")
    ids = [i for _ in range(40) for i in (*journal.reserve_ids(3), *other.reserve_ids(2), *add(other, 1))]
    assert len(ids) == len(set(ids))
    other.close()


def test_counters_add_up(journal):
    journal.add_counts({"skipped_duplicate": 3, "skipped_sure": 1})
    journal.add_counts({"skipped_duplicate": 2})
    assert journal.counters() == {"skipped_duplicate": 5, "skipped_sure": 1}


def test_a_label_does_not_look_at_all_that_was_ever_done(journal):
    mug = journal.create_class("mug")
    (sample,) = journal.add_samples([NewSample(file_bytes=1, digest="", origin="")])
    numbers = [(seq,) for seq in range(2, 20_002)]
    with journal.transaction() as db:
        db.executemany(
            "INSERT INTO events VALUES (?, 0, 'dismiss', '{\"samples\":[],\"classes\":[]}')", numbers
        )
        db.executemany("INSERT INTO actions VALUES (?, 0)", numbers)
    steps = []
    journal._db.set_progress_handler(lambda: steps.append(100), 100)
    journal.label([sample], mug)
    journal._db.set_progress_handler(None, 0)
    assert sum(steps) < 5000, "of SQLite's machine"


def test_a_journal_that_was_deleted_takes_nothing_more(journal):
    mug = journal.create_class("mug")
    (sample,) = add(journal, 1)
    journal.path.unlink()
    with pytest.raises(UserError, match="was deleted or replaced while it was in use: nothing more is saved"):
        journal.label([sample], mug)
