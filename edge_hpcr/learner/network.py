"""The network: a backbone that makes features, and a cosine classifier of proxies.

`z = h(x)` is `Network.features`, `o = f(z)` is `Network.logits`; one trainable proxy stands for one class.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from edge_hpcr.learner.backbones.contract import Backbone


class Network(nn.Module):
    """A backbone and one proxy per class; `logits = cos(z, w_c) / tau`.

    Classes are columns in the order of their arrival. A new proxy is appended; the old ones keep their values. The
    backbone's trunk is no part of the state: copies share it.
    """

    def __init__(self, backbone: Backbone, tau: float = 0.09) -> None:
        super().__init__()
        self.backbone = backbone
        self.tau = tau
        self.proxies = nn.Parameter(torch.empty(0, backbone.feature_size))

    @property
    def feature_size(self) -> int:
        return self.backbone.feature_size

    @property
    def num_classes(self) -> int:
        return self.proxies.shape[0]

    def append_proxy(self, proxy: Tensor) -> None:
        """One more class. The old proxies keep their values; the parameter object is a new one."""
        grown = torch.cat([self.proxies.detach(), proxy.to(self.proxies)[None]])
        self.proxies = nn.Parameter(grown, requires_grad=self.proxies.requires_grad)

    def keep_proxies(self, columns: list[int]) -> None:
        """Keep the classes of these columns, in this order."""
        self.proxies = nn.Parameter(self.proxies.detach()[columns].clone(), self.proxies.requires_grad)

    def take_over(self, state: dict[str, Tensor]) -> None:
        """The weights of another network of this shape, which may know other classes."""
        proxies = state["proxies"].to(self.proxies)
        self.proxies = nn.Parameter(proxies.clone(), self.proxies.requires_grad)
        self.load_state_dict(state)

    def inputs(self, images: Tensor) -> Tensor:
        """What the trainable part sees of images (float RGB in [0, 1], [N, 3, H, W]): latents, if there is a trunk."""
        return images if self.backbone.trunk is None else self.backbone.trunk(images)

    def features(self, inputs: Tensor, groups: list[int] | None = None) -> Tensor:
        """`z = h(x)`; `inputs` and `groups` as the backbone takes them."""
        return self.backbone(inputs, groups)

    def similarities(self, features: Tensor) -> Tensor:
        """Cosine of every feature with every proxy."""
        return F.normalize(features, dim=1) @ F.normalize(self.proxies, dim=1).T

    def logits(self, features: Tensor) -> Tensor:
        """`o_c = cos(z, w_c) / tau`."""
        return self.similarities(features) / self.tau

    def forward(self, images: Tensor) -> tuple[Tensor, Tensor]:
        features = self.features(self.inputs(images))
        return self.logits(features), features


class Unit(nn.Module):
    """Directions: every feature of length one."""

    def forward(self, features: Tensor) -> Tensor:
        return F.normalize(features, dim=1)


class Classifier(nn.Module):
    """Class scores from features, `o = W lift(z) + b`, apart from the network that they were taken from."""

    weight: Tensor
    bias: Tensor | None

    def __init__(self, lift: nn.Module, weight: Tensor, bias: Tensor | None = None) -> None:
        super().__init__()
        self.lift = lift
        self.register_buffer("weight", weight)
        self.register_buffer("bias", bias)

    @classmethod
    def by_proxies(cls, network: Network) -> Classifier:
        """What `Network.logits` says."""
        return cls(Unit(), F.normalize(network.proxies.detach(), dim=1) / network.tau)

    def keep(self, columns: list[int]) -> None:
        """Keep the classes of these columns, in this order."""
        self.weight = self.weight[columns]
        self.bias = None if self.bias is None else self.bias[columns]

    def forward(self, features: Tensor) -> Tensor:
        return F.linear(self.lift(features), self.weight, self.bias)
