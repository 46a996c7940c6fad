"""The split benchmark on the embedded digits: its results' fields, its bytes, and that a run can be repeated and continued.

No accuracy is pinned: machines differ. Two runs on one machine do not.
"""

import json
import signal
from pathlib import Path

import pytest

from journeys.parts import edge, started, wait_for

pytestmark = pytest.mark.slow
BENCH = ("bench", "--dataset", "digits", "--limit", "40", "--set", "nf=4")
SEED_0, SEED_1, SEED_2 = (
    [4, 6, 2, 7, 3, 5, 9, 0, 8, 1],
    [8, 4, 7, 0, 1, 2, 5, 9, 6, 3],
    [2, 0, 7, 6, 9, 5, 3, 4, 8, 1],
)
CELLS = {  # options, order of the classes, samples and bytes (None: how many fit is for the codec to say)
    "hpcr": (
        "--method hpcr --buffer 50",
        SEED_0,
        50,
        {"image": 9600, "label": 100, "logits": 1000, "features": 3200, "bookkeeping": 500},
    ),
    "edge": ("--method edge --budget 20KB --codec webp --seed 1", SEED_1, None, None),
    "er": (
        "--method er --buffer 40 --codec jpeg --tasks 10",
        SEED_0,
        40,
        {"image": 27150, "label": 80, "logits": 0, "features": 0, "bookkeeping": 2040},
    ),
    "derpp": (
        "--method derpp --buffer 30",
        SEED_0,
        30,
        {"image": 5760, "label": 60, "logits": 600, "features": 0, "bookkeeping": 300},
    ),
    "scr": (
        "--method scr --buffer 40 --seed 2",
        SEED_2,
        40,
        {"image": 7680, "label": 80, "logits": 0, "features": 0, "bookkeeping": 400},
    ),
    "slda": (
        "--method slda",
        SEED_0,
        0,
        {"image": 0, "label": 0, "logits": 0, "features": 0, "bookkeeping": 0, "method": 3480},
    ),
}
FIELDS = {
    "dataset": str,
    "method": str,
    "tasks": int,
    "seed": int,
    "class_order": list,
    "buffer_samples": (int, type(None)),
    "budget_bytes": (int, type(None)),
    "bytes": dict,
    "accuracy_matrix": list,
    "A_T": float,
    "AAA": float,
    "F_T": float,
    "ema": dict,
    "ema_accuracy_matrix": list,
    "class_accuracy": list,
    "steps": int,
    "accuracy_before_learning": (float, type(None)),
    "overhead": dict,
    "train_seconds": float,
    "eval_seconds": float,
    "samples_per_second": float,
    "step_ms": dict,
    "trunk_ms": float,
    "peak_rss_bytes": int,
    "config": dict,
    "versions": dict,
    "finished": str,
}
TIMES = ("train_seconds", "eval_seconds", "samples_per_second", "step_ms", "trunk_ms", "peak_rss_bytes")


def result_in(folder: Path) -> dict:
    (path,) = folder.glob("*.json")
    return json.loads(path.read_text())


def without_times(result: dict) -> dict:
    return {key: value for key, value in result.items() if key not in (*TIMES, "finished")}


@pytest.fixture(scope="module")
def first(tmp_path_factory) -> dict:
    """One cell's result, for the tests that compare with it."""
    folder = tmp_path_factory.mktemp("first")
    edge(*BENCH, *CELLS["hpcr"][0].split(), "--out", folder)
    return result_in(folder)


@pytest.mark.parametrize("method", CELLS)
def test_a_result_has_its_fields_its_order_and_exactly_its_bytes(method, first, tmp_path):
    options, order, samples, kept = CELLS[method]
    result = first
    if method != "hpcr":
        table = edge(*BENCH, *options.split(), "--out", tmp_path)
        assert method in table and "A_T" in table
        result = result_in(tmp_path)
    for name, kind in FIELDS.items():
        assert isinstance(result[name], kind), name
    assert (result["dataset"], result["method"], result["class_order"]) == ("digits", method, order)
    tasks = 10 if "--tasks 10" in options else 5
    for matrix in ("accuracy_matrix", "ema_accuracy_matrix"):
        assert [len(row) for row in result[matrix]] == list(range(1, tasks + 1))
        assert all(0 <= accuracy <= 1 for row in result[matrix] for accuracy in row)
    last = result["accuracy_matrix"][-1]
    assert result["A_T"] == pytest.approx(sum(last) / tasks)
    averages = [sum(row) / len(row) for row in result["accuracy_matrix"]]
    assert result["AAA"] == pytest.approx(sum(averages) / tasks)
    # Forgotten is what the best of the times before the last one knew more.
    before = [max(row[task] for row in result["accuracy_matrix"][task:-1]) for task in range(tasks - 1)]
    forgotten = [was - now for was, now in zip(before, last, strict=False)]
    assert result["F_T"] == pytest.approx(sum(forgotten) / (tasks - 1))
    assert set(result["ema"]) == {"A_T", "AAA", "F_T"}
    assert set(result["step_ms"]) >= {"p50", "p95"}
    assert result["versions"].keys() >= {"edge_hpcr", "python", "torch", "numpy", "hardware", "commit"}

    parts = dict(result["bytes"])
    total = parts.pop("total")
    assert total == sum(parts.values())
    if kept is None:
        assert 0.9 * 20_000 < total <= result["budget_bytes"] == 20_000
    else:
        assert (result["buffer_samples"], parts) == (samples, {"method": 0, **kept})


def test_the_same_run_gives_the_same_result(first, tmp_path):
    edge(*BENCH, *CELLS["hpcr"][0].split(), "--out", tmp_path)
    assert without_times(result_in(tmp_path)) == without_times(first)


def test_a_run_that_was_killed_twice_continues_to_the_same_result(tmp_path):
    longer = (*BENCH[:4], "200", *BENCH[5:], "--method", "hpcr", "--budget", "15KB")
    edge(*longer, "--out", tmp_path / "whole")
    for task in (1, 3):
        log = tmp_path / f"{task}.log"
        with started("edge_hpcr", *longer, "--out", tmp_path / "killed", log=log) as process:
            wait_for(lambda log=log, task=task: f"task {task} of 5" in log.read_text(), "the task")
            process.send_signal(signal.SIGKILL)
        assert not list((tmp_path / "killed").glob("*.json")), "it was killed before its end"
    edge(*longer, "--out", tmp_path / "killed")
    assert without_times(result_in(tmp_path / "killed")) == without_times(result_in(tmp_path / "whole"))
    assert [path.suffix for path in (tmp_path / "killed").iterdir()] == [".json"], "nothing else is left"


def test_a_finished_run_is_not_run_again_and_the_report_shows_it(first, tmp_path):
    (tmp_path / "runs").mkdir()
    edge(*BENCH, "--method", "finetune", "--out", tmp_path / "runs")
    before = result_in(tmp_path / "runs")
    edge(*BENCH, "--method", "finetune", "--out", tmp_path / "runs")
    assert result_in(tmp_path / "runs") == before
    (tmp_path / "runs" / "another.json").write_text(json.dumps(first))
    table = edge("report", tmp_path / "runs", "--out", tmp_path)
    assert "finetune" in table and "hpcr" in table
    assert "finetune" in (tmp_path / "results.md").read_text() and list((tmp_path / "plots").iterdir())
