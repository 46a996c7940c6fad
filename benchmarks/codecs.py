"""`python -m benchmarks.codecs`: bytes, loss and time of an image as the replay memory could keep it, over codecs and sides.

Beside what `MemoryConfig` offers stands JPEG with colours in full resolution (4:4:4). OpenCV's JPEG has half of it otherwise, WebP always.
"""

import sys
import time
from collections.abc import Iterator
from itertools import product
from pathlib import Path
from typing import Annotated, Any

import cv2
import numpy as np
from typer import Option

from benchmarks.runner import QUICK_HELP, check_writable, circumstances, keep_with_page, table
from benchmarks.speed import SIDE, real_images, tiles
from edge_hpcr.commands import cli
from edge_hpcr.learner.codec import LOSSY_CODECS, decode, encode

SIDES = (SIDE, 64, 224)  # CIFAR's, TinyImageNet's, and that of the pre-trained network
MOST_TILES = 100  # tiles of photographs; there are four of 224 pixels
QUALITIES = (30, 50, 75, 90)
JPEG_444 = "jpeg 4:4:4"
FULL_CHROMA = [cv2.IMWRITE_JPEG_SAMPLING_FACTOR, cv2.IMWRITE_JPEG_SAMPLING_FACTOR_444]

commands = cli.new_commands()


@commands.command()
def codecs(
    out: Annotated[Path, Option(metavar="FILE", help="where to keep it")] = Path("results/codecs.json"),
    quick: Annotated[bool, Option("--quick", help=QUICK_HELP)] = False,
) -> None:
    """What an image costs in bytes, in accuracy of its pixels and in time, by codec, quality and size."""
    check_writable(out)
    with circumstances() as facts:
        rows = [row for side in SIDES for row in _measured(side, quick)]
    keep_with_page(out, {**facts, "rows": rows}, [_table(rows)], "python -m benchmarks.codecs")


def _measured(side: int, quick: bool) -> Iterator[dict[str, Any]]:
    images, *_, source = real_images() if side == SIDE else tiles(side, MOST_TILES)
    images = images[:: len(images) // 3] if quick else images
    _encoded(images[0], "webp", 75)  # what a codec sets up once is no cost of an image
    for codec, quality in [("raw", None), ("png", None), *product((*LOSSY_CODECS, JPEG_444), QUALITIES)]:
        begun = time.process_time()
        blobs = [_encoded(image, codec, quality) for image in images]
        encoded = time.process_time()
        kind = "jpeg" if codec == JPEG_444 else codec
        back = np.stack([decode(blob, kind, image.shape) for blob, image in zip(blobs, images, strict=True)])
        decoded = time.process_time()
        error = float(((back.astype(np.float64) - images) ** 2).mean())
        yield {
            "side": side,
            "images": source,
            "n": len(images),
            "codec": codec,
            "quality": quality,
            "bytes": float(np.mean([len(blob) for blob in blobs])),
            "decibel": 10 * float(np.log10(255**2 / error)) if error else None,
            "encode_ms": 1e3 * (encoded - begun) / len(images),
            "decode_ms": 1e3 * (decoded - encoded) / len(images),
        }


def _encoded(image: np.ndarray, codec: str, quality: int | None) -> bytes:
    if codec != JPEG_444:
        return encode(image, codec, quality or 100)
    flags = [cv2.IMWRITE_JPEG_QUALITY, quality, *FULL_CHROMA]
    return cv2.imencode(".jpg", cv2.cvtColor(image, cv2.COLOR_RGB2BGR), flags)[1].tobytes()


def _table(rows: list[dict[str, Any]]) -> str:
    head = ["codec, quality", "side", "bytes", "of raw", "PSNR dB", "encode ms", "decode ms", "images"]
    return table(
        head,
        [
            [
                " ".join([row["codec"], *([] if row["quality"] is None else [str(row["quality"])])]),
                str(row["side"]),
                f"{row['bytes']:,.0f}",
                f"{row['bytes'] / (3 * row['side'] ** 2):.2f}",
                "exact" if row["decibel"] is None else f"{row['decibel']:.1f}",
                f"{row['encode_ms']:.3f}",
                f"{row['decode_ms']:.3f}",
                f"{row['n']}, {row['images']}",
            ]
            for row in rows
        ],
    )


if __name__ == "__main__":
    sys.exit(cli.run(commands, "python -m benchmarks.codecs"))
