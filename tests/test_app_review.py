"""The pages of the Review tab, and the actions of Review and Classes: what a person sees, and what is then on disk."""

import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from workspace_parts import SMALL

from app import actions, review
from app.feeder import Shown, encoded
from app.studio import Studio
from edge_hpcr.common.errors import UserError
from edge_hpcr.live.predictor import Answer
from edge_hpcr.live.suspicious import Suspicion
from edge_hpcr.stream.gate import hamming
from edge_hpcr.workspace.folder import Taken, Workspace
from edge_hpcr.workspace.label_queue import UNKNOWN, rank
from edge_hpcr.workspace.records import AUTHOR

APART = [0, 0xFFFF, 0xFFFF_0000, 0xFFFF_0000_0000]  # hashes of which no two are alike


def perform(studio, action):
    """As a page asks for it."""
    return actions.perform(studio, json.dumps(action).encode())


@pytest.fixture
def studio(tmp_path):
    """A workspace with its learner, which is not started: nothing here waits for it."""
    with Workspace.open(tmp_path / "w") as workspace:
        workspace.change_settings(**SMALL, memory_bytes=40_000, threads=1)
        yield Studio(workspace)


def take(studio, count=1, hashes=None, origin="camera 0", priority=0.0):
    """Queue so many samples, each like no other unless their hashes are given."""
    hashes = [(0x9E3779B97F4A7C15 * n) % 2**64 for n in range(1, count + 1)] if hashes is None else hashes
    image = np.zeros((8, 8, 3), np.uint8)
    return studio.workspace.take_many([Taken(image, origin, None, hash64, priority) for hash64 in hashes])


def label(studio, name, count=1, **options):
    ids = take(studio, count, **options)
    class_id = studio.journal.class_id(name) or studio.journal.create_class(name)
    for sample_id in ids:
        studio.journal.label([sample_id], class_id)
    return class_id, ids


def page(studio, **query):
    return review.page(studio, {name: str(value) for name, value in query.items()})


def shown(studio, **query):
    return [sample["id"] for sample in page(studio, **query)["samples"]]


# The queue --------------------------------------------------------------------------------------------------------


def test_the_queue_shows_the_most_informative_first_and_says_what_is_unknown(studio, monkeypatch):
    monkeypatch.setattr(
        review, "PATIENCE", 0.0
    )  # before the learner is asked, what it said when they were queued counts
    ids = take(studio, hashes=APART)
    studio.journal.set_priorities({ids[0]: 0.1, ids[1]: UNKNOWN, ids[2]: 0.9, ids[3]: 0.4})
    answer = page(studio)
    assert [sample["id"] for sample in answer["samples"]] == rank(ids, [0.1, UNKNOWN, 0.9, 0.4], APART)
    assert [sample["unknown"] for sample in answer["samples"]] == [True, False, False, False]
    assert (answer["total"], answer["pages"]) == (4, 1)


def test_near_duplicates_in_the_queue_are_pointed_out_a_little_further_than_the_gate_goes(studio):
    one, other, third, fourth = take(studio, hashes=[0, 0b1111_1111, 0b1_1111_1111, 0xFFFF_0000])
    alike = {sample["id"]: sample["alike"] for sample in page(studio)["samples"]}
    assert set(alike[one]) == set(alike[other]) == {one, other}  # six bits, as the setting says, and two
    assert alike[third] is None and alike[fourth] is None
    studio.workspace.change_settings(gate_distance=5)
    assert all(sample["alike"] is None for sample in page(studio)["samples"] if sample["id"] == one)


@given(st.lists(st.integers(0, 2**64 - 1) | st.integers(0, 255), max_size=30), st.integers(-1, 64))
def test_every_sample_is_in_one_group_whose_first_is_like_all_others(hashes, distance):
    groups = review.look_alikes(range(len(hashes)), hashes, distance)
    assert sorted(member for group in groups for member in group) == list(range(len(hashes)))
    firsts = [group[0] for group in groups]
    assert firsts == sorted(firsts), "the order that was given stays"
    for first, *others in groups:
        assert all(hamming(hashes[first], hashes[other]) <= distance for other in others)
    for number, first in enumerate(firsts):
        assert all(hamming(hashes[first], hashes[before]) > distance for before in firsts[:number])


def test_a_long_queue_has_pages_and_a_page_beyond_the_last_is_the_last(studio):
    ids = take(studio, review.PAGE + 3)
    assert page(studio)["pages"] == 2
    assert len(shown(studio)) == review.PAGE and len(shown(studio, page=1)) == 3
    assert sorted(shown(studio) + shown(studio, page=1)) == ids
    assert page(studio, page=7)["page"] == 1 and shown(studio, page=7) == shown(studio, page=1)


def test_of_a_very_long_queue_the_samples_of_the_highest_priority_are_ranked(studio, monkeypatch):
    monkeypatch.setattr(review, "MOST_RANKED", 3)
    take(studio, 4)
    (important,) = take(studio, hashes=[5], priority=1.0)
    answer = page(studio)
    assert answer["total"] == 5 and len(answer["samples"]) == 3
    assert answer["samples"][0]["id"] == important


def test_what_is_on_the_screen_keeps_its_place_when_others_come_and_go(studio):
    ids = take(studio, hashes=APART)
    before = shown(studio)
    studio.journal.dismiss([before[1]])
    (urgent,) = take(studio, hashes=[0xFFFF_0000_0000_0000], priority=UNKNOWN)
    stay = ",".join(map(str, before))
    assert shown(studio, stay=stay) == [before[0], *before[2:], urgent]
    assert shown(studio)[0] == urgent, "whoever asks anew sees the most informative first"
    assert len(ids) == 4


def test_the_selection_loses_only_what_left_the_view(studio):
    ids = take(studio, 3)
    studio.journal.label([ids[0]], studio.journal.create_class("mug"))
    named = ",".join(map(str, [*ids, 999]))
    assert page(studio, selected=named)["selected"] == ids[1:]
    assert page(studio, view="labelled", selected=named)["selected"] == ids[:1]


# Labelled samples -------------------------------------------------------------------------------------------------


def test_labelled_samples_come_latest_label_first_and_by_class(studio):
    mug, mugs = label(studio, "mug", 2)
    _, pens = label(studio, "pen", 2)
    assert shown(studio, view="labelled") == [*reversed(pens), *reversed(mugs)]
    assert shown(studio, view="labelled", **{"class": mug}) == [*reversed(mugs)]
    assert shown(studio) == [], "they are not in the queue"


def test_search_finds_class_names_in_any_case_and_sample_numbers_and_origins(studio):
    _, (mug,) = label(studio, "Große Tasse")
    _, (pen,) = label(studio, "pen", origin="/parts/100%_new/a.png")
    assert shown(studio, view="labelled", search="GROSSE") == [mug]
    assert (
        shown(studio, view="labelled", search=f"{pen}")
        == [pen]
        == shown(studio, view="labelled", search=f"#{pen}")
    )
    assert shown(studio, view="labelled", search=" 100%_ ") == [pen]
    assert shown(studio, view="labelled", search="PARTS") == [pen]
    for text in ("c_mera", "pa%ts", "\\"):
        assert shown(studio, view="labelled", search=text) == [], "signs stand for themselves"
    assert shown(studio, view="labelled", search="' OR 1=1 --") == []


def test_suspicious_labels_come_first_on_demand_and_only_those_that_still_stand(studio):
    mug, mugs = label(studio, "mug", 4)
    pen, pens = label(studio, "pen", 2)
    fixed, moved = mugs[0], mugs[3]
    studio.live.self_test.suspicions = [
        Suspicion(mugs[1], mug, pen, 0.9),
        Suspicion(pens[0], pen, mug, 0.8),
        Suspicion(fixed, mug, pen, 0.7),
        Suspicion(moved, mug, 77, 0.7),  # a class that is gone
    ]
    studio.label_samples([fixed], pen)
    answer = page(studio, view="labelled", doubts=1)
    assert [sample["id"] for sample in answer["samples"]][:2] == [mugs[1], pens[0]]
    assert {s["id"]: s["suggested"] for s in answer["samples"] if s["suggested"]} == {
        mugs[1]: pen,
        pens[0]: mug,
    }
    assert shown(studio, view="labelled")[0] == fixed, "not asked for: the latest label"
    assert shown(studio, view="labelled", doubts=1, **{"class": pen})[0] == pens[0]
    assert len(answer["samples"]) == len(set(shown(studio, view="labelled", doubts=1))) == 6


# What the learner says ----------------------------------------------------------------------------------------------


def prepare_answers(studio, monkeypatch, answers):
    """As if the learner had said this of the samples: no training, no luck."""
    monkeypatch.setattr(studio.live, "inputs_of", lambda sample_id: np.array([sample_id]))
    monkeypatch.setattr(
        studio.live.predictor, "answer", lambda inputs: [answers[int(each[0])] for each in inputs]
    )


def test_every_picture_shows_the_learners_guess_and_can_be_chosen_by_it(studio, monkeypatch):
    mug, pen = studio.journal.create_class("mug"), studio.journal.create_class("pen")
    sure, unsure, unknown = take(studio, 3)
    prepare_answers(
        studio,
        monkeypatch,
        {
            sure: Answer(((mug, 0.98), (pen, 0.02)), 0.9, False),
            unsure: Answer(((pen, 0.55), (mug, 0.45)), 0.9, False, calibrated=False),
            unknown: Answer(((mug, 0.9), (pen, 0.1)), 0.1, True),
        },
    )
    found = {sample["id"]: sample for sample in page(studio)["samples"]}
    assert found[sure]["guess"] == [[mug, 0.98], [pen, 0.02]]
    assert [found[i]["unknown"] for i in (sure, unsure, unknown)] == [False, False, True]
    assert [found[i]["calibrated"] for i in (sure, unsure, unknown)] == [True, False, True]
    assert shown(studio, guess=mug) == [sure] and shown(studio, guess=pen) == [unsure]
    assert shown(studio, guess="unknown") == [unknown]
    assert sorted(shown(studio, unsure=1)) == [unsure, unknown]
    studio.label_samples([sure, unsure], mug)
    assert shown(studio, view="labelled", guess="other") == [unsure], (
        "called something else than it is labelled"
    )
    assert page(studio, guess=mug)["total"] == 0


def test_pictures_are_chosen_by_their_source(studio):
    camera = take(studio, 2)
    files = take(studio, hashes=[7, 0xFFFF], origin="/parts/mug/1.png")
    assert page(studio)["sources"] == ["/parts/mug", "camera 0"]
    assert sorted(shown(studio, source="/parts/mug")) == files
    assert sorted(shown(studio, source="camera 0")) == camera
    assert shown(studio, source="nowhere") == []


def test_a_page_does_not_wait_until_the_learner_was_asked_about_everything(studio, monkeypatch):
    ids = take(studio, 3)
    answer = Answer(((1, 0.9),), 0.9, False)
    prepare_answers(studio, monkeypatch, dict.fromkeys(ids, answer))
    monkeypatch.setattr(review, "PATIENCE", 0.0)
    answered = page(studio)
    assert answered["asking"] == 3 and all(sample["guess"] is None for sample in answered["samples"])
    monkeypatch.setattr(review, "PATIENCE", 5.0)
    assert page(studio)["asking"] == 0


# Two people -----------------------------------------------------------------------------------------------------------


def test_a_picture_that_two_people_label_differently_keeps_the_first_label_until_somebody_has_seen_it(studio):
    mug, pen = studio.journal.create_class("mug"), studio.journal.create_class("pen")
    ids = take(studio, 3)
    seen = {"samples": ids[:2], "seen": [0, 0]}  # both look at the same queue
    with_ben = AUTHOR.set("ben")
    perform(studio, {"do": "label_samples", "class": mug, "samples": [ids[0]], "seen": [0]})
    AUTHOR.reset(with_ben)
    told = perform(studio, {"do": "label_samples", "class": pen, **seen})
    assert told.message == f"1 labelled pen; sample {ids[0]} stays mug, which ben has called it meanwhile"
    assert studio.journal.labels_of(ids) == {ids[0]: mug, ids[1]: pen}
    again = perform(studio, {"do": "label_samples", "class": pen, "samples": [ids[0]], "seen": [mug]})
    assert again.message == "1 labelled pen", "now the other label has been seen"
    with pytest.raises(UserError, match=f"sample {ids[0]} stays pen"):
        perform(studio, {"do": "label_samples_as", "name": "cup", "samples": [ids[0]], "seen": [mug]})
    assert studio.journal.labels_of(ids[:1]) == {ids[0]: pen} and studio.journal.class_id("cup") is None


def test_held_out_samples_are_marked_and_a_lost_image_is_told(studio):
    _, ids = label(studio, "mug", 20)
    studio.workspace.forget_images([ids[0]])
    samples = {sample["id"]: sample for sample in page(studio, view="labelled")["samples"]}
    held_out = {row.id for row in studio.journal.samples(held_out=True)}
    assert held_out and {i for i, sample in samples.items() if sample["held_out"]} == held_out
    assert [i for i, sample in samples.items() if not sample["image"]] == [ids[0]]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("query", "words"),
    [
        ({"view": "everything"}, "unknown view 'everything': choose one of queue, labelled"),
        ({"page": "-1"}, "page '-1': write a whole number"),
        ({"view": "labelled", "class": "mug"}, "class 'mug': write a whole number"),
        ({"selected": "1,x"}, "selected 'x': write a whole number"),
        ({"stay": "1," * (review.MOST_NAMED + 1)}, "5,001 samples were named: name at most 5,000 at once"),
    ],
)
def test_a_bad_question_is_answered_with_a_sentence(studio, query, words):
    with pytest.raises(UserError) as refused:
        review.page(studio, query)
    assert str(refused.value) == words


# Actions ----------------------------------------------------------------------------------------------------------


def names(studio):
    return {row["name"]: (row["labels"], row["held_out"]) for row in studio.state(fresh=True)["classes"]}


def test_a_selection_is_labelled_with_a_new_name_or_one_that_exists(studio):
    ids = take(studio, 4)
    done = perform(studio, {"do": "label_samples_as", "samples": ids[:3], "name": " <b>mug</b> 🍵 "})
    assert done.message == "3 labelled <b>mug</b> 🍵" and done.samples == 3
    perform(studio, {"do": "label_samples_as", "samples": ids[3:], "name": "<B>MUG</B> 🍵"})
    assert names(studio) == {"<b>mug</b> 🍵": (4, 0)}
    perform(studio, {"do": "undo"})
    assert shown(studio) == ids[3:]


def test_a_selection_with_a_sample_that_is_gone_leaves_no_class_behind(studio):
    ids = take(studio, 2)
    studio.workspace.drop_queued([ids[0]])
    with pytest.raises(UserError, match=f"unknown sample {ids[0]}"):
        perform(studio, {"do": "label_samples_as", "samples": ids, "name": "mug"})
    assert names(studio) == {} and shown(studio) == ids[1:]


def test_a_class_whose_first_image_cannot_be_stored_is_not_made(studio):
    image = np.zeros((8, 8, 3), np.uint8)
    answer = Answer(((1, 1.0),), 0.0, True)
    studio.feeder._shown[1] = Shown(1, image, "test", None, 0, "take", answer, None, *encoded(image))
    folder = studio.workspace.files.folder
    folder.rename(folder.with_name("aside"))
    folder.write_text("in the way")
    with pytest.raises(UserError, match="cannot keep an image"):
        perform(studio, {"do": "new_class", "name": "mug", "frames": [1]})
    assert names(studio) == {}


def test_dismissed_and_deleted_samples_leave_their_view_and_undo_brings_them_back(studio):
    ids = take(studio, 3)
    assert perform(studio, {"do": "dismiss", "samples": ids[:2]}).message == "2 dismissed"
    assert shown(studio) == ids[2:]
    perform(studio, {"do": "undo"})
    assert sorted(shown(studio)) == ids
    perform(studio, {"do": "redo"})
    assert perform(studio, {"do": "delete_samples", "samples": ids[2:]}).message == "1 deleted"
    assert shown(studio) == []


def test_classes_are_made_renamed_merged_and_deleted_and_the_state_tells_their_labels(studio):
    mug, _ = label(studio, "mug", 20)
    held_out = studio.journal.counts().held_out
    pen = perform(studio, {"do": "create_class", "name": "pen"}).class_id
    assert names(studio) == {"mug": (20, held_out), "pen": (0, 0)} and held_out > 0
    perform(studio, {"do": "rename_class", "class": pen, "name": "pencil"})
    perform(studio, {"do": "merge_classes", "class": mug, "into": pen})
    assert names(studio) == {"pencil": (20, held_out)}
    perform(studio, {"do": "delete_class", "class": pen})
    assert names(studio) == {}
    perform(studio, {"do": "undo"})
    perform(studio, {"do": "undo"})
    assert names(studio) == {"mug": (20, held_out), "pencil": (0, 0)}


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("MUG", "differs only in case"),
        ("mug", "exists already"),
        ("  ", "empty"),
        ("x" * 300, "300 characters"),
    ],
)
def test_a_name_that_cannot_be_is_refused_with_a_sentence(studio, name, words):
    perform(studio, {"do": "create_class", "name": "mug"})
    with pytest.raises(UserError, match=words):
        perform(studio, {"do": "create_class", "name": name})
    assert names(studio) == {"mug": (0, 0)}
