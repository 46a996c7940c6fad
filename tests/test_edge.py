"""The method `edge`: its teacher against a slow loop, the settings that it brings, and what else goes past the paper."""

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from rival_parts import batch_of, observe, rival

from edge_hpcr.bench.run import Run, make_config
from edge_hpcr.commands.bench import configure
from edge_hpcr.common.errors import UserError
from edge_hpcr.learner import losses, methods
from edge_hpcr.learner.augment import LIGHT, SHIFT
from edge_hpcr.learner.learner import Learner, LearnerConfig
from edge_hpcr.learner.memory import MemoryConfig

pytestmark = pytest.mark.computes


def taught_batch():
    """Two incoming and three replayed samples, each with a view, and a teacher who doubles what it is shown."""
    batch = batch_of(incoming=[0, 1] * 2, replayed=[2, 3, 0] * 2, views=2)
    inputs = torch.randn(len(batch.labels), 4, generator=torch.Generator().manual_seed(1))
    return replace(batch, inputs=inputs, teach=lambda shown: 2 * shown)


def divergence(student: list[float], teacher: list[float]) -> float:
    """`sum_c t_c log(t_c / s_c)` of the softmax of both."""

    def shares(values: list[float]) -> list[float]:
        exponentials = [math.exp(value) for value in values]
        return [each / sum(exponentials) for each in exponentials]

    return sum(t * math.log(t / s) for t, s in zip(shares(teacher), shares(student), strict=True))


@pytest.mark.parametrize(
    ("taught", "rows"),
    [
        ("all", range(10)),
        ("views", [2, 3, 7, 8, 9]),
        ("replayed", range(4, 10)),
        ("replayed_views", [7, 8, 9]),
        ("none", []),
    ],
)
def test_the_teacher_answers_the_rows_that_it_is_asked_for(taught, rows):
    batch = taught_batch()
    terms = [divergence(batch.logits[row].tolist(), (2 * batch.inputs[row]).tolist()) for row in rows]
    plain = methods.create("pcr").loss(batch).item()
    loss = methods.create("edge", {"teacher": 3.0, "taught": taught}).loss(batch).item()
    assert loss == pytest.approx(plain + 3 * sum(terms) / 10, rel=1e-4)


def test_without_weight_or_average_its_loss_is_that_of_pcr():
    batch = taught_batch()
    plain = methods.create("pcr").loss(batch).item()
    assert methods.create("edge").loss(batch).item() == plain
    assert methods.create("edge", {"teacher": 3.0}).loss(replace(batch, teach=None)).item() == plain


@pytest.mark.parametrize("as_kept", [True, False])
def test_incoming_images_are_shown_as_the_memory_gives_them_back(as_kept, monkeypatch):
    """Else the network could tell new classes from old ones by what the codec did to the replayed images."""
    memory = MemoryConfig(samples=8, codec="webp", quality=30)
    learner = Learner(LearnerConfig(memory=memory, views=False, as_kept=as_kept), "cpu")
    images = np.random.default_rng(0).integers(0, 256, (8, 32, 32, 3), np.uint8)
    passed = []
    features = learner.network.features
    monkeypatch.setattr(
        learner.network, "features", lambda rows, groups: passed.append(rows) or features(rows, groups)
    )
    learner.observe(images, [0, 1] * 4)
    held = learner.memory.at(np.arange(8)).inputs
    assert torch.equal(passed[0], learner.to_device(held if as_kept else images))
    learner.rehearse()  # of what was encoded once, and not twice
    again = {image.numpy().tobytes() for image in passed[1]}
    assert again == {image.numpy().tobytes() for image in learner.to_device(held)}


def test_a_step_of_edge_holds_all_classes_alike(monkeypatch):
    memory = MemoryConfig(samples=60, draw="even")
    learner = rival("edge", memory=memory, views=False, plain=True, replay=14)
    observe(learner, [0, 1, 2] * 10)
    shown = []
    monkeypatch.setattr(learner.method, "after_step", lambda view, batch: shown.append(batch.labels))
    observe(learner, [0, 0, 0, 0])
    assert torch.bincount(shown[0]).tolist() == [6, 6, 6]


def test_pairs_of_samples_stay_out_of_it_however_many_there_are():
    batch = batch_of(incoming=[0, 1, 2, 3] * 8, replayed=[2, 3, 0] * 12)
    assert methods.create("edge").loss(batch).item() == losses.pcr(batch.logits, batch.labels).item()
    assert methods.create("hpcr", {"alpha": 0.0, "beta": 0.0, "schedule": "constant"}).loss(
        batch
    ).item() != pytest.approx(losses.pcr(batch.logits, batch.labels).item())


def test_a_benchmark_asks_its_averaged_weights(tmp_path, monkeypatch):
    predict, asked = Learner.predict, []

    def watched(learner, images, averaged=False):
        asked.append(averaged)
        return predict(learner, images, averaged)

    monkeypatch.setattr(Learner, "predict", watched)
    options = {"limit": 20, "learner_options": {"nf": 2}}
    result = Run(make_config("digits", "edge", **options), tmp_path).run()
    assert set(asked) == {True} and result["accuracy_matrix"] == result["ema_accuracy_matrix"]
    asked.clear()
    Run(make_config("digits", "er", **options), tmp_path).run()
    assert set(asked) == {False, True}


def test_it_keeps_nothing_of_a_sample_but_the_image_and_spends_a_step_on_distinct_samples():
    config = LearnerConfig.recommended("reduced_resnet18", method="edge")
    assert not config.plain and config.replay == 30 and config.augment == SHIFT and config.as_kept
    assert config.optimiser == "muon" and config.lr_decay == 1000
    method = methods.create("edge")
    assert not (method.stores_logits or method.stores_features)
    # A trunk's own settings suit whatever method learns behind it.
    assert LearnerConfig.recommended("efficientnet_lite0", method="edge").plain
    assert LearnerConfig.recommended("reduced_resnet18").plain


def test_the_preset_has_the_bytes_of_the_authors_buffer_and_leaves_to_others_what_they_ask_for():
    (edge,) = configure(["--preset", "edge/cifar10-200"])
    memory = edge.learner.memory
    assert edge.learner.method == "edge" and memory.bytes == 200 * 4 * (32 * 32 * 3 + 160 + 10)
    assert (memory.codec, memory.quality, memory.draw) == ("webp", 75, "even")
    (other,) = configure(
        [
            "--preset",
            "edge/cifar10-200",
            "--method",
            "er",
            "--codec",
            "jpeg",
            "--quality",
            "60",
            "--set",
            "augment=light",
        ]
    )
    assert (other.learner.method, other.learner.memory.codec, other.learner.memory.quality) == (
        "er",
        "jpeg",
        60,
    )
    assert (
        other.learner.memory.bytes == memory.bytes and other.learner.augment == LIGHT and other.learner.plain
    )
    (counted,) = configure(["--preset", "edge/cifar10-200", "--buffer", "50"])
    assert (counted.learner.memory.samples, counted.learner.memory.bytes) == (50, None)


def test_an_unknown_augmentation_is_refused_with_those_that_there_are():
    with pytest.raises(UserError, match="unknown augment 'strong': choose one of paper, medium, light"):
        configure(["--dataset", "digits", "--set", "augment=strong"])


def test_the_teacher_is_the_average_of_the_weights_and_has_no_gradient():
    learner = rival("edge", memory=MemoryConfig(samples=20), ema_decay=0.9)
    for seed in range(3):
        observe(learner, [0, 1, 2, 3], seed)
    asked = []
    loss = learner.method.loss

    def watched(batch):
        asked.append((batch.teach(batch.inputs), learner.average.network.eval()(batch.inputs)[0]))
        return loss(batch)

    learner.method.loss = watched
    observe(learner, [0, 1, 2, 3], 9)
    answers, expected = asked[0]
    assert torch.equal(answers, expected) and not answers.requires_grad


@pytest.mark.parametrize(
    ("wrong", "said"),
    [({"teacher": -1.0}, "teacher -1"), ({"taught": "some"}, "taught")],
)
def test_wrong_options_are_refused(wrong, said):
    with pytest.raises(UserError, match=said):
        methods.create("edge", wrong)


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


def test_a_learning_rate_that_falls_in_no_time_is_refused():
    with pytest.raises(UserError, match="lr_decay 0"):
        LearnerConfig(lr_decay=0)
