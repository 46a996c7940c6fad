"""Where the replay memory's rows lie: numbers, latents and raw images in pages, encoded images as bytes objects."""

import sys
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import cv2
import numpy as np

from edge_hpcr.common.errors import UserError
from edge_hpcr.learner.codec import FLOAT, LATENT, decode, encode

_PAGE_BYTES = 65536
_PAGE_ROWS = 128
# What Python itself adds to the bytes of an encoded image: the object's header, the list's pointer to it.
_BLOB_OVERHEAD = sys.getsizeof(b"") + 8


class Rows:
    """Rows of one shape in pages, so that growing, shrinking and widening never copy more than one page.

    One array would have to be reserved for the whole budget in advance, or doubled while it is copied.
    """

    def __init__(self, shape: tuple[int, ...], dtype: np.dtype) -> None:
        self.shape = shape
        self.dtype = dtype
        self._pages: list[np.ndarray] = []
        row_bytes = max(1, int(np.prod(shape)) * dtype.itemsize)
        self._page_rows = int(np.clip(_PAGE_BYTES // row_bytes, 1, _PAGE_ROWS))

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


@dataclass(frozen=True)
class Precision:
    """How a number is kept: as a float, or as a whole number of steps of a fixed size."""

    dtype: np.dtype
    step: float | None = None

    def stored(self, values: np.ndarray) -> np.ndarray:
        """Finite numbers; what the type cannot hold stays at its largest, never infinite."""
        if self.step is None:
            limit = np.finfo(self.dtype).max
            return np.clip(values, -limit, limit).astype(self.dtype)
        most = np.iinfo(self.dtype).max
        return np.clip(np.rint(values / self.step), -most, most).astype(self.dtype)

    def read(self, stored: np.ndarray) -> np.ndarray:
        return stored.astype(np.float32) * np.float32(self.step or 1.0)


class Numbers(Rows):
    """Logits or features; `put` takes what `precision.stored` made of them, `gather` gives float32."""

    def __init__(self, size: int, precision: Precision) -> None:
        super().__init__((size,), precision.dtype)
        self.precision = precision

    def gather(self, slots: np.ndarray) -> np.ndarray:
        return self.precision.read(super().gather(slots))

    def values(self, count: int) -> np.ndarray:
        """The first `count` rows as float32."""
        return self.precision.read(self.head(count))

    def set_column(self, column: int, values: np.ndarray) -> None:
        """One number of each of the first `len(values)` rows."""
        stored = self.precision.stored(values)
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

    def cast(self, precision: Precision) -> None:
        for number, page in enumerate(self._pages):
            self._pages[number] = precision.stored(self.precision.read(page))
        self.precision, self.dtype = precision, precision.dtype


class RawImages(Rows):
    """Images as they are: what is stored of an image is its pixels, uint8, or float32 where they are edited.

    Kept in another size than `shown`, they are shrunk on their way in and enlarged on their way out.
    """

    def __init__(
        self, shape: tuple[int, int, int], shown: tuple[int, int, int], dtype: type = np.uint8
    ) -> None:
        super().__init__(shape, np.dtype(dtype))
        self._shown = shown

    def stored(self, image: np.ndarray) -> np.ndarray:
        return resized(image, self.shape).astype(self.dtype)

    def gather(self, slots: np.ndarray) -> np.ndarray:
        images = super().gather(slots)
        if self._shown == self.shape:
            return images
        return np.array([resized(each, self._shown) for each in images]).reshape(-1, *self._shown)

    def arrays(self, count: int) -> dict[str, np.ndarray]:
        return {"images": self.head(count)}

    def unpack(self, arrays: dict[str, np.ndarray], count: int) -> list[np.ndarray]:
        check_array(arrays["images"], "images", self.dtype, (count, *self.shape))
        return list(arrays["images"])


class EncodedImages:
    """Images in a codec, each a bytes object of its own size; the same verbs as `RawImages`."""

    def __init__(
        self, shape: tuple[int, int, int], shown: tuple[int, int, int], codec: str, quality: int
    ) -> None:
        self.shape = shape
        self._shown = shown
        self._codec = codec
        self._quality = quality
        self._blobs: list[bytes] = []

    def stored(self, image: np.ndarray) -> bytes:
        return encode(resized(image, self.shape), self._codec, self._quality)

    def put(self, slot: int, value: bytes) -> None:
        if slot == len(self._blobs):
            self._blobs.append(value)
        else:
            self._blobs[slot] = value

    def get(self, slot: int) -> bytes:
        return self._blobs[slot]

    def gather(self, slots: np.ndarray) -> np.ndarray:
        images = np.empty((len(slots), *self._shown), np.uint8)
        for position, slot in enumerate(slots.tolist()):
            images[position] = resized(decode(self._blobs[slot], self._codec, self.shape), self._shown)
        return images

    def trim(self, count: int, spare: int = 0) -> None:
        del self._blobs[count:]

    def arrays(self, count: int) -> dict[str, np.ndarray]:
        sizes = np.array([len(blob) for blob in self._blobs[:count]], np.int64)
        return {"images": np.frombuffer(b"".join(self._blobs[:count]), np.uint8), "image_sizes": sizes}

    def unpack(self, arrays: dict[str, np.ndarray], count: int) -> list[bytes]:
        sizes, data = arrays["image_sizes"], arrays["images"]
        check_array(sizes, "image_sizes", np.dtype(np.int64), (count,))
        check_array(data, "images", np.dtype(np.uint8), (int(sizes.sum()),))
        if count and sizes.min() < 1:
            raise UserError("the saved memory has an image without bytes: use an older checkpoint")
        ends = np.cumsum(sizes)
        return [data[end - size : end].tobytes() for end, size in zip(ends, sizes, strict=True)]


class Latents(Rows):
    """What a trunk says of an image, in 8 bits a number between the least and the greatest of the sample."""

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
        rows = super().gather(slots)
        ones = (1,) * len(self.numbers)
        low, step = (rows[name].reshape(-1, *ones) for name in ("low", "step"))
        return rows["codes"] * step + low

    def arrays(self, count: int) -> dict[str, np.ndarray]:
        rows = self.head(count)
        return {f"latent_{name}": np.ascontiguousarray(rows[name]) for name in self.dtype.names or ()}

    def unpack(self, arrays: dict[str, np.ndarray], count: int) -> list[np.ndarray]:
        rows = np.zeros(count, self.dtype)
        for name in self.dtype.names or ():
            shape = self.numbers if name == "codes" else ()
            check_array(arrays[f"latent_{name}"], f"latent_{name}", self.dtype[name].base, (count, *shape))
            rows[name] = arrays[f"latent_{name}"]
        if not all(np.isfinite(rows[name]).all() for name in ("low", "step")):
            raise UserError("the saved memory's latents are not finite: use an older checkpoint")
        return list(rows)


InputStore = RawImages | EncodedImages | Latents


def input_store(shape: tuple[int, ...], codec: str, quality: int, side: int | None = None) -> InputStore:
    """For what the trainable part of a network sees: latents of this shape, or RGB images [H, W, 3].

    `side` is the longer side of an image as it is kept, if it is to be smaller.
    """
    if codec == LATENT:
        return Latents(shape)
    if len(shape) != 3 or min(shape) < 1 or shape[2] != 3:
        raise UserError(f"the memory keeps RGB images [H, W, 3], not {list(shape)}")
    shown, kept = (shape[0], shape[1], 3), kept_shape(shape, side)
    if codec in ("raw", FLOAT):
        return RawImages(kept, shown, np.float32 if codec == FLOAT else np.uint8)
    return EncodedImages(kept, shown, codec, quality)


def kept_shape(shape: tuple[int, ...], side: int | None) -> tuple[int, int, int]:
    """Of an image whose longer side is kept with at most `side` pixels."""
    share = 1.0 if side is None else min(1.0, side / max(shape[:2]))
    return max(1, round(share * shape[0])), max(1, round(share * shape[1])), 3


def resized(image: np.ndarray, shape: tuple[int, ...]) -> np.ndarray:
    """The image with so many pixels: means of areas when it shrinks, interpolated when it grows."""
    if image.shape == shape:
        return image
    how = cv2.INTER_AREA if shape[0] * shape[1] < image.shape[0] * image.shape[1] else cv2.INTER_CUBIC
    return cv2.resize(image, (shape[1], shape[0]), interpolation=how)


def slot_overhead(codec: str) -> int:
    """The bytes that a stored image costs besides its own."""
    return 0 if codec in ("raw", FLOAT, LATENT) else _BLOB_OVERHEAD


def stored_bytes(stored: Any) -> int:
    return len(stored) if isinstance(stored, bytes) else stored.nbytes


def check_array(array: np.ndarray, name: str, dtype: np.dtype, shape: tuple[int, ...]) -> None:
    if array.dtype != dtype or array.shape != shape:
        raise UserError(f"the saved memory's {name} should be {dtype} {list(shape)}: use an older checkpoint")
