"""Benchmarks of the page: a run at a time, stopped and continued, and only what makes sense."""

import psutil
import pytest
from browser_parts import wait_for

from app.bench_runs import BenchRuns, Request
from app.tabs.benchmarks import dataset_note, runs_html
from edge_hpcr.common.errors import UserError

PATIENCE = 300.0  # the runs have a low priority, and other tests may want the machine
QUICK = Request(limit=2, size="20KB", seeds=1)


@pytest.fixture
def runs(tmp_path):
    made = []

    def make(root=None):
        made.append(BenchRuns(tmp_path / "benchmarks", root))
        return made[-1]

    yield make
    for each in made:
        each.stop()


def states(runs):
    return {view.name: view.state for view in runs.runs()}


def until(condition):
    return wait_for(condition, "the run", PATIENCE)


def process(runs):
    """The one of the run under way, once it has taken a step: before, it has nothing to save."""
    until(lambda: any(view.state == "running" and view.progress.get("step") for view in runs.runs()))
    children = psutil.Process().children
    return until(lambda: [one for one in children() if "spawn_main" in " ".join(one.cmdline())])[0]


@pytest.mark.slow
def test_seeds_are_run_one_after_the_other_saved_when_cancelled_and_continued(runs):
    one = runs()
    first, second = one.start(Request(seeds=2))
    assert process(one).nice() > psutil.Process().nice()
    assert states(one) == {first: "running", second: "waiting"} and "<progress" in runs_html(one.runs(), {})
    with pytest.raises(UserError):
        one.start(QUICK)
    one.cancel()
    until(lambda: not one._thread.is_alive())
    assert states(one)[first] == states(one)[second] == "stopped"
    assert (one.folder / f"{first}.checkpoint").is_dir()
    with pytest.raises(UserError):
        one.cancel()
    later = runs()  # as after a restart
    assert states(later) == {first: "stopped"}
    steps = later.runs()[0].progress["step"]
    assert later.start(Request(seeds=1)) == [first]
    process(later)
    assert later.runs()[0].progress["step"] >= steps > 0
    later.stop()
    assert states(later)[first] == "stopped"


@pytest.mark.slow
def test_what_goes_wrong_is_said(runs):
    one = runs()
    (name,) = one.start(Request(size="500B", limit=20, seeds=1))
    until(lambda: states(one)[name] == "failed")
    assert "cannot hold one sample" in one.runs()[0].problem


def test_data_that_are_not_here_are_refused_with_the_command_that_fetches_them(runs, tmp_path):
    one = runs(tmp_path / "data")
    with pytest.raises(UserError):
        one.start(Request("cifar10"))
    assert "<code>python -m edge_hpcr data get cifar10" in dataset_note(one, "cifar10")


@pytest.mark.parametrize(
    "values",
    [{"method": "magic"}, {"size": "2e3"}, {"limit": 0}, {"limit": "few"}, {"seeds": 0}],
)
def test_a_request_that_makes_no_sense_is_refused(values):
    with pytest.raises(UserError):
        Request(**values).configs()


def test_a_file_that_is_no_result_is_passed_over(runs):
    one = runs()
    one.folder.mkdir()
    (one.folder / "broken.json").write_text("{")
    assert one.runs() == [] and one.results() == {}
