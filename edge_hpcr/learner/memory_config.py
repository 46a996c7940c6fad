"""How large the replay memory is, and how it keeps, draws and gives up samples."""

from dataclasses import dataclass, replace

import numpy as np

from edge_hpcr.common.errors import UserError, one_of
from edge_hpcr.learner.codec import DEFAULT_QUALITY, LATENT, LOSSY_CODECS, check_codec, typical_bytes
from edge_hpcr.learner.drawing import DRAWS
from edge_hpcr.learner.rows import Precision, kept_shape

AUTO = "auto"  # of the codec: what suits budget and image size, see `resolved`
# Of WebP, and at least as good as 50 and 90 in every budget that was tried: docs/edge.md.
BEST_QUALITY = 75
SMALLEST_SIDE = 16  # below it, a file's head outweighs what encoding saves
OPTIONS = ("precision", "side", "draw", "keep")  # beside budget and codec
KEEPS = ("reservoir", "balanced")
# Cosine logits lie within 1/tau = 11.1 and features have length one: their least steps in 8 bits.
LOGIT_STEP, FEATURE_STEP = 1 / 8, 1 / 127
_DTYPES = {"float16": np.float16, "float32": np.float32, "int8": np.int8}


@dataclass(frozen=True)
class MemoryConfig:
    """The budget (exactly one of `samples` and `bytes`), how a sample is kept, and which ones are drawn and kept."""

    samples: int | None = None
    bytes: int | None = None
    codec: str = "raw"
    quality: int = DEFAULT_QUALITY
    precision: str = "float16"  # of logits and features; or "float32", "int8"
    side: int | None = None  # pixels of the longer side of an image as it is kept; None: as it came
    draw: str = "random"  # which samples are replayed; or "deck", "even", "least_used": see drawing.py
    keep: str = (
        "reservoir"  # which stay; or "balanced": as many of each class as there are, up to the same number
    )

    def __post_init__(self) -> None:
        if (self.samples is None) == (self.bytes is None):
            raise UserError("the memory needs exactly one budget: a number of samples or a number of bytes")
        budget = self.samples if self.bytes is None else self.bytes
        if not isinstance(budget, int) or budget < 1:
            raise UserError(f"the memory budget must be a whole number of at least 1, not {budget!r}")
        one_of("precision", self.precision, _DTYPES)
        one_of("draw", self.draw, DRAWS)
        one_of("keep", self.keep, KEEPS)
        if self.codec != AUTO:
            check_codec(self.codec, self.quality)
        if self.side is not None and self.side < 1:
            raise UserError(f"side {self.side}: an image is kept with at least one pixel")
        if self.side is not None and self.codec == LATENT:
            raise UserError(f"side {self.side}: a memory of latents keeps no images; leave it out")

    def resolved(self, height: int, width: int) -> "MemoryConfig":
        """With a codec for images of this size in the place of `auto`."""
        if self.codec != AUTO:
            return self
        if self.bytes is None or min(height, width) < SMALLEST_SIDE:
            return replace(self, codec="raw")
        return replace(self, codec="webp", quality=BEST_QUALITY)

    @property
    def encoding(self) -> tuple[str, int | None, int | None]:
        """What decides the bytes of an input."""
        return self.codec, self.quality if self.codec in LOSSY_CODECS else None, self.side

    @property
    def logit_precision(self) -> Precision:
        return self._precision(LOGIT_STEP)

    @property
    def feature_precision(self) -> Precision:
        return self._precision(FEATURE_STEP)

    def _precision(self, step: float) -> Precision:
        dtype = np.dtype(_DTYPES[self.precision])
        return Precision(dtype, step if dtype.kind == "i" else None)

    def typical_bytes(self, input_shape: tuple[int, ...]) -> int:
        """A guess at the stored size of an input, to plan with before any is held."""
        kept = input_shape if self.codec == LATENT else kept_shape(input_shape, self.side)
        return typical_bytes(kept, self.codec)

    def capacity(self, row_bytes: int, reserved: int = 0) -> int:
        """How many rows of this size the budget holds, beside bytes that are not the memory's."""
        return self.samples if self.samples is not None else max(0, (self.bytes or 0) - reserved) // row_bytes

    def exceeded_by(self, count: int, total_bytes: int) -> bool:
        return count > self.samples if self.samples is not None else total_bytes > (self.bytes or 0)
