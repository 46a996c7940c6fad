"""Images to bytes and back: how the replay memory and the checkpoints keep pictures."""

import cv2
import numpy as np

from edge_hpcr.common.errors import UserError, one_of

CODECS = ("raw", "webp", "jpeg", "png")
LATENT = "latent"  # what the replay memory keeps of an image with a pre-trained trunk: 8 bits a number
FLOAT = "float32"  # of a method that edits the images it keeps: 0 to 255, four bytes a number
LATENT_SCALE_BYTES = 8  # of a sample: its least number and the step between two codes
LOSSY_CODECS = ("webp", "jpeg")  # those whose size depends on the quality
DEFAULT_QUALITY = 90

_EXTENSION = {"webp": ".webp", "jpeg": ".jpg", "png": ".png"}
_QUALITY_FLAG = {"webp": cv2.IMWRITE_WEBP_QUALITY, "jpeg": cv2.IMWRITE_JPEG_QUALITY}

# Encoded share of the raw bytes for small natural images (CIFAR at quality 90), rounded up. Only a first
# guess for planning: real sizes replace it as soon as one image is held.
_TYPICAL_SHARE = {"raw": 1.0, "webp": 0.25, "jpeg": 0.4, "png": 0.85, FLOAT: 4.0}


def check_codec(codec: str, quality: int) -> None:
    """Refuse a codec or a quality that `encode` could not honour."""
    one_of("codec", codec, (*CODECS, LATENT, FLOAT))
    if not 1 <= quality <= 100:
        raise UserError(f"image quality {quality} is out of range: use 1 to 100")


def encode(image: np.ndarray, codec: str, quality: int = DEFAULT_QUALITY) -> bytes:
    """Encode one uint8 RGB image `[H, W, 3]`; `quality` matters to webp and jpeg alone.

    >>> image = np.zeros((8, 8, 3), np.uint8)
    >>> bool((decode(encode(image, "png"), "png", image.shape) == image).all())
    True
    """
    one_of("image codec", codec, CODECS)
    check_codec(codec, quality)
    if image.dtype != np.uint8 or image.ndim != 3 or image.shape[2] != 3:
        raise UserError(f"an image must be uint8 [H, W, 3], not {image.dtype} {list(image.shape)}")
    if codec == "raw":
        return image.tobytes()
    flags = [_QUALITY_FLAG[codec], quality] if codec in _QUALITY_FLAG else []
    done, blob = cv2.imencode(_EXTENSION[codec], cv2.cvtColor(image, cv2.COLOR_RGB2BGR), flags)
    if not done:
        raise UserError(f"an image {list(image.shape)} cannot be encoded as {codec}: use another codec")
    return blob.tobytes()


def decode(blob: bytes, codec: str, shape: tuple[int, int, int]) -> np.ndarray:
    """Decode to a uint8 RGB image of exactly `shape`; a damaged or foreign blob is refused."""
    one_of("image codec", codec, CODECS)
    if codec == "raw":
        if len(blob) != int(np.prod(shape)):
            raise _damaged(blob, codec)
        return np.frombuffer(blob, np.uint8).reshape(shape)
    try:
        image = cv2.imdecode(np.frombuffer(blob, np.uint8), cv2.IMREAD_COLOR)
    except cv2.error as error:
        raise _damaged(blob, codec) from error
    if image is None or image.shape != tuple(shape):
        raise _damaged(blob, codec)
    return cv2.cvtColor(image, cv2.COLOR_BGR2RGB)


def typical_bytes(shape: tuple[int, ...], codec: str) -> int:
    """A guess at the stored size of an input of this shape, to plan with before any is held."""
    if codec == LATENT:
        return int(np.prod(shape)) + LATENT_SCALE_BYTES
    return int(np.ceil(np.prod(shape) * _TYPICAL_SHARE[codec]))


def _damaged(blob: bytes, codec: str) -> UserError:
    return UserError(f"a stored {codec} image of {len(blob)} bytes is damaged: restore an older checkpoint")
