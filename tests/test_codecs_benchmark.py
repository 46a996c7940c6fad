"""The benchmark of codecs measures what its columns say."""

import json

import pytest

from benchmarks import codecs
from edge_hpcr.commands.cli import run


@pytest.fixture(scope="module")
def rows(tmp_path_factory):
    """What a quick run leaves behind, without CIFAR10 at hand."""
    out = tmp_path_factory.mktemp("codecs") / "codecs.json"
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("EDGE_HPCR_DATA", str(out.parent / "no data"))
        assert run(codecs.commands, "codecs", ["--quick", "--out", str(out)]) == 0
    assert "jpeg 4:4:4 90" in out.with_suffix(".md").read_text()
    return json.loads(out.read_text())["rows"]


def of(rows, side, codec, quality=None):
    return next(row for row in rows if (row["side"], row["codec"], row["quality"]) == (side, codec, quality))


@pytest.mark.parametrize("side", codecs.SIDES)
def test_exact_codecs_lose_nothing_and_lossy_ones_cost_more_bytes_the_less_they_lose(rows, side):
    assert of(rows, side, "raw")["bytes"] == 3 * side**2
    assert of(rows, side, "raw")["decibel"] is None and of(rows, side, "png")["decibel"] is None
    for codec in ("webp", "jpeg", codecs.JPEG_444):
        found = [of(rows, side, codec, quality) for quality in codecs.QUALITIES]
        for key in ("bytes", "decibel"):
            assert [row[key] for row in found] == sorted(row[key] for row in found)


def test_colours_in_full_resolution_cost_more_bytes(rows):
    assert of(rows, 64, codecs.JPEG_444, 90)["bytes"] > of(rows, 64, "jpeg", 90)["bytes"]
