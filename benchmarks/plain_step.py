"""The training step as a straightforward program does it, for `python -m benchmarks.speed` to compare with.

The same network, losses and optimiser as the learner's, but tensors in PyTorch's default layout, views made of one
image at a time through PIL, and a memory of float32 rows. It is here to be measured, not to be used.
"""

from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor

from edge_hpcr.learner import methods
from edge_hpcr.learner.augment import AugmentConfig
from edge_hpcr.learner.learner import LearnerConfig, build_network
from edge_hpcr.learner.methods import Batch, Records


class PlainMemory:
    """Float32 rows and the textbook reservoir: sample n of the stream takes the place of a random one of n."""

    def __init__(
        self, capacity: int, image_shape: tuple[int, int, int], feature_size: int, classes: int
    ) -> None:
        self.images = torch.zeros(capacity, *image_shape)
        self.labels = torch.zeros(capacity, dtype=torch.int64)
        self.known = torch.zeros(capacity, dtype=torch.int64)
        self.logits = torch.zeros(capacity, classes)
        self.features = torch.zeros(capacity, feature_size)
        self.held = self.seen = 0

    def sample(self, count: int, rng: np.random.Generator) -> Tensor:
        """The slots of `count` distinct samples."""
        return torch.from_numpy(rng.choice(self.held, min(count, self.held), replace=False))

    def update(
        self,
        images: Tensor,
        labels: Tensor,
        logits: Tensor,
        features: Tensor,
        known: int,
        rng: np.random.Generator,
    ) -> None:
        for row in range(len(images)):
            self.seen += 1
            slot = self.held if self.held < len(self.images) else int(rng.integers(self.seen))
            if slot < len(self.images):
                self.images[slot], self.labels[slot] = images[row], labels[row]
                self.features[slot], self.known[slot] = features[row], known
                self.logits[slot, : logits.shape[1]] = logits[row]
                self.held = max(self.held, slot + 1)


class PlainStep:
    """One learner of the plain kind, with all its classes known from the start."""

    def __init__(self, config: LearnerConfig, classes: int) -> None:
        self.config = config
        self.rng = np.random.default_rng(config.seed)
        self.network = build_network(config, torch.device("cpu"))
        bound = self.network.feature_size**-0.5
        for _ in range(classes):
            proxy = self.rng.uniform(-bound, bound, self.network.feature_size)
            self.network.append_proxy(torch.from_numpy(proxy))
        self.network.to(memory_format=torch.contiguous_format)
        self.method = methods.create(config.method, config.method_options)
        self.optimiser = torch.optim.SGD(self.network.parameters(), lr=config.lr)
        shape = (3, config.height, config.width)
        self.memory = PlainMemory(config.memory.samples or 1, shape, self.network.feature_size, classes)
        self.view = pil_view(config.augment, (config.height, config.width))
        self.step = 0

    def observe(self, images: np.ndarray, labels: np.ndarray) -> float:
        """One step on uint8 images [N, H, W, 3] and class columns; returns the loss."""
        config, memory = self.config, self.memory
        incoming = torch.from_numpy(images).permute(0, 3, 1, 2).contiguous().to(torch.float32).div(255)
        columns = torch.from_numpy(labels)
        slots = memory.sample(config.replay, self.rng)
        replayed = memory.images[slots]
        views = 2 if config.views else 1
        groups = [self._with_views(group) for group in (incoming, replayed)]

        self.network.train()
        features = torch.cat([self.network.features(group) for group in groups if len(group)])
        batch = Batch(
            inputs=torch.cat(groups),
            logits=self.network.logits(features),
            features=features,
            sketches=features,
            labels=torch.cat([columns.repeat(views), memory.labels[slots].repeat(views)]),
            incoming_rows=len(groups[0]),
            distinct_samples=len(columns) + len(slots),
            records=Records(
                memory.logits[slots].repeat(views, 1),
                memory.features[slots].repeat(views, 1),
                memory.known[slots].repeat(views),
            ),
            step=self.step,
            tau=config.tau,
            ids=np.zeros(len(columns), np.int64),
        )
        loss = self.method.loss(batch)
        self.optimiser.zero_grad()
        loss.backward()
        self.optimiser.step()
        logits, features = batch.logits[: len(columns)].detach(), features[: len(columns)].detach()
        memory.update(incoming, columns, logits, features, batch.num_classes, self.rng)
        self.step += 1
        return loss.item()

    def _with_views(self, group: Tensor) -> Tensor:
        if not self.config.views or not len(group):
            return group
        return torch.cat([group, torch.stack([self.view(image) for image in group])])


def pil_view(config: AugmentConfig, side: tuple[int, int]) -> Callable[[Tensor], Tensor]:
    """An augmented view of one float image [3, H, W], by way of a PIL image; draws from PyTorch's own generator."""
    from torchvision import transforms  # here, because importing it takes seconds

    jitter = transforms.ColorJitter(config.brightness, config.contrast, config.saturation, config.hue)
    return transforms.Compose(
        [
            transforms.ToPILImage(),
            transforms.RandomResizedCrop(side, config.scale, config.ratio),
            transforms.RandomHorizontalFlip(config.flip),
            transforms.RandomApply([jitter], config.jitter),
            transforms.RandomGrayscale(config.grey),
            transforms.ToTensor(),
        ]
    )
