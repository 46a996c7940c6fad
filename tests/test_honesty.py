"""The benchmark of confidence and *unknown* teaches real workspaces, and shows bursts that are bursts."""

import json
from itertools import pairwise

import numpy as np
import pytest

from benchmarks import honesty
from edge_hpcr.bench import pictures as sources
from edge_hpcr.commands.cli import run

pytestmark = pytest.mark.slow


def test_a_quick_run_keeps_what_each_workspace_said_and_how_true_it_was(tmp_path):
    out = tmp_path / "honesty.json"
    assert run(honesty.commands, "honesty", ["--quick", "--dataset", "digits", "--out", str(out)]) == 0
    result = json.loads(out.read_text())
    lives = result["lives"]
    assert result["hardware"] and result["pictures"] == "digits-test"
    assert [(each["kind"], each["labels"]) for each in lives] == [
        (kind, labels) for kind in honesty.KINDS for labels in honesty.QUICK.labels
    ]
    for life in lives:
        shares = [value for key, value in life.items() if key.endswith(("unknown", "confidence", "error"))]
        assert len(shares) == 5 and all(share is None or 0 <= share <= 1 for share in shares)
    assert out.with_suffix(".md").read_text().count("| bursts") == len(honesty.QUICK.labels)


def test_frames_of_a_burst_differ_a_little_and_labels_end_with_whole_bursts():
    plan = honesty.Plan(classes=2, novel_classes=1, test=1)
    draw = honesty.Draw(plan, sources.of_dataset("digits"), 0)
    shown = draw.lessons("bursts", 0, max(plan.labels))
    assert [len(burst) for burst in shown] == list(honesty.BURSTS)
    assert set(plan.labels) <= set(np.cumsum(honesty.BURSTS).tolist())
    for burst in shown:
        for one, other in pairwise(burst):
            assert one.shape == other.shape == (honesty.WINDOW, honesty.WINDOW, 3)
            assert 0 < np.abs(one.astype(int) - other).mean() < 60
    assert len(draw.lessons("single pictures", 0, 20)) == 20
