"""Where everything lies in a workspace."""

from pathlib import Path

from edge_hpcr.common.errors import UserError
from edge_hpcr.common.files import WRITING


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
        self.quarantine = self.path / "quarantine"
        self.exports = self.path / "exports"
        self.benchmarks = self.path / "benchmarks"
        self.set_aside = self.path / "set-aside"
        self.lock = self.path / "lock"
        self.taking = self.path / "taking.lock"  # held while an image is on its way from file to row
        self.devices = self.path / "devices.sqlite"
        self.status = self.path / "status.json"
        self.latencies = self.path / "latencies.json"  # of published models on this machine
        self.token = self.path / "token"  # opens the app's page
        self.certificate = self.path / "tls.pem"  # with its key, of `--tls auto`

    def is_workspace(self) -> bool:
        return any(part.exists() for part in (self.settings, self.journal, self.backup))

    def check_exists(self) -> None:
        if not self.is_workspace():
            raise UserError(f"no workspace at {self.path}: `learn --workspace {self.path}` makes one")

    def has_life(self) -> bool:
        """Whether something was learned or taken here, of which a journal must know."""
        exported = self.exports.is_dir() and any(self.exports.glob("v*/"))
        return bool(self.checkpoint_folders()) or exported or any(self.images.glob("*/*"))

    def strangers(self) -> list[str]:
        """Names there that are not ours; ours may be there alone if making the workspace was cut short."""
        folders = (self.images, self.checkpoints, self.quarantine, self.exports, self.benchmarks)
        ours = {*(part.name for part in (*folders, self.lock, self.taking)), self.settings.name + WRITING}
        names = (entry.name for entry in self.path.iterdir())
        return sorted(name for name in names if name not in ours and not name.startswith("."))

    def checkpoint_folders(self) -> list[Path]:
        """Whole checkpoints by name, oldest first."""
        folders = self.checkpoints.iterdir() if self.checkpoints.is_dir() else ()
        return sorted(f for f in folders if f.is_dir() and f.name.startswith("step-") and not f.suffix)
