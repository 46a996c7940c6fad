"""What the trainable part of a network sees of pictures: the trunk sees each picture once, however often it is asked about."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Hashable, Iterator
from contextlib import contextmanager

import numpy as np
import torch

from edge_hpcr.common.files import sha256
from edge_hpcr.learner.learner import Learner

KEPT_BYTES = 32_000_000  # latents of the frames, queued and held-out samples that were asked about last
SMALL_PIXELS = 64 * 64  # up to here a second core helps one image little


class Encoder:
    """Latents of prepared images, found again by the images' pixels or by the number of the sample they became.

    Any thread may ask. The trunk is frozen, so it runs beside a training step and waits for none.
    """

    def __init__(self, learner: Learner) -> None:
        self._learner = learner
        self._trunk = learner.network.backbone.trunk
        self._lock = threading.Lock()
        self._kept: OrderedDict[Hashable, np.ndarray] = OrderedDict()
        self._bytes = 0

    def encode(self, images: np.ndarray) -> np.ndarray:
        """Latents [N, 1, ...] of uint8 images [N, H, W, 3]; without a trunk the images themselves."""
        if self._trunk is None:
            return images
        keys = [sha256(image.tobytes()) for image in images]
        found = [self._find(key) for key in keys]
        missing = [place for place, latent in enumerate(found) if latent is None]
        if missing:
            with torch.inference_mode(), few_threads(images[missing]):
                latents = self._trunk(self._learner.to_device(images[missing])).cpu().numpy()
            for place, latent in zip(missing, latents, strict=True):
                found[place] = latent
                self._keep(keys[place], latent)
        return np.stack([latent for latent in found if latent is not None])[:, None]

    def encode_sample(self, sample_id: int, image: np.ndarray) -> np.ndarray:
        """As `encode`, for the stored image of a sample, which may differ a little from the frame that it was."""
        if self._trunk is None:
            return image
        latent = self._find(sample_id)
        if latent is None:
            latent = self.encode(image[None])[0, 0]
            self._keep(sample_id, latent)
        return latent[None]

    def name(self, sample_id: int, image: np.ndarray) -> None:
        """This image has become a sample: what the trunk said of it need not be asked again."""
        latent = None if self._trunk is None else self._find(sha256(image.tobytes()))
        if latent is not None:
            self._keep(sample_id, latent)

    def _find(self, key: Hashable) -> np.ndarray | None:
        with self._lock:
            if key in self._kept:
                self._kept.move_to_end(key)
            return self._kept.get(key)

    def _keep(self, key: Hashable, latent: np.ndarray) -> None:
        with self._lock:
            if key not in self._kept:
                self._bytes += latent.nbytes
            self._kept[key] = latent
            while self._bytes > KEPT_BYTES:
                self._bytes -= self._kept.popitem(last=False)[1].nbytes


@contextmanager
def few_threads(images: np.ndarray) -> Iterator[None]:
    """One thread for a small image: several wait for each other in every layer, and on busy cores that is most of it.

    The number belongs to the thread that calls; a learner beside it keeps its own.
    """
    before = torch.get_num_threads()
    small = images.ndim < 4 or images.shape[0] * images.shape[1] * images.shape[2] <= SMALL_PIXELS
    torch.set_num_threads(1 if small else before)
    try:
        yield
    finally:
        torch.set_num_threads(before)
