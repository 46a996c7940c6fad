"""`retrunk W NAME`: the labels learned again with another network, the old learner kept until that is done."""

from pathlib import Path

import pytest
from live_parts import learning
from workspace_parts import SMALL

from edge_hpcr.bench.datasets import Dataset
from edge_hpcr.commands import cli, retrunk
from edge_hpcr.learner import checkpoint
from edge_hpcr.live.live_learner import LiveLearner
from edge_hpcr.workspace.layout import Layout
from edge_hpcr.workspace.workspace import Workspace

pytestmark = pytest.mark.slow
OLD, NEW = SMALL["backbone"], "efficientnet_lite0"
LABELS = 8


@pytest.fixture
def taught(tmp_path: Path, digits: Dataset) -> Path:
    """A workspace that has learned eight digits of two kinds with the old network."""
    with Workspace.open(tmp_path / "w") as workspace:
        workspace.change_settings(**SMALL, threads=1, idle_steps=2, held_out_share=0.0)
        for digit in (3, 7):
            images = digits.train_images[digits.train_labels == digit][: LABELS // 2]
            samples = [workspace.take(image, "test") for image in images]
            workspace.journal.label(samples, workspace.journal.create_class(f"digit {digit}"))
        with learning(workspace):
            pass
    return tmp_path / "w"


def kept(path: Path) -> dict[str, str]:
    """What the checkpoints there build on, by name; also those set aside."""
    folders = sorted(Layout(path).checkpoints.iterdir())
    return {each.name: checkpoint.facts(each)["config"]["backbone"] for each in folders}


def test_all_labels_are_learned_again_with_the_other_network_and_the_old_learner_goes(
    taught: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["retrunk", str(taught), NEW]) == 0
    assert f"builds on {NEW} now: {LABELS} labels" in capsys.readouterr().out
    assert set(kept(taught).values()) == {NEW}
    with Workspace.open(taught) as workspace:
        assert workspace.settings.backbone == NEW
        live = LiveLearner(workspace)  # as the next `learn` opens it
        assert live.caught_up and len(live.learner.memory) == LABELS
    assert cli.main(["retrunk", str(taught), NEW]) == 0
    assert "nothing to learn again" in capsys.readouterr().out


def test_a_run_that_was_stopped_goes_on_or_goes_back_to_the_old_learner(taught: Path) -> None:
    before = kept(taught)
    with Workspace.open(taught) as workspace:
        assert retrunk._begin(workspace, NEW)  # and then the power went
    assert set(kept(taught)) == {retrunk.ASIDE + name for name in before}
    assert cli.main(["retrunk", str(taught), OLD]) == 0
    assert kept(taught) == before
    with Workspace.open(taught) as workspace:
        assert retrunk._begin(workspace, NEW)
    assert cli.main(["retrunk", str(taught), NEW]) == 0
    assert set(kept(taught).values()) == {NEW}


def test_a_network_that_is_not_here_is_refused_and_nothing_changes(
    taught: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before, settings = kept(taught), Layout(taught).settings.read_bytes()
    for name, advice in {"tiny_vit_5m": "weights get tiny_vit_5m", "none": "unknown backbone 'none'"}.items():
        assert cli.main(["retrunk", str(taught), name]) == 2
        assert advice in capsys.readouterr().err
    assert kept(taught) == before and Layout(taught).settings.read_bytes() == settings
