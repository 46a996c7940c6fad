"""The learner as its users meet it: observe, predict, classes that come and go, checkpoints that lose nothing."""

import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict
from functools import partial

import numpy as np
import pytest
import torch
from rival_parts import observe, rival

from edge_hpcr.common.errors import UserError
from edge_hpcr.learner import checkpoint
from edge_hpcr.learner.augment import AugmentConfig
from edge_hpcr.learner.learner import Learner, LearnerConfig, LossNotFinite
from edge_hpcr.learner.memory import MemoryConfig

pytestmark = pytest.mark.computes


def weights(learner: Learner) -> dict[str, np.ndarray]:
    """Everything that the learner's future depends on, as arrays."""
    everything = {f"live.{k}": v for k, v in learner.network.state_dict().items()}
    if learner.average is not None:
        everything |= {f"average.{k}": v for k, v in learner.average.network.state_dict().items()}
    everything |= {f"optimiser.{k}": v for k, v in learner.optimiser.state().items()}
    arrays = {name: tensor.clone().numpy() for name, tensor in everything.items()}
    memory, facts = learner.memory.state()
    held = memory | {"next_id": facts["next_id"], "threshold": facts["threshold"]}
    return arrays | {f"memory.{k}": np.array(v) for k, v in held.items()}


def assert_same(one: dict[str, np.ndarray], other: dict[str, np.ndarray]) -> None:
    assert one.keys() == other.keys()
    for name, value in one.items():
        np.testing.assert_array_equal(value, other[name], err_msg=name)


def test_the_memory_records_what_the_steps_own_forward_pass_said_of_the_plain_images(
    small_learner, digit_batches
):
    learner = small_learner(views=False)
    images, labels = digit_batches([0, 1], 1)[0]
    for class_id in (0, 1):
        learner.add_class(class_id)
    network_before = {k: v.clone() for k, v in learner.network.state_dict().items()}
    learner.observe(images, labels)
    kept = learner.memory.at(np.arange(len(learner.memory)))
    learner.network.load_state_dict(network_before)
    with torch.no_grad():
        expected = learner.network.train().features(learner.to_device(images))
        logits = learner.network.logits(expected).numpy()
    order = kept.ids  # the first batch's ids are its positions
    np.testing.assert_allclose(kept.logits, logits[order], atol=2e-2)  # 16 bits
    unit = expected.numpy() / np.linalg.norm(expected.numpy(), axis=1, keepdims=True)
    np.testing.assert_allclose(kept.features, unit[order], atol=2e-3)
    np.testing.assert_array_equal(kept.inputs, images[order])


@pytest.mark.slow
def test_dropping_a_class_forgets_it_everywhere_and_learning_goes_on(small_learner, digit_batches):
    learner = small_learner(optimiser="adam", lr=0.001)
    for images, labels in digit_batches([0, 1, 2], 8):
        learner.observe(images, labels)
    held = int(learner.memory.class_counts()[learner.column(1)])
    kept_proxy = learner.network.proxies[learner.column(2)].detach().clone()
    assert learner.drop_class(1) == held > 0
    assert 1 not in learner.class_ids
    assert torch.equal(learner.network.proxies[learner.column(2)], kept_proxy)
    assert learner.predict(digit_batches([0, 2], 1)[0][0]).scores.shape[1] == 2
    for images, labels in digit_batches([0, 2], 4):
        assert np.isfinite(learner.observe(images, labels).loss)
    with pytest.raises(UserError, match="unknown class 1"):
        learner.column(1)


@pytest.mark.slow
@pytest.mark.parametrize(
    "options",
    [
        pytest.param({}, id="the paper's settings"),
        pytest.param({"optimiser": "adam", "lr": 0.001}, id="an optimiser with a state of its own"),
        pytest.param({"memory": MemoryConfig(bytes=9_000, codec="webp")}, id="an encoded memory in bytes"),
    ],
)
def test_a_restored_learner_continues_bit_for_bit(small_learner, digit_batches, tmp_path, options):
    learner = small_learner(**options)
    for images, labels in digit_batches([0, 1], 7):
        learner.observe(images, labels)
    learner.save(tmp_path / "saved", {"position": 7})
    restored, notes = Learner.load(tmp_path / "saved", device="cpu")
    assert notes == {"position": 7}
    assert_same(weights(learner), weights(restored))
    # New classes included: their first proxies come out of the restored random numbers.
    for images, labels in [*digit_batches([0, 1], 2, start=7), *digit_batches([2, 3], 5)]:
        assert learner.observe(images, labels).loss == restored.observe(images, labels).loss
    assert_same(weights(learner), weights(restored))


def test_a_checkpoint_of_the_first_edition_still_loads(small_learner, digit_batches, tmp_path):
    learner = small_learner(optimiser="adam", lr=0.001)
    for images, labels in digit_batches([0, 1], 3):
        learner.observe(images, labels)
    learner.save(tmp_path / "saved")
    arrays, facts = checkpoint.read(tmp_path / "saved")
    facts["strides"] = {}  # as versions up to 0.2 wrote them
    for group, members in arrays.items():  # which kept scalars in one dimension
        arrays[group] = {name: np.atleast_1d(value) for name, value in members.items()}
    checkpoint.write(tmp_path / "saved", arrays, facts)
    restored, _ = Learner.load(tmp_path / "saved", device="cpu")
    assert_same(weights(learner), weights(restored))
    assert np.isfinite(restored.observe(*digit_batches([2], 1)[0]).loss)


@pytest.mark.slow
def test_the_average_spans_half_of_the_steps_since_the_newest_class_came(
    small_learner, digit_batches, tmp_path
):
    """Else it would hold a network that did not know the class, and the random start of its proxy."""
    learner = small_learner(ema_decay=0.99)
    for images, labels in [*digit_batches([0, 1], 18), *digit_batches([2], 2)]:
        learner.observe(images, labels)
    assert learner.average.ages == [20, 20, 2]
    learner.drop_class(0)
    learner.add_class(3)
    learner.average.decay = decay = 0.9
    names = ("proxies", "backbone.stem.weight")
    expected = {name: learner.average.network.get_parameter(name).detach().clone() for name in names}
    for age, (images, labels) in enumerate(digit_batches([1, 2, 3], 6)):
        if age == 3:
            learner.save(tmp_path / "half way")
            learner, _ = Learner.load(tmp_path / "half way", "cpu")
            learner.average.decay = decay
        learner.observe(images, labels)
        kept = min(decay, learner.step / (9 + learner.step), (1 + age) / (3 + age))
        for name in names:
            live = learner.network.get_parameter(name).detach()
            expected[name] = kept * expected[name] + (1 - kept) * live
    for name in names:
        torch.testing.assert_close(learner.average.network.get_parameter(name).detach(), expected[name])


def test_options_of_earlier_versions_are_read_under_their_former_names():
    values = asdict(LearnerConfig(encode_incoming=True, few_samples=40))
    values |= {"as_kept": values.pop("encode_incoming"), "strong_below": values.pop("few_samples")}
    config = LearnerConfig.from_dict(values | {"stored_views": 1})
    assert config.encode_incoming and config.few_samples == 40


def test_a_loss_that_is_not_finite_stops_and_keeps_the_last_good_state(small_learner, digit_batches):
    learner = small_learner()
    batches = digit_batches([0, 1], 4)
    for images, labels in batches[:2]:
        learner.observe(images, labels)
    with torch.no_grad():
        learner.network.backbone.stem_bn.weight.fill_(float("inf"))
    before, random_state = weights(learner), learner.rng.bit_generator.state
    with pytest.raises(LossNotFinite, match="at step 2"):
        learner.observe(*batches[2])
    assert_same(before, weights(learner))
    assert random_state == learner.rng.bit_generator.state
    assert learner.step == 2


def test_a_batch_that_the_memory_refuses_leaves_the_learner_as_it_was(small_learner, digits):
    # A picture of noise takes more as a PNG than the whole budget; a digit does not.
    learner = small_learner(method="er", memory=MemoryConfig(bytes=300, codec="png"))
    learner.observe(digits.train_images[:1], [0])
    before, random_state = weights(learner), learner.rng.bit_generator.state
    # Forty, so that some of them draw a small key.
    noise = np.random.default_rng(0).integers(0, 256, (40, 8, 8, 3), np.uint8)
    with pytest.raises(UserError, match="more than the whole memory budget"):
        learner.observe(noise, np.zeros(40, np.int64))
    assert_same(before, weights(learner))
    assert (learner.step, learner.rng.bit_generator.state) == (1, random_state)
    assert learner.observe(digits.train_images[1:2], [0]).step == 1


@pytest.mark.slow
def test_predictions_of_other_threads_neither_disturb_training_nor_see_half_a_step(
    small_learner, digit_batches, request
):
    # Python changes threads so often that a race is met within a few steps.
    request.addfinalizer(partial(sys.setswitchinterval, sys.getswitchinterval()))
    sys.setswitchinterval(1e-5)
    batches = [batch for pair in ([0, 1], [2, 3], [4, 5]) for batch in digit_batches(pair, 6)]
    alone = small_learner(memory=MemoryConfig(samples=60))
    for batch in batches:
        alone.observe(*batch)

    learner = small_learner(memory=MemoryConfig(samples=60))
    learner.observe(*batches[0])
    images, done = batches[0][0], threading.Event()
    modes: set[tuple[bool, bool]] = set()  # whether it trained, and whether batch-norm was in training mode
    for network in (learner.network, learner.average.network):
        network.backbone.stem_bn.register_forward_pre_hook(
            lambda layer, _: modes.add((threading.current_thread() is trainer, layer.training))
        )
    trainer = threading.current_thread()

    def ask(averaged: bool) -> None:
        while not done.is_set():
            answer = learner.predict(images, averaged)
            assert answer.scores.shape == (len(images), len(answer.class_ids))

    with ThreadPoolExecutor(4) as pool:
        asking = [pool.submit(ask, averaged) for averaged in (False, True, False, True)]
        try:
            for batch in batches[1:]:
                learner.observe(*batch)
        finally:
            done.set()
        for future in asking:
            future.result()
    assert modes == {(True, True), (False, False)}
    assert_same(weights(alone), weights(learner))


def test_while_the_memory_holds_few_samples_a_step_is_one_of_the_paper(small_learner, digit_batches):
    as_it_is = AugmentConfig(scale=(1.0, 1.0), ratio=(1.0, 1.0), flip=0.0, jitter=0.0, grey=0.0)
    learner = small_learner(
        plain=False, few_samples=40, replay=14, augment=as_it_is, memory=MemoryConfig(samples=60)
    )
    steps = []

    def look(view, batch):
        steps.append((batch.views, batch.distinct_samples))
        if batch.views == 2:  # none of the views is the image it was made of
            image, other = batch.inputs[batch.incoming].chunk(2)
            assert ((image - other).abs().amax((1, 2, 3)) > 0.01).all()

    learner.method.after_step = look
    for images, labels in digit_batches([0, 1], 5):
        learner.observe(images, labels)
        learner.rehearse()
    # 0, 10, 20, 30 and 40 samples are held before the five steps.
    assert steps == [(2, 10), (2, 10), *[(2, 20)] * 5, *[(1, 24)] * 3]


@pytest.mark.parametrize(
    ("images", "labels"),
    [
        (np.zeros((2, 3, 8, 8), np.uint8), [0, 1]),  # channels first
        (np.full((2, 8, 8, 3), np.nan, np.float32), [0, 1]),
        (np.zeros((0, 8, 8, 3), np.uint8), []),
        (np.zeros((2, 8, 8, 3), np.uint8), ["cat", "dog"]),
        (np.zeros((2, 8, 8, 3), np.uint8), [0, -1]),
    ],
)
def test_bad_batches_are_refused_and_change_nothing(small_learner, images, labels):
    learner = small_learner()
    before = weights(learner)
    with pytest.raises(UserError):
        learner.observe(images, labels)
    assert_same(before, weights(learner))
    assert learner.class_ids == []


@pytest.mark.slow
def test_rehearsing_learns_from_memory_and_stores_nothing(small_learner, digit_batches):
    learner = small_learner()
    assert learner.rehearse() is None, "nothing is held yet"
    for images, labels in digit_batches([0, 1], 4):
        learner.observe(images, labels)
    before = weights(learner)
    report = learner.rehearse()
    after = weights(learner)
    assert report is not None and report.replayed == 10
    assert not np.array_equal(before["live.proxies"], after["live.proxies"])
    held = [name for name in before if name.startswith("memory.")]
    assert_same({name: before[name] for name in held}, {name: after[name] for name in held})


def test_a_sample_in_memory_is_relabelled_even_into_a_new_class_and_forgotten(small_learner, digits):
    learner = small_learner()
    learner.observe(digits.train_images[:3], [0, 1, 1], np.array([5, 6, 7]))
    assert learner.relabel(6, 9) and not learner.relabel(99, 1)
    assert learner.class_ids == [0, 1, 9]
    (slot,) = np.flatnonzero(learner.memory.ids() == 6)
    assert learner.memory.at(slot).labels.tolist() == [2]
    assert learner.forget(6) and not learner.forget(6)
    assert sorted(learner.memory.ids()) == [5, 7]


# What the method `edge` adds to the paper ------------------------------------------------------------------------------


@pytest.mark.parametrize("encode_incoming", [True, False])
def test_incoming_images_are_shown_as_the_memory_gives_them_back(encode_incoming, monkeypatch):
    """Else the network could tell new classes from old ones by what the codec did to the replayed images."""
    memory = MemoryConfig(samples=8, codec="webp", quality=30)
    learner = Learner(LearnerConfig(memory=memory, views=False, encode_incoming=encode_incoming), "cpu")
    images = np.random.default_rng(0).integers(0, 256, (8, 32, 32, 3), np.uint8)
    passed = []
    features = learner.network.features
    monkeypatch.setattr(
        learner.network, "features", lambda rows, groups: passed.append(rows) or features(rows, groups)
    )
    learner.observe(images, [0, 1] * 4)
    held = learner.memory.at(np.arange(8)).inputs
    assert torch.equal(passed[0], learner.to_device(held if encode_incoming else images))
    learner.rehearse()  # of what was encoded once, and not twice
    again = {image.numpy().tobytes() for image in passed[1]}
    assert again == {image.numpy().tobytes() for image in learner.to_device(held)}


def test_the_learning_rate_falls_with_the_root_of_the_steps_but_not_to_nothing():
    learner = rival("er", memory=MemoryConfig(samples=20), lr_decay=4, lr=0.1)
    for seed in range(12):
        observe(learner, [0, 1], seed)
    before = learner.network.proxies.detach().clone()
    observe(learner, [0, 1], 12)
    moved = learner.network.proxies.detach() - before
    expected = -0.1 * (1 + 12 / 4) ** -0.5 * learner.network.proxies.grad
    torch.testing.assert_close(moved, expected, rtol=1e-4, atol=1e-6)
    learner.step = 10**6
    assert learner._rate() == 0.2
