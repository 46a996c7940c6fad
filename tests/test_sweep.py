"""Sweeps on this machine: the file, its product, and runs that are done, begun, held by others, failed or stopped."""

import json
import os
import pty
import re
import signal
from pathlib import Path

import numpy as np
import pytest
from browser_parts import wait_for
from process_parts import started

from benchmarks.endurance.trouble import full_disk, small_disk
from edge_hpcr.bench import presets, report
from edge_hpcr.bench.run import Interrupted, Run
from edge_hpcr.bench.sweep import paper_table, read
from edge_hpcr.commands.bench import configure
from edge_hpcr.commands.cli import main
from edge_hpcr.common.files import locked
from edge_hpcr.learner import checkpoint, methods

QUICK = "datasets: digits\nlimit: 20\nset: {nf: 4}\n"
QUICK_OPTIONS = ["--dataset", "digits", "--limit", "20", "--set", "nf=4"]
ENVIRONMENT = {**os.environ, "OMP_NUM_THREADS": "1"}


@pytest.fixture
def write(tmp_path):
    """A function that writes a sweep file and returns its path."""

    def write(text: str) -> Path:
        path = tmp_path / "sweep.yaml"
        path.write_text(text)
        return path

    return write


def names(path: Path) -> list[str]:
    return [run.name for run in read(path, configure, [])]


def matrix(path: Path) -> list[list[float]]:
    return json.loads(path.read_text())["accuracy_matrix"]


GOOD = "datasets: [digits]\nmethods: [hpcr]\nbuffers: [30]\nseeds: 1\n"


@pytest.mark.parametrize(
    ("text", "line", "words"),
    [
        (GOOD.replace("hpcr", "er, hpc"), 2, ["methods", "'hpc'", "hpcr", "finetune"]),
        (GOOD.replace("[digits]", "\n- digits\n- cifar11"), 3, ["datasets", "'cifar11'", "cifar100"]),
        (GOOD + "bufers: 3\n", 5, ["field", "'bufers'", "buffers", "budgets"]),
        (GOOD + "limit: [3]\n", 5, ["`limit`", "one value"]),
        (GOOD + "limit: many\n", 5, ["limit", "'many'", "whole number"]),
        (GOOD + "validation: 1\n", 5, ["validation", "'1'", "true, false"]),
        (GOOD + "stream: smooth\n", 5, ["stream", "'smooth'", "blurry"]),
        (GOOD + "codec: gif\n", 5, ["codec", "'gif'", "webp"]),
        (GOOD + "backbone: resnet0\n", 5, ["backbone", "'resnet0'", "timm:NAME"]),
        (GOOD.replace("30", "0"), 3, ["buffers", "'0'", "at least 1"]),
        (GOOD.replace("30", "30.5"), 3, ["buffers", "'30.5'"]),
        (GOOD.replace("buffers: [30]", "budgets: [2 apples]"), 3, ["budgets", "'2 apples'", "2MB"]),
        (GOOD.replace("seeds: 1", "seeds: 0"), 4, ["seeds", "'0'"]),
        (GOOD.replace("seeds: 1", "seeds: [0, x]"), 4, ["seeds", "'x'"]),
        (GOOD + "seeds: 2\n", 5, ["'seeds'", "twice"]),
        (GOOD.replace("[hpcr]", "[]"), 2, ["`methods`", "empty"]),
        (GOOD.replace("[hpcr]", ""), 2, ["`methods`"]),
        (GOOD.replace("[hpcr]", "{hpcr: 1}"), 2, ["`methods`"]),
        (GOOD + "set: [nf]\n", 5, ["`set`"]),
        (GOOD + "set:\n  nf: 4\n  nff: 4\n", 7, ["--set nff", "no such setting"]),
        (GOOD + "set:\n  nf: 4\n  nf: 5\n", 7, ["'nf'", "twice"]),
        (GOOD + "set: {nf: wide}\n", 5, ["--set nf=wide", "int"]),
        (GOOD + "variants: {nf: 4}\n", 5, ["`variants`", "list"]),
        (GOOD + "variants: []\n", 5, ["`variants`", "list"]),
        (GOOD + "variants:\n- nf\n", 6, ["`variants`", "by name"]),
        (GOOD + "variants:\n- {}\n- {quality: 101}\n", 7, ["quality", "from 1 to 100"]),
        (GOOD + "variants:\n- {nf: 4}\n- {nff: 4}\n", 7, ["--set nff", "no such setting"]),
        (GOOD.replace("[hpcr]", "[hpcr"), 3, ["not YAML"]),
        (GOOD + "? [a]\n: 1\n", 5, ["field"]),
        (GOOD + "budgets: [2MB]\n", None, ["`buffers`", "`budgets`"]),
        (GOOD + "presets: paper/cifar10-200\n", None, ["preset", "`datasets`"]),
        (GOOD.replace("seeds: 1\n", ""), None, ["`seeds`", "missing"]),
        (GOOD.replace("datasets: [digits]\n", ""), None, ["`datasets`", "missing"]),
        ("- hpcr\n", None, ["not a sweep", "docs/sweeps.md"]),
        ("", None, ["not a sweep"]),
        (GOOD + "--- 3\n", 5, ["not YAML"]),
        ("[" * 5000, None, ["not YAML"]),
        ("a: \x01", None, ["not YAML"]),
    ],
)
def test_what_is_wrong_in_a_file_is_said_in_one_line_with_its_place(write, capsys, text, line, words):
    path = write(text)
    assert main(["sweep", str(path), "--dry-run"]) == 2
    (said,) = capsys.readouterr().err.splitlines()
    assert str(path) in said
    assert ([int(found) for found in re.findall(r", line (\d+):", said)] or [None]) == [line]
    for word in words:
        assert word in said


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ([], "name a file"),
        (["/no/such/file"], "/no/such/file: No such file"),
        (["/"], "not a regular file"),
        (["a.yaml", "--preset", "paper/accuracy"], "leave one of them out"),
        (["a.yaml", "--seeds", "3"], "--seeds goes with --preset"),
        (["--preset", "paper/accurate"], "unknown preset 'paper/accurate': choose one of paper/accuracy"),
        (["--preset", "paper/accuracy", "--datasets", "cifar10,digits"], "unknown dataset 'digits'"),
    ],
)
def test_wrong_options_are_refused_in_one_line(capsys, options, words):
    assert main(["sweep", *options]) == 2
    (said,) = capsys.readouterr().err.splitlines()
    assert words in said


def test_a_sweep_is_the_product_of_its_lists_seed_by_seed(write):
    path = write(QUICK + "methods: [hpcr, er]\nbuffers: [30, 50]\nseeds: [7, 2]\n")
    assert names(path) == [
        f"digits-{method}-{size}-limit20-nf=4-seed{seed}"
        for seed in (7, 2)
        for method in ("hpcr", "er")
        for size in (30, 50)
    ]


def test_every_run_is_made_with_each_variant_which_wins_over_what_is_set_for_all(write):
    path = write(
        QUICK + "methods: er\nbuffers: 30\nseeds: 2\nvariants: [{}, {nf: 8, lr: 0.05}, {codec: webp}]\n"
    )
    assert names(path) == [
        f"digits-er-30{each}-seed{seed}"
        for seed in (0, 1)
        for each in ("-limit20-nf=4", "-limit20-lr=0.05-nf=8", "-webp90-limit20-nf=4")
    ]


def test_a_method_without_a_memory_and_a_value_that_is_there_twice_run_once(write):
    path = write(QUICK + "methods: [er, finetune, er]\nbudgets: [60KB, 60000]\nseeds: 2\n")
    assert names(path) == [
        f"digits-{method}-limit20-nf=4-seed{seed}" for seed in (0, 1) for method in ("er-60000B", "finetune")
    ]


def test_presets_of_bench_stand_for_a_dataset_and_a_buffer(write):
    path = write("presets: [paper/cifar10-200, paper-ocm/cifar100-1000]\nmethods: pcr\nseeds: 1\n")
    assert names(path) == ["cifar10-pcr-200-seed0", "cifar100-pcr-1000-ocm-seed0"]


def test_every_run_is_the_one_that_bench_makes_with_the_same_options(write):
    text = "methods: hpcr\nbuffers: 30\nseeds: [3]\nlimit: 20\nvalidation: true\nstream: blurry\ntasks: 2\n"
    text += "codec: webp\nquality: 80\nthreads: 2\nset: {lr: 1e-3, schedule: cosine}\ndatasets: digits\n"
    options = (
        "--method hpcr --buffer 30 --seed 3 --limit 20 --validation --stream blurry --tasks 2 --codec webp"
    )
    options += " --quality 80 --threads 2 --set lr=1e-3 --set schedule=cosine --dataset digits"
    assert read(write(text), configure, []) == configure(options.split())
    assert read(write(text), configure, ["--threads", "1"]) == configure([*options.split(), "--threads", "1"])


def test_the_papers_table_holds_every_method_that_is_known_here_and_in_the_paper():
    runs = paper_table(["cifar10", "cifar100"], 2, configure, [])
    known = [name for name in methods.names() if report.is_in_papers_table(name)]
    assert {"hpcr", "pcr", "er", "finetune", "iid"} <= set(known)
    assert not {"slda", "pcr_c", "couple_1"} & set(known)
    cells = {(run.dataset, run.learner.method, run.learner.memory.samples, run.seed) for run in runs}
    for dataset in ("cifar10", "cifar100"):
        for buffer in presets.BUFFERS[dataset]:
            assert {(dataset, "hpcr", buffer, seed) for seed in (0, 1)} <= cells
    assert len([run for run in runs if run.learner.method == "finetune"]) == 4
    assert len({run.name for run in runs}) == len(runs)
    assert [run.seed for run in runs] == sorted(run.seed for run in runs)


def test_data_that_are_not_here_are_named_once_with_the_commands_that_fetch_them(tmp_path, write, capsys):
    where = ["--root", str(tmp_path / "none"), "--out", str(tmp_path / "runs")]
    assert main(["sweep", "--preset", "paper/accuracy", "--datasets", "cifar10,cifar100", *where]) == 2
    (said,) = capsys.readouterr().err.splitlines()
    for name in ("cifar10", "cifar100"):
        assert f"`python -m edge_hpcr data get {name} --root {tmp_path / 'none'}`" in said
    assert "--datasets" in said
    path = write("datasets: [digits, mnist]\nmethods: er\nseeds: 1\n")
    assert main(["sweep", str(path), *where]) == 2
    (said,) = capsys.readouterr().err.splitlines()
    assert "not fetched: mnist;" in said and str(path) in said
    assert not list((tmp_path / "runs").iterdir())


def test_the_example_is_a_sweep_of_the_papers_cell(capsys):
    path = Path(__file__).parents[1] / "benchmarks" / "sweeps" / "cifar10-200.yaml"
    assert main(["sweep", str(path), "--dry-run"]) == 0
    listed = capsys.readouterr().out
    for name in methods.names():
        if report.is_in_papers_table(name):
            assert f"cifar10-{name}-" in listed
    assert "cifar10-hpcr-200-seed0" in listed


@pytest.mark.slow
def test_done_runs_are_skipped_and_begun_ones_continue_to_the_same_numbers(tmp_path, write, capsys):
    out = tmp_path / "runs"
    path = write(QUICK + "methods: er\nbuffers: [30]\nseeds: 3\n")
    done, begun, fresh = read(path, configure, [])

    def stop(run: Run) -> None:
        run.stop_requested = run.learner.step == 5

    Run(done, out).run()
    with pytest.raises(Interrupted):
        Run(begun, out).run(on_step=stop)
    at_first = (out / f"{done.name}.json").stat().st_mtime_ns
    sweep = ["sweep", str(path), "--out", str(out)]
    assert main([*sweep, "--dry-run"]) == 0
    assert "3 runs: 1 begun, 1 waiting, 1 done" in capsys.readouterr().out
    assert main([*sweep, "--jobs", "2"]) == 0
    said = capsys.readouterr().err
    assert "1 of 3 runs are done already" in said and "3 of 3 runs are done" in said
    assert (out / f"{done.name}.json").stat().st_mtime_ns == at_first
    assert sorted(file.name for file in out.iterdir()) == [f"{run.name}.json" for run in (done, begun, fresh)]
    for run in (begun, fresh):
        alone = Run(run, tmp_path / "alone").run()
        assert matrix(out / f"{run.name}.json") == alone["accuracy_matrix"]
    assert main(["bench", *QUICK_OPTIONS, "--method", "er", "--buffer", "30", "--out", str(out)]) == 0
    assert "finished earlier" in capsys.readouterr().err


@pytest.mark.slow
def test_a_sweep_can_begin_anew_but_not_under_another_process(tmp_path, write, capsys):
    out = tmp_path / "runs"
    path = write(QUICK + "methods: er\nbuffers: 30\nseeds: 1\n")
    (run,) = read(path, configure, [])
    result = out / f"{run.name}.json"
    Run(run, out).run()
    at_first = result.stat().st_mtime_ns
    capsys.readouterr()
    sweep = ["sweep", str(path), "--out", str(out), "--fresh"]
    assert main([*sweep, "--dry-run"]) == 2
    with locked(out / f"{run.name}.lock", "held"):
        assert main(sweep) == 2
    both, held = capsys.readouterr().err.splitlines()
    assert "leave one of them out" in both and "is being run by another process" in held
    assert result.stat().st_mtime_ns == at_first
    assert main(sweep) == 0
    assert "already" not in capsys.readouterr().err and result.stat().st_mtime_ns != at_first


@pytest.mark.slow
def test_a_run_that_fails_or_is_held_by_another_process_stops_no_other(tmp_path, write, capsys):
    out = tmp_path / "runs"
    path = write(QUICK + "methods: er\nbuffers: [3, 30, 50]\nseeds: 1\n")
    too_small, held, good = read(path, configure, [])
    with locked(out / f"{held.name}.lock", "held"):
        assert main(["sweep", str(path), "--out", str(out)]) == 1
    said = capsys.readouterr().err.splitlines()
    (failure,) = [line for line in said if line.startswith(f"{too_small.name}: failed: ")]
    assert "10 classes" in failure
    assert f"1 of the runs is being made by another process: {held.name}" in said
    assert "1 of 3 runs failed; the same command continues them" in said
    assert [file.name for file in out.glob("*.json")] == [f"{good.name}.json"]


@pytest.mark.slow
def test_a_loss_that_is_not_finite_is_the_cause_that_is_named(tmp_path, write, capsys):
    path = write(QUICK.replace("nf: 4", "nf: 4, lr: 1e30") + "methods: er\nbuffers: 30\nseeds: 1\n")
    assert main(["sweep", str(path), "--out", str(tmp_path / "runs")]) == 1
    said = capsys.readouterr().err.splitlines()
    assert re.search("seed0: failed: .*loss", said[0])
    assert len(said) == 3


def test_two_sweeps_do_not_share_a_folder(tmp_path, write, capsys):
    path = write(QUICK + "methods: er\nseeds: 1\n")
    with locked(tmp_path / "runs" / ".sweep.lock", "held"):
        assert main(["sweep", str(path), "--out", str(tmp_path / "runs")]) == 2
    (said,) = capsys.readouterr().err.splitlines()
    assert f"another sweep works in {tmp_path / 'runs'}" in said and "--out" in said


def wait_for_checkpoint(process, out: Path, method: str = "*", done: int = 0) -> None:
    """Until a run of this method has saved its first task, and so many are done."""

    def there() -> bool:
        assert process.poll() is None, process.communicate()
        saved = any(map(checkpoint.exists, out.glob(f"digits-{method}-*.checkpoint")))
        return saved and len(list(out.glob("*.json"))) >= done

    wait_for(there, "a checkpoint", 120)


@pytest.mark.slow
def test_ctrl_c_saves_what_runs_and_report_works_in_the_middle(tmp_path, write, capsys):
    out = tmp_path / "runs"
    path = write("datasets: digits\nset: {nf: 4}\nmethods: [ncm, er]\nbuffers: 30\nseeds: 1\n")
    command = ("-m", "edge_hpcr", "sweep", path, "--out", out, "--jobs", "1")
    with started(*command, env=ENVIRONMENT) as process:
        wait_for_checkpoint(process, out, "er", done=1)
        process.send_signal(signal.SIGINT)
        said = process.communicate()[1]
    assert process.returncode == 1
    assert said.splitlines()[-1] == "stopped and saved; the same command continues"
    assert "Traceback" not in said
    assert checkpoint.exists(out / "digits-er-30-nf=4-seed0.checkpoint")
    assert main(["report", str(out)]) == 0
    told = capsys.readouterr()
    assert "ncm" in (told.out + told.err).casefold()
    assert "digits-er-30-nf=4-seed0.checkpoint: this run is under way or was stopped" in told.err
    assert main(["sweep", str(path), "--out", str(out)]) == 0


@pytest.mark.slow
def test_a_disk_that_fills_up_stops_a_run_in_one_line_and_the_same_command_continues_it(tmp_path, write):
    disk = tmp_path / "disk"
    disk.mkdir()
    path = write("datasets: digits\nlimit: 100\nset: {nf: 4}\nmethods: er\nbuffers: 30\nseeds: 1\n")
    command = ("-m", "edge_hpcr", "sweep", path, "--out", disk / "runs")
    with small_disk(disk) as mounted:
        if not mounted:
            pytest.skip("mounting a small disk needs root")
        with started(*command, env=ENVIRONMENT) as process:
            wait_for_checkpoint(process, disk / "runs")
            with full_disk(disk / "runs", np.random.default_rng(0)):  # whose first draw leaves no page
                said = process.communicate()[1]
        assert process.returncode == 1
        failure, *rest = said.splitlines()
        assert "failed: " in failure and "No space left on device" in failure
        assert rest == [
            "1 of 1 runs failed; the same command continues them",
            "0 of 1 runs are done",
        ]
        assert main(["sweep", str(path), "--out", str(disk / "runs")]) == 0
        (result,) = (disk / "runs").glob("*.json")
        (run,) = read(path, configure, [])
        assert matrix(result) == Run(run, tmp_path / "alone").run()["accuracy_matrix"]


@pytest.mark.slow
def test_a_terminal_shows_a_table_of_the_runs(tmp_path, write):
    out = tmp_path / "runs"
    path = write(QUICK + "methods: er\nbuffers: [3, 30]\nseeds: 1\n")
    Run(read(path, configure, [])[1], out).run()
    ours, its = pty.openpty()
    environment = {**ENVIRONMENT, "TERM": "xterm", "COLUMNS": "100", "LINES": "30"}
    with started("-m", "edge_hpcr", "sweep", path, "--out", out, stderr=its, env=environment) as process:
        os.close(its)
        shown = b""
        with os.fdopen(ours, "rb", buffering=0) as terminal:
            try:
                while part := terminal.read(4096):
                    shown += part
            except OSError:  # how Linux says that the other side has gone
                pass
        process.wait()
    text = shown.decode()
    assert re.search(r"digits-er-30-limit20-nf=4-seed0 +done +100% +\d", text)
    assert re.search(r"digits-er-3-limit20-nf=4-seed0 +running", text)
    assert re.search(r"digits-er-3-limit20-nf=4-seed0 +failed", text)
    assert "1 of 2 runs done" in text
