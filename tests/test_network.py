"""The model: the architecture of the paper at every size, and classes that come and go without disturbing others."""

import copy

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.flop_counter import FlopCounterMode

from edge_hpcr.common.errors import UserError
from edge_hpcr.learner.backbones.contract import BackboneConfig
from edge_hpcr.learner.backbones.reduced_resnet18 import ReducedResNet18
from edge_hpcr.learner.network import Network
from edge_hpcr.learner.optimise import KINDS, WARM_UP, Optimiser, WeightAverage, orthogonalised

pytestmark = pytest.mark.computes

SMALL = {"nf": 4, "seed": 3}  # quick; the paper's is nf = 20


def normal(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def images(count: int, height: int, width: int, seed: int = 0) -> Tensor:
    return torch.rand(count, 3, height, width, generator=torch.Generator().manual_seed(seed))


def made(side: tuple[int, int], tau: float = 0.09, **options: int) -> Network:
    return Network(ReducedResNet18(BackboneConfig(*side, **options)), tau)


def with_classes(network: Network, classes: int) -> Network:
    for column in range(classes):
        network.append_proxy(normal(network.feature_size, seed=100 + column))
    return network


# Architecture ------------------------------------------------------------------------------------------------------


def test_the_papers_network_has_about_a_million_parameters() -> None:
    """Counted from the description: stem, then blocks of (width in, width out), each with two 3x3 convolutions."""
    blocks = [(20, 20), (20, 20), (20, 40), (40, 40), (40, 80), (80, 80), (80, 160), (160, 160)]
    expected = 9 * 3 * 20 + 2 * 20
    for width_in, width_out in blocks:
        expected += 9 * width_in * width_out + 9 * width_out * width_out + 4 * width_out
        expected += 0 if width_in == width_out else width_in * width_out + 2 * width_out
    network = with_classes(made((32, 32)), 10)
    assert sum(p.numel() for p in network.parameters()) == expected + 10 * 160 == 1_094_740


@pytest.mark.parametrize(("side", "size"), [(32, 160), (64, 640), (84, 640)])
def test_the_feature_size_is_the_papers(side: int, size: int) -> None:
    assert made((side, side)).feature_size == size


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
    network = made((side, side), **SMALL).double()
    # Scales and shifts that are not 1 and 0, so that they show.
    for name, parameter in network.named_parameters():
        if "bn" in name or "shortcut.1" in name:
            parameter.data += 0.3 * normal(*parameter.shape, seed=len(name)).double()
    batch = images(3, side, side).double()
    expected = reference_features(network.backbone.state_dict(), batch)
    torch.testing.assert_close(network.features(batch), expected, rtol=1e-9, atol=1e-9)


def test_a_training_step_of_forty_images_takes_the_known_number_of_operations() -> None:
    network = with_classes(made((32, 32)), 10).to("meta")  # counted, not computed
    counter = FlopCounterMode(display=False)
    with counter:
        network(torch.empty(40, 3, 32, 32, device="meta"))[0].sum().backward()
    assert 13.0e9 < counter.get_total_flops() < 13.1e9


@pytest.mark.slow
@pytest.mark.parametrize("side", [8, 9, 16, 28, 31, 32, 64, 84, 128, 256])
def test_every_side_from_8_to_256_works(side: int) -> None:
    network = with_classes(made((side, side), **SMALL), 2)
    logits, features = network(images(2, side, side))
    assert features.shape == (2, network.feature_size) and logits.shape == (2, 2)
    assert features.isfinite().all() and logits.isfinite().all()


@pytest.mark.parametrize(("height", "width"), [(8, 64), (40, 24), (84, 28)])
def test_images_need_not_be_square(height: int, width: int) -> None:
    network = made((height, width), **SMALL)
    assert network.features(images(2, height, width)).shape == (2, network.feature_size)


@pytest.mark.parametrize("side", [(7, 32), (32, 7), (257, 32), (32, 257), (0, 0)])
def test_sides_outside_8_to_256_are_refused(side: tuple[int, int]) -> None:
    with pytest.raises(UserError, match=f"{side[0]}x{side[1]} pixels.*8 to 256"):
        made(side)


def test_the_channels_last_layout_changes_no_output() -> None:
    network = with_classes(made((32, 32), **SMALL), 3).double()
    plain = copy.deepcopy(network).to(memory_format=torch.contiguous_format)
    batch = images(4, 32, 32).double()
    assert network.backbone.stages[0].conv1.weight.is_contiguous(memory_format=torch.channels_last)
    assert not plain.backbone.stages[0].conv1.weight.is_contiguous(memory_format=torch.channels_last)
    last = network(batch.contiguous(memory_format=torch.channels_last))
    for ours, default in zip(last, plain(batch), strict=True):
        torch.testing.assert_close(ours, default, rtol=1e-10, atol=1e-10)


def test_logits_are_cosines_over_tau_whatever_the_lengths() -> None:
    network = with_classes(made((8, 8), tau=0.5, **SMALL), 3)
    features = normal(4, network.feature_size)
    expected = F.cosine_similarity(features[:, None], network.proxies[None], dim=2)
    torch.testing.assert_close(network.similarities(features), expected)
    torch.testing.assert_close(network.logits(features), expected / 0.5)
    network.proxies.data *= 7
    torch.testing.assert_close(network.logits(3 * features), expected / 0.5)


def test_a_feature_of_zeros_meets_every_class_at_right_angles() -> None:
    network = with_classes(made((8, 8), **SMALL), 3)
    assert network.logits(torch.zeros(1, network.feature_size)).tolist() == [[0.0, 0.0, 0.0]]


def test_the_seed_alone_decides_the_weights() -> None:
    def weights(global_seed: int, seed: int) -> dict[str, Tensor]:
        with torch.random.fork_rng():
            torch.manual_seed(global_seed)
            return made((8, 8), nf=4, seed=seed).state_dict()

    one, two, other = weights(1, 5), weights(2, 5), weights(1, 6)
    assert all(torch.equal(one[name], two[name]) for name in one)
    assert not torch.equal(one["backbone.stem.weight"], other["backbone.stem.weight"])


def test_convolutions_start_as_pytorch_starts_them() -> None:
    """Uniform within 1/sqrt(fan in), the spread that the paper's program has by default."""
    for module in made((32, 32), seed=1).modules():
        if isinstance(module, nn.Conv2d):
            weight, bound = module.weight.detach(), module.weight[0].numel() ** -0.5
            assert 0.97 * bound < weight.abs().max() <= bound
            assert weight.std().item() == pytest.approx(bound / 3**0.5, rel=0.1)


# Classes that come and go ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("before", [0, 1, 4])
def test_a_new_class_leaves_the_old_proxies_bitwise_and_their_logits_as_they_were(before: int) -> None:
    network = with_classes(made((8, 8), **SMALL), before).eval()
    batch = images(5, 8, 8)
    old_proxies, old_logits = network.proxies.detach().clone(), network(batch)[0]
    network.append_proxy(normal(network.feature_size, seed=9))
    assert network.num_classes == before + 1
    assert torch.equal(network.proxies[:before], old_proxies)
    assert torch.equal(network.proxies[before], normal(network.feature_size, seed=9))
    torch.testing.assert_close(network(batch)[0][:, :before], old_logits, rtol=0, atol=1e-5)


def test_a_class_that_leaves_takes_its_own_proxy_with_it() -> None:
    network = with_classes(made((8, 8), **SMALL), 4)
    proxies = network.proxies.detach().clone()
    network.keep_proxies([0, 2, 3])
    assert torch.equal(network.proxies, proxies[[0, 2, 3]])
    assert network.proxies.requires_grad


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
    alone = with_classes(made((8, 8), **SMALL), 3)
    optimiser_alone = Optimiser(kind, 0.01, alone)
    growing = with_classes(made((8, 8), **SMALL), 3)
    optimiser = Optimiser(kind, 0.01, growing)
    for network, its in ((alone, optimiser_alone), (growing, optimiser)):
        steps(network, its, 3, seed=1)
    growing.append_proxy(normal(growing.feature_size))
    optimiser.follow_proxies(kept=[0, 1, 2])
    for network, its in ((alone, optimiser_alone), (growing, optimiser)):
        steps(network, its, 3, seed=2)
    assert torch.equal(growing.proxies[:3], alone.proxies)
    assert not torch.equal(growing.proxies[3], normal(growing.feature_size))
    assert torch.equal(growing.backbone.stem.weight, alone.backbone.stem.weight)


@pytest.mark.parametrize(("kind", "pytorchs"), [("sgd", torch.optim.SGD), ("adam", torch.optim.Adam)])
def test_our_optimisers_are_pytorchs_bit_for_bit(kind: str, pytorchs: type[torch.optim.Optimizer]) -> None:
    ours, theirs = (with_classes(made((8, 8), **SMALL), 3) for _ in range(2))
    steps(ours, Optimiser(kind, 0.01, ours), 5, seed=1)
    steps(theirs, pytorchs(theirs.parameters(), lr=0.01), 5, seed=1)  # type: ignore[call-arg]
    for (name, one), other in zip(ours.named_parameters(), theirs.parameters(), strict=True):
        assert torch.equal(one, other), name


def test_adams_memory_of_old_proxies_moves_with_them_and_a_new_one_starts_at_zero() -> None:
    network = with_classes(made((8, 8), **SMALL), 3)
    optimiser = Optimiser("adam", 0.01, network)
    steps(network, optimiser, 2, seed=1)
    before = {name: value.clone() for name, value in optimiser.state().items()}

    network.append_proxy(normal(network.feature_size))
    optimiser.follow_proxies(kept=[0, 1, 2])
    grown = optimiser.state()
    network.keep_proxies([0, 2, 3])
    optimiser.follow_proxies(kept=[0, 2, 3])
    shrunk = optimiser.state()

    assert grown.keys() == shrunk.keys() == before.keys()
    for name in ("proxies.exp_avg", "proxies.exp_avg_sq"):
        assert before[name].abs().min() > 0
        assert torch.equal(grown[name][:3], before[name]) and not grown[name][3].any()
        assert torch.equal(shrunk[name], grown[name][[0, 2, 3]])
    others = [name for name in before if not name.startswith("proxies.exp")]
    assert all(torch.equal(shrunk[name], before[name]) for name in others) and "proxies.step" in others


@pytest.mark.parametrize("shape", [(20, 27), (40, 360), (40, 12)], ids=str)
def test_orthogonalising_keeps_the_directions_of_a_matrix_and_evens_out_their_sizes(shape) -> None:
    left, _, right = torch.linalg.svd(normal(*shape), full_matrices=False)
    sizes = torch.logspace(0, -1, min(shape))
    made_even = left.T @ orthogonalised(left @ sizes.diag() @ right) @ right.T
    assert ((made_even.diag() > 0.5) & (made_even.diag() < 1.3)).all()
    assert (made_even - made_even.diag().diag()).abs().max() < 1e-3


def test_muon_moves_a_convolution_by_a_share_of_its_weights_and_the_rest_as_sgd_does() -> None:
    network, other = (with_classes(made((8, 8), **SMALL), 3) for _ in range(2))
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


@pytest.mark.parametrize("kind", ["adam", "muon"])
def test_an_optimisers_state_continues_in_another_optimiser(kind: str) -> None:
    networks = [with_classes(made((8, 8), **SMALL), 3) for _ in range(2)]
    optimisers = [Optimiser(kind, 0.01, network) for network in networks]
    steps(networks[0], optimisers[0], 3, seed=1)
    networks[1].load_state_dict(networks[0].state_dict())
    optimisers[1].load_state({name: value.clone() for name, value in optimisers[0].state().items()})
    for network, optimiser in zip(networks, optimisers, strict=True):
        steps(network, optimiser, 2, seed=5)
    pairs = zip(networks[0].parameters(), networks[1].parameters(), strict=True)
    assert all(torch.equal(one, two) for one, two in pairs)


# The average of the weights ----------------------------------------------------------------------------------------


def test_the_average_starts_as_the_network_and_shares_nothing_with_it() -> None:
    network = with_classes(made((8, 8), **SMALL), 2)
    average = WeightAverage(network, 0.99)
    before = average.network.backbone.stem.weight.clone()
    network.backbone.stem.weight.data.add_(1)
    assert torch.equal(average.network.backbone.stem.weight, before)
    assert not average.network.training


def test_the_average_moves_by_its_decay_batch_norm_included() -> None:
    network = with_classes(made((8, 8), **SMALL), 2)
    average = WeightAverage(network, 0.75)
    before = {name: value.clone() for name, value in average.network.state_dict().items()}
    for value in network.state_dict().values():
        value.add_(1)
    average.update(network, step=1000)
    for name, value in average.network.state_dict().items():
        expected = before[name] + (0.25 if value.is_floating_point() else 1)
        torch.testing.assert_close(value, expected, msg=name)


def test_the_average_forgets_its_random_start_quickly() -> None:
    network = with_classes(made((8, 8), **SMALL), 2)
    average = WeightAverage(network, 0.99)
    before = average.network.backbone.stem.weight.clone()
    network.backbone.stem.weight.data.add_(1)
    average.update(network, step=0)
    torch.testing.assert_close(average.network.backbone.stem.weight, before + 1 - 1 / WARM_UP)
