"""Image files from outside, safely: whatever arrives becomes an upright uint8 RGB array, or a `BadImage` says why not.

Nothing is trusted. Only regular files of bounded size are read; only a few formats are recognised; the pixels are
counted in the header, before any of them is decoded. Transparent parts become white, and of an animation the first frame
is taken.
"""

import io
import struct
import warnings
import zlib
from pathlib import Path

import numpy as np
from PIL import ExifTags, Image, ImageOps, UnidentifiedImageError

from edge_hpcr.common.errors import UserError
from edge_hpcr.common.files import read_regular

FORMATS = ("JPEG", "PNG", "WEBP", "BMP", "GIF")
MAX_PIXELS = 50_000_000
MAX_BYTES = 50_000_000
# Pixels times the scans of a JPEG, each of which goes over the whole picture. A camera's has about ten.
MOST_WORK = 1_000_000_000

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


def read_bytes(path: Path, follow: bool = True) -> bytes:
    """A regular file's contents, if they are not too many; never waits for a pipe or a device."""
    return read_regular(path, MAX_BYTES, lambda reason: _bad(str(path), reason), follow)


def decode_image(data: bytes, name: str, max_pixels: int = MAX_PIXELS) -> np.ndarray:
    """The image in `data`, as uint8 RGB `[H, W, 3]`; `name` says in the error which one was bad."""
    if not data:
        raise _bad(name, "it is empty")
    try:
        with Image.open(io.BytesIO(data), formats=FORMATS) as image:
            _check_size(image, name, max_pixels)
            if image.format == "JPEG" and image.width * image.height * data.count(b"\xff\xda") > MOST_WORK:
                raise _bad(name, "it has more scans than any camera writes")
            image.load()
            return np.array(_upright(_to_rgb(image, name), _orientation(image)))
    except UnidentifiedImageError as error:
        known = ", ".join(FORMATS)
        raise _bad(name, f"it is not an image, or damaged, or of another kind than {known}") from error
    except (Image.DecompressionBombError, Image.DecompressionBombWarning) as error:
        raise _bad(name, f"it has more than {max_pixels:,} pixels") from error
    except MemoryError as error:
        raise _bad(name, "there is not enough memory to decode it") from error
    except _DAMAGE as error:
        raise _bad(name, f"it is damaged ({' '.join(str(error).split()) or type(error).__name__})") from error


def _bad(name: str, reason: str) -> BadImage:
    # A name from a disk may hold line breaks or bytes that are no text; the message stays one printable line.
    return BadImage(f"{name if name.isprintable() else ascii(name)} cannot be used as an image: {reason}")


def _check_size(image: Image.Image, name: str, max_pixels: int) -> None:
    width, height = image.size
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
    if image.mode.startswith("I"):
        raise _bad(name, "its grey values have more than 8 bits: save it with 8")
    if not image.has_transparency_data:
        return image.convert("RGB")
    opaque = Image.new("RGB", image.size, "white")
    seen = image.convert("RGBA")
    opaque.paste(seen, mask=seen)
    return opaque
