"""The rivals outside the benchmark: in a live workspace, as an exported model, and where nobody knows of tasks."""

from pathlib import Path

import numpy as np
import pytest
from rival_parts import observe, pictures, rival
from workspace_parts import SMALL

from edge_hpcr.commands.cli import main
from edge_hpcr.common.errors import UserError
from edge_hpcr.learner import methods
from edge_hpcr.learner.memory import MemoryConfig
from edge_hpcr.live.live_learner import LiveLearner
from edge_hpcr.workspace.folder import Workspace
from edge_hpcr.workspace.settings import Settings
from export.publish.republish import load_template, republish, save_template
from export.publish.running import RunningModel
from export.publish.snapshot import snapshot_of_learner
from export.publish.to_onnx import export_full

WITH_BOUNDARIES = [name for name in methods.names() if methods.method_class(name).needs_boundaries]


@pytest.mark.parametrize("name", WITH_BOUNDARIES)
def test_a_method_that_must_hear_of_tasks_is_refused_in_a_live_workspace(name: str) -> None:
    with pytest.raises(UserError, match=f"setting method {name}: it must be told where a task ends"):
        Settings().replace(method=name)


def test_the_methods_of_a_live_workspace_are_those_that_need_no_tasks() -> None:
    assert {"er_wa", "ss_il", "ocm"} <= set(WITH_BOUNDARIES)
    assert set(methods.live_names()) == set(methods.names()) - set(WITH_BOUNDARIES)
    assert {"hpcr", "scr", "er_ace", "gmed", "gss", "aser"} <= set(methods.live_names())


def test_a_stream_without_tasks_refuses_them_too(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["--dataset", "digits", "--method", "ss_il", "--stream", "blurry", "--limit", "10"]
    assert main(["bench", *words, "--out", str(tmp_path)]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert "ss_il needs to know where a task ends" in line and "--stream split" in line


@pytest.mark.slow
@pytest.mark.parametrize("name", ["scr", "uer", "gmed"])
def test_a_live_workspace_learns_by_a_rival_and_answers(tmp_path: Path, digits, name: str) -> None:
    with Workspace.open(tmp_path / "w") as workspace:
        workspace.change_settings(
            **{**SMALL, "method": name, "idle_steps": 0, "threads": 1, "memory_bytes": 60_000}
        )
        live = LiveLearner(workspace)
        live.start()
        try:
            for digit in (3, 8):
                class_id = workspace.journal.create_class(f"digit {digit}")
                for image in digits.train_images[digits.train_labels == digit][:4]:
                    workspace.journal.label([workspace.take(image, "test")], class_id)
            assert live.wait_until_caught_up(60), live.problems
            images = digits.test_images[:5]
            expected = live.learner.predict(images, averaged=live.learner.average is not None)
            answered = live.predictor.predict(images)
        finally:
            live.stop()
    np.testing.assert_allclose(answered.scores, expected.scores, atol=1e-4)
    np.testing.assert_allclose(answered.similarity, expected.similarity, atol=1e-4)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["scr", "uer"])  # by class means; by a linear layer
def test_an_exported_rival_answers_as_the_learner_also_when_republished(name: str, tmp_path: Path) -> None:
    learner = rival(name, memory=MemoryConfig(samples=20))
    for seed in range(3):
        observe(learner, [0, 1, 2], seed)
    images = pictures([0, 1, 2, 0, 1], seed=9)
    snapshot = snapshot_of_learner(learner, None, averaged=False)
    full = export_full(snapshot, tmp_path / "full.onnx")
    scores = RunningModel(full.model.SerializeToString(), name)(images).scores
    np.testing.assert_allclose(scores, learner.predict(images).scores, atol=1e-4)
    assert save_template(tmp_path / "template", full.model, snapshot)
    observe(learner, [3, 3, 0], seed=4)
    snapshot = snapshot_of_learner(learner, None, averaged=False)
    template = load_template(tmp_path / "template", snapshot)
    assert template is not None
    fast = republish(snapshot, template, tmp_path / "fast.onnx")
    scores = RunningModel(fast.model.SerializeToString(), name)(images).scores
    np.testing.assert_allclose(scores, learner.predict(images).scores, atol=1e-4)
