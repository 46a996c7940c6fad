"""Image files from outside: every kind that cameras, phones and archives produce, and every kind of bad one."""

import io
import os
import socket
import struct
import subprocess
import sys
import threading
import time
import zlib
from pathlib import Path

import numpy as np
import psutil
import pytest
from PIL import Image
from sklearn.datasets import load_sample_images

from edge_hpcr.common.errors import UserError
from edge_hpcr.stream import decode
from edge_hpcr.stream.decode import BadImage, decode_image, read_bytes
from edge_hpcr.stream.limited import Helper

ORIENTATION = 0x0112
LOSSLESS = [("PNG", {}), ("BMP", {}), ("PPM", {}), ("WEBP", {"lossless": True}), ("TIFF", {})]
LOSSY = [("JPEG", {"quality": 95}), ("JPEG", {"quality": 95, "progressive": True}), ("WEBP", {"quality": 95})]


@pytest.fixture(scope="module")
def photo() -> np.ndarray:
    china = Image.fromarray(load_sample_images().images[0])
    return np.array(china.resize((64, 40)))


def encoded(image: Image.Image | np.ndarray, kind: str, **options) -> bytes:
    file = io.BytesIO()
    (image if isinstance(image, Image.Image) else Image.fromarray(image)).save(file, kind, **options)
    return file.getvalue()


def png(width: int, height: int, bits: int, colour: int, rows: bytes, *chunks: tuple[bytes, bytes]) -> bytes:
    """A PNG by hand, for what Pillow does not write."""
    header = struct.pack(">IIBBBBB", width, height, bits, colour, 0, 0, 0)
    parts = [(b"IHDR", header), *chunks, (b"IDAT", zlib.compress(rows)), (b"IEND", b"")]
    written = [
        struct.pack(">I", len(data)) + name + data + struct.pack(">I", zlib.crc32(name + data))
        for name, data in parts
    ]
    return b"\x89PNG\r\n\x1a\n" + b"".join(written)


def tiff(data: bytes, **tags: int) -> bytes:
    """A little-endian grey TIFF by hand; the pixel data stands at byte 8, the directory behind it."""
    numbers = {
        "width": 256,
        "height": 257,
        "bits": 258,
        "compression": 259,
        "rows": 278,
        "strip": 273,
        "length": 279,
    }
    numbers |= {"tile_width": 322, "tile_height": 323, "tile": 324, "tile_length": 325}
    fields = {262: 1, 277: 1} | {numbers[name]: value for name, value in tags.items()}
    directory = b"".join(struct.pack("<HHII", tag, 4, 1, fields[tag]) for tag in sorted(fields))
    return (
        struct.pack("<2sHI", b"II", 42, 8 + len(data))
        + data
        + struct.pack("<H", len(fields))
        + directory
        + bytes(4)
    )


def refusal(data: bytes, **limits) -> str:
    with pytest.raises(BadImage) as caught:
        decode_image(data, "picture", **limits)
    message = str(caught.value)
    assert message.startswith("picture cannot be used as an image: ") and message.isprintable()
    return message


@pytest.mark.parametrize(("kind", "options"), LOSSLESS)
def test_a_lossless_file_gives_back_its_pixels(photo, kind, options):
    decoded = decode_image(encoded(photo, kind, **options), "picture")
    assert decoded.dtype == np.uint8 and decoded.flags.writeable
    np.testing.assert_array_equal(decoded, photo)


@pytest.mark.parametrize(("kind", "options"), LOSSY)
def test_a_lossy_file_comes_close_to_its_pixels(photo, kind, options):
    decoded = decode_image(encoded(photo, kind, **options), "picture")
    assert np.abs(decoded.astype(int) - photo).mean() < 8


def test_a_grey_image_gets_three_equal_channels(photo):
    grey = photo[..., 0]
    np.testing.assert_array_equal(decode_image(encoded(grey, "PNG"), "picture"), np.dstack([grey] * 3))


def test_one_bit_becomes_black_and_white():
    bits = np.array([[True, False, True]])
    for kind in ("PNG", "TIFF", "PPM"):
        decoded = decode_image(encoded(bits, kind), "picture")
        np.testing.assert_array_equal(decoded[..., 1], [[255, 0, 255]])


@pytest.mark.parametrize("kind", ["PNG", "PPM", "TIFF"])
def test_sixteen_bits_are_scaled_and_not_clipped(kind):
    values = np.array([[0, 257, 300, 32896, 65535]], np.uint16)
    decoded = decode_image(encoded(values, kind), "picture")
    np.testing.assert_array_equal(decoded, np.dstack([[[0, 1, 1, 128, 255]]] * 3))


def test_big_endian_sixteen_bits_are_read_in_their_own_order():
    image = Image.frombytes("I;16B", (3, 1), np.array([0, 25700, 65535], ">u2").tobytes())
    np.testing.assert_array_equal(decode_image(encoded(image, "TIFF"), "picture")[0, :, 0], [0, 100, 255])


def test_twelve_bits_use_the_whole_range():
    data = bytes([0x00, 0x0F, 0xFF])  # two values of twelve bits: 0 and 4095
    twelve = tiff(data, width=2, height=1, bits=12, compression=1, rows=1, strip=8, length=3)
    np.testing.assert_array_equal(decode_image(twelve, "picture")[0, :, 0], [0, 255])


def test_sixteen_bit_colour_keeps_its_colours():
    pixels = struct.pack(">6H", 65535, 0, 32896, 0, 65535, 257)
    decoded = decode_image(png(2, 1, 16, 2, b"\0" + pixels), "picture")
    np.testing.assert_array_equal(decoded, [[[255, 0, 128], [0, 255, 1]]])


def test_the_transparent_grey_of_a_sixteen_bit_image_becomes_white():
    rows = b"\0" + struct.pack(">3H", 0, 25700, 65535)
    decoded = decode_image(png(3, 1, 16, 0, rows, (b"tRNS", struct.pack(">H", 0))), "picture")
    np.testing.assert_array_equal(decoded[0, :, 0], [255, 100, 255])


def test_transparent_parts_become_white_and_half_transparent_ones_half_white():
    pixels = np.array([[[200, 0, 100, 255], [200, 0, 100, 0], [200, 0, 100, 128]]], np.uint8)
    for kind, options in (("PNG", {}), ("WEBP", {"lossless": True, "exact": True}), ("TIFF", {})):
        decoded = decode_image(encoded(pixels, kind, **options), "picture").astype(int)
        np.testing.assert_array_equal(decoded[0, :2], [[200, 0, 100], [255, 255, 255]])
        np.testing.assert_allclose(decoded[0, 2], [227, 127, 177], atol=2)


def test_grey_with_transparency_becomes_grey_on_white():
    pixels = Image.frombytes("LA", (2, 1), bytes([90, 255, 90, 0]))
    np.testing.assert_array_equal(decode_image(encoded(pixels, "PNG"), "picture")[0, :, 0], [90, 255])
    sixteen = png(2, 1, 16, 4, b"\0" + struct.pack(">4H", 25700, 65535, 25700, 0))
    np.testing.assert_array_equal(decode_image(sixteen, "picture")[0, :, 0], [100, 255])


@pytest.fixture
def palette_image() -> Image.Image:
    image = Image.frombytes("P", (3, 1), bytes([0, 1, 2]))
    image.putpalette([10, 20, 30, 200, 0, 0, 0, 0, 250])
    return image


def test_a_palette_gives_its_colours(palette_image):
    for kind in ("PNG", "GIF", "BMP", "TIFF"):
        decoded = decode_image(encoded(palette_image, kind), "picture")
        np.testing.assert_array_equal(decoded, [[[10, 20, 30], [200, 0, 0], [0, 0, 250]]])


@pytest.mark.parametrize("transparency", [1, bytes([255, 0, 255])], ids=["one colour", "a list"])
def test_a_transparent_palette_colour_becomes_white(palette_image, transparency):
    decoded = decode_image(encoded(palette_image, "PNG", transparency=transparency), "picture")
    np.testing.assert_array_equal(decoded, [[[10, 20, 30], [255, 255, 255], [0, 0, 250]]])


def test_a_transparent_gif_becomes_white_where_it_is_transparent(palette_image):
    decoded = decode_image(encoded(palette_image, "GIF", transparency=0), "picture")
    np.testing.assert_array_equal(decoded, [[[255, 255, 255], [200, 0, 0], [0, 0, 250]]])


@pytest.mark.parametrize("kind", ["JPEG", "TIFF"])
def test_cmyk_is_neither_negative_nor_off_colour(kind):
    inks = Image.new("CMYK", (16, 16), (0, 200, 100, 20))
    data = encoded(inks, kind)
    if kind == "JPEG":
        assert b"Adobe" in data  # inks are stored the other way round in a file with this mark
    decoded = decode_image(data, "picture")
    np.testing.assert_allclose(decoded[8, 8], [235, 51, 143], atol=6)


@pytest.mark.parametrize("kind", ["JPEG", "PNG", "WEBP", "TIFF"])
@pytest.mark.parametrize("orientation", range(1, 9))
def test_a_rotated_photo_stands_upright(photo, kind, orientation):
    # What a camera held in that way has stored, so that turning it gives the photo.
    stored = {
        1: photo,
        2: photo[:, ::-1],
        3: photo[::-1, ::-1],
        4: photo[::-1],
        5: photo.transpose(1, 0, 2),
        6: np.rot90(photo),
        7: photo[::-1, ::-1].transpose(1, 0, 2),
        8: np.rot90(photo, -1),
    }[orientation]
    notes = Image.Exif()
    notes[ORIENTATION] = orientation
    options = {"JPEG": {"quality": 95}, "WEBP": {"lossless": True}}.get(kind, {})
    decoded = decode_image(encoded(np.ascontiguousarray(stored), kind, exif=notes, **options), "picture")
    assert decoded.shape == photo.shape
    assert np.abs(decoded.astype(int) - photo).mean() < (8 if kind == "JPEG" else 0.01)


@pytest.mark.parametrize("orientation", [0, 9, 65535])
def test_an_orientation_that_does_not_exist_changes_nothing(photo, orientation):
    notes = Image.Exif()
    notes[ORIENTATION] = orientation
    np.testing.assert_array_equal(decode_image(encoded(photo, "PNG", exif=notes), "picture"), photo)


@pytest.mark.parametrize("kind", ["GIF", "PNG", "WEBP", "TIFF"])
def test_of_several_frames_the_first_is_taken(kind):
    frames = [Image.new("RGB", (12, 8), colour) for colour in ("red", "lime", "blue")]
    options = {"lossless": True} if kind == "WEBP" else {}
    data = encoded(frames[0], kind, save_all=True, append_images=frames[1:], **options)
    with Image.open(io.BytesIO(data)) as image:
        assert image.n_frames == 3
    np.testing.assert_array_equal(decode_image(data, "picture"), np.array(frames[0]))


def test_a_very_long_image_is_fine_within_the_limit():
    assert decode_image(encoded(np.zeros((1, 300_000), np.uint8), "PNG"), "picture").shape == (1, 300_000, 3)


@pytest.mark.parametrize("mode", ["I", "F", "LAB"])
def test_values_without_an_agreed_range_are_refused_rather_than_guessed(mode):
    assert f"mode {mode}" in refusal(encoded(Image.new(mode, (4, 4)), "TIFF"))


@pytest.mark.parametrize(
    ("kind", "options"),
    [*LOSSLESS, *LOSSY, ("GIF", {}), ("TIFF", {"compression": "tiff_adobe_deflate"})],
)
@pytest.mark.parametrize("share", [0.03, 0.5, 0.95])
def test_a_truncated_file_is_refused(photo, kind, options, share):
    data = encoded(photo, kind, **options)
    refusal(data[: int(len(data) * share)])


def test_what_is_not_an_image_is_refused():
    for data in (b"hello", b"%PDF-1.7\n", b"\xff" * 500, b"\x89PNG\r\n\x1a\n", b"GIF89a", b"\0"):
        assert "not an image" in refusal(data)
    assert "empty" in refusal(b"")


def test_a_format_that_nobody_asked_for_is_refused(photo):
    for kind in ("ICO", "TGA", "JPEG2000", "PCX", "EPS"):
        assert "another kind" in refusal(encoded(photo, kind))


def test_a_file_with_bytes_knocked_over_gives_an_image_or_a_refusal(photo):
    notes = Image.Exif()
    notes[ORIENTATION] = 6
    files = [encoded(photo, kind, **options) for kind, options in [*LOSSLESS, *LOSSY, ("GIF", {})]]
    files += [encoded(photo, "JPEG", exif=notes), encoded(Image.fromarray(photo).convert("CMYK"), "JPEG")]
    random = np.random.default_rng(5)
    refused = 0
    for _ in range(60):
        for file in files:
            damaged = np.frombuffer(file, np.uint8).copy()
            places = random.integers(0, min(len(damaged), 400), 3)
            damaged[places] = random.integers(0, 256, 3)
            try:
                assert decode_image(damaged.tobytes(), "picture").shape[2] == 3
            except BadImage:
                refused += 1
    assert 100 < refused < 60 * len(files)


def animated_webp_with_canvas(side: int) -> bytes:
    frames = [Image.new("RGB", (4, 4), colour) for colour in ("red", "blue")]
    data = bytearray(encoded(frames[0], "WEBP", save_all=True, append_images=frames[1:]))
    place = data.index(b"VP8X") + 12
    data[place : place + 6] = (side - 1).to_bytes(3, "little") * 2
    return bytes(data)


def gif_with_canvas(side: int) -> bytes:
    frames = [Image.new("L", (4, 4), colour) for colour in (0, 200)]
    data = bytearray(encoded(frames[0], "GIF", save_all=True, append_images=frames[1:]))
    data[6:10] = struct.pack("<HH", side, side)
    return bytes(data)


def tile_larger_than_its_image(side: int) -> bytes:
    return tiff(
        b"",
        width=4,
        height=4,
        bits=8,
        compression=8,
        tile_width=side,
        tile_height=side,
        tile=8,
        tile_length=0,
    )


@pytest.mark.parametrize(
    "side", [8_000, 12_000, 16_000]
)  # above our limit; where Pillow warns; where Pillow refuses
@pytest.mark.parametrize(
    "bomb",
    [
        lambda side: png(side, side, 8, 2, b""),
        lambda side: b"P6 %d %d 255\n" % (side, side),
        animated_webp_with_canvas,
        gif_with_canvas,
        tile_larger_than_its_image,
    ],
    ids=["png", "ppm", "webp", "gif", "tiff tile"],
)
def test_a_decompression_bomb_is_refused_by_its_header_alone(bomb, side):
    # None of these has the pixels that its header speaks of: a decoder that had begun would call them damaged.
    assert "pixels" in refusal(bomb(side))


def test_the_limit_is_on_pixels_and_exact(photo):
    data = encoded(photo, "PNG")
    assert decode_image(data, "picture", max_pixels=photo.shape[0] * photo.shape[1]).shape == photo.shape
    assert "64 x 40" in refusal(data, max_pixels=photo.shape[0] * photo.shape[1] - 1)


def read_image(path: Path, **limits: int) -> np.ndarray:
    return decode_image(read_bytes(path, **limits), str(path))


def test_a_file_is_read_and_named_in_its_error(tmp_path, photo):
    good, bad = tmp_path / "good.png", tmp_path / "bad.png"
    good.write_bytes(encoded(photo, "PNG"))
    bad.write_bytes(b"no image")
    np.testing.assert_array_equal(read_image(good), photo)
    with pytest.raises(BadImage, match=r"bad\.png cannot be used as an image: it is not an image"):
        read_image(bad)
    assert issubclass(BadImage, UserError)


def test_a_file_with_too_many_bytes_is_not_read_to_its_end(tmp_path):
    path = tmp_path / "sparse.png"
    with path.open("wb") as file:
        file.truncate(10**12)
    with pytest.raises(BadImage, match="more than 1,000 bytes"):
        read_image(path, max_bytes=1000)
    path.write_bytes(bytes(1000))
    assert len(read_bytes(path, max_bytes=1000)) == 1000


def open_files() -> int:
    return len(list(Path("/dev/fd").iterdir()))


def test_a_folder_a_missing_file_and_a_loop_of_links_are_refused_without_leaving_files_open(tmp_path):
    (tmp_path / "loop").symlink_to(tmp_path / "loop")
    before = open_files()
    for name, reason in (
        (".", "directory"),
        ("missing", "No such file"),
        ("loop", "symbolic"),
        ("a\0b", "null"),
    ):
        with pytest.raises(BadImage, match=f"(?i){reason}"):
            read_image(tmp_path / name)
    assert open_files() == before


def test_pipes_devices_and_sockets_are_refused_without_waiting(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)  # the path of a socket must be short
    os.mkfifo("pipe")
    refused = []

    def read_all() -> None:
        for path in (Path("pipe"), Path("/dev/zero"), Path("socket")):
            with pytest.raises(BadImage):
                read_image(path)
            refused.append(path.name)

    with socket.socket(socket.AF_UNIX) as server:
        server.bind("socket")
        reader = threading.Thread(target=read_all, daemon=True)
        reader.start()
        reader.join(timeout=10)
    assert refused == ["pipe", "zero", "socket"]


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
def test_a_file_that_may_not_be_read_is_refused(tmp_path, photo):
    path = tmp_path / "secret.png"
    path.write_bytes(encoded(photo, "PNG"))
    path.chmod(0)
    with pytest.raises(BadImage, match="Permission denied"):
        read_image(path)


@pytest.mark.parametrize(
    "name", ["line\nbreak", "bell\x07", b"no text \xff".decode("utf-8", "surrogateescape")]
)
def test_an_odd_file_name_stays_one_printable_line(tmp_path, name):
    path = tmp_path / name
    path.write_bytes(b"no image")
    with pytest.raises(BadImage) as caught:
        read_image(path)
    assert str(caught.value).isprintable()


def with_damaged_notes(photo: np.ndarray) -> bytes:
    """A JPEG whose EXIF data says that its maker's name stands where there is nothing."""
    field = struct.pack("<HHII", 0x010F, 2, 4000, 9000)
    notes = b"Exif\0\0" + struct.pack("<2sHI", b"II", 42, 8) + struct.pack("<H", 1) + field + bytes(4)
    return encoded(photo, "JPEG", exif=notes)


@pytest.mark.filterwarnings(
    "ignore::UserWarning:PIL"
)  # as the module asks for where no test runner interferes
def test_damaged_notes_do_not_spoil_a_good_photo(photo):
    assert decode_image(with_damaged_notes(photo), "picture").shape == photo.shape


def test_warnings_turned_into_errors_become_a_refusal(photo):
    with (
        pytest.warns(UserWarning, match="Truncated File Read"),
        Image.open(io.BytesIO(with_damaged_notes(photo))) as image,
    ):
        image.getexif()  # the file does make Pillow warn
    refusal(with_damaged_notes(photo))


@pytest.mark.slow
def test_nothing_is_printed_about_odd_files(tmp_path, photo):
    (tmp_path / "notes.jpg").write_bytes(with_damaged_notes(photo))
    (tmp_path / "bomb.png").write_bytes(png(12_000, 12_000, 8, 2, b""))
    program = (
        "import sys; from pathlib import Path; from edge_hpcr.stream.decode import decode_image, read_bytes, BadImage\n"
        "print(decode_image(read_bytes(Path(sys.argv[1], 'notes.jpg')), 'notes').shape)\n"
        "try: decode_image(read_bytes(Path(sys.argv[1], 'bomb.png')), 'bomb')\n"
        "except BadImage: print('refused')\n"
    )
    command = [sys.executable, "-W", "always", "-c", program, str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.split("\n")[:2] == ["(40, 64, 3)", "refused"]
    assert done.stderr == ""


# Limits of time and memory ------------------------------------------------------------------------------------------


def with_many_scans(side: int, scans: int) -> bytes:
    """A progressive JPEG that says its last scan over and over: few bytes, and each goes over the whole picture."""
    data = encoded(Image.new("L", (side, side), 128), "JPEG", progressive=True)
    last = data.rindex(b"\xff\xda")
    return data[:last] + data[last:-2] * scans + data[-2:]


def with_chunks(data: bytes, count: int) -> bytes:
    """A PNG with so many chunks that nobody knows."""
    return data[:33] + (bytes(4) + b"voId" + zlib.crc32(b"voId").to_bytes(4, "big")) * count + data[33:]


@pytest.fixture
def helper(monkeypatch):
    """A function that sets other limits for pictures that are not plain."""
    made = []

    def limit(**limits) -> Helper:
        limits = {"cpu_seconds": decode.CPU_SECONDS, "memory_bytes": decode.MEMORY_BYTES, **limits}
        made.append(Helper("from edge_hpcr.stream.decode import help_others; help_others()", **limits))
        monkeypatch.setattr(decode, "_HELPER", made[-1])
        return made[-1]

    yield limit
    for each in made:
        each.stop()


@pytest.mark.slow
@pytest.mark.skipif(sys.platform == "win32", reason="no limits of processor time there")
def test_a_small_jpeg_of_thousands_of_scans_is_a_bad_picture_and_the_next_one_is_decoded(helper, photo):
    helper(cpu_seconds=1)
    bomb = with_many_scans(3000, 3000)
    assert len(bomb) < 1_000_000
    for _ in range(2):
        with pytest.raises(
            BadImage, match=r"bomb\.jpg cannot be used as an image: decoding it takes more than 1 s"
        ):
            decode_image(bomb, "bomb.jpg")
    np.testing.assert_array_equal(decode_image(encoded(photo, "BMP"), "good"), photo)


@pytest.mark.slow
@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="no limit of memory there")
def test_a_picture_that_takes_too_much_memory_is_a_bad_one(helper, photo):
    helper(memory_bytes=300_000_000)
    large = encoded(Image.new("RGBA", (6000, 6000)), "TIFF", compression="tiff_lzw")
    with pytest.raises(BadImage, match="memory"):
        decode_image(large, "large.tif")
    np.testing.assert_array_equal(decode_image(encoded(photo, "BMP"), "good"), photo)


@pytest.mark.slow
def test_a_picture_is_not_bad_because_somebody_ended_the_helper_before(helper, photo):
    used = helper()
    for _ in range(2):
        np.testing.assert_array_equal(decode_image(encoded(photo, "BMP"), "good"), photo)
        used._process.kill()
        used._process.wait()


@pytest.mark.parametrize(
    ("data", "plain"),
    [
        (encoded(Image.new("RGB", (640, 480)), "JPEG"), True),
        (encoded(Image.new("RGB", (640, 480)), "JPEG", progressive=True), True),
        (encoded(Image.new("RGB", (640, 480)), "PNG"), True),
        (
            encoded(Image.new("RGB", (640, 480)), "WEBP"),
            False,
        ),  # its decoder makes room for what the header says
        (encoded(Image.new("L", (5000, 4000)), "JPEG"), False),  # many pixels
        (with_many_scans(640, 100), False),
        (with_chunks(encoded(Image.new("RGB", (64, 48)), "PNG"), 2000), False),
        (encoded(Image.new("RGB", (64, 48)), "JPEG")[:100], False),  # no header to judge by
        (encoded(Image.new("RGB", (64, 48)), "PNG")[:20], False),
        (b"\xff\xd8\xff" + b"\xff" * 100, False),
    ],
)
def test_only_a_picture_whose_header_shows_that_it_is_cheap_is_decoded_without_limits(data, plain):
    assert decode._is_plain(data) == plain


@pytest.mark.slow
def test_an_answer_of_the_helper_can_be_changed_like_every_picture(photo):
    image = decode_image(encoded(photo, "BMP"), "picture")
    image[:] = 7
    assert image.min() == 7


@pytest.mark.slow
def test_the_helper_ends_with_the_process_that_asked_it_however_that_ends():
    program = """
import io, os, signal, sys
from PIL import Image
from edge_hpcr.stream import decode
file = io.BytesIO()
Image.new("RGB", (9, 9)).save(file, "BMP")
decode.decode_image(file.getvalue(), "x")
print(decode._HELPER._process.pid, flush=True)
if sys.argv[1] == "killed":
    os.kill(os.getpid(), signal.SIGKILL)
"""
    for how in ("ends", "killed"):
        done = subprocess.run(
            [sys.executable, "-c", program, how], capture_output=True, text=True, timeout=60
        )
        assert (done.returncode == 0) == (how == "ends") and done.stderr == ""
        deadline = time.monotonic() + 30
        while (
            psutil.pid_exists(int(done.stdout))
            and psutil.Process(int(done.stdout)).status() != psutil.STATUS_ZOMBIE
        ):
            assert time.monotonic() < deadline
            time.sleep(0.02)
