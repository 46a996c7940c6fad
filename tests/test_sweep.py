"""Sweeps on this machine: the file, its product, and runs that are done, begun, held by others, failed or stopped."""

import csv
import json
from collections import Counter
from pathlib import Path

import pytest
from process_parts import ROOT

from edge_hpcr.bench import report
from edge_hpcr.bench.run import Interrupted, Run
from edge_hpcr.bench.run_config import make_config
from edge_hpcr.bench.sweep import read
from edge_hpcr.commands.cli import main
from edge_hpcr.common.files import locked
from edge_hpcr.learner import methods

QUICK = "datasets: digits\nlimit: 20\nset: {nf: 4}\n"
QUICK_OPTIONS = ["--dataset", "digits", "--limit", "20", "--set", "nf=4"]


@pytest.fixture
def write(tmp_path):
    """A function that writes a sweep file and returns its path."""

    def write(text: str) -> Path:
        path = tmp_path / "sweep.yaml"
        path.write_text(text)
        return path

    return write


def names(path: Path) -> list[str]:
    return [run.name for run in read(path)]


def matrix(path: Path) -> list[list[float]]:
    return json.loads(path.read_text())["accuracy_matrix"]


GOOD = "datasets: [digits]\nmethods: [hpcr]\nbuffers: [30]\nseeds: 1\n"


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (GOOD + "bufers: 3\n", ["bufers"]),
        (GOOD + "set: {nff: 4}\n", ["nff"]),
        (GOOD.replace("[hpcr]", "[hpcr"), ["line 3", "not YAML"]),
    ],
)
def test_what_is_wrong_in_a_file_is_said_in_one_line(write, capsys, text, words):
    path = write(text)
    assert main(["sweep", str(path), "--dry-run"]) == 2
    (said,) = capsys.readouterr().err.splitlines()
    assert str(path) in said
    for word in words:
        assert word in said


def test_a_sweep_is_the_product_of_its_lists_seed_by_seed(write):
    path = write(QUICK + "methods: [hpcr, er]\nbuffers: [30, 50]\nseeds: [7, 2]\n")
    assert names(path) == [
        f"digits-{method}-{size}-limit20-nf=4-seed{seed}"
        for seed in (7, 2)
        for method in ("hpcr", "er")
        for size in (30, 50)
    ]


def test_every_run_is_the_one_that_bench_makes_with_the_same_options(write):
    text = "methods: hpcr\nbuffers: 30\nseeds: [3]\nlimit: 20\nvalidation: true\ntasks: 2\n"
    text += "codec: webp\nquality: 80\nthreads: 2\nset: {lr: 1e-3, schedule: cosine}\ndatasets: digits\n"
    given = {"buffer": 30, "limit": 20, "validation": True, "tasks": 2, "codec": "webp"}
    given |= {"quality": 80, "threads": 2, "settings": {"lr": "1e-3", "schedule": "cosine"}}
    assert read(write(text)) == [make_config("digits", "hpcr", 3, **given)]


def test_the_papers_table_holds_every_method_that_is_known_here_and_in_the_paper():
    runs = read(ROOT / "benchmarks" / "sweeps" / "paper.yaml")
    known = {name for name in methods.names() if report.is_in_papers_table(name)}
    assert {"hpcr", "pcr", "er", "finetune", "iid"} <= known
    assert not {"slda", "pcr_c", "couple_1"} & known
    cells = Counter((run.dataset, run.learner.memory.samples) for run in runs if run.learner.method == "hpcr")
    with report.PAPER_RESULTS.open(newline="") as file:
        papers = {
            (row["dataset"], int(row["buffer"])) for row in csv.DictReader(file) if row["method"] == "hpcr"
        }
    assert cells == dict.fromkeys(papers, 3) and len(cells) == 12
    assert {run.learner.method for run in runs} == known
    assert len([run for run in runs if run.learner.method == "finetune"]) == 4 * 3
    assert [run.seed for run in runs] == sorted(run.seed for run in runs)


@pytest.mark.slow
def test_done_runs_are_skipped_and_begun_ones_continue_to_the_same_numbers(tmp_path, write, capsys):
    out = tmp_path / "runs"
    path = write(QUICK + "methods: er\nbuffers: [30]\nseeds: 3\n")
    done, begun, fresh = read(path)

    def stop(run: Run) -> None:
        run.stop_requested = run.learner.step == 5

    Run(done, out).run()
    with pytest.raises(Interrupted):
        Run(begun, out).run(on_step=stop)
    at_first = (out / f"{done.name}.json").stat().st_mtime_ns
    sweep = ["sweep", str(path), "--out", str(out)]
    assert main([*sweep, "--dry-run"]) == 0
    assert "3 runs: 1 begun, 1 done, 1 waiting" in capsys.readouterr().out
    assert main([*sweep, "--jobs", "2"]) == 0
    said = capsys.readouterr().err
    assert "1 of 3 runs finished earlier" in said and "3 of 3 runs done" in said
    assert (out / f"{done.name}.json").stat().st_mtime_ns == at_first
    assert sorted(file.name for file in out.iterdir()) == [f"{run.name}.json" for run in (done, begun, fresh)]
    alone = Run(begun, tmp_path / "alone").run()
    assert matrix(out / f"{begun.name}.json") == alone["accuracy_matrix"]
    assert main(["bench", *QUICK_OPTIONS, "--method", "er", "--buffer", "30", "--out", str(out)]) == 0
    assert "finished earlier" in capsys.readouterr().err


@pytest.mark.slow
def test_a_run_that_fails_or_is_held_by_another_process_stops_no_other(tmp_path, write, capsys):
    out = tmp_path / "runs"
    path = write(QUICK + "methods: er\nbuffers: [3, 30, 50]\nseeds: 1\n")
    too_small, held, good = read(path)
    with locked(out / f"{held.name}.lock", "held"):
        assert main(["sweep", str(path), "--out", str(out)]) == 1
    said = capsys.readouterr().err.splitlines()
    (failure,) = [line for line in said if f"{too_small.name}: failed: " in line]
    assert "10 classes" in failure
    assert any(f"{held.name}: failed: {held.name} is being run by another process" in line for line in said)
    assert "edge_hpcr: 2 of 3 runs failed; the same command continues them" in said
    assert [file.name for file in out.glob("*.json")] == [f"{good.name}.json"]
