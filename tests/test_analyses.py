"""`bench analyse`: every analysis in a tiny version, and its page."""

import json
from dataclasses import replace

import pytest

from benchmarks import paper
from benchmarks.paper.analysis import Runs
from edge_hpcr.commands.cli import main

TINY = {"seeds": 1, "limit": 10, "buffer": 10, "learner": {"nf": 2, "ema_decay": None}}
# What an analysis has beside those, made small; an analysis that is not named here runs with its own.
TINY_OF = {
    "temperature": {"taus": (0.05,), "lowest": (0.05,), "highest": (0.12,), "cycles": (5,)},
    "flatness": {"draws": 2, "images": 2},
    "contrastive": {"replays": (5, 60)},
    "cost": {
        "warm_up": 10,
        "rounds": 1,
        "counted": 1,
        "methods": ("hpcr", "er", "iid_pp", "gmed"),
    },
}


def tiny(name: str, **options):
    return replace(paper.analysis(name).small, **{**TINY, **TINY_OF.get(name, {}), **options})


@pytest.fixture(scope="module")
def results(tmp_path_factory) -> dict[str, dict]:
    """Every analysis there is, measured in its tiny version; runs are shared as they are in a user's folder."""
    runs = Runs(tmp_path_factory.mktemp("runs"), device="cpu")
    return {name: paper.analysis(name).result("small", tiny(name), runs) for name in paper.ANALYSES}


# Every analysis


@pytest.mark.slow
def test_every_analysis_makes_a_table_on_one_page(results, tmp_path, capsys):
    folder = tmp_path / "analyses"
    folder.mkdir()
    good = results["knowledge"]
    extra = {
        "broken": {**good, "measured": {"er": 3}},
        "older": {**good, "finished": "2020-01-01T00:00:00Z"},
    }
    for name, result in (results | extra).items():
        (folder / f"{name}.json").write_text(json.dumps(result, allow_nan=False))
    assert main(["report", str(folder), "--out", str(tmp_path / "docs")]) == 0
    text, said = (tmp_path / "docs" / "analyses.md").read_text(), capsys.readouterr().err
    assert "broken.json: damaged" in said and "older.json: the same run is in" in said
    for name in results:
        assert f"## {name}: " in text and paper.analysis(name).conclusion in text
