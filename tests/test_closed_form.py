"""The closed-form methods: equal to what scikit-learn computes from all samples at once, in any order, and reversible."""

import copy
from pathlib import Path

import numpy as np
import pytest
import torch
from rival_parts import directions
from sklearn.discriminant_analysis import LinearDiscriminantAnalysis
from sklearn.linear_model import Ridge

from edge_hpcr.learner.learner import Learner
from edge_hpcr.learner.memory import MemoryConfig
from edge_hpcr.learner.methods import ranpac, slda
from export.publish.graph import RunningModel
from export.publish.snapshot import snapshot_of_learner
from export.publish.to_onnx import Exported, export

pytestmark = pytest.mark.computes

every_one = pytest.mark.parametrize("name", ["ncm", "slda", "ranpac"])
TAU = 0.09


@pytest.fixture
def taught(small_learner, digits, monkeypatch):
    """A function that teaches a learner the digits of these places, in batches of `at_once`."""

    monkeypatch.setattr(ranpac, "WITHOUT_BUDGET", 50)

    def teach(name: str, places, at_once: int = 7, learner: Learner | None = None, **options) -> Learner:
        learner = learner or small_learner(method=name, **options)
        for start in range(0, len(places), at_once):
            part = places[start : start + at_once]
            learner.observe(digits.train_images[part], digits.train_labels[part])
        return learner

    return teach


@pytest.fixture
def places(digits) -> np.ndarray:
    """Forty digits of four classes, of uneven numbers."""
    return np.flatnonzero(np.isin(digits.train_labels, [1, 4, 6, 9]))[:40]


def scores(learner: Learner, images: np.ndarray, class_ids: list[int] | None = None) -> np.ndarray:
    """Before the softmax; columns in the order of `class_ids`."""
    network = learner.network.eval()
    with torch.no_grad():
        classify = learner.method.classifier(learner.view, network)
        inputs = learner.to_device(images)
        found = classify(network.features(inputs), inputs).double().numpy()
    return found[:, [learner.column(class_id) for class_id in class_ids or learner.class_ids]]


# Against a reference --------------------------------------------------------------------------------------------------


def test_ncm_is_the_cosine_with_the_mean_direction_over_tau(taught, digits, places) -> None:
    learner, tests = taught("ncm", places), digits.test_images[:30]
    known, labels = directions(learner, digits.train_images[places]), digits.train_labels[places]
    means = np.stack([known[labels == class_id].mean(0) for class_id in learner.class_ids])
    expected = directions(learner, tests) @ (means / np.linalg.norm(means, axis=1, keepdims=True)).T / TAU
    np.testing.assert_allclose(scores(learner, tests), expected, atol=1e-4)


@pytest.mark.parametrize("budget", [None, 3_000])
def test_slda_is_scikit_learns_discriminant_analysis_of_all_samples_at_once(
    taught, digits, places, budget: int | None
) -> None:
    memory = {} if budget is None else {"memory": MemoryConfig(bytes=budget)}
    learner = taught("slda", places, **memory)
    size = len(learner.method.scatter)  # of the features that the budget holds
    known, labels = directions(learner, digits.train_images[places])[:, :size], digits.train_labels[places]
    classes = sorted(learner.class_ids)
    reference = LinearDiscriminantAnalysis(solver="lsqr", shrinkage=size / (size + 40)).fit(known, labels)
    # scikit-learn's scale is that of Gaussian log-odds; ours is the mean variance times tau, sharper with more labels.
    variance = np.mean((known - reference.means_[np.searchsorted(classes, labels)]) ** 2)
    sharpness = variance * np.sqrt(10) / (TAU * slda.BEST_TEMPERATURE)
    tests = digits.test_images[:30]
    likelihoods = reference.decision_function(directions(learner, tests)[:, :size]) - np.log(
        reference.priors_
    )
    expected = (
        likelihoods - likelihoods.mean(1, keepdims=True)
    ) * sharpness  # what classes share says nothing
    found = scores(learner, tests, classes)
    found -= found.mean(1, keepdims=True)
    np.testing.assert_allclose(found, expected, atol=1e-3 * np.abs(expected).max())


@torch.no_grad()
def test_classes_that_are_nearly_alike_leave_no_rounding_in_the_scores_of_slda(small_learner) -> None:
    """After hundreds of labels an exported model differed by more than is allowed, and nothing could be published."""
    learner = small_learner(method="slda")
    method, network, rng = learner.method, learner.network, np.random.default_rng(0)
    for class_id in range(5):
        learner.add_class(class_id)
    away = rng.normal(0, 0.01, (5, network.feature_size)) + rng.normal(
        0, 0.02, (2000, 5, network.feature_size)
    )
    features = torch.from_numpy(1 + away).float()
    for batch in features.split(100):
        method.take_in(learner.view, batch.flatten(0, 1), torch.arange(5).repeat(100))
    classify, asked = method.solve(learner.view, network), features[:100].flatten(0, 1)
    exactly = copy.deepcopy(classify).double()
    found, expected = classify(asked, asked).double(), exactly(asked.double(), asked.double())
    assert (found - expected).abs().max() < 1e-4 and (
        found.softmax(1) - expected.softmax(1)
    ).abs().max() < 1e-5


def test_ranpac_is_scikit_learns_ridge_regression_on_random_features(taught, digits, places) -> None:
    learner = taught("ranpac", places)
    projection = learner.method.lift.projection.double().numpy()
    assert projection.shape == (50, learner.network.feature_size) and set(np.unique(projection)) == {-1, 1}
    known = np.maximum(directions(learner, digits.train_images[places]) @ projection.T, 0)
    wanted = (digits.train_labels[places][:, None] == learner.class_ids).astype(float)
    penalty = 50 / (50 + 40) * (known**2).sum(1).mean()
    reference = Ridge(alpha=penalty, fit_intercept=False, solver="cholesky")
    reference.fit(known, wanted)
    tests = digits.test_images[:30]
    expected = reference.predict(np.maximum(directions(learner, tests) @ projection.T, 0)) / TAU
    np.testing.assert_allclose(scores(learner, tests), expected, atol=1e-3 * np.abs(expected).max())


# Order, one label, classes that leave ---------------------------------------------------------------------------------


@pytest.mark.slow
@every_one
def test_any_order_and_any_batches_give_the_same_classifier(taught, digits, places, name: str) -> None:
    tests = digits.test_images[:30]
    first = taught(name, places, at_once=40)
    shuffled = taught(name, np.random.default_rng(3).permutation(places), at_once=3)
    one_after_the_other = taught(name, places[np.argsort(digits.train_labels[places], kind="stable")], 1)
    expected = scores(first, tests, [1, 4, 6, 9])
    for other in (shuffled, one_after_the_other):
        np.testing.assert_allclose(
            scores(other, tests, [1, 4, 6, 9]), expected, atol=1e-4 * np.abs(expected).max()
        )


@every_one
def test_a_sample_that_is_taken_out_was_never_there(taught, digits, places, name: str) -> None:
    learner, expected = taught(name, places), taught(name, places[:33])
    assert learner.unlearn(digits.train_images[places[33:]], digits.train_labels[places[33:]])
    pictures = digits.test_images[:30]
    found, wanted = scores(learner, pictures), scores(expected, pictures)
    np.testing.assert_allclose(found, wanted, atol=1e-3 * np.abs(wanted).max())
    assert torch.equal(learner.method.counts, expected.method.counts)


def test_samples_that_are_taken_out_as_the_disk_has_them_leave_a_classifier(taught, digits) -> None:
    pictures = digits.test_images[:30]
    for first in range(0, 60, 6):
        places = np.arange(first, first + 6)
        learner, expected = taught("slda", places), taught("slda", places[:2])
        kept = digits.train_images[places[2:]] // 16 * 16  # nearly what was learned
        assert learner.unlearn(kept, digits.train_labels[places[2:]])
        for class_id in set(learner.class_ids) - set(expected.class_ids):
            learner.drop_class(class_id)
        answers = scores(learner, pictures, expected.class_ids).argmax(1)
        assert (answers == scores(expected, pictures).argmax(1)).mean() > 0.5


# Bytes ----------------------------------------------------------------------------------------------------------------


@every_one
def test_the_bytes_are_those_of_the_statistics(taught, places, name: str) -> None:
    learner = taught(name, places)
    size = learner.network.feature_size
    own = {"ncm": 0, "slda": 2 * size * (size + 1) + 8, "ranpac": 2 * 50 * 51 + 4 * 50 * 4 + 8}[name]
    counted = learner.byte_breakdown()
    assert counted["method"] == counted["total"] == 4 * (8 + 4 * size) + own


@pytest.mark.parametrize("name", ["slda", "ranpac"])
def test_half_of_a_symmetric_matrix_is_kept_and_the_restored_learner_continues_bit_for_bit(
    taught, places, digits, name: str, tmp_path: Path
) -> None:
    learner = taught(name, places[:20])
    assert learner.method.bytes() == sum(each.nbytes for each in learner.method.state().values())
    learner.save(tmp_path / "saved")
    restored, _ = Learner.load(tmp_path / "saved", device="cpu")
    tests = digits.test_images[:30]
    for each in (learner, restored):
        taught(name, places[20:], learner=each)
    np.testing.assert_array_equal(scores(restored, tests), scores(learner, tests))


# Exported -----------------------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize(
    "name", ["slda", "ranpac"]
)  # ncm classifies by proxies, as the methods of other tests do
def test_an_exported_model_answers_as_the_learner_also_when_republished_with_a_new_class(
    taught, digits, places, name: str, tmp_path: Path
) -> None:
    # ranpac in a budget has fewer random features with every class: the template takes other shapes.
    options = {"memory": MemoryConfig(bytes=19_900)} if name == "ranpac" else {}
    learner = taught(name, places, **options)
    pictures = digits.test_images[:20]

    def scores_of(exported: Exported) -> np.ndarray:
        return RunningModel(exported.model.SerializeToString(), name)(pictures).scores

    snapshot = snapshot_of_learner(learner, None)
    full = export(snapshot, tmp_path / "full.onnx", templates=tmp_path / "template")
    np.testing.assert_allclose(scores_of(full), learner.predict(pictures).scores, atol=1e-4)

    shape = snapshot.head.weight.shape
    taught(name, np.flatnonzero(digits.train_labels == 7)[:5], learner=learner)
    snapshot = snapshot_of_learner(learner, None)
    assert (snapshot.head.weight.shape[1] < shape[1]) == (name == "ranpac")
    fast = export(snapshot, tmp_path / "fast.onnx", templates=tmp_path / "template")
    assert full.traced and not fast.traced
    assert scores_of(fast).shape == (20, 5)
    np.testing.assert_allclose(scores_of(fast), learner.predict(pictures).scores, atol=1e-4)
