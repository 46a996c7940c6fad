"""Reports: seeds belong together, the paper's value stands beside what it may be compared with, nothing broken counts."""

import copy
import csv
import json
import re
from dataclasses import asdict
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import pytest

from edge_hpcr.bench import metrics, plots, presets, report
from edge_hpcr.bench.datasets import DATASETS
from edge_hpcr.bench.run import make_config
from edge_hpcr.commands.cli import main
from edge_hpcr.commands.report import read_folders
from edge_hpcr.learner import methods
from edge_hpcr.learner.memory import MemoryConfig


def matrix_with(final: float, tasks: int) -> list[list[float]]:
    """Every task is learned to 0.9 and is at `final` after the last one; the newest is no better than the others."""
    rows = [[0.8] * i + [0.9] for i in range(tasks - 1)]
    return [*rows, [final] * tasks]


def a_result(
    dataset: str = "cifar10",
    method: str = "hpcr",
    seed: int = 0,
    final: float = 0.5,
    samples: int | None = 200,
    memory: dict[str, Any] | None = None,
    learner_options: dict[str, Any] | None = None,
    **options: Any,
) -> dict[str, Any]:
    """What `bench` writes for such a run, with these accuracies."""
    kind = methods.method_class(method)
    method_options = kind.papers_options(dataset)
    method_options |= options.pop("method_options", {})
    size = MemoryConfig(**(memory or {"samples": samples}))
    config = make_config(
        dataset, method, seed, size, options.pop("tasks", None), method_options, learner_options, **options
    )
    tasks = 1 if kind.shuffled_passes else config.tasks
    live, averaged = matrix_with(final, tasks), matrix_with(final + 0.02, tasks)
    held = 200 if kind.uses_memory else 0
    classes = {str(c): final for c in range(DATASETS[dataset].classes)}
    resolved = methods.create(method, method_options).config_dict()
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
        setting = "ocm" if row["table"] == "paper_ocm_setting" else "paper"
        buffer = int(row["buffer"]) if row["buffer"] else None
        value = report.paper_value(row["method"], row["dataset"], buffer, row["metric"], setting)
        assert (value.mean, value.half) == (float(row["mean"]), float(row["ci95"]))


@pytest.mark.parametrize(
    "method",
    [name for name in methods.names() if "no row of the paper" not in methods.method_class(name).source],
)
def test_every_method_of_the_paper_has_the_papers_value_beside_it(method: str):
    assert row_of(a_result(method=method))["paper's A_T"] != report.NOTHING


def test_the_papers_values_stand_beside_a_run_with_the_papers_setting():
    row = row_of(a_result(final=0.547))
    assert (row["A_T"], row["paper's A_T"], row["diff"]) == ("54.7", "53.4 ± 1.4", "+1.3")
    assert (row["paper's AAA"], row["paper's F_T"]) == ("66.0 ± 2.7", "20.6 ± 2.4")


def test_a_measure_that_the_paper_does_not_give_for_a_method_stays_empty():
    row = row_of(a_result(method="pcr_ct", final=0.5))
    assert (row["paper's A_T"], row["diff"]) == ("51.3 ± 1.6", "-1.3")
    assert (row["paper's AAA"], row["paper's F_T"]) == (report.NOTHING, report.NOTHING)


@pytest.mark.parametrize(
    "options",
    [
        {"validation": True},
        {"limit": 500},
        {"tasks": 2},
        {"samples": 300},
        {"memory": {"bytes": 684_400}},
        {"memory": {"samples": 200, "codec": "webp"}},
        {"learner_options": {"batch_norm": "joint"}},
        {"method_options": {"alpha": 0.1}},
        {"method_options": {"schedule": "cosine"}},
    ],
    ids=str,
)
def test_a_run_with_another_setting_has_no_value_of_the_paper_beside_it(options: dict[str, Any]):
    row = row_of(a_result(**options))
    assert {row[name] for name in ("paper's A_T", "diff", "paper's AAA", "paper's F_T")} == {report.NOTHING}


@pytest.mark.parametrize(
    "options", [{"threads": 2}, {"device": "cpu"}, {"learner_options": {"ema_decay": None}}], ids=str
)
def test_what_cannot_change_the_live_accuracy_does_not_forbid_the_comparison(options: dict[str, Any]):
    assert row_of(a_result(**options))["paper's A_T"] == "53.4 ± 1.4"


def test_the_ocm_setting_is_compared_with_its_own_table():
    row = row_of(a_result("cifar100", samples=1000, learner_options=presets.OCM_SETTING))
    assert (row["method"], row["paper's A_T"]) == ("hpcr (OCM setting)", "33.6 ± 0.6")


def test_a_dataset_that_the_paper_does_not_have_gets_no_columns_for_it():
    assert not any("paper" in column for column in row_of(a_result("digits")))


def test_a_setting_that_was_added_after_a_run_does_not_set_the_run_apart():
    older = a_result()
    del older["config"]["learner"]["batch_norm"], older["config"]["method_options"]["distil"]
    assert row_of(older, a_result(seed=1))["n"] == "2"


def test_a_setting_that_a_run_is_older_than_had_its_default():
    older = a_result(method="edge")
    now = report.deviations(older)
    del older["config"]["learner"]["as_kept"], older["config"]["learner"]["augment"]["pad"]
    assert report.deviations(older) == now | {"as_kept": False, "augment.pad": 0.0}


# The tables


def test_the_seeds_of_one_setting_are_one_row_with_mean_and_interval():
    row = row_of(*(a_result(seed=seed, final=final) for seed, final in [(0, 0.51), (1, 0.52), (2, 0.53)]))
    assert (row["n"], row["seeds"], row["A_T"]) == ("3", "0-2", "52.0 ± 2.5")  # 4.303 · 1.0 / √3 = 2.48


def test_one_seed_shows_no_interval():
    row = row_of(a_result(seed=4, final=0.512))
    assert (row["n"], row["seeds"], row["A_T"]) == ("1", "4", "51.2")


def test_anytime_accuracy_and_forgetting_are_those_of_the_runs():
    row = row_of(a_result(final=0.5))
    # 0.9; (0.8 + 0.9)/2; (1.6 + 0.9)/3; (2.4 + 0.9)/4; 0.5. Of the four earlier tasks each fell from 0.9 to 0.5.
    assert (row["AAA"], row["F_T"]) == ("78.2", "40.0")


def test_runs_that_differ_in_anything_but_the_seed_are_rows_of_their_own():
    results = [
        a_result(),
        a_result(seed=1),
        a_result(method="er"),
        a_result(samples=500),
        a_result(memory={"bytes": 2_593_600}),
        a_result(memory={"bytes": 2_593_600, "codec": "webp"}),
        a_result(memory={"bytes": 2_590_000}),
        a_result(limit=100),
        a_result(validation=True),
        a_result(learner_options={"batch_norm": "joint"}),
        a_result("cifar100", samples=1000),
    ]
    rows = rows_of(report.table(results), 0) + rows_of(report.table(results), 3)
    assert [(row["method"], row["memory"], row["n"]) for row in rows] == [
        ("hpcr", "200 samples", "2"),
        ("er", "200 samples", "1"),
        ("hpcr", "500 samples", "1"),
        ("hpcr", "2.59 MB", "1"),
        ("hpcr", "2,593,600 B", "1"),
        ("hpcr", "2,593,600 B, webp 90", "1"),
        ("hpcr (batch_norm=joint)", "200 samples", "1"),
        ("hpcr (limit=100)", "200 samples", "1"),
        ("hpcr (validation)", "200 samples", "1"),
        ("hpcr", "1000 samples", "1"),
    ]


def test_the_averaged_weights_have_a_table_of_their_own():
    row = row_of(a_result(final=0.5), a_result(seed=1, final=0.5), table=1)
    assert (row["A_T"], row["vs live"]) == ("52.0 ± 0.0", "-2.0")  # the last column of this name is F_T's
    assert row["F_T"] == "38.0 ± 0.0"


def test_runs_without_averaged_weights_leave_their_cells_empty():
    without = a_result(method="er") | {"ema": None, "ema_accuracy_matrix": []}
    rows = rows_of(report.table([a_result(), without]), 1)
    assert [row["A_T"] for row in rows] == ["52.0", report.NOTHING]


def test_the_cost_is_the_mean_over_the_seeds_with_the_machine_named():
    slower = a_result(seed=1) | {
        "train_seconds": 1800.0,
        "samples_per_second": 20.0,
        "step_ms": {"p50": 300, "p95": 401},
    }
    text = report.table([a_result(), slower])
    (row,) = rows_of(text, 2)
    assert (row["held"], row["B/sample"], row["total"], row["overhead"]) == (
        "200",
        "3,422",
        "684.40 KB",
        "1.05, 1.10",
    )
    assert (row["samples/s"], row["step ms p50, p95"], row["train min"]) == ("30.8", "270, 351", "25.0")
    assert text.count("- Machine ") == 1
    assert "- Machine 1: Some Processor (x86_64), 1 thread, device auto; python 3.11.2, torch 2.15.0" in text


def test_seeds_that_ran_on_two_machines_name_both():
    elsewhere = a_result(seed=1)
    elsewhere["versions"]["hardware"] = "Another Processor (aarch64)"
    text = report.table([a_result(), elsewhere])
    assert rows_of(text, 2)[0]["machine"] == "1, 2"
    assert "- Machine 2: Another Processor (aarch64)" in text


def test_a_reference_row_without_memory_and_tasks_shows_neither_bytes_nor_forgetting():
    result = a_result(method="iid", final=0.6)
    row, cost = row_of(result), row_of(result, table=2)
    assert (row["memory"], row["A_T"], row["F_T"], row["paper's A_T"]) == (
        "none",
        "60.0",
        report.NOTHING,
        "58.1 ± 2.5",
    )
    assert (cost["held"], cost["B/sample"], cost["total"]) == (report.NOTHING, report.NOTHING, report.NOTHING)


def test_the_columns_of_a_table_stand_in_line_and_fit_a_wide_terminal():
    results = [a_result(seed=seed, final=0.5 + seed / 100) for seed in range(3)]
    lines = [
        line for line in report.table([*results, a_result(method="er")]).splitlines() if line.startswith("|")
    ]
    for table in (lines[:4], lines[4:8], lines[8:]):
        assert len({tuple(i for i, letter in enumerate(line) if letter == "|") for line in table}) == 1
    assert max(map(len, lines)) <= 150


# The command


@pytest.mark.slow
def test_the_command_prints_the_tables_and_draws_beside_the_results(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    folder = write(tmp_path / "runs", a_result("digits"), a_result("digits", seed=1, final=0.6))
    assert main(["report", str(folder)]) == 0
    printed = capsys.readouterr()
    assert rows_of(printed.out)[0]["n"] == "2"
    assert "left out" not in printed.err
    names = {path.name for path in (folder / "plots").iterdir()}
    assert names == {"digits-accuracy.png", "digits-matrix.png", "digits-classes.png"}


def test_several_folders_are_one_report(tmp_path: Path):
    first, second = (
        write(tmp_path / "a", a_result("digits")),
        write(tmp_path / "b", a_result("digits", seed=1)),
    )
    found, left_out = read_folders([first, second])
    assert left_out == []
    assert row_of(*found.values())["seeds"] == "0-1"


def _without(result: dict[str, Any], *path: str) -> dict[str, Any]:
    changed = copy.deepcopy(result)
    place = changed
    for key in path[:-1]:
        place = place[key]
    del place[path[-1]]
    return changed


GOOD = a_result("digits")
BROKEN = {
    "cut short": json.dumps(GOOD)[:-100],
    "empty": "",
    "not text": "\udcff\udcfe",
    "a list": "[1, 2]",
    "a speed measurement": json.dumps({"samples_per_second": 41.0}),
    "not finished": json.dumps(_without(GOOD, "finished")),
    "without its configuration": json.dumps(_without(GOOD, "config")),
    "without its memory's size": json.dumps(_without(GOOD, "config", "learner", "memory", "samples")),
    "a measure that is no number": json.dumps(GOOD | {"A_T": "good"}),
    "a measure that does not follow": json.dumps(GOOD | {"A_T": 0.99}),
    "a matrix with a hole": json.dumps(GOOD | {"accuracy_matrix": [[0.9], [0.5], [0.6, 0.3, 0.7]]}),
    "an accuracy above one": json.dumps(GOOD | {"accuracy_matrix": [[7.0]]}),
    "an average of other tasks": json.dumps(
        GOOD | {"ema_accuracy_matrix": [[0.5]], "ema": metrics.summary([[0.5]])}
    ),
    "an average that does not follow": json.dumps(GOOD | {"ema": GOOD["ema"] | {"F_T": 0.99}}),
    "a class missing": json.dumps(GOOD | {"class_accuracy": [{}] * 4 + [{"0": 0.5}]}),
    "an unknown method": json.dumps(GOOD | {"method": "telepathy"}),
    "an unknown dataset": json.dumps(GOOD | {"dataset": "cats"}),
}


@pytest.mark.parametrize("content", BROKEN.values(), ids=BROKEN.keys())
def test_a_file_that_is_no_whole_result_is_named_and_left_out(content: str, tmp_path: Path):
    folder = write(tmp_path / "runs", a_result("digits", seed=1))
    (folder / "broken.json").write_text(content, errors="surrogateescape")
    found, left_out = read_folders([folder])
    assert list(found) == [folder / "00.json"]
    assert len(left_out) == 1 and left_out[0].startswith(f"{folder / 'broken.json'}: ")


def test_a_run_under_way_is_named_and_a_finished_one_with_its_last_checkpoint_is_not(tmp_path: Path):
    folder = write(tmp_path / "runs", a_result("digits"))
    for name in ("00", "digits-hpcr-200-seed1"):
        (folder / f"{name}.checkpoint").mkdir()
        (folder / f"{name}.checkpoint" / "checkpoint.json").write_text("{}")
    found, left_out = read_folders([folder])
    assert len(found) == len(left_out) == 1
    assert "digits-hpcr-200-seed1.checkpoint" in left_out[0] and "under way" in left_out[0]


@pytest.mark.slow
def test_what_is_left_out_is_said_and_the_rest_is_reported(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    folder = write(tmp_path / "runs", a_result("digits", seed=1))
    (folder / "broken.json").write_text("{")
    assert main(["report", str(folder)]) == 0
    printed = capsys.readouterr()
    assert f"left out: {folder / 'broken.json'}: damaged" in printed.err
    assert rows_of(printed.out)[0]["seeds"] == "1"


@pytest.mark.parametrize("turned", [False, True])
def test_the_same_run_in_two_folders_counts_once_and_the_later_one_wins(turned: bool, tmp_path: Path):
    later = a_result("digits", final=0.7) | {"finished": "2026-02-01T00:00:00Z"}
    newer, older = write(tmp_path / "a", later), write(tmp_path / "b", a_result("digits", final=0.5))
    found, left_out = read_folders([older, newer] if turned else [newer, older])
    assert [result["A_T"] for result in found.values()] == [0.7]
    assert left_out == [f"{older / '00.json'}: the same run is in {newer / '00.json'}, as late or later"]


def test_a_folder_given_twice_is_read_once(tmp_path: Path):
    folder = write(tmp_path / "runs", a_result("digits"))
    found, left_out = read_folders([folder, folder])
    assert len(found) == 1 and left_out == []


@pytest.mark.parametrize("there", [True, False])
def test_without_any_result_the_error_says_what_makes_one(
    there: bool, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    folder = tmp_path / "runs"
    if there:
        write(folder)
    assert main(["report", str(folder)]) == 2
    printed = capsys.readouterr()
    assert printed.out == "" and len(printed.err.splitlines()) == 1
    assert "bench" in printed.err and str(folder) in printed.err


@pytest.mark.slow
def test_an_output_that_cannot_be_written_is_one_clear_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    folder = write(tmp_path / "runs", a_result("digits"))
    (tmp_path / "file").write_text("in the way")
    assert main(["report", str(folder), "--plots", str(tmp_path / "file")]) == 2
    assert "cannot write plots" in capsys.readouterr().err.splitlines()[-1]
    assert main(["report", str(folder), "--out", str(folder)]) == 2
    assert f"cannot write {folder}" in capsys.readouterr().err.splitlines()[-1]


# The page


@pytest.mark.slow
def test_the_page_says_how_it_was_made_and_shows_its_plots(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    write(Path("results"), a_result("digits"), a_result())
    assert main(["report", "results", "--out", "docs/results.md"]) == 0
    text = Path("docs/results.md").read_text(encoding="utf-8")
    assert "`python -m edge_hpcr report results --out docs/results.md`" in text
    assert "- `results/00.json`\n- `results/01.json`\n" in text
    assert text.index("## digits") < text.index("](plots/digits-matrix.png)") < text.index("## cifar10")
    shown = re.findall(r"!\[.+\]\((.+)\)", text)
    assert len(shown) == 6
    for path in shown:
        assert (Path("docs") / path).is_file()
    assert rows_of(text, 3)[0]["paper's A_T"] == "53.4 ± 1.4"


@pytest.mark.slow
def test_plots_that_lie_elsewhere_are_not_linked(tmp_path: Path):
    folder = write(tmp_path / "runs", a_result("digits"))
    page = tmp_path / "docs" / "results.md"
    assert main(["report", str(folder), "--out", str(page), "--plots", str(tmp_path / "plots")]) == 0
    assert "![" not in page.read_text(encoding="utf-8")


@pytest.mark.slow
def test_the_same_files_give_the_same_bytes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    results = [a_result("digits", seed=seed, final=0.5 + seed / 100) for seed in range(3)]
    made = []
    for place, order in (("a", results), ("b", results[::-1])):
        (tmp_path / place).mkdir()
        monkeypatch.chdir(tmp_path / place)
        Path("results").mkdir()
        for result in order:  # written in another order, under the same names
            Path(f"results/seed{result['seed']}.json").write_text(json.dumps(result))
        assert main(["report", "results", "--out", "docs/results.md"]) == 0
        files = sorted(path for path in Path("docs").rglob("*") if path.is_file())
        made.append({path.as_posix(): path.read_bytes() for path in files})
    assert len(made[0]) == 4
    assert made[0] == made[1]


# The plots


def drawn(folder: Path, *results: dict[str, Any]) -> dict[str, np.ndarray]:
    """Each plot's pixels; a file that is no whole image fails here."""
    images = {}
    for _, _, path in plots.draw(report.group(results), folder):
        image = cv2.imread(str(path))
        assert image is not None
        images[path.name] = image
    return images


@pytest.mark.slow
def test_plots_are_images_of_a_readable_size_with_something_on_them(tmp_path: Path):
    results = [a_result(seed=seed, final=0.5 + seed / 50) for seed in range(3)]
    results += [a_result(method="er", seed=seed, final=0.4) for seed in range(2)]
    results += [a_result(method="iid", final=0.6), a_result(method="finetune", final=0.2)]
    images = drawn(tmp_path, *results)
    assert set(images) == {"cifar10-accuracy.png", "cifar10-matrix.png", "cifar10-classes.png"}
    for image in images.values():
        height, width, _ = image.shape
        assert 400 <= height <= 2000 and 600 <= width <= 2000
        assert 0.01 < (image < 250).any(axis=2).mean() < 0.9
        edge = np.concatenate([image[0], image[-1], image[:, 0], image[:, -1]])
        assert edge.min() > 200  # no text runs out of the picture


@pytest.mark.slow
def test_many_tasks_and_many_classes_still_fit(tmp_path: Path):
    for image in drawn(tmp_path, a_result("tiny_imagenet", samples=2000)).values():
        assert max(image.shape) <= 2500
        edge = np.concatenate([image[0], image[-1], image[:, 0], image[:, -1]])
        assert edge.min() > 200


def test_runs_that_do_not_compare_are_not_in_one_figure():
    groups = report.group([a_result(), a_result(validation=True), a_result(limit=500), a_result(method="er")])
    found = {name: [one.title for one in members] for _, name, members in plots.figures(groups)}
    assert found == {
        "cifar10": ["hpcr", "er"],
        "cifar10-limit500": ["hpcr (limit=500)"],
        "cifar10-validation": ["hpcr (validation)"],
    }


def test_more_settings_than_colours_make_a_second_figure():
    groups = report.group([a_result(samples=100 * size) for size in range(1, plots.GROUPS_PER_FIGURE + 2)])
    found = {name: len(members) for _, name, members in plots.figures(groups)}
    assert found == {"cifar10-1": plots.GROUPS_PER_FIGURE, "cifar10-2": 1}


def test_runs_without_tasks_have_only_classes_to_show(tmp_path: Path):
    assert set(drawn(tmp_path, a_result(method="iid"))) == {"cifar10-classes.png"}


def test_the_lines_are_the_mean_accuracies_after_each_task_and_the_dashed_ones_the_averaged_weights(
    tmp_path: Path,
):
    groups = report.group(
        [a_result(seed=seed, final=final) for seed, final in [(0, 0.4), (1, 0.5), (2, 0.6)]]
    )
    axes = plots.accuracy_over_tasks("cifar10", groups).axes[0]
    live, averaged = axes.lines
    assert live.get_ydata() == pytest.approx([90, 85, 250 / 3, 82.5, 50])
    assert (averaged.get_linestyle(), averaged.get_ydata()[-1]) == ("--", pytest.approx(52))
    band = axes.collections[0].get_paths()[0].vertices[:, 1]
    assert (band.min(), band.max()) == pytest.approx((50 - 24.84, 90), abs=0.01)


def test_a_matrix_shows_the_mean_of_the_seeds_and_nothing_above_its_diagonal():
    groups = report.group([a_result(seed=seed, final=final) for seed, final in [(0, 0.4), (1, 0.6)]])
    axes = plots.accuracy_matrices("cifar10", groups).axes[0]
    shown = {text.get_position(): text.get_text() for text in axes.texts}
    assert len(shown) == 15
    assert (shown[0, 0], shown[0, 1], shown[2, 4]) == (
        "90",
        "80",
        "50",
    )  # at (task tested on, task learned last)


def test_the_classes_of_a_known_dataset_have_names():
    labels = [
        text.get_text()
        for text in plots.class_accuracies("cifar10", report.group([a_result()])).axes[-1].get_xticklabels()
    ]
    assert labels[:3] == ["airplane", "automobile", "bird"]
