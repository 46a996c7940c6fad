"""Images of samples: what is kept, how small, and what happens to damaged ones."""

import hashlib
import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import cv2
import numpy as np
import pytest

from edge_hpcr.common.errors import UserError
from edge_hpcr.workspace.records import SampleRow
from edge_hpcr.workspace.sample_files import SampleFiles, StoredFile


@pytest.fixture
def files(tmp_path) -> SampleFiles:
    return SampleFiles(tmp_path / "images")


def picture(height: int, width: int) -> np.ndarray:
    """Smooth, and different in each channel: a swap of red and blue or a lossy codec would show."""
    y, x = np.mgrid[0:height, 0:width]
    channels = [x * 255 / max(width - 1, 1), y * 255 / max(height - 1, 1), np.full((height, width), 40)]
    return np.stack(channels, axis=-1).astype(np.uint8)


def row(stored: StoredFile, sample_id: int = 123) -> SampleRow:
    known = {"file": stored.file, "digest": stored.digest, "bytes": stored.bytes}
    rest = dict.fromkeys(SampleRow.__dataclass_fields__, 0)
    return SampleRow(**{**rest, **known, "id": sample_id, "state": "queued", "has_image": True})


@pytest.mark.parametrize("shape", [(8, 8), (128, 128), (1, 128), (128, 1)])
def test_a_small_image_is_kept_to_the_pixel_as_png(files, shape):
    image = picture(*shape)
    stored = files.write(123, image)
    assert stored.file == "23/000123.png"
    assert (stored.height, stored.width) == shape
    assert np.array_equal(files.read(row(stored)), image)
    content = (files.folder / stored.file).read_bytes()
    assert (stored.bytes, stored.digest) == (len(content), hashlib.sha256(content).hexdigest())


def test_a_larger_image_is_kept_as_a_good_jpeg_with_all_its_colour(files):
    image = picture(129, 100)
    image[:, ::2] = (
        255,
        0,
        0,
    )  # columns of pure colour, which sampling the colour at half the width would smear
    stored = files.write(7, image)
    assert stored.file == "07/000007.jpg"
    difference = np.abs(files.read(row(stored)).astype(int) - image)
    assert difference.mean() < 4


@pytest.mark.parametrize(
    ("shape", "kept"), [((1024, 512), (512, 256)), ((512, 512), (512, 512)), ((3, 4000), (1, 512))]
)
def test_the_longer_side_is_at_most_512(files, shape, kept):
    stored = files.write(1, picture(*shape))
    assert (stored.height, stored.width) == kept == files.read(row(stored)).shape[:2]


def test_a_view_into_a_larger_array_is_kept_as_well(files):
    image = picture(40, 40)[::2, ::-1]
    assert np.array_equal(files.read(row(files.write(1, image))), image)


def test_a_damaged_missing_or_dropped_image_is_an_error_that_names_the_sample(files):
    stored = files.write(123, picture(8, 8))
    path = files.folder / stored.file
    assert files.matches(row(stored))
    path.write_bytes(path.read_bytes()[:-1])
    assert not files.matches(row(stored))
    with pytest.raises(UserError, match=r"image of sample 123.*damaged; delete the sample"):
        files.read(row(stored))
    path.unlink()
    assert not files.matches(row(stored))
    with pytest.raises(UserError, match=r"image of sample 123.*No such file"):
        files.read(row(stored))
    with pytest.raises(UserError, match="sample 123 has no image any more"):
        files.read(replace(row(stored), has_image=False))


def test_a_good_digest_does_not_help_a_file_that_is_no_image(files):
    stored = files.write(123, picture(8, 8))
    (files.folder / stored.file).write_bytes(b"no image")
    forged = replace(row(stored), digest=hashlib.sha256(b"no image").hexdigest())
    with pytest.raises(UserError, match="cannot read"):
        files.read(forged)


def test_orphans_are_all_files_that_nobody_knows_and_unfinished_ones(files):
    kept, lost = files.write_many([(1, picture(8, 8)), (102, picture(8, 8))])
    unfinished = files.folder / "01" / "000201.png.writing"
    unfinished.write_bytes(b"half")
    assert set(files.orphans({kept.file})) == {lost.file, "01/000201.png.writing"}
    assert files.file_of(102) == lost.file and files.file_of(201) is None
    files.remove(files.orphans({kept.file}))
    assert list(files.names()) == [kept.file]
    files.remove([lost.file])  # gone already


def test_no_files_at_all_are_no_error(files):
    assert list(files.names()) == []


WRITE_WITHOUT_ROOM = """
import json, resource, sys
import numpy as np
from pathlib import Path
from edge_hpcr.common.errors import UserError
from edge_hpcr.workspace.sample_files import SampleFiles
files = SampleFiles(Path(sys.argv[1]))
noise = np.random.default_rng(0).integers(0, 256, (100, 100, 3), np.uint8)
resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, resource.RLIM_INFINITY))
try:
    files.write_many([(1, noise[:8]), (2, noise)])
except UserError as error:
    print(json.dumps([str(error), list(files.names())]))
"""


def test_without_room_nothing_is_left_behind(tmp_path):
    done = subprocess.run(
        [sys.executable, "-c", WRITE_WITHOUT_ROOM, str(tmp_path / "images")],
        capture_output=True, text=True, timeout=60, cwd=Path(__file__).parents[1],
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    message, names = json.loads(done.stdout)
    assert "cannot keep an image" in message and "is there room" in message
    assert names == []


def test_an_image_that_cannot_be_encoded_leaves_none_of_those_before_it(files):
    with pytest.raises(UserError, match="cannot be encoded"):
        files.write_many([(1, picture(8, 8)), (2, np.zeros((8, 8, 3)))])
    assert list(files.names()) == []


def test_a_jpeg_is_read_as_opencv_writes_it(files):
    stored = files.write(5, picture(200, 300))
    bgr = cv2.imread(str(files.folder / stored.file))
    assert np.array_equal(files.read(row(stored)), bgr[..., ::-1])
