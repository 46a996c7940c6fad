"""A workspace on a pre-trained backbone: one pass of the trunk for each picture, latents in the memory, and a trunk that is missing."""

import shutil

import numpy as np
import onnx
import pytest
import torch
from live_parts import PATIENCE, learning, photo
from workspace_parts import FROM_SCRATCH

from edge_hpcr.commands import cli
from edge_hpcr.common.errors import UserError
from edge_hpcr.learner import trunk_session
from edge_hpcr.learner.backbones import Trunk, efficientnet_lite0
from edge_hpcr.learner.codec import LATENT
from edge_hpcr.learner.trunk_session import TrunkSession, fastest
from edge_hpcr.live import latents, predictor
from edge_hpcr.live.accuracy import held_out_ids
from edge_hpcr.live.feeder import Feeder
from edge_hpcr.live.latents import LatentFile
from edge_hpcr.live.live_learner import FEW_SAMPLES, LiveLearner, learner_config
from edge_hpcr.stream import Frame
from edge_hpcr.workspace.selection import DRAWN
from edge_hpcr.workspace.settings import Settings
from edge_hpcr.workspace.workspace import Workspace

SIZE = 32  # the smallest that the trunk takes


def count_passes(encoder: predictor.Encoder) -> list[int]:
    """How many pictures the trunk sees each time it is asked, from now on."""
    passes: list[int] = []
    trunk = encoder._trunk

    def counted(images):
        passes.append(len(images))
        return trunk(images)

    encoder._trunk = counted
    return passes


def small_trunk() -> Trunk:
    torch.manual_seed(0)
    layers = (
        torch.nn.Conv2d(3, 4, 3, stride=2),
        torch.nn.ReLU(),
        torch.nn.AdaptiveAvgPool2d(2),
        torch.nn.Flatten(),
    )
    return Trunk(lambda: torch.nn.Sequential(*layers), (16,), "0" * 64, 0)


@pytest.fixture
def workspace(tmp_path):
    with Workspace.open(tmp_path / "w") as workspace:
        workspace.change_settings(
            image_size=SIZE, idle_steps=3, idle_share=1.0, threads=1, gate_per_second=1000.0, gate_distance=0
        )
        yield workspace


@pytest.fixture
def live(workspace):
    with learning(workspace) as live:
        yield live


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
    assert [each.few_samples for each in (config, papers, scratch)] == [0, 0, FEW_SAMPLES]
    assert [each.memory.keep for each in (config, papers, scratch)] == ["reservoir", "reservoir", "balanced"]
    with pytest.raises(
        UserError, match="codec webp: with the backbone efficientnet_lite0 the memory keeps latents"
    ):
        learner_config(Settings(codec="webp"))


@pytest.mark.slow
def test_the_trunk_sees_a_frame_once_from_the_camera_to_the_self_test(workspace, live, monkeypatch):
    workspace.change_settings(held_out_share=0.5)
    passes, feeder = count_passes(live.predictor.encoder), Feeder(workspace, live)
    monkeypatch.setattr(feeder._chance, "random", lambda: 0.4)  # each frame is drawn for measuring
    classes = [workspace.journal.create_class(name) for name in ("bolt", "nut")]
    for number in range(8):
        seen = feeder.take(Frame(photo(number, 640), "test", None, None, float(number)))
        assert seen.verdict == "queue"
        if number < 6:
            workspace.journal.label([seen.sample_id], classes[number % 2])
            learned(live)
    live.call(live.self_test.test).result(PATIENCE)
    assert live.self_test.held_out.samples > 0 and len(live.learner.memory) > 0
    live.call(live.self_test.refresh_queue).result(PATIENCE)
    assert sum(passes) == 8, "one pass for each frame, whatever was asked about it"


def test_a_frame_that_was_seen_by_the_learner_before_a_change_of_settings_is_looked_at_anew(workspace, live):
    frame, before = Frame(photo(0), "test"), live.predictor
    assert live.predictor.encoder.of_frame(frame) is live.predictor.encoder.of_frame(frame)
    live.call(lambda: live.change_settings(image_size=2 * SIZE)).result(PATIENCE)
    passes = count_passes(live.predictor.encoder)
    assert live.predictor is not before and not live.predictor.look(frame).top
    live.predictor.look(frame)
    assert passes == [1]


@pytest.mark.computes
def test_the_trunk_runs_in_onnx_runtime_with_the_numbers_of_pytorch_and_a_file_of_other_lines_is_made_anew(
    tmp_path, monkeypatch
):
    monkeypatch.setenv("EDGE_HPCR_CACHE", str(tmp_path))
    trunk = small_trunk()
    images = torch.rand(5, 3, SIZE, SIZE, generator=torch.Generator().manual_seed(0))
    first = fastest(trunk, SIZE, SIZE, torch.device("cpu"))
    assert isinstance(first, TrunkSession)
    torch.testing.assert_close(first(images), trunk(images), rtol=1e-3, atol=1e-4)
    (file,) = tmp_path.glob("trunks/*.onnx")
    made = file.stat().st_mtime_ns
    assert isinstance(fastest(trunk, SIZE, SIZE, torch.device("cpu")), TrunkSession)
    assert file.stat().st_mtime_ns == made, "it is exported once"
    other = onnx.load_model(file)
    (node,) = (each for each in other.graph.node if other.graph.output[0].name in each.output)
    node.output[0] = "before"
    other.graph.node.append(onnx.helper.make_node("Neg", ["before"], [other.graph.output[0].name]))
    onnx.save_model(other, file)
    again = fastest(trunk, SIZE, SIZE, torch.device("cpu"))
    torch.testing.assert_close(again(images), trunk(images), rtol=1e-3, atol=1e-4)


def test_a_trunk_that_onnx_runtime_cannot_run_stays_in_pytorch_and_one_line_says_why(
    tmp_path, monkeypatch, caplog
):
    (tmp_path / "trunks").write_text("a file where the folder belongs")
    monkeypatch.setenv("EDGE_HPCR_CACHE", str(tmp_path))
    trunk = small_trunk()
    assert fastest(trunk, SIZE, SIZE, torch.device("cpu")) is trunk
    (line,) = (each.getMessage() for each in caplog.records if each.name == trunk_session.LOG.name)
    assert "runs in PyTorch" in line and str(tmp_path / "trunks") in line


def test_a_new_workspace_without_the_better_trunk_says_so_and_how_to_get_it(live):
    (sentence,) = live.problems
    assert "weights get tiny_vit_5m" in sentence and "efficientnet_lite0 is used" in sentence


@pytest.mark.slow
def test_labels_that_are_learned_again_need_no_image_and_no_pass_of_the_trunk(workspace, live):
    workspace.change_settings(held_out_share=0.0)
    classes = [workspace.journal.create_class(name) for name in ("bolt", "nut")]
    ids = [workspace.take(photo(number), "test") for number in range(6)]
    for number, sample in enumerate(ids):
        workspace.journal.label([sample], classes[number % 2])
    learned(live)
    before = {i: live.predictor.encoder.of_sample(i) for i in ids}
    live.stop()
    for folder in workspace.layout.checkpoint_folders():
        shutil.rmtree(folder)
    again = LiveLearner(workspace)
    passes = count_passes(again.predictor.encoder)
    again.start()
    learned(again)
    assert again.learner.step > 0 and not passes
    for i in ids:  # eight bits per number, as in the memory
        step = (before[i].max() - before[i].min()) / 255
        np.testing.assert_allclose(again.predictor.encoder.of_sample(i), before[i], atol=0.51 * step)
    workspace.journal.undo()
    learned(again)
    assert again.predictor.encoder.of_sample(ids[-1]) is not None and passes == [1], "it was forgotten"
    again.stop()


@pytest.mark.parametrize("content", [b"", b"no database at all"])
def test_latents_on_disk_are_of_one_picture_and_damage_costs_no_more_than_time(tmp_path, content):
    path, latent = tmp_path / "latents.sqlite", np.arange(8, dtype=np.float32)
    path.write_bytes(content)
    kept = LatentFile(path, (8,), "trunk {}".format, 10_000)
    kept.keep(3, latent)
    kept.close()
    again = LatentFile(path, (8,), "trunk {}".format, 10_000)
    np.testing.assert_allclose(again.find(3), latent, atol=0.02)
    assert again.find(4) is None
    again.close()
    another = LatentFile(path, (8,), "another picture {}".format, 10_000)
    assert another.find(3) is None
    another.close()


def test_latents_on_disk_stay_within_their_bytes(tmp_path, monkeypatch):
    monkeypatch.setattr(latents, "TIDY_EVERY", 10)
    kept = LatentFile(tmp_path / "latents.sqlite", (8,), str, 4 * 16)
    for number in range(1, 31):
        kept.keep(number, np.full(8, number, np.float32))
    assert [number for number in range(1, 31) if kept.find(number) is not None] == [27, 28, 29, 30]
    kept.close()


def test_a_new_workspace_without_its_trunk_is_refused(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(efficientnet_lite0, "PACKAGE", "efficientnet-lite0-that-nobody-has")
    efficientnet_lite0._trunk.cache_clear()  # as in a new process
    assert cli.main(["learn", "--workspace", str(tmp_path / "w"), "--source", "workbench"]) == 2
    (line,) = capsys.readouterr().err.strip().splitlines()
    assert "pip install efficientnet-lite0-that-nobody-has" in line


# TinyViT ---------------------------------------------------------------------------------------------------------------


def test_labels_held_out_are_looked_at_beside_a_memory_that_keeps_fewer_places(fetched, workspace):
    workspace.change_settings(backbone="tiny_vit_5m", image_size=64, held_out_share=0.3, idle_share=0.0)
    class_id = workspace.journal.create_class("bolt")
    for each in range(0, 24, 2):
        workspace.journal.label(workspace.take_many([Frame(photo(each), "test", priority=DRAWN)]), class_id)
    with learning(workspace) as live:
        live.call(live.self_test.test).result(PATIENCE)
        assert len(live.learner.memory) and held_out_ids(workspace)
        assert not live.failed


@pytest.mark.slow
def test_a_new_workspace_builds_on_tiny_vit_where_its_weights_are_here_and_answers_as_pytorch(
    fetched, tmp_path
):
    with Workspace.open(tmp_path / "w") as workspace:
        assert workspace.settings.backbone == "tiny_vit_5m_grid"
        workspace.change_settings(idle_steps=3, threads=1, image_size=64)
        with learning(workspace) as live:
            assert not live.problems
            for number, name in enumerate(("bolt", "nut")):
                samples = workspace.take_many([Frame(photo(each), "test") for each in range(number, 8, 2)])
                workspace.journal.label(samples, workspace.journal.create_class(name))
            learned(live)
            asked = np.stack([live.predictor.encoder.prepare(photo(number)) for number in range(8)])
            said = live.predictor.predict(live.predictor.encoder.encode(asked))
            expected = live.call(lambda: live.learner.predict(asked)).result(PATIENCE)
    assert said.scores.shape == (8, 2)
    np.testing.assert_allclose(said.scores, expected.scores, atol=1e-3)
