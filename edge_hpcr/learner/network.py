"""The network: a backbone that makes features, and a cosine classifier of proxies.

`z = h(x)` is `Network.features`, `o = f(z)` is `Network.logits`; one trainable proxy stands for one class.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from edge_hpcr.learner.backbones.backbone import Backbone


class Network(nn.Module):
    """A backbone and one proxy per class; `logits = cos(z, w_c) / tau`.

    Classes are columns in the order of their arrival. A new proxy is appended; the old ones keep their values. The
    backbone's trunk is no part of the state: copies share it.

    `linear` makes it `logits = z w_c`: some rivals of HPCR work with the length of the weights. `extra` are modules that
    a method trains with it.
    """

    def __init__(self, backbone: Backbone, tau: float = 0.09, linear: bool = False) -> None:
        super().__init__()
        self.backbone = backbone
        self.tau = tau
        self.linear = linear
        self.proxies = nn.Parameter(torch.empty(0, backbone.feature_size))
        self.extra = nn.ModuleDict()

    @property
    def feature_size(self) -> int:
        return self.backbone.feature_size

    @property
    def num_classes(self) -> int:
        return self.proxies.shape[0]

    def append_proxy(self, proxy: Tensor) -> None:
        """One more class. The old proxies keep their values; the parameter object is a new one."""
        self._set_rows("proxies", torch.cat([self.proxies.detach(), proxy.to(self.proxies)[None]]))
        for name in self.class_rows()[1:]:
            self._set_rows(name, F.pad(self.get_parameter(name).detach(), (0, 0, 0, 1)))

    def keep_proxies(self, columns: list[int]) -> None:
        """Keep the classes of these columns, in this order."""
        for name in self.class_rows():
            self._set_rows(name, self.get_parameter(name).detach()[columns].clone())

    def take_over(self, state: dict[str, Tensor]) -> None:
        """The weights of another network of this shape, which may know other classes."""
        for name in self.class_rows():
            self._set_rows(name, state[name].to(self.proxies).clone())
        self.load_state_dict(state)

    def class_rows(self) -> list[str]:
        """The names of the parameters with a row for each class, the proxies first."""
        return ["proxies"] + [
            f"extra.{name}.weight" for name, each in self.extra.items() if isinstance(each, ClassRows)
        ]

    def _set_rows(self, name: str, rows: Tensor) -> None:
        *path, leaf = name.split(".")
        owner = self.get_submodule(".".join(path))
        setattr(owner, leaf, nn.Parameter(rows, getattr(owner, leaf).requires_grad))

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
        """`o_c = cos(z, w_c) / tau`, or `z w_c`."""
        return features @ self.proxies.T if self.linear else self.similarities(features) / self.tau

    def forward(self, images: Tensor) -> tuple[Tensor, Tensor]:
        features = self.features(self.inputs(images))
        return self.logits(features), features


class ClassRows(nn.Module):
    """A linear layer with one output per class, as an addition to the proxies; a new class's outputs start at zero."""

    def __init__(self, size: int, device: torch.device) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(0, size, device=device))

    def forward(self, features: Tensor) -> Tensor:
        return features @ self.weight.T


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
        """The same scores as `Network.logits`."""
        if network.linear:
            return cls(nn.Identity(), network.proxies.detach().clone())
        return cls(Unit(), F.normalize(network.proxies.detach(), dim=1) / network.tau)

    def keep(self, columns: list[int]) -> None:
        """Keep the classes of these columns, in this order."""
        self.weight = self.weight[columns]
        self.bias = None if self.bias is None else self.bias[columns]

    def forward(self, features: Tensor, inputs: Tensor) -> Tensor:
        """`inputs` are what the features were made of: a subclass may look at them too."""
        return F.linear(self.lift(features), self.weight, self.bias)

    def similarity(self, cosines: Tensor, inputs: Tensor) -> Tensor:
        """How near the nearest class is: the largest cosine to a proxy, if a subclass does not know better. [N]"""
        return cosines.amax(1)
