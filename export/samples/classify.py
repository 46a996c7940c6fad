"""Classify pictures with an exported model and without Edge HPCR: only ONNX Runtime, NumPy and Pillow.

    pip install onnxruntime numpy pillow
    python classify.py FOLDER picture.jpg ...      # FOLDER: a version, such as workspace/exports/v000017

It checks itself against the golden sample first, and ends with 1 if it does not answer as the trainer did.
"""

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
from PIL import Image


def weights(source: int, target: int, shrinks: bool) -> np.ndarray:
    """[target, source]: how much each source pixel of a row counts in each pixel of the result."""
    scale = source / target
    found = np.zeros((target, source))
    for place in range(target):
        if shrinks:  # the share of the area that a pixel of the result covers
            edges = np.arange(source + 1).clip(place * scale, (place + 1) * scale)
            found[place] = (edges[1:] - edges[:-1]) / scale
        else:  # the two nearest; beyond the edge, the edge
            middle = min(max((place + 0.5) * scale - 0.5, 0), source - 1)
            first = int(middle)
            found[place, first] += 1 - (middle - first)
            found[place, min(first + 1, source - 1)] += middle - first
    return found


def resized(picture: np.ndarray, height: int, width: int) -> np.ndarray:
    """uint8 RGB of any size as the model's input: the middle, shrunk by area or grown linearly."""
    rows, columns = picture.shape[:2]
    crop_rows = min(rows, max(1, round(columns * height / width)))
    crop_columns = min(columns, max(1, round(rows * width / height)))
    top, left = (rows - crop_rows) // 2, (columns - crop_columns) // 2
    middle = picture[top : top + crop_rows, left : left + crop_columns].astype(np.float64)
    shrinks = crop_rows >= height and crop_columns >= width
    down, across = weights(crop_rows, height, shrinks), weights(crop_columns, width, shrinks)
    values = np.einsum("yr,rcx,zc->yzx", down, middle, across, optimize=True)
    return np.round(values).clip(0, 255).astype(np.uint8)


def read_picture(path: Path) -> np.ndarray:
    return np.asarray(Image.open(path).convert("RGB"))


class Model:
    """An exported version: its folder holds the model and manifest.json."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.manifest: dict[str, Any] = json.loads((folder / "manifest.json").read_text(encoding="utf-8"))
        self.names = [each["name"] for each in self.manifest["classes"]]
        self.session = onnxruntime.InferenceSession(str(folder / self.manifest["file"]))

    def outputs(self, image: np.ndarray) -> tuple[np.ndarray, float]:
        """Scores and similarity of one image that has the model's size."""
        scores, similarity = self.session.run(["scores", "similarity"], {"image": image[None]})
        return scores[0], float(similarity[0])

    def answer(self, picture: np.ndarray) -> dict[str, Any]:
        size = self.manifest["image"]
        scores, similarity = self.outputs(resized(picture, size["height"], size["width"]))
        threshold = self.manifest["unknown_below"]
        best = int(scores.argmax())
        unknown = threshold is not None and similarity < threshold
        return {"name": self.names[best], "score": float(scores[best]), "unknown": unknown}

    def check(self) -> dict[str, float]:
        """How far the answers to the golden sample are from the trainer's; ends the program if too far."""
        golden = json.loads((self.folder / "golden.json").read_text(encoding="utf-8"))
        size, differences = self.manifest["image"], {}
        given = read_picture(self.folder / golden["input"])
        own = resized(read_picture(self.folder / golden["image"]), size["height"], size["width"])
        for what, image in (("input", given), ("image", own)):
            scores, similarity = self.outputs(image)
            expected = np.array(golden["scores"])
            difference = max(np.abs(scores - expected).max(), abs(similarity - golden["similarity"]))
            differences[what] = float(difference)
            if not difference <= golden["tolerance"][what]:
                sys.exit(f"the golden {what} is answered otherwise than by the trainer, by {difference:.4f}")
        return differences


def main() -> None:
    if len(sys.argv) < 2:
        sys.exit("usage: classify.py FOLDER [PICTURE ...]")
    model = Model(Path(sys.argv[1]))
    print(json.dumps({"golden": model.check()}))
    for path in map(Path, sys.argv[2:]):
        print(json.dumps({"file": path.name, **model.answer(read_picture(path))}, ensure_ascii=False))


if __name__ == "__main__":
    main()
