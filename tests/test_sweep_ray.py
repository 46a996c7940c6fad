"""Sweeps on a real Ray cluster of this machine: a head that computes nothing, and two nodes with a processor each.

The command is a process of its own, as a person starts it; a node is killed by SIGKILL.
"""

import json
import os
import re
import signal
from pathlib import Path

import psutil
import pytest
from browser_parts import wait_for
from process_parts import started

from edge_hpcr import __version__
from edge_hpcr.bench.ray_runner import check_node
from edge_hpcr.bench.run import Run
from edge_hpcr.bench.sweep import read
from edge_hpcr.common.errors import UserError
from edge_hpcr.learner import checkpoint

PATIENCE = 580.0  # on a busy machine
SHAPE = {"object_store_memory": 80 * 2**20, "include_dashboard": False}
# Long enough to be caught in the middle, by its checkpoint after the first of its tasks.
LONG = "datasets: digits\nbuffers: 30\ntasks: 10\nset: {nf: 8}\nmethods: er\n"


@pytest.fixture(scope="module")
def cluster(tmp_path_factory):
    """Of a head that computes nothing and two nodes."""
    from ray.cluster_utils import Cluster  # it takes a second, and the other tests need none

    # Nodes look for datasets in a folder of their own, which is empty: the digits are built in.
    empty = tmp_path_factory.mktemp("empty")
    environment = {"EDGE_HPCR_DATA": str(empty), "RAY_USAGE_STATS_ENABLED": "0", "OMP_NUM_THREADS": "1"}
    made = Cluster(initialize_head=True, head_node_args={"num_cpus": 0, "env_vars": environment, **SHAPE})
    try:
        made.nodes = [made.add_node(num_cpus=1, env_vars=environment, **SHAPE) for _ in range(2)]
        yield made
    finally:
        made.shutdown()


@pytest.fixture
def sweep(tmp_path):
    """A function that writes a sweep file and starts the command."""

    def start(text: str, *options: object):
        (tmp_path / "sweep.yaml").write_text(text)
        command = ("-m", "edge_hpcr", "sweep", tmp_path / "sweep.yaml", "--out", tmp_path / "runs")
        return started(*command, *options, env={**os.environ, "OMP_NUM_THREADS": "1"}, patience=PATIENCE)

    return start


def wait_for_checkpoint(process, folder: Path) -> None:
    def there() -> bool:
        assert process.poll() is None, process.communicate()
        return any(map(checkpoint.exists, (folder / "runs").glob("*.checkpoint")))

    wait_for(there, "a checkpoint", PATIENCE)


def assert_it_is_there_alone_and_as_made_here(folder: Path) -> None:
    """The run's result, and nothing else is left in the folder."""
    (run,) = read(folder / "sweep.yaml")
    (path,) = (folder / "runs").iterdir()
    assert path.name == f"{run.name}.json"
    assert (
        json.loads(path.read_text())["accuracy_matrix"] == Run(run, folder / "here").run()["accuracy_matrix"]
    )


def is_at_work(node) -> bool:
    """Whether a run is made on this node of the cluster."""
    (raylet,) = node.all_processes["raylet"]
    return any(
        "ray::work" in " ".join(child.cmdline()) for child in psutil.Process(raylet.process.pid).children()
    )


@pytest.mark.slow
def test_when_the_node_of_a_run_is_killed_another_continues_it_and_ctrl_c_brings_its_checkpoint_home(
    cluster, tmp_path, sweep
):
    """One cluster for both, because to start it takes longer than the runs."""
    with sweep(LONG + "seeds: [0]\n", "--ray", cluster.address) as process:
        wait_for_checkpoint(process, tmp_path)
        (node,) = [node for node in cluster.nodes if is_at_work(node)]
        cluster.remove_node(node, allow_graceful=False)
        said = process.communicate()[1]
    assert process.returncode == 0, said
    (run,) = read(tmp_path / "sweep.yaml")
    assert said.splitlines()[0] == f"edge_hpcr: {run.name}: continued from its checkpoint"
    assert len(re.findall(r": done, accuracy", said)) == 1
    assert_it_is_there_alone_and_as_made_here(tmp_path)

    (tmp_path / "runs" / f"{run.name}.json").unlink()
    with sweep(LONG + "seeds: [1]\n", "--ray", cluster.address) as process:
        wait_for_checkpoint(process, tmp_path)
        process.send_signal(signal.SIGINT)
        told, said = process.communicate()
    assert (process.returncode, told) == (1, "")
    assert said.splitlines() == ["edge_hpcr: stopped and saved; the same command continues"]
    (run,) = read(tmp_path / "sweep.yaml")
    progress = checkpoint.facts(tmp_path / "runs" / f"{run.name}.checkpoint")["notes"]["progress"]
    assert progress["position"] > 0, "it was stopped within a task, and saved itself there"
    Run(run, tmp_path / "runs").run()
    assert_it_is_there_alone_and_as_made_here(tmp_path)


def test_a_node_of_another_version_or_without_the_data_is_refused(tmp_path):
    check_node("digits", tmp_path, __version__)
    with pytest.raises(UserError, match="install the same there"):
        check_node("digits", tmp_path, "0.0.1")
    with pytest.raises(UserError, match="data get cifar10"):
        check_node("cifar10", tmp_path, __version__)
