"""Where everything lies in a workspace."""

from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from edge_hpcr.common.errors import UserError
from edge_hpcr.common.files import WRITING

Loaded = TypeVar("Loaded")
LAST_USED = ".edge-hpcr-workspace"  # beside the workspaces of a folder: the name of the one that the app has opened last


class Layout:
    """The places of a workspace's files."""

    def __init__(self, path: Path | str) -> None:
        self.path = Path(path)
        self.settings = self.path / "settings.json"
        self.regions = self.path / "regions.json"
        self.journal = self.path / "journal.sqlite"
        self.backup = self.path / "journal.backup.sqlite"
        self.images = self.path / "images"
        self.checkpoints = self.path / "checkpoints"
        self.exports = self.path / "exports"
        self.benchmarks = self.path / "benchmarks"
        self.set_aside = self.path / "set-aside"
        self.lock = self.path / "lock"
        self.taking = self.path / "taking.lock"  # held while an image is on its way from file to row
        self.devices = self.path / "devices.json"
        self.latents = self.path / "latents.sqlite"  # of samples: a cache
        self.status = self.path / "status.json"
        self.token = self.path / "token"  # opens the app's page
        self.certificate = self.path / "tls.pem"  # with its key, of `--phone`

    def is_workspace(self) -> bool:
        return any(part.exists() for part in (self.settings, self.journal, self.backup))

    def check_exists(self) -> None:
        if not self.is_workspace():
            raise UserError(f"no workspace at {self.path}: `learn --workspace {self.path}` makes one")
        self.check_links()

    def check_links(self) -> None:
        """Refuse a folder in which a part is a link: it may come from outside, and lead anywhere."""
        for part in vars(self).values():
            if part != self.path and part.is_symlink():
                raise UserError(
                    f"{part} is a link, and links are not followed here: put there what it leads to"
                )

    def has_data(self) -> bool:
        """Whether something was learned or taken here, of which a journal must know."""
        exported = self.exports.is_dir() and any(self.exports.glob("v*/"))
        return bool(self.checkpoint_folders()) or exported or any(self.images.glob("*/*"))

    def foreign_files(self) -> list[str]:
        """Names there that are not ours; ours may be there alone if making the workspace was cut short."""
        folders = (self.images, self.checkpoints, self.exports, self.benchmarks)
        ours = {*(part.name for part in (*folders, self.lock, self.taking)), self.settings.name + WRITING}
        names = (entry.name for entry in self.path.iterdir())
        return sorted(name for name in names if name not in ours and not name.startswith("."))

    def checkpoint_folders(self) -> list[Path]:
        """Whole checkpoints by name, oldest first."""
        folders = self.checkpoints.iterdir() if self.checkpoints.is_dir() else ()
        named = (f for f in folders if f.name.startswith("step-") and not f.suffix)
        return sorted(f for f in named if f.is_dir() and not f.is_symlink())

    def newest_checkpoint(
        self, load: Callable[[Path], Loaded], refusals: type[UserError] = UserError
    ) -> tuple[Loaded | None, list[tuple[Path, UserError]]]:
        """Load the newest that `load` does not refuse; returns also those it refused, with the reasons."""
        refused: list[tuple[Path, UserError]] = []
        for folder in reversed(self.checkpoint_folders()):
            try:
                return load(folder), refused
            except refusals as error:
                if folder.exists():  # a learner that runs may have removed it meanwhile
                    refused.append((folder, error))
        return None, refused


def last_used(folder: Path) -> Path:
    """The workspace of this folder that the app has opened last; `workspace` if there is none."""
    try:
        path = folder / Path((folder / LAST_USED).read_text(encoding="utf-8").strip()).name
    except (OSError, ValueError):
        path = folder
    return path if path != folder and Layout(path).journal.is_file() else folder / "workspace"
