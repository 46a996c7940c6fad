"""The training step as a straightforward program does it, for `python -m benchmarks.speed` to compare with.

The same network, losses and optimiser as the learner's, but tensors in PyTorch's default layout, views made of one
image at a time through PIL, and a memory of float32 rows, which nothing enters: late in a stream next to nothing
does. It is here to be measured, not to be used.
"""

from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor

from edge_hpcr.learner import methods
from edge_hpcr.learner.augment import AugmentConfig
from edge_hpcr.learner.learner import LearnerConfig, build_network
from edge_hpcr.learner.methods import Batch, Records


class PlainStep:
    """One learner of the plain kind, with all its classes known from the start.

    `memory` is what it replays, a row for each sample: images [N, 3, H, W], labels, logits, features, and the number of
    classes known then.
    """

    def __init__(self, config: LearnerConfig, classes: int, memory: list[Tensor]) -> None:
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
        self.memory = memory
        self.view = pil_view(config.augment, (config.height, config.width))
        self.step = 0

    def observe(self, images: np.ndarray, labels: np.ndarray) -> float:
        """One step on uint8 images [N, H, W, 3] and class columns; returns the loss."""
        config = self.config
        incoming = torch.from_numpy(images).permute(0, 3, 1, 2).contiguous().to(torch.float32).div(255)
        columns = torch.from_numpy(labels)
        slots = self.rng.choice(len(self.memory[0]), config.replay, replace=False)
        replayed, replayed_labels, *records = (rows[slots] for rows in self.memory)
        groups = [self._with_views(group) for group in (incoming, replayed)]

        self.network.train()
        features = torch.cat([self.network.features(group) for group in groups])
        batch = Batch(
            inputs=torch.cat(groups),
            logits=self.network.logits(features),
            features=features,
            labels=torch.cat([columns.repeat(2), replayed_labels.repeat(2)]),
            incoming_rows=len(groups[0]),
            distinct_samples=len(columns) + len(slots),
            records=Records(*(torch.cat([rows] * 2) for rows in records)),
            step=self.step,
            tau=config.tau,
            ids=np.zeros(len(columns), np.int64),
        )
        loss = self.method.loss(batch)
        self.optimiser.zero_grad()
        loss.backward()
        self.optimiser.step()
        self.step += 1
        return loss.item()

    def _with_views(self, group: Tensor) -> Tensor:
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
