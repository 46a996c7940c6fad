"""The pages of the Review tab, and the actions of Review and Classes: what a person sees, and what is then on disk."""

import numpy as np
import pytest
from workspace_parts import SMALL

from app import review
from app.actions import Actions
from app.studio import Studio
from edge_hpcr.common.errors import UserError
from edge_hpcr.live.predictor import Answer
from edge_hpcr.stream import Frame
from edge_hpcr.workspace.workspace import Workspace


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
    return studio.workspace.take_many(
        [Frame(image, origin, hash64=hash64, priority=priority) for hash64 in hashes]
    )


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


# Labelled samples -------------------------------------------------------------------------------------------------


def test_labelled_samples_are_chosen_by_class_the_latest_label_first(studio):
    mug, mugs = label(studio, "mug", 2)
    pen, pens = label(studio, "pen", 2)
    Actions(studio).label_samples([mugs[0]], pen)
    assert shown(studio, view="labelled") == [mugs[0], *reversed(pens), mugs[1]]
    assert shown(studio, view="labelled", **{"class": mug}) == [mugs[1]]


# What the learner says ----------------------------------------------------------------------------------------------


def prepare_answers(monkeypatch, answers):
    """As if the learner had said this of the samples: no training, no luck."""
    monkeypatch.setattr(
        review, "answers_about", lambda live, ids, seconds: {i: answers[i] for i in ids if i in answers}
    )


def test_every_picture_shows_the_learners_guess_and_can_be_chosen_by_it(studio, monkeypatch):
    mug, pen = studio.journal.create_class("mug"), studio.journal.create_class("pen")
    sure, unsure, unknown = take(studio, 3)
    prepare_answers(
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
    Actions(studio).label_samples([sure, unsure], mug)
    assert shown(studio, view="labelled", guess="other") == [unsure], (
        "called something else than it is labelled"
    )
    assert page(studio, guess=mug)["total"] == 0


@pytest.mark.parametrize(
    "query", [{"view": "everything"}, {"page": "-1"}, {"stay": "1," * (review.MOST_NAMED + 1)}]
)
def test_a_bad_question_is_refused(studio, query):
    with pytest.raises(UserError):
        review.page(studio, query)
