"""Images of samples: what is kept, how small, and what happens to damaged ones."""

import hashlib
from dataclasses import replace

import numpy as np
import pytest

from edge_hpcr.common.errors import UserError
from edge_hpcr.workspace.sample_files import SampleFiles


@pytest.fixture
def files(tmp_path) -> SampleFiles:
    return SampleFiles(tmp_path / "images")


def picture(height: int, width: int) -> np.ndarray:
    """Smooth, and different in each channel: a swap of red and blue or a lossy codec would show."""
    y, x = np.mgrid[0:height, 0:width]
    channels = [x * 255 / max(width - 1, 1), y * 255 / max(height - 1, 1), np.full((height, width), 40)]
    return np.stack(channels, axis=-1).astype(np.uint8)


def test_a_small_image_is_kept_to_the_pixel_as_png(files):
    image = picture(8, 128)[:, ::-1]
    stored = files.write([(123, image)])[0]
    assert stored.file == "23/000123.png" and (stored.height, stored.width) == (8, 128)
    assert np.array_equal(files.read(stored), image)
    content = (files.folder / stored.file).read_bytes()
    assert (stored.bytes, stored.digest) == (len(content), hashlib.sha256(content).hexdigest())


def test_a_larger_image_is_kept_as_a_good_jpeg_with_all_its_colour(files):
    image = picture(129, 100)
    image[:, ::2] = (255, 0, 0)  # pure columns, which colour at half the width would smear
    stored = files.write([(7, image)])[0]
    assert stored.file == "07/000007.jpg"
    assert np.abs(files.read(stored).astype(int) - image).mean() < 4


def test_a_damaged_missing_or_dropped_image_is_an_error_that_names_the_sample(files):
    stored = files.write([(123, picture(8, 8))])[0]
    path = files.folder / stored.file
    path.write_bytes(b"no image")
    forged = replace(stored, digest=hashlib.sha256(b"no image").hexdigest())
    with pytest.raises(UserError):
        files.read(forged)
    for sample in (stored, replace(stored, has_image=False)):
        with pytest.raises(UserError) as refused:
            files.read(sample)
        assert "sample 123" in str(refused.value)
        path.unlink(missing_ok=True)


@pytest.mark.parametrize(
    "name",
    ["../../x", "/etc/hostname", "01/000001.gif"],
)
def test_a_name_that_is_none_of_ours_never_becomes_a_path(files, name):
    stored = replace(files.write([(1, picture(8, 8))])[0], file=name)
    for use in (files.read, lambda sample: files.remove([sample.file])):
        with pytest.raises(UserError) as refused:
            use(stored)
        assert refused.value.code == "sample-path"
