"""Images to bytes and back: colours stay in place, and a damaged picture is refused, never half shown."""

import numpy as np
import pytest

from edge_hpcr.common.errors import UserError
from edge_hpcr.learner.codec import CODECS, decode, encode

SHAPE = (24, 32, 3)


def gradient_image() -> np.ndarray:
    """Smooth, and different in each of red, green, blue, down and across."""
    rows, columns = np.mgrid[0 : SHAPE[0], 0 : SHAPE[1]]
    return np.stack([rows * 8, columns * 6 + 40, 200 - rows * 4 - columns], axis=-1).astype(np.uint8)


@pytest.mark.parametrize(("codec", "most"), [("png", 0), ("webp", 4), ("jpeg", 4)])
def test_png_gives_back_every_pixel_and_the_lossy_codecs_stay_close_and_keep_red_red(
    codec: str, most: int
) -> None:
    image = gradient_image()
    error = np.abs(decode(encode(image, codec, 90), codec, SHAPE).astype(int) - image)
    assert error.mean() <= most
    assert np.abs(image.astype(int) - image[..., ::-1]).mean() > 40  # so swapped channels could not pass


@pytest.mark.parametrize("codec", [codec for codec in CODECS if codec != "raw"])
def test_a_picture_cut_short_anywhere_is_refused(codec: str) -> None:
    blob = encode(gradient_image(), codec)
    for end in range(len(blob)):
        with pytest.raises(UserError, match="damaged"):
            decode(blob[:end], codec, SHAPE)
