"""Sweeps on a real Ray cluster of this machine: a head that computes nothing, and nodes with a processor each.

The command is a process of its own, as a person starts it; the nodes are killed by SIGKILL.
"""

import json
import os
import re
import signal
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest
from browser_parts import wait_for
from process_parts import started

from benchmarks.endurance.trouble import full_disk, small_disk
from edge_hpcr.bench import datasets as data
from edge_hpcr.bench import ray_runner
from edge_hpcr.bench.datasets import Dataset, store
from edge_hpcr.bench.ray_worker import Place, difference, facts
from edge_hpcr.bench.run import Run, finished_result
from edge_hpcr.bench.sweep import read
from edge_hpcr.commands.bench import configure
from edge_hpcr.commands.cli import main
from edge_hpcr.learner import checkpoint

PATIENCE = 400.0
ENVIRONMENT = {**os.environ, "OMP_NUM_THREADS": "1"}
# Long enough to be caught in the middle. One run, so that it is made once to compare with.
LONG = "datasets: digits\nmethods: er\nbuffers: 30\ntasks: 10\nset: {nf: 8}\nseeds: 1\n"


class Nodes:
    """A cluster to which a test adds nodes; all look for datasets in a folder that is empty."""

    def __init__(self, empty: Path) -> None:
        from ray.cluster_utils import Cluster  # it takes a second, and most tests need none

        self._shape = {"object_store_memory": 80 * 2**20, "include_dashboard": False}
        self._environment = {"EDGE_HPCR_DATA": str(empty), "RAY_USAGE_STATS_ENABLED": "0"}
        head = {"num_cpus": 0, "env_vars": self._environment, **self._shape}
        self.cluster = Cluster(initialize_head=True, head_node_args=head)
        self.living = []

    def ensure(self, count: int) -> None:
        while len(self.living) < count:
            node = self.cluster.add_node(num_cpus=1, env_vars=self._environment, **self._shape)
            self.living.append(node)

    def kill_one(self) -> None:
        self.cluster.remove_node(self.living.pop(0), allow_graceful=False)

    @contextmanager
    def bad(self, folder: Path) -> Iterator[None]:
        """One more node, whose Python says that it is another one than ours."""
        folder.mkdir()
        (folder / "sitecustomize.py").write_text(
            "import platform\nplatform.python_version = lambda: '3.0.0'\n"
        )
        variables = {**self._environment, "PYTHONPATH": str(folder)}
        node = self.cluster.add_node(num_cpus=1, env_vars=variables, **self._shape)
        try:
            yield
        finally:
            self.cluster.remove_node(node)


@pytest.fixture(scope="module")
def nodes(tmp_path_factory):
    made = Nodes(tmp_path_factory.mktemp("empty"))
    try:
        yield made
    finally:
        made.cluster.shutdown()


@pytest.fixture
def sweep(tmp_path, nodes):
    """A function that writes a sweep file and starts the command; and the folder of its results."""

    def start(text: str, *options: str):
        (tmp_path / "sweep.yaml").write_text(text)
        command = ("-m", "edge_hpcr", "sweep", tmp_path / "sweep.yaml", "--out", tmp_path / "runs")
        place = ("--ray", nodes.cluster.address)
        return started(*command, *place, *options, env=ENVIRONMENT, patience=PATIENCE)

    return start


def runs_of(folder: Path):
    return read(folder / "sweep.yaml", configure, [])


def assert_each_run_is_there_once(folder: Path) -> None:
    """And nothing else is left in the folder."""
    assert sorted(path.name for path in (folder / "runs").iterdir()) == sorted(
        f"{run.name}.json" for run in runs_of(folder)
    )


@pytest.fixture(scope="module")
def here(tmp_path_factory) -> Path:
    """Where runs are made again without Ray, each once for all tests."""
    return tmp_path_factory.mktemp("here")


def assert_as_made_here(folder: Path, run, here: Path) -> None:
    there = json.loads((folder / "runs" / f"{run.name}.json").read_text())
    alone = finished_result(run, here) or Run(run, here).run()
    assert there["accuracy_matrix"] == alone["accuracy_matrix"]


def wait_until(process, condition, what: str) -> None:
    def met() -> bool:
        assert process.poll() is None, process.communicate()
        return condition()

    wait_for(met, what, PATIENCE)


@pytest.mark.slow
def test_twenty_runs_lose_nothing_when_one_of_two_nodes_is_killed(tmp_path, nodes, sweep, here):
    nodes.ensure(2)
    text = "datasets: digits\nlimit: 20\nset: {nf: 4}\nmethods: [hpcr, er, ncm, finetune]\nbuffers: 30\nseeds: 5\n"
    with sweep(text, "--shared") as process:
        wait_until(process, lambda: len(list((tmp_path / "runs").glob("*.json"))) >= 5, "five results")
        nodes.kill_one()
        said = process.communicate()[1]
    assert process.returncode == 0, said
    assert "Traceback" not in said
    endings = re.findall(r"^(\S+): done, accuracy", said, re.MULTILINE)
    assert len(runs_of(tmp_path)) == 20
    assert sorted(endings) == sorted(run.name for run in runs_of(tmp_path))
    assert_each_run_is_there_once(tmp_path)
    for run in runs_of(tmp_path)[::5]:
        assert_as_made_here(tmp_path, run, here)


@pytest.mark.slow
def test_a_run_whose_node_dies_continues_on_a_good_one_from_the_checkpoint_that_was_sent(
    tmp_path, nodes, sweep, here
):
    """Before the good one a node joins that cannot make runs: it is left out."""
    nodes.ensure(1)
    with sweep(LONG) as process:
        (run,) = runs_of(tmp_path)
        saved = tmp_path / "runs" / f"{run.name}.checkpoint"
        wait_until(process, lambda: checkpoint.exists(saved), "a checkpoint")
        while nodes.living:
            nodes.kill_one()
        said = ""
        with nodes.bad(tmp_path / "elsewhere"):
            while "has python 3.0.0" not in (line := process.stderr.readline()):
                assert line, said
                said += line
            assert line.endswith("; it is left out\n")
            nodes.ensure(1)
            said += process.communicate()[1]
    assert process.returncode == 0, said
    assert "3.0.0" not in said, "once is enough"
    assert f"{run.name}: its node or process died; it starts again where it was saved last" in said
    assert re.search(rf"{run.name}: continued at step [1-9]", said), said
    assert_each_run_is_there_once(tmp_path)
    assert_as_made_here(tmp_path, run, here)


@pytest.mark.slow
def test_ctrl_c_brings_the_checkpoint_home_where_the_run_can_continue(tmp_path, nodes, sweep, here):
    nodes.ensure(1)
    with sweep(LONG) as process:
        (run,) = runs_of(tmp_path)
        saved = tmp_path / "runs" / f"{run.name}.checkpoint"
        wait_until(process, lambda: checkpoint.exists(saved), "a checkpoint")
        process.send_signal(signal.SIGINT)
        said = process.communicate()[1]
    assert process.returncode == 1
    assert said.splitlines()[-1] == "stopped and saved; the same command continues"
    assert "Traceback" not in said
    assert checkpoint.exists(saved)
    assert main(["sweep", str(tmp_path / "sweep.yaml"), "--out", str(tmp_path / "runs")]) == 0
    assert_each_run_is_there_once(tmp_path)
    assert_as_made_here(tmp_path, run, here)


@pytest.mark.slow
def test_a_disk_that_is_full_at_home_stops_a_run_in_one_line(tmp_path, nodes, sweep):
    nodes.ensure(1)
    (tmp_path / "runs").mkdir()
    with small_disk(tmp_path / "runs") as mounted:
        if not mounted:
            pytest.skip("mounting a small disk needs root")
        with sweep(LONG) as process:
            (run,) = runs_of(tmp_path)
            saved = tmp_path / "runs" / f"{run.name}.checkpoint"
            wait_until(process, lambda: checkpoint.exists(saved), "a checkpoint")
            with full_disk(
                tmp_path / "runs" / "w", np.random.default_rng(0)
            ):  # whose first draw leaves no page
                said = process.communicate()[1]
        assert process.returncode == 1
        failure, *rest = said.splitlines()
        assert failure.startswith(f"{run.name}: failed: ") and "No space left on device" in failure
        assert rest[-1] == "0 of 1 runs are done"
        assert checkpoint.exists(saved), "the older one stays"


@pytest.mark.slow
def test_a_node_without_the_data_is_named_before_anything_runs(tmp_path, nodes, sweep, monkeypatch):
    nodes.ensure(1)
    images, labels = np.zeros((20, 28, 28), np.uint8), np.arange(20) % 10
    few = Dataset(images, labels, images, labels, tuple(map(str, range(10))), "mnist")
    store.write(tmp_path / "data", "mnist", few, "folder")
    monkeypatch.setitem(ENVIRONMENT, "EDGE_HPCR_DATA", str(tmp_path / "data"))
    with sweep("datasets: mnist\nmethods: er\nseeds: 1\n") as process:
        said = process.communicate()[1]
    assert process.returncode == 2, said
    (line,) = said.splitlines()
    assert f"node {socket.gethostname()} has no mnist" in line
    assert "`python -m edge_hpcr data get mnist`" in line
    assert not list((tmp_path / "runs").iterdir())


@pytest.mark.slow
def test_a_ray_of_its_own_makes_the_same_results(tmp_path, here):
    (tmp_path / "sweep.yaml").write_text("datasets: digits\nlimit: 20\nmethods: er\nbuffers: 30\nseeds: 1\n")
    command = ("sweep", tmp_path / "sweep.yaml", "--out", tmp_path / "runs", "--ray", "local", "--jobs", "1")
    with started("-m", "edge_hpcr", *command, env=ENVIRONMENT, patience=PATIENCE) as process:
        told, said = process.communicate()
    assert (process.returncode, told) == (0, ""), said
    assert len(said.splitlines()) == 2, "nothing of Ray's"
    assert_each_run_is_there_once(tmp_path)
    assert_as_made_here(tmp_path, *runs_of(tmp_path), here)


@pytest.fixture
def silent():
    """A server that takes connections and says nothing."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield f"127.0.0.1:{server.getsockname()[1]}"


def refusal(tmp_path, capsys, *options: str) -> str:
    (tmp_path / "sweep.yaml").write_text("datasets: digits\nmethods: er\nseeds: 1\n")
    assert main(["sweep", str(tmp_path / "sweep.yaml"), "--out", str(tmp_path / "runs"), *options]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    return line


@pytest.mark.slow
def test_an_address_that_is_not_rays_is_refused_in_one_line(tmp_path, capsys, silent, monkeypatch):
    monkeypatch.setattr(
        ray_runner, "ANSWER_SECONDS", 5.0
    )  # Ray's own check of a silent server takes most of a minute
    assert f"--ray {silent} answers, but not as Ray does" in refusal(tmp_path, capsys, "--ray", silent)
    with socket.socket() as free:  # bound, but nobody listens
        free.bind(("127.0.0.1", 0))
        nobody = f"127.0.0.1:{free.getsockname()[1]}"
        assert f"--ray {nobody} does not answer" in refusal(tmp_path, capsys, "--ray", nobody)
    assert "write the address" in refusal(tmp_path, capsys, "--ray", "somewhere")
    assert "does not answer" in refusal(tmp_path, capsys, "--ray", "127.0.0.1:99999")


@pytest.mark.parametrize("option", [["--cpus", "2"], ["--gpus", "1"], ["--shared"]])
def test_options_of_ray_are_refused_without_it(tmp_path, capsys, option):
    assert f"{option[0]} goes with --ray" in refusal(tmp_path, capsys, *option)


def test_a_node_is_asked_for_its_code_its_libraries_its_data_and_the_shared_folder(tmp_path):
    (tmp_path / "lock").write_text("1234\n")
    expected = facts(Place(None, tmp_path, tmp_path), ["digits", "cifar10"], "lock")
    assert difference("n1", expected, dict(expected)) is None
    assert expected["data digits"] == data.identity("digits")[:12] != ""
    assert expected["mark"] == "1234"
    for key, words in {
        "edge_hpcr": "n1 has edge_hpcr other",
        "source": "another source of edge_hpcr",
        "torch": "n1 has torch other",
        "numpy": "n1 has numpy other",
        "python": "n1 has python other",
        "data digits": "another digits than this machine",
        "mark": "does not see the result folder",
    }.items():
        assert words in difference("n1", expected, expected | {key: "other"})
    assert "has no digits" in difference("n1", expected, expected | {"data digits": ""})
    assert "cannot import edge_hpcr" in difference("n1", expected, {"missing": "No module named edge_hpcr"})
