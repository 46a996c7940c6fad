"""The page of verification: a verdict for every method, made from results alone."""

import io
import itertools
import re
from contextlib import redirect_stdout
from pathlib import Path

import pytest

from edge_hpcr.bench import methods_page
from edge_hpcr.bench.report import Estimate
from edge_hpcr.commands.cli import main
from edge_hpcr.learner import methods

RESULTS = Path(__file__).parents[1] / "results"


@pytest.mark.parametrize(
    ("ours", "seeds", "expected"),
    [
        (Estimate(), 0, "runs"),  # nothing was run
        (Estimate(53.4), 1, "open (+0.0, 1 seed)"),
        (Estimate(53.0, 29.5), 2, "open (-0.4, 2 seeds)"),
        (Estimate(54.8, 1.5), 3, "reproduced"),
        (Estimate(54.8, 1.3), 3, "open (+1.4)"),  # the paper's mean lies outside ours
        (Estimate(53.0, 9.0), 3, "open (-0.4)"),  # as wide as that, it reproduces anything
        (Estimate(50.0, 2.5), 3, "open (-3.4)"),
        (Estimate(48.0, 2.5), 5, "differs (-5.4)"),
    ],
)
def test_a_verdict_asks_for_three_seeds_and_both_intervals(ours: Estimate, seeds: int, expected: str) -> None:
    assert methods_page.verdict(ours, Estimate(53.4, 1.4), seeds) == expected


@pytest.fixture(scope="module")
def pages(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the pages and the table of the repository's own results."""
    folder = tmp_path_factory.mktemp("page")
    wanted = ["--out", str(folder), "--table", str(folder / "runs.csv")]
    with pytest.MonkeyPatch.context() as patch, redirect_stdout(io.StringIO()) as told:
        patch.chdir(RESULTS.parent)
        assert main(["report", "results/runs", "results/analyses", *wanted]) == 0
    pages = [folder / name for name in ("results.md", "choices.md", "analyses.md")]
    assert set.union(*map(table_lines, pages)) == table_lines(told.getvalue())
    return folder


def table_lines(page: Path | str) -> set[str]:
    text = page if isinstance(page, str) else page.read_text()
    return {line for line in text.splitlines() if line.startswith("|")}


def rows_of(page: str, heading: str) -> dict[str, list[str]]:
    table = page.partition(f"## {heading}")[2].partition("## ")[0]
    cells = [
        [cell.strip() for cell in line.strip("|").split("|")]
        for line in table.splitlines()
        if line[:1] == "|"
    ]
    return {row[0]: row for row in cells[2:]}


def test_every_method_has_a_verdict_a_cost_and_a_source(pages: Path) -> None:
    page = (pages / "methods.md").read_text()
    verdicts, costs = rows_of(page, "Verdicts"), rows_of(page, "What they keep and cost")
    judged = {row.partition(" ")[0] for row in verdicts}  # without what is said of it behind
    for name in methods.names():
        assert name in judged and name in {row.partition(" ")[0] for row in costs}
        assert f"\n- {name}: " in page or f"\n- {name} (built from descriptions): " in page
    assert costs["er"][3:5] == ["1.00", "1.00"] and costs["ocm"][5] == "16"
    assert costs["ss_il"][2] == "needs them" and costs["hpcr"][2] == "not needed"
    assert float(costs["ss_il"][7]) > 1.9  # a second network


PAGES = ("docs/results.md", "docs/choices.md", "docs/methods.md", "docs/analyses.md")


@pytest.mark.parametrize("name", [*PAGES, "results/runs.csv"])
def test_what_is_in_the_repository_is_what_the_command_makes(pages: Path, name: str) -> None:
    assert (RESULTS.parent / name).read_text() == (pages / Path(name).name).read_text()


@pytest.mark.parametrize("name", PAGES)
def test_what_is_built_from_descriptions_is_marked_wherever_it_appears(pages: Path, name: str) -> None:
    lines = (pages / Path(name).name).read_text().splitlines()
    rows = [line for line in lines if re.match(r"[|-] (obc|uer|er_wa)\b", line)]
    assert rows and all("built from descriptions" in row for row in rows)


def test_no_paragraph_stands_on_two_pages(pages: Path) -> None:
    """Tables and the sentences that lead to one are as alike as what they are about."""
    texts = [(pages / Path(name).name).read_text() for name in PAGES]
    paragraphs = [{each for each in text.split("\n\n") if len(each.split()) > 40} for text in texts]
    shared = [one & other for one, other in itertools.combinations(paragraphs, 2)]
    assert not any(shared), shared
