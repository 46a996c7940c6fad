"""Image files from outside, safely: whatever arrives becomes an upright uint8 RGB array, or a `BadImage` says why not.

Nothing is trusted. Only regular files of bounded size are read; only a few formats are recognised; the pixels are
counted in the header, before any of them is decoded. What its header does not show to be cheap is decoded by a helper
process with limits of time and memory. Transparent parts become white, 16 bits become 8 by scale (never by clipping),
and of an animation the first frame is taken.
"""

import io
import re
import struct
import warnings
import zlib
from pathlib import Path

import numpy as np
from PIL import ExifTags, Image, ImageOps, TiffImagePlugin, UnidentifiedImageError

from edge_hpcr.common.errors import UserError
from edge_hpcr.common.files import read_regular
from edge_hpcr.stream.limited import Exceeded, Helper, Part, answer_questions

FORMATS = ("JPEG", "PNG", "WEBP", "BMP", "GIF", "TIFF", "PPM")
MAX_PIXELS = 50_000_000
MAX_BYTES = 50_000_000
# A picture of these is decoded here: the way to the helper and back would cost more than it protects from.
PLAIN_PIXELS = 16_000_000  # times the scans of a JPEG, each of which goes over the whole picture
PLAIN_BYTES = 8_000_000
PLAIN_SEGMENTS = 1000  # of a JPEG's header, or chunks of a PNG: Pillow takes them one by one, in Python
CPU_SECONDS = 10  # of the helper for one picture; 50 million pixels take two
MEMORY_BYTES = 1_500_000_000  # of the helper

# Pillow's complaints about odd metadata are of no use to anybody who watches a stream. Once, here, and not around
# each image: `catch_warnings` is not thread-safe, and makes every other warning of the process appear again.
warnings.filterwarnings("ignore", module=r"PIL\.")

# What Pillow's decoders raise on damaged files. `Warning` is there in case warnings are turned into errors.
_DAMAGE = (
    OSError,
    SyntaxError,
    ValueError,
    TypeError,
    LookupError,
    ArithmeticError,
    EOFError,
    struct.error,
    zlib.error,
    Warning,
)


class BadImage(UserError):
    """A file that cannot be used as an image: which one, and why."""

    reason = ""  # without the name


def read_bytes(path: Path, max_bytes: int = MAX_BYTES, follow: bool = True) -> bytes:
    """A regular file's contents, if they are not too many; never waits for a pipe or a device."""
    return read_regular(path, max_bytes, lambda reason: _bad(str(path), reason), follow)


def decode_image(data: bytes, name: str, max_pixels: int = MAX_PIXELS) -> np.ndarray:
    """The image in `data`, as uint8 RGB `[H, W, 3]`; `name` says in the error which one was bad."""
    if not data or _is_plain(data):
        return _decode(data, name, max_pixels)
    try:
        answer = _HELPER.ask(_QUESTION.pack(max_pixels) + data)
    except Exceeded:
        limits = f"{_HELPER.cpu_seconds} s or {_HELPER.memory_bytes:,} bytes of memory"
        raise _bad(name, f"decoding it takes more than {limits}") from None
    height, width = _ANSWER.unpack_from(answer)
    if not height:
        raise _bad(name, answer[_ANSWER.size :].decode())
    return np.frombuffer(answer, np.uint8, offset=_ANSWER.size).reshape(height, width, 3)


_QUESTION = struct.Struct("!Q")  # the most pixels, then the file
_ANSWER = struct.Struct("!II")  # height and width, then the pixels; or 0, and why not
_HELPER = Helper("from edge_hpcr.stream.decode import help_others; help_others()", CPU_SECONDS, MEMORY_BYTES)


def help_others() -> None:
    """What the helper process runs."""

    def answer(question: bytearray) -> list[Part]:
        (max_pixels,) = _QUESTION.unpack_from(question)
        try:
            image = _decode(bytes(memoryview(question)[_QUESTION.size :]), "", max_pixels)
        except BadImage as error:
            return [_ANSWER.pack(0, 0), error.reason.encode()]
        return [_ANSWER.pack(*image.shape[:2]), np.ascontiguousarray(image).data.cast("B")]

    answer_questions(answer)


def _is_plain(data: bytes) -> bool:
    """Whether the header shows a JPEG or a PNG that is cheap to decode."""
    if len(data) > PLAIN_BYTES:
        return False
    try:
        if data.startswith(b"\xff\xd8\xff"):
            return 0 < _jpeg_work(data) <= PLAIN_PIXELS
        if data.startswith(b"\x89PNG\r\n\x1a\n"):
            width, height = struct.unpack_from(">II", data, 16)
            return width * height <= PLAIN_PIXELS and _has_few_chunks(data)
    except struct.error:
        pass  # it ends too early
    return False


def _has_few_chunks(data: bytes) -> bool:
    place = 8
    for _ in range(PLAIN_SEGMENTS):
        if place >= len(data):
            return True
        (length,) = struct.unpack_from(">I", data, place)
        place += 12 + length
    return False


def _jpeg_work(data: bytes) -> int:
    """Pixels times scans; 0 if the header is an odd one."""
    place, pixels = 2, 0
    for _ in range(PLAIN_SEGMENTS):
        start, marker, length = struct.unpack_from(">BBH", data, place)
        if start != 0xFF or marker == 0xFF:
            return 0
        if marker == 0xDA:
            return pixels * data.count(b"\xff\xda", place)  # which stands nowhere else in packed pixels
        if 0xC0 <= marker <= 0xCF and marker not in (0xC4, 0xC8, 0xCC):
            height, width = struct.unpack_from(">HH", data, place + 5)
            pixels = max(pixels, height * width)
        place += 2 + length
    return 0


def _decode(data: bytes, name: str, max_pixels: int) -> np.ndarray:
    """As `decode_image`, in this process and without limits of time and memory."""
    if not data:
        raise _bad(name, "it is empty")
    try:
        if data[:4] == b"RIFF" and data[8:16] == b"WEBPVP8X":  # Pillow makes room for it when it opens it
            width, height = (1 + int.from_bytes(data[place : place + 3], "little") for place in (24, 27))
            _check_size([(width, height)], name, max_pixels)
        with Image.open(io.BytesIO(data), formats=FORMATS) as image:
            _check_size(_sizes(image), name, max_pixels)
            image.load()
            # Asked for after loading, because a TIFF is turned upright, and its tag removed, by loading.
            orientation = _orientation(image)
            return np.array(_upright(_to_rgb(image, name), orientation))
    except UnidentifiedImageError as error:
        known = ", ".join(FORMATS)
        raise _bad(name, f"it is not an image, or damaged, or of another kind than {known}") from error
    except (Image.DecompressionBombError, Image.DecompressionBombWarning) as error:
        raise _bad(name, f"it has more than {max_pixels:,} pixels") from error
    except MemoryError as error:
        raise _bad(name, "there is not enough memory to decode it") from error
    except _DAMAGE as error:
        raise _bad(name, f"it is damaged ({' '.join(str(error).split()) or type(error).__name__})") from error


def starts_like_picture(data: bytes) -> bool:
    """Whether the first bytes are those of one of the formats.

    >>> starts_like_picture(b"GIF89a"), starts_like_picture(b"BM is no picture")
    (True, False)
    """
    return (
        data.startswith(
            (b"\xff\xd8\xff", b"\x89PNG", b"GIF87a", b"GIF89a", b"II*\0", b"MM\0*", b"II+\0", b"MM\0+")
        )
        or (data[:4] == b"RIFF" and data[8:12] == b"WEBP")
        or (data[:2] == b"BM" and data[6:10] == bytes(4))  # which are reserved
        or re.match(rb"P[1-6]\s(?:\s|#[^\n]*\n)*\d+\s", data[:1000]) is not None
    )


def _bad(name: str, reason: str) -> BadImage:
    # A name from a disk may hold line breaks or bytes that are no text; the message stays one printable line.
    error = BadImage(f"{name if name.isprintable() else ascii(name)} cannot be used as an image: {reason}")
    error.reason = reason
    return error


def _sizes(image: Image.Image) -> list[tuple[int, int]]:
    sizes = [image.size]
    if isinstance(image, TiffImagePlugin.TiffImageFile):
        # The decoder makes room for a whole tile, which may be far larger than the image that it is cut from.
        tile = [image.tag_v2.get(tag, 1) for tag in (TiffImagePlugin.TILEWIDTH, TiffImagePlugin.TILELENGTH)]
        sizes.append((tile[0], tile[1]))
    return sizes


def _check_size(sizes: list[tuple[int, int]], name: str, max_pixels: int) -> None:
    for width, height in sizes:
        if width < 1 or height < 1:
            raise _bad(name, f"it has no pixels ({width} x {height})")
        if width * height > max_pixels:
            raise _bad(name, f"{width} x {height} pixels are more than {max_pixels:,}")


def _orientation(image: Image.Image) -> int:
    try:
        return int(image.getexif().get(ExifTags.Base.Orientation, 1))
    except _DAMAGE:  # the picture is good even if the notes about it are not
        return 1


def _upright(rgb: Image.Image, orientation: int) -> Image.Image:
    rgb.info.clear()  # so that nothing but the number below is looked at
    rgb.getexif()[ExifTags.Base.Orientation] = orientation
    return ImageOps.exif_transpose(rgb)


def _to_rgb(image: Image.Image, name: str) -> Image.Image:
    if image.mode.startswith("I;16") or (image.mode == "I" and image.format == "PPM"):
        return _from_16_bits(image)
    if image.mode in ("I", "F", "LAB"):
        raise _bad(
            name,
            f"its values (mode {image.mode}) have no agreed range: save it with 8 or 16 bits, grey or RGB",
        )
    if not image.has_transparency_data:
        return image.convert("RGB")
    opaque = Image.new("RGB", image.size, "white")
    seen = image.convert("RGBA")
    opaque.paste(seen, mask=seen)
    return opaque


def _from_16_bits(image: Image.Image) -> Image.Image:
    values = np.asarray(image).astype(np.uint32)
    bits = image.tag_v2.get(258, (16,))[0] if isinstance(image, TiffImagePlugin.TiffImageFile) else 16
    full = (1 << bits) - 1
    grey = ((values * 255 + full // 2) // full).astype(np.uint8)
    if "transparency" in image.info:
        grey[values == image.info["transparency"]] = 255
    return Image.fromarray(grey).convert("RGB")
