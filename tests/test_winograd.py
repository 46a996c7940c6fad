"""The fast 3x3 convolution is the convolution."""

import pytest
import torch
from torch import nn

from edge_hpcr.learner.backbones import BackboneConfig
from edge_hpcr.learner.backbones.reduced_resnet18 import ReducedResNet18
from edge_hpcr.learner.backbones.winograd import Conv3x3
from edge_hpcr.learner.network import Network

pytestmark = pytest.mark.computes


def random_images(*shape: int) -> torch.Tensor:
    images = torch.randn(shape, generator=torch.Generator().manual_seed(0))
    return images.contiguous(memory_format=torch.channels_last)


@pytest.mark.parametrize(
    ("count", "width_in", "width_out", "height", "width"),
    [
        (40, 160, 160, 4, 4),
        (6, 80, 80, 8, 8),
        (3, 64, 96, 11, 5),  # tiles that stick out, unequal sides and widths
        (1, 64, 64, 1, 1),
        (2, 64, 64, 16, 16),
    ],
)
def test_outputs_and_gradients_are_those_of_the_plain_convolution(
    count: int, width_in: int, width_out: int, height: int, width: int
) -> None:
    layer = Conv3x3(width_in, width_out).to(memory_format=torch.channels_last)
    images = random_images(count, width_in, height, width).requires_grad_()
    fast = layer(images)
    assert type(fast.grad_fn).__name__ == "_WinogradBackward"
    exact = nn.functional.conv2d(images.double(), layer.weight.double(), None, 1, 1)
    gradient = random_images(*fast.shape)
    pairs = [(fast, exact)]
    pairs += zip(
        torch.autograd.grad(fast, [images, layer.weight], gradient),
        torch.autograd.grad(exact, [images, layer.weight], gradient.double()),
        strict=True,
    )
    for ours, reference in pairs:
        assert (ours - reference).abs().max() < 3e-5 * reference.abs().max()
    assert fast.is_contiguous(memory_format=torch.channels_last)


def test_groups_in_one_pass_take_their_statistics_apart_as_in_two() -> None:
    images = random_images(10, 3, 16, 16)
    one, two = (Network(ReducedResNet18(BackboneConfig(16, 16, nf=8))).train() for _ in range(2))
    together = one.features(images, [6, 4])
    apart = torch.cat([two.features(group) for group in images.split([6, 4])])
    torch.testing.assert_close(together, apart, rtol=1e-4, atol=1e-4)
    for (name, ours), theirs in zip(one.named_buffers(), two.buffers(), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-5, msg=name)
    mixed = Network(ReducedResNet18(BackboneConfig(16, 16, nf=8))).train().features(images)
    assert (mixed - together).abs().max() > 0.01
