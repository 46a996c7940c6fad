"""Benchmarks of the page: a process each, one at a time, stopped and continued, beside what the paper says."""

import json
import os
import signal
import time

import psutil
import pytest
from process_parts import started

from app import bench_runs
from app.bench_runs import BenchRuns, Request
from edge_hpcr.bench.run import Interrupted, Run, make_config
from edge_hpcr.common.errors import UserError
from edge_hpcr.learner.memory import MemoryConfig
from edge_hpcr.workspace.folder import Workspace
from edge_hpcr.workspace.layout import Layout
from edge_hpcr.workspace.verify import verify_workspace

PATIENCE = 300.0  # the runs have a low priority, and other tests may want the machine
QUICK = Request(limit=20, size="20KB")
NAME = "digits-hpcr-20000B-limit20-seed0"


@pytest.fixture
def runs(tmp_path):
    made = []

    def make(root=None):
        made.append(BenchRuns(tmp_path / "benchmarks", root))
        return made[-1]

    yield make
    for each in made:
        each.stop()


def until(condition):
    deadline = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def state(runs, name=NAME):
    return {view.name: view.state for view in runs.runs()}.get(name)


@pytest.mark.parametrize("zone", ["UTC", "Europe/Berlin", "America/New_York"])
def test_the_end_of_a_run_is_read_as_utc_in_summer_too(monkeypatch, zone):
    monkeypatch.setenv("TZ", zone)
    time.tzset()
    try:
        for text, seconds in (("2026-07-01T12:00:00Z", 1782907200), ("2026-01-01T12:00:00Z", 1767268800)):
            result = {"seed": 0, "finished": text, "accuracy_matrix": [], "ema_accuracy_matrix": []}
            assert bench_runs.finished("x", result | {"train_seconds": 1.0}, None).at == seconds
    finally:
        monkeypatch.undo()
        time.tzset()


@pytest.mark.slow
def test_a_run_goes_to_its_end_at_low_priority_and_its_result_can_be_fetched(runs):
    one = runs()
    assert one.runs() == []
    assert one.start(QUICK) == [NAME]
    until(lambda: one._current is not None)
    process = one._current.process
    assert process.nice() == bench_runs.NICENESS and process.pid != os.getpid()
    with pytest.raises(UserError, match="is running already"):
        one.start(QUICK)
    assert one.result_file(NAME) is None
    until(lambda: state(one) == "finished")
    (view,) = one.runs()
    assert len(view.live) == len(view.averaged) == view.tasks == 5
    assert view.live[-1] == pytest.approx(view.result["A_T"])
    assert view.paper.mean is None  # a limit is not the paper's setting
    assert json.loads(one.result_file(NAME).read_text())["dataset"] == "digits"
    assert not (one.folder / f"{NAME}.progress").exists()
    with pytest.raises(UserError, match="is finished already"):
        one.start(QUICK)
    # Another program on the same folder finds it.
    assert state(runs()) == "finished"
    one.remove(NAME)
    assert one.runs() == [] and list(one.folder.iterdir()) == []


@pytest.mark.slow
def test_a_run_that_was_cancelled_saves_itself_and_continues_while_another_waits_its_turn(runs):
    one = runs()
    whole = Request(seeds=2)
    first, second = one.start(whole)
    until(lambda: (one.folder / f"{first}.progress").exists())
    assert state(one, first) == "running" and state(one, second) == "waiting"
    with pytest.raises(UserError, match="cancel it first"):
        one.remove(first)
    one.cancel(second)
    assert state(one, second) == "stopped"
    one.cancel(first)
    until(lambda: state(one, first) == "stopped")
    assert (one.folder / f"{first}.checkpoint").is_dir()
    with pytest.raises(UserError, match="not running"):
        one.cancel(first)
    # Only a program that starts later can say so, too.
    later = runs()
    assert {view.state for view in later.runs()} == {"stopped"}
    later.resume(first)
    assert state(later, first) in ("waiting", "running")
    with pytest.raises(UserError, match="only a run that was stopped"):
        later.resume(first)
    until(lambda: state(later, first) == "running")
    later.stop()
    until(lambda: state(later, first) == "stopped")


PROGRAM = """
import sys, time
from pathlib import Path
from app.bench_runs import BenchRuns, Request
folder = Path(sys.argv[1])
(name,) = BenchRuns(folder).start(Request())
while not (folder / f"{name}.progress").exists():
    time.sleep(0.02)
print(name, flush=True)
time.sleep(600)
"""


@pytest.mark.slow
def test_a_run_outlives_a_program_that_was_killed_and_is_taken_over_by_the_next(runs, tmp_path):
    with started("-c", PROGRAM, tmp_path / "benchmarks", patience=PATIENCE) as program:
        name = program.stdout.readline().strip()
    later = runs()
    assert state(later, name) == "running"
    pid = later._current.process.pid
    assert pid != program.pid and psutil.Process(pid).is_running()
    # Before its first step it has nothing to save.
    until(lambda: (later.folder / f"{name}.progress").exists())
    later.cancel(name)
    until(lambda: state(later, name) == "stopped")
    assert not psutil.pid_exists(pid) or psutil.Process(pid).status() == psutil.STATUS_ZOMBIE
    assert (later.folder / f"{name}.checkpoint").is_dir()


def test_a_run_that_is_killed_from_outside_is_called_failed_and_can_be_continued(runs):
    one = runs()
    (name,) = one.start(QUICK)
    until(lambda: one._current is not None)
    one._current.process.send_signal(signal.SIGKILL)
    until(lambda: state(one, name) == "failed")
    (view,) = one.runs()
    assert "SIGKILL" in view.problem and view.can_continue
    assert state(runs(), name) == "failed"


@pytest.mark.slow
def test_what_the_command_refuses_is_said_as_its_sentence(runs):
    one = runs()
    (name,) = one.start(Request(size="500", limit=20))
    until(lambda: state(one, name) == "failed")
    (view,) = one.runs()
    assert "cannot hold one sample" in view.problem and "Traceback" not in view.problem


def test_missing_data_are_answered_with_the_command_that_fetches_them(runs, tmp_path):
    one = runs(tmp_path / "nothing")
    with pytest.raises(UserError, match=r"python -m edge_hpcr data get cifar10 --root .*nothing"):
        one.start(Request("cifar10", kind="samples", size="200"))
    with pytest.raises(UserError, match="--source folder --folder DIR"):
        one.check_data("mini_imagenet")
    assert one.runs() == []
    one.check_data("digits")


def test_the_papers_value_stands_beside_a_run_of_its_setting_before_the_run_has_ended(runs):
    one = runs()
    one.folder.mkdir()
    options = Request("cifar10", kind="samples", size="200").options(0)
    asked = {"options": options, "at": 1.0}
    (one.folder / "cifar10-hpcr-200-seed0.asked").write_text(json.dumps(asked))
    (view,) = one.runs()
    assert view.paper.text == "53.4 ± 1.4" and view.state == "stopped"


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"dataset": "digits2"}, "unknown dataset"),
        ({"method": "magic"}, "unknown method"),
        ({"size": "much"}, "not a size in bytes"),
        ({"kind": "samples", "size": "2e3"}, "whole number of samples"),
        ({"kind": "samples", "size": "0"}, "whole number of samples"),
        ({"kind": "samples", "size": "9" * 400}, "whole number of samples"),
        ({"seeds": 0}, "from 1 to 15"),
        ({"seeds": 16}, "from 1 to 15"),
        ({"limit": 0}, "at least 1"),
    ],
)
def test_a_request_that_makes_no_sense_is_refused_in_a_sentence(values, message):
    with pytest.raises(UserError, match=message):
        Request(**values)


def test_only_results_can_be_fetched_and_only_runs_can_be_named(runs, tmp_path):
    one = runs()
    one.folder.mkdir()
    (tmp_path / "secret.json").write_text("{}")
    (one.folder / "broken.json").write_text("{")
    (one.folder / "broken.asked").write_text('{"options": ["--nonsense"], "at": 1.0}')
    for name in ("../secret", "broken", "", "/etc/passwd"):
        assert one.result_file(name) is None
        with pytest.raises(UserError, match="there is no run"):
            one.view(name)
        with pytest.raises(UserError, match="there is no run"):
            one.remove(name)
    assert (tmp_path / "secret.json").exists()


def test_a_workspace_with_benchmarks_is_whole_and_no_stranger(tmp_path):
    with Workspace.open(tmp_path / "w") as workspace:
        folder = workspace.layout.benchmarks
        folder.mkdir()
        (folder / "digits-hpcr-200-seed0.json").write_text("{}")
    assert verify_workspace(tmp_path / "w") == []
    (tmp_path / "new" / "benchmarks").mkdir(parents=True)
    assert Layout(tmp_path / "new").strangers() == []


@pytest.mark.slow
def test_a_run_of_the_command_tells_where_it_stands_in_a_file(tmp_path):
    seen = []

    def look(run):
        seen.append(json.loads(run.progress_path.read_text()))
        run.stop_requested = run.progress.task == 2

    memory = MemoryConfig(samples=30)
    config = make_config("digits", memory=memory, limit=20, device="cpu", learner_options={"nf": 4})
    run = Run(config, tmp_path)
    with pytest.raises(Interrupted):
        run.run(on_step=look)
    assert (seen[0]["step"], seen[0]["accuracy_matrix"], seen[0]["seconds_left"]) == (0, [], None)
    last = seen[-1]
    assert last["task"] == 2 and last["tasks"] == 5 and last["steps"] == run.steps_in_all
    assert [len(row) for row in last["accuracy_matrix"]] == [1, 2] and last["seconds_left"] > 0
    assert run.progress_path.exists()  # a run that was stopped still says how far it was
    Run(config, tmp_path).run()
    assert not run.progress_path.exists()
