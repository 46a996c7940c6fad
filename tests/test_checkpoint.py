"""A checkpoint is whole or absent, and says so when somebody damaged it."""

import json

import numpy as np
import pytest

from edge_hpcr.common.errors import UserError
from edge_hpcr.learner import checkpoint

ARRAYS = {"network": {"weight": np.arange(6, dtype=np.float32)}, "memory": {}}


@pytest.mark.parametrize("keep", [0, 5, -1])
@pytest.mark.parametrize("name", ["network.safetensors", "checkpoint.json"])
def test_a_file_cut_short_is_named(tmp_path, name, keep):
    checkpoint.write(tmp_path / "c", ARRAYS, {"step": 1})
    path = tmp_path / "c" / name
    path.write_bytes(path.read_bytes()[:keep])
    with pytest.raises(UserError, match=f"damaged checkpoint: .*{name}"):
        checkpoint.read(tmp_path / "c")


def test_a_checkpoint_of_another_format_names_the_version_that_wrote_it(tmp_path):
    checkpoint.write(tmp_path / "c", ARRAYS, {})
    index = json.loads((tmp_path / "c" / checkpoint.INDEX).read_text())
    (tmp_path / "c" / checkpoint.INDEX).write_text(json.dumps(index | {"format": 99, "version": "7.0"}))
    with pytest.raises(UserError, match=r"format 99.*7\.0"):
        checkpoint.read(tmp_path / "c")


def test_facts_named_by_numbers_are_not_taken_for_changed(tmp_path):
    checkpoint.write(tmp_path / "c", ARRAYS, {"classes": {2: 0.5, 13: 0.25}})
    assert checkpoint.read(tmp_path / "c")[1] == {"classes": {"2": 0.5, "13": 0.25}}


def test_an_index_that_names_a_file_elsewhere_reads_nothing_there(tmp_path):
    checkpoint.write(tmp_path / "c", ARRAYS, {})
    (tmp_path / "c" / "network.safetensors").rename(tmp_path / "network.safetensors")
    place = tmp_path / "c" / checkpoint.INDEX
    place.write_text(place.read_text().replace("network.safetensors", "../network.safetensors"))
    with pytest.raises(UserError, match="is missing"):
        checkpoint.read(tmp_path / "c")


def test_a_folder_that_is_no_checkpoint_is_never_replaced(tmp_path):
    photos = tmp_path / "photos"
    photos.mkdir()
    (photos / "mum.jpg").write_bytes(b"a face")
    with pytest.raises(UserError, match="is not a checkpoint"):
        checkpoint.write(photos, ARRAYS, {})
    assert [path.name for path in tmp_path.rglob("*")] == ["photos", "mum.jpg"]


def test_after_a_kill_between_the_two_renames_the_previous_one_is_read(tmp_path):
    checkpoint.write(tmp_path / "c", ARRAYS, {"step": 1})
    (tmp_path / "c").rename(tmp_path / "c.previous")
    assert checkpoint.exists(tmp_path / "c")
    assert checkpoint.read(tmp_path / "c")[1] == {"step": 1}
    checkpoint.write(tmp_path / "c", ARRAYS, {"step": 2})
    assert checkpoint.read(tmp_path / "c")[1] == {"step": 2}
