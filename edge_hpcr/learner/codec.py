"""How samples are kept: images as bytes of a codec, latents in 8 bits, numbers in 16; all in pages."""

import sys
from collections.abc import Iterator
from typing import Any

import cv2
import numpy as np

from edge_hpcr.common.errors import UserError

CODECS = ("raw", "webp", "jpeg", "png")
LATENT = "latent"  # how the replay memory keeps an image with a pre-trained trunk: 8 bits per number
FLOAT = "float32"  # for a method that edits the images it keeps: 0 to 255, four bytes per number
LOSSY_CODECS = ("webp", "jpeg")  # those whose size depends on the quality
DEFAULT_QUALITY = 90

_EXTENSION = {"webp": ".webp", "jpeg": ".jpg", "png": ".png"}
_QUALITY_FLAG = {"webp": cv2.IMWRITE_WEBP_QUALITY, "jpeg": cv2.IMWRITE_JPEG_QUALITY}

# Encoded share of the raw bytes for small natural images (CIFAR at quality 90), rounded up. Only a first
# guess for planning: real sizes replace it as soon as one image is held.
_TYPICAL_SHARE = {"webp": 0.25, "jpeg": 0.4, "png": 0.85}

_PAGE_BYTES = 65536
_PAGE_ROWS = 128


def encode(image: np.ndarray, codec: str, quality: int = DEFAULT_QUALITY) -> bytes:
    """Encode one uint8 RGB image `[H, W, 3]` as webp, jpeg or png; `quality` matters to the first two.

    >>> image = np.zeros((8, 8, 3), np.uint8)
    >>> bool((decode(encode(image, "png"), "png", image.shape) == image).all())
    True
    """
    flags = [_QUALITY_FLAG[codec], quality] if codec in _QUALITY_FLAG else []
    done, blob = cv2.imencode(_EXTENSION[codec], cv2.cvtColor(image, cv2.COLOR_RGB2BGR), flags)
    if not done:
        raise UserError(f"an image {list(image.shape)} cannot be encoded as {codec}: use another codec")
    return blob.tobytes()


def decode(blob: bytes, codec: str, shape: tuple[int, int, int]) -> np.ndarray:
    """Decode a webp, jpeg or png to a uint8 RGB image of exactly `shape`; a damaged or foreign blob is refused."""
    image = cv2.imdecode(np.frombuffer(blob, np.uint8), cv2.IMREAD_COLOR) if blob else None
    if image is None or image.shape != tuple(shape):
        raise UserError(
            f"a stored {codec} image of {len(blob)} bytes is damaged: restore an older checkpoint"
        )
    return cv2.cvtColor(image, cv2.COLOR_BGR2RGB)


class Rows:
    """Rows of one shape in pages, so that growing, shrinking and widening never copy more than one page.

    One array would have to be reserved for the whole budget in advance, or doubled while it is copied.
    """

    overhead = 0  # bytes that a row costs besides its own

    def __init__(self, shape: tuple[int, ...], dtype: np.dtype) -> None:
        self.shape = shape
        self.dtype = dtype
        self._pages: list[np.ndarray] = []
        self.typical_bytes = int(np.prod(shape)) * dtype.itemsize
        self._page_rows = int(np.clip(_PAGE_BYTES // max(1, self.typical_bytes), 1, _PAGE_ROWS))

    def put(self, slot: int, value: Any) -> None:
        page, row = divmod(slot, self._page_rows)
        if page == len(self._pages):
            self._pages.append(np.zeros((self._page_rows, *self.shape), self.dtype))
        self._pages[page][row] = value

    def get(self, slot: int) -> Any:
        page, row = divmod(slot, self._page_rows)
        return self._pages[page][row]

    def gather(self, slots: np.ndarray) -> np.ndarray:
        rows = np.empty((len(slots), *self.shape), self.dtype)
        for position, slot in enumerate(slots.tolist()):
            rows[position] = self.get(slot)
        return rows

    def views(self, count: int) -> Iterator[np.ndarray]:
        """The first `count` rows, page by page, as views that may be written to."""
        for page in self._pages:
            if count <= 0:
                return
            yield page[:count]
            count -= len(page)

    def head(self, count: int) -> np.ndarray:
        """A copy of the first `count` rows."""
        return np.concatenate([np.empty((0, *self.shape), self.dtype), *self.views(count)])

    def trim(self, count: int, spare: int = 0) -> None:
        """Give back the pages that `count` rows do not need, but for `spare` ones."""
        del self._pages[-(-count // self._page_rows) + spare :]


class Numbers(Rows):
    """Logits or features in 16 bits; `put` takes what `stored` made of them, `gather` gives float32."""

    ITEM = np.dtype(np.float16)

    def __init__(self, size: int) -> None:
        super().__init__((size,), self.ITEM)

    @classmethod
    def stored(cls, values: np.ndarray) -> np.ndarray:
        """Finite numbers; what the type cannot hold stays at its largest, never infinite."""
        limit = np.finfo(cls.ITEM).max
        return np.clip(values, -limit, limit).astype(cls.ITEM)

    def rows(self, values: np.ndarray | None, count: int) -> np.ndarray:
        """What is to be stored of so many samples; nothing where there are no columns."""
        return np.empty((count, 0)) if values is None or not self.shape[0] else self.stored(values)

    def gather(self, slots: np.ndarray) -> np.ndarray:
        return super().gather(slots).astype(np.float32)

    def values(self, count: int) -> np.ndarray:
        """The first `count` rows as float32."""
        return self.head(count).astype(np.float32)

    def set_column(self, column: int, values: np.ndarray) -> None:
        """One number of each of the first `len(values)` rows."""
        stored = self.stored(values)
        for page in self.views(len(stored)):
            page[:, column], stored = stored[: len(page)], stored[len(page) :]

    def widen(self) -> None:
        """One more column of zeros."""
        self.shape = (self.shape[0] + 1,)
        for number, page in enumerate(self._pages):
            self._pages[number] = np.pad(page, ((0, 0), (0, 1)))

    def delete_column(self, column: int) -> None:
        self.shape = (self.shape[0] - 1,)
        for number, page in enumerate(self._pages):
            self._pages[number] = np.delete(page, column, axis=1)


class RawImages(Rows):
    """Images as they are: what is stored of an image is its pixels, uint8, or float32 where they are edited."""

    def stored(self, image: np.ndarray) -> np.ndarray:
        return image.astype(self.dtype)

    def arrays(self, count: int) -> dict[str, np.ndarray]:
        return {"images": self.head(count)}

    def unpack(self, arrays: dict[str, np.ndarray]) -> list[np.ndarray]:
        return list(arrays["images"])


class EncodedImages:
    """Images in a codec, each a bytes object of its own size; the same verbs as `RawImages`."""

    # What Python itself adds to the bytes of an encoded image: the object's header, the list's pointer to it.
    overhead = sys.getsizeof(b"") + 8

    def __init__(self, shape: tuple[int, int, int], codec: str, quality: int) -> None:
        self.shape = shape
        self.typical_bytes = int(np.ceil(np.prod(shape) * _TYPICAL_SHARE[codec]))
        self._codec = codec
        self._quality = quality
        self._blobs: list[bytes] = []

    def stored(self, image: np.ndarray) -> bytes:
        return encode(image, self._codec, self._quality)

    def put(self, slot: int, value: bytes) -> None:
        if slot == len(self._blobs):
            self._blobs.append(value)
        else:
            self._blobs[slot] = value

    def get(self, slot: int) -> bytes:
        return self._blobs[slot]

    def gather(self, slots: np.ndarray) -> np.ndarray:
        images = np.empty((len(slots), *self.shape), np.uint8)
        for position, slot in enumerate(slots.tolist()):
            images[position] = decode(self._blobs[slot], self._codec, self.shape)
        return images

    def trim(self, count: int, spare: int = 0) -> None:
        del self._blobs[count:]

    def arrays(self, count: int) -> dict[str, np.ndarray]:
        sizes = np.array([len(blob) for blob in self._blobs[:count]], np.int64)
        return {"images": np.frombuffer(b"".join(self._blobs[:count]), np.uint8), "image_sizes": sizes}

    def unpack(self, arrays: dict[str, np.ndarray]) -> list[bytes]:
        sizes, data = arrays["image_sizes"], arrays["images"]
        ends = np.cumsum(sizes)
        return [data[end - size : end].tobytes() for end, size in zip(ends, sizes, strict=True)]


class Latents(Rows):
    """Latents: a trunk's output for an image, in 8 bits per number between the smallest and the largest of the sample."""

    def __init__(self, shape: tuple[int, ...]) -> None:
        self.numbers = shape
        super().__init__(
            (), np.dtype([("low", np.float32), ("step", np.float32), ("codes", np.uint8, shape)])
        )

    def stored(self, latent: np.ndarray) -> np.ndarray:
        row = np.zeros((), self.dtype)
        low, high = float(latent.min()), float(latent.max())
        row["low"], row["step"] = low, (high - low) / 255
        row["codes"] = np.rint((latent - low) * (255 / (high - low))) if high > low else 0
        return row

    def gather(self, slots: np.ndarray) -> np.ndarray:
        return self.decoded(super().gather(slots))

    def decoded(self, rows: np.ndarray) -> np.ndarray:
        """The latents of stored rows."""
        ones = (1,) * len(self.numbers)
        low, step = (rows[name].reshape(-1, *ones) for name in ("low", "step"))
        return rows["codes"] * step + low

    def arrays(self, count: int) -> dict[str, np.ndarray]:
        rows = self.head(count)
        return {f"latent_{name}": np.ascontiguousarray(rows[name]) for name in self.dtype.names or ()}

    def unpack(self, arrays: dict[str, np.ndarray]) -> list[np.ndarray]:
        rows = np.zeros(len(arrays["latent_codes"]), self.dtype)
        for name in self.dtype.names or ():
            rows[name] = arrays[f"latent_{name}"]
        return list(rows)


InputStore = RawImages | EncodedImages | Latents


def input_store(shape: tuple[int, ...], codec: str, quality: int) -> InputStore:
    """For what the trainable part of a network sees: latents of this shape, or RGB images [H, W, 3]."""
    if codec == LATENT:
        return Latents(shape)
    if len(shape) != 3 or min(shape) < 1 or shape[2] != 3:
        raise UserError(f"the memory keeps RGB images [H, W, 3], not {list(shape)}")
    if codec in ("raw", FLOAT):
        return RawImages(shape, np.dtype(np.float32 if codec == FLOAT else np.uint8))
    return EncodedImages((shape[0], shape[1], 3), codec, quality)


def stored_bytes(stored: Any) -> int:
    return len(stored) if isinstance(stored, bytes) else stored.nbytes
