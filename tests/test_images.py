"""Image files from outside: every kind that cameras and phones produce, and every kind of bad one."""

import io
import os
import struct
import zlib
from pathlib import Path

import numpy as np
import pytest
from PIL import ExifTags, Image
from sklearn.datasets import load_sample_images

from edge_hpcr.stream.decode import BadImage, decode_image, read_bytes


@pytest.fixture(scope="module")
def photo() -> np.ndarray:
    china = Image.fromarray(load_sample_images().images[0])
    return np.array(china.resize((64, 40)))


def encoded(image: Image.Image | np.ndarray, kind: str, **options) -> bytes:
    file = io.BytesIO()
    (image if isinstance(image, Image.Image) else Image.fromarray(image)).save(file, kind, **options)
    return file.getvalue()


def bomb(side: int) -> bytes:
    """A PNG without pixels, whose header speaks of many."""
    chunks = [
        (b"IHDR", struct.pack(">IIBBBBB", side, side, 8, 2, 0, 0, 0)),
        (b"IDAT", zlib.compress(b"")),
        (b"IEND", b""),
    ]
    written = [
        struct.pack(">I", len(data)) + name + data + struct.pack(">I", zlib.crc32(name + data))
        for name, data in chunks
    ]
    return b"\x89PNG\r\n\x1a\n" + b"".join(written)


def refusal(data: bytes) -> str:
    with pytest.raises(BadImage) as caught:
        decode_image(data, "picture")
    message = str(caught.value)
    assert message.startswith("picture cannot be used as an image: ") and message.isprintable()
    return message


@pytest.mark.parametrize(
    ("kind", "options"),
    [("PNG", {}), ("WEBP", {"lossless": True}), ("JPEG", {"quality": 95})],
)
def test_a_file_of_each_kind_gives_back_its_pixels_and_a_part_of_it_is_refused(photo, kind, options):
    data = encoded(photo, kind, **options)
    decoded = decode_image(data, "picture")
    assert decoded.dtype == np.uint8 and decoded.flags.writeable
    assert np.abs(decoded.astype(int) - photo).mean() < (8 if "quality" in options else 0.001)
    for share in (0.03, 0.5, 0.95):
        refusal(data[: int(len(data) * share)])


def test_transparent_parts_become_white_and_half_transparent_ones_half_white():
    pixels = np.array([[[200, 0, 100, 255], [200, 0, 100, 0], [200, 0, 100, 128]]], np.uint8)
    for kind, options in (("PNG", {}), ("WEBP", {"lossless": True, "exact": True})):
        decoded = decode_image(encoded(pixels, kind, **options), "picture").astype(int)
        np.testing.assert_array_equal(decoded[0, :2], [[200, 0, 100], [255, 255, 255]])
        np.testing.assert_allclose(decoded[0, 2], [227, 127, 177], atol=2)


def test_a_rotated_photo_stands_upright(photo):
    notes = Image.Exif()
    notes[ExifTags.Base.Orientation] = 6
    stored = encoded(np.ascontiguousarray(np.rot90(photo)), "JPEG", exif=notes)
    assert np.abs(decode_image(stored, "picture").astype(int) - photo).mean() < 12


def test_what_is_not_an_image_of_a_known_kind_is_refused(photo):
    for data in (b"", b"hello", b"%PDF-1.7\n", b"\xff" * 500, b"\x89PNG\r\n\x1a\n", b"GIF89a", b"\0"):
        refusal(data)
    for kind in ("JPEG2000", "TIFF"):
        refusal(encoded(photo, kind))
    assert "8 bits" in refusal(encoded(np.array([[0, 300, 65535]], np.uint16), "PNG"))


# Above our limit; where Pillow warns; where it refuses.
@pytest.mark.parametrize("side", [8_000, 12_000, 16_000])
def test_a_decompression_bomb_is_refused_by_its_header_alone(side):
    # It has not the pixels that its header speaks of: a decoder that had begun would call it damaged.
    assert "pixels" in refusal(bomb(side))


def test_a_small_jpeg_of_thousands_of_scans_is_refused():
    data = encoded(Image.new("L", (3000, 3000), 128), "JPEG", progressive=True)
    last = data.rindex(b"\xff\xda")
    repeated = data[:last] + data[last:-2] * 3000 + data[-2:]
    assert len(repeated) < 1_000_000
    assert "scans" in refusal(repeated)


# Files ----------------------------------------------------------------------------------------------------------------


def test_a_file_with_too_many_bytes_is_not_read_to_its_end(tmp_path):
    path = tmp_path / "sparse.png"
    with path.open("wb") as file:
        file.truncate(10**12)
    with pytest.raises(BadImage):
        read_bytes(path)
    path.write_bytes(bytes(1000))
    assert len(read_bytes(path)) == 1000


def test_what_is_no_regular_file_is_refused_without_waiting_and_leaves_no_file_open(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "loop").symlink_to(tmp_path / "loop")
    before = len(list(Path("/dev/fd").iterdir()))
    for name in (".", "missing", "loop", "a\0b", "pipe", "/dev/zero"):
        with pytest.raises(BadImage):
            read_bytes(tmp_path / name)
    assert len(list(Path("/dev/fd").iterdir())) == before
