"""Every figure of README's tables is the one that the files in `results` give; and the bytes that docs/edge.md adds up."""

import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from edge_hpcr.bench import report, teach
from edge_hpcr.bench.datasets import DATASETS
from edge_hpcr.bench.run_config import make_config
from edge_hpcr.common.units import format_bytes
from edge_hpcr.learner.learner import Learner

ROOT = Path(__file__).parent.parent
Row = Sequence[str]


def tables() -> list[list[Row]]:
    """The rows of README's tables without their heads."""
    text = (ROOT / "README.md").read_text()
    found = re.findall(r"(?:^\|.*\|$\n?)+", text, re.MULTILINE)
    return [
        [[cell.strip() for cell in line.strip("|").split("|")] for line in each.splitlines()]
        for each in found
    ]


@pytest.fixture(scope="module")
def results() -> list[dict[str, Any]]:
    found, left_out = report.read_folders([ROOT / "results" / "runs"])
    assert not left_out
    return list(found.values())


@pytest.fixture(scope="module")
def groups(results: list[dict[str, Any]]) -> list[report.Group]:
    return [
        one for one in report.group(each for each in results if not report.kind_of(each)) if not one.validates
    ]


def test_there_are_four_tables_and_six_hundred_words():
    text = (ROOT / "README.md").read_text()
    assert len(tables()) == 4
    assert len([word for line in text.splitlines() if line[:1] != "|" for word in line.split()]) <= 600


def test_few_labels(results: list[dict[str, Any]]):
    (contestants,) = [
        each
        for each in teach.group(each for each in results if report.kind_of(each) == "teach")
        if each[0].heading.startswith("cifar100: 10 classes") and len(each[0].results) == 10
    ]
    told = re.search(
        r"([\d.]+ ± [\d.]+) at 5 labels and ([\d.]+ ± [\d.]+) at 20", (ROOT / "README.md").read_text()
    )
    (lite0,) = [one for one in contestants if one.title == "ours"]
    assert told and list(told.groups()) == [report.Estimate.of(lite0.accuracies(n)).text for n in (5, 20)]
    tiny = " (backbone=tiny_vit_5m)"
    contestants = [one for one in contestants if one.title.endswith(tiny)]
    head, _, *rows = tables()[0]
    assert {row[0].split(",")[0] + tiny for row in rows} == {one.title for one in contestants}
    for row in rows:
        (one,) = [one for one in contestants if one.title == row[0].split(",")[0] + tiny]
        assert row[1:] == [report.Estimate.of(one.accuracies(int(count))).text for count in head[1:]]


def cell(groups: list[report.Group], dataset: str, samples: str, method: str, precision: str) -> report.Group:
    """The runs in the paper's setting."""
    wanted = (dataset, f"{samples} samples", method, precision)
    (one,) = [
        each
        for each in groups
        if (each.dataset, each.memory, each.method, each.precision) == wanted and not each.differing
    ]
    return one


def test_the_papers_cells(groups: list[report.Group]):
    for where, what, seeds, ours, papers, paired in tables()[1][2:]:
        (dataset, samples), (method, precision) = where.split(", "), what.split(", ")
        one = cell(groups, dataset, samples, method, precision)
        assert [seeds, ours, papers] == [one.n, one.estimate("A_T").text, one.paper("A_T").text]
        assert int(seeds) >= 3
        if paired:
            n, difference = one.above(cell(groups, dataset, samples, "hpcr", precision))
            assert n >= 3 and paired == difference.signed


def test_the_same_bytes(groups: list[report.Group]):
    papers = {1296800: 100, 2593600: 200, 6484000: 500, 13328000: 1000}
    for where, seeds, ours, theirs in tables()[2][2:]:
        dataset, size = where.split(", ")
        (one,) = [
            each
            for each in groups
            if (each.dataset, each.method, each.conditions) == (dataset, "edge", "")
            and each.deviations.keys() <= {"compute"}
            and each.results[0]["config"]["learner"]["memory"]["bytes"] == int(size)
        ]
        assert [seeds, ours] == [one.n, one.estimate("A_T").text] and int(seeds) >= 3
        assert theirs == report.paper_value("hpcr", dataset, papers[int(size)], "A_T").text


def authors_bytes(dataset: str, buffer: int) -> int:
    """What the authors' program keeps of so many samples: image, feature and logits in 32-bit floats."""
    return buffer * 4 * (3 * 32**2 + 160 + DATASETS[dataset].classes)


def test_all_bytes_of_edge_and_of_the_papers_learner():
    told = re.findall(
        r"([0-9.]+ MB) \| ([0-9.]+) ± [0-9.]+ \| ([0-9.]+ MB)", (ROOT / "docs" / "edge.md").read_text()
    )
    cells = [("cifar10", 100), ("cifar10", 200), ("cifar10", 500), ("cifar100", 1000)]
    assert len(told) == len(cells)
    for (dataset, samples), (ours, _, papers) in zip(cells, told, strict=True):
        replay = authors_bytes(dataset, samples)
        learner = Learner(make_config(dataset, "edge", budget=replay).learner, "cpu")
        for class_id in range(DATASETS[dataset].classes):
            learner.add_class(class_id)
        learner.observe(np.zeros((10, 32, 32, 3), np.uint8), range(10))  # which makes the optimiser's state
        own = learner.learner_bytes()
        assert [ours, papers] == [format_bytes(replay + own["total"]), format_bytes(replay + own["weights"])]


def test_devices():
    machine = {
        path.stem: json.loads(path.read_text()) for path in (ROOT / "results" / "machine").glob("*.json")
    }
    one = machine["latency-224"]["latency"][0]
    times = one.get("wall_ms") or one["ms"]
    measured = [
        f"{machine['product']['installation']['megabytes']:.0f}",
        f"{times['onnx']['median']:.1f}",
        f"{times['int8']['median']:.1f}",
        f"{machine['product']['polls']['answer_ms']['p95']:.1f}",
    ]
    assert [row[1] for row in tables()[3][2:]] == measured


@pytest.mark.parametrize(
    "page", [*ROOT.glob("*.md"), *ROOT.glob("docs/*.md"), ROOT / "results" / "README.md"], ids=str
)
def test_every_file_that_a_page_links_to_is_there(page: Path):
    named = re.findall(r"\]\(([^)#\s]+)", page.read_text())
    assert not [each for each in named if "://" not in each and not (page.parent / each).exists()]
