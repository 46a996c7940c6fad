"""The closed-form methods: equal to what scikit-learn computes from all samples at once, in any order, and reversible."""

from pathlib import Path

import numpy as np
import pytest
import torch
from sklearn.discriminant_analysis import LinearDiscriminantAnalysis
from sklearn.linear_model import Ridge

from edge_hpcr.common.errors import UserError
from edge_hpcr.learner.learner import Learner, LossNotFinite
from edge_hpcr.learner.memory import MemoryConfig
from edge_hpcr.learner.methods import ranpac, slda
from edge_hpcr.learner.network import Classifier
from export.publish.republish import load_template, republish, save_template
from export.publish.running import RunningModel
from export.publish.snapshot import snapshot_of_learner
from export.publish.to_onnx import Exported, export_full

pytestmark = pytest.mark.computes

in_a_budget = pytest.mark.parametrize("name", ["slda", "ranpac"])
every_one = pytest.mark.parametrize("name", ["ncm", "slda", "ranpac"])
TAU = 0.09


@pytest.fixture
def taught(small_learner, digits):
    """A function that teaches a learner the digits of these places, in batches of `at_once`."""

    def teach(name: str, places, at_once: int = 7, learner: Learner | None = None, **options) -> Learner:
        if name == "ranpac":
            options = {"method_options": {"size": 50}} | options
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


def directions(learner: Learner, images: np.ndarray) -> np.ndarray:
    with torch.no_grad():
        features = learner.network.eval().features(learner.to_device(images)).double().numpy()
    return features / np.linalg.norm(features, axis=1, keepdims=True)


def scores(learner: Learner, images: np.ndarray, class_ids: list[int] | None = None) -> np.ndarray:
    """Before the softmax; columns in the order of `class_ids`."""
    network = learner.network.eval()
    with torch.no_grad():
        classify = learner.method.classifier(learner.view, network)
        found = classify(network.features(learner.to_device(images))).double().numpy()
    return found[:, [learner.column(class_id) for class_id in class_ids or learner.class_ids]]


# Against a reference --------------------------------------------------------------------------------------------------


def test_ncm_is_the_cosine_with_the_mean_direction_over_tau(taught, digits, places) -> None:
    learner, tests = taught("ncm", places), digits.test_images[:30]
    known, labels = directions(learner, digits.train_images[places]), digits.train_labels[places]
    means = np.stack([known[labels == class_id].mean(0) for class_id in learner.class_ids])
    expected = directions(learner, tests) @ (means / np.linalg.norm(means, axis=1, keepdims=True)).T / TAU
    np.testing.assert_allclose(scores(learner, tests), expected, atol=1e-4)


@pytest.mark.parametrize(("shrinkage", "budget"), [(1e-2, None), (0.3, None), (1.0, None), (0.3, 3_000)])
def test_slda_is_scikit_learns_discriminant_analysis_of_all_samples_at_once(
    taught, digits, places, shrinkage: float, budget: int | None
) -> None:
    memory = {} if budget is None else {"memory": MemoryConfig(bytes=budget)}
    learner = taught("slda", places, method_options={"shrinkage": shrinkage}, **memory)
    size = len(learner.method.scatter)  # of the features that the budget holds
    known, labels = directions(learner, digits.train_images[places])[:, :size], digits.train_labels[places]
    classes = sorted(learner.class_ids)
    reference = LinearDiscriminantAnalysis(solver="lsqr", shrinkage=shrinkage).fit(known, labels)
    # scikit-learn's scale is that of Gaussian log-odds; ours is the mean variance times tau, sharper with more labels.
    variance = np.mean((known - reference.means_[np.searchsorted(classes, labels)]) ** 2)
    sharpness = variance * np.sqrt(10) / (TAU * slda.BEST_TEMPERATURE)
    tests = digits.test_images[:30]
    likelihoods = reference.decision_function(directions(learner, tests)[:, :size]) - np.log(
        reference.priors_
    )
    expected = likelihoods * sharpness
    found = scores(learner, tests, classes)
    np.testing.assert_allclose(found, expected, atol=1e-3 * np.abs(expected).max())


def test_slda_shrinks_by_the_numbers_of_features_and_samples(taught, places) -> None:
    learner = taught("slda", places)
    size = learner.network.feature_size
    fixed = taught("slda", places, method_options={"shrinkage": size / (size + 40)})
    by_itself, as_told = (each.method.solve(learner.network).weight for each in (learner, fixed))
    assert torch.equal(by_itself, as_told)


@pytest.mark.parametrize("ridge", [0.03, 1.0])
def test_ranpac_is_scikit_learns_ridge_regression_on_random_features(
    taught, digits, places, ridge: float
) -> None:
    learner = taught("ranpac", places, method_options={"size": 50, "ridge": ridge})
    projection = learner.method.lift.projection.double().numpy()
    assert projection.shape == (50, learner.network.feature_size) and set(np.unique(projection)) == {-1, 1}
    known = np.maximum(directions(learner, digits.train_images[places]) @ projection.T, 0)
    wanted = (digits.train_labels[places][:, None] == learner.class_ids).astype(float)
    penalty = ridge * 50 / (50 + 40) * (known**2).sum(1).mean()
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
def test_one_class_and_one_label_are_enough_to_answer(taught, digits, places, name: str) -> None:
    learner = taught(name, places[:1])
    assert learner.predict(digits.test_images[:2]).scores.tolist() == [[1.0], [1.0]]
    other = next(place for place in places if digits.train_labels[place] != digits.train_labels[places[0]])
    both = taught(name, [other], learner=learner)
    pictures = digits.train_images[[places[0], other]]
    assert both.predict(pictures).best.tolist() == digits.train_labels[[places[0], other]].tolist()


@every_one
def test_a_class_without_samples_is_no_answer(taught, digits, places, name: str) -> None:
    learner = taught(name, places)
    answers = learner.predict(digits.train_images[places]).best
    learner.add_class(77)
    again = learner.predict(digits.train_images[places])
    assert 77 in again.class_ids and again.best.tolist() == answers.tolist()


@every_one
def test_a_class_leaves_with_its_column_and_the_others_answer_as_before(
    taught, digits, places, name: str
) -> None:
    learner, pictures = taught(name, places), digits.test_images[:30]
    kept = [class_id for class_id in learner.class_ids if class_id != 4]
    before = scores(learner, pictures, kept)
    learner.drop_class(4)
    assert learner.predict(pictures).class_ids.tolist() == kept
    # slda's covariance and ranpac's G keep what the class's samples said of the features; slda is as sharp as it has
    # labels a class.
    found = scores(learner, pictures)
    np.testing.assert_allclose(found / np.abs(found).max(), before / np.abs(before).max(), atol=1e-5)
    assert len(learner.method.counts) == 3


@every_one
def test_a_sample_that_is_taken_out_was_never_there(taught, digits, places, name: str) -> None:
    learner, expected = taught(name, places), taught(name, places[:33])
    assert learner.unlearn(digits.train_images[places[33:]], digits.train_labels[places[33:]])
    pictures = digits.test_images[:30]
    found, wanted = scores(learner, pictures), scores(expected, pictures)
    np.testing.assert_allclose(found, wanted, atol=1e-3 * np.abs(wanted).max())
    assert torch.equal(learner.method.counts, expected.method.counts)


@every_one
def test_more_samples_than_a_class_has_are_not_taken_out(taught, digits, places, name: str) -> None:
    learner = taught(name, places[:1])
    before = {key: tensor.clone() for key, tensor in learner.method.state().items()}
    again = places[[0, 0]]
    with pytest.raises(UserError, match="fewer samples than are to be taken out"):
        learner.unlearn(digits.train_images[again], digits.train_labels[again])
    assert all(torch.equal(tensor, before[key]) for key, tensor in learner.method.state().items())


def test_a_method_that_learns_by_gradients_cannot_unlearn(small_learner, digits) -> None:
    learner = small_learner(method="er")
    learner.observe(digits.train_images[:2], digits.train_labels[:2])
    assert not learner.unlearn(digits.train_images[:1], digits.train_labels[:1])


# What stays as it is --------------------------------------------------------------------------------------------------


@every_one
def test_the_network_stays_and_the_proxies_are_the_class_means(taught, digits, places, name: str) -> None:
    learner = taught(name, [])
    before = {key: tensor.clone() for key, tensor in learner.network.state_dict().items() if key != "proxies"}
    taught(name, places, learner=learner)
    assert all(torch.equal(tensor, learner.network.state_dict()[key]) for key, tensor in before.items())
    known, labels = directions(learner, digits.train_images[places]), digits.train_labels[places]
    means = np.stack([known[labels == class_id].mean(0) for class_id in learner.class_ids])
    for network in (learner.network, learner.average.network):
        proxies = network.proxies.detach().numpy()
        np.testing.assert_allclose(proxies, means / np.linalg.norm(means, axis=1, keepdims=True), atol=1e-5)
    averaged = learner.predict(digits.test_images[:9], averaged=True)
    assert np.array_equal(averaged.scores, learner.predict(digits.test_images[:9]).scores)


@every_one
def test_nothing_is_rehearsed_and_no_sample_is_kept(taught, places, name: str) -> None:
    learner = taught(name, places)
    assert learner.rehearse() is None and len(learner.memory) == 0


@every_one
def test_features_that_are_not_finite_are_refused_before_they_spoil_the_sums(
    taught, digits, places, name: str
) -> None:
    learner = taught(name, places)
    before = {key: tensor.clone() for key, tensor in learner.method.state().items()}
    with torch.no_grad():
        learner.network.backbone.stem.weight.fill_(float("nan"))
    with pytest.raises(LossNotFinite):
        learner.observe(digits.train_images[:2], [1, 4])
    assert all(torch.equal(tensor, before[key]) for key, tensor in learner.method.state().items())


@every_one
def test_a_restored_learner_answers_and_goes_on_bit_for_bit(
    taught, digits, places, name: str, tmp_path: Path
) -> None:
    learner = taught(name, places[:30])
    learner.save(tmp_path / "checkpoint")
    restored, _ = Learner.load(tmp_path / "checkpoint", device="cpu")
    for each in (learner, restored):
        taught(name, places[30:], learner=each)
    pictures = digits.test_images[:30]
    assert np.array_equal(restored.predict(pictures).scores, learner.predict(pictures).scores)


# Bytes ----------------------------------------------------------------------------------------------------------------


@every_one
def test_the_bytes_are_those_of_the_statistics(taught, places, name: str) -> None:
    learner = taught(name, places)
    size = learner.network.feature_size
    own = {"ncm": 0, "slda": 4 * size**2 + 8, "ranpac": 4 * 50**2 + 4 * 50 * 4 + 8}[name]
    counted = learner.byte_breakdown()
    assert counted["method"] == counted["total"] == 4 * (8 + 4 * size) + own


def test_ranpac_takes_as_many_random_features_as_the_budget_holds(taught, places) -> None:
    learner = taught("ranpac", places, method_options={}, memory=MemoryConfig(bytes=100_000))
    assert 99_000 < learner.byte_breakdown()["total"] <= 100_000
    assert len(taught("ranpac", [], method_options={}).method.gram) == ranpac.WITHOUT_BUDGET


def test_slda_takes_as_many_features_as_the_budget_holds(taught, places) -> None:
    learner = taught("slda", places, memory=MemoryConfig(bytes=3_000))
    size = len(learner.method.scatter)
    assert 1 < size < learner.network.feature_size
    assert 3_000 - 4 * (2 * size + 1) < learner.byte_breakdown()["total"] <= 3_000


@in_a_budget
def test_a_method_in_a_smaller_budget_is_what_it_would_have_been_from_the_start(
    taught, digits, places, name: str
) -> None:
    larger, smaller = (
        MemoryConfig(bytes=bytes) for bytes in {"slda": (4_000, 3_000), "ranpac": (100_000, 40_000)}[name]
    )
    learner = taught(name, places[:30], method_options={}, memory=larger)
    learner.resize_memory(smaller)
    taught(name, places[30:], learner=learner)
    expected = taught(name, places, method_options={}, memory=smaller)
    assert learner.byte_breakdown() == expected.byte_breakdown()
    pictures = digits.test_images[:30]
    wanted = scores(expected, pictures)
    np.testing.assert_allclose(scores(learner, pictures), wanted, atol=1e-4 * np.abs(wanted).max())


@in_a_budget
def test_a_budget_that_the_classes_outgrow_is_refused(taught, digits, places, name: str) -> None:
    learner = taught(name, places[:1], method_options={}, memory=MemoryConfig(bytes=300))
    with pytest.raises(UserError, match=rf"300 B is too small for {name} with 4 classes.*raise the budget"):
        taught(name, places, 40, learner)
    assert learner.method.counts.tolist() == [1, 0, 0, 0]


@pytest.mark.parametrize(
    ("config", "options", "said"),
    [
        (slda.Config, {"shrinkage": 1.5}, "shrinkage 1.5"),
        (ranpac.Config, {"size": -1}, "size -1"),
        (ranpac.Config, {"ridge": 0.0}, "ridge"),
    ],
)
def test_an_impossible_option_is_refused(config, options, said: str) -> None:
    with pytest.raises(UserError, match=said):
        config(**options)


# Exported -----------------------------------------------------------------------------------------------------


@every_one
def test_a_classifier_keeps_the_columns_that_are_asked_for(taught, digits, places, name: str) -> None:
    learner = taught(name, places)
    classify = learner.method.classifier(learner.view, learner.network)
    assert isinstance(classify, Classifier)
    features = torch.from_numpy(directions(learner, digits.test_images[:9])).float()
    expected = classify(features)[:, [3, 0]]
    classify.keep([3, 0])
    torch.testing.assert_close(classify(features), expected)


@pytest.mark.slow
@in_a_budget  # ncm classifies by proxies, as the methods of other tests do
def test_an_exported_model_answers_as_the_learner_also_when_republished_with_a_new_class(
    taught, digits, places, name: str, tmp_path: Path
) -> None:
    # ranpac in a budget has fewer random features with every class: the template takes other shapes.
    options = {"method_options": {}, "memory": MemoryConfig(bytes=19_900)} if name == "ranpac" else {}
    learner = taught(name, places, **options)
    pictures = digits.test_images[:20]

    def scores_of(exported: Exported) -> np.ndarray:
        return RunningModel(exported.model.SerializeToString(), name)(pictures).scores

    snapshot = snapshot_of_learner(learner, None)
    full = export_full(snapshot, tmp_path / "full.onnx")
    np.testing.assert_allclose(scores_of(full), learner.predict(pictures).scores, atol=1e-4)
    assert save_template(tmp_path / "template", full.model, snapshot)

    shape = snapshot.head.weight.shape
    taught(name, np.flatnonzero(digits.train_labels == 7)[:5], learner=learner)
    snapshot = snapshot_of_learner(learner, None)
    assert (snapshot.head.weight.shape[1] < shape[1]) == (name == "ranpac")
    template = load_template(tmp_path / "template", snapshot)
    assert template is not None
    fast = republish(snapshot, template, tmp_path / "fast.onnx")
    assert scores_of(fast).shape == (20, 5)
    np.testing.assert_allclose(scores_of(fast), learner.predict(pictures).scores, atol=1e-4)
