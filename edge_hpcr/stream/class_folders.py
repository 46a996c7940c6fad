"""Which folders of a collection of pictures name the classes: one place for imports, `learn --labels folders` and the page.

mug/1.png   pen/1.png                    the folders at the top
dataset/mug/1.png                        below a folder that holds everything
train/mug/1.png   test/mug/2.png         splits: only one of them is learned, or tests would measure what was learned
"""

import mimetypes
from collections import Counter
from collections.abc import Collection, Iterable
from dataclasses import dataclass, field

from edge_hpcr.common.errors import UserError

TRAIN = ("train", "training")
SPLITS = (*TRAIN, "test", "testing", "val", "valid", "validation", "dev", "eval")
EVERY_SPLIT = "all"

Parts = tuple[str, ...]  # the folders on the way to a file, and its name


@dataclass(frozen=True)
class ClassFolders:
    top: Parts = ()  # folders that hold everything
    splits: dict[str, int] = field(default_factory=dict)  # pictures in each, if the folders below are splits
    split: str | None = None  # the one that is used; None: there are none, or all are

    def class_of(self, parts: Parts) -> str | None:
        """The folder that names a file's class; None if there is none, or the file is of another split.

        >>> ClassFolders(("data",), {"train": 9, "test": 3}, "train").class_of(("data", "train", "dog", "1.png"))
        'dog'
        """
        if parts[: len(self.top)] != self.top:
            return None
        below = parts[len(self.top) :]
        if self.splits:
            if self.leaves_out(parts) or below[0] not in self.splits:
                return None
            below = below[1:]
        return below[0] if len(below) > 1 else None

    def leaves_out(self, parts: Parts) -> bool:
        """Whether a file is of a split that is not used."""
        place = parts[len(self.top)] if len(parts) > len(self.top) else ""
        return self.split is not None and place in self.splits and place != self.split

    @property
    def note(self) -> str:
        """What a person should know about the choice; empty if there was none.

        >>> ClassFolders((), {"train": 9, "test": 3}, "train").note
        'train/ and test/ look like splits: train is used'
        """
        if not self.splits:
            return ""
        *first, last = (f"{name}/" for name in self.splits)
        return f"{', '.join(first)} and {last} look like splits: {self.split or 'all'} {'is' if self.split else 'are'} used"


def find_class_folders(files: Collection[Parts], split: str | None = None) -> ClassFolders:
    """Look at the names of all files of a collection; `split` chooses one, or all: else the one for training is used."""
    top = _common_top(files)
    splits = _splits([parts[len(top) :] for parts in files])
    if not splits:
        if split not in (None, EVERY_SPLIT):
            raise UserError(f"split {split}: there are no folders like train/ and test/ in it")
        return ClassFolders(top)
    if split not in (None, EVERY_SPLIT, *splits):
        raise UserError(f"split {split}: choose one of {', '.join(splits)} or {EVERY_SPLIT}")
    chosen = next((name for name in splits if name.casefold() in TRAIN), None) if split is None else split
    return ClassFolders(top, splits, None if chosen == EVERY_SPLIT else chosen)


def looks_like_image(name: str) -> bool:
    kind, _ = mimetypes.guess_type(name, strict=False)
    return kind is not None and kind.startswith("image/")


def _common_top(files: Collection[Parts]) -> Parts:
    """Many collections lie in one folder, or several; but a folder with images in it is a class."""
    top: Parts = ()
    while True:
        below = [parts[len(top) :] for parts in files if len(parts) > len(top)]
        names = {parts[0] for parts in below if len(parts) > 1}
        beside = any(len(parts) == 1 and looks_like_image(parts[0]) for parts in below)
        holds_images = any(len(parts) == 2 and looks_like_image(parts[1]) for parts in below)
        if len(names) != 1 or beside or holds_images or all(len(parts) <= 2 for parts in below):
            return top
        top = (*top, *names)


def _splits(files: Iterable[Parts]) -> dict[str, int]:
    """Pictures by split, the one for training first; empty if the folders at the top are something else.

    A folder that holds pictures itself is a class, whatever it is called: there are pictures of trains.
    """
    images = [parts for parts in files if len(parts) > 1 and looks_like_image(parts[-1])]
    counts = Counter(parts[0] for parts in images)
    flat = {parts[0] for parts in images if len(parts) == 2}
    if len(counts) < 2 or any(name.casefold() not in SPLITS for name in counts) or flat == {*counts}:
        return {}
    order = sorted(counts, key=lambda name: SPLITS.index(name.casefold()))
    return {name: counts[name] for name in order}
