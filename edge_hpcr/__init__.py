"""Edge HPCR: image classifiers that learn new classes on the device, for life.

`from edge_hpcr import Learner, LearnerConfig, MemoryConfig, Workspace` is the interface for programs.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from edge_hpcr.learner.learner import Learner as Learner
    from edge_hpcr.learner.learner import LearnerConfig as LearnerConfig
    from edge_hpcr.learner.memory import MemoryConfig as MemoryConfig
    from edge_hpcr.workspace.workspace import Workspace as Workspace

__version__ = "0.3.0"
__all__ = ["Learner", "LearnerConfig", "MemoryConfig", "Workspace", "__version__"]

_PLACES = {
    "Learner": "edge_hpcr.learner.learner",
    "LearnerConfig": "edge_hpcr.learner.learner",
    "MemoryConfig": "edge_hpcr.learner.memory",
    "Workspace": "edge_hpcr.workspace.workspace",
}


def __getattr__(name: str) -> Any:
    """Import a class when it is first asked for: a device uses this package without PyTorch."""
    if name not in _PLACES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_PLACES[name]), name)
