"""The model: the architecture of the paper at every size, and classes that come and go without disturbing others."""

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from edge_hpcr.learner.backbones.backbone import BackboneConfig
from edge_hpcr.learner.backbones.reduced_resnet18 import ReducedResNet18
from edge_hpcr.learner.network import Network
from edge_hpcr.learner.optimise import KINDS, Optimiser

pytestmark = pytest.mark.computes


def normal(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def small(classes: int, side: int = 8, tau: float = 0.09) -> Network:
    """A quick one; the paper's has nf = 20."""
    network = Network(ReducedResNet18(BackboneConfig(side, side, nf=4, seed=3)), tau)
    for column in range(classes):
        network.append_proxy(normal(network.feature_size, seed=100 + column))
    return network


# Architecture ------------------------------------------------------------------------------------------------------


def reference_features(state: dict[str, Tensor], x: Tensor) -> Tensor:
    """Reduced ResNet-18 of hpcr.md in training mode, written out from its description for 32 x 32 and larger."""

    def conv_bn(x: Tensor, conv: str, bn: str, stride: int = 1, padding: int = 1) -> Tensor:
        x = F.conv2d(x, state[f"{conv}.weight"], stride=stride, padding=padding)
        mean, var = x.mean((0, 2, 3), keepdim=True), x.var((0, 2, 3), keepdim=True, unbiased=False)
        scale, shift = (state[f"{bn}.{name}"].view(1, -1, 1, 1) for name in ("weight", "bias"))
        return (x - mean) / (var + 1e-5).sqrt() * scale + shift

    x = conv_bn(x, "stem", "stem_bn").relu()
    for number, stride in enumerate([1, 1, 2, 1, 2, 1, 2, 1]):
        block = f"stages.{number}"
        y = conv_bn(x, f"{block}.conv1", f"{block}.bn1", stride).relu()
        y = conv_bn(y, f"{block}.conv2", f"{block}.bn2")
        if stride == 2:
            x = conv_bn(x, f"{block}.shortcut.0", f"{block}.shortcut.1", stride, padding=0)
        x = (x + y).relu()
    rows, columns = x.shape[2] // 4, x.shape[3] // 4
    cells = [
        x[:, :, 4 * i : 4 * i + 4, 4 * j : 4 * j + 4].mean((2, 3))
        for i in range(rows)
        for j in range(columns)
    ]
    return torch.stack(cells, dim=2).flatten(1)


@pytest.mark.parametrize("side", [32, 84])
def test_the_features_are_those_of_the_described_architecture(side: int) -> None:
    network = small(0, side).double()
    # Scales and shifts that are not 1 and 0, so that they show.
    for name, parameter in network.named_parameters():
        if "bn" in name or "shortcut.1" in name:
            parameter.data += 0.3 * normal(*parameter.shape, seed=len(name)).double()
    batch = torch.rand(3, 3, side, side, generator=torch.Generator().manual_seed(0)).double()
    expected = reference_features(network.backbone.state_dict(), batch)
    torch.testing.assert_close(network.features(batch), expected, rtol=1e-9, atol=1e-9)


def test_logits_are_cosines_over_tau_whatever_the_lengths() -> None:
    network = small(3, tau=0.5)
    features = normal(4, network.feature_size)
    expected = F.cosine_similarity(features[:, None], network.proxies[None], dim=2)
    torch.testing.assert_close(network.similarities(features), expected)
    torch.testing.assert_close(network.logits(features), expected / 0.5)
    network.proxies.data *= 7
    torch.testing.assert_close(network.logits(3 * features), expected / 0.5)


# Classes that come and go ------------------------------------------------------------------------------------------


def steps(network: Network, optimiser: Optimiser | torch.optim.SGD, count: int, seed: int) -> None:
    """Optimiser steps whose gradients depend on the seed and not on how many classes there are."""
    for step in range(count):
        for number, parameter in enumerate(network.parameters()):
            parameter.grad = normal(*parameter.shape, seed=seed + 1000 * step + number)
        # Row by row, so that the old rows' gradients are the same after a class came or went.
        for row in range(network.num_classes):
            network.proxies.grad[row] = normal(network.feature_size, seed=seed + step + 77 * row)
        optimiser.step()


@pytest.mark.parametrize("kind", KINDS)
def test_old_proxies_go_on_learning_as_if_no_class_had_come(kind: str) -> None:
    alone, growing = small(3), small(3)
    optimiser_alone, optimiser = Optimiser(kind, 0.01, alone), Optimiser(kind, 0.01, growing)
    for network, its in ((alone, optimiser_alone), (growing, optimiser)):
        steps(network, its, 3, seed=1)
    growing.append_proxy(normal(growing.feature_size))
    optimiser.follow_proxies(kept=[0, 1, 2])
    for network, its in ((alone, optimiser_alone), (growing, optimiser)):
        steps(network, its, 3, seed=2)
    assert torch.equal(growing.proxies[:3], alone.proxies)
    assert not torch.equal(growing.proxies[3], normal(growing.feature_size))
    assert torch.equal(growing.backbone.stem.weight, alone.backbone.stem.weight)


def test_a_class_that_comes_late_starts_with_adams_first_steps() -> None:
    late, alone = small(1), small(1)
    optimiser, optimiser_alone = Optimiser("adam", 0.01, late), Optimiser("adam", 0.01, alone)
    steps(late, optimiser, 50, seed=1)
    late.append_proxy(alone.proxies[0].detach())
    optimiser.follow_proxies(kept=[0])
    for network, its in ((late, optimiser), (alone, optimiser_alone)):
        for parameter in network.parameters():
            parameter.grad = torch.ones_like(parameter)
        its.step()
    assert torch.equal(late.proxies[1], alone.proxies[0])


@pytest.mark.parametrize(("kind", "pytorchs"), [("sgd", torch.optim.SGD), ("adam", torch.optim.Adam)])
def test_our_optimisers_are_pytorchs_bit_for_bit(kind: str, pytorchs: type[torch.optim.Optimizer]) -> None:
    ours, theirs = small(3), small(3)
    steps(ours, Optimiser(kind, 0.01, ours), 5, seed=1)
    steps(theirs, pytorchs(theirs.parameters(), lr=0.01), 5, seed=1)  # type: ignore[call-arg]
    for (name, one), other in zip(ours.named_parameters(), theirs.parameters(), strict=True):
        assert torch.equal(one, other), name


def test_muon_moves_a_convolution_by_a_share_of_its_weights_and_the_rest_as_sgd_does() -> None:
    network, other = small(3), small(3)
    before = {name: each.detach().clone() for name, each in network.named_parameters()}
    steps(network, Optimiser("muon", 0.01, network), 1, seed=1)
    steps(other, Optimiser("sgd", 0.01, other), 1, seed=1)
    for name, each in network.named_parameters():
        if each.dim() != 4:
            assert torch.equal(each, other.get_parameter(name)), name
            continue
        old = before[name] * len(each) ** 0.5 / before[name].norm()
        sizes = torch.linalg.svdvals((each.detach() - old).flatten(1)) / 0.01
        assert 0.5 < sizes[0] < 1.3, name
        downhill = torch.sum((each.detach() - old) * each.grad)
        assert downhill < 0, name
