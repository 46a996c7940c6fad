"""Reports: seeds belong together, the paper's value stands beside what it may be compared with, nothing broken counts."""

import csv
import json
import re
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest

from edge_hpcr.bench import metrics, report
from edge_hpcr.bench.datasets import DATASETS
from edge_hpcr.bench.run_config import make_config
from edge_hpcr.learner import methods


def matrix_with(final: float, tasks: int) -> list[list[float]]:
    """Every task is learned to 0.9 and is at `final` after the last one; the newest is no better than the others."""
    rows = [[0.8] * i + [0.9] for i in range(tasks - 1)]
    return [*rows, [final] * tasks]


def a_result(
    dataset: str = "cifar10",
    method: str = "hpcr",
    seed: int = 0,
    final: float = 0.5,
    **options: Any,
) -> dict[str, Any]:
    """What `bench` writes for such a run, with these accuracies."""
    kind = methods.method_class(method)
    config = make_config(dataset, method, seed, buffer=200, **options)
    tasks = 1 if kind.shuffled_passes else config.tasks
    live, averaged = matrix_with(final, tasks), matrix_with(final + 0.02, tasks)
    held = 200 if kind.uses_memory else 0
    classes = {str(c): final for c in range(DATASETS[dataset].classes)}
    resolved = methods.create(method, config.learner.method_options).config_dict()
    return {
        "dataset": dataset,
        "method": method,
        "tasks": tasks,
        "seed": seed,
        "buffer_samples": held,
        "bytes": {"total": held * 3422},
        "overhead": {"numbers": 1.055, "bytes": 1.1},
        "accuracy_matrix": live,
        "class_accuracy": [{}] * (tasks - 1) + [classes],
        **metrics.summary(live),
        "ema": metrics.summary(averaged),
        "ema_accuracy_matrix": averaged,
        "train_seconds": 1200.0,
        "samples_per_second": 41.66,
        "step_ms": {"p50": 240.4, "p95": 301.0},
        "trunk_ms": 42.0,
        "config": json.loads(json.dumps(asdict(config))) | {"method_options": resolved},
        "versions": {
            "edge_hpcr": "0.1.0",
            "python": "3.11.2",
            "torch": "2.15.0",
            "numpy": "2.4.0",
            "hardware": "Some Processor (x86_64)",
            "threads": 1,
            "device": "auto",
        },
        "finished": "2026-01-02T03:04:05Z",
    }


def write(folder: Path, *results: dict[str, Any]) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    for result in results:
        number = len(list(folder.iterdir()))
        (folder / f"{number:02}.json").write_text(json.dumps(result))
    return folder


def rows_of(text: str, table: int = 0) -> list[dict[str, str]]:
    """The rows of the n-th Markdown table, by column."""
    tables = re.findall(r"(?:^\|.*\|$\n?)+", text, re.MULTILINE)
    lines = [
        [cell.strip() for cell in line.strip("|").split("|")] for line in tables[table].strip().splitlines()
    ]
    return [dict(zip(lines[0], line, strict=True)) for line in lines[2:]]


def row_of(*results: dict[str, Any], table: int = 0) -> dict[str, str]:
    (row,) = rows_of(report.table(results), table)
    return row


# The paper's numbers


def test_the_papers_numbers_in_the_package_agree_with_each_other_and_with_their_tables():
    with report.PAPER_RESULTS.open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert len(rows) > 400
    for row in rows:
        if row["table"] == "paper_ocm_setting":  # of a setting that is not compared with
            continue
        buffer = int(row["buffer"]) if row["buffer"] else None
        value = report.paper_value(row["method"], row["dataset"], buffer, row["metric"])
        assert (value.mean, value.half) == (float(row["mean"]), float(row["ci95"]))


def test_the_papers_values_stand_beside_a_run_with_the_papers_setting():
    row = row_of(a_result(final=0.547))
    assert (row["final accuracy (A_T)"], row["paper's A_T"], row["diff"]) == ("54.7", "53.4 ± 1.4", "+1.3")
    assert (row["paper's AAA"], row["paper's F_T"]) == ("66.0 ± 2.7", "20.6 ± 2.4")


@pytest.mark.parametrize(
    "options",
    [
        {"validation": True},
        {"limit": 500},
        {"settings": {"batch_norm": "joint"}},
        {"settings": {"alpha": 0.1}},
    ],
    ids=str,
)
def test_a_run_with_another_setting_has_no_value_of_the_paper_beside_it(options: dict[str, Any]):
    _, row = rows_of(report.table([a_result(), a_result(**options)]))
    assert {row[name] for name in ("paper's A_T", "diff", "paper's AAA", "paper's F_T")} == {report.NOTHING}


def test_a_setting_that_a_run_is_older_than_had_its_default():
    older = a_result(method="edge")
    now = report.deviations(older)
    del older["config"]["learner"]["encode_incoming"], older["config"]["learner"]["augment"]["pad"]
    assert report.deviations(older) == now | {"encode_incoming": False, "augment.pad": 0.0}


# The tables


def test_the_seeds_of_one_setting_are_one_row_with_mean_and_interval():
    row = row_of(*(a_result(seed=seed, final=final) for seed, final in [(0, 0.51), (1, 0.52), (2, 0.53)]))
    n, seeds, accuracy = (row[name] for name in ("n", "seeds", "final accuracy (A_T)"))
    assert (n, seeds, accuracy) == ("3", "0, 1, 2", "52.0 ± 2.5")  # 4.303 · 1.0 / √3 = 2.48


def test_methods_are_ranked_by_the_difference_on_the_same_seeds_in_the_same_precision():
    runs = [a_result(seed=seed, final=final) for seed, final in [(0, 0.5), (1, 0.6), (2, 0.7)]]
    runs += [a_result(method="er", seed=seed, final=final) for seed, final in [(1, 0.4), (2, 0.5), (3, 0.9)]]
    runs += [a_result(method="er_ace", seed=1, final=0.7)]
    runs += [a_result(method="pcr", seed=0, final=0.9, precision="bfloat16")]
    rows = rows_of(report.table(runs), table=1)
    assert [(row["method"], row["n"], row["difference"]) for row in rows] == [
        ("er_ace", "1", "+10.0 (one run)"),
        ("er", "2", "-20.0 ± 0.0"),
    ]


def test_a_row_of_the_table_of_runs_has_what_tells_a_run_from_others(tmp_path: Path):
    result = a_result(seed=3, final=0.5) | {"learner_bytes": {"total": 7}, "live": {"A_T": 0.25}}
    result["versions"] |= {"commit": "abc", "clean": True}
    report.write_runs({tmp_path / "one.json": result}, tmp_path / "runs.csv")
    with (tmp_path / "runs.csv").open(newline="") as file:
        (row,) = csv.DictReader(file)
    told = {"method": "hpcr", "seed": "3", "precision": "float32", "learner_bytes": "7", "A_T": "50.00"}
    told |= {"A_T_live": "25.00", "commit": "abc", "clean": "True", "file": str(tmp_path / "one.json")}
    assert told.items() <= row.items()


# The command


GOOD = a_result("digits")
BROKEN = {
    "cut short": json.dumps(GOOD)[:-100],
    "without its configuration": json.dumps({key: value for key, value in GOOD.items() if key != "config"}),
    "of a method that is not known": json.dumps(GOOD | {"method": "guess"}),
    "no result": json.dumps([1, 2]),
}


@pytest.mark.parametrize("content", BROKEN.values(), ids=BROKEN.keys())
def test_a_file_that_is_no_whole_result_is_named_and_left_out(content: str, tmp_path: Path):
    folder = write(tmp_path / "runs", a_result("digits", seed=1))
    (folder / "broken.json").write_text(content, errors="surrogateescape")
    found, left_out = report.read_folders([folder])
    assert list(found) == [folder / "00.json"]
    assert len(left_out) == 1 and left_out[0].startswith(f"{folder / 'broken.json'}: ")
