"""The page of verification: a verdict for every method, made from results alone."""

import json
from pathlib import Path
from typing import Any

import pytest

from edge_hpcr.bench import methods_page
from edge_hpcr.bench.report import Estimate, deviations, group
from edge_hpcr.commands.cli import main
from edge_hpcr.learner import methods

RESULTS = Path(__file__).parents[1] / "results"


@pytest.mark.parametrize(
    ("ours", "expected"),
    [
        (Estimate(), "runs"),  # nothing was run
        (Estimate(53.4), "reproduced"),
        (Estimate(54.8), "reproduced"),  # just inside
        (Estimate(52.0, 9.0), "reproduced"),
        (Estimate(54.9), "differs (+1.5)"),
        # Our own wide interval is told, and it still differs.
        (Estimate(40.0, 20.0), "differs (-13.4), within our interval"),
    ],
)
def test_a_verdict_is_whether_our_mean_lies_in_the_papers_interval(ours: Estimate, expected: str) -> None:
    assert methods_page.verdict(ours, Estimate(53.4, 1.4)) == expected


def test_a_method_that_the_paper_does_not_have_is_not_judged() -> None:
    assert methods_page.verdict(Estimate(50.0), Estimate()) == "runs"


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> str:
    path = tmp_path_factory.mktemp("page") / "methods.md"
    assert main(["report", str(RESULTS), str(RESULTS / "analyses"), "--methods", str(path)]) == 0
    return path.read_text()


def rows_of(page: str, heading: str) -> dict[str, list[str]]:
    table = page.partition(f"## {heading}")[2].partition("## ")[0]
    cells = [
        [cell.strip() for cell in line.strip("|").split("|")]
        for line in table.splitlines()
        if line[:1] == "|"
    ]
    return {row[0]: row for row in cells[2:]}


def test_every_method_has_a_verdict_a_cost_and_a_source(page: str) -> None:
    verdicts, costs = rows_of(page, "Verdicts"), rows_of(page, "What they keep and cost")
    judged = {row.partition(" ")[0] for row in verdicts}  # without the settings that are named behind
    for name in methods.names():
        assert name in judged and name in costs and f"- `{name}`: " in page
    assert costs["er"][3:5] == ["1.00", "1.00"] and costs["ocm"][5] == "16"
    assert costs["ss_il"][2] == "needs them" and costs["hpcr"][2] == "not needed"
    assert float(costs["ss_il"][7]) > 1.9  # a second network


def run_of(seed: int, accuracy: float, **learner: Any) -> dict[str, Any]:
    kept = json.loads((RESULTS / "cifar10-pcr-200-seed0.json").read_text())
    kept["config"]["learner"].update(learner)
    return kept | {"seed": seed, "A_T": accuracy}


def test_a_seed_that_ran_in_both_precisions_counts_once() -> None:
    runs = [run_of(0, 0.5), run_of(0, 0.6, compute="bfloat16"), run_of(1, 0.45, compute="bfloat16")]
    row = rows_of(methods_page.page(group(runs), None, ""), "Verdicts")["pcr"]
    assert row[3:6] == ["2", "0-1 in bfloat16; 0 in float32", "50.0 ± 63.5"]


def test_what_is_known_of_a_method_that_differs_stands_below_the_table() -> None:
    runs = [run_of(0, 0.5), run_of(0, 0.3) | {"method": "mir"}]
    told = methods_page.page(group(runs), None, "").partition(
        "What is known of those that differ by more than our interval:"
    )[2]
    assert told.partition("##")[0].strip() == f"- `mir`: {methods.method_class('mir').known_difference}."


def test_the_settings_that_a_method_brings_along_are_not_named_as_deviations() -> None:
    edge = json.loads((RESULTS / "cifar10-edge-2593600B-webp75-bfloat16-seed0.json").read_text())
    assert deviations(edge) == {"compute": "bfloat16"}
    edge["config"]["learner"]["memory"]["draw"] = "random"
    edge["config"]["learner"]["replay"] = 10
    assert deviations(edge) == {"compute": "bfloat16", "draw": "random", "replay": 10}


def test_the_page_in_the_repository_is_the_one_that_its_command_makes(page: str) -> None:
    kept = (RESULTS.parent / "docs" / "methods.md").read_text()
    assert kept.partition("## Verdicts")[2] == page.partition("## Verdicts")[2]


def test_two_pages_at_once_are_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["report", str(RESULTS), "--methods", "a.md", "--out", "b.md"]) == 2
    assert "--methods is not allowed with --out" in capsys.readouterr().err
