"""A checkpoint is whole or absent, and says so when somebody damaged it."""

import json
import subprocess
import sys
import textwrap
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from process_parts import started

from edge_hpcr.common.errors import UserError
from edge_hpcr.learner import checkpoint

ARRAYS = {"network": {"weight": np.arange(6, dtype=np.float32)}, "memory": {}}


def test_what_was_written_is_read_back(tmp_path):
    checkpoint.write(tmp_path / "c", ARRAYS, {"step": 3})
    arrays, facts = checkpoint.read(tmp_path / "c")
    np.testing.assert_array_equal(arrays["network"]["weight"], ARRAYS["network"]["weight"])
    assert arrays["memory"] == {}
    assert facts == {"step": 3}
    assert sorted(path.name for path in tmp_path.iterdir()) == ["c"]


def test_a_newer_checkpoint_replaces_the_older_one_and_leaves_nothing_behind(tmp_path):
    for step in range(3):
        checkpoint.write(tmp_path / "c", ARRAYS, {"step": step})
    assert checkpoint.read(tmp_path / "c")[1] == {"step": 2}
    assert sorted(path.name for path in tmp_path.iterdir()) == ["c"]


def test_no_file_of_it_is_a_pickle(tmp_path):
    checkpoint.write(tmp_path / "c", ARRAYS, {})
    assert {path.suffix for path in (tmp_path / "c").iterdir()} == {".safetensors", ".json"}


@pytest.mark.parametrize("keep", [0, 5, -1])
@pytest.mark.parametrize("name", ["network.safetensors", "checkpoint.json"])
def test_a_file_cut_short_is_named(tmp_path, name, keep):
    checkpoint.write(tmp_path / "c", ARRAYS, {"step": 1})
    path = tmp_path / "c" / name
    path.write_bytes(path.read_bytes()[:keep])
    with pytest.raises(UserError, match=f"damaged checkpoint: .*{name}"):
        checkpoint.read(tmp_path / "c")


def test_a_changed_byte_is_found(tmp_path):
    checkpoint.write(tmp_path / "c", ARRAYS, {})
    path = tmp_path / "c" / "network.safetensors"
    contents = bytearray(path.read_bytes())
    contents[-3] ^= 1
    path.write_bytes(contents)
    with pytest.raises(UserError, match=r"network\.safetensors was cut short or changed"):
        checkpoint.read(tmp_path / "c")


def test_a_missing_file_is_named(tmp_path):
    checkpoint.write(tmp_path / "c", ARRAYS, {})
    (tmp_path / "c" / "network.safetensors").unlink()
    with pytest.raises(UserError, match=r"network\.safetensors is missing"):
        checkpoint.read(tmp_path / "c")


def test_a_checkpoint_of_another_format_names_the_version_that_wrote_it(tmp_path):
    checkpoint.write(tmp_path / "c", ARRAYS, {})
    index = json.loads((tmp_path / "c" / checkpoint.INDEX).read_text())
    (tmp_path / "c" / checkpoint.INDEX).write_text(json.dumps(index | {"format": 99, "version": "7.0"}))
    with pytest.raises(UserError, match=r"format 99.*7\.0"):
        checkpoint.read(tmp_path / "c")


def test_changed_facts_are_found(tmp_path):
    checkpoint.write(tmp_path / "c", ARRAYS, {"step": 1})
    path = tmp_path / "c" / checkpoint.INDEX
    path.write_text(path.read_text().replace('"step": 1', '"step": 7'))
    with pytest.raises(UserError, match=r"checkpoint\.json was changed"):
        checkpoint.read(tmp_path / "c")


def test_a_folder_that_is_no_checkpoint_is_never_replaced(tmp_path):
    photos = tmp_path / "photos"
    photos.mkdir()
    (photos / "mum.jpg").write_bytes(b"a face")
    with pytest.raises(UserError, match="holds something else"):
        checkpoint.write(photos, ARRAYS, {})
    assert [path.name for path in tmp_path.rglob("*")] == ["photos", "mum.jpg"]


def test_what_a_power_cut_left_half_written_is_cleared_away(tmp_path):
    (tmp_path / "c.writing").mkdir()
    (tmp_path / "c.writing" / "network.safetensors").write_bytes(b"half")
    checkpoint.write(tmp_path / "c", ARRAYS, {})
    assert [path.name for path in tmp_path.iterdir()] == ["c"]


def test_a_full_disk_is_said_and_the_older_checkpoint_stays(tmp_path):
    checkpoint.write(tmp_path / "c", ARRAYS, {"step": 1})
    program = textwrap.dedent(
        """
        import resource, signal, sys
        from pathlib import Path
        import numpy as np
        from edge_hpcr.learner import checkpoint
        from edge_hpcr.common.errors import UserError
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, 100_000))
        try:
            checkpoint.write(Path(sys.argv[1]), {"a": {"x": np.zeros(1_000_000)}}, {})
        except UserError as error:
            print(error)
        """
    )
    said = subprocess.run(
        [sys.executable, "-c", program, str(tmp_path / "c")], capture_output=True, text=True, check=True
    )
    assert "cannot write the checkpoint" in said.stdout
    assert checkpoint.read(tmp_path / "c")[1] == {"step": 1}
    assert [path.name for path in tmp_path.iterdir()] == ["c"]


def test_no_checkpoint_at_all_is_said(tmp_path):
    assert not checkpoint.exists(tmp_path / "c")
    with pytest.raises(UserError, match="no checkpoint at"):
        checkpoint.read(tmp_path / "c")


def test_a_place_that_cannot_be_written_is_named_and_left_clean(tmp_path):
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(UserError, match="cannot write the checkpoint"):
        checkpoint.write(tmp_path / "file" / "c", ARRAYS, {})
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


def test_after_a_kill_between_the_two_renames_the_previous_one_is_read(tmp_path):
    checkpoint.write(tmp_path / "c", ARRAYS, {"step": 1})
    (tmp_path / "c").rename(tmp_path / "c.previous")
    assert checkpoint.exists(tmp_path / "c")
    assert checkpoint.read(tmp_path / "c")[1] == {"step": 1}
    checkpoint.write(tmp_path / "c", ARRAYS, {"step": 2})
    assert checkpoint.read(tmp_path / "c")[1] == {"step": 2}


@pytest.mark.slow
def test_a_reader_sees_one_whole_checkpoint_while_another_thread_replaces_it(tmp_path):
    def write(step: int) -> None:
        checkpoint.write(
            tmp_path / "c", {name: {"x": np.full(5_000, step)} for name in "abcd"}, {"step": step}
        )

    write(0)
    with ThreadPoolExecutor() as pool:
        writing = pool.submit(lambda: [write(step) for step in range(1, 80)])
        while not writing.done():
            assert checkpoint.exists(tmp_path / "c")
            arrays, facts = checkpoint.read(tmp_path / "c")
            assert {int(x) for group in arrays.values() for x in group["x"]} == {facts["step"]}
    writing.result()


@pytest.mark.slow
def test_killed_at_any_moment_a_whole_checkpoint_is_there(tmp_path):
    """A real process writes one checkpoint after the other and is killed; what is read back is one of them, whole."""
    program = textwrap.dedent(
        """
        import sys
        from pathlib import Path
        import numpy as np
        from edge_hpcr.learner import checkpoint
        for step in range(10**6):
            checkpoint.write(Path(sys.argv[1]), {"a": {"x": np.full(50_000, step)}}, {"step": step})
            print(step, flush=True)
        """
    )
    rng = np.random.default_rng(0)
    for _ in range(6):
        with started("-c", program, tmp_path / "c") as process:
            for _ in range(int(rng.integers(2, 12))):
                acknowledged = int(process.stdout.readline())
            process.kill()
            rest = process.communicate()[0].split()
        acknowledged = int(rest[-1]) if rest else acknowledged
        arrays, facts = checkpoint.read(tmp_path / "c")
        assert facts["step"] >= acknowledged
        assert (arrays["a"]["x"] == facts["step"]).all()
