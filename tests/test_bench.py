"""The split benchmark end to end, on the embedded digits, through the command that a researcher types."""

import json
import tempfile
from contextlib import ExitStack

import pytest
from disk_parts import full_disk, small_disk

from edge_hpcr.bench.run import Interrupted, Run
from edge_hpcr.bench.run_config import make_config
from edge_hpcr.commands.cli import main, make_writable
from edge_hpcr.common.files import Locked

QUICK = ["bench", "--dataset", "digits", "--limit", "40", "--buffer", "30", "--set", "nf=4"]


def quick_config(seed: int = 0, **options):
    options = {"limit": 40, "settings": {"nf": 4}, **options}
    return make_config("digits", seed=seed, buffer=30, device="cpu", **options)


def without_times(result: dict) -> dict:
    timed = {"train_seconds", "eval_seconds", "samples_per_second", "step_ms", "trunk_ms"}
    timed |= {"peak_rss_bytes", "finished"}
    return {key: value for key, value in result.items() if key not in timed}


@pytest.mark.slow
@pytest.mark.parametrize("what", ["save", "result"])
def test_a_disk_that_fills_up_stops_a_run_in_one_line_and_the_same_command_continues_it(
    tmp_path, monkeypatch, capsys, what
):
    """While it writes the checkpoint of its second task, or its result."""
    disk = tmp_path / "disk"
    disk.mkdir()
    command = [*QUICK, "--method", "er", "--device", "cpu", "--out", str(disk / "runs")]
    saved, step, filled = Run.save, {"save": 8, "result": 20}[what], ExitStack()
    done = getattr(Run, what)

    def fill_the_disk(run: Run):
        made = done(run) if what == "result" else None
        if run.learner.step == step:
            filled.enter_context(full_disk(disk / "runs"))
        return made if what == "result" else saved(run)

    with small_disk(disk) as mounted, monkeypatch.context() as patched, filled:
        if not mounted:
            pytest.skip("mounting a small disk needs root")
        patched.setattr(Run, what, fill_the_disk)
        assert main(command) == 1
        *_, failure = capsys.readouterr().err.splitlines()
        assert failure.startswith("edge_hpcr: ") and "No space left on device" in failure
        assert failure.endswith("; the same command continues")
        patched.undo()
        filled.close()
        assert main(command) == 0
        assert "task 1 of 5" not in capsys.readouterr().err, "it went on where it was saved"
        (result,) = (disk / "runs").glob("*.json")
        there = json.loads(result.read_text())["accuracy_matrix"]
    alone = Run(quick_config(method="er"), tmp_path / "alone").run()
    assert there == alone["accuracy_matrix"]


@pytest.mark.slow
def test_a_run_that_another_process_is_running_is_refused(tmp_path):
    def run_it_again(run: Run) -> None:
        with pytest.raises(Locked):
            Run(quick_config(), tmp_path).run()
        run.stop_requested = True

    with pytest.raises(Interrupted):
        Run(quick_config(), tmp_path).run(on_step=run_it_again)
    assert Run(quick_config(), tmp_path).run()["A_T"] > 0


@pytest.mark.slow
def test_seeds_run_in_processes_of_their_own_and_give_what_they_give_alone(tmp_path, capsys):
    assert main([*QUICK, "--seeds", "2", "--jobs", "2", "--out", str(tmp_path / "both")]) == 0
    table = capsys.readouterr().out
    assert main([*QUICK, "--seed", "1", "--out", str(tmp_path / "one")]) == 0
    (name,) = [path.name for path in (tmp_path / "one").glob("*.json")]
    both = json.loads((tmp_path / "both" / name).read_text())
    assert len(list((tmp_path / "both").glob("*.json"))) == 2
    assert without_times(both) == without_times(json.loads((tmp_path / "one" / name).read_text()))
    assert "±" in table


@pytest.mark.slow
def test_a_result_of_other_settings_is_never_taken_for_this_run(tmp_path, capsys):
    assert main([*QUICK, "--out", str(tmp_path)]) == 0
    assert main([*QUICK, "--device", "cpu", "--out", str(tmp_path)]) == 2
    assert "other settings" in capsys.readouterr().err
    assert main([*QUICK, "--tasks", "2", "--out", str(tmp_path)]) == 0
    assert len(list(tmp_path.glob("*.json"))) == 2


def test_a_cell_of_the_papers_table_has_the_papers_settings():
    one = make_config("cifar100", buffer=1000, settings={"lr": 0.01})
    assert one.learner.lr == 0.01 and one.learner.memory.samples == 1000 and one.learner.method == "hpcr"
    assert make_config("cifar10", "hpcr").learner.method_options == {"alpha": 0.01}


def test_two_commands_may_make_the_same_folder_at_the_same_moment(tmp_path, monkeypatch):
    """Each finds out by a file of its own whether it can write there."""
    make = tempfile.TemporaryFile

    def while_the_other_looks(*arguments, **options):
        monkeypatch.setattr(tempfile, "TemporaryFile", make)
        make_writable(tmp_path / "runs")
        return make(*arguments, **options)

    monkeypatch.setattr(tempfile, "TemporaryFile", while_the_other_looks)
    make_writable(tmp_path / "runs")
    assert (tmp_path / "runs").is_dir() and not [*(tmp_path / "runs").iterdir()]
