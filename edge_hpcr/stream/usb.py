"""A camera at this computer, by its number."""

from edge_hpcr.stream.captures import open_camera
from edge_hpcr.stream.reopen import Patience, ReopeningCamera


class UsbCamera(ReopeningCamera):
    """Camera 0 is mostly the built-in or the only one. One that is not there yet is waited for."""

    def __init__(self, index: int, patience: Patience | None = None) -> None:
        super().__init__(f"camera {index}", lambda: open_camera(index), patience)
