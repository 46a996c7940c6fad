"""The journal's rules, one by one."""

import random
import unicodedata
from collections.abc import Callable

import pytest

from edge_hpcr.common.errors import UserError
from edge_hpcr.workspace.journal import Journal
from edge_hpcr.workspace.queries import history
from edge_hpcr.workspace.records import Move, SampleRow


@pytest.fixture
def journal(tmp_path):
    journal = Journal(tmp_path / "journal.sqlite")
    journal._db.execute("PRAGMA synchronous = OFF")  # quicker; nothing here is about power cuts
    yield journal
    journal.close()


def add(journal: Journal, count: int, **fields) -> list[int]:
    return journal.add_samples(
        [SampleRow(bytes=100, digest="digest", origin="camera 0", **fields) for _ in range(count)]
    )


def state(journal: Journal, sample_id: int) -> tuple[str, int | None, bool]:
    row = journal.sample(sample_id)
    return row.state, row.class_id, row.held_out


def names(journal: Journal) -> dict[int, str]:
    return {row.id: row.name for row in journal.classes()}


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
        SampleRow(bytes=700, origin="camera 0", hash64=views[pose] ^ (1 << number % 2))
        for pose in poses
        for number in range(each)
    )


def test_of_a_burst_a_part_is_held_out_and_look_alikes_stay_on_one_side(journal):
    mug = journal.create_class("mug")
    event = journal.label(look_alikes(journal, *range(10), each=4), mug)
    sides = [{move.held_out for move in event.moves[start : start + 4]} for start in range(0, 40, 4)]
    assert all(len(side) == 1 for side in sides)
    assert sides.count({True}) == 1, "one pose of ten"


def test_a_picture_that_looks_like_a_learned_one_does_not_measure(journal):
    mug = journal.create_class("mug")
    for number in range(30):  # always the same pose
        assert journal.label(look_alikes(journal, 7, each=1), mug).moves[0].held_out is False, number
    assert journal.label(look_alikes(journal, 8, each=1), mug).moves[0].held_out is True
    # One that looks like that one stays beside it.
    assert journal.label(look_alikes(journal, 8, each=1), mug).moves[0].held_out is True
    assert journal.label(look_alikes(journal, 9, each=1), mug).moves[0].held_out is True
    assert journal.label(look_alikes(journal, 10, each=1), mug).moves[0].held_out is False, "three of 34"


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


def test_a_label_whose_image_is_gone_can_be_undone_but_its_sample_is_not_queued_again(journal):
    mug, cup = journal.create_class("mug"), journal.create_class("cup")
    (sample,) = add(journal, 1)
    journal.label([sample], mug)
    journal.label([sample], cup)
    journal.forget_images([sample])
    assert journal.undo().moves == [Move(sample, cup, mug, False)]
    event = journal.undo()
    assert event.body.lost == [sample] and event.moves == [Move(sample, mug, None, False)]
    assert state(journal, sample) == ("deleted", None, False)
    assert journal.redo().body.lost == [sample]
    assert state(journal, sample) == ("deleted", None, False)


@pytest.mark.parametrize(
    "name",
    ["", "a\nb", "mUG", unicodedata.normalize("NFD", "café")],
)
def test_a_bad_or_taken_name_is_refused_for_new_and_for_old_classes(journal, name):
    for taken in ("Mug", "café"):
        journal.create_class(taken)
    other = journal.create_class("other")
    last = journal.last_seq
    with pytest.raises(UserError):
        journal.create_class(name)
    with pytest.raises(UserError):
        journal.rename_class(other, name)
    assert journal.last_seq == last and names(journal)[other] == "other"


@pytest.mark.parametrize(
    "act",
    [
        lambda j: j.label([1], 7),
        lambda j: j.merge_classes(j.create_class("x"), 7),
        lambda j: (x := j.create_class("x")) and j.merge_classes(x, x),
    ],
)
def test_what_does_not_exist_or_cannot_be_is_a_user_error(journal, act):
    add(journal, 1)
    with pytest.raises(UserError):
        act(journal)
    assert state(journal, 1) == ("queued", None, False)


def test_a_history_that_has_changed_since_it_was_shown_is_not_acted_on(journal):
    for name in ("mug", "cup", "pen"):
        journal.create_class(name)
    newest, before, _ = [entry.seq for entry in history(journal)]
    journal.create_class("tin")
    for point, seen, problem in (
        (before, newest, "done or undone meanwhile"),
        (journal.last_seq, None, "that is the last action"),
        (journal.last_seq + 1, None, "undone already"),
    ):
        with pytest.raises(UserError, match=problem):
            journal.undo_to(point, seen)
    assert len(names(journal)) == 4


def test_reserved_ids_are_given_once_also_to_two_journals_of_one_file(journal, tmp_path):
    other = Journal(tmp_path / "journal.sqlite")
    ids = [i for _ in range(40) for i in (*journal.reserve_ids(3), *other.reserve_ids(2), *add(other, 1))]
    assert len(ids) == len(set(ids))
    other.close()


def test_a_label_does_not_look_at_all_that_was_ever_done(journal):
    mug = journal.create_class("mug")
    (sample,) = journal.add_samples([SampleRow(bytes=1)])
    numbers = [(seq,) for seq in range(2, 20_002)]
    with journal.transaction() as db:
        db.executemany(
            "INSERT INTO events VALUES (?, 0, 'dismiss', '{\"samples\":[],\"classes\":[]}')", numbers
        )
        db.executemany("INSERT INTO actions VALUES (?, 0)", numbers)
    assert steps_of(journal, lambda: journal.label([sample], mug)) < 5000


def test_the_newest_hashes_are_found_without_a_look_at_all_samples(journal):
    journal.add_samples([SampleRow(bytes=1, hash64=number) for number in range(3000)])
    found = []
    assert steps_of(journal, lambda: found.extend(journal.newest_hashes(3))) < 1000
    assert found == [2997, 2998, 2999]


def steps_of(journal: Journal, work: Callable[[], object]) -> int:
    """About how many steps SQLite's machine takes for it."""
    steps = []
    journal._db.set_progress_handler(lambda: steps.append(100), 100)
    work()
    journal._db.set_progress_handler(None, 0)
    return sum(steps)


def test_a_journal_that_was_deleted_takes_nothing_more(journal):
    mug = journal.create_class("mug")
    (sample,) = add(journal, 1)
    journal.path.unlink()
    with pytest.raises(UserError):
        journal.label([sample], mug)
