"""Images to bytes and back: colours stay in place, and a damaged picture is refused, never half shown."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from edge_hpcr.common.errors import UserError
from edge_hpcr.learner.codec import CODECS, decode, encode, typical_bytes

SHAPE = (24, 32, 3)
ENCODED = tuple(codec for codec in CODECS if codec != "raw")


def gradient_image() -> np.ndarray:
    """Smooth, and different in each of red, green, blue, down and across."""
    rows, columns = np.mgrid[0 : SHAPE[0], 0 : SHAPE[1]]
    return np.stack([rows * 8, columns * 6 + 40, 200 - rows * 4 - columns], axis=-1).astype(np.uint8)


@pytest.mark.slow
@settings(max_examples=40, deadline=None, derandomize=True, database=None)
@given(image=arrays(np.uint8, st.tuples(st.integers(1, 40), st.integers(1, 40), st.just(3))))
@pytest.mark.parametrize("codec", ["raw", "png"])
def test_the_lossless_codecs_give_back_every_pixel(codec: str, image: np.ndarray) -> None:
    assert np.array_equal(decode(encode(image, codec), codec, image.shape), image)


@pytest.mark.parametrize("codec", ["webp", "jpeg"])
def test_the_lossy_codecs_stay_close_and_keep_red_red(codec: str) -> None:
    image = gradient_image()
    error = np.abs(decode(encode(image, codec, 90), codec, SHAPE).astype(int) - image)
    assert error.mean() < 4
    assert np.abs(image.astype(int) - image[..., ::-1]).mean() > 40  # so swapped channels could not pass


@pytest.mark.parametrize("codec", ENCODED)
def test_the_bytes_are_a_file_whose_first_channel_is_red_to_other_programs(codec: str) -> None:
    from io import BytesIO

    from PIL import Image

    image = gradient_image()
    opened = np.asarray(Image.open(BytesIO(encode(image, codec, 95))).convert("RGB")).astype(int)
    assert np.abs(opened - image).mean() < 4


@pytest.mark.parametrize("codec", ["webp", "jpeg"])
def test_a_higher_quality_takes_more_bytes_and_loses_less(codec: str) -> None:
    image = np.random.default_rng(0).integers(0, 256, SHAPE, np.uint8)
    low, high = encode(image, codec, 20), encode(image, codec, 95)
    assert len(low) < len(high)
    errors = [np.abs(decode(blob, codec, SHAPE).astype(int) - image).mean() for blob in (low, high)]
    assert errors[1] < errors[0]


def test_raw_keeps_the_pixels_of_a_view_in_their_order() -> None:
    flipped = gradient_image()[:, ::-1]
    assert np.array_equal(decode(encode(flipped, "raw"), "raw", SHAPE), flipped)


@pytest.mark.parametrize("codec", CODECS)
def test_a_picture_cut_short_anywhere_is_refused(codec: str) -> None:
    blob = encode(gradient_image(), codec)
    for end in range(0, len(blob), 1 if codec != "raw" else 97):
        with pytest.raises(UserError, match="damaged"):
            decode(blob[:end], codec, SHAPE)


@pytest.mark.parametrize("codec", CODECS)
def test_a_picture_of_another_size_is_refused(codec: str) -> None:
    with pytest.raises(UserError, match="damaged"):
        decode(encode(gradient_image()[:-1], codec), codec, SHAPE)


@pytest.mark.parametrize("codec", ENCODED)
def test_a_picture_with_a_broken_head_is_refused(codec: str) -> None:
    blob = bytearray(encode(gradient_image(), codec))
    blob[:16] = bytes(16)
    with pytest.raises(UserError, match="damaged"):
        decode(bytes(blob), codec, SHAPE)


@pytest.mark.parametrize(
    "image",
    [
        np.zeros((8, 8, 3), np.float32),  # not bytes
        np.zeros((8, 8), np.uint8),  # grey
        np.zeros((8, 8, 4), np.uint8),  # with alpha
    ],
)
@pytest.mark.parametrize("codec", CODECS)
def test_only_uint8_rgb_is_encoded(codec: str, image: np.ndarray) -> None:
    with pytest.raises(UserError, match="uint8"):
        encode(image, codec)


@pytest.mark.parametrize("quality", [0, 101])
def test_a_quality_out_of_range_is_refused(quality: int) -> None:
    with pytest.raises(UserError, match="1 to 100"):
        encode(gradient_image(), "webp", quality)


def test_an_unknown_codec_is_refused_with_the_known_ones_listed() -> None:
    with pytest.raises(UserError, match="webp"):
        encode(gradient_image(), "bmp")
    with pytest.raises(UserError, match="webp"):
        decode(b"", "bmp", SHAPE)


def test_typical_sizes_are_exact_for_raw_and_ordered_as_codecs_compress() -> None:
    sizes = [typical_bytes((32, 32, 3), codec) for codec in ("webp", "jpeg", "png", "raw")]
    assert sizes == sorted(sizes) and sizes[-1] == 3072
