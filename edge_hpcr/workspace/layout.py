"""Where everything lies in a workspace."""

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Layout:
    path: Path

    @property
    def settings(self) -> Path:
        return self.path / "settings.json"

    @property
    def journal(self) -> Path:
        return self.path / "journal.sqlite"

    @property
    def backup(self) -> Path:
        return self.path / "journal.backup.sqlite"

    @property
    def images(self) -> Path:
        return self.path / "images"

    @property
    def checkpoints(self) -> Path:
        return self.path / "checkpoints"

    @property
    def quarantine(self) -> Path:
        return self.path / "quarantine"

    @property
    def exports(self) -> Path:
        return self.path / "exports"

    @property
    def benchmarks(self) -> Path:
        return self.path / "benchmarks"

    @property
    def lock(self) -> Path:
        return self.path / "lock"

    @property
    def status(self) -> Path:
        return self.path / "status.json"

    def is_workspace(self) -> bool:
        return any(part.exists() for part in (self.settings, self.journal, self.backup))

    def strangers(self) -> list[str]:
        """What lies there and is not ours. Ours may be there alone: a new workspace whose making was cut short."""
        ours = {
            "images",
            "checkpoints",
            "quarantine",
            "exports",
            "benchmarks",
            "lock",
            "settings.json.writing",
        }
        names = (entry.name for entry in self.path.iterdir())
        return sorted(name for name in names if name not in ours and not name.startswith("."))

    def checkpoint_folders(self) -> list[Path]:
        """Whole checkpoints by name, oldest first."""
        if not self.checkpoints.is_dir():
            return []
        return sorted(
            folder
            for folder in self.checkpoints.iterdir()
            if folder.is_dir() and folder.name.startswith("step-") and not folder.suffix
        )
