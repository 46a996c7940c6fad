"""A workspace on a pre-trained backbone: one pass of the trunk for each picture, latents in the memory, a trunk that is missing."""

import threading

import cv2
import numpy as np
import pytest
from browser_parts import wait_for
from workspace_parts import FROM_SCRATCH

from app.studio import Studio
from app.tabs import memory as memory_tab
from app.tabs.accuracy import looks
from edge_hpcr.commands import cli
from edge_hpcr.common.errors import UserError
from edge_hpcr.learner.backbones import efficientnet_lite0
from edge_hpcr.learner.codec import LATENT
from edge_hpcr.live import encoder
from edge_hpcr.live.feeder import Feeder
from edge_hpcr.live.live_learner import STRONG_BELOW, LiveLearner, learner_config
from edge_hpcr.live.status import gather
from edge_hpcr.stream import Frame
from edge_hpcr.stream.gate import perceptual_hash
from edge_hpcr.workspace.folder import Workspace
from edge_hpcr.workspace.settings import Settings

PATIENCE = 60.0
SIZE = 32  # the smallest that the trunk takes


def photo(number: int, side: int = 640) -> np.ndarray:
    """Two kinds of pictures, larger than what is stored of them, no two alike."""
    rng = np.random.default_rng(number)
    coarse = rng.integers(0, 256, (3 + 5 * (number % 2), 4, 3), np.uint8)
    return cv2.resize(coarse, (side, side * 3 // 4), interpolation=cv2.INTER_CUBIC)


def count_passes(live: LiveLearner) -> list[int]:
    """How many pictures the trunk sees each time it is asked, from now on."""
    passes: list[int] = []
    trunk = live.learner.network.backbone.trunk
    assert trunk is not None
    trunk.on(live.device).register_forward_hook(lambda module, images, latents: passes.append(len(latents)))
    return passes


@pytest.fixture
def workspace(tmp_path):
    with Workspace.open(tmp_path / "w") as workspace:
        workspace.change_settings(
            image_size=SIZE, idle_steps=3, idle_share=1.0, threads=1, gate_per_second=1000.0, gate_distance=0
        )
        yield workspace


@pytest.fixture
def live(workspace):
    live = LiveLearner(workspace)
    live.start()
    yield live
    live.stop()


def learned(live: LiveLearner) -> None:
    live.notify()
    assert live.wait_until_caught_up(PATIENCE) and not live.failed, live.problems


def test_a_new_workspace_has_the_pre_trained_backbone_and_the_papers_is_one_setting_away():
    config = learner_config(Settings())
    assert (config.backbone, config.memory.codec) == ("efficientnet_lite0", LATENT)
    assert config.height == efficientnet_lite0.EfficientNetLite0.default_size
    papers = learner_config(Settings(**FROM_SCRATCH, method="hpcr"))
    assert (papers.backbone, papers.height, papers.memory.codec) == ("reduced_resnet18", 32, "raw")
    scratch = learner_config(Settings(**FROM_SCRATCH))
    assert (scratch.method, scratch.memory.codec) == ("edge", "webp")
    # Only edge leaves the paper's strong views for lighter ones, when it holds samples enough.
    assert [each.strong_below for each in (config, papers, scratch)] == [0, 0, STRONG_BELOW]
    assert [each.memory.keep for each in (config, papers, scratch)] == ["reservoir", "reservoir", "balanced"]
    with pytest.raises(
        UserError, match="codec webp: with the backbone efficientnet_lite0 the memory keeps latents"
    ):
        learner_config(Settings(codec="webp"))
    with pytest.raises(UserError, match="image_size 16: with the backbone efficientnet_lite0 give 32 to 512"):
        learner_config(Settings(image_size=16))


@pytest.mark.slow
def test_the_trunk_sees_a_frame_once_from_the_camera_to_the_self_test(workspace, live):
    workspace.change_settings(held_out_share=0.5)
    passes, feeder = count_passes(live), Feeder(workspace, live)
    classes = [workspace.journal.create_class(name) for name in ("bolt", "nut")]
    for number in range(8):
        seen = feeder.take(Frame(photo(number), "test", None, None, float(number)))
        assert seen.verdict == "queue"
        if number < 6:
            workspace.journal.label([seen.sample_id], classes[number % 2])
            learned(live)
    live.call(live.self_test.test).result(PATIENCE)
    assert live.self_test.held_out.samples > 0 and len(live.learner.memory) > 0
    live.call(live.self_test._refresh_queue).result(PATIENCE)
    views = live.learner.memory.seen * (live.learner.config.stored_views - 1)  # made of what was learned
    assert sum(passes) == 8 + views, "one pass for each frame, whatever was asked about it"


@pytest.mark.slow
def test_a_stored_picture_that_nobody_has_seen_since_the_start_is_passed_once(workspace, live):
    passes = count_passes(live)
    sample = workspace.take(photo(0), "test")
    workspace.journal.label([sample], workspace.journal.create_class("bolt"))
    learned(live)
    live.inputs_of(sample)
    live.answer([workspace.image(sample)])
    assert sum(passes) == live.learner.config.stored_views
    assert live.learner.memory.ids().tolist() == [sample]


@pytest.mark.slow
def test_an_answer_does_not_wait_for_a_step_nor_a_step_for_the_trunk(workspace, live):
    held, answered = threading.Event(), threading.Event()

    def ask() -> None:
        live.answer([photo(1)])
        answered.set()

    def step() -> None:
        with live.learner._lock:  # as any step has it
            held.set()
            assert answered.wait(PATIENCE)

    learning = threading.Thread(target=step)
    learning.start()
    assert held.wait(PATIENCE)
    asking = threading.Thread(target=ask)
    asking.start()
    learning.join(PATIENCE)
    asking.join(PATIENCE)
    assert answered.is_set()


def test_latents_that_are_kept_stay_within_their_bytes(live, monkeypatch):
    kept = live.predictor.encoder
    images = np.stack([live.prepare(photo(number)) for number in range(4)])
    one = kept.encode(images[:1]).nbytes
    monkeypatch.setattr(encoder, "KEPT_BYTES", 2 * one)
    latents = kept.encode(images)
    passes = count_passes(live)
    assert np.array_equal(kept.encode(images[2:]), latents[2:]) and not passes
    np.testing.assert_allclose(kept.encode(images[:1]), latents[:1], rtol=1e-3, atol=1e-3)
    assert passes == [1], "the oldest had left"


@pytest.mark.slow
def test_a_second_picture_of_a_class_is_answered_after_the_first(workspace, live):
    for number, name in enumerate(("bolt", "nut")):
        workspace.journal.label([workspace.take(photo(number), "test")], workspace.journal.create_class(name))
        learned(live)
    near = [cv2.GaussianBlur(photo(number), (5, 5), 0) for number in (0, 1)]
    names = {row.id: row.name for row in workspace.journal.classes()}
    assert [names[answer.best[0]] for answer in live.answer(near)] == ["bolt", "nut"]


@pytest.mark.slow
def test_the_memory_tab_speaks_of_latents_and_takes_pictures_from_the_files(workspace):
    studio = Studio(workspace)
    studio.live.start()
    try:
        ids = [workspace.take(photo(number), "test") for number in range(3)]
        workspace.journal.label(ids, workspace.journal.create_class("bolt"))
        learned(studio.live)
        studio.between_steps(lambda: studio.live._write_status(force=True))
        facts = studio.live.status()["memory"]
        assert "latents" in memory_tab.budget_bar(facts) and "times its latent" in memory_tab.overhead_text(
            facts
        )
        dropped, *_ = studio.live.learner.memory.ids().tolist()
        workspace.forget_images([dropped])
        text = memory_tab.thumbnails(studio, memory_tab.look_into(studio, None, 24), looks(studio))
        assert f"/edge/sample/{dropped}" not in text and "its picture was dropped" in text
        actions = memory_tab.Actions(studio)
        assert actions.current() == ["8 MB", LATENT] and not actions.choice().interactive
        costs = memory_tab.measure(studio)
        assert costs.row_bytes(LATENT) == studio.live.learner.memory.row_bytes() and not costs.guessed
        assert "raw" not in memory_tab.preview(memory_tab.Plan(costs, 100_000, LATENT))
        assert "The memory is now 1.00 MB: it holds" in memory_tab.apply(studio, 1_000_000, LATENT)
        assert (workspace.settings.memory_bytes, workspace.settings.codec) == (1_000_000, "auto")
        with pytest.raises(UserError, match="the memory keeps latents"):
            memory_tab.apply(studio, 1_000_000, "webp")
    finally:
        studio.stop()


@pytest.mark.slow
def test_the_page_names_labels_of_one_picture_that_contradict_each_other(workspace):
    workspace.change_settings(held_out_share=0.0)
    studio = Studio(workspace)
    studio.live.start()
    try:
        for name in ("bolt", "screw"):  # the same two pictures, by two people
            pictures = [photo(number) for number in (0, 1)]
            ids = [workspace.take(each, "test", hash64=perceptual_hash(each)) for each in pictures]
            workspace.journal.label(ids, workspace.journal.create_class(name))
        learned(studio.live)
        wait_for(lambda: studio.state(fresh=True)["verdict"]["level"] == "contradictory", "it", PATIENCE)
        assert studio.verdict().sentence == (
            "Contradictory labels: 4 pictures that look the same are called bolt and screw. Mend them on Review."
        )
    finally:
        studio.stop()


# A trunk that is not here ---------------------------------------------------------------------------------------------


@pytest.fixture
def taught(tmp_path):
    """A workspace that has learned a class with the trunk, and is closed."""
    with Workspace.open(tmp_path / "w") as workspace:
        workspace.change_settings(image_size=SIZE, idle_steps=0, threads=1, held_out_share=0.0)
        live = LiveLearner(workspace)
        live.start()
        workspace.journal.label([workspace.take(photo(0), "test")], workspace.journal.create_class("bolt"))
        learned(live)
        live.stop()
    return tmp_path / "w"


def take_weights_away(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(efficientnet_lite0, "PACKAGE", "efficientnet-lite0-that-nobody-has")
    efficientnet_lite0._levels_trunk.cache_clear()  # as in a new process


@pytest.fixture
def missing(monkeypatch):
    take_weights_away(monkeypatch)


@pytest.mark.slow
def test_without_its_trunk_a_workspace_opens_takes_labels_and_says_why_it_learns_nothing(
    taught, missing, capsys
):
    with Workspace.open(taught) as workspace:
        studio = Studio(workspace)
        studio.live.start()
        studio.feeder.start()
        try:
            assert studio.live.failed and studio.live.untaught is False
            why = "cannot learn or answer here: the backbone efficientnet_lite0 needs the weights of the package"
            assert any(why in problem for problem in studio.state(fresh=True)["problems"])
            assert studio.live.answer([photo(0)])[0].top == ()
            sample = workspace.take(photo(2), "test")
            studio.label_samples([sample], workspace.journal.class_id("bolt"))
            assert workspace.journal.counts().labels == 2
            assert "pip install" in memory_tab.shown(studio).now()[1][0]
            with pytest.raises(UserError, match="pip install"):
                studio.change_settings(method="er")
        finally:
            studio.stop()
        steps = [folder.name for folder in workspace.layout.checkpoint_folders()]
    told = gather(taught)
    assert (told["doing"], told["labels"], told["step"]) == ("failed", 2, 1) and why in told["problems"][-1]
    assert cli.main(["learn", "--workspace", str(taught), "--source", "workbench"]) == 2
    (line,) = capsys.readouterr().err.strip().splitlines()
    assert why in line
    assert steps == [
        folder.name for folder in Workspace.open(taught, learning=False).layout.checkpoint_folders()
    ]


@pytest.mark.slow
def test_once_the_trunk_is_there_again_what_was_labelled_meanwhile_is_learned(taught, monkeypatch):
    with monkeypatch.context() as gone, Workspace.open(taught) as workspace:
        take_weights_away(gone)
        live = LiveLearner(workspace)
        live.start()
        sample = workspace.take(photo(1), "test")
        workspace.journal.label([sample], workspace.journal.create_class("nut"))
        live.stop()
    with Workspace.open(taught) as workspace:
        live = LiveLearner(workspace)
        live.start()
        learned(live)
        live.stop()
        assert sample in live.learner.memory.ids() and len(live.learner.class_ids) == 2


def test_a_new_workspace_without_its_trunk_is_refused(tmp_path, missing, capsys):
    assert cli.main(["learn", "--workspace", str(tmp_path / "w"), "--source", "workbench"]) == 2
    (line,) = capsys.readouterr().err.strip().splitlines()
    assert "pip install efficientnet-lite0-that-nobody-has" in line


def test_a_backbone_that_does_not_exist_is_refused_with_names_that_do(tmp_path, capsys):
    command = [
        "learn",
        "--workspace",
        str(tmp_path / "w"),
        "--source",
        "workbench",
        "--set",
        "backbone=magic",
    ]
    assert cli.main(command) == 2
    (line,) = capsys.readouterr().err.strip().splitlines()
    assert "unknown backbone 'magic': choose one of efficientnet_lite0, " in line and "or timm:NAME" in line


@pytest.mark.slow
def test_a_wrong_label_is_pointed_out_before_anything_is_rehearsed_also_among_those_for_measuring(
    workspace, live, monkeypatch
):
    """What the trunk sees depends on no label: neither on a wrong one that was learned, nor on a fresh right one."""
    workspace.change_settings(idle_share=0.0)
    latents: dict[int, np.ndarray] = {}
    monkeypatch.setattr(live.predictor.encoder, "encode_sample", lambda sample_id, image: latents[sample_id])
    width = live.learner.memory.input_shape[-1]
    classes = [workspace.journal.create_class(name) for name in ("bolt", "nut")]
    rng = np.random.default_rng(0)

    def take(kind: int) -> int:
        sample_id = workspace.take(photo(len(latents)), "test")
        latents[sample_id] = (np.eye(2, width)[kind] + rng.normal(size=width) * 0.01)[None].astype(np.float32)
        return sample_id

    for kind in (0, 1, 0, 1, 0, 1, 0, 1):
        workspace.journal.label([take(kind)], classes[kind])
    wrong = take(0)
    workspace.journal.label([wrong], classes[1])
    workspace.journal.held_out_share = 0.5
    measured = take(1)
    (move,) = workspace.journal.label([measured], classes[0]).moves
    assert move.held_out
    learned(live)
    wait_for(lambda: len(live.self_test.suspicions) > 1, "the suspicions", PATIENCE)
    found = {each.sample_id: each.suggested for each in live.self_test.suspicions}
    assert found == {wrong: classes[0], measured: classes[1]}
